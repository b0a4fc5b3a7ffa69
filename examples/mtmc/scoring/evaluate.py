"""Scores: trackeval's IDF1 and HOTA over steps keyed by camera and frame, and precision and recall of links.

IDF1 and HOTA do not depend on the order of the steps, so all cameras make one sequence. MOTA does depend on it and is
given per camera alone.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.associate import assign
from examples.mtmc.matching.candidates import true_predecessors
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.tracklets import Recording, Track

Data = dict[str, Any]
Steps = dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.float64]]]  # (camera, frame): ids, boxes


@dataclass(frozen=True)
class Protocol:
    """How tracks are scored: at how many steps a second, and whether identities seen in one camera count."""

    rate: float | None = 1.0  # Hz; None: every frame
    single_camera: bool = True  # False: predicted identities seen in one camera are dropped, as AI City's script does

    def __str__(self) -> str:
        rate = "every frame" if self.rate is None else f"{self.rate:g} Hz"
        kept = "kept" if self.single_camera else "dropped from the predictions (AI City's rule)"
        return (
            f"steps keyed by (camera, frame) at {rate}; IoU 0.5 for IDF1, 0.05-0.95 for HOTA; global ids; "
            f"identities seen in one camera are {kept}; trackeval's Identity and HOTA"
        )


def data_of(network: Network, truth: list[Track], predicted: list[Track], rate: float | None) -> Data:
    """The dictionary that trackeval's metric classes take; ids of the tracks are global."""
    gt, hyp = _steps(network, truth, rate), _steps(network, predicted, rate)
    gt_number, hyp_number = _numbered(gt), _numbered(hyp)
    empty = (np.zeros(0, dtype=np.int64), np.zeros((0, 4)))
    data: Data = {"gt_ids": [], "tracker_ids": [], "similarity_scores": []}
    for step in sorted(set(gt) | set(hyp)):
        gt_ids, gt_boxes = gt.get(step, empty)
        hyp_ids, hyp_boxes = hyp.get(step, empty)
        # trackeval wants contiguous integer ids, and integer arrays in empty steps too.
        data["gt_ids"].append(np.array([gt_number[i] for i in gt_ids.tolist()], dtype=np.int64))
        data["tracker_ids"].append(np.array([hyp_number[i] for i in hyp_ids.tolist()], dtype=np.int64))
        data["similarity_scores"].append(iou(gt_boxes, hyp_boxes))
    data["num_timesteps"] = len(data["gt_ids"])
    data["num_gt_ids"], data["num_tracker_ids"] = len(gt_number), len(hyp_number)
    data["num_gt_dets"] = sum(map(len, data["gt_ids"]))
    data["num_tracker_dets"] = sum(map(len, data["tracker_ids"]))
    return data


def _numbered(steps: Steps) -> dict[int, int]:
    """The ids that some step has; one that falls between all steps would be 0 / 0 to trackeval."""
    return {i: n for n, i in enumerate(sorted({i for ids, _ in steps.values() for i in ids.tolist()}))}


def _steps(network: Network, tracks: list[Track], rate: float | None) -> Steps:
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
    for track in tracks:
        every = 1 if rate is None else max(1, round(min(network.cameras[track.camera].fps / rate, 2.0**53)))
        kept = track.frames % every == 0
        frames = track.frames[kept]
        camera = np.full(len(frames), network.index(track.camera))
        parts.append((camera, frames, np.full(len(frames), track.id), track.boxes[kept]))
    if not parts:
        return {}
    camera, frame, ids = (np.concatenate([p[k] for p in parts]) for k in range(3))
    boxes = np.concatenate([p[3] for p in parts])
    order = np.lexsort((ids, frame, camera))
    camera, frame, ids, boxes = camera[order], frame[order], ids[order], boxes[order]
    cut = np.flatnonzero((np.diff(camera) != 0) | (np.diff(frame) != 0)) + 1
    starts = np.concatenate([[0], cut]).astype(int)
    ends = np.concatenate([cut, [len(frame)]]).astype(int)
    return {(int(camera[a]), int(frame[a])): (ids[a:b], boxes[a:b]) for a, b in zip(starts, ends, strict=True) if b > a}


def iou(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union of ``a [n, 4]`` and ``b [m, 4]`` (left, top, width, height): ``[n, m]``."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, :2] + a[:, None, 2:], b[None, :, :2] + b[None, :, 2:])
    inter = np.prod(np.maximum(high - low, 0.0), axis=-1)
    union = a[:, None, 2] * a[:, None, 3] + b[None, :, 2] * b[None, :, 3] - inter
    return np.asarray(np.divide(inter, union, out=np.zeros_like(inter), where=union > 0))


def score(data: Data, clear: bool = False) -> dict[str, float]:
    """IDF1, IDP, IDR, HOTA, AssA and DetA between 0 and 1; with ``clear`` MOTA and identity switches (one camera)."""
    from trackeval.metrics import CLEAR, HOTA, Identity

    quiet: dict[str, Any] = {"PRINT_CONFIG": False}
    with contextlib.redirect_stdout(io.StringIO()):
        identity = Identity({"THRESHOLD": 0.5, **quiet}).eval_sequence(data)
        hota = HOTA({}).eval_sequence(data)
        result = {
            "idf1": float(identity["IDF1"]),
            "idp": float(identity["IDP"]),
            "idr": float(identity["IDR"]),
            "hota": float(np.mean(hota["HOTA"])),
            "assa": float(np.mean(hota["AssA"])),
            "deta": float(np.mean(hota["DetA"])),
        }
        if clear:
            mota = CLEAR({"THRESHOLD": 0.5, **quiet}).eval_sequence(data)
            names = {"mota": "MOTA", "id_switches": "IDSW", "misses": "CLR_FN", "false_positives": "CLR_FP"}
            result |= {name: float(mota[field]) for name, field in names.items()}
    return result


def tracks_of(recording: Recording, identity: NDArray[np.int64], protocol: Protocol) -> list[Track]:
    """The predicted tracks: each tracklet under its global identity, counted from 1."""
    cameras: dict[int, set[str]] = {}
    for tracklet, who in zip(recording.tracklets, identity.tolist(), strict=True):
        cameras.setdefault(who, set()).add(tracklet.camera)
    return [
        Track(t.camera, who + 1, t.frames, t.boxes)
        for t, who in zip(recording.tracklets, identity.tolist(), strict=True)
        if protocol.single_camera or len(cameras[who]) > 1
    ]


def evaluate(recording: Recording, identity: NDArray[np.int64], protocol: Protocol) -> dict[str, float]:
    """All scores of identities against the true tracks of the recording."""
    predicted = tracks_of(recording, identity, protocol)
    data = data_of(recording.network, recording.truth, predicted, protocol.rate)
    return score(data) | link_scores(recording, identity)


def link_scores(recording: Recording, identity: NDArray[np.int64]) -> dict[str, float]:
    """Precision and recall of links: pairs of tracklets that follow each other in one identity."""
    true = {(int(a), b) for b, a in enumerate(true_predecessors(recording)) if a >= 0}
    predicted = set()
    last: dict[int, int] = {}
    for n, who in enumerate(identity.tolist()):
        if who in last:
            predicted.add((last[who], n))
        last[who] = n
    right = len(true & predicted)
    return {
        "link_precision": right / len(predicted) if predicted else 1.0,
        "link_recall": right / len(true) if true else 1.0,
    }


def quick_idf1(recording: Recording, identity: NDArray[np.int64]) -> float:
    """IDF1 counted in boxes of whole tracklets, for tuning: no boxes are compared, the tracklets' truth is believed."""
    weight = np.array([len(t.frames) for t in recording.tracklets], dtype=np.float64)
    truth = np.array([-1 if t.truth is None else t.truth for t in recording.tracklets])
    known = truth >= 0
    if not known.any():
        return 0.0
    pair, number = np.unique(np.stack([truth[known], identity[known]]), axis=1, return_inverse=True)
    shared = np.bincount(number.ravel(), weights=weight[known]).astype(np.float64)
    matched = float(shared[assign(pair[0], pair[1], shared)].sum())
    return 2 * matched / float(weight.sum() + weight[known].sum())
