"""Without a CUDA device the kernels run in Triton's interpreter, which is chosen before they are first imported."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from feeder.decoders import gpu

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _scalars_are_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter holds a scalar as an array of one element, which NumPy 2.4 takes for no number.

    Triton 3.6's can't count up to one in a loop then; compiled kernels can.
    """
    if os.environ.get("TRITON_INTERPRET") != "1" or not gpu.has_triton():
        return
    from triton.runtime import interpreter

    whole = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        whole(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)


@pytest.fixture
def device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
