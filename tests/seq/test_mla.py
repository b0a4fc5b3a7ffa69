"""Multi-head latent attention: transformers' own in numbers, two forms that agree, a cache of the size they say."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from attnops import ALiBi, Causal, RotaryScaling, SlidingWindow
from attnops.seq import generate
from attnops.seq.cache import KVCache
from attnops.seq.config import TransformerConfig
from attnops.seq.context import Context
from attnops.seq.decoder import Decoder
from attnops.seq.mla import LatentAttention, LatentConfig

D64 = torch.float64
LATENT = LatentConfig(rank=16, query_rank=24, head_dim=8, rotary_dim=4, value_dim=12)


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = D64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def config(latent: LatentConfig = LATENT, **options: Any) -> TransformerConfig:
    base: dict[str, Any] = {"vocab_size": 50, "dim": 32, "layers": 2, "heads": 4, "latent": latent}
    return TransformerConfig(**{**base, **options})


def drawn(module: torch.nn.Module) -> Any:
    module = module.double().eval()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(rand(*parameter.shape, seed=seed) * 0.3)
    return module


@pytest.mark.parametrize("query_rank", [24, None])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("absorb", [True, False])
def test_equals_transformers(query_rank: int | None, interleaved: bool, absorb: bool) -> None:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

    their_config = DeepseekV3Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=query_rank,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=12,
        rope_interleave=interleaved,
        attention_bias=True,
        attn_implementation="eager",
    )
    theirs = drawn(DeepseekV3Attention(their_config, layer_idx=0))
    latent = LatentConfig(16, query_rank, head_dim=8, rotary_dim=4, value_dim=12)
    options = {"rotary_interleaved": interleaved, "attention_bias": True, "output_bias": True}
    ours = LatentAttention(config(latent, **options), pattern=Causal()).double()
    names = {"kv_a_proj_with_mqa": "latent_down", "kv_a_layernorm": "latent_norm", "kv_b_proj": "latent_up"}
    names |= {"o_proj": "out", "q_b_proj": "query_up", "q_proj": "query_up"}
    names |= {"q_a_proj": "query_down", "q_a_layernorm": "query_norm"}
    mapped = {}
    for name, tensor in theirs.state_dict().items():
        module, _, kind = name.rpartition(".")
        mapped[f"{names[module]}.{kind}"] = tensor
    ours.load_state_dict(mapped)
    ours.absorb = absorb

    a = rand(2, 7, 32, seed=9).requires_grad_()
    b = a.detach().clone().requires_grad_()
    waves = DeepseekV3RotaryEmbedding(their_config).double()(a, torch.arange(7).unsqueeze(0))
    mask = torch.full((7, 7), float("-inf"), dtype=D64).triu(1)[None, None]
    expected, found = theirs(a, waves, mask)[0], ours(b)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)  # the turning is in float32, here and there
    cotangent = rand(*found.shape, seed=8)
    expected.backward(cotangent)
    found.backward(cotangent)
    torch.testing.assert_close(b.grad, a.grad, atol=2e-5, rtol=1e-4)


ALL = [
    {},
    {"position": "none"},
    {"position": "alibi", "sinks": True},
    {"softcap": 5.0},
    {"pattern": SlidingWindow(2)},
    {"rotary_scaling": RotaryScaling.dynamic_ntk(2.0, 4), "layers": 1},
    {"rotary_interleaved": True, "latent": LatentConfig(rank=8)},
]


@pytest.mark.parametrize("options", ALL, ids=lambda options: "-".join(options) or "plain")
def test_absorbed_is_expanded(options: dict[str, Any]) -> None:
    layer = drawn(LatentAttention(config(**options), pattern=options.get("pattern", Causal())))
    x, cotangent, results = rand(2, 9, 32, seed=9), rand(2, 9, 32, seed=8), []
    for absorb in (True, False):
        layer.absorb = absorb
        layer.zero_grad()
        inputs = x.clone().requires_grad_()
        out = layer(inputs)
        out.backward(cotangent)
        results.append([out, inputs.grad, *(parameter.grad.clone() for parameter in layer.parameters())])
    for absorbed, expanded in zip(*results, strict=True):
        torch.testing.assert_close(absorbed, expanded, atol=1e-10, rtol=1e-10)


def test_the_cheaper_form_is_taken() -> None:
    layer = LatentAttention(config(LatentConfig(512, 1536, head_dim=128, rotary_dim=64)))
    assert layer._absorbs(1, 4096) and layer._absorbs(8, 4096)
    assert not layer._absorbs(4096, 4096) and not layer._absorbs(1024, 4096)


@pytest.mark.parametrize("options", ALL, ids=lambda options: "-".join(options) or "plain")
@torch.no_grad()
def test_a_decoder_with_a_cache_is_one_pass(options: dict[str, Any]) -> None:
    model = drawn(Decoder(config(**options)))
    ids = torch.randint(50, (2, 9))
    ids_padded = torch.cat([torch.zeros(2, 2, dtype=torch.int64), ids], 1)
    mask = torch.tensor([[0, 0] + [1] * 9, [1] * 11])
    for given, attention_mask in ((ids, None), (ids_padded, mask)):
        cache, length = KVCache(), given.shape[1]
        cuts = [0, 4, 5, 6, length]
        steps = [
            model(given[:, a:b], None if attention_mask is None else attention_mask[:, :b], cache)
            for a, b in pairwise(cuts)
        ]
        whole = model(given, attention_mask)
        real = slice(None) if attention_mask is None else attention_mask.bool()
        if options.get("rotary_scaling") is None:  # else earlier steps knew a shorter text (and so did deeper layers)
            torch.testing.assert_close(torch.cat(steps, 1)[real], whole[real], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(steps[-1][:, -1], whole[:, -1], atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_the_cache_holds_what_the_formula_says() -> None:
    heads, dim, layers, batch, length = 4, 16, 2, 3, 11
    latent = LatentConfig(rank=24, head_dim=dim, rotary_dim=8)
    sizes = {}
    for name, each in (("mla", latent), ("mha", None)):
        model = Decoder(TransformerConfig(50, dim=64, layers=layers, heads=heads, latent=each))
        cache = KVCache()
        model(torch.zeros(batch, length, dtype=torch.int64), cache=cache)
        sizes[name] = cache.memory()
    assert sizes["mla"] == layers * batch * length * (24 + 8) * 4
    assert sizes["mha"] == layers * batch * length * 2 * heads * dim * 4
    assert sizes["mla"] / sizes["mha"] == (24 + 8) / (2 * heads * dim)


def test_it_learns() -> None:
    model = Decoder(config(dropout=0.1))
    ids = torch.randint(50, (4, 12))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_heads": 2}, "kv_heads is 2"),
        ({"qk_norm": True}, "qk_norm is True"),
        ({"position": "shaw"}, "position is 'shaw'"),
        ({"latent": None}, "latent is None"),
    ],
    ids=str,
)
def test_what_latents_cannot_have_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LatentAttention(config(**options))


def test_a_bad_size_is_named() -> None:
    for options, message in (({"rank": 0}, "rank"), ({"rank": 4, "rotary_dim": 3}, "rotary_dim is 3")):
        with pytest.raises(ValueError, match=message):
            LatentConfig(**options)


def test_context_is_optional_and_positions_count() -> None:
    layer = drawn(LatentAttention(config(), pattern=Causal()))
    x = rand(1, 5, 32)
    torch.testing.assert_close(layer(x), layer(x, Context(torch.arange(5) + 40)), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(layer(x), layer(x, Context(torch.arange(5) * 3)))


def test_it_generates_the_same_with_every_cache() -> None:
    model, ids = drawn(Decoder(config())), torch.randint(50, (2, 5))
    mask = torch.tensor([[0, 1, 1, 1, 1], [1] * 5])
    written = [generate(model, ids, 8, mask, cache=cache) for cache in ("none", "full", "paged")]
    assert torch.equal(written[0], written[1]) and torch.equal(written[0], written[2])
    beams = [generate(model, ids, 8, mask, num_beams=3, cache=cache) for cache in ("none", "full", "paged")]
    assert torch.equal(beams[0], beams[1]) and torch.equal(beams[0], beams[2])


def test_alibi_has_the_slopes_that_are_given() -> None:
    options = {"vocab_size": 11, "dim": 16, "layers": 1, "heads": 2, "latent": LatentConfig(8), "position": "alibi"}
    models = [Decoder(TransformerConfig(**options, alibi_slopes=slopes)).eval() for slopes in (None, [0.5, 3.0])]  # type: ignore[arg-type]
    models[1].load_state_dict(models[0].state_dict())
    ids = torch.arange(9).unsqueeze(0)
    with torch.no_grad():
        plain, sloped = (model(ids) for model in models)
        assert (plain - sloped).abs().max() > 1e-4
        models[1].blocks[0].attention.alibi = ALiBi(2)
        torch.testing.assert_close(models[1](ids), plain)


@pytest.mark.parametrize("option", ["qkv_clip", "rotary_dim"])
def test_what_latents_have_no_place_for_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} is 4 with latent"):
        Decoder(TransformerConfig(11, 16, 1, 2, latent=LatentConfig(8), **{option: 4}))  # type: ignore[arg-type]
