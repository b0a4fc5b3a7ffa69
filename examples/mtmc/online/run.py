"""``track --online``: a folder or a stream of rows in, decisions out as they are made, tables at the end."""

from __future__ import annotations

import gc
import io
import json
import math
import os
import queue
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from examples.mtmc.atomic import results
from examples.mtmc.errors import InputError
from examples.mtmc.matching.weights import load_matcher
from examples.mtmc.network.links_file import load_network
from examples.mtmc.network.network import Network
from examples.mtmc.online.tables import Tables
from examples.mtmc.online.tracker import OnlineTracker
from examples.mtmc.recordings.chunk import Chunk
from examples.mtmc.recordings.cleaning import Log
from examples.mtmc.recordings.folders import sources
from examples.mtmc.recordings.merging import in_time_order
from examples.mtmc.recordings.stream import chunks
from examples.mtmc.recordings.text import Progress

ROWS = 8192  # a chunk of a file
BACK = 3.0  # seconds that a file's rows may go back before it counts as one track after another
WAIT = 0.05  # seconds without a row of a live stream after which time goes on by the clock on the wall


class Interrupted(SystemExit):
    """Ctrl-C: what was decided was written."""

    def __init__(self) -> None:
        super().__init__(130)


@dataclass(frozen=True)
class Online:
    """What to read and how to tell of it."""

    data: str  # a folder, or - for the standard input
    format: str
    links: Path
    out: Path
    latency: float
    json: bool = False  # decisions to the standard output too


def run_online(options: Online, console: Console) -> dict[str, Any]:
    """Track a stream; decisions go to ``OUT/decisions.jsonl`` line by line as they are made.

    Ctrl-C ends it as the end of the stream would, but that what is undecided stays so; then ``Interrupted`` is raised.
    """
    network = load_network(options.links)
    log = Log()
    live = options.data == "-"
    out = options.out
    with results(out) as draft:
        tables = Tables(draft / "tables.sqlite")
        made = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        decisions = out / "decisions.jsonl"
        told = Telling(decisions, options.json)
        tracker: OnlineTracker | None = None
        stop = threading.Event()
        before = signal.signal(signal.SIGINT, lambda *_: stop.set())  # between two chunks: all is whole there
        gc.freeze()  # a search for garbage through all that was imported would hold decisions up by a fifth of a second
        try:
            with console.status("waiting for rows") as status:
                rows = _stream(options, network, log)
                for chunk in _beside_the_clock(rows) if live else rows:
                    if stop.is_set():
                        break
                    if chunk is not None:
                        tracker = tracker or _tracker(network, chunk, options.latency, log, console)
                        tracker.push(chunk)
                        tracker.heard = time.monotonic()
                    elif tracker is not None:
                        tracker.now(tracker.newest + time.monotonic() - tracker.heard)
                    else:
                        continue
                    _pass_on(tracker, told, tables)
                    status.update(
                        f"second {tracker.time:.0f}: {log.rows} rows, {told.tracklets} tracklets, "
                        f"{tracker.number} identities, {log.left_out} rows left out"
                    )
                if tracker is not None:
                    tracker.stop() if stop.is_set() else tracker.finish()
                    _pass_on(tracker, told, tables)
            interrupted = stop.is_set()
            if tracker is None and not interrupted:
                source = "the standard input" if live else options.data
                raise InputError(source, None, f"no usable row{log.first()}", "rows to track")
        except (InputError, OSError, sqlite3.OperationalError):
            if told.tracklets == 0:  # nothing was decided: nothing stays
                decisions.unlink(missing_ok=True)
                if made:
                    out.rmdir()
            raise
        finally:
            gc.unfreeze()
            signal.signal(signal.SIGINT, before)
            told.close()
        summary = _write(draft, tables, network, options, log, told, interrupted)
    console.print(
        f"{summary['tracklets']} tracklets, {summary['identities']} identities, {told.aliases} aliases. "
        f"Decisions: {decisions}",
        soft_wrap=True,
    )
    for line in log.lines():
        console.print(line, soft_wrap=True)
    if interrupted:
        raise Interrupted
    return summary


def seconds(text: str) -> float:
    """A latency: seconds from 0 on, with or without an s behind; inf: all at the end."""
    try:
        value = float(text.strip().removesuffix("s"))
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise InputError("--latency", None, repr(text), "seconds from 0 on, as 5s or 2.5")
    return value


class Telling:
    """Decisions as whole lines, each batch by one write, so that a reader never sees half a line."""

    def __init__(self, path: Path, also_out: bool) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self.also_out = also_out
        self.tracklets = self.aliases = 0

    def say(self, decisions: list[Any]) -> None:
        """Some more."""
        if not decisions:
            return
        aliases = sum(d.kind == "alias" for d in decisions)
        text = "".join(d.line() for d in decisions)
        os.write(self.file, text.encode())
        self.aliases += aliases
        self.tracklets += len(decisions) - aliases
        if self.also_out:
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except BrokenPipeError:  # the reader has gone: the file goes on
                self.also_out = False
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def close(self) -> None:
        """No more."""
        os.close(self.file)


def _tracker(network: Network, first: Chunk, latency: float, log: Log, console: Console) -> OnlineTracker:
    if first.embedding is None:
        console.print("Note: no embeddings: identities come of travel times and link priors alone", soft_wrap=True)
        return OnlineTracker(network, None, 0.0, latency, log=log)
    matcher, tau = load_matcher()
    return OnlineTracker(network, matcher, tau, latency, log=log)


def _pass_on(tracker: OnlineTracker, told: Telling, tables: Tables) -> None:
    decisions = tracker.decided()
    told.say(decisions)
    tables.say(decisions)
    tables.add(tracker.closed())


def _stream(options: Online, network: Network, log: Log, progress: Progress | None = None) -> Iterator[Chunk]:
    if options.data == "-":
        stdin = io.FileIO(sys.stdin.fileno(), closefd=False)  # no lock that a waiting reader would hold at the end
        stdin.name = "the standard input"
        return chunks(stdin, options.format, network, log, live=True)
    files, _ = sources(Path(options.data), options.format, network, log)
    streams = [chunks(s.path, options.format, network, log, ROWS, camera=s.camera) for s in files]
    by_track = options.format == "campus"  # such a file lists one track after another, the first may fill many chunks
    return in_time_order([_in_order(stream, by_track) for stream in streams])


def _in_order(stream: Iterator[Chunk], by_track: bool) -> Iterator[Chunk]:
    """The stream as it is; or, where it lists one track after another (known, or seen), all of it in order of time."""
    from examples.mtmc.recordings.chunk import joined

    first = next(stream, None)
    if first is None:
        return
    if by_track or float((np.maximum.accumulate(first.time) - first.time).max(initial=0.0)) > BACK:
        whole = joined([first, *stream])
        yield whole.take(np.argsort(whole.time, kind="stable"))
        return
    yield first
    yield from stream


def _beside_the_clock(stream: Iterator[Chunk]) -> Iterator[Chunk | None]:
    """Chunks as they come; None whenever none has come for a moment."""
    arrived: queue.Queue[Chunk | BaseException | None] = queue.Queue(64)

    def read() -> None:
        try:
            for chunk in stream:
                arrived.put(chunk)
            arrived.put(None)
        except BaseException as error:  # told to whoever waits
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            item = arrived.get(timeout=WAIT)
        except queue.Empty:
            yield None
            continue
        if item is None:
            return
        if isinstance(item, BaseException):
            raise item
        yield item


def _write(
    draft: Path, tables: Tables, network: Network, options: Online, log: Log, told: Telling, interrupted: bool
) -> dict[str, Any]:
    tables.write(draft, network.cameras)
    tracklets, identities = tables.counts()
    tables.close()
    (draft / "tables.sqlite").unlink()
    (draft / "dropped.log").write_text("".join(f"{line}\n" for line in log.lines()), encoding="utf-8")
    summary = {
        "online": True,
        "latency": options.latency if math.isfinite(options.latency) else None,  # None: all at the end
        "tracklets": tracklets,
        "identities": identities,
        "aliases": told.aliases,
        "interrupted": interrupted,
        "log": log.as_dict(),
    }
    (draft / "summary.json").write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return summary
