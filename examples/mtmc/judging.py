"""Judge a scene by the matcher, or without looks by the prior alone: identities, reasons, and what to compare with."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.answers import predecessors
from examples.mtmc.errors import InputError
from examples.mtmc.matching.baselines import no_association, oracle
from examples.mtmc.matching.calibration import Calibration, Reliability, reliability
from examples.mtmc.matching.matcher import Matcher
from examples.mtmc.matching.methods import Scene, method, threshold
from examples.mtmc.matching.reasons import Reasons, reasons
from examples.mtmc.matching.weights import DEFAULT, load_calibration, load_matcher

COSINE = 0.3  # over which "hungarian" joins where nothing is there to tune it by


@dataclass(frozen=True, eq=False)
class Judged:
    """Identities ``[N]``, the reasons and probabilities of all candidates ``[E]``, and other rows' identities."""

    row: str
    identity: NDArray[np.int64]
    reasons: Reasons
    probability: NDArray[np.float64]
    joined: NDArray[np.bool_]
    reliability: Reliability | None
    others: dict[str, NDArray[np.int64]]
    notes: list[str]


def judge(given: Scene, training: Scene | None = None, weights: Path | None = None) -> Judged:
    """Judge a scene; the threshold is that of the weights, or is set on a ``training`` scene."""
    recording, pairs, notes = given.recording, given.pairs, list[str]()
    if training is not None and not training.true.any():
        notes.append("nobody is seen twice in what is for learning: the threshold is the usual one")
        training = None
    if recording.has_embeddings:
        row = "gatv2_bias"
        matcher, tau, calibration = _weights(weights or DEFAULT)
        if training is not None:
            tau = threshold(row, training, matcher)
        why = reasons(matcher, given, tau)
    else:
        row, calibration = "prior", Calibration()
        if weights is not None:
            _weights(weights)
            notes.append("--weights: not used, for they score looks")
        some = any(t.embedding is not None for t in recording.tracklets)
        missing = "some tracklets have none" if some else "there are none"
        notes.append(f"no embeddings ({missing}): identities come of travel times and link priors alone")
        tau = 0.0 if training is None else threshold(row, training)
        why = prior_reasons(given, tau)
    own = method(row, given, matcher if row == "gatv2_bias" else None)
    identity = own.identities(why.gain)
    others = {"none": no_association(recording), "fifo": _first_in_first_out(given)}
    if row == "gatv2_bias":
        looks = method("hungarian", given)
        others["hungarian"] = looks.identities(looks.gain - COSINE)
    known = any(t.truth is not None for t in recording.tracklets)
    if known:
        others["oracle"] = oracle(recording)
    probability = calibration.probability(why.gain + tau)
    joined = predecessors(identity)[pairs.target] == pairs.source
    reliable = reliability(probability, given.true) if known and len(pairs) else None
    return Judged(row, identity, why, probability, joined, reliable, others, notes)


def prior_reasons(given: Scene, tau: float) -> Reasons:
    """What the prior alone says of every candidate, taken apart."""
    prior, pairs = given.prior, given.pairs
    with np.errstate(divide="ignore"):
        known = {"link": np.log(prior.link), "time": prior.travel, "zone": prior.zone, "place": prior.place}
    parts = {f.name: np.zeros(len(pairs)) for f in fields(Reasons) if f.name != "gain"}
    parts |= known | {"nobody": prior.nobody(pairs) - tau}
    total = np.zeros(len(pairs))
    for part in parts.values():
        total = total + part
    return Reasons(**parts, gain=total)


def _weights(path: Path) -> tuple[Matcher, float, Calibration]:
    try:
        return *load_matcher(path), load_calibration(path)
    except FileNotFoundError:
        raise InputError(path, None, "no such file", "weights of the matcher, as train writes them") from None
    except Exception as error:  # whatever safetensors and torch say of a file that is none of ours
        found = f"no weights of this matcher ({type(error).__name__})"
        raise InputError(path, None, found, "weights of the matcher, as train writes them") from None


def _first_in_first_out(given: Scene) -> NDArray[np.int64]:
    """First in, first out within the windows: what the links file gives without travel times or priors."""
    fifo = method("fifo", given)
    return fifo.identities(np.ones_like(fifo.gain))
