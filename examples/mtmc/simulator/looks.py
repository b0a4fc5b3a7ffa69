"""What people look like: colour, make and model as one would write them down, and embeddings that follow them."""

from __future__ import annotations

from bisect import bisect
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.simulator.town import Preset

DIMS = 32
# Shares as vehicles on a road have them: black and white are half, and a few models are many.
COLOURS = {
    "black": 0.27, "white": 0.25, "silver": 0.12, "grey": 0.12, "red": 0.10, "blue": 0.05, "green": 0.03, "brown": 0.02,
    "gold": 0.01, "teal": 0.01, "orange": 0.01, "yellow": 0.01,
}  # fmt: skip
MODELS, MODELS_PER_MAKE, MODEL_SKEW, MODEL_FLOOR = 130, 4, 1.0, 4.0
MISREAD = 0.0142  # of single attributes, so that colour and make of two readings differ in 5 % of the cases
OWN = 0.35  # how much of a look is a person's own where colour, make and model are shared
PIECE_NOISE = 0.35
Attributes = tuple[str, str, str]


class Looks:
    """Appearance: what a type looks like + what is one's own + the camera's shift + noise of the view, of unit length.

    Who shares colour, make and model with another shares most of the look as well.
    """

    def __init__(
        self, cameras: np.random.Generator, names: list[str], preset: Preset, attributes: dict[int, Attributes]
    ) -> None:
        self.noise = preset.view_noise
        self.shift = {name: preset.camera_shift * cameras.normal(size=DIMS) for name in names}
        self.types: dict[Attributes, NDArray[np.float64]] = {}
        self.people: dict[int, NDArray[np.float64]] = {}
        self.attributes = attributes

    def of(self, rng: np.random.Generator, identity: int) -> NDArray[np.float64]:
        """The look of one person, the same in every camera; drawn when first asked for."""
        if identity not in self.people:
            attributes = self.attributes[identity]
            if attributes not in self.types:
                self.types[attributes] = rng.normal(size=DIMS)
            own = rng.normal(size=DIMS)
            self.people[identity] = np.sqrt(1 - OWN**2) * self.types[attributes] + OWN * own
        return self.people[identity]


def drawn(rng: np.random.Generator) -> Attributes:
    """Colour, make and model of somebody."""
    model = bisect(_model_bounds(MODELS), rng.random())
    colour = list(COLOURS)[bisect(list(accumulate(COLOURS.values())), rng.random() * sum(COLOURS.values()))]
    return colour, f"make {model // MODELS_PER_MAKE + 1}", f"model {model + 1}"


@cache
def _model_bounds(models: int) -> list[float]:
    share = 1 / (np.arange(models) + MODEL_FLOOR) ** MODEL_SKEW
    bounds: list[float] = (share.cumsum() / share.sum())[:-1].tolist()
    return bounds


def read(rng: np.random.Generator, attributes: Attributes) -> Attributes:
    """The attributes as one reads them off a tracklet: each is wrong now and then."""
    colour, make, model = (o if rng.random() < MISREAD else a for a, o in zip(attributes, drawn(rng), strict=True))
    return colour, make, model
