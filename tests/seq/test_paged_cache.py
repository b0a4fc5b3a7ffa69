"""The paged cache: whatever rows do to one another's pages, each reads what a plain list would hold."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from torch import Tensor

from attnops import Mask, Pairs, Pattern, RotaryScaling, SlidingWindow, trace
from attnops.seq.cache import Held, KVCache
from attnops.seq.config import TransformerConfig
from attnops.seq.decoder import Decoder
from attnops.seq.mla import LatentConfig
from attnops.seq.page_table import PagesExhaustedError, PageTable
from attnops.seq.paged_cache import PagedCache

D64 = torch.float64
CPU = torch.device("cpu")


def keys_of(histories: list[list[Any]], count: int, real: Tensor | None = None) -> Tensor:
    """`[B, 1, N, 1]`: a key is a number that depends on all tokens up to its own, as in a model; NaN at padding."""
    keys = torch.full((len(histories), 1, count, 1), float("nan"), dtype=D64)
    for row, history in enumerate(histories):
        places = list(range(count)) if real is None else real[row].nonzero().flatten().tolist()
        for back, place in enumerate(reversed(places)):
            keys[row, 0, place, 0] = key_of(history[: len(history) - back])
    return keys


def key_of(history: list[Any]) -> float:
    return float(hash(tuple(history)) % 100_003)


def expected(history: list[Any]) -> list[float]:
    return [key_of(history[: end + 1]) for end in range(len(history))]


PROMPTS = ([], [1] * 9, [1] * 5 + [0] * 4, [0, 1, 1], [1, 1, 0, 1, 1])  # that begin alike, to be met again


def stored(cache: PagedCache, row: int) -> list[float]:
    """What lies in the pages of a row."""
    known, size, pool = cache.table.row(row), cache.table.page_size, cache._pools[0][0]
    return [float(pool[0, known.pages[place // size] * size + place % size, 0]) for place in range(known.length)]


def seen(held: Held, row: int, query: int) -> list[float]:
    """What a query of a row may attend, by the patterns and positions that came with the keys; oldest first."""
    keys = held.keys
    if keys.query_coords is not None:
        assert isinstance(keys.pattern, Mask) and keys.coords is not None
        allowed = keys.pattern.mask[query]
        at = keys.coords.data["position"].view(-1)
        found = sorted(zip(at[allowed].tolist(), held.key[0, 0, allowed, 0].tolist(), strict=True))
        assert [place for place, _ in found] == list(range(len(found)))
        return [value for _, value in found]
    lengths = None if keys.padding is None else keys.padding.key_lengths
    return held.key[row, 0, : None if lengths is None else int(lengths[row]), 0].tolist()


# ------------------------------------------------------------------------------------- any history, against plain lists
class Serving(RuleBasedStateMachine):
    """Rows come, grow, fork, fail and go; a dictionary of lists of (token, adapter) says what each must hold."""

    rows: Bundle[int] = Bundle("rows")

    @initialize(target=rows, pages=st.integers(2, 12), size=st.integers(1, 4))
    def make(self, pages: int, size: int) -> int:
        self.cache = PagedCache(pages, size)
        self.told: dict[int, list[tuple[int, Any]]] = {}
        self.prompts: dict[int, list[int]] = {}
        self.adapters: dict[int, Any] = {}
        return self.add([], None)

    @rule(target=rows, prompt=st.sampled_from(PROMPTS), adapter=st.sampled_from([None, "x"]))
    def add(self, prompt: list[int], adapter: str | None) -> int:
        row = self.cache.add(prompt, adapter=adapter)
        held = self.cache.held(row)
        assert held % self.cache.table.page_size == 0 and (held < len(prompt) or held == 0)
        self.told[row], self.prompts[row] = [(token, adapter) for token in prompt[:held]], prompt[held:]
        self.adapters[row] = adapter
        return row

    @rule(target=rows, row=rows)
    def fork(self, row: int) -> Any:
        if row not in self.told:
            return multiple()
        copy = self.cache.fork(row)
        self.told[copy], self.prompts[copy], self.adapters[copy] = list(self.told[row]), [], self.adapters[row]
        return copy

    @rule(row=consumes(rows))
    def free(self, row: int) -> None:
        if row in self.told:
            self.cache.free(row)
            del self.told[row], self.prompts[row]

    @rule(
        chosen=st.lists(rows, min_size=1, max_size=3, unique=True),
        wanted=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=3, max_size=3),
        fails=st.sampled_from([False, False, False, True]),
        one_row=st.booleans(),
    )
    def step(self, chosen: list[int], wanted: list[list[int]], fails: bool, one_row: bool) -> None:
        chosen = [row for row in chosen if row in self.told]
        if not chosen:
            return
        new = [self.prompts[row] or wanted[place] for place, row in enumerate(chosen)]
        count = max(map(len, new))
        if count == 0:
            return
        real = torch.tensor([[place >= count - len(tokens) for place in range(count)] for tokens in new])
        before = self._pages()
        self.cache.select(chosen)
        try:
            position = self.cache.begin(len(chosen), count, None if bool(real.all()) else real, CPU)
        except PagesExhaustedError:
            assert self._needed(chosen, new) > self._free()
            assert self._pages() == before
            return
        histories = [
            self.told[row] + [(token, self.adapters[row]) for token in tokens]
            for row, tokens in zip(chosen, new, strict=True)
        ]
        keys = keys_of(histories, count, real)
        held = (self.cache.update_one_row if one_row else self.cache.update)(0, keys, keys[..., :0])
        for place, history in enumerate(histories):
            assert seen(held, place, place * count) == expected(history)
            last = position.expand(len(chosen), count)[place][real[place]][-1:]
            assert last.tolist() == [len(history) - 1][: len(new[place])]
        if fails:
            return  # never committed: nothing happened
        self.cache.commit()
        for row, history in zip(chosen, histories, strict=True):
            self.told[row], self.prompts[row] = history, []

    def _pages(self) -> dict[int, list[int]]:
        """The pages that hold tokens of each row."""
        table = self.cache.table
        return {row: table.row(row).pages[: -(-table.row(row).length // table.page_size)] for row in self.told}

    def _needed(self, chosen: list[int], new: list[list[int]]) -> int:
        """Pages that the rows need after the step, those now shared and written into once for each."""
        table, needed = self.cache.table, 0
        for row, tokens in zip(chosen, new, strict=True):
            pages = table.row(row).pages
            needed += -(-(table.row(row).length + len(tokens)) // table.page_size) - len(pages)
            if tokens and table.row(row).length % table.page_size:
                needed += sum(pages[-1] in table.row(other).pages for other in self.told) > 1
        return needed

    def _free(self) -> int:
        table = self.cache.table
        return table.pages - len({page for row in self.told for page in table.row(row).pages})

    @invariant()
    def each_row_holds_its_own(self) -> None:
        if not hasattr(self, "cache") or not self.cache._pools:
            return
        for row, history in self.told.items():
            assert stored(self.cache, row) == expected(history)
        size = self.cache.table.page_size
        pages = {
            page for row in self.told for page in self.cache.table.row(row).pages[: -(-len(self.told[row]) // size)]
        }
        assert self.cache.memory() == len(pages) * size * 8

    @invariant()
    def every_page_is_somewhere(self) -> None:
        if not hasattr(self, "cache"):
            return
        table = self.cache.table
        held = [page for row in table.rows.values() for page in row.pages]
        assert sorted([*set(held), *table._idle, *table._blank]) == list(range(table.pages))
        assert table._holders == [held.count(page) for page in range(table.pages)]
        assert {page for page, _ in ((page, 0) for page in table._content_of)} == set(table._page_of.values())


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# ------------------------------------------------------------------------------------------------- cases from the field
def test_the_case_of_forks_that_do_not_write_into_each_other(cases: ModuleType) -> None:
    given, want = cases.CASES["B43"]()
    cache, rows, found = PagedCache(16, given["page_size"]), {"P": None}, {}
    rows = {"P": cache.add()}
    for what, name, more in given["ops"]:
        if what == "append":
            cache.select([rows[name]])
            cache.begin(1, len(more), None, CPU)
            key = torch.tensor(more, dtype=D64).view(1, 1, -1, 1)
            cache.update(0, key, key)
            cache.commit()
        elif what == "fork":
            rows[more] = cache.fork(rows[name])
        else:
            found[name] = torch.tensor(stored(cache, rows[name]), dtype=D64)
            cache.free(rows.pop(name))
    assert torch.equal(found["A"], want["A_before_free"])
    for name in ("B", "P"):
        assert torch.equal(torch.tensor(stored(cache, rows[name]), dtype=D64), want[name])


def test_the_case_of_blocks_that_may_be_the_same(cases: ModuleType) -> None:
    given, want = cases.CASES["B42"]()
    blocks, size = given["blocks"], given["block_size"]
    for a, (tokens, before, adapter, salt) in enumerate(blocks):
        for b, (tokens_b, before_b, adapter_b, salt_b) in enumerate(blocks):
            table = PageTable(16, size)
            first = table.add([*before, *tokens], adapter, salt)
            table.reserve({first: len(before) + len(tokens)})
            table.commit()
            second = table.add([*before_b, *tokens_b, 7, 7, 7, 7, 7], adapter_b, salt_b)
            block = len(before_b) // size
            shared = len(table.row(second).pages) > block
            full = len(tokens) == size  # a partial block is equal to itself, and still not shared
            assert shared == (bool(want["may_share"][a, b]) and full), (a, b)


def test_the_page_unused_for_longest_is_evicted_and_the_end_of_a_text_before_its_beginning() -> None:
    table = PageTable(pages=4, page_size=2)
    for text in ([1, 2, 3, 4, 5], [6, 7, 8]):
        row = table.add(text)
        table.reserve({row: len(text) - table.row(row).length})
        table.commit()
        table.free(row)
    # registered and idle: 12, 34 and 67; blank: one page
    row = table.add()
    table.reserve({row: 3})
    table.commit()
    assert [table.row(table.add(text)).length for text in ([1, 2, 3, 4, 5], [6, 7, 8])] == [2, 2]


def test_two_rows_that_compute_the_same_at_once_end_in_one_set_of_pages() -> None:
    table = PageTable(8, 2)
    rows = [table.add([1, 2, 3, 4, 5]) for _ in range(2)]
    table.reserve(dict.fromkeys(rows, 5))
    assert table.pages_held() == 0
    table.commit()
    assert table.pages_held() == 4  # 12 and 34 shared, 5 apart


# --------------------------------------------------------------------------------------------------------- with a model
class EveryThirdKey(Pattern):
    """A pattern that asks where a key is stored."""

    def allows(self, pairs: Pairs) -> Tensor:
        return (pairs.key.index % 3 == 0) | (pairs.key.position == pairs.query.position)


CONFIGS: list[dict[str, Any]] = [
    {},
    {"kv_heads": 1, "position": "alibi", "sinks": True},
    {"pattern": SlidingWindow(3)},
    {"position": "relative"},
    {"position": "learned", "softcap": 4.0},
    {"rotary_scaling": RotaryScaling.dynamic_ntk(2.0, 4), "layers": 1},
    {"latent": LatentConfig(rank=8)},
]


def make(options: dict[str, Any]) -> Decoder:
    torch.manual_seed(1)
    base: dict[str, Any] = {"vocab_size": 20, "dim": 16, "layers": 2, "heads": 2}
    model = Decoder(TransformerConfig(**{**base, **options})).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@pytest.mark.parametrize(
    "options", [*CONFIGS, {"pattern": EveryThirdKey()}], ids=lambda options: "-".join(options) or "plain"
)
@torch.no_grad()
def test_a_served_batch_is_each_text_alone(options: dict[str, Any]) -> None:
    """Ragged texts with a shared beginning, prefilled one by one and decoded together, and none knows of the others."""
    model = make(options)
    prefix = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    texts = [[*prefix, *tail] for tail in ([7], [8, 8, 2], [1, 2, 3, 4, 5, 6], [7, 1])]
    cache, rows = PagedCache(pages=40, page_size=4), []
    for text in texts:
        rows.append(cache.add(text))
        cache.select(rows[-1:])
        model(torch.tensor([text[cache.held(rows[-1]) :]]), cache=cache)
    assert [cache.held(row) for row in rows] == [len(text) for text in texts]
    assert cache.table.pages_held() < sum(-(-len(text) // 4) for text in texts)
    tolerance: dict[str, float] = {"atol": 1e-6, "rtol": 1e-6}
    for step in range(5):
        if step == 3:  # one is done; the others go on
            cache.free(rows.pop(1))
            texts.pop(1)
        else:
            cache.select(rows)
        texts = [[*text, (step * 7 + place) % 20] for place, text in enumerate(texts)]
        with trace() as plans:
            logits = model(torch.tensor([text[-1:] for text in texts]), cache=cache)
        assert len(plans) == len(model.blocks), "the whole batch is one call of attend a layer"
        for text, found in zip(texts, logits, strict=True):
            torch.testing.assert_close(found[-1], model(torch.tensor([text]))[0, -1], **tolerance)


@pytest.mark.parametrize("options", CONFIGS, ids=lambda options: "-".join(options) or "plain")
@torch.no_grad()
def test_it_is_the_cache_that_grows(options: dict[str, Any]) -> None:
    model = make(options)
    ids = torch.randint(20, (3, 11))
    mask = torch.tensor([[0] * 4 + [1] * 7, [1] * 11, [0] * 1 + [1] * 10])
    for given, real in ((ids, None), (ids, mask), (ids[:1], None), (ids[:1], mask[:1])):
        caches = PagedCache(30, 4), KVCache()
        for start, end in ((0, 6), (6, 7), (7, 9), (9, 10)):
            part = given[:, start:end]
            attention_mask = None if real is None else real[:, :end]
            found, want = (model(part, attention_mask, cache) for cache in caches)
            keep = slice(None) if real is None else real[:, start:end].bool()
            torch.testing.assert_close(found[keep], want[keep], atol=1e-6, rtol=1e-6)
        index = torch.arange(len(given)).flip(0).repeat(2)
        for cache in caches:
            cache.reorder(index)
        found, want = (model(given[index, 10:], cache=cache) for cache in caches)
        torch.testing.assert_close(found, want, atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_pages_exhausted_is_one_error_and_nothing_changed() -> None:
    model = make({})
    cache = PagedCache(pages=3, page_size=4)
    ids = torch.randint(20, (1, 13))
    with pytest.raises(PagesExhaustedError, match="needs 4 more pages of 4 tokens, and 3 of all 3 pages are free"):
        model(ids, cache=cache)
    assert (cache.length, cache.rows, cache.table.rows) == (0, [], {})
    model(ids[:, :11], cache=cache)
    with pytest.raises(PagesExhaustedError):
        model(ids[:, 11:], cache=cache)
    assert cache.length == 11
    torch.testing.assert_close(
        model(ids[:, 11:12], cache=cache)[0, -1], model(ids[:, :12])[0, -1], atol=1e-6, rtol=1e-6
    )


@torch.no_grad()
def test_a_step_that_fails_in_a_layer_never_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make({})
    ids = torch.randint(20, (2, 10))
    cache = PagedCache(pages=12, page_size=4)

    def fail(*_: Any) -> Tensor:
        raise KeyboardInterrupt

    def try_(part: Tensor) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(model.blocks[1], "forward", fail)
            with pytest.raises(KeyboardInterrupt):
                model(part, cache=cache)

    try_(ids[:1, :9])  # another batch size, before anything is held
    model(ids[:, :6], cache=cache)
    held = cache.memory()
    try_(ids[:, 6:])
    assert (cache.length, cache.memory()) == (6, held)
    torch.testing.assert_close(model(ids[:, 6:], cache=cache), model(ids)[:, 6:], atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_memory_is_the_formula() -> None:
    model = make({"kv_heads": 1})
    cache = PagedCache(pages=64, page_size=4)
    model(torch.randint(20, (3, 10)), cache=cache)
    assert cache.memory() == 2 * 2 * (3 * 3) * 4 * 1 * 8 * 8  # 2 · layers · pages · size · Hkv · D · bytes


def test_a_bad_call_is_named() -> None:
    model = make({})
    cache = PagedCache(8, 4)
    with pytest.raises(ValueError, match="page_size"):
        PagedCache(8, 0)
    with pytest.raises(ValueError, match=r"key needs a gradient.*no_grad"):
        model(torch.tensor([[1]]), cache=cache)
    with torch.no_grad():
        model(torch.tensor([[1], [2]]), cache=cache)
        with pytest.raises(ValueError, match="ids has 1 rows; this cache holds 2"):
            model(torch.tensor([[1]]), cache=cache)
    for call in (cache.held, cache.fork, cache.free):
        with pytest.raises(ValueError, match="row is 99"):
            call(99)
    with pytest.raises(ValueError, match="once"):
        cache.select([cache.rows[0]] * 2)
