"""Camera clocks that jump, and cameras that go silent.

Only where rows come in order of time can a clock be seen to jump: in a live stream they must; in a file they do where
ids take turns. (A file may also list one track after another, and then frames go back at every new id.)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.network import Camera, Network
from examples.mtmc.recordings.checks import seconds
from examples.mtmc.recordings.chunk import Chunk
from examples.mtmc.recordings.cleaning import IMPOSSIBLE, JUMP, SILENT, Log

NEW_IDS = 10**12  # added to the ids of a camera whose clock was set anew, so that they are other tracklets
LOOK_AHEAD = 5  # rows: a jump that most of the next ones do not share is a wrong number in one row


class Clocks:
    """Sets clocks anew that jumped by more than ``jump`` seconds, and notes silences longer than ``silence``."""

    def __init__(self, network: Network, log: Log, name: str, jump: float, silence: float, live: bool) -> None:
        self.network, self.log, self.name = network, log, name
        self.cameras: list[Camera] = list(network.cameras.values())
        self.jump, self.silence, self.live = jump, silence, live
        self.newest: dict[int, int] = {}  # the latest frame of a camera, as shifted
        self.shift: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.turns: set[int] = set()  # cameras whose ids take turns: their rows are in order of time

    def set_right(self, chunk: Chunk) -> Chunk:
        """The rows on clocks that go on; rows with one wrong frame are left out."""
        frame, id, keep = chunk.frame.copy(), chunk.id.copy(), np.ones(len(chunk), dtype=bool)
        for camera in np.unique(chunk.camera).tolist():
            own = np.flatnonzero(chunk.camera == camera)
            frames = frame[own] + self.shift.get(camera, 0)
            runs = 1 + int((id[own][1:] != id[own][:-1]).sum())
            if self.live or runs > len(np.unique(id[own])):
                self.turns.add(camera)
            newest = self.newest.get(camera, int(frames[0]))
            before = np.maximum.accumulate(np.concatenate([[newest], frames]))[:-1]
            limit = max(self.jump * self.cameras[camera].fps, 1)
            if camera in self.turns and (np.abs(frames - before) > limit).any():
                self._one_by_one(camera, own, frame, id, keep, chunk)
                continue
            frame[own] = frames
            id[own] += NEW_IDS * self.starts.get(camera, 0)
            self.newest[camera] = max(newest, int(frames.max()))
        if np.array_equal(frame, chunk.frame) and keep.all():
            return chunk
        kept = replace(chunk, frame=frame, id=id, time=seconds(self.network, chunk.camera, frame))
        return kept.take(keep)

    def _one_by_one(
        self,
        camera: int,
        own: NDArray[np.int64],
        frame: NDArray[np.int64],
        id: NDArray[np.int64],
        keep: NDArray[np.bool_],
        chunk: Chunk,
    ) -> None:
        here = self.cameras[camera]
        limit = max(self.jump * here.fps, 1)
        given = frame[own]
        newest = self.newest.get(camera, int(given[0]) + self.shift.get(camera, 0))
        for k, row in enumerate(own.tolist()):
            shift = self.shift.get(camera, 0)
            now = int(given[k]) + shift
            step = now - newest
            line = int(chunk.line[row])
            if abs(step) > limit:
                next_steps = given[k : k + LOOK_AHEAD] + shift - newest
                what = f"frame {int(given[k])} of camera {here.name} after frame {newest - shift}"
                if abs(float(np.median(next_steps))) <= limit:
                    self.log.add(IMPOSSIBLE, self.name, line, what, "frames that go on, as those after it do")
                    keep[row] = False
                    continue
                others = self._others(camera)
                ahead = self.live and others is not None and now > here.frame(others) + limit
                if step < 0 or ahead:
                    target = newest + 1
                    if self.live and others is not None:
                        target = max(target, int(here.frame(others)))
                    expected = f"a clock that goes on: {target - now:+d} frames from here on, and ids anew"
                    self.log.add(JUMP, self.name, line, what, expected)
                    self.shift[camera] = shift + target - now
                    self.starts[camera] = self.starts.get(camera, 0) + 1
                    now = target
                elif step > self.silence * here.fps:
                    what = f"nothing of camera {here.name} for {step / here.fps:.0f} s"
                    self.log.note(SILENT, self.name, line, what, f"rows at least every {self.silence:g} s")
            newest = max(newest, now)
            frame[row] = now
            id[row] += NEW_IDS * self.starts.get(camera, 0)
        self.newest[camera] = newest

    def _others(self, camera: int) -> float | None:
        """The latest time that another camera has told of."""
        times = [
            float(self.cameras[other].seconds(np.array(frame)))
            for other, frame in self.newest.items()
            if other != camera
        ]
        return max(times) if times else None
