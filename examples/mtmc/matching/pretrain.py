"""Make the weights that ``track`` ships with: the matcher trained on one simulated network."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from examples.mtmc.kept import key
from examples.mtmc.matching.calibration import fit_calibration
from examples.mtmc.matching.checkpoint import Checkpoint
from examples.mtmc.matching.matcher import Form
from examples.mtmc.matching.methods import cross_fitted, match, scene, threshold
from examples.mtmc.matching.training import train
from examples.mtmc.matching.weights import save_matcher
from examples.mtmc.network.learn import learn_links
from examples.mtmc.simulator.simulate import simulate

MINUTES, PER_MINUTE, STEPS = 60.0, 8.0, 100


def pretrain(out: Path, seed: int, console: Console, minutes: float = MINUTES, steps: int = STEPS) -> None:
    """Fit on two thirds of a simulated hour, keep the state that does best on the rest; its threshold comes of all.

    A training that was stopped goes on from ``.NAME.training`` beside ``out``, which is gone when it is done.
    """
    torch.set_num_threads(1)
    recording = simulate(seed, minutes, PER_MINUTE).recording
    cut = 60 * minutes * 2 / 3
    fitted_on, held_out = recording.between(-np.inf, cut), recording.between(cut, np.inf)
    links = learn_links(fitted_on)
    fitting, holding = cross_fitted(fitted_on, links), scene(held_out, links)
    checkpoint = Checkpoint(out.with_name(f".{out.name}.training"), key(seed, minutes, steps))
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("training", total=steps)
        tick = partial(progress.advance, task)
        matcher = train(fitting.labelled, holding.labelled, Form(), seed, steps, tick, checkpoint)
    tau = threshold("gatv2_bias", cross_fitted(recording, learn_links(recording)), matcher)
    calibration = fit_calibration(match(matcher, holding).gain.double().numpy(), holding.true)
    save_matcher(out, dict(matcher.state_dict()), tau, calibration)
    checkpoint.remove()
    console.print(f"Wrote {out} (threshold {tau:.2f})", soft_wrap=True)
