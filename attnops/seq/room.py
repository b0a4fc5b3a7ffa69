"""Whether so many beams make sense, and whether there is memory for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from attnops.seq.config import TransformerConfig

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # a container's own


def require_room(
    config: TransformerConfig, batch: int, beams: int, new: int, cached: Sequence[int], like: torch.Tensor
) -> None:
    """Raise `ValueError` for more beams than there are texts of `new` tokens, or than memory holds.

    Args:
        cached: how many tokens of a text each layer's cache holds at the end. like: a weight, for dtype and device.

    What a beam needs is counted from below (its logits and their logarithms, its keys and values), so that nothing is
    refused that would run: a process that the system ends for its memory leaves no word of why.
    """
    texts = config.vocab_size ** min(new, 62)  # a beam count is below 2^62
    if beams > texts:
        raise ValueError(
            f"num_beams is {beams}; it must be at most {config.vocab_size}^{new} = {texts}, the number of texts of "
            f"{new} tokens"
        )
    free = free_memory(like.device)
    one = batch * beam_bytes(config, cached, like.dtype.itemsize)
    if free is not None and beams * one > free:
        raise ValueError(
            f"num_beams is {beams}; it must be at most {free // one}, for a beam needs {one:,} bytes "
            f"with a batch of {batch}, and {free:,} are free"
        )


def beam_bytes(config: TransformerConfig, cached: Sequence[int], itemsize: int) -> int:
    """Bytes of a beam: logits, their logarithms and the sums in float32, and keys and values of the cached tokens."""
    if config.latent is not None:
        width = config.latent.rank
    else:
        width = 2 * (config.kv_heads or config.heads) * (config.head_dim or config.dim // config.heads)
    return config.vocab_size * (itemsize + 8) + sum(cached) * width * itemsize


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be taken on `device`; None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    known = re.search(r"MemAvailable:\s+(\d+) kB", _text("/proc/meminfo"))
    if device.type != "cpu" or known is None:
        return None
    return min([int(known[1]) * 1024, *(int(text) for text in map(_text, LIMITS) if text.strip().isdigit())])


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
