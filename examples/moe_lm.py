"""A language model with a mixture of experts: does the load spread, and do experts take to different text?

    python -m examples.moe_lm                        # about a minute; drawn in out/moe_lm/load.png
    python -m examples.moe_lm --small                # seconds
    python -m examples.moe_lm --text shakespeare.txt # on your own text

The same small decoder is trained on characters three times: with nothing that balances the experts, with a balance loss
(Switch), and with a bias per expert that only picks (DeepSeek-V3). Printed and drawn are the loss, the load of the
busiest expert against an even one, and, for the text made here, which kind of line each expert of a layer serves.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from attnops.seq import Decoder, ExpertsConfig, TransformerConfig, routings
from examples.outputs import add_out, save, write_json
from examples.texts import read, require_characters

KINDS = ("sums", "words", "brackets")
SCHEMES = {
    "nothing": ExpertsConfig(8, top_k=2, balance_coef=0.0),
    "balance loss": ExpertsConfig(8, top_k=2, balance_coef=0.02, z_coef=1e-3),
    "choosing bias": ExpertsConfig(8, top_k=2, score="sigmoid", balance_coef=0.0, balance_bias=True),
}


@dataclass
class Run:
    losses: list[float]
    loads: Tensor  # [steps, layers, E], shares of all choices
    by_kind: Tensor  # [kinds, layers, E]
    model: Decoder


def make_text(lines: int) -> tuple[str, str]:
    """Lines of three kinds, and for each character the number of its line's kind."""
    words = "the quick brown fox jumps over a lazy dog while seven wizards box".split()
    text, kinds = [], []
    for _ in range(lines):
        kind = random.randrange(3)
        if kind == 0:
            a, b = random.randrange(100), random.randrange(100)
            line = f"{a}+{b}={a + b}\n"
        elif kind == 1:
            line = " ".join(random.choices(words, k=4)) + "\n"
        else:
            opened = "".join(random.choices("([{", k=random.randrange(2, 6)))
            line = opened + opened[::-1].translate(str.maketrans("([{", ")]}")) + "\n"
        text.append(line)
        kinds.append(str(kind) * len(line))
    return "".join(text), "".join(kinds)


def train(config: TransformerConfig, ids: Tensor, kinds: Tensor, steps: int, batch: int, length: int) -> Run:
    """Train a decoder on random windows of `ids`, and watch its experts."""
    model = Decoder(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, loads = [], []
    for _ in range(steps):
        window = windows(ids, batch, length)
        with routings() as seen:
            logits = model(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + seen.loss()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seen.balance_biases(rate=0.01)
        losses.append(loss.item())
        loads.append(torch.stack([layer.load for layer in seen]).detach())
    return Run(losses, torch.stack(loads), load_by_kind(model, ids, kinds, batch, length), model)


@torch.no_grad()
def load_by_kind(model: Decoder, ids: Tensor, kinds: Tensor, batch: int, length: int) -> Tensor:
    """The load of each expert from the characters of one kind alone, `[kinds, layers, E]`."""
    places = torch.randint(len(ids) - length, (batch, 1)) + torch.arange(length)
    loads = []
    for kind in range(len(KINDS)):
        with routings() as seen:  # what is not of this kind is called padding, and counted nowhere
            model(ids[places], kinds[places] == kind)
        loads.append(torch.stack([layer.load for layer in seen]))
    return torch.stack(loads)


def windows(ids: Tensor, batch: int, length: int) -> Tensor:
    """Random windows of a text, `[batch, length + 1]`."""
    return ids[torch.randint(len(ids) - length, (batch, 1)) + torch.arange(length + 1)]


def draw(runs: dict[str, Run], path: Path) -> None:
    """The busiest expert over time, and which expert serves which kind of line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(runs), figsize=(4 * len(runs), 6), squeeze=False)
    for (name, run), (above, below) in zip(runs.items(), axes.T, strict=True):
        above.plot((run.loads.amax(-1) * run.loads.shape[-1]).numpy())
        above.set(title=name, xlabel="step", ylabel="busiest expert / even share", ylim=(1, run.loads.shape[-1] / 2))
        picture = below.imshow(run.by_kind[:, -1].numpy(), vmin=0, cmap="viridis", aspect="auto")
        below.set(xlabel="expert of the last layer", yticks=range(len(KINDS)), yticklabels=KINDS)
        figure.colorbar(picture, ax=below, label="share of choices")
    figure.tight_layout()
    save(figure, path, dpi=110)


def main(arguments: list[str] | None = None) -> dict[str, Run]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--text", type=Path, help="a text file of your own")
    parser.add_argument("--steps", type=int, default=None)
    add_out(parser, "moe_lm")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    steps, batch, length = chosen.steps or (8 if chosen.small else 200), 8, 32 if chosen.small else 64
    random.seed(chosen.seed)
    text, kinds = make_text(200 if chosen.small else 2000)
    if chosen.text is not None:
        text = read(chosen.text)
        require_characters(text, 2 * length)
        kinds = "0" * len(text)
    alphabet = sorted(set(text))
    ids = torch.tensor([alphabet.index(letter) for letter in text])
    kind_of = torch.tensor([int(kind) for kind in kinds])

    runs, kept = {}, {}
    print(f"{'balanced by':16}{'loss':>8}{'busiest / even':>16}{'dead experts':>14}")
    for name, experts in SCHEMES.items():
        torch.manual_seed(chosen.seed)
        config = TransformerConfig(
            vocab_size=len(alphabet), dim=48, layers=2, heads=4, ff_dim=64, experts=experts, tie_embeddings=False
        )
        run = runs[name] = train(config, ids, kind_of, steps, batch, length)
        late = run.loads[-max(1, steps // 10) :].mean(0)  # [layers, E]
        loss = sum(run.losses[-max(1, steps // 10) :]) / max(1, steps // 10)
        dead = int((late < 0.01).sum())
        busiest = float(late.max()) * late.shape[-1]
        kept[name] = {"loss": loss, "busiest": busiest, "dead": dead, "load": late.tolist()}
        print(f"{name:16}{loss:8.3f}{busiest:16.2f}{dead:14}")
    write_json(chosen.out / "moe_lm.json", kept)
    try:
        draw(runs, chosen.out / "load.png")
        print(f"drawn in {chosen.out / 'load.png'}")
    except ImportError:
        print("no picture: matplotlib is not installed")
    return runs


if __name__ == "__main__":
    main()
