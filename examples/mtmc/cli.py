"""The command line: ``demo``, ``track`` and ``train``. Exit codes: 0 done, 2 bad input or usage, 130 interrupted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from examples.mtmc.errors import InputError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Global identities over many cameras.",
)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many simulated networks.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The seed of the first of them.")] = 0,
    small: Annotated[
        bool, typer.Option("--small", help="A few minutes of a quiet day: seconds, not a result.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes (default: one a core).")] = None,
) -> None:
    """Simulate a camera network, learn its prior, track, and compare with what needs no prior."""
    from examples.mtmc.demo import run_demo

    run_demo(out, range(first_seed, first_seed + seeds), small, workers, Console(markup=False, highlight=False))


@app.command()
def track(
    data: Annotated[Path, typer.Option(help="Folder with the tracklets; with --online also - for the standard input.")],
    format: Annotated[str, typer.Option(help="aicity, mot or campus.")],
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

        if learn_until is not None or cross_fit or miss or min_boxes > 1:
            raise typer.BadParameter(
                "goes with --data, --format, --links, --out and --latency alone", param_hint="--online"
            )
        console = Console(markup=False, highlight=False)
        run_online(Online(str(data), format, links, out, seconds(latency)), console)
        return
    protocol = Protocol(rate or None, not drop_single)
    run_track(
        data,
        format,
        links,
        out,
        Options(learn_until, cross_fit, min_boxes, miss, protocol),
        Console(markup=False, highlight=False),
    )


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Where to write the weights (safetensors).")],
    seed: Annotated[int, typer.Option(help="The simulated network to train on.")] = 1000,
) -> None:
    """Train the matcher that track uses, on a simulated network."""
    from examples.mtmc.matching.pretrain import pretrain

    pretrain(out, seed, Console(markup=False, highlight=False))


def main() -> None:
    """Run a command; what a user's file got wrong is one line on the error stream."""
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (NotADirectoryError, PermissionError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == 130 and type(stop) is SystemExit:
            print("interrupted; nothing was written", file=sys.stderr)
        raise
