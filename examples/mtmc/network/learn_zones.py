"""Which zones of two cameras go together, counted from passages and shrunk towards chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.network import Link, Network
from examples.mtmc.network.zones import zone_names, zone_shares
from examples.mtmc.recordings.tracklets import Recording

SHRINKAGE = 4.0  # how many passages chance, or the shares that were given, count for

Shares = tuple[tuple[str, str, float], ...]


class ZoneCounts:
    """Counts zones of leaving and of entering over a recording's tracklets (those that are ``counted``)."""

    def __init__(self, recording: Recording, counted: NDArray[np.bool_]) -> None:
        network = recording.network
        self.names = {name: zone_names(camera) for name, camera in network.cameras.items()}
        place = {name: {zone: k for k, zone in enumerate(zones)} for name, zones in self.names.items()}
        tracklets = recording.tracklets
        self.left = np.array([place[t.camera].get(t.zone_out, -1) for t in tracklets], dtype=np.int64)
        self.entered = np.array([place[t.camera].get(t.zone_in, -1) for t in tracklets], dtype=np.int64)
        camera = np.array([network.index(t.camera) for t in tracklets], dtype=np.int64)
        self.general = {}
        for number, (name, zones) in enumerate(self.names.items()):
            own = (camera == number) & counted
            self.general[name] = tuple(
                (np.bincount(zone[own], minlength=len(zones)) + 1) / (own.sum() + len(zones))
                for zone in (self.left, self.entered)
            )

    def shares(self, link: Link, network: Network, source: NDArray[np.int64], target: NDArray[np.int64]) -> Shares:
        """(n_ab + κ m_ab) / (n + κ) of the passages ``source`` to ``target``, m what was given, or chance: how often
        tracklets of the two cameras leave and enter by each zone whatever they do next. Nothing without zones."""
        leave, enter = self.names[link.source], self.names[link.target]
        if len(leave) == len(enter) == 1:
            return ()
        given = zone_shares(link, network)
        if given is None:
            given = np.outer(self.general[link.source][0], self.general[link.target][1])
        pair = self.left[source] * len(enter) + self.entered[target]
        count = np.bincount(pair, minlength=given.size).reshape(given.shape)
        share = np.round((count + SHRINKAGE * given) / (len(source) + SHRINKAGE), 6)
        largest = np.unravel_index(share.argmax(), share.shape)
        share[largest] = round(share[largest] + 1 - share.sum(), 6)
        return tuple((a, b, float(share[i, j])) for i, a in enumerate(leave) for j, b in enumerate(enter))
