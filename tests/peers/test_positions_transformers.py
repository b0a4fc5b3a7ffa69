"""T5's buckets and biases and ALiBi's slopes equal those of transformers."""

from __future__ import annotations

import pytest
import torch

from attnops.biases import ALiBi, RelativeBias
from attnops.coords import Coords, resolve_coords
from attnops.pairs import Pairs

transformers = pytest.importorskip("transformers")
modeling_t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
modeling_bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
modeling_mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")

BUCKETS = [(32, 128), (32, 20), (64, 256), (8, 17), (320, 800), (33, 100), (4, 2)]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), BUCKETS)
def test_buckets(buckets: int, max_distance: int, bidirectional: bool) -> None:
    if not bidirectional and max_distance <= buckets // 2:
        max_distance = buckets
    ahead = torch.arange(-3000, 3001)
    theirs = modeling_t5.T5Attention._relative_position_bucket(ahead, bidirectional, buckets, max_distance)
    ours = RelativeBias(1, buckets, max_distance, bidirectional).bucket(torch.tensor(0), ahead)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("is_decoder", [False, True])
def test_a_t5_layers_bias(is_decoder: bool) -> None:
    config = transformers.T5Config(d_model=16, d_kv=4, num_heads=4, is_decoder=is_decoder)
    layer = modeling_t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    bias = RelativeBias(4, bidirectional=not is_decoder)
    with torch.no_grad():
        torch.nn.init.normal_(layer.relative_attention_bias.weight)
        bias.weight.copy_(layer.relative_attention_bias.weight)
    coords = resolve_coords(None, (1,), 150, 150, torch.device("cpu"))
    every = slice(0, 150)
    pairs = Pairs.grid(coords, (1,), 4, every, every, dtype=torch.float32, device=torch.device("cpu"))
    assert torch.equal(bias(pairs), layer.compute_bias(150, 150))


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20, 40, 71, 112, 128])
def test_slopes(heads: int) -> None:
    slopes = ALiBi(heads).slopes(torch.arange(heads), torch.float64)
    bloom = modeling_bloom.build_alibi_tensor(torch.ones(1, 2, dtype=torch.int64), heads, torch.float64)[:, 0, 1]
    mpt = -modeling_mpt.build_mpt_alibi_tensor(heads, 2)[:, 0, 0].double()
    torch.testing.assert_close(bloom, slopes, rtol=1e-5, atol=0)  # float32 powers of a float32 base
    torch.testing.assert_close(mpt, slopes, rtol=1e-6, atol=0)


def test_positions_are_those_of_the_coords() -> None:
    """A cached step of T5 reads the last row of the full bias."""
    bias = RelativeBias(2, bidirectional=False)
    torch.nn.init.normal_(bias.weight)
    device = torch.device("cpu")
    rows = []
    for num_queries in (9, 1):
        coords = resolve_coords((Coords(), Coords()), (1,), num_queries, 9, device)
        pairs = Pairs.grid(coords, (1,), 2, slice(0, num_queries), slice(0, 9), dtype=torch.float32, device=device)
        rows.append(bias(pairs)[:, :, -1])
    assert torch.equal(*rows)
