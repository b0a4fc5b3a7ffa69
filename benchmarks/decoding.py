"""Writing and training with whole models beside transformers' Llama of the same weights, and caches beside formulas."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor

from attnops.seq import Decoder, KVCache, LatentConfig, TransformerConfig, causal_lm_loss, from_pretrained, generate
from benchmarks import _side_by_side as side
from examples.paged_serving import make_requests, serve_contiguous, serve_paged


def llama(layers: int, dim: int, heads: int, kv_heads: int, ff_dim: int, vocab_size: int) -> Any:
    """Transformers' Llama with SDPA, weights drawn at random."""
    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=dim,
        intermediate_size=ff_dim,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        attn_implementation="sdpa",
    )
    model = transformers.LlamaForCausalLM(config)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0  # write to the end
    return model


def writing(small: bool, rounds: int) -> list[dict[str, Any]]:
    """Greedy tokens of a 135M model; its linear layers alone take most of the time of both."""
    peer = (llama(2, 64, 4, 2, 128, 256) if small else llama(30, 576, 9, 3, 1536, 49152)).eval()
    model, new, rows = from_pretrained(peer), 8 if small else 128, []
    for batch in (1, 8):
        ids = torch.randint(peer.config.vocab_size, (batch, 16))
        mask = torch.ones_like(ids)
        runs = {
            "attnops": partial(generate, model, ids, new),
            "peer": partial(peer.generate, ids, attention_mask=mask, max_new_tokens=new, do_sample=False),
        }
        ours, theirs = runs["attnops"](), runs["peer"]()
        with torch.no_grad():
            side.assert_equal_numbers([model(ours)], [peer(ours).logits], "logits of what was written")
        if not torch.equal(ours, theirs):
            raise AssertionError("greedy tokens differ; nothing was timed")
        taken = side.seconds(runs, rounds, warm=True)
        rows.append(
            {
                "work": f"greedy, {new} new tokens, batch {batch}",
                "speed_transformers_ratio": taken["peer"] / taken["attnops"],
                "step_ms": taken["attnops"] / new * 1e3,
            }
        )
    return rows


def training(small: bool, rounds: int) -> list[dict[str, Any]]:
    """A step of training, loss and all gradients; and where its time goes, on both sides."""
    peer = llama(2, 64, 4, 4, 128, 256) if small else llama(6, 384, 6, 6, 1024, 1024)
    model: Decoder = from_pretrained(peer)
    ids = torch.randint(peer.config.vocab_size, (8, 64 if small else 512))

    def ours() -> list[Tensor]:
        loss = causal_lm_loss(model(ids), ids)
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    def theirs() -> list[Tensor]:
        loss = peer(ids, labels=ids, use_cache=False).loss
        return [loss, *torch.autograd.grad(loss, list(peer.parameters()))]

    mine, other, shape = ours(), theirs(), peer.config
    side.assert_equal_numbers(mine[:2], other[:2], "loss and gradient of the token table")
    taken = side.seconds({"attnops": ours, "peer": theirs}, rounds, warm=True)
    step = {
        "work": f"training step, {shape.num_hidden_layers} x {shape.hidden_size}, N={ids.shape[1]}, batch 8",
        "speed_transformers_ratio": taken["peer"] / taken["attnops"],
        "step_ms": taken["attnops"] * 1e3,
    }
    return [
        step,
        {"work": "one such step, profiled", **profile(ours)},
        {"work": "transformers' likewise", **profile(theirs)},
    ]


def profile(run: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of a step in the products of linear layers, in attention, and in all other operators."""
    parts = {"linear_layers_ms": 0.0, "attention_ms": 0.0, "other_operators_ms": 0.0}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        run()
    for event in seen.key_averages():
        product, attention = event.key in ("aten::mm", "aten::addmm"), "attention" in event.key
        part = "linear_layers_ms" if product else "attention_ms" if attention else "other_operators_ms"
        parts[part] += event.self_cpu_time_total / 1e3
    return parts


@torch.no_grad()
def contexts(small: bool, steps: int) -> dict[str, Any]:
    """A step behind a long text beside one behind a text of an eighth."""
    dim, layers, long = (64, 2, 512) if small else (256, 4, 8192)
    model = Decoder(TransformerConfig(vocab_size=256, dim=dim, layers=layers, heads=4, kv_heads=2)).eval()
    ids, caches = torch.randint(256, (1, long + 1)), {}
    for length in (long // 8, long):
        caches[length] = KVCache(length + 4 * steps)
        model.hidden(ids[:, :length], cache=caches[length])
    last = model(ids[:, long // 8 : long // 8 + 1], cache=caches[long // 8])
    side.assert_equal_numbers([last[:, 0]], [model(ids[:, : long // 8 + 1])[:, -1]], "a step and a whole pass")
    held = {length: cache.memory() for length, cache in caches.items()}
    runs = {str(length): partial(model, ids[:, -1:], cache=cache) for length, cache in caches.items()}
    taken = side.seconds(runs, steps)
    return {
        "work": f"a step at context {long} beside one at {long // 8}",
        "cache_bytes_times": held[long] / held[long // 8],
        "step_time_times": taken[str(long)] / taken[str(long // 8)],
        "step_ms": taken[str(long)] * 1e3,
    }


@torch.no_grad()
def latents() -> dict[str, Any]:
    """Bytes a token of a latent cache, of DeepSeek-V2's proportions, beside multi-head attention of the same heads."""
    heads, latent = 16, LatentConfig(rank=64, query_rank=96, head_dim=16, rotary_dim=8)
    shared = {"vocab_size": 64, "dim": 64, "layers": 2, "heads": heads}
    held = {}
    for name, kind in {"latent": {"latent": latent}, "heads": {"head_dim": 16}}.items():
        cache = KVCache()
        Decoder(TransformerConfig(**shared, **kind)).eval()(torch.randint(64, (1, 32)), cache=cache)  # type: ignore[arg-type]
        held[name] = cache.memory()
    formula = (latent.rank + latent.rotary_dim) / (2 * heads * latent.head_dim)
    if held["latent"] / held["heads"] != formula:
        raise AssertionError(f"a latent cache holds {held['latent']} bytes, {held['heads']} of heads: not {formula}")
    return {"work": f"latent cache, rank 64 + 8, beside {heads} heads of 16", "cache_memory_share": formula}


@torch.inference_mode()
def pages(small: bool, rounds: int) -> dict[str, Any]:
    """Requests that begin alike, written for together."""
    count, prefix, longest, new, dim, layers = (8, 64, 8, 8, 64, 2) if small else (64, 512, 64, 32, 256, 4)
    model = Decoder(TransformerConfig(vocab_size=256, dim=dim, layers=layers, heads=4, kv_heads=2)).eval()
    requests = make_requests(count, prefix, longest, 256)
    answers = {"contiguous": serve_contiguous, "paged": serve_paged}
    best: dict[str, float] = {}
    for _ in range(rounds):
        found = {}
        for name, serve in answers.items():
            start = time.perf_counter()
            found[name] = serve(model, requests, new)
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - start)
        if not torch.equal(found["contiguous"].tokens, found["paged"].tokens):
            raise AssertionError("pages and contiguous caches wrote different tokens; nothing was timed")
    return {
        "work": f"{count} requests that share {prefix} tokens, paged beside contiguous",
        "cache_memory_share": found["paged"].bytes / found["contiguous"].bytes,
        "time_share": best["paged"] / best["contiguous"],
    }


def main() -> None:
    options = side.arguments(__doc__ or "")
    transformers.logging.set_verbosity_error()
    small, rounds = options.small, 1 if options.small else 3
    rows = [
        *writing(small, rounds),
        *training(small, rounds),
        contexts(small, 4 if small else 32),
        latents(),
        pages(small, 1 if small else 2),
    ]
    side.write(options, "decoding", rows)


if __name__ == "__main__":
    main()
