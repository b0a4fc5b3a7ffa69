"""The evaluator: known numbers of real tracks, another evaluator's, and faults reported from the field."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from examples.mtmc.matching.associate import associate
from examples.mtmc.matching.methods import Scene, method
from examples.mtmc.network.network import Camera, Network
from examples.mtmc.recordings.readers import read
from examples.mtmc.recordings.tracklets import Track
from examples.mtmc.recordings.writers import mot_text
from examples.mtmc.scoring.evaluate import Data, Protocol, data_of, evaluate, link_scores, quick_idf1, score, tracks_of

HD = Network({"a": Camera("a", 1.0), "b": Camera("b", 1.0)})


def _tud(data_dir: Path, tmp_path: Path) -> Data:
    """Both sequences as two cameras, ids kept apart, by our own reader."""
    network = Network({name: Camera(name, 25.0) for name in ("TUD-Campus", "TUD-Stadtmitte")})
    tracks: dict[str, list[Track]] = {}
    for part in ("gt", "test"):
        folder = tmp_path / part
        folder.mkdir()
        for name in network.cameras:
            # The ground truth lists some boxes with confidence 0 and both files negative ids nowhere: read as they are.
            rows = [
                line.split(",") for line in (data_dir / "mtmc/mot15_tud" / name / f"{part}.txt").read_text().split()
            ]
            rows.sort(key=lambda row: (int(row[1]), int(row[0])))
            (folder / f"{name}.txt").write_text("".join(",".join(row) + "\n" for row in rows))
        tracklets = read(folder, "mot", network).tracklets
        tracks[part] = [Track(t.camera, t.id + 1000 * network.index(t.camera), t.frames, t.boxes) for t in tracklets]
    return data_of(network, tracks["gt"], tracks["test"], rate=None)


def test_tud_has_its_published_scores(data_dir: Path, tmp_path: Path) -> None:
    result = score(_tud(data_dir, tmp_path), clear=True)
    assert round(100 * result["idf1"], 1) == 62.4
    assert round(100 * result["mota"], 1) == 55.5
    assert result["id_switches"] == 14
    assert round(100 * result["hota"], 1) == 40.0


def test_motmetrics_agrees_on_identity(town_scene: Scene) -> None:
    motmetrics = pytest.importorskip("motmetrics")
    own = method("hungarian", town_scene)
    identity = own.identities(own.gain - 0.3)
    recording = town_scene.recording
    data = data_of(recording.network, recording.truth, tracks_of(recording, identity, Protocol()), rate=1.0)
    accumulator = motmetrics.MOTAccumulator(auto_id=True)
    for gt, hyp, overlap in zip(data["gt_ids"], data["tracker_ids"], data["similarity_scores"], strict=True):
        accumulator.update(gt, hyp, np.where(overlap >= 0.5, 1 - overlap, np.nan))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own use of pandas
        theirs = motmetrics.metrics.create().compute(accumulator, metrics=["idf1", "idp", "idr"])
    ours = score(data)
    for name in ("idf1", "idp", "idr"):
        assert ours[name] == pytest.approx(float(theirs[name].iloc[0]), abs=1e-9)
    assert 0.2 < ours["idf1"] < 0.95


def _track(id: int, frames: list[int], boxes: list[list[float]], camera: str = "a") -> Track:
    return Track(camera, id, np.array(frames), np.array(boxes, dtype=float).reshape(-1, 4))


def test_field_case_switch_across_a_gap(cases: ModuleType) -> None:
    given, expected = cases.CASES["B51"]()
    box = [0.0, 0.0, 10.0, 20.0]
    held = given["assoc"]
    truth = [_track(1, list(range(1, len(held) + 1)), [box] * len(held))]
    ids = sorted({i for i in held if i is not None})
    frames = {i: [f for f, at in enumerate(held, 1) if at == i] for i in ids}
    predicted = [_track(i, frames[i], [box] * len(frames[i])) for i in ids]
    result = score(data_of(HD, truth, predicted, rate=None), clear=True)
    assert result["id_switches"] == int(expected["id_switches"])
    assert result["misses"] == int(expected["misses"])
    assert result["mota"] == pytest.approx(float(expected["mota"]))

    def shifted(overlap: float) -> list[float]:
        return [10 * (1 - overlap) / (1 + overlap), 0.0, 10.0, 20.0]  # IoU with ``box`` is ``overlap``

    seen: dict[int, list[tuple[int, float]]] = {}
    for frame, there in enumerate(given["second_scene"], 1):
        for i, overlap in there:
            seen.setdefault(i, []).append((frame, overlap))
    predicted = [_track(i, [f for f, _ in at], [shifted(o) for _, o in at]) for i, at in seen.items()]
    unseen = [f for f, there in enumerate(given["second_scene"], 1) if not there]
    frames_true = [f for f in range(1, len(given["second_scene"]) + 1) if f not in unseen]
    truth = [_track(1, frames_true, [box] * len(frames_true))]
    second = score(data_of(HD, truth, predicted, rate=None), clear=True)
    # Nobody is there in the unseen frame: the old match has no priority after it, so 11, the better box, is taken.
    assert expected["second_match"] == 11
    assert second["false_positives"] == int(expected["second_false_positives"])


def test_field_case_empty_frames_and_sequences(cases: ModuleType) -> None:
    given, expected = cases.CASES["B53"]()
    box, away = [0.0, 0.0, 10.0, 20.0], [500.0, 0.0, 10.0, 20.0]
    truth_at = [f for f, n in enumerate(given["truth_per_frame"], 1) if n]
    predicted_at = [f for f, n in enumerate(given["predicted_per_frame"], 1) if n]
    boxes = [box if given["matched_per_frame"][f - 1] else away for f in predicted_at]
    data = data_of(HD, [_track(1, truth_at, [box] * len(truth_at))], [_track(5, predicted_at, boxes)], rate=None)
    for name in ("gt_ids", "tracker_ids"):
        assert all(step.dtype == np.int64 for step in data[name])
    result = score(data, clear=True)
    assert result["misses"] == int(expected["misses"])
    assert result["false_positives"] == int(expected["false_positives"])
    assert result["mota"] == pytest.approx(float(expected["mota"]))
    # Without truth, without predictions, without both: numbers, never NaN.
    some = [_track(1, [1, 2], [box, box])]
    for truth, predicted in ([], some), (some, []), ([], []):
        scores = score(data_of(HD, truth, predicted, rate=None))
        assert all(np.isfinite(value) for value in scores.values())


def test_field_case_zero_based_file_is_reported(cases: ModuleType, tmp_path: Path) -> None:
    from examples.mtmc.errors import InputError

    given, expected = cases.CASES["B53"]()
    frames = given["zero_based_file"]["frames"]
    assert frames[0] == int(expected["frames_out_of_range"][0])
    track = _track(1, frames, [[0.0, 0.0, 9.0, 9.0]] * len(frames))
    (tmp_path / "a.txt").write_text(mot_text([track]))
    with pytest.raises(InputError, match=r"line 1: found frame '?0'?; expected a whole number from 1 on"):
        read(tmp_path, "mot", Network({"a": Camera("a", 1.0)}))


def test_scores_of_the_true_and_of_no_identities(town_scene: Scene) -> None:
    recording = town_scene.recording
    from examples.mtmc.matching.baselines import no_association, oracle

    best, worst = oracle(recording), no_association(recording)
    assert quick_idf1(recording, best) > 0.95 > quick_idf1(recording, worst) + 0.3
    scored = evaluate(recording, best, Protocol())
    assert 0.8 < scored["idf1"] < 1 and scored["link_recall"] == scored["link_precision"] == 1
    assert evaluate(recording, worst, Protocol())["idf1"] < 0.6
    assert link_scores(recording, worst) == {"link_precision": 1.0, "link_recall": 0.0}


def test_dropping_single_camera_identities_is_another_protocol(town_scene: Scene) -> None:
    recording, pairs = town_scene.recording, town_scene.pairs
    identity = associate(recording, pairs.source, pairs.target, np.where(town_scene.true, 1.0, -1.0))
    both = {kept: evaluate(recording, identity, Protocol(single_camera=kept)) for kept in (True, False)}
    assert both[False]["idr"] < both[True]["idr"]
    assert str(Protocol()) != str(Protocol(single_camera=False))
