"""Writing with a model: greedy, sampled, or by beams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnops.checks import require_index, require_number, require_positive
from attnops.seq.beams import beam_search
from attnops.seq.cache import Cache
from attnops.seq.decoder import Decoder
from attnops.seq.encoder_decoder import EncoderDecoder
from attnops.seq.evaluating import Evaluating
from attnops.seq.steps import Steps

SMALLEST = torch.finfo(torch.float32).tiny  # of temperatures


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
        temperature: 0 takes the likeliest token; else (1.2e-38 or more) tokens are drawn from
            softmax(logits / temperature).
        top_k, top_p: draw among the k likeliest, or among the fewest whose probabilities add up to p.
        num_beams: how many candidates are held; the best by Σ log p / length^length_penalty is returned. At most as
            many as there are texts of so many tokens, and as memory holds; temperature, top_k, top_p and seed are of
            draws, and there are none.
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
    require_positive(num_beams=num_beams, max_new_tokens=max_new_tokens)
    require_number(length_penalty=length_penalty)
    if abs(length_penalty) > 16:
        raise ValueError(f"length_penalty is {length_penalty}; it must be from -16 to 16")
    if num_beams == 1:
        tokens = stream(
            model, ids, max_new_tokens, attention_mask, temperature, top_k, top_p, eos_id, cache, seed,
            pad_id=pad_id, start_id=start_id,
        )  # fmt: skip
        new = torch.stack(list(tokens), 1)
        before = ids if start_id is None else ids.new_full((ids.shape[0], 1), start_id)
        return torch.cat((before, new), 1)
    _check_draws(temperature, top_k, top_p, seed)
    if temperature != 0.0:
        raise ValueError(
            f"temperature is {temperature} with num_beams={num_beams}; beams do not sample, so it must be 0"
        )
    for name, value in (("top_k", top_k), ("top_p", top_p), ("seed", seed)):
        if value is not None:
            raise ValueError(f"{name} is {value} with num_beams={num_beams}; beams do not sample, so it must be None")
    steps = Steps(model, ids, max_new_tokens, attention_mask, cache, start_id, rows=num_beams)
    ends = _end_ids(eos_id, model)
    pad = _pad(pad_id, ends, model.config.vocab_size)
    with Evaluating(model), torch.no_grad():
        return beam_search(steps, max_new_tokens, num_beams, ends, pad, length_penalty)


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
    _check_draws(temperature, top_k, top_p, seed)
    steps = Steps(model, ids, max_new_tokens, attention_mask, cache, start_id)
    ends = _end_ids(eos_id, model)
    pad = _pad(pad_id, ends, model.config.vocab_size)
    ended = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
    draws = None if seed is None else torch.Generator(ids.device).manual_seed(seed)
    with Evaluating(model):
        logits = steps.first()
    for step in range(max_new_tokens):
        token = choose(logits, temperature, top_k, top_p, draws)
        if ends:
            token = torch.where(ended, pad, token)
            ended = ended | torch.isin(token, torch.tensor(ends, device=token.device))
        yield token  # to somebody who may train the model before asking for the next
        if step + 1 == max_new_tokens or (ends and bool(ended.all())):
            return
        with Evaluating(model):
            logits = steps.next(token)


def choose(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, draws: torch.Generator | None
) -> Tensor:
    """A token for each row of `logits [B, V]`: the likeliest, or drawn."""
    if temperature == 0.0:
        return logits.argmax(-1)
    logits = logits.float()
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # so that a small temperature gives 0 and -inf
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if top_p is not None and top_p < 1:
        ordered, index = logits.sort(-1, descending=True)
        weight = ordered.softmax(-1)
        beyond = weight.cumsum(-1) - weight >= top_p  # those before it reach p already
        beyond[:, 0] = False  # also where p is 0 in float32
        logits = torch.full_like(logits, float("-inf")).scatter(-1, index, ordered.masked_fill(beyond, float("-inf")))
    return torch.multinomial(logits.softmax(-1), 1, generator=draws).squeeze(-1)


def _check_draws(temperature: float, top_k: int | None, top_p: float | None, seed: int | None) -> None:
    require_number(temperature=temperature)
    if temperature != 0 and temperature < SMALLEST:
        raise ValueError(
            f"temperature is {temperature}; it must be 0 (the likeliest token), or {SMALLEST:.3} or more, the smallest "
            "normal number of float32"
        )
    if top_k is not None:
        require_positive(top_k=top_k)
    if top_p is not None:
        require_number(top_p=top_p)
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p is {top_p}; it must be above 0 and at most 1")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"seed is {seed!r}; it must be an integer")
    if seed is not None and not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed is {seed}; it must be from -2^63 to 2^64 - 1")


def _end_ids(eos_id: int | Sequence[int] | None, model: Decoder | EncoderDecoder) -> list[int]:
    if eos_id is None:
        return []
    if not isinstance(eos_id, int | Sequence) or isinstance(eos_id, str):
        raise TypeError(f"eos_id is {type(eos_id).__name__}; it must be an id or a list of ids")
    ends = [eos_id] if isinstance(eos_id, int) else list(eos_id)
    for end in ends:
        require_index(model.config.vocab_size, eos_id=end)
    return ends


def _pad(pad_id: int | None, ends: list[int], vocab_size: int) -> int:
    if pad_id is None:
        return ends[0] if ends else 0
    require_index(vocab_size, pad_id=pad_id)
    return pad_id
