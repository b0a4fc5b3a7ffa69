"""What has no memory is not read as memory."""

from __future__ import annotations

import pytest
import torch

from attnops.kernels import library


def test_a_tensor_without_memory_is_named() -> None:
    tensor = torch.zeros(3, 4)
    assert library.address(tensor) == tensor.data_ptr() and library.pointer(None) is None
    assert library.address(torch.zeros(0, 4)) in (0, torch.zeros(0, 4).data_ptr())
    part = tensor[1:]
    tensor.untyped_storage().resize_(0)
    for each, shape in ((tensor, r"\[3, 4\]"), (part, r"\[2, 4\]")):
        with pytest.raises(RuntimeError, match=f"a tensor of shape {shape} has no memory"):
            library.pointer(each)
