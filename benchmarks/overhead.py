"""What `attend` costs above the torch call that it ends in, on a small problem (B1 H8 N64 D64)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import attnops
from benchmarks import _side_by_side as side


def main() -> None:
    options = side.arguments(__doc__ or "")
    rounds = 20 if options.small else 2000
    query, key, value = torch.randn(3, 1, 8, 64, 64)
    grouped_key, grouped_value = key[:, :2].contiguous(), value[:, :2].contiguous()
    causal, alibi = attnops.Causal(), attnops.ALiBi(8)
    position = torch.arange(64)
    slopes = 2.0 ** -torch.arange(1, 9).view(8, 1, 1)
    mask = (-slopes * (position[:, None] - position).abs()).masked_fill(position > position[:, None], float("-inf"))
    graph = attnops.Edges(torch.randint(0, 64, (2, 512)), 64, 64)
    cases = {
        "no pattern": (
            lambda: attnops.attend(query, key, value),
            lambda: F.scaled_dot_product_attention(query, key, value),
        ),
        "causal": (
            lambda: attnops.attend(query, key, value, pattern=causal),
            lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        ),
        "causal, 8 heads on 2": (
            lambda: attnops.attend(query, grouped_key, grouped_value, pattern=causal),
            lambda: F.scaled_dot_product_attention(query, grouped_key, grouped_value, is_causal=True, enable_gqa=True),
        ),
        "causal + ALiBi": (
            lambda: attnops.attend(query, key, value, pattern=causal, bias=alibi),
            lambda: F.scaled_dot_product_attention(query, key, value, mask),
        ),
    }
    rows = []
    for name, (ours, theirs) in cases.items():
        side.assert_equal_numbers([ours()], [theirs()], name)
        taken = side.seconds({"attend": ours, "torch": theirs}, rounds)
        attend, torchs = taken["attend"] * 1e6, taken["torch"] * 1e6
        rows.append({"problem": name, "attend_us": attend, "torch_us": torchs, "overhead_us": attend - torchs})
    edges = side.seconds({"attend": lambda: attnops.attend(query, key, value, pattern=graph)}, rounds)
    rows.append({"problem": "512 edges", "attend_us": edges["attend"] * 1e6})
    side.write(options, "overhead", rows)


if __name__ == "__main__":
    main()
