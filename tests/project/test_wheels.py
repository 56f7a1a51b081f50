"""Checks of what `make wheel` builds: scripts/check_wheel.py, and scripts/digest.py beside other builds."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feeder import _native as native
from tests.support import ROOT

TURBO = native.libjpeg_turbo()[0]
OPTIONS = ("--libjpeg-turbo", TURBO, "--cuda", "on")
LICENCES = [ROOT / "LICENSE", *(ROOT / "licenses").iterdir()]


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def wheel(folder: Path, licences: list[Path], *, cuda: bool = True) -> Path:
    path = folder / "feeder_data-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(native.__file__, f"feeder/{Path(native.__file__).name}")
        if cuda:
            archive.writestr("feeder/_native.fatbin", b"")
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


def test_a_wheel_without_the_cuda_kernels_is_refused_unless_they_were_left_out(tmp_path: Path) -> None:
    path = wheel(tmp_path, LICENCES, cuda=False)
    assert run("check_wheel.py", path, *OPTIONS).stderr.endswith("lacks the CUDA kernels\n")
    assert run("check_wheel.py", path, *OPTIONS[:-1], "off").returncode == 0
    assert "has the CUDA kernels" in run("check_wheel.py", wheel(tmp_path, LICENCES), *OPTIONS[:-1], "off").stderr


def test_wheels_are_not_built_without_nvcc_unless_the_cuda_kernels_are_left_out(tmp_path: Path) -> None:
    for tool in ("dirname", "tr", "uname"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    for given, message in (({}, "nvcc is missing"), ({"FEEDER_CUDA": "maybe"}, "must be on or off, not maybe")):
        done = subprocess.run(
            [shutil.which("bash") or "bash", ROOT / "scripts/wheel.sh"],
            env={"PATH": str(tmp_path), **given},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 1
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


def test_kernels_ask_the_cpu_and_not_the_compilers_runtime_for_its_features() -> None:
    # With zig, which builds the wheels, __builtin_cpu_supports is linked and always false.
    sources = [*(ROOT / "kernels").rglob("*.cc"), *(ROOT / "kernels").rglob("*.h")]
    assert len(sources) > 50
    assert [path.name for path in sources if "__builtin_cpu_supports(" in path.read_text()] == []
