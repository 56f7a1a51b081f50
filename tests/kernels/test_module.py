"""The native module as it is built: its SIMD level, and the names that it shows to the process."""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path

import pytest

from feeder import _native as native

NEEDED = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512vbmi"},
    "avx2": {"avx", "avx2", "fma", "f16c", "bmi2"},
}


def test_the_level_at_the_start_is_the_best_that_the_kernel_lists() -> None:
    flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text())) if platform.machine() == "x86_64" else set()
    has = [level for level in ("avx512", "avx2") if NEEDED["avx2"] <= flags and NEEDED[level] <= flags]
    assert native.simd_level() == [*has, "portable"][0]


@pytest.mark.parametrize("name", ["jpeg_read_header", "jsimd_idct_islow_sse2", "nb_func_new"])
def test_libraries_inside_stay_inside(name: str) -> None:
    with pytest.raises(AttributeError):
        getattr(ctypes.CDLL(str(native.__file__)), name)
