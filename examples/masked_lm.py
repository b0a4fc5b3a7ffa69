"""Masked tokens: an encoder learns to fill gaps, and what seeing both sides is worth.

    python -m examples.masked_lm                          # palindromes, made here: half a minute
    python -m examples.masked_lm --small                  # seconds
    python -m examples.masked_lm --text shakespeare.txt   # on your own text, by characters

The same encoder is trained twice as BERT is (15% of the tokens chosen; of those 80% masked, 10% replaced, 10% left):
once with every pair allowed, once with `pattern=Causal()`, so that a token sees only what stands before it. In a
palindrome a gap is known from its mirror: from both sides every gap can be filled, from the left only those of the
second half.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attnops import Causal, Pattern
from attnops.seq import Encoder, MaskedLanguageModel, Tokenizer, TransformerConfig, mask_tokens, masked_lm_loss
from examples.outputs import add_out, write_json
from examples.texts import read, require_characters

LENGTH = 11  # of a palindrome; odd


def palindromes(count: int, rng: random.Random) -> list[str]:
    """Random ones; the letter in the middle has no mirror, so it is always a dot."""
    halves = ("".join(rng.choices("abcdefghijklmnop", k=LENGTH // 2)) for _ in range(count))
    return [f"{half}.{half[::-1]}" for half in halves]


def windows(text: str, length: int, count: int, rng: random.Random) -> list[str]:
    """Random pieces of a text."""
    starts = (rng.randrange(max(1, len(text) - length)) for _ in range(count))
    return [text[start : start + length] for start in starts]


@dataclass
class Run:
    losses: list[float]
    right: float  # share of gaps filled rightly, in texts kept aside
    model: MaskedLanguageModel


def train(
    tokenizer: Tokenizer,
    texts: list[str],
    kept: list[str],
    pattern: Pattern | None,
    position: str,
    steps: int,
    seed: int,
) -> Run:
    """An encoder with a head for masked tokens, trained on random batches of `texts` and tried on those kept."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size,
        dim=64,
        layers=2,
        heads=4,
        activation="gelu",
        position=position,
        max_length=max(map(len, texts + kept)),
        pattern=pattern,
    )
    model = MaskedLanguageModel(Encoder(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=max(steps, 2))
    draws, losses = torch.Generator().manual_seed(seed), []
    ids, _ = tokenizer.batch(texts)
    for _ in range(steps):
        batch = ids[torch.randint(len(ids), (64,), generator=draws)]
        inputs, labels = gaps(tokenizer, batch, draws)
        loss = masked_lm_loss(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return Run(losses, accuracy(model.eval(), tokenizer, kept), model)


def mask(tokenizer: Tokenizer) -> int:
    """The id that stands in a gap."""
    assert tokenizer.mask_id is not None
    return tokenizer.mask_id


def gaps(tokenizer: Tokenizer, ids: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs with gaps, and labels where they are."""
    return mask_tokens(ids, mask(tokenizer), tokenizer.vocab_size, generator=draws)


@torch.no_grad()
def accuracy(model: MaskedLanguageModel, tokenizer: Tokenizer, texts: list[str]) -> float:
    """The share of gaps that the likeliest token fills rightly, one gap a text, each place in turn."""
    ids, _ = tokenizer.batch(texts)
    place = torch.arange(len(ids)) % ids.shape[1]
    rows = torch.arange(len(ids))
    inputs = ids.clone()
    inputs[rows, place] = mask(tokenizer)
    return float((model(inputs)[rows, place].argmax(-1) == ids[rows, place]).float().mean())


@torch.no_grad()
def fill(model: MaskedLanguageModel, tokenizer: Tokenizer, text: str, places: list[int]) -> str:
    """The text with the likeliest characters in the places that are masked."""
    ids, _ = tokenizer.batch([text])
    ids[0, places] = mask(tokenizer)
    ids[0, places] = model(ids)[0, places].argmax(-1)
    return tokenizer.decode(ids[0])


def main(arguments: list[str] | None = None) -> dict[str, Run]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--text", type=Path, help="a text file of your own")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    add_out(parser, "masked_lm")
    chosen = parser.parse_args(arguments)
    steps, rng = chosen.steps or (10 if chosen.small else 300), random.Random(chosen.seed)
    if chosen.text is None:
        position = "learned"  # a mirror stands where it stands
        texts, kept = palindromes(200 if chosen.small else 20000, rng), palindromes(300, rng)
        tokenizer = Tokenizer.characters(texts)
    else:
        whole = read(chosen.text)
        require_characters(whole, 1000)  # a tenth of it is kept, and cut into windows of 64
        tokenizer, cut = Tokenizer.characters(whole), len(whole) * 9 // 10
        position = "rotary"  # what stands beside a gap tells most
        many, few = (200, 64) if chosen.small else (5000, 640)
        texts, kept = windows(whole[:cut], 64, many, rng), windows(whole[cut:], 64, few, rng)
    runs = {}
    print(f"{'a token sees':14}{'loss':>8}{'gaps filled rightly':>22}")
    for name, pattern in (("both sides", None), ("the left", Causal())):
        run = runs[name] = train(tokenizer, texts, kept, pattern, position, steps, chosen.seed)
        late = run.losses[-max(1, steps // 10) :]
        print(f"{name:14}{sum(late) / len(late):8.3f}{run.right:22.3f}")
    places = [1, 4, 7]
    print("gapped        ", "".join("_" if i in places else letter for i, letter in enumerate(kept[0])))
    for name, run in runs.items():
        print(f"{name:14} {fill(run.model, tokenizer, kept[0], places)}")
    figures = {name: {"right": run.right, "losses": run.losses} for name, run in runs.items()}
    write_json(chosen.out / "masked_lm.json", figures)
    return runs


if __name__ == "__main__":
    main()
