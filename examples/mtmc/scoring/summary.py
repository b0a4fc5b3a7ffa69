"""Scores of many seeds as mean and spread: for the screen, the page and ``summary.json``."""

from __future__ import annotations

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table as Screen

from examples.mtmc.matching.methods import MEANING
from examples.mtmc.page.table import Table

SHOWN = {
    "idf1": "IDF1",
    "hota": "HOTA",
    "assa": "AssA",
    "link_precision": "links: P",
    "link_recall": "links: R",
}
Scores = dict[str, dict[str, list[float]]]


def mean_and_spread(outcomes: list[dict[str, dict[str, float]]]) -> Scores:
    """Per row and score ``[mean, standard deviation over seeds]``."""
    rows: Scores = {}
    for row in outcomes[0]:
        rows[row] = {}
        for name in outcomes[0][row]:
            values = [outcome[row][name] for outcome in outcomes]
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            rows[row][name] = [round(float(np.mean(values)), 6), round(spread, 6)]
    return rows


def cells(scores: dict[str, list[float]], spread: bool) -> list[str]:
    """The shown scores of a row as text."""
    return [f"{scores[n][0]:.3f}±{scores[n][1]:.3f}" if spread else f"{scores[n][0]:.3f}" for n in SHOWN]


def screen_table(rows: Scores, seeds: int, title: str, strong: str = "gatv2_bias") -> Screen:
    """For the terminal; the row ``strong`` is set bold."""
    table = Screen(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("row", no_wrap=True)
    for name in SHOWN.values():
        table.add_column(name, justify="right", no_wrap=True)
    for row, scores in rows.items():
        table.add_row(row, *cells(scores, seeds > 1), style="bold" if row == strong else None)
    return table


def page_table(rows: Scores, seeds: int, caption: str, strong: str = "gatv2_bias") -> Table:
    """For the page; P and R are precision and recall of links, ``strong`` the row that stands out."""
    head = ["row", *SHOWN.values()]
    body = [[row, *cells(scores, seeds > 1)] for row, scores in rows.items()]
    if not all(row in MEANING for row in rows):
        return Table(caption, head, body)
    meaning = [[*line, MEANING[line[0]]] for line in body]
    return Table(caption, [*head, "what it is"], meaning, strong=strong, words=True)
