"""Texts of the user's own: what cannot be read, or is too short, ends the run in a sentence."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from examples import char_lm, masked_lm, moe_lm
from examples.texts import read, require_characters


def test_plain_and_zipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("grüße", encoding="utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("grüße".encode()))
    assert read(tmp_path / "a.txt") == read(tmp_path / "a.txt.gz") == "grüße"
    require_characters("abc", 3)


@pytest.mark.parametrize(
    "name, held, reason",
    [
        ("none.txt", None, "No such file"),
        ("odd.txt", b"\xff\xfe\x00", "no text in UTF-8"),
        ("cut.gz", gzip.compress(b"a" * 999)[:-9], "no text in UTF-8"),
        ("no.gz", b"plain", "cannot be read"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, name: str, held: bytes | None, reason: str) -> None:
    if held is not None:
        (tmp_path / name).write_bytes(held)
    with pytest.raises(SystemExit, match=rf"error: .*{name} cannot be read: .*{reason}|cannot be read"):
        read(tmp_path / name)


@pytest.mark.parametrize("main", [char_lm.main, moe_lm.main, masked_lm.main])
def test_a_text_that_is_too_short(main: Callable[..., object], tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("to be")
    out = tmp_path / ("kept.pt" if main is char_lm.main else "kept")
    with pytest.raises(SystemExit, match="the text has 5 characters; it must have"):
        main(["--text", str(tmp_path / "short.txt"), "--out", str(out)])
