"""Online tracking: decided in time, for good, as offline where time does not press, in bounded memory."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from examples.mtmc.errors import InputError
from examples.mtmc.matching.appearance import looks_of
from examples.mtmc.matching.methods import method, scene
from examples.mtmc.matching.prior import rates_of
from examples.mtmc.matching.weights import load_matcher
from examples.mtmc.network.learn import learn_links
from examples.mtmc.network.links_file import dump_network
from examples.mtmc.network.network import Camera, Link, Network
from examples.mtmc.network.travel import TravelTime
from examples.mtmc.online.arrivals import Arrivals
from examples.mtmc.online.compare import chunks_of, online_identities, play
from examples.mtmc.online.decisions import Decision, follow_aliases
from examples.mtmc.online.live import Live
from examples.mtmc.online.run import Online, run_online, seconds
from examples.mtmc.online.tracker import OnlineTracker
from examples.mtmc.recordings.chunk import Chunk
from examples.mtmc.recordings.cleaning import DUPLICATE, LATE, SILENT
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.recordings.writers import write_recording
from examples.mtmc.scoring.evaluate import quick_idf1
from examples.mtmc.simulator.simulate import World


@pytest.fixture(scope="module")
def recording(world: World) -> Recording:
    """Four minutes, known links, and nothing with so long a gap that online it would be two tracklets."""
    whole = world.recording
    start = whole.tracklets[0].time_in
    kept = [t for t in whole.between(-np.inf, start + 240).tracklets if np.diff(t.frames).max(initial=0) < 10]
    return Recording(learn_links(whole), kept, whole.truth)


def _tracker(recording: Recording, latency: float, prior_alone: bool = False) -> OnlineTracker:
    matcher, tau = load_matcher()
    if prior_alone:
        return OnlineTracker(recording.network, None, 0.0, latency)
    return OnlineTracker(recording.network, matcher, tau, latency)


Played = dict[float, tuple[NDArray[np.int64], list[Decision]]]


@pytest.fixture(scope="module")
def played(recording: Recording) -> Played:
    """What the matcher says at some latencies."""
    return {latency: play(recording, _tracker(recording, latency)) for latency in (0.0, 4.0, np.inf)}


@pytest.mark.parametrize("latency", [0.0, 1.0, 5.0, 30.0])
def test_every_tracklet_is_decided_once_and_in_time(recording: Recording, latency: float) -> None:
    tracker, told = _tracker(recording, latency, prior_alone=True), []
    for chunk in chunks_of(recording, 500):
        tracker.push(chunk)
        now = float(chunk.time.max())
        told += tracker.decided()
        assert not [t for t in tracker.sightings.undecided if t.time_in + latency < now - tracker.step]
    tracker.finish()
    told += tracker.decided()
    given = [d for d in told if d.kind == "identity"]
    assert len(given) == len({(d.camera, d.id, d.part) for d in given}) == len(recording.tracklets)
    for decision in given:
        assert decision.time_in <= decision.at <= decision.time_in + latency - tracker.lead + 1e-9
    assert [d.at for d in told] == sorted(d.at for d in told)


def test_without_hurry_it_is_the_offline_result(recording: Recording, played: Played) -> None:
    matcher, tau = load_matcher()
    own = method("gatv2_bias", scene(recording), matcher)
    offline = own.identities(own.gain - tau)
    assert len(set(offline.tolist())) < len(offline)
    assert (played[np.inf][0] - 1).tolist() == offline.tolist()
    short = recording.between(-np.inf, recording.tracklets[40].time_in)
    given = online_identities(short, recording.network, None, 0.0, np.inf)
    alone = method("prior", scene(short, recording.network))
    assert given.tolist() == alone.identities(alone.gain).tolist()


def test_little_time_costs(recording: Recording, played: Played) -> None:
    score = {latency: quick_idf1(recording, identity) for latency, (identity, _) in played.items()}
    alone = quick_idf1(recording, np.arange(len(recording.tracklets)))
    assert alone < score[0.0] < score[4.0]
    assert score[4.0] > score[np.inf] - 0.12
    identity, decisions = played[0.0]
    assert quick_idf1(recording, follow_aliases(identity, decisions)) > score[0.0]


def _simultaneous(recording: Recording, identity: NDArray[np.int64]) -> list[tuple[int, int]]:
    found = []
    for who in np.unique(identity).tolist():
        own = np.flatnonzero(identity == who).tolist()
        for k, a in enumerate(own):
            for b in own[k + 1 :]:
                x, y = recording.tracklets[a], recording.tracklets[b]
                if x.camera == y.camera and x.time_in <= y.time_out and y.time_in <= x.time_out:
                    found.append((a, b))
    return found


@pytest.mark.parametrize("latency", [0.0, 4.0, np.inf])
def test_never_two_of_one_camera_at_once(recording: Recording, played: Played, latency: float) -> None:
    identity, decisions = played[latency]
    assert len(set(identity.tolist())) < len(identity)
    assert not _simultaneous(recording, identity)
    assert not _simultaneous(recording, follow_aliases(identity, decisions))


def _decisions(tracker: OnlineTracker, chunks: list[Chunk]) -> list[Decision]:
    for chunk in chunks:
        tracker.push(chunk)
    tracker.finish()
    return tracker.decided()


def test_neither_the_cut_into_chunks_nor_the_order_of_equal_times_matters(recording: Recording) -> None:
    early = recording.between(-np.inf, recording.tracklets[0].time_in + 60)
    (whole,) = chunks_of(early, 10**9)
    expected = _decisions(_tracker(early, 3.0), [whole])
    assert len(expected) >= len(early.tracklets) > 15
    assert _decisions(_tracker(early, 3.0), list(chunks_of(early, 97))) == expected
    backwards = whole.take(np.lexsort((-whole.camera, -whole.id, whole.time)))
    assert (np.diff(backwards.time) >= 0).all() and not np.array_equal(backwards.id, whole.id)
    one_by_one = [backwards.take(slice(n, n + 61)) for n in range(0, len(backwards), 61)]
    assert _decisions(_tracker(early, 3.0), one_by_one) == expected


def test_what_was_decided_stands_whatever_comes_later(recording: Recording, played: Played) -> None:
    chunks = list(chunks_of(recording, 300))
    for cut in (len(chunks) // 6, len(chunks) // 3):
        tracker = _tracker(recording, 4.0)
        for chunk in chunks[:cut]:
            tracker.push(chunk)
        so_far = tracker.decided()
        assert len(so_far) > 10
        assert played[4.0][1][: len(so_far)] == so_far


# A small world: two cameras ten seconds apart, tracklets made by hand ------------------------------------------------

WAY = TravelTime("lognormal", ((1.0, 10.0, 0.2),), (3.0, 30.0))
SMALL = Network(
    {name: Camera(name, 4.0, starts=0.4, ends=0.4) for name in "ab"},
    (Link("a", "b", (3.0, 30.0), 0.6, WAY), Link("b", "a", (3.0, 30.0), 0.6, WAY), Link("a", "a", (0.0, 6.0), 0.3)),
)


def _rows(camera: str, id: int, start: float, end: float, fps: float = 4.0) -> Chunk:
    frame = np.arange(int(start * fps), int(end * fps) + 1)
    n = len(frame)
    box = np.tile([10.0, 10.0, 20.0, 40.0], (n, 1))
    integers = np.full(n, "ab".index(camera)), np.full(n, id), frame
    nothing = np.full((n, 2), np.nan)
    return Chunk(*integers, frame / fps, box, nothing, np.ones(n), np.zeros(n, np.int64), np.arange(n))


def _join(*parts: Chunk) -> Chunk:
    from examples.mtmc.recordings.chunk import joined

    whole = joined(parts)
    return whole.take(np.argsort(whole.time, kind="stable"))


def _identity(decisions: list[Decision]) -> dict[tuple[str, int, int], int]:
    return {(d.camera, d.id, d.part): d.identity for d in decisions if d.kind == "identity"}


def test_who_leaves_one_camera_is_known_in_the_next() -> None:
    told = _decisions(OnlineTracker(SMALL, None, 0.0, 2.0), [_join(_rows("a", 1, 0, 5), _rows("b", 1, 15, 20))])
    assert _identity(told) == {("a", 1, 0): 1, ("b", 1, 0): 1}
    assert told[1].after_camera == "a" and told[1].score is not None and told[1].score > 0


def test_a_rival_who_comes_within_the_latency_is_weighed() -> None:
    # b1 comes 3.5 s after a1 left, b2 comes 10 s after, as is usual: in 8 seconds there is time to see it.
    chunk = _join(_rows("a", 1, 0, 5), _rows("b", 1, 8.5, 13), _rows("b", 2, 15, 20))
    sharp = replace(
        SMALL, links=(Link("a", "b", (3.0, 30.0), 0.6, TravelTime("lognormal", ((1.0, 9.0, 0.6),), (3, 30))),)
    )
    patient = _identity(_decisions(OnlineTracker(sharp, None, -3.0, 8.0), [chunk]))
    hasty = _identity(_decisions(OnlineTracker(sharp, None, -3.0, 1.0), [chunk]))
    assert patient["b", 2, 0] == patient["a", 1, 0] != patient["b", 1, 0]
    assert hasty["b", 1, 0] == hasty["a", 1, 0] != hasty["b", 2, 0]


def test_an_alias_says_what_was_learned_too_late() -> None:
    # At once, a2 cannot be told from somebody beside a1, who may still be there; two seconds later it can.
    told = _decisions(
        OnlineTracker(SMALL, None, 0.0, 0.0),
        [_join(_rows("a", 1, 0, 5), _rows("a", 2, 5.75, 9), _rows("b", 7, 30, 31))],
    )
    kinds = [(d.kind, d.camera, d.id, d.identity, d.alias_of) for d in told]
    assert kinds[:2] == [("identity", "a", 1, 1, None), ("identity", "a", 2, 2, None)]
    assert ("alias", "a", 2, 1, 2) in kinds
    assert follow_aliases(np.array([1, 2, 3]), told).tolist()[:2] == [1, 1]


def test_late_rows_find_their_place_and_later_ones_are_counted() -> None:
    good = _rows("a", 1, 0, 10)
    late = good.take(slice(20, 22))
    tracker = OnlineTracker(SMALL, None, 0.0, 3.0)
    for chunk in (good.take(slice(0, 20)), good.take(slice(22, 30)), late, late, good.take(slice(30, 41)), late):
        tracker.push(chunk)
    tracker.finish()
    (tracklet,) = tracker.closed()
    assert tracklet.rows[:, 0].tolist() == good.frame.tolist()
    assert tracker.log.counts[DUPLICATE] == 2 and tracker.log.counts[LATE] == 2


def test_a_silent_camera_holds_nothing_up_and_is_noted() -> None:
    tracker = OnlineTracker(SMALL, None, 0.0, 2.0)
    tracker.push(_join(_rows("a", 1, 0, 5), _rows("b", 1, 12, 100)))
    assert _identity(tracker.decided()) == {("a", 1, 0): 1, ("b", 1, 0): 1}
    assert tracker.log.counts[SILENT] == 1
    tracker.now(1e9)  # no rows at all: what is here is decided, and the clock waits
    tracker.push(_rows("a", 2, 101, 104))
    tracker.finish()
    assert not tracker.log.counts[LATE]
    assert ("a", 2, 0) in _identity(tracker.decided())


def test_time_alone_brings_a_decision() -> None:
    tracker = OnlineTracker(SMALL, None, 0.0, 2.0)
    tracker.push(_rows("a", 1, 0, 1))
    tracker.now(1.5)
    assert not tracker.decided()
    tracker.now(2.5)
    assert [d.id for d in tracker.decided()] == [1]


def test_an_id_that_comes_back_is_another_tracklet() -> None:
    told = _decisions(OnlineTracker(SMALL, None, 0.0, 1.0), [_join(_rows("a", 1, 0, 5), _rows("a", 1, 50, 55))])
    assert [(d.id, d.part) for d in told if d.kind == "identity"] == [(1, 0), (1, 1)]


@hypothesis.given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 60), st.integers(1, 8)), max_size=12),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1.0, 4.0]),
)
def test_rows_in_any_order_break_nothing(spans: list[tuple[str, int, int, int]], seed: int, latency: float) -> None:
    tracker = OnlineTracker(SMALL, None, -2.0, latency)
    rng = np.random.default_rng(seed)
    if spans:
        rows = _join(*(_rows(camera, id, start, start + length) for camera, id, start, length in spans))
        shuffled = rows.take(np.argsort(rows.time + rng.uniform(0, 6, len(rows))))
        for n in range(0, len(shuffled), 7):
            tracker.push(shuffled.take(slice(n, n + 7)))
    tracker.finish()
    told = tracker.decided()
    given = [d for d in told if d.kind == "identity"]
    closed = tracker.closed()
    assert {(t.camera, t.id, t.part) for t in closed} == {(d.camera, d.id, d.part) for d in given}
    assert len(given) == len(closed)
    for k, x in enumerate(closed):
        assert (np.diff(x.rows[:, 0]) > 0).all()
        for y in closed[k + 1 :]:
            assert x.person is not None and y.person is not None
            if x.person.body is y.person.body and x.camera == y.camera:
                assert x.time_out < y.time_in or y.time_out < x.time_in


def test_memory_is_bounded_by_the_windows() -> None:
    tracker = OnlineTracker(SMALL, None, 0.0, 2.0)
    held = []
    for start in range(0, 1600, 20):
        tracker.push(_join(*(_rows("ab"[k % 2], start * 10 + k, start + k, start + k + 6) for k in range(10))))
        tracker.decided(), tracker.closed()
        memories = tracker.sightings.memory.values()
        bodies = {t.person.body for m in memories for t in m.ended if t.person is not None}
        held.append(
            sum(len(m.ended) + len(m.view) + len(m.last_of) for m in memories)
            + sum(len(b.tracklets) for b in bodies)
            + len(tracker.sightings.arrivals.starts)
            + len(tracker.sightings.undecided)
            + len(tracker.sightings.doubted)
        )
    assert max(held[40:]) <= max(held[15:40]) + 5


def test_time_that_is_left_for_computing_is_taken_from_the_latency(recording: Recording) -> None:
    """Two seconds of eight for computing: decided when those of six seconds are that leave none."""
    early = recording.between(-np.inf, recording.tracklets[0].time_in + 60)
    said = [
        [replace(d, score=None) for d in play(early, OnlineTracker(early.network, None, 0.0, *given))[1]]
        for given in ((8.0, 0.5, 2.0, None, 2.0), (6.0, 0.5, 2.0, None, 0.0))
    ]
    assert len(said[0]) > 15 and said[0] == said[1]


def test_looks_and_rates_of_a_whole_stream_are_those_of_its_recording(recording: Recording) -> None:
    tracker = OnlineTracker(recording.network, None, 0.0, np.inf)
    play(recording, tracker)
    lives = sorted(tracker.closed(), key=lambda t: t.order)
    arrivals, own = tracker.sightings.arrivals, rates_of(recording)
    rates = arrivals.rates(lives, np.inf)
    assert rates.camera == own.camera and np.array_equal(rates.around, own.around)
    assert np.allclose(arrivals.looks_of(lives, ended=True), looks_of(recording), atol=1e-12)


@pytest.mark.parametrize("wrong", [{"latency": -1.0}, {"latency": np.nan}, {"step": -1.0}, {"lead": -1.0}])
def test_senseless_times_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="latency, step"):
        OnlineTracker(SMALL, None, 0.0, **wrong)


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, world: World) -> Path:
    """Two minutes of the town as AI City rows, one track after another, and its links file."""
    folder = tmp_path_factory.mktemp("town")
    recording = world.recording.between(-np.inf, world.recording.tracklets[0].time_in + 120)
    write_recording(folder / "data", recording, "aicity")
    (folder / "links.yaml").write_text(dump_network(learn_links(world.recording)))
    return folder


def _arguments(folder: Path, data: str, out: Path, *more: str) -> list[str]:
    given = ["--data", data, "--format", "aicity", "--links", str(folder / "links.yaml"), "--out", str(out)]
    return [sys.executable, "-m", "examples.mtmc", "track", "--online", *given, *more]


def _lines(path: Path) -> list[dict[str, object]]:
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_a_folder_gives_decisions_and_tables(folder: Path, tmp_path: Path) -> None:
    options = Online(str(folder / "data"), "aicity", folder / "links.yaml", tmp_path / "out", 5.0)
    summary = run_online(options, Console(quiet=True))
    said = [line for line in _lines(tmp_path / "out" / "decisions.jsonl") if line["kind"] == "identity"]
    assert len(said) == summary["tracklets"] > summary["identities"] > 1
    assert summary["log"]["left_out"] == 0
    with (tmp_path / "out" / "identities.csv").open() as file:
        table = list(csv.DictReader(file))
    key = [(str(row["camera"]), int(row["tracklet"]), int(row["identity"])) for row in table]
    assert sorted(key) == sorted((str(d["camera"]), int(str(d["id"])), int(str(d["identity"]))) for d in said)
    assert [int(row["identity"]) for row in table] == sorted(int(row["identity"]) for row in table)
    boxes = sum(len(path.read_text().splitlines()) for path in (tmp_path / "out" / "tracks").glob("*.txt"))
    rows = (folder / "data" / "tracks.txt").read_text().splitlines()
    assert boxes == len(rows) == sum(int(row["boxes"]) for row in table)


def test_a_stream_that_is_interrupted_leaves_what_was_decided(folder: Path, tmp_path: Path) -> None:
    rows = sorted((folder / "data" / "tracks.txt").read_text().splitlines(), key=lambda row: int(row.split()[2]))
    out = tmp_path / "out"
    process = subprocess.Popen(
        _arguments(folder, "-", out, "--latency", "2s"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write("\n".join([*rows[: len(rows) // 2], "garbage", ""]))
    process.stdin.flush()
    said = out / "decisions.jsonl"
    deadline = time.monotonic() + 120
    while not (said.is_file() and said.stat().st_size) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "nothing was written" not in errors
    summary = json.loads((out / "summary.json").read_text())
    given = [line for line in _lines(said) if line["kind"] == "identity"]
    assert summary["interrupted"] and summary["tracklets"] == len(given) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_nothing_to_track_is_an_error_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        _arguments(folder, "-", tmp_path / "out"), input="nonsense\n", capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 2 and "no usable row" in run.stderr
    assert not (tmp_path / "out" / "summary.json").exists()


@pytest.mark.parametrize(("text", "expected"), [("5s", 5.0), ("2.5", 2.5), ("inf", np.inf)])
def test_latencies_are_seconds(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "nan", "soon"])
def test_other_latencies_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="seconds from 0 on"):
        seconds(text)


def test_a_start_that_was_forgotten_counts_for_nothing_less() -> None:
    network = Network({"a": Camera("a", 1.0)})
    arrivals, sitting = Arrivals(network), Live("a", 1, 0, 0.0, 5.0, False)
    arrivals.start(sitting)
    arrivals.forget(before=1000.0)
    rates = arrivals.rates([sitting], now=1000.0)
    assert rates.around[0] == rates.camera["a"] / 2 > 0  # nobody else came around it
