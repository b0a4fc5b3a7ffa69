"""Where weights come from: a transformers model, or a folder with config.json and safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn


def read_model(model: nn.Module) -> tuple[Any, str, dict[str, Tensor]]:
    """(config, name of the class, weights) of a transformers model."""
    return model.config, type(model).__name__, dict(model.state_dict())


def read_folder(folder: Path, known: Iterable[str]) -> tuple[Any, str | None, dict[str, Tensor]]:
    """(config, name of the class where it is given, weights) of a folder in Hugging Face's format.

    Args:
        known: the architectures (`model_type`) that can be read.

    Raises:
        FileNotFoundError: no such folder, config.json or weights.
        ValueError: an architecture that is not known; a file that is damaged or truncated; by name.
        ImportError: transformers or safetensors is not installed.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; it must hold config.json and safetensors")
    values = _read_json(folder / "config.json")
    require_known(values.get("model_type"), known)
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise ImportError("from_pretrained needs transformers and safetensors (pip install 'attnops[hf]')") from error
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return config, (values.get("architectures") or [None])[0], _read_weights(folder)


def require_known(kind: object, known: Iterable[str]) -> None:
    """Raise `ValueError` for an architecture that no reader is there for."""
    if kind not in set(known):
        raise ValueError(f"model_type is {kind!r}, an architecture that is not supported; {', '.join(known)} are")


def _read_weights(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = _read_json(index).get("weight_map", {})
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ValueError(f"{index}: weight_map must give each weight the name of its file")
        files = sorted(set(names.values()))
    elif (folder / "model.safetensors").exists():
        files = ["model.safetensors"]
    else:
        pickles = [file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth")]
        hint = f"; {pickles[0]} is a pickle, which is never read: convert it to safetensors" if pickles else ""
        raise FileNotFoundError(f"{folder} holds no model.safetensors{hint}")
    tensors: dict[str, Tensor] = {}
    for name in files:
        if os.path.basename(name) != name:
            raise ValueError(f"{index} names the file {name!r}; it must lie in the folder itself")
        tensors.update(_read_safetensors(folder / name))
    return tensors


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not file.exists():
        raise FileNotFoundError(f"{file} is missing, though model.safetensors.index.json names it")
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged or truncated: {error}") from error


def _read_json(file: Path) -> dict[str, Any]:
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file} holds a {type(values).__name__}; it must be an object")
    return values
