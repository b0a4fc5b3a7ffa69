"""The translation example: its grammar, its files, and that a small run learns and reports."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from examples import translate


def test_the_grammar_agrees() -> None:
    pairs = dict(translate.made_up_pairs())
    assert len(pairs) == 5 * 6 * 8 * 7 * 2
    assert pairs["she sees the old houses"] == "ella ve las casas viejas"
    assert pairs["we sell the red boat"] == "nosotros vendemos el barco rojo"
    assert pairs["they paint the hats"] == "ellos pintan los sombreros"


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = translate.main(["--small", "--out", str(tmp_path)])
    assert outcome.losses[-1] < outcome.losses[0] - 0.3
    assert outcome.scores.keys() == {"greedy", "beams"}
    assert all(0 <= score["exact"] <= 1 for score in outcome.scores.values())
    assert json.loads((tmp_path / "scores.json").read_text())["scores"] == outcome.scores
    rows = [row.split("\t") for row in (tmp_path / "translations.tsv").read_text().splitlines()]
    assert rows[0] == ["source", "written", "right"] and len(rows) == 9
    pairs = dict(translate.made_up_pairs())
    assert all(pairs[source] == right for source, _, right in rows[1:])
    printed = capsys.readouterr().out
    assert "3160 pairs to learn, 200 kept aside" in printed
    assert ("chrF" in outcome.scores["beams"]) != ("pip install sacrebleu" in printed)


def test_scores_without_and_with_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ["el barco rojo es viejo", "la casa"]
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu", None)
    assert translate.scores(["el barco rojo es viejo", "las casas"], right) == {"exact": 0.5}
    monkeypatch.undo()
    pytest.importorskip("sacrebleu", reason="the extra translate is not installed")
    best = translate.scores(right, right)
    assert best == {"exact": 1.0, "chrF": pytest.approx(100), "BLEU": pytest.approx(100)}
    assert translate.scores(["la casa", "la casa"], right)["chrF"] < 60


@pytest.mark.parametrize("kind", ["pairs", "zip", "two files"])
def test_pairs_from_files(kind: str, tmp_path: Path) -> None:
    lines = [f"sentence {i}\tfrase {i}\tby someone" for i in range(40)]
    if kind == "pairs":
        (tmp_path / "pairs.txt").write_text("\n".join(lines))
        named = ["--pairs", str(tmp_path / "pairs.txt")]
    elif kind == "zip":
        with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
            archive.writestr("about.txt", "about")
            archive.writestr("deep/pairs.txt", "\n".join(lines))
        named = ["--pairs", str(tmp_path / "pairs.zip")]
    else:
        named = []
        for side, column in (("source", 0), ("target", 1)):
            text = "\n".join(line.split("\t")[column] for line in lines)
            (tmp_path / f"{side}.gz").write_bytes(gzip.compress(text.encode()))
            named += [f"--{side}", str(tmp_path / f"{side}.gz")]
    outcome = translate.main(["--small", "--steps", "2", "--vocabulary", "280", "--out", str(tmp_path), *named])
    assert outcome.tokenizer.vocab_size <= 280
    assert outcome.tokenizer.decode(outcome.tokenizer.encode("frase 7")) == "frase 7"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (["--source", "a", "--target", "b"], "error: a has 2 lines and b 1"),
        (["--pairs", "none"], "error: none cannot be read"),
        (["--pairs", "cut.gz"], "error: cut.gz cannot be read"),
        (["--pairs", "no.zip"], "error: no.zip cannot be read"),
        (["--pairs", "empty.zip"], "error: empty.zip cannot be read: it holds no .txt"),
        (["--pairs", "bytes"], "error: bytes cannot be read"),
        (["--pairs", "a"], "error: 0 pairs are too few"),
    ],
    ids=lambda x: "" if isinstance(x, str) else x[-1],
)
def test_files_that_cannot_be_learnt_from(
    named: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("one\ntwo")
    Path("b").write_text("eins")
    Path("cut.gz").write_bytes(gzip.compress(b"one\teins\n" * 100)[:-12])
    Path("no.zip").write_bytes(b"no zip")
    Path("bytes").write_bytes(b"\xff\xfe")
    zipfile.ZipFile("empty.zip", "w").close()
    with pytest.raises(SystemExit) as stop:
        translate.main(named)
    assert str(stop.value).startswith(message)


def test_a_source_without_a_target_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        translate.main(["--source", "a", "--out", str(tmp_path)])
    assert "--source and --target go together" in capsys.readouterr().err
