"""Which words made an encoder say so: integrated gradients by Captum, on a task whose reasons are known.

    pip install "attnops[attribution]"
    python -m examples.attribution            # half a minute; drawn in out/attribution/attribution.png
    python -m examples.attribution --small    # seconds, not a result

Sentences such as "the soup was not good and the waiter smiled" are called good or bad by one word of feeling, turned
round by "not". A small encoder learns it; Captum's LayerIntegratedGradients (Sundararajan et al. 2017,
arXiv:1703.01365; captum.ai) then gives each word's part in the logit of the class, against a text of unknown words. It
needs no hook of ours: the model is a torch module like any other. Since the reasons are known, the example counts how
often the word of feeling and "not" have the largest parts.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from attnops.seq import Encoder, SequenceClassifier, TransformerConfig
from examples.outputs import add_out, save, write_json

THINGS = ("soup", "room", "film", "waiter", "view", "price", "song", "road")
GOOD, BAD = ("good", "kind", "fine", "lovely"), ("bad", "rude", "dull", "awful")
PLAIN = ("smiled", "waited", "sat there", "came late", "was blue", "stood outside")
UNKNOWN = "?"
WORDS = (
    UNKNOWN,
    "the",
    "was",
    "not",
    "and",
    *THINGS,
    *GOOD,
    *BAD,
    *sorted({w for p in PLAIN for w in p.split()} - {"was"}),
)


@dataclass(frozen=True)
class Sentence:
    """Words, whether they say something good, and the places of the words that decide it."""

    words: list[str]
    good: bool
    reasons: list[int]


def sentence(draws: random.Random) -> Sentence:
    """Two clauses in any order: one that says something of a thing, and one that does not matter."""
    good, turned = draws.random() < 0.5, draws.random() < 0.5
    feeling = draws.choice(GOOD if good else BAD)
    said = ["the", draws.choice(THINGS), "was", *(["not"] if turned else []), feeling]
    idle = ["the", draws.choice(THINGS), *draws.choice(PLAIN).split()]
    words = [*said, "and", *idle] if draws.random() < 0.5 else [*idle, "and", *said]
    reasons = [n for n, word in enumerate(words) if word == "not" or word in GOOD + BAD]
    return Sentence(words, good != turned, reasons)


def encode(sentences: list[Sentence], unknown: float = 0.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """ids `[B, N]`, padded with the unknown word on the right, and a mask `[B, N]`, 1 = real.

    `unknown` is the share of words that do not decide and are replaced by the unknown one.
    """
    draws = random.Random(seed)
    longest = max(len(s.words) for s in sentences)
    ids = torch.zeros(len(sentences), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, each in enumerate(sentences):
        known = [n in each.reasons or draws.random() >= unknown for n in range(len(each.words))]
        ids[row, : len(each.words)] = torch.tensor(
            [WORDS.index(word) if kept else 0 for word, kept in zip(each.words, known, strict=True)]
        )
        mask[row, : len(each.words)] = 1
    return ids, mask


def train(steps: int, dim: int, seed: int) -> SequenceClassifier:
    """A classifier of sentences, 1 = good. It meets unknown words too: a text of them is what parts count from."""
    torch.manual_seed(seed)
    draws = random.Random(seed)
    config = TransformerConfig(
        len(WORDS), dim, layers=2, heads=4, norm="layer", norm_position="post", activation="gelu"
    )
    model = SequenceClassifier(Encoder(config), classes=2)
    torch.nn.init.normal_(model.encoder.embeddings.token.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for step in range(steps):
        sentences = [sentence(draws) for _ in range(64)]
        ids, mask = encode(sentences, 0.3, step)
        good = torch.tensor([int(s.good) for s in sentences])
        ids[:8], good[:8] = 0, torch.arange(8) % 2  # who knows no word of a text cannot tell
        loss = F.cross_entropy(model(ids, mask), good, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def attribute(model: SequenceClassifier, sentences: list[Sentence], steps: int = 64) -> tuple[Tensor, Tensor]:
    """Each word's part in (logit of good − logit of bad), `[B, N]`, and what the parts miss of the whole, `[B]`."""
    from captum.attr import LayerIntegratedGradients

    ids, mask = encode(sentences)

    def margin(ids: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = model(ids, mask)
        return logits[:, 1] - logits[:, 0]

    by_layer = LayerIntegratedGradients(margin, model.encoder.embeddings.token)
    parts, missed = by_layer.attribute(
        ids,
        baselines=torch.zeros_like(ids),
        additional_forward_args=(mask,),
        n_steps=steps,
        return_convergence_delta=True,
    )
    return parts.sum(-1) * mask, missed


def draw(sentences: list[Sentence], parts: Tensor, path: Path) -> None:
    """Each sentence a row of words, red where a word speaks for bad, blue where it speaks for good."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    longest, top = max(len(s.words) for s in sentences), float(parts.abs().max())
    figure, axes = plt.subplots(figsize=(0.95 * longest + 1, 0.5 * len(sentences) + 1), layout="constrained")
    shown = axes.imshow(parts[:, :longest].detach().numpy(), cmap="RdBu", vmin=-top, vmax=top, aspect="auto")
    for row, each in enumerate(sentences):
        for place, word in enumerate(each.words):
            dark = abs(float(parts[row, place])) > 0.6 * top
            axes.text(place, row, word, ha="center", va="center", fontsize=9, color="white" if dark else "black")
    axes.set_yticks(range(len(sentences)), ["good" if s.good else "bad" for s in sentences])
    axes.set_xticks([])
    axes.set_title("each word's part in the logit of good over bad")
    figure.colorbar(shown, ax=axes)
    save(figure, path)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a smaller model and fewer steps")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    add_out(parser, "attribution")
    options = parser.parse_args(arguments)
    try:
        import captum  # noqa: F401
    except ImportError:
        raise SystemExit('error: this example needs captum: pip install "attnops[attribution]"') from None

    model = train(options.steps or (60 if options.small else 400), 32 if options.small else 64, options.seed)
    draws = random.Random(options.seed + 1)
    sentences = [sentence(draws) for _ in range(20 if options.small else 200)]
    with torch.no_grad():
        said = model(*encode(sentences)).argmax(-1).bool()
    right = float((said == torch.tensor([s.good for s in sentences])).float().mean())
    parts, missed = attribute(model, sentences, 16 if options.small else 64)
    found = []
    for each, part in zip(sentences, parts, strict=True):
        largest = part.abs().topk(len(each.reasons)).indices.tolist()
        found.append(set(largest) == set(each.reasons))
    share = sum(found) / len(found)
    shown = sentences[:8]
    for each, part in zip(shown, parts, strict=False):
        words = " ".join(f"{word}({value:+.1f})" for word, value in zip(each.words, part.tolist(), strict=False))
        print(f"{'good' if each.good else 'bad ':4}  {words}")
    print(f"said rightly: {right:.3f}; the words that decide have the largest parts: {share:.3f}")
    print(f"parts and whole differ by at most {float(missed.abs().max()):.3f} (more steps, less)")
    figures = {"right": right, "found": share, "missed": float(missed.abs().max())}
    write_json(options.out / "attribution.json", figures)
    draw(shown, parts[:8], options.out / "attribution.png")
    print(f"drawn in {options.out / 'attribution.png'}")
    return figures


if __name__ == "__main__":
    main()
