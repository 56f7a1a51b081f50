"""Checks of what `make wheel` builds: scripts/check_wheel.py, and scripts/digest.py beside other builds."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feeder import _native as native
from tests.support import ROOT

TURBO = native.libjpeg_turbo()[0]
OPTIONS = ("--libjpeg-turbo", TURBO, "--cuda", "on")
MACHINE_CODE = (75, 80, 86, 89, 90, 100, 120)
LICENCES = [ROOT / "LICENSE", *(ROOT / "licenses").iterdir()]


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def fatbin(machine_code: Sequence[int] = MACHINE_CODE, ptx: Sequence[int] = (75,), ptx_version: int = 90) -> bytes:
    """A fat binary as nvcc lays it out, with code of 8 bytes."""
    entries = [(1, *divmod(ptx_version, 10), code) for code in ptx] + [(2, 8, 1, code) for code in machine_code]
    body = b"".join(
        struct.pack("<HHIQIIHHI32x8s", kind, 0x101, 64, 8, 8, 0, minor, major, code, b"code")
        for kind, major, minor, code in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def wheel(
    folder: Path, licences: list[Path], *, cuda: bool = True, kernels: bytes | None = None, without: str = ""
) -> Path:
    path = folder / "feeder_data-0.1.0-py3-none-any.whl"
    listed = subprocess.run(
        ["git", "ls-files", "feeder"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    with zipfile.ZipFile(path, "w") as archive:
        for name in set(listed) - {without}:
            archive.write(ROOT / name, name)
        archive.write(native.__file__, f"feeder/{Path(native.__file__).name}")
        if cuda:
            archive.writestr("feeder/_native.fatbin", fatbin() if kernels is None else kernels)
        for licence in licences:
            archive.write(licence, f"feeder_data-0.1.0.dist-info/licenses/{licence.relative_to(ROOT)}")
    return path


def test_a_wheel_with_all_licences_and_simd_passes(tmp_path: Path) -> None:
    done = run("check_wheel.py", wheel(tmp_path, LICENCES), *OPTIONS)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"libjpeg-turbo {TURBO} with SIMD" in done.stdout


def test_a_wheel_without_a_licence_is_refused(tmp_path: Path) -> None:
    done = run("check_wheel.py", wheel(tmp_path, LICENCES[:-1]), *OPTIONS)
    assert done.returncode == 1
    assert done.stderr.endswith(f"lacks the licences {LICENCES[-1].name}\n")


@pytest.mark.parametrize(
    "file",
    [
        "feeder/tools/browse/templates/set.html",
        "feeder/tools/browse/static/browse.js",
        "feeder/py.typed",
        "feeder/decoders/gpu/__init__.py",
    ],
)
def test_a_wheel_without_a_file_of_the_package_is_refused(tmp_path: Path, file: str) -> None:
    done = run("check_wheel.py", wheel(tmp_path, LICENCES, without=file), *OPTIONS)
    assert (done.returncode, done.stderr) == (1, f"feeder_data-0.1.0-py3-none-any.whl lacks {file}\n")


def test_a_wheel_without_the_cuda_kernels_is_refused_unless_they_were_left_out(tmp_path: Path) -> None:
    path = wheel(tmp_path, LICENCES, cuda=False)
    assert run("check_wheel.py", path, *OPTIONS).stderr.endswith("lacks the CUDA kernels\n")
    assert run("check_wheel.py", path, *OPTIONS[:-1], "off").returncode == 0
    assert "has the CUDA kernels" in run("check_wheel.py", wheel(tmp_path, LICENCES), *OPTIONS[:-1], "off").stderr


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        (b"", "is no fat binary"),
        (fatbin()[:-8], "has 584 bytes, not 592"),
        (fatbin(MACHINE_CODE[1:-1]), "lacks sm_75, sm_120"),
        (fatbin(ptx=()), "lacks PTX of compute_75"),
        (fatbin(ptx_version=91), "has PTX 9.1, which driver 580 does not load: take nvcc 13.0"),
        (fatbin()[:-72] + bytes(72), "is damaged at byte 520"),
    ],
    ids=["empty", "cut off", "architectures", "no PTX", "later PTX", "damaged"],
)
def test_a_wheel_whose_cuda_kernels_would_not_load_is_refused(tmp_path: Path, kernels: bytes, message: str) -> None:
    done = run("check_wheel.py", wheel(tmp_path, LICENCES, kernels=kernels), *OPTIONS)
    assert done.returncode == 1
    assert done.stderr.endswith(f"feeder/_native.fatbin {message}\n")


@pytest.mark.parametrize(
    ("given", "nvcc", "message"),
    [
        ({}, None, "nvcc is missing"),
        ({}, "13.1", "nvcc is of CUDA 13.1, whose PTX driver 580 may not load"),
        ({"FEEDER_CUDA": "maybe"}, "13.0", "must be on or off, not maybe"),
        ({}, "13.0", "mkdir: command not found"),  # what comes next
        ({"FEEDER_CUDA": "off"}, None, "mkdir: command not found"),
    ],
)
def test_wheels_are_not_built_without_nvcc_13_0_unless_the_cuda_kernels_are_left_out(
    tmp_path: Path, given: dict[str, str], nvcc: str | None, message: str
) -> None:
    for tool in ("dirname", "sed", "tr", "uname"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    if nvcc is not None:
        (tmp_path / "nvcc").write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {nvcc}, V{nvcc}.55'\n")
        (tmp_path / "nvcc").chmod(0o755)
    done = subprocess.run(
        [shutil.which("bash") or "bash", ROOT / "scripts/wheel.sh"],
        env={"PATH": str(tmp_path), **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert message in done.stderr


def test_a_wheel_without_simd_or_with_another_libjpeg_turbo_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(tmp_path, LICENCES)
    assert "not 9.9.9 with SIMD" in run("check_wheel.py", path, "--libjpeg-turbo", "9.9.9", "--cuda", "on").stderr
    monkeypatch.setenv("JSIMD_FORCENONE", "1")
    assert f"not {TURBO} with SIMD" in run("check_wheel.py", path, *OPTIONS).stderr


def test_digests_are_the_same_until_a_pixel_changes(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    pixels = np.arange(24 * 40 * 3, dtype=np.uint8).reshape(24, 40, 3)
    Image.fromarray(pixels).save(buffer, "jpeg")
    (tmp_path / "a.jpg").write_bytes(buffer.getvalue())
    first, second = (run("digest.py", native.__file__, tmp_path) for _ in range(2))
    assert first.stderr == ""
    assert first.stdout == second.stdout
    buffer = io.BytesIO()
    Image.fromarray(pixels ^ np.uint8(64)).save(buffer, "jpeg")
    (tmp_path / "a.jpg").write_bytes(buffer.getvalue())
    changed = run("digest.py", native.__file__, tmp_path).stdout
    pairs = list(zip(first.stdout.splitlines(), changed.splitlines(), strict=True))
    assert [a == b for a, b in pairs] == [True] + [False] * (len(pairs) - 1)


# What the bindings take from Python.h, all of it in the stable ABI of 3.12: https://docs.python.org/3.12/c-api/stable.html
STABLE = {
    *("PyBUF_SIMPLE", "PyBuffer_Release", "PyBytes_AsString", "PyBytes_FromStringAndSize", "PyErr_NewExceptionWithDoc"),
    *(
        "PyErr_SetObject",
        "PyExc_ValueError",
        "PyInit__native",
        "PyObject",
        "PyObject_GetBuffer",
        "Py_buffer",
        "Py_ssize_t",
    ),
}


def test_bindings_keep_to_the_stable_abi_of_wheels_for_later_pythons() -> None:
    sources = [*(ROOT / "kernels/bind").iterdir()]
    assert len(sources) > 15
    assert {name for path in sources for name in re.findall(r"\bPy[A-Z_]\w+", path.read_text())} <= STABLE


def test_kernels_ask_the_cpu_and_not_the_compilers_runtime_for_its_features() -> None:
    # With zig, which builds the wheels, __builtin_cpu_supports is linked and always false.
    sources = [*(ROOT / "kernels").rglob("*.cc"), *(ROOT / "kernels").rglob("*.h")]
    assert len(sources) > 50
    assert [path.name for path in sources if "__builtin_cpu_supports(" in path.read_text()] == []


def test_the_times_of_a_bare_machine_name_the_checkouts_commit(tmp_path: Path) -> None:
    text = (ROOT / "scripts/bare.sh").read_text()
    (script,) = (each for each in re.findall(r"python - <<'END'\n(.*?)\nEND\n", text, re.S) if "times.json" in each)
    assert re.search(r'env -i FEEDER_COMMIT="\$2" DOWNLOAD="\$3" .* - "\$bare" "\$commit" "\$download"', text)
    shutil.copytree(ROOT / "feeder", tmp_path / "feeder", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    environment = {
        "SECONDS_TAKEN": " install_s=1500000",
        "DOWNLOAD": "2500000 1048576",
        "FEEDER_COMMIT": "0123abcd+changes",
    }
    # Python's own finders are classes; that of an editable installation is an object.
    ours = "sys.meta_path[:] = [each for each in sys.meta_path if isinstance(each, type)]"
    here = f"import sys; sys.path.insert(0, ''); {ours}"
    subprocess.run([sys.executable, "-c", f"{here}\n{script}"], cwd=tmp_path, env=os.environ | environment, check=True)
    found = json.loads((tmp_path / "times.json").read_text())
    assert (found["machine"]["commit"], found["seconds"]["all"]) == ("0123abcd+changes", 1.5)
    assert found["download"] == {"seconds": 2.5, "mib": 1.0}
