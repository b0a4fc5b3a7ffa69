"""Translation: an encoder-decoder learns sentence pairs, and writes by beam search what it never saw.

    python -m examples.translate                                  # a small made-up Spanish: a minute or two
    python -m examples.translate --small                          # seconds
    python -m examples.translate --pairs spa.txt --steps 1500     # lines "English TAB Spanish", also inside of a zip
    python -m examples.translate --source train.en.gz --target train.de.gz --limit 8000

Without files the pairs come from a grammar: "she sees the old houses" is "ella ve las casas viejas". Adjectives change
sides, and articles and adjectives agree with the noun, so words cannot be replaced one by one. Sentences kept aside
are translated greedily and with beams, and scored by sacrebleu (chrF and BLEU; pip install sacrebleu) and by how many
are right to the letter.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import random
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attnops.seq import EncoderDecoder, Tokenizer, TransformerConfig, generate, sequence_loss
from examples.outputs import add_out, write_json, write_text

Pair = tuple[str, str]

SUBJECTS = {"I": "yo", "you": "tú", "she": "ella", "we": "nosotros", "they": "ellos"}
VERBS = {  # English (plain, with s), Spanish for each subject
    ("see", "sees"): "veo ves ve vemos ven",
    ("buy", "buys"): "compro compras compra compramos compran",
    ("want", "wants"): "quiero quieres quiere queremos quieren",
    ("paint", "paints"): "pinto pintas pinta pintamos pintan",
    ("sell", "sells"): "vendo vendes vende vendemos venden",
    ("draw", "draws"): "dibujo dibujas dibuja dibujamos dibujan",
}
NOUNS = {  # English: Spanish, gender
    "house": ("casa", "a"),
    "book": ("libro", "o"),
    "table": ("mesa", "a"),
    "dog": ("perro", "o"),
    "flower": ("planta", "a"),
    "boat": ("barco", "o"),
    "chair": ("silla", "a"),
    "hat": ("sombrero", "o"),
}
ADJECTIVES = {"old": "viej", "new": "nuev", "red": "roj", "white": "blanc", "small": "pequeñ", "cheap": "barat"}


def made_up_pairs() -> list[Pair]:
    """Every sentence of the grammar with its translation."""
    pairs = []
    choices = itertools.product(SUBJECTS.items(), VERBS.items(), NOUNS.items(), [None, *ADJECTIVES.items()], (1, 2))
    for (subject, sujeto), ((plain, with_s), forms), (noun, (nombre, gender)), adjective, count in choices:
        person = list(SUBJECTS).index(subject)
        plural = "s" if count == 2 else ""
        article = {"a": "la", "o": "el", "as": "las", "os": "los"}[gender + plural]
        old, viejo = ("", "") if adjective is None else (f" {adjective[0]}", f" {adjective[1]}{gender}{plural}")
        verb = with_s if subject == "she" else plain
        english = f"{subject} {verb} the{old} {noun}{plural}"
        pairs.append((english, f"{sujeto} {forms.split()[person]} {article} {nombre}{plural}{viejo}"))
    return pairs


def read_pairs(arguments: argparse.Namespace) -> list[Pair]:
    """The pairs of the files that were named, or made-up ones; shuffled, `--limit` of them."""
    if arguments.pairs is not None:
        lines = read_text(arguments.pairs).splitlines()
        pairs = [(parts[0], parts[1]) for line in lines if len(parts := line.split("\t")) >= 2]
    elif arguments.source is not None:
        sides = [read_text(file).splitlines() for file in (arguments.source, arguments.target)]
        if len(sides[0]) != len(sides[1]):
            raise SystemExit(
                f"error: {arguments.source} has {len(sides[0])} lines and {arguments.target} {len(sides[1])}"
            )
        pairs = list(zip(*sides, strict=True))
    else:
        pairs = made_up_pairs()
    if len(pairs[: arguments.limit]) < 20:
        raise SystemExit(f"error: {len(pairs[: arguments.limit])} pairs are too few; there must be 20 or more")
    pairs = pairs[: arguments.limit]  # before shuffling: files often have the short ones first
    random.Random(arguments.seed).shuffle(pairs)
    return pairs


def read_text(file: Path) -> str:
    """A text file, gzipped or not, or the largest .txt of a zip."""
    try:
        if file.suffix == ".zip":
            with zipfile.ZipFile(file) as archive:
                texts = [info for info in archive.infolist() if info.filename.endswith(".txt")]
                if not texts:
                    raise ValueError("it holds no .txt")
                return archive.read(max(texts, key=lambda info: info.file_size)).decode("utf-8")
        data = file.read_bytes()
        return (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise SystemExit(f"error: {file} cannot be read: {error}") from None


def batches(pairs: list[Pair], tokenizer: Tokenizer, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(source ids, their mask, target ids with <bos> and <eos>), for ever; pairs of like length share a batch."""
    rng = random.Random(seed)
    while True:
        order = sorted(pairs, key=lambda pair: len(pair[0]) + rng.random())
        together = [order[start : start + size] for start in range(0, len(order), size)]
        rng.shuffle(together)
        for batch in together:
            source, mask = tokenizer.batch([english for english, _ in batch])
            target, _ = tokenizer.batch([other for _, other in batch], specials=True)
            yield source, mask, target


def train(model: EncoderDecoder, data: Iterator[tuple[Tensor, Tensor, Tensor]], steps: int, pad: int) -> list[float]:
    """Teacher forcing with label smoothing, Adam with a warm-up, as in 2017."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    warm_up = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, max(0.02, 1 - step / steps))
    )
    losses = []
    for step, (source, mask, target) in zip(range(1, steps + 1), data, strict=False):
        logits = model(source, target[:, :-1], attention_mask=mask)
        labels = target[:, 1:].masked_fill(target[:, 1:] == pad, -100)
        loss = sequence_loss(logits, labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step == 1 or step % max(1, steps // 10) == 0:
            print(f"step {step:5}  loss {loss.item():.3f}")
    return losses


def translate(
    model: EncoderDecoder, tokenizer: Tokenizer, texts: list[str], num_beams: int, longest: int = 40
) -> list[str]:
    """Texts in the other language, greedily for one beam."""
    bos, eos, pad = tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id
    assert bos is not None and eos is not None and pad is not None
    written = []
    for start in range(0, len(texts), 50):
        source, mask = tokenizer.batch(texts[start : start + 50])
        ids = generate(
            model, source, longest, attention_mask=mask, num_beams=num_beams, eos_id=eos, start_id=bos, pad_id=pad
        )
        written += [tokenizer.decode(row) for row in ids]
    return written


def scores(written: list[str], right: list[str]) -> dict[str, float]:
    """chrF and BLEU of sacrebleu where it is installed, and the share that is right to the letter."""
    exact = sum(map(str.__eq__, written, right)) / max(1, len(right))
    try:
        import sacrebleu
    except ImportError:
        return {"exact": exact}
    chrf, bleu = sacrebleu.corpus_chrf(written, [right]).score, sacrebleu.corpus_bleu(written, [right]).score
    return {"exact": exact, "chrF": chrf, "BLEU": bleu}


@dataclass
class Outcome:
    losses: list[float]
    scores: dict[str, dict[str, float]]  # by "greedy" and "beams"
    model: EncoderDecoder
    tokenizer: Tokenizer


def main(arguments: list[str] | None = None) -> Outcome:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--pairs", type=Path, help='a file of lines "source TAB target", also gzipped or in a zip')
    parser.add_argument("--source", type=Path, help="a file of sentences, with --target")
    parser.add_argument("--target", type=Path, help="their translations, line by line")
    parser.add_argument("--limit", type=int, default=8000, help="read so many pairs")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=3000, help="subwords, for files")
    parser.add_argument("--seed", type=int, default=0)
    add_out(parser, "translate")
    chosen = parser.parse_args(arguments)
    if (chosen.source is None) != (chosen.target is None):
        parser.error("--source and --target go together")
    made_up = chosen.pairs is None and chosen.source is None
    steps = chosen.steps or (12 if chosen.small else 400)

    pairs = read_pairs(chosen)
    aside = min(200, len(pairs) // 10)
    kept, training = pairs[:aside], pairs[aside:]
    texts = [text for pair in training for text in pair]
    tokenizer = Tokenizer.words(texts) if made_up else Tokenizer.subwords(texts, chosen.vocabulary)
    assert tokenizer.pad_id is not None
    torch.manual_seed(chosen.seed)
    dim = 64 if made_up else 192
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size,
        dim=dim,
        layers=2,
        heads=4,
        norm="layer",
        activation="relu",
        position="sinusoidal",
        embedding_scale=dim**0.5,  # as in 2017: beside the sines, small vectors would not be heard
        dropout=0.0 if made_up else 0.1,
    )
    model = EncoderDecoder(config)
    print(f"{len(training)} pairs to learn, {len(kept)} kept aside; {tokenizer.vocab_size} tokens")
    losses = train(model, batches(training, tokenizer, 64, chosen.seed), steps, tokenizer.pad_id)

    model.eval()
    if chosen.small:
        kept = kept[:8]
    results = {}
    for name, beams in (("greedy", 1), (f"{chosen.beams} beams", chosen.beams)):
        written = translate(model, tokenizer, [source for source, _ in kept], beams)
        result = results["beams" if beams > 1 else "greedy"] = scores(written, [target for _, target in kept])
        print(f"{name:8}", "  ".join(f"{key} {value:.3f}" for key, value in result.items()))
    if "chrF" not in result:
        print("chrF and BLEU need sacrebleu: pip install sacrebleu")
    for (source, target), text in list(zip(kept, written, strict=True))[:6]:
        print(f"  {source}  →  {text}" + ("" if text == target else f"   (right: {target})"))
    write_json(chosen.out / "scores.json", {"steps": steps, "pairs": len(training), "scores": results})
    rows = (f"{source}\t{text}\t{target}" for (source, target), text in zip(kept, written, strict=True))
    write_text(chosen.out / "translations.tsv", "source\twritten\tright\n" + "\n".join(rows) + "\n")
    return Outcome(losses, results, model, tokenizer)


if __name__ == "__main__":
    main()
