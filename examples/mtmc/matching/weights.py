"""The matcher that ``track`` uses: trained on simulations, kept as safetensors beside this file."""

from __future__ import annotations

from pathlib import Path

import torch

from examples.mtmc.atomic import replaced
from examples.mtmc.matching.calibration import Calibration
from examples.mtmc.matching.matcher import Matcher

DEFAULT = Path(__file__).with_name("matcher.safetensors")


def save_matcher(path: Path, state: dict[str, torch.Tensor], threshold: float, calibration: Calibration) -> None:
    """Write the weights with the threshold and calibration that belong to them; whole or not at all."""
    from safetensors.torch import save_file

    numbers = {"threshold": threshold, "temperature": calibration.temperature, "offset": calibration.offset}
    described = {name: repr(float(value)) for name, value in numbers.items()}
    with replaced(path) as draft:
        save_file({name: value.contiguous() for name, value in state.items()}, draft, described)


def load_matcher(path: Path = DEFAULT) -> tuple[Matcher, float]:
    """The matcher with bias, ready to score, and its threshold."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}
        threshold = float(file.metadata()["threshold"])
    matcher = Matcher()
    matcher.load_state_dict(state)
    return matcher.eval(), threshold


def load_calibration(path: Path = DEFAULT) -> Calibration:
    """The calibration that was fitted with the weights."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    return Calibration(float(about["temperature"]), float(about["offset"]))
