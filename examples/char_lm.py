"""A character model: train, watch, sample, stop at any moment, go on as if nothing had happened.

    python -m examples.char_lm                                  # its own small text: under a minute
    python -m examples.char_lm --text input.txt.gz --steps 2000 # tiny Shakespeare: validation loss below 1.9 on a CPU

The run is kept in out/char_lm.pt, saved every `--every` steps under another name and then renamed, so a kill at any
moment leaves a whole file. A step's batch and dropout are drawn from (seed, step) alone: started again, the run goes on
from its last save and meets the very losses that it would have met.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnops.seq import Decoder, Tokenizer, TransformerConfig, causal_lm_loss, generate
from examples.texts import read, require_characters

TEXT = """Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date;
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd;
And every fair from fair sometime declines,
By chance or nature's changing course untrimm'd;
But thy eternal summer shall not fade,
Nor lose possession of that fair thou ow'st;
Nor shall death brag thou wander'st in his shade,
When in eternal lines to time thou grow'st:
So long as men can breathe or eyes can see,
So long lives this, and this gives life to thee.
"""


@dataclass
class Run:
    """A model in training: all that a file must hold to go on."""

    model: Decoder
    optimizer: torch.optim.Optimizer
    settings: dict[str, Any]  # what must be the same to go on
    losses: list[float] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write all of it to another name, then rename: the file is whole, whenever the process dies."""
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "settings": self.settings,
            "losses": self.losses,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        torch.save(state, part)
        part.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a file.

        Raises:
            ValueError: a run of other settings.
        """
        state = torch.load(path, weights_only=True)
        for name, mine in self.settings.items():
            theirs = state["settings"].get(name)
            if theirs != mine:
                raise ValueError(f"{path} is a run with {name} = {theirs!r}, not {mine!r}; name another file by --out")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.losses = state["losses"]


def batch(ids: Tensor, rows: int, length: int, seed: int) -> Tensor:
    """`rows` windows of `length` + 1 tokens, the same for the same seed."""
    draws = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(ids) - length, (rows,), generator=draws)
    return torch.stack([ids[start : start + length + 1] for start in starts])


def step(run: Run, ids: Tensor, rows: int, length: int, seed: int) -> None:
    """One step of training, a function of the run so far, the text and the seed."""
    number = len(run.losses)
    torch.manual_seed(seed + number)  # of dropout
    window = batch(ids, rows, length, seed + number)
    loss = causal_lm_loss(run.model(window), window)
    run.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    run.optimizer.step()
    run.losses.append(loss.item())


@torch.no_grad()
def validate(model: Decoder, ids: Tensor, rows: int, length: int) -> float:
    """The loss on windows of a text that was not trained on, the same windows each time."""
    length = min(length, len(ids) - 1)
    model.eval()
    losses = [causal_lm_loss(model(window), window) for window in (batch(ids, rows, length, s) for s in range(4))]
    model.train()
    return float(torch.stack(losses).mean())


def main(arguments: list[str] | None = None) -> Run:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a text file, zipped or not")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=50, help="steps between two saves")
    parser.add_argument("--out", type=Path, default=Path("out/char_lm.pt"), help="where the run is kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rows", type=int, default=12)
    options = parser.parse_args(arguments)

    text = TEXT if options.text is None else read(options.text)
    require_characters(text, int(options.length / 0.9) + 20)  # a tenth of it is held out
    tokenizer = Tokenizer.characters(text)
    ids = torch.tensor(tokenizer.encode(text))
    trained, held_out = ids[: int(0.9 * len(ids))], ids[int(0.9 * len(ids)) :]
    torch.manual_seed(options.seed)
    model = Decoder(
        TransformerConfig(tokenizer.vocab_size, options.dim, options.layers, heads=4, max_length=1024, dropout=0.1)
    )
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    same = {name: getattr(options, name) for name in ("seed", "dim", "layers", "length", "rows")}
    run = Run(model, torch.optim.AdamW(model.parameters(), lr=1e-3), {**same, "text_digest": digest})
    if options.out.exists():
        run.load(options.out)
        print(f"going on from step {len(run.losses)} of {options.out}")
    begun, before = time.perf_counter(), len(run.losses)
    while len(run.losses) < options.steps:
        step(run, trained, options.rows, options.length, options.seed)
        if len(run.losses) % options.every == 0 or len(run.losses) == options.steps:
            run.save(options.out)
            speed = (len(run.losses) - before) * options.rows * options.length / (time.perf_counter() - begun)
            loss, kept = run.losses[-1], validate(model, held_out, options.rows, options.length)
            print(f"step {len(run.losses):5}  loss {loss:.3f}  validation {kept:.3f}  {speed:.0f} characters/s")
    start = torch.tensor([tokenizer.encode(text[:1])])
    written = generate(model, start, 200, temperature=0.8, top_k=20, seed=options.seed)
    print("\n" + tokenizer.decode(written[0].tolist()))
    return run


if __name__ == "__main__":
    main()
