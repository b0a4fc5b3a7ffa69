"""What a stream has shown of its cameras so far: how often tracklets start, and how they look on the whole."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.prior import Rates
from examples.mtmc.network.network import Network
from examples.mtmc.online.live import Live

AROUND = 60.0  # seconds around a start in which others are counted, as ``prior.local_rates`` does
FEW = 3.0  # looks that a camera's mean counts for before any is seen: the mean of few is mostly the few themselves


class Arrivals:
    """Counts of starts, the starts of the last minutes, and sums of looks, all by camera.

    Once the stream has ended they are those of the whole recording, to the last bit but for the order of sums.
    """

    def __init__(self, network: Network) -> None:
        self.count = dict.fromkeys(network.cameras, 0.5)
        self.starts: dict[str, list[float]] = {name: [] for name in network.cameras}
        self.first, self.last = np.inf, -np.inf  # of all starts, of all ends so far
        self.sum: dict[str, NDArray[np.float64] | float] = dict.fromkeys(network.cameras, 0.0)
        self.looks = dict.fromkeys(network.cameras, 0)

    def start(self, tracklet: Live) -> None:
        """A tracklet appeared."""
        self.count[tracklet.camera] += 1
        insort(self.starts[tracklet.camera], tracklet.time_in)
        self.first = min(self.first, tracklet.time_in)

    def end(self, tracklet: Live) -> None:
        """A tracklet ended: its look will not change any more."""
        self.last = max(self.last, tracklet.time_out)
        if tracklet.look is not None:
            self.looks[tracklet.camera] += 1
            self.sum[tracklet.camera] = self.sum[tracklet.camera] + tracklet.look

    def forget(self, before: float) -> None:
        """Starts of long ago are counted, not kept."""
        for name, starts in self.starts.items():
            self.starts[name] = starts[bisect_left(starts, before - AROUND) :]

    def rates(self, tracklets: list[Live], now: float) -> Rates:
        """Rates of arrival around the starts of tracklets; of what has not come yet nothing is counted."""
        seconds = max((self.last if now == np.inf else now) - self.first, 1.0)
        camera = {name: count / seconds for name, count in self.count.items()}
        around = np.empty(len(tracklets))
        for n, t in enumerate(tracklets):
            starts = self.starts[t.camera]
            others = bisect_right(starts, t.time_in + AROUND / 2) - bisect_left(starts, t.time_in - AROUND / 2) - 1
            others = max(others, 0)  # its own start may be forgotten
            known = AROUND / 2 + min(AROUND / 2, max(now - t.time_in, 0.0))
            around[n] = (others / known + camera[t.camera]) / 2
        return Rates(camera, around)

    def looks_of(self, tracklets: list[Live], ended: bool) -> NDArray[np.float64]:
        """Looks less the mean of their camera and of unit length, 0 where nothing is known.

        The mean is that of tracklets that ended, and held back while they are few.
        """
        looks = [t.look for t in tracklets]
        known = next((x for x in looks if x is not None), None)
        if known is None:
            return np.zeros((len(looks), 1))
        few, nothing = (0.0 if ended else FEW), np.zeros(len(known))
        mean = {name: x / (self.looks[name] + few) for name, x in self.sum.items() if self.looks[name]}
        centred = np.stack(
            [nothing if x is None else x - mean.get(t.camera, nothing) for t, x in zip(tracklets, looks, strict=True)]
        )
        return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12))
