"""What `attend` costs above the torch call that it ends in, on a small problem (B1 H8 N64 D64).

Where vectors are turned or a learned table is read, that is work of its own: beside it stand the same steps written by
hand, with cos, sin and mask laid out beforehand.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import attnops
from benchmarks import _side_by_side as side

Run = Callable[[], Tensor]


def main() -> None:
    options = side.arguments(__doc__ or "")
    rounds = 20 if options.small else 300
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
    rotary, window, types = attnops.Rotary(64), attnops.SlidingWindow(16), torch.randint(0, 3, (64,))
    prior, nodes = attnops.TypePrior(3, 3, heads=8), attnops.Coords(type=types)
    torch.nn.init.normal_(prior.weight)
    near = torch.zeros(64, 64).masked_fill(
        (position[:, None] - position < 0) | (position[:, None] - position > 16), -torch.inf
    )
    cos, sin = (x.squeeze(0) for x in rotary.turning_waves(position[None]))

    def turned(x: Tensor) -> Tensor:
        return torch.addcmul(x * cos, x.roll(32, -1), sin)

    def table() -> Tensor:
        return prior.weight[types[:, None], types].permute(2, 0, 1)

    call = F.scaled_dot_product_attention
    combined: dict[str, tuple[Run, Run, Run]] = {
        "RoPE": (
            lambda: attnops.attend(query, key, value, bias=rotary),
            lambda: call(turned(query), turned(key), value),
            lambda: call(query, key, value),
        ),
        "RoPE, window": (
            lambda: attnops.attend(query, key, value, pattern=window, bias=rotary),
            lambda: call(turned(query), turned(key), value, near),
            lambda: call(query, key, value, near),
        ),
        "type prior": (
            lambda: attnops.attend(query, key, value, bias=prior, coords=nodes),
            lambda: call(query, key, value, table()),
            lambda: call(query, key, value, mask),
        ),
        "RoPE, window, type prior": (
            lambda: attnops.attend(query, key, value, pattern=window, bias=rotary + prior, coords=nodes),
            lambda: call(turned(query), turned(key), value, table() + near),
            lambda: call(query, key, value, mask),
        ),
    }
    rows = []
    for name, (ours, by_hand, bare) in combined.items():
        with torch.no_grad():
            side.assert_equal_numbers([ours()], [by_hand()], name)
            taken = side.seconds({"attend": ours, "by hand": by_hand, "torch": bare}, rounds)
        attend, hand, torchs = (taken[who] * 1e6 for who in ("attend", "by hand", "torch"))
        rows.append(
            {
                "problem": name, "attend_us": attend, "torch_us": torchs, "overhead_us": attend - torchs,
                "by_hand_us": hand, "over_by_hand_us": attend - hand,
            }
        )  # fmt: skip
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
