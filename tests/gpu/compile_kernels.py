"""Compiles every kernel for a GPU that need not be there; a script, as the interpreter's kernels can't be compiled.

python -m tests.gpu.compile_kernels
"""

from __future__ import annotations

import itertools
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from feeder._gpu import normalize_kernel, resize_kernel

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    "images": "*u8",
    **dict.fromkeys(("scale", "bias", "factors", "means", "erase_value", "sources"), "*fp32"),
    **dict.fromkeys(("turns", "steps", "boxes", "partners", "mix_box"), "*i32"),
    **dict.fromkeys(("places", "sums"), "*i64"),
    **dict.fromkeys(("count", "pixels"), "i32"),
    "lam": "fp32",
}
SIZE = {"HEIGHT": 224, "WIDTH": 192}


def compile_for_gpu(kernel: Any, out: str, **constants: Any) -> None:
    """Down to machine code, as a launch with such arguments would."""
    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else TYPES.get(name, out) for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature=types, constexprs=values)
    compiled = triton.compile(source, target=HOPPER, options=dict(normalize_kernel.COMPILE))
    assert compiled.asm["cubin"]


def main() -> None:
    some = [(False, False, False), (True, True, False), (True, True, True)]
    for (turn, affine, erase), out in zip(some, ("*u8", "*fp16", "*bf16"), strict=True):
        flags = {**SIZE, "TURN": turn, "AFFINE": affine, "ERASE": erase}
        compile_for_gpu(normalize_kernel._elements_kernel, out, **flags, BLOCK=1024, IMAGES=4)
        compile_for_gpu(
            resize_kernel._crop_resize_kernel, out, **flags, ROUND=out == "*u8", CHANNELS_LAST=turn, BLOCK=128
        )
    for nchw, rest in itertools.product((False, True), (False, True)):
        flags = {**SIZE, "NCHW": nchw, "CHANNELS_LAST": rest, "TURN": rest, "AFFINE": True, "ERASE": rest, "MIX": rest}
        compile_for_gpu(normalize_kernel._pixels_kernel, "*fp32", **flags, STEPS=3 * rest, BLOCK=1024)
    compile_for_gpu(normalize_kernel._gray_sum_kernel, "", NCHW=True, STEPS=3, BLOCK=1024)


if __name__ == "__main__":
    main()
