"""Compiles what the ops launch, for a GPU that need not be there; a script, as interpreted kernels can't be compiled.

python -m tests.gpu.compile_kernels [CAPABILITY...]     (90: H100 and H200)
"""

from __future__ import annotations

import itertools
import sys
from typing import Any
from unittest import mock

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from feeder.decoders import gpu

SIZE, COUNT = (224, 192), 8
AFFINE: dict[str, Any] = {"affine": (torch.ones(3), torch.zeros(3))}
TURN = {"turn": torch.zeros(COUNT, dtype=torch.uint8)}
COLOR = {"color": gpu.Color(torch.zeros(COUNT, 4, dtype=torch.uint8), torch.ones(COUNT, 4))}


class Absent:
    """In the place of Triton's driver: a GPU of a compute capability, which takes no launches."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        return self._capability  # Triton keeps what it compiled for each

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)


def launches() -> None:
    """Both ops, each way that a kernel is specialized, with arguments as the decoders give them."""
    pixels = torch.zeros(COUNT, 3 * SIZE[0] * SIZE[1], dtype=torch.uint8)
    for layout, last in itertools.product(("nhwc", "nchw"), (False, True)):
        many: list[tuple[torch.dtype, dict[str, Any]]] = [
            (torch.uint8, {}),
            (torch.float16, AFFINE | TURN),
            (torch.bfloat16, AFFINE | TURN | COLOR),
        ]
        for dtype, options in many:
            gpu.normalize(pixels, SIZE, dtype=dtype, layout=layout, channels_last=last, **options)
    images = gpu.Ragged.of([torch.zeros((300, 400, 3), dtype=torch.uint8)] * COUNT)
    box = torch.tensor([[0, 0, 400, 300]] * COUNT)
    for last in (False, True):
        gpu.crop_resize(images, box.double(), box, SIZE, channels_last=last)


def other_counts() -> None:
    """Of images, as the last batch of an epoch has: what was compiled for the others has to do, and nothing waits."""
    for count in (1, 5, 16):
        pixels = torch.zeros(count, 3 * SIZE[0] * SIZE[1], dtype=torch.uint8)
        turn = torch.zeros(count, dtype=torch.uint8)
        for last in (False, True):
            gpu.normalize(pixels, SIZE, dtype=torch.float16, channels_last=last, turn=turn, **AFFINE)
        images = gpu.Ragged.of([torch.zeros((300, 400, 3), dtype=torch.uint8)] * count)
        box = torch.tensor([[0, 0, 400, 300]] * count)
        gpu.crop_resize(images, box.double(), box, SIZE, channels_last=True)


def compile_for(capability: int) -> int:
    """Down to machine code; returns how many kernels that are."""
    run, found = JITFunction.run, set()

    def compiled(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = run(kernel, *arguments, grid=grid, warmup=True, **options)
        assert made.asm["cubin"]
        found.add(made.hash)
        return made

    def always(*_: object) -> bool:
        return True

    with (
        mock.patch.object(JITFunction, "run", compiled),
        mock.patch.object(sys.modules["feeder.decoders.gpu.normalize"], "runs_triton", always),
        mock.patch.object(sys.modules["feeder.decoders.gpu.resize"], "runs_triton", always),
    ):
        driver.set_active(Absent(capability))
        launches()
        count = len(found)
        other_counts()
        assert len(found) == count, "another number of images has kernels compiled anew"
    return count


def main() -> None:
    for capability in [int(each) for each in sys.argv[1:]] or [90]:
        print(f"sm_{capability}: {compile_for(capability)} kernels")


if __name__ == "__main__":
    main()
