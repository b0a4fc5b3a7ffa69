"""Norms after the sum leave larger gradients near the output; norms before it do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import norm_position

pytest.importorskip("matplotlib")


def test_gradients_and_losses_are_those_of_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = norm_position.main(["--small", "--layers", "8", "--steps", "10", "--out", str(tmp_path)])
    assert (tmp_path / "norm_position.png").stat().st_size > 10_000
    assert "last / first" in capsys.readouterr().out
    post, pre = (outcomes[place, True].gradients for place in ("post", "pre"))
    assert post[-1] / post[0] > 1.15 * pre[-1] / pre[0]
    for outcome in outcomes.values():
        assert len(outcome.losses) == 10 and outcome.losses[-1] < outcome.losses[0]
    assert outcomes["pre", True].gradients == outcomes["pre", False].gradients


def test_a_warm_up_grows_to_the_top_and_stays() -> None:
    rates = [norm_position.rate(step, 30, 1.0, warm_up=True) for step in range(30)]
    assert rates[0] == pytest.approx(0.1) and rates[9:] == [1.0] * 21
    assert norm_position.rate(0, 30, 1.0, warm_up=False) == 1.0
