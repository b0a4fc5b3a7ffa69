"""Writing with a model: greedy, sampled, or by beams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnops.checks import require_number, require_positive
from attnops.seq.beams import beam_search
from attnops.seq.cache import Cache
from attnops.seq.decoder import Decoder
from attnops.seq.encoder_decoder import EncoderDecoder
from attnops.seq.steps import Steps


def generate(
    model: Decoder | EncoderDecoder,
    ids: Tensor,
    max_new_tokens: int,
    attention_mask: Tensor | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    num_beams: int = 1,
    eos_id: int | Sequence[int] | None = None,
    cache: str | Cache = "full",
    seed: int | None = None,
    *,
    pad_id: int | None = None,
    start_id: int | None = None,
    length_penalty: float = 1.0,
) -> Tensor:
    """Continue `ids [B, N]` by up to `max_new_tokens` tokens: `[B, N + new]`.

    Args:
        model: a `Decoder`, or an `EncoderDecoder`, which reads `ids` and writes from `start_id` on: `[B, 1 + new]`.
        attention_mask: `[B, N]`, 1 = real, 0 = padding; pad prompts on the left.
        temperature: 0 takes the likeliest token; else tokens are drawn from softmax(logits / temperature).
        top_k, top_p: draw among the k likeliest, or among the fewest whose probabilities add up to p.
        num_beams: how many candidates are held; the best by Σ log p / length^length_penalty is returned.
        eos_id: the id, or ids, that end a row; the rest of it is `pad_id` (the first `eos_id` where not given).
        cache: "full", "rolling", "paged", "none", or an empty `Cache`.
        seed: of the draws.

    The model runs as in evaluation, without gradients, and is left as it was.

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Source: top-p: Holtzman et al. 2020, arXiv:1904.09751.

    Example:
        >>> import torch
        >>> from attnops.seq import Decoder, TransformerConfig, generate
        >>> model = Decoder(TransformerConfig(vocab_size=10, dim=16, layers=1, heads=2))
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> generate(model, ids, 4).shape
        torch.Size([1, 7])
        >>> torch.equal(generate(model, ids, 4), generate(model, ids, 4, cache="none"))
        True
    """
    require_positive(num_beams=num_beams)
    if num_beams == 1:
        if isinstance(model, EncoderDecoder) and start_id is not None:
            written = [ids.new_full((ids.shape[0], 1), start_id)]
        else:
            written = [ids]
        tokens = stream(
            model, ids, max_new_tokens, attention_mask, temperature, top_k, top_p, eos_id, cache, seed,
            pad_id=pad_id, start_id=start_id,
        )  # fmt: skip
        written.extend(token.unsqueeze(1) for token in tokens)
        return torch.cat(written, 1)
    if temperature != 0.0:
        raise ValueError(
            f"temperature is {temperature} with num_beams={num_beams}; beams do not sample, so it must be 0"
        )
    require_positive(max_new_tokens=max_new_tokens)
    require_number(length_penalty=length_penalty)
    ends = _end_ids(eos_id)
    steps = Steps(model, ids, max_new_tokens, attention_mask, cache, start_id, rows=num_beams)
    with _evaluating(model), torch.no_grad():
        return beam_search(steps, max_new_tokens, num_beams, ends, _pad(pad_id, ends), length_penalty)


@torch.no_grad()
def stream(
    model: Decoder | EncoderDecoder,
    ids: Tensor,
    max_new_tokens: int,
    attention_mask: Tensor | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos_id: int | Sequence[int] | None = None,
    cache: str | Cache = "full",
    seed: int | None = None,
    *,
    pad_id: int | None = None,
    start_id: int | None = None,
) -> Iterator[Tensor]:
    """The new tokens as they are written, `[B]` at a time; arguments as `generate` has them.

    Example:
        >>> import torch
        >>> from attnops.seq import Decoder, TransformerConfig, stream
        >>> model = Decoder(TransformerConfig(vocab_size=10, dim=16, layers=1, heads=2))
        >>> [len(token) for token in stream(model, torch.tensor([[1, 2, 3]]), 4)]
        [1, 1, 1, 1]
    """
    require_positive(max_new_tokens=max_new_tokens)
    require_number(temperature=temperature)
    if temperature < 0:
        raise ValueError(f"temperature is {temperature}; it must be 0 (the likeliest token) or more")
    if top_k is not None:
        require_positive(top_k=top_k)
    if top_p is not None:
        require_number(top_p=top_p)
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p is {top_p}; it must be above 0 and at most 1")
    ends = _end_ids(eos_id)
    ended = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
    draws = None if seed is None else torch.Generator(ids.device).manual_seed(seed)
    with _evaluating(model):
        steps = Steps(model, ids, max_new_tokens, attention_mask, cache, start_id)
        logits = steps.first()
        for step in range(max_new_tokens):
            token = choose(logits, temperature, top_k, top_p, draws)
            if ends:
                token = torch.where(ended, _pad(pad_id, ends), token)
                ended = ended | torch.isin(token, torch.tensor(ends, device=token.device))
            yield token
            if step + 1 == max_new_tokens or (ends and bool(ended.all())):
                return
            logits = steps.next(token)


def choose(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, draws: torch.Generator | None
) -> Tensor:
    """A token for each row of `logits [B, V]`: the likeliest, or drawn."""
    if temperature == 0.0:
        return logits.argmax(-1)
    logits = logits.float() / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if top_p is not None and top_p < 1:
        ordered, index = logits.sort(-1, descending=True)
        weight = ordered.softmax(-1)
        beyond = weight.cumsum(-1) - weight >= top_p  # those before it reach p already
        logits = torch.full_like(logits, float("-inf")).scatter(-1, index, ordered.masked_fill(beyond, float("-inf")))
    return torch.multinomial(logits.softmax(-1), 1, generator=draws).squeeze(-1)


class _evaluating:
    """The model without dropout inside of the block, and as it was after."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.training = model, [module for module in model.modules() if module.training]

    def __enter__(self) -> None:
        for module in self.training:
            module.training = False

    def __exit__(self, *_: object) -> None:
        for module in self.training:
            module.training = True


def _end_ids(eos_id: int | Sequence[int] | None) -> list[int]:
    if eos_id is None:
        return []
    ends = [eos_id] if isinstance(eos_id, int) else list(eos_id)
    for end in ends:
        if isinstance(end, bool) or not isinstance(end, int) or end < 0:
            raise ValueError(f"eos_id holds {end!r}; an id must be an integer of 0 or more")
    return ends


def _pad(pad_id: int | None, ends: list[int]) -> int:
    return pad_id if pad_id is not None else ends[0] if ends else 0
