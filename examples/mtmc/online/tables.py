"""The tables of an online run, kept on disk while it runs, so that a long stream takes no memory."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from examples.mtmc.online.decisions import Decision
from examples.mtmc.online.live import Live

HEAD = (
    "identity", "camera", "tracklet", "part", "frame_in", "frame_out", "time_in", "time_out", "boxes",
    "after_camera", "after_tracklet", "score",
)  # fmt: skip


class Tables:
    """Identities and tracks, collected in any order, written in order: ``identities.csv`` and ``tracks/CAMERA.txt``."""

    def __init__(self, path: Path) -> None:
        self.base = sqlite3.connect(path, isolation_level=None)
        self.base.execute("PRAGMA journal_mode = OFF")  # the file is a draft: it is gone with the run
        self.base.execute("PRAGMA synchronous = OFF")
        self.base.execute(f"CREATE TABLE tracklet ({', '.join(HEAD)})")
        self.base.execute("CREATE TABLE box (camera, frame, identity, x, y, w, h)")
        self.base.execute("CREATE TABLE reason (camera, id, part, after_camera, after_id, score)")
        self.base.execute("BEGIN")

    def say(self, decisions: Iterable[Decision]) -> None:
        """Why tracklets were joined."""
        given = [d for d in decisions if d.kind == "identity" and d.after_camera is not None]
        rows = [(d.camera, d.id, d.part, d.after_camera, d.after_id, d.score) for d in given]
        self.base.executemany("INSERT INTO reason VALUES (?, ?, ?, ?, ?, ?)", rows)

    def add(self, tracklets: Iterable[Live]) -> None:
        """Tracklets that are decided and have ended."""
        for t in tracklets:
            assert t.person is not None
            who, (first, last) = t.person.number, (int(t.rows[0, 0]), t.last_frame)
            row = (who, t.camera, t.id, t.part, first, last, t.time_in, t.time_out, t.count)
            self.base.execute("INSERT INTO tracklet VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL)", row)
            boxes = [(t.camera, int(frame), who, *box) for frame, *box, _, _ in t.rows.tolist()]
            self.base.executemany("INSERT INTO box VALUES (?, ?, ?, ?, ?, ?, ?)", boxes)

    def counts(self) -> tuple[int, int]:
        """How many tracklets, and of how many identities."""
        tracklets, identities = self.base.execute("SELECT count(*), count(DISTINCT identity) FROM tracklet").fetchone()
        return int(tracklets), int(identities)

    def write(self, folder: Path, cameras: Iterable[str]) -> None:
        """All of it, identity by identity and frame by frame."""
        with (folder / "identities.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(HEAD)
            table.writerows(
                [
                    *row[:6],
                    *(f"{x:.3f}" for x in row[6:8]),
                    row[8],
                    *row[9:11],
                    "" if row[11] is None else f"{row[11]:.3f}",
                ]
                for row in self.base.execute(
                    "SELECT t.identity, t.camera, t.tracklet, t.part, t.frame_in, t.frame_out, t.time_in, t.time_out,"
                    " t.boxes, r.after_camera, r.after_id, r.score FROM tracklet t LEFT JOIN reason r"
                    " ON r.camera = t.camera AND r.id = t.tracklet AND r.part = t.part"
                    " ORDER BY t.identity, t.time_in, t.camera, t.tracklet"
                )
            )
        (folder / "tracks").mkdir(exist_ok=True)
        for camera in cameras:
            rows = self.base.execute(
                "SELECT frame, identity, x, y, w, h FROM box WHERE camera = ? ORDER BY frame, identity", (camera,)
            )
            with (folder / "tracks" / f"{camera}.txt").open("w", encoding="utf-8") as file:
                for frame, who, *box in rows:
                    file.write(f"{frame},{who},{','.join(f'{x:.2f}' for x in box)},1,-1,-1,-1\n")

    def close(self) -> None:
        """Done with it."""
        self.base.close()
