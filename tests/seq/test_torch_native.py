"""What torch does to modules works without special cases: compile, autocast, checkpointing, DDP, FSDP2."""

from __future__ import annotations

import copy
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from attnops.seq import Decoder, EncoderDecoder, KVCache, TransformerConfig, causal_lm_loss
from tests.seq.variants import DECODERS, VOCABULARY, decoder, enlarge, some_ids

SOME = ["llama", "alibi", "t5", "shaw", "gpt-oss", "gemma", "irope", "qwen"]
some_decoders = pytest.mark.parametrize("name", SOME)


def train(model: torch.nn.Module, ids: Tensor, **arguments: Any) -> Tensor:
    loss = causal_lm_loss(model(ids, **arguments), ids)
    loss.backward()
    return loss.detach()


def same_gradients(one: torch.nn.Module, other: torch.nn.Module) -> None:
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None, name
        scale = float(theirs.grad.abs().max())
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-9 * max(scale, 1e-3), msg=name)


@some_decoders
def test_every_parameter_learns(name: str) -> None:
    model = decoder(**DECODERS[name])
    train(model, some_ids(2, 9))
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_compiled_as_one_graph(name: str) -> None:
    torch.compiler.reset()
    model = decoder(layers=1, **{**DECODERS[name], "pattern": None})
    traced = copy.deepcopy(model)
    ids, segments = some_ids(2, 9), torch.tensor([[0] * 4 + [1] * 5, [0] * 9])
    compiled = torch.compile(traced, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(train(compiled, ids, segments=segments), train(model, ids, segments=segments))
    same_gradients(traced, model)


def test_compiled_with_padding() -> None:
    torch.compiler.reset()
    model, ids = decoder(layers=1, position="alibi"), some_ids(2, 9)
    mask = torch.tensor([[1] * 9, [0] * 3 + [1] * 6])
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids, mask)[mask.bool()], model(ids, mask)[mask.bool()])


@pytest.mark.parametrize("name", ["llama", "alibi", "t5", "gpt-oss"])
def test_autocast_rounds_and_nothing_more(name: str) -> None:
    model, ids = decoder(**DECODERS[name]).float(), some_ids(2, 9)
    with torch.no_grad():
        exact = model(ids)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded, cache = model(ids), KVCache()
            steps = torch.cat((model(ids[:, :5], cache=cache), model(ids[:, 5:], cache=cache)), 1)
    assert rounded.dtype == torch.bfloat16
    scale = float(exact.abs().max())
    assert float((rounded.float() - exact).abs().max()) < 0.06 * scale
    assert float((steps.float() - exact).abs().max()) < 0.06 * scale
    with torch.autocast("cpu", dtype=torch.bfloat16):
        train(model, ids)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "t5"])
def test_checkpointed_layers_give_the_same_gradients(name: str) -> None:
    model = decoder(dropout=0.1, **DECODERS[name]).train()
    saved = copy.deepcopy(model)
    saved.blocks = torch.nn.ModuleList(checkpoint_wrapper(block) for block in saved.blocks)
    ids = some_ids(2, 9)
    losses = []
    for each in (model, saved):
        torch.manual_seed(3)
        losses.append(train(each, ids))
    assert torch.equal(losses[0], losses[1])
    same_gradients(saved, model)


def test_a_gradient_through_a_cache_is_that_of_the_text_at_once() -> None:
    model, ids, cache = decoder(), some_ids(2, 9), KVCache()
    other = copy.deepcopy(model)
    train(other, ids)
    logits = torch.cat([model(ids[:, a:b], cache=cache) for a, b in ((0, 4), (4, 5), (5, 9))], 1)
    causal_lm_loss(logits, ids).backward()
    same_gradients(model, other)


def test_a_state_dict_comes_back(tmp_path: Path) -> None:
    for options in DECODERS.values():
        model = decoder(**options)
        torch.save(model.state_dict(), tmp_path / "weights.pt")
        other = decoder(**options)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
        assert torch.equal(other(some_ids(1, 5)), model(some_ids(1, 5)))


# ----------------------------------------------------------------------------------------------------- two processes
def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _models() -> list[tuple[torch.nn.Module, tuple[Tensor, ...]]]:
    """Models of every kind, with a batch of four rows each."""
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "dim": 32, "layers": 2, "heads": 4, "ff_dim": 40}
    both = EncoderDecoder(TransformerConfig(**sizes, position="relative", tie_embeddings=False)).double()
    enlarge(both)
    pairs: list[tuple[torch.nn.Module, tuple[Tensor, ...]]] = [
        (decoder(**DECODERS[name]).train(), (some_ids(4, 9),)) for name in ("llama", "gpt-oss")
    ]
    return [*pairs, (both, (some_ids(4, 7), some_ids(4, 5, seed=1)))]


def _train_sharded(rank: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        for kind in ("ddp", "fsdp"):
            for model, inputs in _models():
                wanted = copy.deepcopy(model)
                wanted(*inputs).square().mean().backward()
                mine = [x[2 * rank : 2 * rank + 2] for x in inputs]
                if kind == "ddp":
                    parallel: torch.nn.Module = DistributedDataParallel(model)
                else:
                    for block in [*getattr(model, "encoder", model).blocks, *model.blocks]:  # type: ignore[union-attr, misc]
                        if not isinstance(block, torch.distributed.fsdp.FSDPModule):
                            fully_shard(block)
                    parallel = fully_shard(model)
                parallel(*mine).square().mean().backward()
                for (name, parameter), other in zip(model.named_parameters(), wanted.parameters(), strict=True):
                    gradient = parameter.grad
                    assert gradient is not None, name
                    if isinstance(gradient, DTensor):
                        gradient = gradient.full_tensor()
                    assert other.grad is not None
                    torch.testing.assert_close(gradient, other.grad, rtol=1e-7, atol=1e-9, msg=f"{kind} {name}")
    finally:
        dist.destroy_process_group()


def test_two_processes_train_as_one() -> None:
    mp.spawn(_train_sharded, (_free_port(),), nprocs=2)


def test_from_meta_to_weights() -> None:
    with torch.device("meta"):
        model = Decoder(TransformerConfig(VOCABULARY, 32, 2, 4, position="learned"))
    model.to_empty(device="cpu")
    model.load_state_dict(decoder(kv_heads=None, position="learned", ff_dim=88).float().state_dict())
    assert model(some_ids(1, 4)).isfinite().all()
