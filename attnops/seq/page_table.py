"""Which page of a pool holds which tokens of which row: shared, copied on write, evicted. No tensors here."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from attnops.checks import require_positive


class PagesExhaustedError(RuntimeError):
    """A step needs more pages than are free; nothing was changed."""


class Content(NamedTuple):
    """What a full page holds, exactly: compared as it is, so a collision of hashes costs time and never correctness."""

    before: int | None  # the stamp of the page before it, which stands for all tokens before
    tokens: tuple[int, ...]
    adapter: Hashable
    salt: Hashable


@dataclass
class Row:
    """One sequence: its pages, how many of its tokens they hold, and which tokens, as far as that is known."""

    pages: list[int] = field(default_factory=list)
    length: int = 0
    tokens: tuple[int, ...] = ()
    adapter: Hashable = None
    salt: Hashable = None
    stamps: list[int] = field(default_factory=list)  # of its first pages, those whose content is registered


class PageTable:
    """Rows of tokens over a pool of pages; a page may belong to several rows.

    A full page whose tokens are known is registered by its content: all tokens up to its end, the adapter and the salt.
    A new row shares the registered pages that it starts with. A page that no row holds any more stays registered until
    its place is needed; the one unused for longest goes first. Writing into a page that others hold copies it first.

    Args:
        pages: how many there are. page_size: tokens of one.

    Example:
        >>> from attnops.seq.page_table import PageTable
        >>> table = PageTable(pages=8, page_size=4)
        >>> first = table.add([1, 2, 3, 4, 5])
        >>> _ = table.reserve({first: 5}); table.commit()
        >>> second = table.add([1, 2, 3, 4, 6, 7])                        # starts alike
        >>> table.rows[second].length, table.pages_held()
        (4, 2)
    """

    def __init__(self, pages: int, page_size: int) -> None:
        require_positive(pages=pages, page_size=page_size)
        self.pages, self.page_size = pages, page_size
        self.rows: dict[int, Row] = {}
        self._next_row = self._next_stamp = 0
        self._holders = [0] * pages
        self._blank = list(range(pages))  # a heap: low pages first, so that the pool's used part stays short
        self._idle: OrderedDict[int, None] = OrderedDict()  # registered, held by no row; the oldest first
        self._page_of: dict[Content, int] = {}
        self._content_of: dict[int, tuple[Content, int]] = {}
        self._pending: dict[int, int] = {}  # tokens that a step has reserved and not committed

    def add(self, tokens: Sequence[int] = (), adapter: Hashable = None, salt: Hashable = None) -> int:
        """A new row for `tokens`, with the pages that are known already; at least one token is left to compute."""
        wrong = [token for token in tokens if isinstance(token, bool) or not isinstance(token, int)]
        if wrong:
            raise TypeError(f"tokens holds {wrong[0]!r}; every token must be an integer")
        self.rollback()
        row = Row([], 0, tuple(tokens), adapter, salt)
        while row.length + self.page_size < len(row.tokens):
            page = self._page_of.get(self._content(row, len(row.pages)))
            if page is None:
                break
            self._hold(page)
            row.pages.append(page)
            row.stamps.append(self._content_of[page][1])
            row.length += self.page_size
        return self._enter(row)

    def row(self, number: int) -> Row:
        """What is known of a row.

        Raises:
            ValueError: there is no such row.
        """
        if number not in self.rows:
            raise ValueError(f"row is {number!r}; the rows are {sorted(self.rows)}")
        return self.rows[number]

    def fork(self, row: int) -> int:
        """A row that holds what `row` holds, in the same pages; how it goes on is not known."""
        self.rollback()
        origin = self.row(row)
        for page in origin.pages:
            self._hold(page)
        known = origin.tokens[: origin.length]
        return self._enter(
            Row(list(origin.pages), origin.length, known, origin.adapter, origin.salt, list(origin.stamps))
        )

    def free(self, row: int) -> None:
        """Forget a row; its pages are free for others unless others hold them."""
        self.rollback()
        self.row(row)
        for page in reversed(self.rows.pop(row).pages):  # the end of a text is evicted before its beginning
            self._release(page)

    def reserve(self, counts: Mapping[int, int]) -> list[tuple[int, int]]:
        """Make room for so many new tokens in each row; the pages (from, to) to copy before anything is written.

        Raises:
            PagesExhaustedError: not enough pages; then nothing has changed.
        """
        self.rollback()
        needed, holders = 0, dict[int, int]()
        for number, count in counts.items():
            row = self.row(number)
            needed += max(0, self._pages(row.length + count) - len(row.pages))
            if self._writes_into_last(row, count):
                page = row.pages[-1]
                left = holders.get(page, self._holders[page])
                needed += left > 1
                holders[page] = left - (left > 1)
        free = len(self._blank) + len(self._idle)
        if needed > free:
            raise PagesExhaustedError(
                f"this step needs {needed} more pages of {self.page_size} tokens, and {free} of all {self.pages} pages "
                "are free; free rows, or give the cache more pages"
            )
        copies = []
        for number, count in counts.items():
            row = self.rows[number]
            if self._writes_into_last(row, count) and self._holders[row.pages[-1]] > 1:
                page = self._take()
                copies.append((row.pages[-1], page))
                self._release(row.pages[-1])
                row.pages[-1] = page
            row.pages += [self._take() for _ in range(self._pages(row.length + count) - len(row.pages))]
            self._pending[number] = count
        return copies

    def commit(self) -> None:
        """The reserved tokens are written: they count, and full pages whose tokens are known are registered."""
        for number, count in self._pending.items():
            self.rows[number].length += count
        for number in self._pending:
            self._register(self.rows[number])
        self._pending = {}

    def rollback(self) -> None:
        """Give back what was reserved by a step that was never committed."""
        for number in self._pending:
            row = self.rows[number]
            while len(row.pages) > self._pages(row.length):
                self._release(row.pages.pop())
        self._pending = {}

    def pages_held(self) -> int:
        """Pages with tokens of some row, each counted once."""
        return len({page for row in self.rows.values() for page in row.pages[: self._pages(row.length)]})

    # ------------------------------------------------------------------------------------------------------- pages

    def _pages(self, length: int) -> int:
        return -(-length // self.page_size)

    def _writes_into_last(self, row: Row, count: int) -> bool:
        return count > 0 and row.length % self.page_size > 0

    def _enter(self, row: Row) -> int:
        self._next_row += 1
        self.rows[self._next_row - 1] = row
        return self._next_row - 1

    def _take(self) -> int:
        """A page for one row to write into: a blank one, else the registered one that was unused for longest."""
        if self._blank:
            page = heapq.heappop(self._blank)
        else:
            page, _ = self._idle.popitem(last=False)
            content, _ = self._content_of.pop(page)
            del self._page_of[content]
        self._holders[page] = 1
        return page

    def _hold(self, page: int) -> None:
        self._holders[page] += 1
        self._idle.pop(page, None)

    def _release(self, page: int) -> None:
        self._holders[page] -= 1
        if self._holders[page] == 0:
            if page in self._content_of:
                self._idle[page] = None
            else:
                heapq.heappush(self._blank, page)

    def _content(self, row: Row, index: int) -> Content:
        tokens = row.tokens[index * self.page_size : (index + 1) * self.page_size]
        return Content(row.stamps[index - 1] if index else None, tokens, row.adapter, row.salt)

    def _register(self, row: Row) -> None:
        known = min(row.length, len(row.tokens)) // self.page_size
        for index in range(len(row.stamps), known):
            content, page = self._content(row, index), row.pages[index]
            same = self._page_of.get(content)
            if same is None:
                self._page_of[content], self._content_of[page] = page, (content, self._next_stamp)
                self._next_stamp += 1
            elif same != page:  # computed by two rows at once: one of the pages will do
                self._hold(same)
                self._release(page)
                row.pages[index] = page = same
            row.stamps.append(self._content_of[page][1])
