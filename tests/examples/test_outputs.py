"""The folder that an example leaves: refused before the work where it cannot be, and its files whole or not at all."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import pytest

from examples.outputs import save, write_json, write_text

ROOT = Path(__file__).parents[2]
# Those under torchrun have processes to tell of it: tests/distributed/test_distributed_run.py.
SOURCES = {file.stem: file.read_text() for file in (ROOT / "examples").glob("*.py")}
EXAMPLES = sorted(name for name, text in SOURCES.items() if "    add_out(parser" in text and "torchrun" not in text)


def test_the_examples_of_sequences_are_all_here() -> None:
    assert set(EXAMPLES) == {
        "attribution", "bottlenecks", "fp8_attention", "length_extrapolation", "masked_lm", "moe_lm", "needle",
        "norm_position", "paged_serving", "translate",
    }  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_file_is_no_folder(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(f"examples.{name}").main(["--small", "--out", str(tmp_path / "taken")])
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.endswith(f"error: argument --out: {tmp_path / 'taken'} is a file; it must be a folder")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_folder_below_a_file_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from examples import fp8_attention

    (tmp_path / "taken").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        fp8_attention.main(["--out", str(tmp_path / "taken" / "below")])
    assert "below cannot be made: Not a directory" in capsys.readouterr().err


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "a.json", {"first": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"second": object()})
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.json", "begun " * 100 + "\ud800")
    with monkeypatch.context() as patched, pytest.raises(OSError, match="dies here"):

        def dies(path: Path, target: Path) -> None:
            raise OSError("it dies here")

        patched.setattr(Path, "replace", dies)
        write_json(tmp_path / "a.json", {"third": 3})
    assert json.loads((tmp_path / "a.json").read_text()) == {"first": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_picture_is_whole_and_closed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    figure, _ = pyplot.subplots()
    save(figure, tmp_path / "a.png", dpi=50)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG") and os.listdir(tmp_path) == ["a.png"]
    assert not pyplot.fignum_exists(figure.number)
