"""What the timeline is drawn from: every tracklet with its identities, as columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.mtmc.page.view import View


def tracklet_data(view: View) -> dict[str, Any]:
    """Columns over tracklets; identities are counted from 1, as in the files of results, and true ones are as given."""
    cameras = {name: n for n, name in enumerate(view.recording.network.cameras)}
    tracklets = view.recording.tracklets
    return {
        "camera": [cameras[t.camera] for t in tracklets],
        "id": [int(t.id) for t in tracklets],
        "in": [round(float(t.time_in), 2) for t in tracklets],
        "out": [round(float(t.time_out), 2) for t in tracklets],
        "boxes": [len(t.frames) for t in tracklets],
        "identity": (np.asarray(view.identity) + 1).tolist(),
        "true": None if view.true is None else view.true.tolist(),
    }
