"""Values kept in a file and read back as they were: numbers, texts, arrays, tensors, and dataclasses of this example.

A digest, then a NumPy archive without pickles: the arrays, and a tree in JSON that says where they belong. A file whose
digest is another one is not believed.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.mtmc.atomic import replaced

PACKAGE = "examples.mtmc."


def keep(path: Path, value: Any) -> None:
    """Write a value; the file appears whole or not at all."""
    arrays: list[np.ndarray[Any, Any]] = []
    tree = json.dumps(_encode(value, arrays)).encode("utf-8")
    named = {f"a{n}": array for n, array in enumerate(arrays)}
    archive = io.BytesIO()
    np.savez_compressed(archive, tree=np.frombuffer(tree, dtype=np.uint8), **named)  # type: ignore[arg-type]
    body = archive.getvalue()
    with replaced(path) as draft:
        draft.write_bytes(hashlib.sha256(body).digest() + body)


def recall(path: Path) -> Any:
    """Read it back.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or no file of ours.
    """
    text = path.read_bytes()
    digest, body = text[:32], text[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError(f"{path} is damaged")
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            tree = json.loads(archive["tree"].tobytes())
            return _decode(tree, lambda n: np.asarray(archive[f"a{n}"]))
    except (KeyError, TypeError, AttributeError, ImportError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _encode(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float, np.bool_, np.integer, np.floating)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, torch.Tensor):
        arrays.append(value.detach().cpu().numpy())
        return {"tensor": len(arrays) - 1}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError("value holds an array of objects; arrays of numbers or texts can be kept")
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_encode(x, arrays) for x in value]}
    if isinstance(value, dict):
        return {"dict": [[_encode(k, arrays), _encode(v, arrays)] for k, v in value.items()]}
    kind = type(value)
    if is_dataclass(value) and kind.__module__.startswith(PACKAGE):
        own = [[f.name, _encode(getattr(value, f.name), arrays)] for f in fields(value)]
        return {"data": [kind.__module__.removeprefix(PACKAGE), kind.__qualname__, own]}
    raise TypeError(f"value holds a {kind.__qualname__}; numbers, texts, arrays and dataclasses can be kept")


def _decode(tree: Any, array: Callable[[int], np.ndarray[Any, Any]]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return torch.from_numpy(array(value).copy())
    if kind == "array":
        return array(value)
    if kind in ("list", "tuple"):
        items = [_decode(x, array) for x in value]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {_decode(k, array): _decode(v, array) for k, v in value}
    if kind != "data":
        raise ValueError(f"a tree with a {kind}")
    module, name, own = value
    made = getattr(importlib.import_module(PACKAGE + module), name)
    if not (isinstance(made, type) and is_dataclass(made)):
        raise ValueError(f"{module}.{name} is no dataclass")
    return made(**{field: _decode(x, array) for field, x in own})


def key(*settings: Any) -> str:
    """A digest of settings and of the code that makes results of them: other code, another key."""
    text = json.dumps([_encode(list(settings), []), _code()], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


@cache
def _code() -> str:
    """A digest of this example's and the library's sources, and of the libraries that do sums."""
    import attnops

    digest = hashlib.sha256(f"{torch.__version__} {np.__version__}".encode())
    for root in (Path(attnops.__file__).parent, Path(__file__).parent):
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
