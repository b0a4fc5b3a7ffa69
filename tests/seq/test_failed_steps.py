"""A step that fails was never taken: wherever it fails, the cache is as it was, and the step can be taken again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attnops.seq import Cache, Decoder, EncoderDecoder, KVCache, PagedCache, RollingCache, TransformerConfig, stream

CACHES: dict[str, Callable[[], Cache]] = {
    "growing": KVCache,
    "rolling": lambda: RollingCache([8, 8]),
    "paged": lambda: PagedCache(pages=8, page_size=4),
}


class FailedError(Exception):
    pass


def fail(*_: object) -> None:
    raise FailedError


def decoder(**options: object) -> Decoder:
    torch.manual_seed(0)
    return Decoder(TransformerConfig(vocab_size=11, dim=8, layers=2, heads=2, **options)).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["embeddings", "blocks.0.attention.out", "blocks.1.feedforward", "norm", "head"])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("held", [0, 3])
def test_a_step_of_a_decoder(where: str, cache: str, held: int) -> None:
    model, ids, kept = decoder(), torch.tensor([[1, 2, 3, 4, 5]]), CACHES[cache]()
    with torch.no_grad():
        whole = model(ids)
        if held:
            model(ids[:, :held], cache=kept)
        hook = model.get_submodule(where).register_forward_pre_hook(fail)
        with pytest.raises(FailedError):
            model(ids[:, held:4], cache=kept)
        hook.remove()
        assert kept.length == held
        again = model(ids[:, held:4], cache=kept), model(ids[:, 4:], cache=kept)
    torch.testing.assert_close(torch.cat(again, 1), whole[:, held:])


@pytest.mark.parametrize("where", ["norm", "head"])
def test_a_step_of_an_encoder_decoder(where: str) -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(TransformerConfig(vocab_size=11, dim=8, layers=2, heads=2)).eval()
    source, ids, cache = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5, 6]]), KVCache()
    with torch.no_grad():
        model(source, ids[:, :1], cache=cache)
        hook = model.get_submodule(where).register_forward_pre_hook(fail)
        with pytest.raises(FailedError):
            model(source, ids[:, 1:2], cache=cache)
        hook.remove()
        assert cache.length == 1
        out = model(source, ids[:, 1:], cache=cache)
        torch.testing.assert_close(out, model(source, ids)[:, 1:])


@pytest.mark.parametrize("cache", CACHES)
def test_after_a_first_step_that_failed_another_dtype_may_begin(cache: str) -> None:
    model, ids, kept = decoder(), torch.tensor([[1, 2, 3]]), CACHES[cache]()
    with torch.no_grad():
        hook = model.blocks[1].register_forward_pre_hook(fail)
        with pytest.raises(FailedError):
            model(ids, cache=kept)
        hook.remove()
        torch.testing.assert_close(model.double()(ids, cache=kept), model(ids))


def test_pages_of_which_all_rows_are_free_begin_anew() -> None:
    model, cache = decoder(), PagedCache(pages=8, page_size=4)
    with torch.no_grad():
        model(torch.tensor([[1, 2], [3, 4]]), cache=cache)
        for row in list(cache.rows):
            cache.free(row)
        ids = torch.tensor([[5, 6, 7]] * 3)
        torch.testing.assert_close(model(ids, cache=cache), model(ids))


def test_a_model_is_left_as_it_was_between_two_tokens() -> None:
    model = decoder(dropout=0.9).train()
    right = list(stream(model, torch.tensor([[1, 2, 3]]), 4))
    tokens = stream(model, torch.tensor([[1, 2, 3]]), 4)
    got = []
    for token in tokens:
        got.append(token)
        assert all(module.training for module in model.modules())
    assert torch.equal(torch.stack(got), torch.stack(right))
