"""CMake's build of the CUDA kernels: for every architecture, without spills, and never one left by an earlier build."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.slow

ARCHITECTURES = {75, 80, 86, 89, 90, 100, 120}
MOST_REGISTERS = 64  # with 64 or 128 threads a block, all of a multiprocessor's 1,024 threads and more have theirs
MOST_BYTES = 1 << 19
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def cmake(*arguments: str | Path, **environment: str) -> str:
    """Runs CMake, which must succeed; returns what it and its compilers said."""
    assert CMAKE is not None
    done = subprocess.run(
        [CMAKE, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_kernels_compile_for_every_architecture_without_spills(tmp_path: Path) -> None:
    """With the flags of kernels/cuda/CMakeLists.txt."""
    if shutil.which("nvcc") is None:
        assert os.environ.get("CI") != "true", "nvcc is missing: scripts/nvcc.sh gets it"
        pytest.skip("nvcc is not installed")
    cmake("-S", ROOT, "-B", tmp_path, "-DFEEDER_PYTHON=OFF", "-DFEEDER_CUDA=ON")
    said = cmake(
        *("--build", tmp_path, "--target", "feeder_cuda"),
        NVCC_APPEND_FLAGS="-Xptxas=-v -Werror=all-warnings",
    )
    entries = re.findall(r"entry function '(\w+)' for 'sm_(\d+)'", said)
    assert len(entries) == 5 * len(ARCHITECTURES)
    assert {int(code) for _, code in entries} == ARCHITECTURES
    usage = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
    assert usage == [("0", "0", "0")] * len(entries)
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", said)]
    assert len(registers) == len(entries)
    assert max(registers) <= MOST_REGISTERS

    (fatbin,) = tmp_path.rglob("_native.fatbin")
    spec = importlib.util.spec_from_file_location("check_wheel", ROOT / "scripts/check_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    check_wheel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_wheel)
    assert fatbin.stat().st_size < MOST_BYTES
    assert check_wheel.wrong_with_fatbin(fatbin.read_bytes()) is None


def nvcc(folder: Path, version: str) -> Path:
    """Makes an nvcc that says its version and compiles nothing, in a toolkit's folder; returns that folder."""
    path = folder / "bin" / "nvcc"
    path.parent.mkdir(parents=True, exist_ok=True)
    release = f"Cuda compilation tools, release {version}, V{version}.93"
    path.write_text(
        f"#!/bin/sh\n[ $1 = --version ] || {{ echo unsupported GNU version >&2; exit 1; }}\necho '{release}'\n"
    )
    path.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("wanted", "version", "why"),
    [
        ("OFF", "13.0", None),
        ("AUTO", "12.8", "needs nvcc 13.0 or later to be built, and found is 12.8"),
        ("AUTO", "13.0", "can't be built, as nvcc 13.0 compiles nothing here"),
    ],
    ids=["left out", "too old", "without a compiler that it takes"],
)
def test_a_build_without_the_kernels_leaves_none_of_an_earlier_build(
    tmp_path: Path, wanted: str, version: str, why: str | None
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "CMakeLists.txt").symlink_to(ROOT / "CMakeLists.txt")
    (source / "kernels").symlink_to(ROOT / "kernels")
    stale = source / "feeder" / "_native.fatbin"
    stale.parent.mkdir()
    stale.write_bytes(b"of an earlier build")
    found = nvcc(tmp_path / "toolkit", version) / "bin" / "nvcc"
    options = (f"-DFEEDER_CUDA={wanted}", f"-DFEEDER_NVCC={found}", f"-DPython_EXECUTABLE={sys.executable}")
    said = cmake("-S", source, "-B", tmp_path / "build", *options)
    assert not stale.exists()
    assert ("this build is without that backend" in said) == (why is not None)
    assert why is None or f'The backend "cuda" {why}' in said


def test_nvcc_on_the_path_is_taken_also_if_cuda_home_has_another_or_an_earlier_run_found_none(tmp_path: Path) -> None:
    old, new = nvcc(tmp_path / "old", "12.8"), nvcc(tmp_path / "new", "13.0")
    options = ("-S", ROOT, "-B", tmp_path / "build", "-DFEEDER_PYTHON=OFF", "-DFEEDER_CUDA=ON")
    path = os.environ["PATH"]
    assert CMAKE is not None
    done = subprocess.run(
        [CMAKE, *options], env={**os.environ, "PATH": f"{old}/bin:{path}"}, capture_output=True, text=True
    )
    assert "found is 12.8" in done.stderr
    said = cmake(*options, PATH=f"{new}/bin:{path}", CUDA_HOME=str(old))
    assert 'The backend "cuda" is built by nvcc 13.0' in said


def test_ci_takes_nvcc_13_0_also_where_another_is_on_the_path(tmp_path: Path) -> None:
    old, new = nvcc(tmp_path / "old", "12.8"), nvcc(tmp_path / "new", "13.0")
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if "scripts/nvcc.sh" in line]
    script = tmp_path / "scripts" / "nvcc.sh"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\necho '{new}/bin'\n")
    script.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", "\n".join([*lines, "nvcc --version"])],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{old}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert "release 13.0" in done.stdout
