"""Transformers models under `attn_implementation="attnops"` give the numbers of their own eager attention."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnops
from attnops.seq.hf import attention, register_hf

transformers = pytest.importorskip("transformers")

from tests.seq.tiny import ARCHITECTURES, DECODERS, padded, randomised, tiny, tokens  # noqa: E402

OWN = ["falcon", "bloom", "mpt", "roformer"]
SERVED = [name for name in ARCHITECTURES if name.split("-")[0] not in OWN]


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    register_hf()
    register_hf()  # a second time changes nothing


def pair(architecture: str, **changes: Any) -> tuple[Any, Any]:
    """The same model on eager attention and on ours."""
    theirs, ours = tiny(architecture, **changes), tiny(architecture, "attnops", **changes)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(architecture: str, ids: Tensor, **more: Any) -> dict[str, Any]:
    extra = {"decoder_input_ids": tokens(ids.shape[0], 7, seed=5)} if architecture.startswith("t5") else {}
    return {"input_ids": ids, **extra, **more}


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6 * float(theirs.abs().max()))


@pytest.mark.parametrize("architecture", SERVED)
def test_forward_runs_on_attend(architecture: str) -> None:
    theirs, ours = pair(architecture)
    arguments = inputs(architecture, tokens(2, 12))
    with torch.no_grad(), attnops.trace() as plans:
        logits = ours(**arguments).logits
        calls = len(plans)
        close(logits, theirs(**arguments).logits)
    assert calls == len(plans) >= 2


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("architecture", SERVED)
def test_padded_batch(architecture: str, side: str) -> None:
    theirs, ours = pair(architecture)
    ids, mask = padded(tokens(3, 12), [12, 5, 9], side)
    arguments = inputs(architecture, ids, attention_mask=mask)
    with torch.no_grad():
        out, expected = ours(**arguments).logits, theirs(**arguments).logits
    real = torch.ones_like(mask[:, :7]).bool() if architecture.startswith("t5") else mask.bool()
    assert out.isfinite().all()
    close(out[real], expected[real])


@pytest.mark.parametrize("architecture", [*(name for name in DECODERS if name in SERVED), "t5"])
def test_generate_with_cache_on_a_left_padded_batch(architecture: str) -> None:
    # transformers sizes T5's cache by the encoder's layers
    theirs, ours = pair(architecture, **({"num_decoder_layers": 2} if architecture == "t5" else {}))
    ids, mask = padded(tokens(3, 6), [6, 2, 4], "left")
    arguments = {"attention_mask": mask, "max_new_tokens": 9, "do_sample": False, "output_logits": True}
    out, expected = (m.generate(ids, return_dict_in_generate=True, **arguments) for m in (ours, theirs))
    assert torch.equal(out.sequences, expected.sequences)
    close(torch.stack(out.logits), torch.stack(expected.logits))


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_generate_with_beams_and_with_a_static_cache(cache: str) -> None:
    theirs, ours = pair("mistral")
    ids, mask = padded(tokens(2, 6), [6, 4], "left")
    beams = {"num_beams": 3} if cache == "dynamic" else {"cache_implementation": "static", "disable_compile": True}
    arguments = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, **beams}
    assert torch.equal(ours.generate(ids, **arguments), theirs.generate(ids, **arguments))


def test_the_name_serves_where_models_are_loaded_and_switched(tmp_path: Path) -> None:
    theirs, ids = tiny("qwen3"), tokens(1, 9)
    theirs.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="attnops").eval()
    with torch.no_grad():
        expected = theirs(ids).logits
        theirs.set_attn_implementation("attnops")
        for model in (loaded, theirs):
            with attnops.trace() as plans:
                close(model(ids).logits, expected)
            assert len(plans) == 2


def test_encoder_decoders_and_pictures() -> None:
    """Attention to an encoder, with a cache of its own, and models that have neither causality nor a mask."""
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    bart = transformers.BartConfig(
        vocab_size=67,
        d_model=16,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=40,
        **sizes,
        **special,
    )
    vit = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4
    )
    ids, mask = padded(tokens(2, 9), [9, 5], "right")
    models = []
    for name in ("eager", "attnops"):
        torch.manual_seed(0)
        for config in (bart, vit):
            config._attn_implementation = name
        models.append(
            [
                randomised(transformers.BartForConditionalGeneration(copy.deepcopy(bart))).eval(),
                randomised(transformers.ViTModel(copy.deepcopy(vit))).eval(),
            ]
        )
    (theirs, their_eyes), (ours, our_eyes) = models
    arguments = {"attention_mask": mask, "max_new_tokens": 8, "num_beams": 2, "do_sample": False}
    assert torch.equal(ours.generate(ids, **arguments), theirs.generate(ids, **arguments))
    with torch.no_grad(), attnops.trace() as plans:
        picture = torch.rand(2, 3, 8, 8)
        close(our_eyes(picture).last_hidden_state, their_eyes(picture).last_hidden_state)
    assert len(plans) == 2


@pytest.mark.parametrize("architecture", ["llama", "gpt_oss", "t5", "bert", "gemma2", "modernbert"])
def test_output_attentions_are_the_weights(architecture: str) -> None:
    theirs, ours = pair(architecture)
    arguments = inputs(architecture, tokens(2, 9), output_attentions=True)
    with torch.no_grad():
        out, expected = ours(**arguments), theirs(**arguments)
    names = [name for name in expected if "attentions" in name]
    assert names
    for name in names:
        assert len(out[name]) == len(expected[name]) > 0
        for weights, others in zip(out[name], expected[name], strict=True):
            close(weights, others)


@pytest.mark.parametrize("architecture", ["llama", "gpt_oss", "t5", "gemma2"])
def test_gradients(architecture: str) -> None:
    theirs, ours = pair(architecture)
    arguments = inputs(architecture, tokens(2, 8))
    labels = arguments.get("decoder_input_ids", arguments["input_ids"])
    for model in (theirs, ours):
        model(**arguments, labels=labels).loss.backward()
    expected = dict(theirs.named_parameters())
    scale = max(float(p.grad.abs().max()) for p in expected.values() if p.grad is not None)
    for name, parameter in ours.named_parameters():
        other = expected[name].grad
        assert (parameter.grad is None) == (other is None), name
        if other is not None:
            torch.testing.assert_close(parameter.grad, other, rtol=1e-4, atol=3e-6 * scale, msg=name)


def test_attention_dropout_is_applied_in_training_alone() -> None:
    ours = tiny("llama", "attnops", attention_dropout=0.5)
    ids = tokens(1, 8)
    weights = ours.train()(ids, output_attentions=True).attentions[0]
    allowed = torch.ones(8, 8).tril().bool()
    assert (weights[..., allowed] == 0).any()
    weights = ours.eval()(ids, output_attentions=True).attentions[0]
    assert (weights[..., allowed] > 0).all()


def test_packed_documents_do_not_see_one_another() -> None:
    theirs, ours = pair("llama")
    first, second = tokens(1, 5), tokens(1, 7, seed=3)
    ids = torch.cat([first, second], dim=1)
    positions = torch.cat([torch.arange(5), torch.arange(7)]).view(1, -1)
    starts = torch.tensor([0, 5, 12], dtype=torch.int32)
    with torch.no_grad():
        alone = torch.cat([theirs(first).logits, theirs(second).logits], dim=1)
        by_position = ours(ids, position_ids=positions, use_cache=False).logits
        mask = torch.ones_like(ids)  # with a mask given, positions are no sign of packing
        by_lengths = ours(
            ids, attention_mask=mask, position_ids=positions, cu_seq_lens_q=starts, cu_seq_lens_k=starts
        ).logits
    close(by_position, alone)
    close(by_lengths, alone)


def test_masks_of_four_axes_bool_and_float() -> None:
    theirs, ours = pair("llama")
    ids = tokens(2, 6)
    allowed = torch.rand(2, 1, 6, 6) < 0.5
    allowed |= torch.eye(6).bool()
    added = torch.zeros(2, 1, 6, 6).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=added).logits
        close(ours(ids, attention_mask=added).logits, expected)
        close(ours(ids, attention_mask=allowed).logits, expected)


def test_is_causal_false_looks_both_ways() -> None:
    _, ours = pair("llama")
    ids = tokens(1, 6)
    changed = ids.clone()
    changed[0, -1] = 2
    with torch.no_grad():
        causal = [ours(x).logits[:, :-1] for x in (ids, changed)]
        ours.config.is_causal = False
        both = [ours(x, is_causal=False).logits[:, :-1] for x in (ids, changed)]
    assert torch.equal(*causal)
    assert not torch.allclose(*both)


@pytest.mark.parametrize("architecture", ["llama", "gpt_oss"])
def test_compiles_as_one_graph(architecture: str) -> None:
    theirs, ours = pair(architecture)
    ids, mask = padded(tokens(2, 8), [8, 5], "right")
    with torch.no_grad():
        compiled = torch.compile(ours.model, backend="eager", fullgraph=True)
        out = compiled(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        expected = theirs.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    close(out[mask.bool()], expected[mask.bool()])


@pytest.mark.parametrize("architecture", OWN)
def test_models_with_attention_of_their_own_are_refused(architecture: str) -> None:
    with pytest.raises(attnops.UnsupportedError, match=r"(Falcon|Bloom|Mpt|RoFormer)\w+ runs attention of its own"):
        tiny(architecture, "attnops")


# A model of a later transformers, or of a user's own, beside whose attention an eager one reads more than we know.
def eager_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, indices: Tensor | None
) -> None: ...


class Selective(nn.Module):
    is_causal = False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"indices": torch.zeros(2)}, "Selective reads indices, which attend cannot serve"),
        ({"cu_seq_lens_q": torch.tensor([0, 2, 4])}, "cu_seq_lens_k is None"),
        ({"softcap": -1.0}, "softcap is -1.0"),
    ],
)
def test_what_cannot_be_served_is_named(arguments: dict[str, Any], words: str) -> None:
    x = torch.randn(1, 2, 4, 8)
    run: Callable[..., Any] = attention
    with pytest.raises((attnops.UnsupportedError, ValueError), match=words):
        run(Selective(), x, x, x, None, **arguments)
    out, weights = run(Selective(), x, x, x, None, indices=None, something_that_eager_swallows=1)
    assert out.shape == (1, 4, 2, 8) and weights is None


def test_learned_queries_serve_a_batch_of_keys() -> None:
    query, key = torch.randn(1, 2, 3, 8), torch.randn(4, 2, 5, 8)
    out, _ = attention(Selective(), query, key, key, None)
    expected = nn.functional.scaled_dot_product_attention(query.expand(4, -1, -1, -1), key, key)
    close(out, expected.transpose(1, 2))
