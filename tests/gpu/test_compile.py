"""The kernels are such that Triton's compiler takes them, which its interpreter does not show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from feeder.decoders import gpu


@pytest.mark.slow
@pytest.mark.skipif(not gpu.has_triton(), reason="Triton is not installed")
def test_every_kernel_compiles_for_a_gpu(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.gpu.compile_kernels"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
