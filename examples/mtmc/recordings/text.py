"""Numbered lines of text, block by block, from a file, a gzipped file or an open stream, in bounded memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from examples.mtmc.errors import InputError
from examples.mtmc.recordings.cleaning import BROKEN, MALFORMED, Log

BLOCK = 1 << 18  # bytes read at a time
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LONGEST = 1 << 20  # bytes of the longest line that is a row at all
Progress = Callable[[int, float | None], None]  # rows so far, and the share of the file that is read (None: a stream)


def name_of(source: Path | IO[Any]) -> str:
    """What errors call a source."""
    return str(source) if isinstance(source, Path) else str(getattr(source, "name", "the stream"))


def blocks(
    source: Path | IO[Any], log: Log, progress: Progress | None = None, block: int = BLOCK
) -> Iterator[list[tuple[int, str]]]:
    """Lists of (line number, line without its end), blank lines left out.

    Of a file as many lines as ``block`` bytes hold; of a stream whatever is there by now, so that nothing waits.
    A line longer than ``LONGEST`` bytes is skipped.
    """
    name = name_of(source)
    number, rest, skipping = 0, b"", False  # skipping: inside a line that is too long
    for data, share in _read(source, log, block):
        *lines, rest = (rest + data).split(b"\n")
        if skipping and lines:
            lines[0], skipping = b"", False
        if skipping or len(rest) > LONGEST:
            if not skipping:
                log.rows += 1
                log.add(MALFORMED, name, number + len(lines) + 1, f"a line of over {LONGEST} bytes", "a row")
            rest, skipping = b"", True
        found = _decoded(lines, number, name, log)
        number += len(lines)
        if found:
            yield found
        if progress:
            progress(log.rows, share)
    if rest.strip() and (found := _decoded([rest], number, name, log)):
        yield found


def _decoded(lines: list[bytes], before: int, name: str, log: Log) -> list[tuple[int, str]]:
    found = []
    for number, line in enumerate(lines, before + 1):
        line = (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).strip()
        if not line:
            continue
        log.rows += 1
        try:
            found.append((number, line.decode("utf-8")))
        except UnicodeDecodeError:
            log.add(BROKEN, name, number, "text that is not UTF-8", "a file of rows")
    return found


def _read(source: Path | IO[Any], log: Log, block: int) -> Iterator[tuple[bytes, float | None]]:
    if not isinstance(source, Path):
        yield from ((data, None) for data in iter(_reader(source, block), b""))
        return
    try:
        total = max(source.stat().st_size, 1)
        with source.open("rb") as raw:
            packed = gzip.GzipFile(fileobj=raw) if source.suffix == ".gz" else raw
            while data := packed.read1(block):
                yield data, raw.tell() / total
    except FileNotFoundError:
        raise InputError(source, None, "no such file", "a file of rows") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        log.add(BROKEN, source, None, f"unreadable text ({type(error).__name__}: {error})", "a file of rows")
    except OSError as error:
        raise InputError(source, None, f"unreadable text ({type(error).__name__}: {error})", "a file of rows") from None


def _reader(stream: IO[Any], block: int) -> Callable[[], bytes]:
    """Reads what is there; waits only where nothing is."""
    binary = getattr(stream, "buffer", stream)
    if hasattr(binary, "read1"):
        return lambda: bytes(binary.read1(block))

    def read() -> bytes:
        data = binary.read(block)
        return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data or b"")

    return read
