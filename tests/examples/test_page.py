"""What the page of tracks is made of: the errors and their causes, flows, reasons, JSON that HTML cannot misread."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.mtmc.matching.associate import associate
from examples.mtmc.matching.candidates import candidates
from examples.mtmc.network.network import Camera, Link, Network
from examples.mtmc.page import matrix
from examples.mtmc.page import page as page_module
from examples.mtmc.page.errors import find_errors, joins
from examples.mtmc.page.map import link_data
from examples.mtmc.page.matrix import pair_data
from examples.mtmc.page.page import ASSETS, View, as_json, page, page_data, true_identities, write_page
from examples.mtmc.page.transits import transit_data
from examples.mtmc.recordings.tracklets import Recording, Tracklet
from examples.mtmc.scoring.evaluate import link_scores
from tests.examples.views import HOSTILE, view, without_truth


def tracklets(*rows: tuple[str, float, float, int | None]) -> list[Tracklet]:
    """Tracklets of (camera, seconds in, seconds out, true identity)."""
    made = []
    for n, (camera, start, end, truth) in enumerate(rows):
        frames = np.array([round(10 * start), round(10 * end)])
        made.append(Tracklet(camera, n, frames, np.ones((2, 4)), None, start, end, None, truth))
    return made


def test_every_error_says_why() -> None:
    network = Network(
        {name: Camera(name, 10.0) for name in "abc"}, (Link("a", "b", (1.0, 20.0)), Link("b", "c", (1.0, 20.0)))
    )
    shown = Recording(
        network,
        tracklets(
            ("a", 0, 1, 1),  # 0
            ("a", 2, 3, 2),  # 1
            ("b", 8, 9, 1),  # 2
            ("b", 10, 11, 2),  # 3
            ("c", 15, 16, None),  # 4: nobody
            ("c", 60, 61, 1),  # 5: too late for the link
            ("a", 70, 71, 2),  # 6: no link from b to a
        ),
    )
    pairs = candidates(shown)
    gain = {(0, 2): 1.5, (0, 3): 0.2, (1, 2): 2.0, (1, 3): -1.0, (2, 4): 3.0, (3, 4): 0.1}
    score = np.array([gain[pair] for pair in zip(pairs.source.tolist(), pairs.target.tolist(), strict=True)])
    #                    0  1  2  3  4  5  6
    identity = np.array([0, 1, 1, 2, 1, 3, 4])
    errors = find_errors(View("", shown, identity, network, pairs, score, true=true_identities(shown)))
    said = {(error.kind, error.earlier, error.later): error.why for error in errors}
    assert said == {
        ("wrong", 1, 2): "the right one, a #0, scored +1.5",
        ("wrong", 2, 4): "the later one is nobody (false detections)",
        ("missed", 0, 2): "scored +1.5, but a #1 was preferred as the earlier one",
        ("missed", 1, 3): "nobody was likelier (score -1.0)",
        ("missed", 2, 5): "no candidate: 51.0 s is outside the link's window of 1 to 20 s",
        ("missed", 3, 6): "no candidate: no link from b to a",
    }


@given(seed=st.integers(0, 200))
def test_errors_agree_with_the_scores_of_links(seed: int) -> None:
    given_view = view(people=6)
    rng = np.random.default_rng(seed)
    shown, pairs = given_view.recording, given_view.pairs
    assert pairs is not None and given_view.true is not None
    identity = associate(shown, pairs.source, pairs.target, rng.normal(0, 1, len(pairs)))
    errors = find_errors(replace(given_view, identity=identity))
    made = joins(identity)
    wrong = {(e.earlier, e.later) for e in errors if e.kind == "wrong"}
    assert all(given_view.true[a] != given_view.true[b] for a, b in wrong) and wrong <= set(made)
    right = sum(given_view.true[a] == given_view.true[b] for a, b in made)
    assert len(wrong) + right == len(made)
    scores = link_scores(shown, identity)
    # A join that skips one of its own is no wrong join, but no true link either.
    assert scores["link_precision"] * len(made) <= right + 1e-9
    missed = [e for e in errors if e.kind == "missed"]
    assert all(given_view.true[e.earlier] == given_view.true[e.later] for e in missed)
    assert all(identity[e.earlier] != identity[e.later] for e in missed)
    found = scores["link_recall"] * len(joins(given_view.true))
    assert found + len(missed) <= len(joins(given_view.true)) + 1e-9


def test_the_truth_has_no_errors() -> None:
    given_view = view(people=8)
    assert given_view.true is not None
    assert find_errors(replace(given_view, identity=given_view.true)) == []
    assert find_errors(given_view) != []


def test_without_truth_the_least_certain_joins_are_named() -> None:
    given_view = without_truth(view(people=30))
    errors = find_errors(given_view)
    assert {error.kind for error in errors} == {"doubtful"} and len(errors) == 50
    pairs, gain = given_view.pairs, given_view.gain
    assert pairs is not None and gain is not None
    number = {pair: n for n, pair in enumerate(zip(pairs.source.tolist(), pairs.target.tolist(), strict=True))}
    named = {(error.earlier, error.later) for error in errors}
    others = [gain[number[pair]] for pair in joins(given_view.identity) if pair in number and pair not in named]
    assert max(gain[number[pair]] for pair in named) <= min(others)


def test_flows_count_the_joins_of_every_link() -> None:
    given_view = view(people=9)
    data = link_data(given_view)
    names = list(given_view.network.cameras)
    shown = given_view.recording.tracklets
    for n, (a, b) in enumerate(zip(data["source"], data["target"], strict=True)):
        ends = [(shown[x].camera, shown[y].camera) for x, y in joins(given_view.identity)]
        assert data["matched"][n] == ends.count((names[a], names[b]))
    assert sum(data["true"]) + data["elsewhere"] == len(joins(true_identities(given_view.recording)))  # type: ignore[arg-type]


def test_reasons_add_up_to_the_score() -> None:
    given_view = view(people=9)
    data = pair_data(given_view)
    assert "place" not in data["reasons"], "a reason that says nothing anywhere is not shown"
    total = np.sum(list(data["reasons"].values()), axis=0)
    assert np.abs(total - data["gain"]).max() <= 0.005 * 8 and len(total) == len(given_view.pairs)  # type: ignore[arg-type]


def test_beyond_the_most_pairs_the_joined_and_the_true_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    given_view = view(people=20)
    assert given_view.pairs is not None and given_view.true is not None
    whole = set(zip(given_view.pairs.source.tolist(), given_view.pairs.target.tolist(), strict=True))
    needed = (set(joins(given_view.identity)) | set(joins(given_view.true))) & whole
    monkeypatch.setattr(matrix, "MOST", len(needed) + 5)
    data = pair_data(given_view)
    kept = set(zip(data["source"], data["target"], strict=True))
    assert needed <= kept and len(kept) == len(needed) + 5 and data["left_out"] == len(whole) - len(kept)


def test_histograms_and_learned_densities_are_shares_a_second() -> None:
    given_view = view(people=60)
    shown = transit_data(given_view)
    assert {(link["source"], link["target"]) for link in shown} == {
        (a, b) for a in range(4) for b in range(4) if abs(a - b) == 1
    }
    for link in shown:
        beyond = link["beyond"] / link["count"]
        assert sum(link["seen"]) * link["step"] == pytest.approx(1 - beyond, abs=0.01)
        assert 0.5 < sum(link["learned"]) * link["at"][1] <= 1.03


@given(text=st.text(), number=st.floats(allow_nan=False, allow_infinity=False))
def test_json_that_html_cannot_misread(text: str, number: float) -> None:
    data = {text: [text, number, None], "x": HOSTILE}
    written = as_json(data)
    assert json.loads(written) == data
    assert not set("<>&") & set(written) and written.isascii()


def test_what_is_not_finite_is_not_written() -> None:
    given_view = view(people=5)
    gain = np.array(given_view.gain)
    gain[:3] = [-np.inf, np.inf, np.nan]
    data = page_data(replace(given_view, gain=gain))
    assert data["pairs"]["gain"][:3] == [-999.0, 999.0, 0.0]
    as_json(data)


def test_the_page_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    write_page(path, view(people=3))
    before = path.read_bytes()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(page_module.os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_page(path, view(people=4))
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_words_from_data_are_escaped_wherever_they_stand() -> None:
    text = page(view(("a", HOSTILE), people=3, words=HOSTILE))
    own = text.replace(text[text.index("<script>") : text.rindex("</script>")], "")  # less the page's own scripts
    assert "<img" not in own and "<b>" not in own and "=1</script>" not in own
    assert own.count("<script") == 1 and own.count("&lt;img src=x") >= 8
    assert len(set(re.findall(r'\bid="([^"]+)"', own))) == len(re.findall(r'\bid="([^"]+)"', own))


def _luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * c for c in digits) if len(digits) == 3 else digits
    parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(a: str, b: str) -> float:
    """The contrast ratio of WCAG 2."""
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_is_legible_in_light_and_dark() -> None:
    schemes = re.findall(r":root\{([^}]*)\}", (ASSETS / "style.css").read_text())
    assert len(schemes) == 2
    for scheme in schemes:
        colour = dict(re.findall(r"--(\w+):(#\w+)", scheme))
        for text in ("ink", "muted", "accent", "bad"):
            for ground in ("paper", "panel", "mark"):
                assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground, scheme[:20])
    palette = re.search(r"COLOURS = \[([^\]]*)\]", (ASSETS / "base.js").read_text())
    assert palette is not None
    for shade in re.findall(r"#\w+", palette.group(1)):
        assert contrast(shade, "#fff") >= 4.5, shade
