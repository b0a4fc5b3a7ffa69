"""What is kept comes back as it was; what is damaged is not believed; drafts of dead runs are swept, others are not."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from examples.mtmc.atomic import replaced, results, sweep
from examples.mtmc.experiment import Outcome, Size
from examples.mtmc.kept import keep, key, recall
from examples.mtmc.scoring.evaluate import Protocol
from examples.mtmc.simulator.simulate import World


def test_everything_comes_back_as_it_was(tmp_path: Path, world: World) -> None:
    tensors = {"w": torch.randn(3, 2), "whole": torch.tensor(4), "none": torch.zeros(0, 2, dtype=torch.int64)}
    numbers = {1: float("inf"), -2: float("nan"), 3: 0.1}
    value = Outcome(4, {"a": {"idf1": 0.1}}, test=world.recording, matcher=tensors, identity=np.arange(5))
    keep(tmp_path / "x.npz", [value, numbers, ("a", None, True), Protocol()])
    again, others, words, protocol = recall(tmp_path / "x.npz")
    assert isinstance(again, Outcome) and again.scores == value.scores and again.seed == 4
    assert protocol == Protocol() and words == ("a", None, True)
    assert others[1] == float("inf") and np.isnan(others[-2]) and others[3] == 0.1
    assert again.matcher.keys() == tensors.keys()
    assert all(torch.equal(again.matcher[n], t) and again.matcher[n].dtype == t.dtype for n, t in tensors.items())
    assert again.identity is not None and again.identity.dtype == np.int64
    assert again.test is not None and again.test.network == world.recording.network
    for a, b in zip(again.test.tracklets, world.recording.tracklets, strict=True):
        assert (a.camera, a.id, a.time_in, a.truth) == (b.camera, b.id, b.time_in, b.truth)
        assert np.array_equal(a.boxes, b.boxes) and np.array_equal(a.frames, b.frames)
    assert os.listdir(tmp_path) == ["x.npz"]


def test_what_is_damaged_is_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    keep(path, {"a": np.arange(1000), "b": [1.5] * 50})
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for n in range(60):
        cut = whole[: int(rng.integers(len(whole)))]
        at = int(rng.integers(len(whole)))
        flipped = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        path.write_bytes(cut if n % 2 else flipped)
        with pytest.raises(ValueError, match="damaged"):
            recall(path)
    with pytest.raises(FileNotFoundError):
        recall(tmp_path / "y.npz")


def test_no_code_comes_out_of_a_file(tmp_path: Path) -> None:
    def written(tree: np.ndarray[Any, Any]) -> Path:
        archive = io.BytesIO()
        np.savez(archive, tree=tree)
        (tmp_path / "x.npz").write_bytes(hashlib.sha256(archive.getvalue()).digest() + archive.getvalue())
        return tmp_path / "x.npz"

    with pytest.raises(ValueError, match="cannot be read"):
        recall(written(np.array([{"a": 1}], dtype=object)))
    for module, name in (("cli", "main"), ("..os", "system"), ("kept", "Path"), ("nowhere", "X")):
        tree = f'{{"data": ["{module}", "{name}", []]}}'.encode()
        with pytest.raises(ValueError, match="cannot be read"):
            recall(written(np.frombuffer(tree, dtype=np.uint8)))


def test_a_key_tells_settings_apart() -> None:
    assert key(1, Size(), Protocol()) == key(1, Size(), Protocol())
    others = {key(1, Size(), Protocol()), key(2, Size(), Protocol()), key(1, Size(steps=3), Protocol()), key(1, Size())}
    assert len(others) == 4
    with pytest.raises(TypeError, match="object"):
        key(object())


HOLD = "import sys, time; from pathlib import Path; from examples.mtmc.atomic import results, replaced\n" + (
    "with {kind}(Path(sys.argv[1])) as draft:\n print(draft, flush=True); time.sleep(60)"
)


@pytest.mark.parametrize("kind", ["results", "replaced"])
def test_drafts_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out*"
    strangers = [tmp_path / name for name in (".other.abc.part", ".out*.more.abc.part", ".out*.abc", ".outX.abc.part")]
    for stranger in strangers:
        stranger.mkdir()
    command = [sys.executable, "-c", HOLD.format(kind=kind), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        draft = Path(run.stdout.readline().strip())
        sweep(out)
        assert draft.exists(), "of a run that lives"
        run.kill()
    assert draft.exists()
    sweep(out)
    assert not draft.exists() and all(stranger.exists() for stranger in strangers)


def test_a_folder_with_work_alone_is_replaced_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / ".work").mkdir(parents=True)
    (out / ".work" / "seed").write_text("kept")
    with results(out) as draft:
        (draft / "summary.json").write_text("new")
        assert os.listdir(out) == [".work"]
    assert sorted(os.listdir(out)) == [".work", "summary.json"] and (out / ".work" / "seed").read_text() == "kept"
    assert os.listdir(tmp_path) == ["out"]


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyError), replaced(path) as draft:
        draft.write_text("half")
        raise KeyError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]
    with replaced(path) as draft:
        draft.write_text("new")
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["a.txt"]
