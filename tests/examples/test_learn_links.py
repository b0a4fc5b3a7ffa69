"""Links learned: honest about few passages, of zones too, links that nobody wrote down, matches as labels."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from examples.mtmc.cli import app
from examples.mtmc.errors import InputError
from examples.mtmc.matching.candidates import candidates
from examples.mtmc.network.discover import LEAST_PASSAGES, discovered
from examples.mtmc.network.learn import learn_links
from examples.mtmc.network.learn_zones import SHRINKAGE
from examples.mtmc.network.links_file import load_network, write_network
from examples.mtmc.network.network import Camera, Link, Network, Zone
from examples.mtmc.network.travel import TYPICAL, fit, window_of
from examples.mtmc.network.zones import zone_shares
from examples.mtmc.recordings.cleaning import UNKNOWN, Log
from examples.mtmc.recordings.matches import labelled_by
from examples.mtmc.recordings.tracklets import Recording, Tracklet
from examples.mtmc.recordings.writers import write_recording
from examples.mtmc.simulator.simulate import World

WINDOW = (2.0, 200.0)


def test_a_mixture_is_found_again() -> None:
    rng = np.random.default_rng(0)
    delays = np.concatenate([rng.lognormal(np.log(12), 0.2, 1600), rng.lognormal(np.log(60), 0.3, 400)])
    found = fit(delays, WINDOW)
    (w0, c0, s0), (w1, c1, s1) = sorted(found.components, key=lambda c: c[1])
    assert (w0, w1) == pytest.approx((0.8, 0.2), abs=0.03)
    assert (c0, c1) == pytest.approx((12, 60), rel=0.05) and (s0, s1) == pytest.approx((0.2, 0.3), rel=0.15)


@given(delay=st.floats(3, 150))
def test_the_fewer_passages_the_wider(delay: float) -> None:
    """One passage says where, not how exactly: never narrower than links typically are, and narrowing slowly."""
    spread = [fit([delay] * n, WINDOW).components[0][2] for n in (1, 2, 5, 19)]
    assert spread == sorted(spread, reverse=True) and len(set(spread)) == 4
    assert spread[0] > TYPICAL["lognormal"] and spread[3] < TYPICAL["lognormal"] / 2
    assert fit([], WINDOW).components == Link("a", "b", WINDOW).density.components  # what the window says


def test_delays_that_are_all_alike() -> None:
    for count in (1, 19, 20, 50):
        for window in (WINDOW, (-5.0, 20.0)):
            travel = fit([10.0] * count, window)
            assert np.isfinite(travel.log_density([3.0, 10.0, 19.0])).all()


def test_a_density_is_one_of_the_next_passage() -> None:
    """Over many links with few passages, the next delays fall as the densities say: calibrated, not too sure."""
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(1500):
        median, sd = rng.uniform(10, 60), TYPICAL["lognormal"]
        delays = rng.lognormal(np.log(median), sd, 5)
        ((_, centre, spread),) = fit(delays[:4], (0.1, 1e4)).components
        inside.append(abs(np.log(delays[4] / centre)) < 1.2816 * spread)
    assert np.mean(inside) == pytest.approx(0.8, abs=0.04)


DOORS = (Zone("left", ((0, 0), (50, 0), (50, 99), (0, 99))), Zone("right", ((50, 0), (99, 0), (99, 99), (50, 99))))
NET = Network(
    {"a": Camera("a", 10.0, zones=DOORS), "b": Camera("b", 10.0, zones=DOORS), "c": Camera("c", 10.0)},
    (Link("a", "b", (1.0, 30.0)), Link("a", "c", (1.0, 30.0))),
)


def passing(pairs: list[tuple[str, str]], truth: bool = True) -> Recording:
    """One identity a minute: leaves a by the first zone, enters b by the second ten seconds later."""
    tracklets = []
    for n, (leave, enter) in enumerate(pairs):
        start = 60.0 * n
        for camera, time, zone in (("a", start, leave), ("b", start + 12, enter)):
            frames = np.array([round(time * 10), round(time * 10) + 20])
            x = {"left": 10.0, "right": 60.0, "": 200.0}[zone]
            boxes = np.array([[x, 10, 10, 10.0]] * 2)
            t = Tracklet(camera, n, frames, boxes, None, time, time + 2, truth=n if truth else None)
            tracklets.append(t.in_zones(NET))
    return Recording(NET, tracklets)


def test_zones_are_counted_and_shrunk() -> None:
    few, many = (passing([("left", "right")] * n) for n in (2, 200))
    shares = [zone_shares(learn_links(r).links[0], NET) for r in (few, many)]
    for share in shares:
        assert share is not None and share.sum() == pytest.approx(1, abs=1e-6) and (share >= 0).all()
    chance = (3 / 5) ** 2  # (2 + 1) of (2 + 3) leave a by the left, and enter b by the right
    assert shares[0] is not None and shares[1] is not None
    assert shares[0][0, 1] == pytest.approx((2 + SHRINKAGE * chance) / (2 + SHRINKAGE), abs=1e-5)
    assert shares[1][0, 1] > 0.97
    mixed = zone_shares(learn_links(passing([("left", "right"), ("right", "left")] * 50)).links[0], NET)
    assert mixed is not None and mixed[0, 1] == pytest.approx(0.5, abs=0.05) and mixed[0, 0] < 0.05


def test_a_link_without_passages_says_what_chance_says() -> None:
    alone = passing([("left", "right")] * 30)
    moved = [replace(t, truth=None) for t in alone.tracklets]
    share = zone_shares(learn_links(Recording(NET, moved)).links[0], NET)
    chance = np.outer(np.array([31, 1, 1]) / 33, np.array([1, 31, 1]) / 33)
    assert share is not None and np.abs(share - chance).max() < 1e-5
    assert learn_links(alone).links[1].zones == tuple(
        (a, "", pytest.approx(p, abs=1e-5)) for a, p in (("left", 31 / 33), ("right", 1 / 33), ("", 1 / 33))
    )
    given = replace(NET, links=(replace(NET.links[0], zones=(("left", "left", 1.0),)),))
    kept = zone_shares(learn_links(Recording(given, moved)).links[0], NET)
    assert kept is not None and kept[0, 0] == pytest.approx(1, abs=1e-5)  # what was given stays


def test_links_that_nobody_wrote_down_are_found(world: World) -> None:
    known = world.recording.network
    bare = Recording(replace(known, links=()), world.recording.tracklets)
    found = discovered(bare)
    passages: dict[tuple[str, str], list[float]] = {}
    last: dict[int, Tracklet] = {}
    for t in bare.tracklets:
        if t.truth is not None:
            if t.truth in last:
                before = last[t.truth]
                passages.setdefault((before.camera, t.camera), []).append(t.time_in - before.time_out)
            last[t.truth] = t
    often = {pair: delays for pair, delays in passages.items() if len(delays) >= LEAST_PASSAGES}
    assert {(link.source, link.target) for link in found.links} == set(often)
    for link in found.links:
        if link.source != link.target:
            delays = often[link.source, link.target]
            assert link.window[0] <= min(delays) and max(delays) <= link.window[1]
        else:
            assert link.window[0] == 0 and link.window[1] <= 15 and link.reach is not None
    learned = learn_links(Recording(found, bare.tracklets))
    assert all(link.travel is not None and 0 < link.prior < 1 for link in learned.links)
    kept = discovered(world.recording)
    assert kept.links[: len(known.links)] == known.links  # what was written down stays as it was


def matches_of(recording: Recording, path: Path) -> None:
    """The labels of a recording as a table of matches."""
    rows: list[tuple[object, ...]] = []
    by_identity: dict[int, list[Tracklet]] = {}
    for t in recording.tracklets:
        if t.truth is not None:
            by_identity.setdefault(t.truth, []).append(t)
    for own in by_identity.values():
        for earlier, later in zip(own, [*own[1:], None], strict=True):
            rows.append((earlier.camera, earlier.id, later.camera if later else "", later.id if later else ""))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("camera_from", "tracklet_from", "camera_to", "tracklet_to"), *rows])


def test_matches_are_labels(world: World, tmp_path: Path) -> None:
    named = Recording(world.recording.network, [t for t in world.recording.tracklets if t.truth is not None])
    matches_of(named, tmp_path / "matches.csv")
    blind = Recording(named.network, [replace(t, truth=None) for t in world.recording.tracklets])
    labelled, complete = labelled_by(tmp_path / "matches.csv", blind)
    assert complete and len(labelled.tracklets) == len(named.tracklets)
    assert learn_links(labelled) == learn_links(named)


def test_confident_matches_change_no_priors(world: World, tmp_path: Path) -> None:
    recording = world.recording
    path = tmp_path / "identities.csv"
    lines = ["identity,camera,tracklet,after_camera,after_tracklet,score"]
    last: dict[int, Tracklet] = {}
    for t in recording.tracklets:
        if t.truth is not None:
            before = last.get(t.truth)
            score = 4.0 if t.id % 2 else 1.0
            lines.append(f"{t.truth},{t.camera},{t.id}," + (f"{before.camera},{before.id},{score}" if before else ",,"))
            last[t.truth] = t
    path.write_text("\n".join(lines))
    labelled, complete = labelled_by(path, recording, least_score=3.0)
    assert not complete and 0 < len(labelled.tracklets) < len(recording.tracklets)
    learned = learn_links(labelled, counts=complete)
    assert [link.prior for link in learned.links] == [link.prior for link in recording.network.links]
    assert learned.cameras == recording.network.cameras
    assert any(link.travel is not None for link in learned.links)


def test_matches_of_tracklets_that_are_not_there(tmp_path: Path) -> None:
    recording = passing([("left", "right")] * 3, truth=False)
    path = tmp_path / "m.csv"
    path.write_text("camera_from,tracklet_from,camera_to,tracklet_to\na,1,b,1\na,2,b,99\n")
    with pytest.raises(InputError, match=r"m\.csv, line 3: found tracklet 99 of camera b"):
        labelled_by(path, recording)
    log = Log()
    labelled, _ = labelled_by(path, recording, log=log)
    assert len(labelled.tracklets) == 2 and log.counts == {UNKNOWN: 1}
    path.write_text("camera_from,tracklet_from,camera_to,tracklet_to,score\na,1,b,1,nan\n")
    with pytest.raises(InputError, match=r"m\.csv, line 2: found .* a finite number as a score"):
        labelled_by(path, recording)
    for text, expected in (("x,y\n", "camera_from"), ("camera_from,tracklet_from,camera_to,tracklet_to\n", "no match")):
        path.write_text(text)
        with pytest.raises(InputError, match=expected):
            labelled_by(path, recording)


def test_the_command(world: World, tmp_path: Path) -> None:
    write_recording(tmp_path / "data", world.recording, "aicity")
    network = world.recording.network
    write_network(tmp_path / "cameras.yaml", replace(network, links=()))
    options = ["--data", str(tmp_path / "data"), "--format", "aicity", "--links", str(tmp_path / "cameras.yaml")]
    out = tmp_path / "learned" / "links.yaml"
    run = CliRunner().invoke(app, ["learn-links", *options, "--out", str(out), "--json"])
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    learned = load_network(out)
    assert len(told["links"]) == len(learned.links) > 5 and told["log"]["rows"] > 0
    assert "Links learned from" in run.stderr and [p.name for p in out.parent.iterdir()] == ["links.yaml"]
    again = Recording(learned, world.recording.tracklets)
    assert len(candidates(again)) > 0
    (tmp_path / "data" / "ground_truth.txt").unlink()
    none = CliRunner().invoke(app, ["learn-links", *options, "--out", str(tmp_path / "none.yaml")])
    assert isinstance(none.exception, InputError) and "no true identities" in str(none.exception)
    assert not (tmp_path / "none.yaml").exists()


def test_the_window_of_a_mixture() -> None:
    low, high = window_of("normal", ((0.5, 0.0, 1.0), (0.5, 10.0, 2.0)))
    assert (low, high) == pytest.approx((-3.0902, 16.1804))
    assert window_of("normal", ((1.0, 0.0, 1.0),), positive=True)[0] == 0
