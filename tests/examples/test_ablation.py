"""Ablations: one command, every claim of the prior with its row, each trained and tuned of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from examples.mtmc import ablation, cli
from examples.mtmc.ablation import FORMS, MEANING
from examples.mtmc.experiment import Size

TINY = Size(training_minutes=3.0, test_minutes=1.0, per_minute=6.0, steps=3)


def test_every_row_takes_something_away() -> None:
    assert list(FORMS) == list(MEANING)
    full = FORMS["full"]
    for row, form in FORMS.items():
        assert (form == full) == (row in ("full", "as_written")), row
        assert set(form.bias) <= set(full.bias) and form.rounds <= full.rounds
    assert FORMS["no_bias"].bias == () and FORMS["link_only"].bias == ("link",) and FORMS["no_rivals"].rounds == 0


def test_the_command_writes_one_table_and_speaks_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ablation, "SMALL", TINY)
    arguments = [
        "mtmc",
        "ablate",
        "--small",
        "--seeds",
        "1",
        "--workers",
        "1",
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads((tmp_path / "out" / "ablation.json").read_text())
    rows = json.loads(said.out)["rows"]
    assert list(rows) == list(FORMS)
    for scores in rows.values():
        assert all(0 <= scores[name][0] <= 1 for name in ("idf1", "hota", "link_precision", "calibration_error"))
    assert rows["full"] != rows["no_rivals"] and rows["full"] != rows["as_written"]  # each was trained of its own
    assert all(row in said.err for row in FORMS)
