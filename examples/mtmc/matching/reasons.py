"""Why two tracklets were joined, or not: the log-odds of a pair as a sum of what each kind of evidence says."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray

from examples.mtmc.matching.matcher import Matcher
from examples.mtmc.matching.methods import Scene, match

TERMS = {"link": "link", "time": "travel", "zone": "zone", "place": "place"}  # reasons and the biases they are


@dataclass(frozen=True, eq=False)
class Reasons:
    """Per candidate ``[E]``, log-odds that add up to ``gain``, in the order of the fields and to the last bit.

    ``appearance``: the score of the two looks; ``link``: log P(A → B) and what its kind adds; ``time, zone, place``:
    the weighted log ratios of the prior; ``company``: what rivals, companions and learned corrections changed;
    ``nobody``: minus what nobody had at both ends, and minus the threshold.
    """

    appearance: NDArray[np.float64]
    link: NDArray[np.float64]
    time: NDArray[np.float64]
    zone: NDArray[np.float64]
    place: NDArray[np.float64]
    company: NDArray[np.float64]
    nobody: NDArray[np.float64]
    gain: NDArray[np.float64]

    def parts(self) -> dict[str, NDArray[np.float64]]:
        """The summands by name, without ``gain``."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "gain"}


def reasons(matcher: Matcher, given: Scene, tau: float = 0.0) -> Reasons:
    """The matcher's log-odds of every candidate of a scene, less the threshold ``tau``, taken apart."""
    matches = match(matcher, given)
    candidate = given.graph["tracklet", "candidate", "tracklet"]
    with torch.no_grad():
        parts = {name: part.double().numpy() for name, part in matcher.parts(candidate).items()}
    zero = np.zeros(len(given.pairs))
    gain = matches.gain.double().numpy()
    known = {name: parts.get(term, zero) for name, term in TERMS.items()}
    known["link"] = known["link"] + parts.get("kind", zero)
    company = matches.company.double().numpy()
    nobody = matches.nobody.double().numpy() - tau
    appearance = gain - tau - sum(known.values()) - company - nobody
    summands = {"appearance": appearance, **known, "company": company, "nobody": nobody}
    total = zero
    for part in summands.values():
        total = total + part
    return Reasons(**summands, gain=total)
