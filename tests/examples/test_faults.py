"""Killed at any moment and run again, a command resumes or starts clean; no file is ever half-written."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

from examples.mtmc import parallel
from examples.mtmc.experiment import Outcome, Size
from examples.mtmc.matching.checkpoint import Checkpoint
from examples.mtmc.matching.matcher import Form, Matcher
from examples.mtmc.matching.methods import scene
from examples.mtmc.matching.training import Labelled, train
from examples.mtmc.network.learn import learn_links
from examples.mtmc.scoring.evaluate import Protocol
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


def test_finished_seeds_are_used_again_unless_they_are_damaged_or_of_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    def run_seed(seed: int, size: Size, protocol: Protocol, report: object) -> Outcome:
        done.append(seed)
        return Outcome(seed, {"row": {"idf1": seed + size.steps / 1000}})

    monkeypatch.setattr(parallel, "run_seed", run_seed)
    said = io.StringIO()

    def run(seeds: list[int], steps: int = 1) -> list[int]:
        done.clear()
        console = Console(file=said, width=200)
        outcomes = parallel.run_seeds(seeds, Size(steps=steps), Protocol(), console, 1, tmp_path / ".work")
        assert [o.scores["row"]["idf1"] for o in outcomes] == [seed + steps / 1000 for seed in seeds]
        return list(done)

    assert run([0, 1]) == [0, 1] and said.getvalue().strip() == ""
    assert run([0, 1, 2]) == [2]
    assert "Finished in an earlier run and not done again: seed(s) 0, 1\n" in said.getvalue()
    kept = sorted((tmp_path / ".work").iterdir())
    assert len(kept) == 3
    kept[1].write_bytes(kept[1].read_bytes()[:-9])
    kept[2].write_bytes(kept[0].read_bytes())  # whole, but another seed's
    assert run([0, 1, 2]) == [1, 2]
    assert "Seed 1: what was kept of it is damaged; it is done again" in said.getvalue()
    assert run([0, 1, 2]) == []
    assert run([1], steps=2) == [1] and run([1], steps=2) == []
    assert sorted(path.name.split("-")[1] for path in (tmp_path / ".work").iterdir()) == ["0", "1", "2"]
    assert run([1]) == [1], "one state of a seed is kept, the last one asked for"
