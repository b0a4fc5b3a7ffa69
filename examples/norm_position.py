"""Where the norm stands: gradients of each layer at the start, and training with and without warm-up.

    python -m examples.norm_position            # some seconds; drawn in out/norm_position/
    python -m examples.norm_position --small    # seconds

Xiong et al. 2020 (arXiv:2002.04745): after the sum ("post", the 2017 Transformer), gradients at the start stay large
towards the output, so a high learning rate needs a warm-up; before the sublayer ("pre") they fall, and it needs none.
The same small character model is trained in each way, and what comes out is printed, whatever it is.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from attnops.seq import Decoder, Tokenizer, TransformerConfig, causal_lm_loss
from examples.char_lm import TEXT, batch
from examples.outputs import add_out, save, write_json

PLACES = ("post", "pre", "both")


@dataclass
class Outcome:
    """Gradient norms of the layers' down projections at the start, `[layers]`, and the losses of training."""

    gradients: list[float]
    losses: list[float]


def rate(step: int, steps: int, top: float, warm_up: bool) -> float:
    """A learning rate that grows to `top` over the first third, or is `top` from the start."""
    return top * min(1.0, (step + 1) / (steps / 3)) if warm_up else top


def gradient_norms(model: Decoder, window: Tensor) -> list[float]:
    """Of each layer's last matrix, as Xiong et al. look at it."""
    model.zero_grad()
    causal_lm_loss(model(window), window).backward()  # type: ignore[no-untyped-call]
    norms = [float(block.feedforward.down.weight.grad.norm()) for block in model.blocks]  # type: ignore[union-attr]
    model.zero_grad()
    return norms


def train(place: str, warm_up: bool, layers: int, dim: int, steps: int, top: float, seed: int = 0) -> Outcome:
    """A decoder with its norms at `place`, the same weights and batches for all."""
    tokenizer = Tokenizer.characters(TEXT)
    ids = torch.tensor(tokenizer.encode(TEXT))
    torch.manual_seed(seed)
    model = Decoder(
        TransformerConfig(
            tokenizer.vocab_size, dim, layers, heads=4, norm="layer", norm_position=place, activation="relu",
            position="sinusoidal", embedding_scale=dim**0.5, tie_embeddings=False,
        )
    )  # fmt: skip
    for parameter in model.parameters():  # as the 2017 model was initialised, and as the analysis assumes
        if parameter.ndim == 2:
            torch.nn.init.xavier_uniform_(parameter)
    gradients = gradient_norms(model, batch(ids, 8, 32, seed))
    optimizer = torch.optim.Adam(model.parameters(), lr=top, betas=(0.9, 0.98))
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps, top, warm_up)
        window = batch(ids, 8, 32, seed + step)
        loss = causal_lm_loss(model(window), window)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return Outcome(gradients, losses)


def draw(outcomes: dict[tuple[str, bool], Outcome], path: Path) -> None:
    """Gradient norms a layer, and losses a step, side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for (place, warm_up), outcome in outcomes.items():
        if warm_up:
            left.plot(range(1, len(outcome.gradients) + 1), outcome.gradients, marker="o", label=place)
        line = "-" if warm_up else "--"
        right.plot(outcome.losses, line, label=f"{place}, {'with' if warm_up else 'without'} warm-up")
    left.set(xlabel="layer", ylabel="gradient norm at the start", yscale="log")
    right.set(xlabel="step", ylabel="loss")
    left.legend()
    right.legend()
    save(figure, path)


def main(arguments: list[str] | None = None) -> dict[tuple[str, bool], Outcome]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a smaller model and fewer steps")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rate", type=float, default=5e-3, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    add_out(parser, "norm_position")
    options = parser.parse_args(arguments)
    layers = options.layers or (4 if options.small else 6)
    steps = options.steps or (20 if options.small else 100)
    outcomes = {
        (place, warm_up): train(place, warm_up, layers, 32 if options.small else 48, steps, options.rate, options.seed)
        for place in PLACES
        for warm_up in (True, False)
    }
    print("gradient norm of each layer's last matrix, at the start")
    for place in PLACES:
        norms = outcomes[place, True].gradients
        print(f"  {place:<5}", " ".join(f"{norm:7.4f}" for norm in norms), f"  last / first {norms[-1] / norms[0]:.2f}")
    counts = torch.tensor([TEXT.count(letter) for letter in set(TEXT)])
    alone = float(torch.special.entr(counts / counts.sum()).sum())
    print(f"loss over the last tenth of {steps} steps, learning rate {options.rate:g}")
    print(f"  (by how often each letter comes, and nothing else: {alone:.3f})")
    for place in PLACES:
        last = [
            sum(o.losses[-max(1, steps // 10) :]) / max(1, steps // 10)
            for o in (outcomes[place, w] for w in (True, False))
        ]
        print(f"  {place:<5} with warm-up {last[0]:.3f}   without {last[1]:.3f}")
    plain = [{"place": place, "warm_up": warm, **asdict(each)} for (place, warm), each in outcomes.items()]
    write_json(options.out / "norm_position.json", plain)
    try:
        draw(outcomes, options.out / "norm_position.png")
        print(f"drawn in {options.out / 'norm_position.png'}")
    except ImportError:
        print("no picture: matplotlib is not installed")
    return outcomes


if __name__ == "__main__":
    main()
