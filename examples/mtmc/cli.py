"""The command line. Exit codes: 0 done, 2 bad input (one line says what) or usage (typer's lines), 130 interrupted.

Every command shows one progress line and one table; with ``--json`` its result goes to the standard output as JSON and
all else to the error stream.
"""

from __future__ import annotations

import json as as_json
import sys
from pathlib import Path
from typing import Annotated

import typer

from examples.mtmc.errors import InputError
from examples.mtmc.terminal import answer, console

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Global identities over many cameras.",
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, all else on the error stream.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many simulated networks.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The seed of the first of them.")] = 0,
    small: Annotated[
        bool, typer.Option("--small", help="A few minutes of a quiet day: seconds, not a result.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes (default: one a core).")] = None,
    json: Json = False,
) -> None:
    """Simulate a camera network, learn its prior, track, and compare with what needs no prior."""
    from examples.mtmc.demo import run_demo

    run_demo(out, range(first_seed, first_seed + seeds), small, workers, console(json))
    answer(as_json.loads((out / "summary.json").read_text(encoding="utf-8")), json)


@app.command()
def track(
    data: Annotated[Path, typer.Option(help="Folder with the tracklets; with --online also - for the standard input.")],
    format: Annotated[str, typer.Option(help="aicity, mot, campus, csv or parquet.")],
    links: Annotated[Path, typer.Option(help="The links file (YAML or JSON).")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    learn_until: Annotated[
        float | None, typer.Option(help="Learn links from true identities before this second; score what is later.")
    ] = None,
    cross_fit: Annotated[
        bool, typer.Option("--cross-fit", help="Learn links from all true identities but those judged.")
    ] = False,
    min_boxes: Annotated[int, typer.Option(min=1, help="Drop shorter tracklets.")] = 1,
    miss: Annotated[float, typer.Option(min=0, max=0.9, help="Take out a share of boxes first, to test.")] = 0.0,
    rate: Annotated[float, typer.Option(min=0, help="Steps a second to score at; 0: every frame.")] = 1.0,
    drop_single: Annotated[
        bool, typer.Option("--drop-single", help="Score without identities of one camera (AI City's rule).")
    ] = False,
    weights: Annotated[Path | None, typer.Option(help="Of the matcher, as train writes them.")] = None,
    tolerant: Annotated[
        bool, typer.Option("--tolerant", help="Leave faulty rows out and count them; the default stops at the first.")
    ] = False,
    json: Json = False,
    online: Annotated[bool, typer.Option("--online", help="Decide while the rows come, within --latency.")] = False,
    latency: Annotated[str, typer.Option(help="Of --online: seconds of the stream, as 5s or 2.5.")] = "5s",
) -> None:
    """Give global identities to your own tracklets."""
    from examples.mtmc.recordings.readers import FORMATS
    from examples.mtmc.scoring.evaluate import Protocol
    from examples.mtmc.track import Options, run_track

    if format not in FORMATS:
        raise typer.BadParameter(f"{format!r}; it must be one of {', '.join(FORMATS)}", param_hint="--format")
    if online:
        from examples.mtmc.online.run import Online, run_online, seconds

        if learn_until is not None or cross_fit or miss or min_boxes > 1 or weights is not None:
            raise typer.BadParameter(
                "goes with --data, --format, --links, --out and --latency alone", param_hint="--online"
            )
        run_online(Online(str(data), format, links, out, seconds(latency), json), console(json))
        return
    options = Options(
        learn_until, cross_fit, min_boxes, miss, Protocol(rate or None, not drop_single), weights, tolerant
    )
    answer(run_track(data, format, links, out, options, console(json)), json)


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Where to write the weights (safetensors).")],
    seed: Annotated[int, typer.Option(help="The simulated network to train on.")] = 1000,
    json: Json = False,
) -> None:
    """Train the matcher that track uses, on a simulated network."""
    from examples.mtmc.matching.pretrain import pretrain

    pretrain(out, seed, console(json))
    answer({"weights": str(out), "seed": seed}, json)


@app.command()
def campus(
    data: Annotated[Path, typer.Option(help="Folder of the CAMPUS auditorium (view-CAMERA.txt.gz).")],
    out: Annotated[Path | None, typer.Option(help="Folder for summary.json.")] = None,
    draws: Annotated[int, typer.Option(min=1, help="How many draws of missing boxes.")] = 5,
    json: Json = False,
) -> None:
    """Real data: what travel times and places are worth in the CAMPUS auditorium, left one out."""
    from examples.mtmc.real.report import run_campus

    answer(run_campus(data, out, draws, console(json)), json)


@app.command()
def roundabout(
    data: Annotated[Path, typer.Option(help="Folder of RoundaboutHD's matches (matches.csv).")],
    out: Annotated[Path | None, typer.Option(help="Folder for summary.json.")] = None,
    draws: Annotated[int, typer.Option(min=1, help="How many draws of mislabelled vehicles.")] = 5,
    json: Json = False,
) -> None:
    """Real data: RoundaboutHD's vehicles by attributes and order, against first in, first out."""
    from examples.mtmc.real.report import run_roundabout

    answer(run_roundabout(data, out, draws, console(json)), json)


@app.command()
def ablate(
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many simulated networks.")] = 3,
    small: Annotated[bool, typer.Option("--small", help="A few minutes of a quiet day: not a result.")] = False,
    preset: Annotated[str, typer.Option(help="Of the simulator: easy, real or hard.")] = "real",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes (default: one a core).")] = None,
    json: Json = False,
) -> None:
    """Take the matcher apart: every term of the prior, the score and the rounds has its row."""
    from examples.mtmc.ablation import run_ablation
    from examples.mtmc.simulator.town import PRESETS

    if preset not in PRESETS:
        raise typer.BadParameter(f"{preset!r}; it must be one of {', '.join(PRESETS)}", param_hint="--preset")
    answer(run_ablation(out, seeds, small, preset, workers, console(json)), json)


@app.command()
def simulate(
    out: Annotated[Path, typer.Option(help="Folder for the recording.")],
    preset: Annotated[str, typer.Option(help="easy, real or hard.")] = "real",
    seed: Annotated[int, typer.Option(min=0, help="The simulated network and its people.")] = 0,
    minutes: Annotated[float, typer.Option(min=1, max=600, help="How long the recording is.")] = 20.0,
    per_minute: Annotated[float | None, typer.Option(min=0.1, max=200, help="People a minute, else as preset.")] = None,
    json: Json = False,
) -> None:
    """Write a simulated recording to try track on; its figures are printed beside those of real networks."""
    from examples.mtmc.simulator.town import PRESETS
    from examples.mtmc.simulator.write import run_simulate

    if preset not in PRESETS:
        raise typer.BadParameter(f"{preset!r}; it must be one of {', '.join(PRESETS)}", param_hint="--preset")
    answer(run_simulate(out, preset, seed, minutes, per_minute, console(json)), json)


@app.command("learn-links")
def learn_links(
    data: Annotated[Path, typer.Option(help="Folder with the tracklets.")],
    format: Annotated[str, typer.Option(help="aicity, mot, campus, csv or parquet.")],
    links: Annotated[Path, typer.Option(help="A links file to start from; its cameras are enough.")],
    out: Annotated[Path, typer.Option(help="The links file to write (.yaml or .json).")],
    matches: Annotated[
        Path | None, typer.Option(help="A CSV of matches, or track's identities.csv, in place of ground truth.")
    ] = None,
    least_score: Annotated[
        float | None, typer.Option(help="Take matches of at least this score alone (log-odds; 3 is 95 %).")
    ] = None,
    until: Annotated[float | None, typer.Option(help="Look at what starts before this second alone.")] = None,
    discover: Annotated[
        bool, typer.Option("--discover", help="Add links that the file has not (always, where it has none).")
    ] = False,
    clocks: Annotated[
        bool, typer.Option("--clocks", help="Set clock offsets too, where views overlap and rows carry places.")
    ] = False,
    tolerant: Annotated[bool, typer.Option("--tolerant", help="Leave faulty rows out and count them.")] = False,
    json: Json = False,
) -> None:
    """Learn links, travel times and zones from labelled or from confident matches."""
    from examples.mtmc.links import Source, run_learn
    from examples.mtmc.recordings.readers import FORMATS

    if format not in FORMATS:
        raise typer.BadParameter(f"{format!r}; it must be one of {', '.join(FORMATS)}", param_hint="--format")
    source = Source(data, format, matches, least_score, until, tolerant)
    answer(run_learn(source, links, out, discover, clocks, console(json)), json)


@app.command("convert-links")
def convert_links(
    layout: Annotated[Path, typer.Option(help="A camera layout text of regob/vehicle_mtmc.")],
    out: Annotated[Path, typer.Option(help="The links file to write (.yaml or .json).")],
    names: Annotated[str | None, typer.Option(help="Names of the cameras, parted by commas.")] = None,
    json: Json = False,
) -> None:
    """Convert another tool's camera layout to a links file."""
    from examples.mtmc.links import run_convert

    given = None if names is None else [name.strip() for name in names.split(",")]
    answer(run_convert(layout, out, given, console(json)), json)


def main() -> None:
    """Run a command; what a user's file got wrong is one line on the error stream."""
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # whoever read our output has gone
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that cannot be written
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == 130 and type(stop) is SystemExit:
            print("interrupted; no result was written (finished seeds and training steps are kept)", file=sys.stderr)
        raise
