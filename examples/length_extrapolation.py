"""Trained at length L, read at L, 2L, 4L, 8L: which positions carry further than they were trained.

    python -m examples.length_extrapolation                      # Python's manual: some minutes on a core
    python -m examples.length_extrapolation --text input.txt.gz --steps 1500 --length 64
    python -m examples.length_extrapolation --small              # seconds, not a result

One small character model is trained five times, with the same weights to begin with and the same batches: sinusoidal,
learned, rotary, ALiBi, and no positions at all. The trained rotary model is then read with its frequencies stretched:
position interpolation, NTK-aware, dynamic NTK, YaRN. Printed and drawn is the perplexity of text that was not trained
on, every window scored on its last L / 2 characters, so that all lengths predict the same characters with the same
context or more.

What is published: ALiBi stays flat (Press et al. 2022, arXiv:2108.12409), sinusoidal and plain rotary positions grow,
a learned table cannot go on at all, and the stretched ones lie between (Chen et al. 2023, Peng et al. 2023). The last
lines say whether it came out so.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from attnops import RotaryScaling
from attnops.seq import Decoder, Tokenizer, TransformerConfig, causal_lm_loss
from examples.char_lm import batch
from examples.outputs import add_out, save, write_json
from examples.texts import read

TRAINED = ("sinusoidal", "learned", "rotary", "alibi", "none")
FACTORS = (1, 2, 4, 8)
FLAT = 1.1  # at 8L a perplexity within this of its own at L is called flat


def manual() -> str:
    """What Python tells of itself: a few hundred thousand characters that every installation has."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def stretched(length: int, factor: int) -> dict[str, RotaryScaling]:
    """The laws that a trained rotary model is read with at `factor` times the length of its training."""
    return {
        "rotary + PI": RotaryScaling.linear(factor),
        "rotary + NTK": RotaryScaling.ntk(factor),
        "rotary + dynamic NTK": RotaryScaling.dynamic_ntk(factor, original_length=length),
        "rotary + YaRN": RotaryScaling.yarn(factor, original_length=length),
    }


def train(config: TransformerConfig, ids: Tensor, steps: int, rows: int, length: int, seed: int) -> Decoder:
    """A model trained on windows of `length` characters."""
    torch.manual_seed(seed)
    model = Decoder(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for step in range(steps):
        window = batch(ids, rows, length - 1, seed + step)
        loss = causal_lm_loss(model(window), window)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % max(1, steps // 4) == 0:
            print(f"  {config.position}: step {step + 1} of {steps}, loss {loss.item():.3f}", flush=True)
    return model.eval()


@torch.no_grad()
def score(model: Decoder, ids: Tensor, length: int, scored: int, longest: int, windows: int = 24) -> float:
    """Perplexity of the last `scored` characters of windows of `length`; they end where all lengths' windows end."""
    total = 0.0
    for end in torch.linspace(longest, len(ids), windows).long().tolist():
        window = ids[end - length : end].unsqueeze(0)
        log_p = model(window)[0, -scored - 1 : -1].log_softmax(-1)
        total -= float(log_p.gather(-1, window[0, -scored:, None]).mean())
    return math.exp(total / windows)


def measure(options: argparse.Namespace) -> dict[str, dict[int, float | None]]:
    """Perplexity by position scheme and length in units of L; None where the scheme has no position so far."""
    text = read(options.text) if options.text else manual()
    tokenizer = Tokenizer.characters(text)
    ids = torch.tensor(tokenizer.encode(text))
    longest, length = FACTORS[-1] * options.length, options.length
    cut = min(int(0.8 * len(ids)), len(ids) - longest)
    if cut <= length:
        raise SystemExit(f"error: the text has {len(ids)} characters; it must have more than {longest + length}")
    trained, held_out = ids[:cut], ids[cut:]
    table: dict[str, dict[int, float | None]] = {}
    plain = TransformerConfig(tokenizer.vocab_size, options.dim, options.layers, heads=4, max_length=length)

    def curve(model: Decoder, reach: int = FACTORS[-1]) -> dict[int, float | None]:
        return {f: score(model, held_out, f * length, length // 2, longest) if f <= reach else None for f in FACTORS}

    for position in TRAINED:
        # As in 2017: beside sines of size 1, vectors of a token as small as they begin would not be heard.
        scale = options.dim**0.5 if position == "sinusoidal" else None
        config = replace(plain, position=position, embedding_scale=scale)
        model = train(config, trained, options.steps, options.rows, length, options.seed)
        # A learned table ends at L: what lies past it is an error that says so.
        table[position] = curve(model, reach=1 if position == "learned" else FACTORS[-1])
        if position == "rotary":
            for name in stretched(length, 1):
                table[name] = {}
                for factor in FACTORS:
                    other = Decoder(replace(config, rotary_scaling=stretched(length, factor)[name])).eval()
                    other.load_state_dict(model.state_dict())
                    table[name][factor] = score(other, held_out, factor * length, length // 2, longest)
    return table


def verdicts(table: dict[str, dict[int, float | None]]) -> list[str]:
    """What is published, and whether it came out."""

    def growth(name: str) -> float:
        first, last = table[name][1], table[name][FACTORS[-1]]
        assert first is not None and last is not None
        return last / first

    lines = []
    for name, flat in (("alibi", True), ("sinusoidal", False), ("rotary", False)):
        came = (growth(name) <= FLAT) == flat
        published = "stays flat" if flat else "does not stay flat"
        verdict = "as published" if came else "NOT as published"
        lines.append(f"{name}: published, it {published}; here x{growth(name):.2f} at 8L, {verdict}")
    best = min((name for name in table if name.startswith("rotary +")), key=growth)
    lines.append(f"of the stretched rotary models {best} grows least: x{growth(best):.2f} at 8L")
    return lines


def draw(table: dict[str, dict[int, float | None]], length: int, path: Path) -> None:
    """Perplexity by length, a line a scheme."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    for name, row in table.items():
        known = {f: value for f, value in row.items() if value is not None}
        line = "--" if name.startswith("rotary +") else "-"
        axes.plot([f * length for f in known], list(known.values()), line, marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([f * length for f in FACTORS], [f"{f}L = {f * length}" for f in FACTORS])
    axes.set(xlabel="length read", ylabel="perplexity a character", title=f"trained at L = {length}")
    axes.legend(fontsize="small")
    save(figure, path)


def main(arguments: list[str] | None = None) -> dict[str, dict[int, float | None]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a smaller model and fewer steps")
    parser.add_argument("--text", type=Path, help="a text file, zipped or not")
    parser.add_argument("--length", type=int, default=None, help="L, in characters")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--dim", type=int, default=None)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    add_out(parser, "length_extrapolation")
    options = parser.parse_args(arguments)
    options.length = options.length or (8 if options.small else 32)
    options.steps = options.steps or (20 if options.small else 400)
    options.dim = options.dim or (32 if options.small else 96)

    table = measure(options)
    print(f"perplexity a character, trained at L = {options.length}")
    print(f"{'':22}" + "".join(f"{f'{f}L':>9}" for f in FACTORS))
    for name, row in table.items():
        print(f"{name:22}" + "".join(f"{'error':>9}" if v is None else f"{v:9.2f}" for v in row.values()))
    print(*verdicts(table), sep="\n")
    kept = {"length": options.length, "steps": options.steps, "perplexity": table}
    write_json(options.out / "perplexity.json", kept)
    try:
        draw(table, options.length, options.out / "perplexity.png")
        print(f"drawn in {options.out / 'perplexity.png'}")
    except ImportError:
        print("no picture: matplotlib is not installed")
    return table


if __name__ == "__main__":
    main()
