"""A cache in pages: rows of any lengths over one pool, shared where they begin alike."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from attnops.coords import Coords
from attnops.patterns.blocks import Mask
from attnops.patterns.segments import Padding
from attnops.seq.cache import Cache, Held, are_alike, check_same
from attnops.seq.context import Keys
from attnops.seq.page_table import PagesExhaustedError, PageTable

COPY = 30  # copying a key and a value out of its page costs as much as so many pairs (measured: docs/seq/paged.md)


class PagedCache(Cache):
    """Keys and values in pages of a pool, each row with a table of its own; padding takes no place.

        2 · layers · pages held · page_size · Hkv · D · bytes

    Used like any cache, it makes a row for each of the batch. To serve requests that come and go, rows are made by
    `add`, which shares the pages of a beginning that is known, chosen for the next steps by `select`, and given back by
    `free`; `fork` continues one text in several ways, and copies a page only where one of them writes into it.

    A batch meets its keys in one call of `attend`, in whichever form is cheaper: all queries in one row over the pool
    as it lies, with a mask of who holds which page (nothing is copied; keys that rows share are read once), or each row
    with its pages gathered.

    Args:
        pages: pages of the pool, which is made in the first step. page_size: tokens of a page.

    Raises:
        PagesExhaustedError: a step needs more pages than are free; the cache is then as it was before.
        ValueError: another number of rows than is selected; an unknown row; keys that need a gradient.

    Source: Kwon et al. 2023 (vLLM), arXiv:2309.06180.

    Example:
        >>> import torch
        >>> from attnops.seq import Decoder, PagedCache, TransformerConfig
        >>> model = Decoder(TransformerConfig(vocab_size=10, dim=8, layers=2, heads=2)).eval()
        >>> cache, prompt = PagedCache(pages=16, page_size=4), [1, 2, 3, 4, 5, 6]
        >>> for request in range(2):
        ...     row = cache.add(prompt)
        ...     cache.select([row])
        ...     with torch.no_grad():
        ...         logits = model(torch.tensor([prompt[cache.held(row):]]), cache=cache)
        ...     print(logits.shape[1], "computed,", cache.table.pages_held(), "pages")
        6 computed, 2 pages
        2 computed, 3 pages
    """

    def __init__(self, pages: int, page_size: int = 16) -> None:
        super().__init__()
        self.table = PageTable(pages, page_size)
        self.rows: list[int] = []  # those that the next step continues
        self._pools: dict[int, tuple[Tensor, Tensor]] = {}  # [Hkv, pages · page_size, D]
        self._filled = False  # whether some step was committed, and with it the keys of every layer
        self._step: _Step | None = None

    # --------------------------------------------------------------------------------------------------------- rows
    def add(self, tokens: Sequence[int] | Tensor = (), adapter: Hashable = None, salt: Hashable = None) -> int:
        """A new row; with `tokens`, the text it will hold, it starts with the pages that are known already.

        The next steps must give it `tokens[held(row):]`: what they write is registered as just these tokens, which is
        not checked, since a cache sees keys and no ids; other tokens would be shared under a wrong name. Rows of
        another `adapter` or `salt` (other weights, other owners) share nothing.
        """
        return self.table.add(tokens.tolist() if isinstance(tokens, Tensor) else tokens, adapter, salt)

    def held(self, row: int) -> int:
        """How many tokens of a row are in the cache."""
        return self.table.row(row).length

    def select(self, rows: Sequence[int]) -> None:
        """The rows of the next steps' batch, in order."""
        for row in rows:
            self.table.row(row)
        if len(set(rows)) < len(rows):
            raise ValueError(f"rows is {list(rows)}; a row can be in a batch once (fork it)")
        self.rows, self.batch, self.length, self.real = list(rows), len(rows), 0, None

    def fork(self, row: int) -> int:
        """A new row that holds what `row` holds; they share its pages until one writes."""
        return self.table.fork(row)

    def free(self, row: int) -> None:
        """Forget a row; a batch goes on without it."""
        self.table.free(row)
        if row in self.rows:
            self.select([other for other in self.rows if other != row])
            self.batch = self.batch or None  # no row is left: the next step may begin with any number

    # --------------------------------------------------------------------------------------------------------- steps

    def begin(self, batch: int, count: int, real: Tensor | None, device: torch.device) -> Tensor:
        super().begin(batch, count, real, device)
        new = None if self._new_real is None else self._new_real[:, -count:]
        counts = [count] * batch if new is None else new.sum(-1).tolist()
        if self.batch is None:  # the first step, or the first that came to an end
            self._forget(self.rows)
            rows = [self.table.add() for _ in range(batch)]
        else:
            rows = self.rows
        try:
            copies = self.table.reserve(dict(zip(rows, counts, strict=True)))
        except PagesExhaustedError:
            if self.batch is None:
                self._forget(rows)
                self.rows = []
            raise
        self.rows = rows
        self._copy(copies)
        self._step = _Step(self.table, rows, counts, count, new, device)
        return self._step.position

    def update(self, layer: int, key: Tensor, value: Tensor) -> Held:
        step, (keys, values) = self._write(layer, key, value)
        read = step.line if step.in_line else step.gathered
        return Held(read(keys), read(values), step.keys)

    def update_one_row(self, layer: int, key: Tensor, value: Tensor) -> Held:
        assert self._step is not None
        if self._step.keys_of_pool is None:
            return self.update(layer, key, value)
        step, (keys, values) = self._write(layer, key, value)
        return Held(step.pool(keys), step.pool(values), self._step.keys_of_pool)

    def _write(self, layer: int, key: Tensor, value: Tensor) -> tuple[_Step, tuple[Tensor, Tensor]]:
        if key.requires_grad or value.requires_grad:
            raise ValueError("key needs a gradient; pages hold none: run the model under torch.no_grad()")
        assert self._step is not None
        pools = self._pools.get(layer)
        if pools is None and self._filled:
            raise ValueError(f"the pages hold no key of layer {layer}: another model filled them")
        if pools is None or not (self._filled or self._suit(pools, key, value)):  # left by a step never committed
            pools = self._pool(key), self._pool(value)
        for name, pool, new in zip(("key", "value"), pools, (key, value), strict=True):
            check_same(name, pool.expand(key.shape[0], -1, -1, -1), new)
        self._pools[layer] = pools
        for pool, new in zip(pools, (key, value), strict=True):
            self._step.write(pool, new)
        return self._step, pools

    def commit(self) -> None:
        super().commit()
        self.table.commit()
        self._filled, self._step = True, None

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        before, self.rows = self.rows, [self.table.fork(self.rows[i]) for i in index.tolist()]
        self._forget(before)

    def memory(self) -> int:
        page = sum(
            pool.shape[0] * self.table.page_size * pool.shape[2] * pool.element_size()
            for pools in self._pools.values()
            for pool in pools
        )
        return self.table.pages_held() * page

    def _forget(self, rows: list[int]) -> None:
        for row in rows:
            self.table.free(row)

    @staticmethod
    def _suit(pools: tuple[Tensor, Tensor], *new: Tensor) -> bool:
        return all(are_alike(pool.expand(x.shape[0], -1, -1, -1), x) for pool, x in zip(pools, new, strict=True))

    def _pool(self, like: Tensor) -> Tensor:
        """Zeros, since what lies in a page beyond its tokens must be finite."""
        return like.new_zeros(like.shape[1], self.table.pages * self.table.page_size, like.shape[3])

    def _copy(self, copies: list[tuple[int, int]]) -> None:
        size = self.table.page_size
        for source, target in copies:
            for pools in self._pools.values():
                for pool in pools:
                    pool[:, target * size : (target + 1) * size] = pool[:, source * size : (source + 1) * size]


class _Step:
    """Where the tokens of one step are written, and in which form queries meet the pool: the same for all layers."""

    def __init__(
        self,
        table: PageTable,
        rows: list[int],
        counts: list[int],
        count: int,
        real: Tensor | None,
        device: torch.device,
    ) -> None:
        held = [table.row(row) for row in rows]
        lengths = [row.length for row in held]
        totals = [length + new for length, new in zip(lengths, counts, strict=True)]
        self.size, self.rows, self.longest = table.page_size, len(rows), max(totals, default=0)
        width = -(-self.longest // self.size)
        listed = [row.pages + [0] * (width - len(row.pages)) for row in held]
        self.pages = torch.tensor(listed, dtype=torch.int64, device=device).view(len(rows), width)
        self.totals = torch.tensor(totals, dtype=torch.int64, device=device)

        step = torch.arange(count, device=device) if real is None else (real.long().cumsum(-1) - 1).clamp(min=0)
        self.place = torch.tensor(lengths, dtype=torch.int64, device=device).unsqueeze(1) + step  # [B, N]
        self.alike = real is None and len(set(lengths)) <= 1  # then all rows are the same line
        self.position = step + (lengths[0] if lengths else 0) if self.alike else self.place
        self.real = None if real is None else real.flatten()
        slots = self._slots()
        self.slots = slots if self.real is None else slots[self.real]

        self.top = int(self.pages.max()) + 1 if self.pages.numel() else 0
        self.in_line = width > 0 and self.rows == 1 and held[0].pages == list(range(self.top - width, self.top))
        self.keys = Keys() if self.alike else self._keys_of_rows()
        self.keys_of_pool: Keys | None = None
        if not self.in_line and count * self.top * self.size < (count + COPY) * self.longest:
            self.keys_of_pool = self._keys_of_pool(count)

    def write(self, pool: Tensor, new: Tensor) -> None:
        """Put the real ones of `new [B, Hkv, N, D]` where they belong."""
        rows = new.transpose(0, 1).flatten(1, 2)
        pool.index_copy_(1, self.slots, rows if self.real is None else rows[:, self.real])

    def pool(self, pool: Tensor) -> Tensor:
        """`[1, Hkv, slots, D]`: all that lies below the highest page in use, in place."""
        return pool[:, : self.top * self.size].unsqueeze(0)

    def line(self, pool: Tensor) -> Tensor:
        """`[1, Hkv, Nk, D]`, in place: the pages of the only row lie behind each other."""
        end = self.top * self.size
        return pool[:, end - self.pages.shape[1] * self.size : end][:, : self.longest].unsqueeze(0)

    def gathered(self, pool: Tensor) -> Tensor:
        """`[B, Hkv, Nk, D]`: a copy of the pages of each row behind each other."""
        heads, _, dim = pool.shape
        paged = pool.view(heads, pool.shape[1] // self.size, self.size * dim).index_select(1, self.pages.flatten())
        rows = paged.view(heads, self.rows, self.pages.shape[1] * self.size, dim)
        return rows.transpose(0, 1)[:, :, : self.longest]

    def _keys_of_rows(self) -> Keys:
        position = torch.arange(self.longest, device=self.pages.device)  # in each row no further than its own end
        position = position.minimum(self.totals.unsqueeze(1) - 1).clamp(min=0)
        return Keys(Coords(position=position), Padding(self.totals))

    def _keys_of_pool(self, count: int) -> Keys:
        """Which slot of the pool is whose: a page stands at the same place in every row that holds it."""
        index = torch.arange(self.pages.shape[1], device=self.pages.device).expand_as(self.pages)
        used = index * self.size < self.totals.unsqueeze(1)
        row = torch.arange(self.rows, device=self.pages.device).unsqueeze(1).expand_as(self.pages)
        holds = torch.zeros(self.rows, self.top, dtype=torch.bool, device=self.pages.device)
        holds[row[used], self.pages[used]] = True
        place = torch.zeros(self.top, dtype=torch.int64, device=self.pages.device)
        place[self.pages[used]] = index[used] * self.size
        position = (place.unsqueeze(1) + torch.arange(self.size, device=place.device)).flatten()
        allowed = holds.repeat_interleave(self.size, 1) & (position < self.totals.unsqueeze(1))  # [B, slots]
        return Keys(
            Coords(position=position),
            pattern=Mask(allowed.repeat_interleave(count, 0)),
            query_coords=Coords(position=self.place.reshape(1, -1)),
        )

    def _slots(self) -> Tensor:
        """The slot of each new token `[B · N]`; of a padded one, anything."""
        if self.pages.numel() == 0:
            return self.place.new_zeros(self.place.numel())
        page = (self.place // self.size).clamp(max=self.pages.shape[1] - 1)
        return (self.pages.gather(1, page) * self.size + self.place % self.size).flatten()
