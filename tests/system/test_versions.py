"""The versions report: pillow and pillow-simd told apart by their files, nothing heavy imported."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

WHEELS = Path(sys.prefix) / "wheels"  # where the environment keeps the wheels that it compiled
PINNED = re.findall(r"^pillow==(.*)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[0]


def wheel(pattern: str) -> Path:
    found = sorted(WHEELS.glob(f"*/{pattern}"))
    if not found:
        assert os.environ.get("CI") != "true" or platform.machine() != "x86_64", f"no {pattern} in {WHEELS}"
        pytest.skip(f"no {pattern} in {WHEELS}: `make env` puts it there, on x86")
    return found[0]


def unpack(pattern: str, folder: Path) -> Path:
    with zipfile.ZipFile(wheel(pattern)) as archive:
        archive.extractall(folder)
    return folder


def run_python(code: str, *folders: Path) -> str:
    """Output of the code in a process of its own, which sees those folders before everything installed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*folders, ROOT]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def versions(*folders: Path) -> dict[str, Any]:
    return json.loads(
        run_python("import json; from feeder.system.versions import versions; print(json.dumps(versions()))", *folders)
    )


def text(*folders: Path) -> str:
    """The report, each of its rows in one line."""
    return re.sub(r"\n +", " ", report(*folders))


def report(*folders: Path) -> str:
    return run_python("from feeder.tools.version_report import report; print(report())", *folders)


def test_pillow(tmp_path: Path) -> None:
    unpack(f"pillow-{PINNED}-*.whl", tmp_path)
    pillow = versions(tmp_path)["pillow"]
    assert (pillow["distribution"], pillow["version"], pillow["simd"]) == ("pillow", PINNED, False)
    assert pillow["libjpeg"].startswith("libjpeg-turbo 3.")
    assert f"pillow {PINNED}, not a SIMD build" in text(tmp_path)


def test_pillow_simd_over_pillow(tmp_path: Path) -> None:
    unpack(f"pillow-{PINNED}-*.whl", tmp_path)
    unpack(f"pillow_simd-{PINNED}*.whl", tmp_path)
    pillow = versions(tmp_path)["pillow"]
    assert (pillow["distribution"], pillow["overlaid"]) == ("pillow-simd", PINNED)
    assert pillow["version"].startswith(f"{PINNED}.post")
    assert pillow["simd"] is True
    assert pillow["libjpeg"].startswith("libjpeg-turbo ")
    assert "over files of" not in text(tmp_path)


def test_pillow_put_back_over_pillow_simd(tmp_path: Path) -> None:
    unpack(f"pillow_simd-{PINNED}*.whl", tmp_path)
    unpack(f"pillow-{PINNED}-*.whl", tmp_path)
    pillow = versions(tmp_path)["pillow"]
    assert (pillow["distribution"], pillow["simd"], pillow["overlaid"]) == ("pillow", False, None)


def test_pillow_simd_over_another_release_is_warned_of(tmp_path: Path) -> None:
    unpack(f"pillow-{PINNED}-*.whl", tmp_path)
    metadata = tmp_path / f"pillow-{PINNED}.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace(f"\nVersion: {PINNED}\n", "\nVersion: 13.0.0\n", 1))
    unpack(f"pillow_simd-{PINNED}*.whl", tmp_path)
    assert versions(tmp_path)["pillow"]["overlaid"] == "13.0.0"
    assert "is installed over files of pillow 13.0.0" in text(tmp_path)


def test_pillow_simd_of_the_users_own_build(tmp_path: Path) -> None:
    unpack(f"pillow_simd-{PINNED}*.whl", tmp_path)
    (core,) = (tmp_path / "PIL").glob("_imaging.*.so")
    core.write_bytes(core.read_bytes() + b"\0")  # no longer the file of the distribution's record
    pillow = versions(tmp_path)["pillow"]
    assert (pillow["distribution"], pillow["simd"]) == ("unknown", True)


def test_a_pil_that_does_not_load_is_reported(tmp_path: Path) -> None:
    (tmp_path / "PIL").mkdir()
    (tmp_path / "PIL" / "__init__.py").write_text("raise ImportError('libjpeg.so.62: cannot open shared object file')")
    assert versions(tmp_path)["pillow"] is None
    assert re.search("^Pillow +Pillow is absent, or does not load$", text(tmp_path), re.MULTILINE)


@pytest.mark.parametrize(("cuda", "expected"), [("'13.0'", "13.0"), ("None", None)])
def test_torch_build_is_read_from_its_version_file(tmp_path: Path, cuda: str, expected: str | None) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch" / "version.py").write_text(f"from typing import Optional\ncuda: Optional[str] = {cuda}\n")
    assert versions(tmp_path)["torch_cuda"] == expected


def test_nothing_heavy_is_imported() -> None:
    loaded = run_python(
        "import sys; from feeder.tools.version_report import report; report(); print(*sys.modules)"
    ).split()
    assert {"torch", "numpy", "nvidia.dali", "webdataset"} & set(loaded) == set()


def test_the_command_prints_it() -> None:
    assert run_python("import sys; from feeder.tools.cli import main; sys.exit(main(['--version', '-v']))") == report()


def test_the_report_names_the_kernels_level_and_their_libjpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    from feeder import _native

    assert re.search(rf"native kernels at {_native.simd_level()}, libjpeg-turbo [\d.]+$", text(), re.MULTILINE)
    monkeypatch.setenv("JSIMD_FORCENONE", "1")
    assert re.search(r"libjpeg-turbo [\d.]+ in feeder's kernels runs without its SIMD code$", text(), re.MULTILINE)
