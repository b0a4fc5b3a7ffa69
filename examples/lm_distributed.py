"""A character model whose sequences and parameters are divided over processes, and that goes on after any of them dies.

    torchrun --nproc-per-node 2 -m examples.lm_distributed                  # two processes: gloo on CPUs, NCCL on GPUs
    torchrun --nproc-per-node 2 --max-restarts 3 -m examples.lm_distributed # started again by torchrun when one dies
    python -m examples.lm_distributed                                       # one process, the same losses

Each process holds a share of the parameters (`fully_shard`) and of every sequence's tokens (`shard_inputs`, in zig-zag
order, so that causal work is balanced). Every `--every` steps all write their shares into one checkpoint
(torch.distributed.checkpoint), under another name and then renamed; a start goes on from the last whole one, with any
number of processes. A step's batch is drawn from (seed, step) alone, so the losses are those of an undisturbed run.

A process that dies ends the others: their next exchange fails at once, or after `--timeout` seconds where the lost one
hangs instead. torchrun then ends the run, or with --max-restarts starts all of them again.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard

from attnops.distributed import init_processes, shard_inputs, shard_sequence
from attnops.seq import Decoder, Tokenizer, TransformerConfig, generate, sequence_loss
from examples.arguments import positive
from examples.char_lm import TEXT, batch
from examples.distributed_run import claim, keep, resume
from examples.outputs import add_out
from examples.texts import read


class Run:
    """A divided model in training: the parts that a checkpoint holds, and where it lies."""

    def __init__(self, config: TransformerConfig, mesh: DeviceMesh, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)  # every process draws the same weights, and then keeps its share
        self.config, self.mesh, self.options = config, mesh, options
        self.model = Decoder(config).to(mesh.device_type)
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.losses: list[float] = []

    def step(self, ids: Tensor) -> None:
        """One step of training, a function of the run so far, the text and the seed."""
        options, number = self.options, len(self.losses)
        window = batch(ids, options.rows, options.length, options.seed + number).to(self.mesh.device_type)
        inputs, context = shard_inputs(self.model, window[:, :-1], mesh=self.mesh)
        targets = shard_sequence(window[:, 1:], self.mesh, dim=1, order="zigzag")
        mean = sequence_loss(self.model(inputs, context=context), targets)  # over this process's tokens
        loss = mean * (targets.numel() / window[:, 1:].numel())  # its share of the mean over all
        self.optimizer.zero_grad()
        (loss * self.mesh.size()).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        self.losses.append(float(total))

    def whole(self) -> Decoder | None:
        """The model in one piece, on rank 0."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state: dict[str, Any] = get_model_state_dict(self.model, options=options)
        if dist.get_rank() != 0:
            return None
        model = Decoder(self.config)
        model.load_state_dict(state)
        return model


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """What must be the same to go on."""
    return {name: getattr(options, name) for name in ("seed", "dim", "layers", "length", "rows", "text_digest")}


def say(*words: object) -> None:
    """Print, on rank 0 alone."""
    if dist.get_rank() == 0:
        print(*words, flush=True)


def train(options: argparse.Namespace, mesh: DeviceMesh) -> list[float]:
    """Train to the last step; every loss since the first."""
    text = TEXT if options.text is None else read(options.text)
    tokenizer = Tokenizer.characters(text)
    ids = torch.tensor(tokenizer.encode(text))
    if len(ids) <= options.length:
        raise ValueError(f"the text has {len(ids)} characters; it must have more than --length, {options.length}")
    options.text_digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    with claim(options.out, settings(options), mesh.device_type):
        return go_on(options, mesh, tokenizer, text, ids)


def go_on(options: argparse.Namespace, mesh: DeviceMesh, tokenizer: Tokenizer, text: str, ids: Tensor) -> list[float]:
    """From the last checkpoint, if there is one."""
    run = Run(TransformerConfig(tokenizer.vocab_size, options.dim, options.layers, heads=4), mesh, options)
    run.losses = resume(options.out, run.model, run.optimizer, settings(options))
    say(f"{mesh.size()} processes, from step {len(run.losses)}")
    begun, before = time.perf_counter(), len(run.losses)
    while len(run.losses) < options.steps:
        run.step(ids)
        if len(run.losses) % options.every == 0 or len(run.losses) == options.steps:
            keep(options.out, run.model, run.optimizer, run.losses, settings(options))
            speed = (len(run.losses) - before) * options.rows * options.length / (time.perf_counter() - begun)
            say(f"step {len(run.losses):5}  loss {run.losses[-1]:.3f}  {speed:.0f} characters/s")
    whole = run.whole()
    if whole is not None:
        start = torch.tensor([tokenizer.encode(text[:1])])
        say("\n" + tokenizer.decode(generate(whole, start, 100, temperature=0.8, top_k=20, seed=0)[0].tolist()))
    return run.losses


@record
def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a text file, zipped or not")
    parser.add_argument("--steps", type=positive, default=300)
    parser.add_argument("--every", type=positive, default=50, help="steps between two checkpoints")
    add_out(parser, "lm_distributed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dim", type=positive, default=128, help="a multiple of 8: 4 heads of an even width")
    parser.add_argument("--layers", type=positive, default=4)
    parser.add_argument("--length", type=positive, default=256)
    parser.add_argument("--rows", type=positive, default=4)
    parser.add_argument("--timeout", type=float, default=60, help="seconds that a process waits for another")
    parser.add_argument("--small", action="store_true", help="a few seconds")
    options = parser.parse_args(arguments)
    if options.small:
        options.steps, options.every, options.dim, options.layers, options.length = 20, 5, 32, 2, 64
    if options.dim % 8:
        parser.error(f"--dim is {options.dim}; it must be a multiple of 8")
    device = init_processes(options.timeout)
    try:
        return train(options, init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("context",)))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
