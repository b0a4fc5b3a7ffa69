"""One seed of the demo: learn on a training period, then track other people in a later one, by every method.

The training period is cut once more for the matcher: it is fitted on the first two thirds, and the state that does best
on the last third is kept. Links, travel times, and the threshold of every method (by the same search) come from the
whole training period.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from examples.mtmc.matching.baselines import no_association, oracle
from examples.mtmc.matching.calibration import Calibration, Reliability, fit_calibration, reliability
from examples.mtmc.matching.matcher import Form, Matcher
from examples.mtmc.matching.methods import ROWS, Scene, cross_fitted, match, method, scene, threshold
from examples.mtmc.matching.training import STEPS, train
from examples.mtmc.network.learn import learn_links
from examples.mtmc.online.compare import online_identities
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.scoring.evaluate import Protocol, evaluate
from examples.mtmc.simulator.realism import measure
from examples.mtmc.simulator.simulate import simulate

MISSING_LINK = ("c2", "c3")  # the link taken out of the prior to see what a wrong prior costs
SHIFT = 1.2
LATENCY = 5.0  # seconds, of the row "online"
FORMS = {"gatv2": Form(bias=()), "gatv2_bias": Form()}


@dataclass(frozen=True)
class Size:
    """How much is simulated and trained."""

    training_minutes: float = 40.0
    test_minutes: float = 25.0
    per_minute: float = 8.0
    steps: int = STEPS
    preset: str = "real"


SMALL = Size(training_minutes=8.0, test_minutes=4.0, per_minute=6.0, steps=15)


@dataclass
class Outcome:
    """Scores of every row, scores under wrong priors, the simulator's figures, and the test scene with its answers."""

    seed: int
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    wrong_prior: dict[str, dict[str, float]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    test: Recording | None = None
    training: Recording | None = None
    identity: NDArray[np.int64] | None = None
    matcher: dict[str, torch.Tensor] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)  # of gatv2_bias, fitted on the stretch held out
    reliability: Reliability | None = None  # of its probabilities in the test period


def periods(seed: int, size: Size) -> tuple[Recording, Recording, dict[str, float]]:
    """The training period, a later test period with other people before the same cameras, and measured figures."""
    training = simulate(seed, size.training_minutes, size.per_minute, day=0, preset=size.preset)
    later = 60 * (size.training_minutes + 20)
    test = simulate(seed, size.test_minutes, size.per_minute, start=later, day=1, first_id=100_001, preset=size.preset)
    return training.recording, test.recording, measure(training)


@dataclass(frozen=True, eq=False)
class Prepared:
    """The scenes of one seed: the stretch to fit on, the stretch held out, both together, and the later test."""

    fitting: Scene
    holding: Scene
    whole: Scene
    testing: Scene
    figures: dict[str, float]


def prepare(seed: int, size: Size) -> Prepared:
    """Simulate both periods and learn the links of each scene from what it may have seen."""
    training, test, figures = periods(seed, size)
    cut = training.tracklets[0].time_in + 60 * size.training_minutes * 2 / 3
    fitted_on, held_out = training.between(-np.inf, cut), training.between(cut, np.inf)
    early, learned = learn_links(fitted_on), learn_links(training)
    return Prepared(
        cross_fitted(fitted_on, early),
        scene(held_out, early),
        cross_fitted(training, learned),
        scene(test, learned),
        figures,
    )


def run_seed(seed: int, size: Size, protocol: Protocol, report: Callable[[str], None] = lambda stage: None) -> Outcome:
    """All rows of one seed; ``report`` hears every stage as it starts (``stages`` of them)."""
    report("simulating")
    given = prepare(seed, size)
    outcome = Outcome(seed, figures=given.figures)
    fitting, holding, whole, testing = given.fitting, given.holding, given.whole, given.testing
    training, test, learned = whole.recording, testing.recording, whole.network
    matchers: dict[str, Matcher] = {}
    for row in ("gatv2", "gatv2_bias"):
        report(f"training {row}")
        matchers[row] = train(fitting.labelled, holding.labelled, FORMS[row], seed, size.steps)
    for row in ROWS:
        report(f"tracking with {row}")
        outcome.scores[row] = evaluate(test, _identities(row, whole, testing, matchers, outcome), protocol)
    gain = match(matchers["gatv2_bias"], holding).gain.double().numpy()
    outcome.calibration = fit_calibration(gain, holding.true)
    gain = match(matchers["gatv2_bias"], testing).gain.double().numpy()
    outcome.reliability = reliability(outcome.calibration.probability(gain), testing.true)
    report("trying wrong priors")
    wrong = {"shifted 20 %": learned.stretched(SHIFT), "link missing": learned.without(*MISSING_LINK)}
    for name, network in wrong.items():
        own = method("gatv2_bias", scene(test, network), matchers["gatv2_bias"])
        identity = own.identities(own.gain - outcome.thresholds["gatv2_bias"])
        outcome.wrong_prior[name] = evaluate(test, identity, protocol)
    outcome.training = Recording(learned, training.tracklets)
    outcome.test = Recording(learned, test.tracklets, test.truth, training.dropped + test.dropped)
    outcome.matcher = {name: value.detach() for name, value in matchers["gatv2_bias"].state_dict().items()}
    return outcome


def _identities(
    row: str, training: Scene, testing: Scene, matchers: dict[str, Matcher], outcome: Outcome
) -> NDArray[np.int64]:
    if row == "none":
        return no_association(testing.recording)
    if row == "oracle":
        return oracle(testing.recording)
    if row == "online":
        tau = outcome.thresholds["gatv2_bias"]
        return online_identities(testing.recording, testing.network, matchers["gatv2_bias"], tau, LATENCY)
    outcome.thresholds[row] = threshold(row, training, matchers.get(row))
    own = method(row, testing, matchers.get(row))
    identity = own.identities(own.gain - outcome.thresholds[row])
    if row == "gatv2_bias":
        outcome.identity = identity
    return identity


STAGES = 4 + len(ROWS)


def matches_of(outcome: Outcome, given: Scene) -> tuple[Matcher, NDArray[np.float64], NDArray[np.float64]]:
    """The trained matcher with bias again, its gains less the threshold, and its b_ij, in the test scene."""
    matcher = Matcher()
    matcher.load_state_dict(outcome.matcher)
    scores = match(matcher.eval(), given)
    gain = scores.gain.double().numpy() - outcome.thresholds["gatv2_bias"]
    return matcher, gain, scores.bias.double().numpy()
