"""Killed at any moment and run again, a command resumes or starts clean; no file is ever half-written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from examples.mtmc.matching.checkpoint import Checkpoint
from examples.mtmc.matching.matcher import Form, Matcher
from examples.mtmc.matching.methods import scene
from examples.mtmc.matching.training import Labelled, train
from examples.mtmc.network.learn import learn_links
from examples.mtmc.simulator.simulate import simulate


class Stopped(Exception):
    """In place of a kill, where the test wants to choose the step."""


@pytest.fixture(scope="module")
def few() -> Labelled:
    recording = simulate(3, 2, 5).recording
    return scene(recording, learn_links(recording)).labelled


def test_a_training_that_was_stopped_goes_on_with_the_same_result(few: Labelled, tmp_path: Path) -> None:
    whole = train(few, few, Form(), 1, 20)
    checkpoint = Checkpoint(tmp_path / "training", "key")
    for stop in (3, 15):  # before the first checkpoint, and after it
        left = iter(range(stop))

        def tick(left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise Stopped

        with pytest.raises(Stopped):
            train(few, few, Form(), 1, 20, tick, checkpoint)
        assert checkpoint.path.exists() == (stop >= 10)
    taken: list[None] = []
    again = train(few, few, Form(), 1, 20, lambda: taken.append(None), checkpoint)
    assert len(taken) == 20, "progress counts the steps that were taken before"
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_a_checkpoint_that_is_damaged_or_of_another_training_is_not_used(few: Labelled, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "training", "key")
    train(few, few, Form(), 1, 10, checkpoint=checkpoint)
    model = Matcher(Form())
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, 10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert Checkpoint(checkpoint.path, "another").load(model, optimizer, schedule) is None
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:-7])
    assert checkpoint.load(model, optimizer, schedule) is None
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
