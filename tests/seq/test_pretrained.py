"""Models read from transformers give transformers' numbers: plain, padded, cached, from memory and from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnops.seq import Decoder, Encoder, EncoderDecoder, KVCache, generate
from attnops.seq.pretrained import from_pretrained

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from tests.seq.tiny import ARCHITECTURES, DECODERS, padded, tiny, tokens  # noqa: E402

ENCODERS = ["bert", "modernbert", "roformer"]
TRANSLATORS = ["t5", "t5-gated"]
# transformers counts padding in Llama 4's temperature; its floor is set past the text where there is padding.
WITHOUT_TEMPERATURE: dict[str, dict[str, Any]] = {"llama4": {"floor_scale": 64}}


def theirs_of(architecture: str, **changes: Any) -> Any:
    """Falcon's eager attention adds ALiBi twice; its default, sdpa, once."""
    return tiny(architecture, "sdpa" if architecture == "falcon-alibi" else "eager", **changes)


def close(ours: Tensor, theirs: Tensor) -> None:
    """A tenth of what is promised: 1e-5 of the largest magnitude."""
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


def logits(ours: Any, theirs: Any, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Ours and theirs; for an encoder, of its head for masked tokens."""
    position = None if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        if isinstance(ours, EncoderDecoder):
            written = tokens(ids.shape[0], 7, seed=5)
            return ours(ids, written, mask), theirs(ids, mask, written).logits
        if isinstance(ours, Encoder):
            places = {} if "RoFormer" in type(theirs).__name__ else {"position_ids": position}
            hidden = ours(ids, mask)
            close(
                hidden if mask is None else hidden[mask.bool()], _real(theirs.base_model(ids, mask, **places)[0], mask)
            )
            return ours.head(hidden, ours.embeddings.token.weight), theirs(ids, mask, **places).logits
        places = {"position_ids": position} if "GPT2" in type(theirs).__name__ else {}
        return ours(ids, mask), theirs(ids, attention_mask=mask, **places).logits


def _real(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x[mask.bool()]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits(architecture: str) -> None:
    theirs = theirs_of(architecture)
    ours = from_pretrained(theirs)
    assert isinstance(
        ours, Encoder if architecture in ENCODERS else EncoderDecoder if "t5" in architecture else Decoder
    )
    assert not any(module.training for module in ours.modules())
    close(*logits(ours, theirs, tokens(2, 14)))


# DeepSeek's own: the magnitude is not on the turned channels but, squared, on all logits.
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 8,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"hidden_act": "gelu", "num_key_value_heads": None, "head_dim": 10, "attention_bias": False}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    ("mistral", {"sliding_window": None, "hidden_act": "gelu_pytorch_tanh"}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1, "attention_bias": True}),
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True}),
    ("gpt2", {"n_inner": 40, "scale_attn_weights": False, "activation_function": "relu", "tie_word_embeddings": False}),
    ("falcon", {"bias": True, "multi_query": False, "num_kv_heads": 4}),
    ("falcon-new", {"num_ln_in_parallel_attn": 1}),
    ("falcon-alibi", {"num_attention_heads": 12}),  # slopes that bfloat16 rounds
    ("mpt", {"attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.3}}),
    ("mixtral", {"num_experts_per_tok": 1, "sliding_window": None}),
    ("deepseek_v3", {"q_lora_rank": None, "attention_bias": True, "rope_interleave": False, "norm_topk_prob": False}),
    ("deepseek_v3", {"n_shared_experts": 2, "first_k_dense_replace": 0, "hidden_act": "gelu"}),
    ("deepseek_v3", {"rope_parameters": YARN}),
    ("gpt_oss", {"attention_bias": False, "swiglu_limit": 0.5}),
    ("llama4", {"use_qk_norm": False, "attn_temperature_tuning": False, "attention_chunk_size": None}),
    ("llama4", {"num_experts_per_tok": 2, "moe_layers": [0, 3], "no_rope_layers": [0, 1, 0, 1]}),
    ("bert", {"hidden_act": "relu", "type_vocab_size": 1}),
    ("modernbert", {"classifier_bias": True, "norm_bias": True, "mlp_bias": True, "attention_bias": True}),
    ("t5", {"relative_attention_num_buckets": 12, "tie_word_embeddings": False}),
]


@pytest.mark.parametrize(("architecture", "changes"), VARIANTS)
def test_logits_with_other_options(architecture: str, changes: dict[str, Any]) -> None:
    theirs = theirs_of(architecture, **changes)
    close(*logits(from_pretrained(theirs), theirs, tokens(2, 14)))


def test_token_types() -> None:
    theirs, ids, types = tiny("bert").base_model, tokens(2, 9), torch.arange(18).view(2, 9) % 2
    with torch.no_grad():
        out, expected = from_pretrained(theirs)(ids, types=types), theirs(ids, token_type_ids=types).last_hidden_state
    close(out, expected)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padded_batch(architecture: str, side: str) -> None:
    theirs = theirs_of(architecture, **WITHOUT_TEMPERATURE.get(architecture, {}))
    ids, mask = padded(tokens(3, 14), [14, 5, 9], side)
    ours = from_pretrained(theirs)
    out, expected = logits(ours, theirs, ids, mask)
    if architecture in TRANSLATORS:
        return close(out, expected)
    return close(out[mask.bool()], expected[mask.bool()])


@pytest.mark.parametrize("architecture", [*DECODERS, *TRANSLATORS])
def test_cached_steps(architecture: str) -> None:
    """A prompt, then one token a step, past every window and chunk: the logits of one pass."""
    theirs = theirs_of(architecture)
    ours, cache, source, ids = from_pretrained(theirs), KVCache(), tokens(2, 9), tokens(2, 14, seed=3)
    steps = [ids[:, :4], *ids[:, 4:].split(1, dim=1)]
    with torch.no_grad():
        if isinstance(ours, EncoderDecoder):
            out = torch.cat([ours(source, step, cache=cache) for step in steps], dim=1)
            expected = theirs(source, decoder_input_ids=ids).logits
        else:
            out = torch.cat([ours(step, cache=cache) for step in steps], dim=1)
            expected = theirs(ids).logits
    close(out, expected)


@pytest.mark.parametrize("architecture", DECODERS)
def test_greedy_on_a_left_padded_batch(architecture: str) -> None:
    theirs = theirs_of(architecture, **WITHOUT_TEMPERATURE.get(architecture, {}))
    ids, mask = padded(tokens(3, 6), [6, 3, 5], "left")
    expected = theirs.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
    assert torch.equal(generate(from_pretrained(theirs), ids, 8, attention_mask=mask), expected)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mixtral", "deepseek_v3", "gpt_oss", "t5", "bert"])
def test_gradients(architecture: str) -> None:
    """The gradient of a loss with respect to the token table, which everything reaches."""
    theirs = theirs_of(architecture, **({"tie_word_embeddings": False} if architecture == "llama" else {}))
    ours, ids = from_pretrained(theirs), tokens(2, 8)
    target, weights = tokens(2, 8, seed=9), torch.linspace(0.5, 1.5, 16).view(2, 8)
    for model, run in ((ours, _ours), (theirs, _theirs)):
        loss = torch.nn.functional.cross_entropy(run(model, ids).transpose(1, 2), target, reduction="none")
        (loss * weights).sum().backward()
    table = ours.encoder.embeddings if isinstance(ours, EncoderDecoder) else ours.embeddings
    close(table.token.weight.grad, theirs.get_input_embeddings().weight.grad)


def _ours(model: Any, ids: Tensor) -> Tensor:
    if isinstance(model, EncoderDecoder):
        return model(ids, ids)
    return model.head(model(ids), model.embeddings.token.weight) if isinstance(model, Encoder) else model(ids)


def _theirs(model: Any, ids: Tensor) -> Tensor:
    return model(ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})).logits


# -------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("sharded", [False, True], ids=["one-file", "shards"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_from_a_folder(architecture: str, sharded: bool, tmp_path: Path) -> None:
    """What transformers saves is read from its files: experts one by one, tied weights left out."""
    theirs = theirs_of(architecture)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB" if sharded else "1GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == sharded
    ours, same = from_pretrained(tmp_path), from_pretrained(theirs)
    assert str(ours.config) == str(same.config)
    state = ours.state_dict()
    assert state.keys() == same.state_dict().keys()
    assert all(torch.equal(state[name], weight) for name, weight in same.state_dict().items())


def test_weights_are_copies_and_keep_their_dtype() -> None:
    theirs = tiny("llama").to(torch.bfloat16)
    ours = from_pretrained(theirs)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        ours.embeddings.token.weight.zero_()
    assert theirs.get_input_embeddings().weight.abs().sum() > 0


def test_names_of_old_files(tmp_path: Path) -> None:
    """Files from before: no prefix, buffers of masks, gamma and beta."""
    gpt2 = tiny("gpt2")
    weights = {name.removeprefix("transformer."): each.clone() for name, each in gpt2.state_dict().items()}
    del weights["lm_head.weight"]
    weights["h.0.attn.bias"], weights["h.1.attn.masked_bias"] = torch.ones(1, 1, 64, 64), torch.tensor(-1e4)
    _write(tmp_path / "gpt2", gpt2.config.to_dict(), weights)
    close(*logits(from_pretrained(str(tmp_path / "gpt2")), gpt2, tokens(1, 6)))

    bert = tiny("bert").base_model
    weights = {name: each.clone() for name, each in bert.state_dict().items()}
    weights = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): each
        for name, each in weights.items()
    }
    weights["embeddings.position_ids"] = torch.arange(64)
    _write(tmp_path / "bert", {**bert.config.to_dict(), "architectures": ["BertModel"]}, weights)
    with torch.no_grad():
        close(from_pretrained(tmp_path / "bert")(tokens(1, 6)), bert(tokens(1, 6)).last_hidden_state)


def _write(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, default=str))
    safetensors.save_file({name: each.contiguous() for name, each in weights.items()}, folder / "model.safetensors")


# ------------------------------------------------------------------------------------------------------------- errors

HALF: dict[str, Any] = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"rope_parameters": HALF}, "llama: rope_parameters have a partial_rotary_factor"),
    ("llama", {"hidden_act": "tanh"}, "llama: hidden_act is 'tanh'"),
    ("gemma2", {"use_bidirectional_attention": True}, "gemma2: use_bidirectional_attention is True"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "gpt2: scale_attn_by_inverse_layer_idx is True"),
    ("gpt2", {"add_cross_attention": True}, "gpt2: add_cross_attention is True"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm is True"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "mpt attn_config: qk_ln is True"),
    ("mpt", {"attn_config": {"alibi_bias_max": 4}}, "mpt attn_config: alibi_bias_max is 4"),
    ("mpt", {"logit_scale": 0.5}, "mpt: logit_scale is 0.5"),
    ("gpt_oss", {"swiglu_alpha": 1.0}, "gpt_oss: swiglu_alpha is 1.0"),
    ("bert", {"is_decoder": True}, "bert: is_decoder is True"),
    ("roformer", {"rotary_value": True}, "roformer: rotary_value is True"),
    ("roformer", {"embedding_size": 16}, "roformer: embedding_size is 16"),
    ("t5", {"feed_forward_proj": "tanh"}, "t5: dense_act_fn is 'tanh'"),
]


@pytest.mark.parametrize(("architecture", "changes", "words"), UNSUPPORTED)
def test_an_option_that_is_not_supported_is_named(architecture: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_pretrained(theirs_of(architecture, **changes))


def test_an_option_that_no_reader_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later transformers may give a config one more option: it is not passed over."""
    theirs = tiny("llama")
    fields = transformers.LlamaConfig.__dataclass_fields__
    monkeypatch.setitem(fields, "clip_qkv", _like(fields["mlp_bias"], "clip_qkv", None))
    theirs.config.clip_qkv = None
    from_pretrained(theirs)
    theirs.config.clip_qkv = 8.0
    with pytest.raises(ValueError, match=r"llama: clip_qkv is 8\.0, which is not supported; None alone is"):
        from_pretrained(theirs)


def _like(field: Any, name: str, default: object) -> Any:
    import copy

    other = copy.copy(field)
    other.name, other.default = name, default
    return other


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    config = transformers.OPTConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, ffn_dim=8, word_embed_proj_dim=8
    )
    with pytest.raises(ValueError, match="model_type is 'opt', an architecture that is not supported; llama, mistral"):
        from_pretrained(transformers.OPTForCausalLM(config))
    with pytest.raises(ValueError, match="LlamaModel is not supported; of llama, LlamaForCausalLM are"):
        from_pretrained(tiny("llama").model)
    with pytest.raises(TypeError, match="source is a Linear"):
        from_pretrained(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="source is a int"):
        from_pretrained(3)  # type: ignore[arg-type]
    theirs = tiny("llama")
    theirs.config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1e4}
    with pytest.raises(ValueError, match="llama: rope_parameters: rope scaling type is 'spiral'"):
        from_pretrained(theirs)
    theirs = tiny("llama")
    theirs.config.quantization_config = {"quant_method": "mxfp4"}
    with pytest.raises(ValueError, match="llama: quantization_config is given"):
        from_pretrained(theirs)
    theirs = tiny("llama")
    theirs.config.is_causal = False
    with pytest.raises(ValueError, match="llama: is_causal is False"):
        from_pretrained(theirs)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ValueError, match="model_type is 'mamba'"):
        from_pretrained(tmp_path)


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    theirs = tiny("llama")
    with pytest.raises(FileNotFoundError, match="nowhere is no folder"):
        from_pretrained(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    for cut in (0, 5, 200, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged or truncated"):
            from_pretrained(tmp_path)
    weights.unlink()
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin is a pickle, which is never read"):
        from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is no JSON"):
        from_pretrained(tmp_path)


def test_shards_that_are_missing_or_elsewhere_are_named(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path, max_shard_size="20KB")
    index = tmp_path / "model.safetensors.index.json"
    first = sorted(tmp_path.glob("model-*.safetensors"))[0]
    first.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=rf"{first.name} is missing, though model\.safetensors\.index\.json"):
        from_pretrained(tmp_path)
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "../secret.safetensors"}}))
    with pytest.raises(ValueError, match=r"names the file '\.\./secret\.safetensors'"):
        from_pretrained(tmp_path)
    for odd in (["a"], {"model.norm.weight": 3}):
        index.write_text(json.dumps({"weight_map": odd}))
        with pytest.raises(ValueError, match="weight_map must give each weight the name of its file"):
            from_pretrained(tmp_path)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    theirs = tiny("mixtral")
    theirs.save_pretrained(tmp_path)
    weights, file = safetensors.load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors"

    def read(changed: dict[str, Tensor]) -> None:
        safetensors.save_file(changed, file)
        from_pretrained(tmp_path)

    query = "model.layers.1.self_attn.q_proj.weight"
    with pytest.raises(ValueError, match=rf"the weight {query} is missing"):
        read({name: each for name, each in weights.items() if name != query})
    expert = "model.layers.0.mlp.experts.2.w3.weight"
    with pytest.raises(ValueError, match=rf"the weight {expert} is missing"):
        read({name: each for name, each in weights.items() if name != expert.replace(".mlp.", ".block_sparse_moe.")})
    with pytest.raises(ValueError, match=r"the weight model\.layers\.0\.adapter is read by nothing"):
        read({**weights, "model.layers.0.adapter": torch.zeros(1)})
    with pytest.raises(ValueError, match=rf"{query} .* has shape \[48, 32\]; the config asks for \[64, 32\]"):
        read({**weights, query: weights[query][:16].contiguous()})
