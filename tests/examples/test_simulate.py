"""The simulator: the same seed gives the same day, and its figures are those that real networks have."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from examples.mtmc import cli
from examples.mtmc.matching.appearance import looks_of
from examples.mtmc.matching.associate import associate
from examples.mtmc.matching.baselines import appearance_gain, appearance_pairs, oracle
from examples.mtmc.network.links_file import load_network
from examples.mtmc.recordings.readers import read
from examples.mtmc.recordings.tracklets import Tracklet
from examples.mtmc.scoring.evaluate import Protocol, evaluate, quick_idf1
from examples.mtmc.simulator import city as city_module
from examples.mtmc.simulator import looks, town, write
from examples.mtmc.simulator.city import MOST_NEIGHBOURS, city, city_network, neighbours
from examples.mtmc.simulator.realism import ROWS, measure, outside, rank1
from examples.mtmc.simulator.simulate import World, simulate, stroll
from examples.mtmc.simulator.walks import Visit


def same(a: list[Tracklet], b: list[Tracklet]) -> bool:
    return len(a) == len(b) and all(
        (x.camera, x.id, x.truth, x.time_in, x.zone_in, x.attributes)
        == (y.camera, y.id, y.truth, y.time_in, y.zone_in, y.attributes)
        and np.array_equal(x.boxes, y.boxes)
        and x.embedding is not None
        and y.embedding is not None
        and np.array_equal(x.embedding, y.embedding)
        and (x.world is None if y.world is None else np.array_equal(x.world, y.world))
        for x, y in zip(a, b, strict=True)
    )


def walks_of(world: World) -> dict[int, list[Visit]]:
    walks: dict[int, list[Visit]] = {}
    for visit in sorted(world.visits, key=lambda v: v.start):
        walks.setdefault(visit.identity, []).append(visit)
    return walks


def test_a_seed_decides_everything(world: World) -> None:
    again = simulate(3, minutes=6, per_minute=6)
    assert same(again.recording.tracklets, world.recording.tracklets)
    assert again.attributes == world.attributes


def test_another_day_shows_other_people() -> None:
    first, second = (simulate(3, minutes=6, per_minute=6, day=day) for day in (0, 1))
    assert [v.start for v in first.visits] != [v.start for v in second.visits]


# ---------------------------------------------------------------------------------------------------- the real figures


def test_every_figure_is_that_of_real_networks() -> None:
    days = [simulate(seed, minutes=40) for seed in range(3)]
    figures = measure(*days, *(stroll(seed, minutes=40) for seed in range(3, 23)))
    assert set(figures) == set(ROWS) and not outside(figures), {name: figures[name] for name in outside(figures)}


ALL_LOST = tuple(replace(way, lost=0.5) for way in town.WAYS)
ONE_SPEED = tuple(replace(way, median=40.0, log_sd=1.5, stops=0.0) for way in town.WAYS)
WIDE = tuple(replace(way, window=(0, 300)) for way in town.WAYS)
ALL_SHOP = tuple(replace(way, shop=1.0 if way.shop else 0.0) for way in town.WAYS)
CROWD = replace(town.PRESETS["real"], breaks=0.0, view_noise=3.0, per_minute=25.0)
WINDOWS = {"window_quartile", "window_median", "window_upper", "window_most"}
SPEEDS = {"spread_corridor", "spread_least", "spread_most", "asymmetry", "asymmetry_most", "overtaking"}
BROKEN: list[tuple[object, str, object, set[str]]] = [
    (city_module, "PAIRS_PER_CAMERA", 2.2, {"linked"}),
    (town, "WAYS", ALL_LOST, {"leaving", "leaving_least", "leaving_most", "cameras_1"}),
    (town, "WAYS", ONE_SPEED, SPEEDS),
    (town, "WAYS", WIDE, WINDOWS | {"rivals", "rivals_most"}),
    (town, "WAYS", ALL_SHOP, {"dwell_lower"}),
    (town, "SHOP_MEDIAN", 100.0, {"dwell_median", "dwell_upper"}),
    (town, "LEAVES", dict.fromkeys(town.LEAVES, 0.0), {"cameras_2", "cameras_4"}),
    (town, "LEAVES", dict.fromkeys(town.LEAVES, 1.0), {"cameras_2", "cameras_3", "cameras_4"}),
    (town, "PRESETS", {"real": CROWD}, {"identities", "tracklets_per_visit", "rank1_centred"}),
    (looks, "MODELS", 10, {"lookalikes"}),
    (looks, "MISREAD", 0.1, {"attribute_noise"}),
]


@pytest.mark.parametrize(("where", "name", "value", "rows"), BROKEN)
def test_a_figure_that_is_off_is_named(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, value: object, rows: set[str]
) -> None:
    monkeypatch.setattr(where, name, value)
    assert rows <= set(outside(measure(simulate(0, 8), *(stroll(seed, 40) for seed in range(1, 7)))))


def test_every_figure_with_a_tolerance_can_be_off() -> None:
    assert set.union(*(rows for _, _, _, rows in BROKEN)) == {n for n, row in ROWS.items() if row.tolerance != "–"}


def test_the_real_preset_is_not_too_easy() -> None:
    recording = simulate(0, minutes=12).recording
    source, target = appearance_pairs(recording)
    gain = appearance_gain(looks_of(recording), source, target)
    alone = [quick_idf1(recording, associate(recording, source, target, gain - t)) for t in (0.3, 0.4, 0.5, 0.6)]
    assert 0.4 < max(alone) < 0.8, "appearance alone, with the threshold that suits it best"
    assert evaluate(recording, oracle(recording), Protocol())["idf1"] < 0.95, "whatever joins these tracklets"


def test_presets_say_what_they_change_and_go_from_easy_to_hard() -> None:
    assert set(town.PRESETS) == {"easy", "real", "hard"} and all(preset.says for preset in town.PRESETS.values())
    alike = [rank1(simulate(1, 10, 8, preset=name).recording, centred=True) for name in ("easy", "real", "hard")]
    assert alike[0] > alike[1] + 0.05 and alike[1] > alike[2] + 0.05
    with pytest.raises(ValueError, match="preset is 'dull'; it must be one of easy, real, hard"):
        simulate(0, 1, preset="dull")
    with pytest.raises(ValueError, match="both must be above 0"):
        simulate(0, 0)


# ------------------------------------------------------------------------------------------------- what is in the world


def test_views_overlap_and_share_their_ground(world: World) -> None:
    moves = [pair for walk in walks_of(world).values() for pair in pairwise(walk)]
    overlaps = [b.start < a.end for a, b in moves if {a.camera, b.camera} == {"c7", "c8"}]
    assert overlaps and all(overlaps)
    assert not any(b.start < a.end for a, b in moves if {a.camera, b.camera} != {"c7", "c8"})
    by_camera = {
        camera: {(t.id, frame): place for t in world.recording.truth if t.camera == camera and t.world is not None
                 for frame, place in zip(t.frames.tolist(), t.world, strict=True)}
        for camera in ("c7", "c8")
    }  # fmt: skip
    apart = [
        np.linalg.norm(by_camera["c7"][key] - by_camera["c8"][key])
        for key in set.intersection(*map(set, by_camera.values()))
    ]
    assert len(apart) > 20 and max(apart) < 2.5  # metres: what one walks in the error of two clocks
    others = [
        np.linalg.norm(a - b)
        for (i, f), a in by_camera["c7"].items()
        for (j, g), b in by_camera["c8"].items()
        if f == g and i != j
    ]
    assert np.median(apart) < 1 and (not others or np.median(others) > 2 * np.median(apart))
    for tracklet in world.recording.tracklets:
        assert (tracklet.world is not None) <= (tracklet.camera in town.GROUND)
        assert tracklet.world is None or tracklet.world.shape == (len(tracklet.frames), 2)


def test_one_seen_by_one_camera_alone_is_not_where_both_look(world: World) -> None:
    for tracks, beyond in (("c7", lambda x: x > 9), ("c8", lambda x: x < 12)):
        lone = {v.identity for v in world.visits if v.camera == tracks and not {v.came, v.goes} & set(town.GROUND)}
        both = {v.identity for v in world.visits if v.camera in town.GROUND and v.camera != tracks}
        places = [t.world for t in world.recording.truth if t.camera == tracks and t.id in lone - both]
        assert all(np.mean(beyond(place[:, 0])) < 0.05 for place in places if place is not None)


def test_groups_keep_together() -> None:
    walks = walks_of(stroll(5, minutes=40))
    groups: dict[int, list[int]] = {}
    for identity, walk in walks.items():
        groups.setdefault(walk[0].group, []).append(identity)
    assert set(map(len, groups.values())) == {1, 2, 3, 4}
    in_groups = sum(len(members) for members in groups.values() if len(members) > 1) / len(walks)
    assert 0.2 <= in_groups <= 0.5
    pairs = [pair for members in groups.values() for pair in combinations(members, 2)]
    together = [[v.camera for v in walks[a]] == [v.camera for v in walks[b]] for a, b in pairs]
    assert np.mean(together) > 0.75
    apart = [
        abs(a.start - b.start) for i, j in pairs for a, b in zip(walks[i], walks[j], strict=False) if a.step == b.step
    ]
    assert np.median(apart) < 1.5 and max(apart) < 10


def test_people_come_and_go_through_the_doors_of_their_way(world: World) -> None:
    starts, ends = Counter[bool](), Counter[bool]()
    visits = {(v.camera, v.identity): v for v in world.visits}
    seen = Counter((t.camera, t.truth) for t in world.recording.tracklets)
    for t in world.recording.tracklets:
        if t.truth is not None and seen[t.camera, t.truth] == 1:
            visit = visits[t.camera, t.truth]
            doors = town.DOORS[t.camera]
            starts[t.zone_in == doors[visit.came]] += 1
            ends[t.zone_out == doors[visit.goes]] += 1
    assert starts.total() > 30
    assert starts[True] > 0.75 * starts.total() and ends[True] > 0.75 * ends.total()


def test_tracker_mistakes_are_there() -> None:
    recording = simulate(5, minutes=10).recording
    assert any(t.truth is None for t in recording.tracklets), "clutter"
    assert recording.dropped, "missed visits are logged"
    seen = {(t.camera, t.truth) for t in recording.tracklets}
    assert len(seen) < len(recording.tracklets), "fragments"
    for tracklet in recording.tracklets:
        assert (np.diff(tracklet.frames) > 0).all()
        assert np.isfinite(tracklet.boxes).all() and (tracklet.boxes[:, 2:] > 0).all()
        assert len(tracklet.attributes) == 3


# ------------------------------------------------------------------------------------------------------------- the city


def test_a_city_has_as_many_tracklets_as_asked_for_at_their_rate() -> None:
    small, large = city(23, 1500, 600, seed=1), city(23, 6000, 2400, seed=1)
    for recording, tracklets, seconds in ((small, 1500, 600), (large, 6000, 2400)):
        assert len(recording.tracklets) == tracklets
        assert seconds - 30 < recording.duration < seconds + 60
        assert all(t.embedding is not None and t.embedding.shape == (32,) for t in recording.tracklets)
        visits = {(t.truth, t.camera) for t in recording.tracklets}
        assert 1.45 <= tracklets / len(visits) <= 1.75
    assert same(small.tracklets, city(23, 1500, 600, seed=1).tracklets)
    assert not same(small.tracklets, city(23, 1500, 600, seed=2).tracklets)
    with pytest.raises(ValueError, match="at least 3, 1 and above 0"):
        city(2)


def test_a_city_is_planar_and_in_one_piece() -> None:
    rng = np.random.default_rng(0)
    place = rng.uniform(0, 100, (40, 2))
    pairs = neighbours(place, 63)
    assert len(pairs) == 63 and np.bincount(pairs.ravel()).max() <= MOST_NEIGHBOURS

    def side(a: int, b: int, c: int) -> float:
        (x0, y0), (x1, y1) = place[b] - place[a], place[c] - place[a]
        return float(x0 * y1 - y0 * x1)

    for (a, b), (c, d) in combinations(pairs.tolist(), 2):
        if len({a, b, c, d}) == 4:
            assert side(a, b, c) * side(a, b, d) > 0 or side(c, d, a) * side(c, d, b) > 0
    reached = {0}
    for _ in range(40):
        reached |= {x for pair in pairs.tolist() if set(pair) & reached for x in pair}
    assert len(reached) == 40
    links = [x for x in city_network(100).links if x.source != x.target]
    assert len(links) == 2 * 157 and max(Counter(x.source for x in links).values()) <= MOST_NEIGHBOURS


# ---------------------------------------------------------------------------------------------------------- the command


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The command's exit code."""
    monkeypatch.setattr(sys, "argv", ["mtmc", "simulate", *arguments])
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_the_command_writes_what_track_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(monkeypatch, "--out", str(out), "--preset", "hard", "--seed", "4", "--minutes", "2", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["figures"]) == set(ROWS) and answer["preset"] == "hard"
    assert {path.name for path in out.iterdir()} == {
        "tracks.txt", "tracks.npy", "ground_truth.txt", "links.yaml", "figures.json",
    }  # fmt: skip
    assert json.loads((out / "figures.json").read_text()) == answer
    read_back = read(out, "aicity", load_network(out / "links.yaml"))
    made = simulate(4, 2, preset="hard").recording
    assert len(read_back.tracklets) == len(made.tracklets)
    assert {(t.camera, t.id) for t in read_back.truth} == {(t.camera, t.id) for t in made.truth}
    by_key = {(t.camera, t.id): t for t in read_back.tracklets}
    for t in made.tracklets:
        again = by_key[t.camera, t.id]
        assert np.array_equal(t.frames, again.frames) and np.allclose(t.boxes, again.boxes, atol=0.01)
        assert t.embedding is not None and again.embedding is not None and np.allclose(t.embedding, again.embedding)


def test_the_command_prints_the_table_beside_the_real_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(write, "MORE_DAYS", 2)
    assert run(monkeypatch, "--out", str(tmp_path / "out"), "--minutes", "1") == 0
    shown = capsys.readouterr().out
    for row in ROWS.values():
        assert any(row.says in line and row.real in line and row.tolerance in line for line in shown.splitlines())
    assert run(monkeypatch, "--out", str(tmp_path / "no"), "--preset", "dull") == 2
    assert not (tmp_path / "no").exists() and "easy, real, hard" in capsys.readouterr().err
