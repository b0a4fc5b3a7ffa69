"""A needle in a haystack: is the one thing that was asked for still found when the text grows past its training?

    python -m examples.needle            # a minute on a core; drawn in out/needle/needle.png
    python -m examples.needle --small    # seconds, not a result

A text is pairs of a name and a value, in any order, and ends with one name again: the model shall say its value. It is
trained on texts of up to L tokens without positions (the order of pairs says nothing, and NoPE layers are what
attention temperature is for), and read at L, 2L, 4L, 8L. What grows with length is the haystack: a softmax over more
keys flattens, its entropy grows like log N, and the needle's share falls. Attention temperature multiplies the query by

    1 + scale · log(1 + ⌊(p + 1) / floor⌋),  floor = L + 2

(Llama 4; Nakanishi 2025, arXiv:2501.19399), which is 1 within the training length, so the very same trained weights are
read with it and without. Printed and drawn: how often the value is right, the entropy of the last token's attention in
the head that looks at the needle most, and how much that head gives to the needle.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import attnops
from attnops import Coords
from attnops.seq import AttentionTemperature, Decoder, TransformerConfig
from examples.outputs import add_out, save, write_json

FACTORS = (1, 2, 4, 8)
VALUES, ASKED = 16, 8  # how many values there are, and how many needles a text of the training asks for


@dataclass(frozen=True)
class Found:
    """Of one length: the share of right values, and the entropy (nats) and the needle's share of the best head."""

    right: float
    entropy: float
    share: float


def haystack(rows: int, pairs: int, names: int, asked: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Texts `[rows, 2·pairs + asked]` that end with names, their values `[rows, asked]`, and where these stand."""
    draws = torch.Generator().manual_seed(seed)
    name = torch.rand(rows, names, generator=draws).argsort(-1)[:, :pairs] + VALUES
    value = torch.randint(0, VALUES, (rows, pairs), generator=draws)
    which = torch.randint(0, pairs, (rows, asked), generator=draws)
    ids = torch.cat((torch.stack((name, value), -1).flatten(1), name.gather(1, which)), 1)
    return ids, value.gather(1, which), 2 * which + 1


def config(names: int, dim: int, temperature: AttentionTemperature | None = None) -> TransformerConfig:
    """Two layers: the first has a window of two tokens, so that a value knows its name; the second looks everywhere."""
    return TransformerConfig(
        VALUES + names, dim, layers=2, heads=2, position=["rotary", "none"], temperature=[None, temperature],
        pattern=[attnops.SlidingWindow(1), None], tie_embeddings=False,
    )  # fmt: skip


def train(length: int, names: int, dim: int, steps: int, rows: int, seed: int) -> Decoder:
    """A model that finds needles in texts of up to `length` tokens."""
    torch.manual_seed(seed)
    model = Decoder(config(names, dim))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for step in range(steps):
        pairs = (length - ASKED) // 2 - step % 4
        ids, value, _ = haystack(rows, pairs, names, ASKED, seed + step)
        loss = F.cross_entropy(model(ids)[:, -ASKED:, :VALUES].flatten(0, 1), value.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % max(1, steps // 5) == 0:
            print(f"  step {step + 1} of {steps}: loss {loss.item():.3f}", flush=True)
    return model.eval()


@torch.no_grad()
def look(model: Decoder, pairs: int, names: int, rows: int, seed: int) -> Found:
    """Ask for needles in haystacks of `pairs` pairs."""
    ids, value, where = haystack(rows, pairs, names, 1, seed)
    seen: list[tuple[Tensor, Tensor]] = []
    layer = model.blocks[-1].attention
    watch = layer.register_forward_pre_hook(lambda _, given: seen.append((given[0], given[1])))
    try:
        right = model(ids)[:, -1, :VALUES].argmax(-1) == value[:, 0]
    finally:
        watch.remove()
    query, key, values = layer.project(*seen[0])  # [B, H, N, D]
    last = Coords(position=torch.tensor([ids.shape[1] - 1]))
    result = attnops.attend(query[:, :, -1:], key, values, coords=(last, Coords()), return_weights=True)
    assert isinstance(result, attnops.AttentionOutput) and result.weights is not None
    weights = result.weights[:, :, 0]  # [B, H, N]
    share = weights.gather(-1, where[:, None].expand(-1, weights.shape[1], 1)).squeeze(-1).mean(0)
    entropy = torch.special.entr(weights).sum(-1).mean(0)
    best = int(share.argmax())
    return Found(float(right.float().mean()), float(entropy[best]), float(share[best]))


def measure(options: argparse.Namespace) -> dict[str, dict[int, Found]]:
    """By reading, without temperature and with, and by length in units of L."""
    names = FACTORS[-1] * options.length // 2
    model = train(options.length, names, options.dim, options.steps, options.rows, options.seed)
    readings = {"without": model}
    for scale in options.scales:
        law = AttentionTemperature(scale, floor=float(options.length + 2))
        readings[f"with, scale {scale:g}"] = Decoder(config(names, options.dim, law)).eval()
        readings[f"with, scale {scale:g}"].load_state_dict(model.state_dict())
    return {
        name: {f: look(reader, f * options.length // 2, names, options.texts, options.seed + 10**6) for f in FACTORS}
        for name, reader in readings.items()
    }


def draw(table: dict[str, dict[int, Found]], length: int, path: Path) -> None:
    """Three curves over length: right values, entropy, the needle's share."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, every = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    titles = {"right": "values found", "entropy": "entropy of the head, nats", "share": "share of the needle"}
    for axes, (field, title) in zip(every, titles.items(), strict=True):
        for name, row in table.items():
            axes.plot(
                [f * length for f in row], [getattr(found, field) for found in row.values()], marker="o", label=name
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks([f * length for f in FACTORS], [f"{f}L" for f in FACTORS])
        axes.set(title=title, xlabel=f"length, L = {length}")
    every[0].legend(title="temperature")
    save(figure, path)


def main(arguments: list[str] | None = None) -> dict[str, dict[int, Found]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a smaller model and fewer steps")
    parser.add_argument("--length", type=int, help="L, in tokens; two a pair")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--dim", type=int)
    parser.add_argument("--texts", type=int, help="haystacks a length")
    parser.add_argument("--scales", type=float, nargs="+", default=[0.25, 0.5], help="of the temperature")
    parser.add_argument("--seed", type=int, default=0)
    add_out(parser, "needle")
    options = parser.parse_args(arguments)
    options.length = options.length or (16 if options.small else 32)
    options.steps = options.steps or (30 if options.small else 600)
    options.dim = options.dim or (32 if options.small else 64)
    options.texts = options.texts or (32 if options.small else 256)
    if options.length < 16:
        raise SystemExit(f"error: --length is {options.length}; it must be 16 or more")

    table = measure(options)
    print(f"trained on up to L = {options.length} tokens; {options.texts} texts a length")
    print(f"{'temperature':18}" + "".join(f"{f'{f}L':>24}" for f in FACTORS))
    for name, row in table.items():
        cells = (f"{o.right:.3f} H={o.entropy:.2f} p={o.share:.2f}" for o in row.values())
        print(f"{name:18}" + "".join(f"{cell:>24}" for cell in cells))
    print("right values, entropy H (nats) of the head that looks at the needle most, its share p of the needle")
    plain = {name: {f: asdict(found) for f, found in row.items()} for name, row in table.items()}
    write_json(options.out / "needle.json", {"length": options.length, "steps": options.steps, "found": plain})
    try:
        draw(table, options.length, options.out / "needle.png")
        print(f"drawn in {options.out / 'needle.png'}")
    except ImportError:
        print("no picture: matplotlib is not installed")
    return table


if __name__ == "__main__":
    main()
