"""A linear layer of few rows, as a step of decoding has, in the compiled library."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from attnops.kernels import library


class _LinearRows(ctypes.Structure):
    """`LinearRows` of csrc/interface.h."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("in", ctypes.c_int64),
        ("out", ctypes.c_int64),
        ("is_double", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("x_row", ctypes.c_int64),
        ("weight_row", ctypes.c_int64),
        ("y", ctypes.c_void_p),
    )


def linear_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x [*, in] · weightᵀ [out, in] + bias [out]`, all float32 or all float64, on the CPU.

    A row of the result is the same whichever rows stand beside its own.
    """
    rows = library.readable_rows(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))
    weight = library.readable_rows(weight)
    y = x.new_empty(*x.shape[:-1], weight.shape[0])
    call = _LinearRows(
        rows.shape[0],
        rows.shape[1],
        weight.shape[0],
        x.dtype == torch.float64,
        library.threads(),
        library.address(rows),
        library.address(weight),
        library.pointer(bias),
        rows.stride(0),
        weight.stride(0),
        library.address(y),
    )
    library.call("attnops_linear_rows", call)
    return y


library.require_size("attnops_linear_rows", _LinearRows)
