"""What a stream has shown of its cameras so far: how often tracklets start, and how they look on the whole."""

from __future__ import annotations

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
        self.names = list(network.cameras)
        self.number = {name: n for n, name in enumerate(self.names)}
        self.count = np.full(len(self.names), 0.5)
        self.starts = np.zeros(0, dtype=np.complex128)  # camera + i · time: numpy orders them by camera, then by time
        self.first, self.last = np.inf, -np.inf  # of all starts, of all ends so far
        self.sum: NDArray[np.float64] | None = None
        self.looks = np.zeros(len(self.names))
        self._new: list[complex] = []  # starts that are not yet in order

    def start(self, tracklet: Live) -> None:
        """A tracklet appeared."""
        camera = self.number[tracklet.camera]
        self.count[camera] += 1
        self._new.append(complex(camera, tracklet.time_in))
        self.first = min(self.first, tracklet.time_in)

    def end(self, tracklet: Live) -> None:
        """A tracklet ended: its look will not change any more."""
        self.last = max(self.last, tracklet.time_out)
        if tracklet.look is not None:
            if self.sum is None:
                self.sum = np.zeros((len(self.names), len(tracklet.look)))
            self.looks[self.number[tracklet.camera]] += 1
            self.sum[self.number[tracklet.camera]] += tracklet.look

    def forget(self, before: float) -> None:
        """Starts of long ago are counted, not kept."""
        self._sort()
        self.starts = self.starts[self.starts.imag >= before - AROUND]

    def _sort(self) -> None:
        if self._new:
            self.starts = np.sort(np.concatenate([self.starts, self._new]))
            self._new = []

    def rates(self, tracklets: list[Live], now: float) -> Rates:
        """Rates of arrival around the starts of tracklets; of what has not come yet nothing is counted."""
        self._sort()
        seconds = max((self.last if now == np.inf else now) - self.first, 1.0)
        overall = self.count / seconds
        camera = np.array([self.number[t.camera] for t in tracklets], dtype=np.int64)
        time_in = np.array([t.time_in for t in tracklets], dtype=np.float64)
        until = np.searchsorted(self.starts, camera + 1j * (time_in + AROUND / 2), "right")
        since = np.searchsorted(self.starts, camera + 1j * (time_in - AROUND / 2), "left")
        others = np.maximum(until - since - 1, 0)  # its own start may be forgotten
        known = AROUND / 2 + np.clip(now - time_in, 0.0, AROUND / 2)
        return Rates(dict(zip(self.names, overall.tolist(), strict=True)), (others / known + overall[camera]) / 2)

    def looks_of(self, tracklets: list[Live], ended: bool) -> NDArray[np.float64]:
        """Looks less the mean of their camera and of unit length, 0 where nothing is known.

        The mean is that of tracklets that ended, and held back while they are few.
        """
        known = np.array([n for n, t in enumerate(tracklets) if t.look_sum is not None], dtype=np.int64)
        if not len(known):
            return np.zeros((len(tracklets), 1))
        total = np.stack([t.look_sum for t in tracklets if t.look_sum is not None])
        own = total / np.array([t.looked for t in tracklets], dtype=np.float64)[known, None]
        if self.sum is not None:
            count = self.looks + (0.0 if ended else FEW)
            mean = self.sum / np.where(self.looks > 0, count, 1.0)[:, None]
            own -= mean[np.array([self.number[t.camera] for t in tracklets], dtype=np.int64)[known]]
        looks = np.zeros((len(tracklets), own.shape[1]))
        looks[known] = own / np.maximum(np.linalg.norm(own, axis=1, keepdims=True), 1e-12)
        return looks
