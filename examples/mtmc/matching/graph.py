"""The bipartite heterogeneous graph: tracklets and cameras, who sees whom, who lies beside whom, who may follow whom.

camera   –sees→      tracklet    the camera that a tracklet was seen by
camera   –adjacent→  camera      directed links, with their prior and typical delay
tracklet –candidate→ tracklet    only along a link and within its window; with link prior, travel ratio,
                                 delay and the cosine of their looks
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import HeteroData

from examples.mtmc.matching.candidates import Candidates
from examples.mtmc.matching.prior import Prior, Rates, arrival_rates
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.tracklets import Recording

CAMERA_DIM, ADJACENT_DIM, EXTRA_DIM = 5, 2, 2


def build_graph(
    recording: Recording,
    pairs: Candidates,
    prior: Prior,
    looks: NDArray[np.float64],
    network: Network | None = None,
    rates: Rates | None = None,
) -> HeteroData:
    """The graph of a recording, by what ``network`` (default: the recording's own) believes about cameras and links.

    ``rates`` are those of the recording unless given.
    """
    network = network or recording.network
    tracklets, names = recording.tracklets, list(recording.network.cameras)
    number = {name: n for n, name in enumerate(names)}
    between = [x for x in network.links if x.source != x.target]
    data = HeteroData()

    length = np.array([[np.log1p(t.time_out - t.time_in), np.log1p(len(t.frames))] for t in tracklets])
    data["tracklet"].x = torch.as_tensor(length.reshape(-1, EXTRA_DIM) - 2.5, dtype=torch.float32)
    data["tracklet"].camera = torch.tensor([number[t.camera] for t in tracklets], dtype=torch.int64)
    data["tracklet"].starts = torch.as_tensor(prior.starts, dtype=torch.float32)
    data["tracklet"].ends = torch.as_tensor(prior.ends, dtype=torch.float32)

    rate = rates.camera if rates else arrival_rates(recording)
    data["camera"].x = torch.tensor(
        [
            [
                np.log(rate[name]) + 3,
                network.cameras[name].starts,
                network.cameras[name].ends,
                float(sum(x.source == name for x in between)) / 3,
                float(sum(x.target == name for x in between)) / 3,
            ]
            for name in names
        ],
        dtype=torch.float32,
    ).reshape(-1, CAMERA_DIM)

    data["camera", "sees", "tracklet"].edge_index = torch.stack([data["tracklet"].camera, torch.arange(len(tracklets))])
    adjacent = data["camera", "adjacent", "camera"]
    adjacent.edge_index = torch.tensor(
        [[number[x.source] for x in between], [number[x.target] for x in between]], dtype=torch.int64
    )
    typical = [np.sign(x.density.centre) * np.log1p(abs(x.density.centre)) / 4 for x in between]
    adjacent.edge_attr = torch.tensor(
        [[np.log(max(x.prior, 1e-6)) / 4, t] for x, t in zip(between, typical, strict=True)], dtype=torch.float32
    ).reshape(-1, ADJACENT_DIM)

    candidate = data["tracklet", "candidate", "tracklet"]
    candidate.edge_index = torch.as_tensor(np.stack([pairs.source, pairs.target]))
    candidate.prior = torch.as_tensor(prior.link, dtype=torch.float32)
    candidate.travel = torch.as_tensor(prior.travel, dtype=torch.float32)
    candidate.zone = torch.as_tensor(prior.zone, dtype=torch.float32)
    candidate.place = torch.as_tensor(prior.place, dtype=torch.float32)
    alike = (looks[pairs.source] * looks[pairs.target]).sum(1)
    candidate.alike = torch.as_tensor(alike, dtype=torch.float32)
    candidate.delay = torch.as_tensor(pairs.delay, dtype=torch.float32)
    return data
