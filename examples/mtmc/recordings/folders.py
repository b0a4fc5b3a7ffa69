"""Which files of a folder hold what, in each format; and all of a folder as one stream.

    aicity    *.txt: any cameras, ids are tracklets of their camera       ground_truth.txt: the same with global ids
    mot       CAMERA.txt                                                  gt/CAMERA.txt: the same with global ids
    campus    view-CAMERA.txt: ids are global, the truth itself           none
    csv       *.csv: a table with a header (``tables``)                   ground_truth.csv
    parquet   *.parquet: the same columns                                 ground_truth.parquet

Text files may be gzipped (``.gz`` after the name). Embeddings lie beside a text file under the same name, ending in
``.npy`` or ``.npz``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.mtmc.errors import InputError
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.chunk import Chunk
from examples.mtmc.recordings.cleaning import SILENT, UNKNOWN, Log
from examples.mtmc.recordings.merging import in_time_order
from examples.mtmc.recordings.stream import FORMATS, JUMP, chunks
from examples.mtmc.recordings.text import Progress

ONE_CAMERA = {"mot": "", "campus": "view-"}  # formats of one file a camera, and how its name begins
WHAT = {
    "aicity": "AI City rows (camera id frame x y w h xworld yworld)",
    "csv": "a table with the columns camera, id, frame, left, top, width, height",
    "parquet": "a table with the columns camera, id, frame, left, top, width, height",
}


@dataclass(frozen=True)
class Source:
    """One file of rows, and the camera that it is of where its rows do not say."""

    path: Path
    camera: str | None = None


def sources(folder: Path, format: str, network: Network, log: Log) -> tuple[list[Source], list[Source]]:
    """The files of tracklets and of ground truth."""
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; it must be one of {', '.join(FORMATS)}")
    if not folder.is_dir():
        raise InputError(folder, None, "no such folder", f"a folder of {format} files")
    if format in ONE_CAMERA:
        return _one_a_camera(folder, format, network, log)
    end = ".txt" if format == "aicity" else f".{format}"
    truth = [path for path in (folder / f"ground_truth{end}", folder / f"ground_truth{end}.gz") if path.is_file()]
    found = [path for path in _ending(folder, end) if path not in truth]
    if not found:
        raise InputError(folder, None, f"no {end} file", WHAT[format])
    return [Source(path) for path in found], [Source(path) for path in truth[:1]]


def _one_a_camera(folder: Path, format: str, network: Network, log: Log) -> tuple[list[Source], list[Source]]:
    begin = ONE_CAMERA[format]
    found: dict[str, Path] = {}
    for path in _ending(folder, ".txt"):
        if not path.name.startswith(begin):
            continue
        camera = _stem(path).removeprefix(begin)
        if camera in network.cameras:
            found.setdefault(camera, path)
        else:
            expected = f"the name of a camera of the links file ({', '.join(network.cameras)})"
            log.add(UNKNOWN, path, None, f"an unknown camera {camera}", expected)
    missing = [camera for camera in network.cameras if camera not in found]
    for camera in missing:
        if log.strict:
            raise InputError(folder / f"{begin}{camera}.txt", None, "no such file", "a file of rows")
        log.note(SILENT, folder / f"{begin}{camera}.txt", None, "no such file", "a file of rows")
    own = [Source(found[camera], camera) for camera in network.cameras if camera in found]
    truth = {_stem(path): path for path in _ending(folder / "gt", ".txt")} if format == "mot" else {}
    for camera in truth.keys() - network.cameras.keys():
        expected = f"the name of a camera of the links file ({', '.join(network.cameras)})"
        log.add(UNKNOWN, truth[camera], None, f"an unknown camera {camera}", expected)
    return own, [Source(truth[camera], camera) for camera in network.cameras if camera in truth]


def _ending(folder: Path, end: str) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.name.endswith((end, f"{end}.gz")) and path.is_file())


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".txt")


def folder_chunks(
    folder: Path,
    format: str,
    network: Network,
    log: Log,
    rows: int = 65536,
    *,
    time_order: bool = False,
    progress: Progress | None = None,
) -> Iterator[Chunk]:
    """The tracklets' rows of a whole folder: file after file, or (``time_order``) as a live stream would bring them.

    In order of time each file must be so itself; files that list one track after another cannot be merged without
    holding them whole.
    """
    jump = None if format == "campus" else JUMP
    own, _ = sources(folder, format, network, log)
    told = shares(progress, own)
    streams = [chunks(s.path, format, network, log, rows, camera=s.camera, jump=jump, progress=told[s]) for s in own]
    if time_order:
        yield from in_time_order(streams)
    else:
        for stream in streams:
            yield from stream


def shares(progress: Progress | None, files: list[Source]) -> dict[Source, Progress | None]:
    """For each file what to tell of it, so that ``progress`` hears the share of all files together."""
    if progress is None:
        return dict.fromkeys(files)
    size = {source: source.path.stat().st_size if source.path.is_file() else 0 for source in files}
    done = dict.fromkeys(files, 0.0)

    def teller(source: Source) -> Progress:
        def tell(rows: int, share: float | None) -> None:
            done[source] = size[source] * (1.0 if share is None else share)
            progress(rows, sum(done.values()) / max(sum(size.values()), 1))

        return tell

    return {source: teller(source) for source in files}
