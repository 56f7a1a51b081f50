"""feeder --version -v: the machine and the packages, as a bug report needs them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from feeder import _native
from feeder.tools import version_report

CPUINFO = """processor\t: 0
model name\t: Example CPU 9000
flags\t\t: fpu sse4_2 avx avx2 fma bmi2 rdseed

processor\t: 1
model name\t: Another
"""


def rows(text: str) -> dict[str, str]:
    """Values by name, of several lines in one."""
    joined = re.sub(r"\n +", " ", text)
    return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in joined.splitlines())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a GPU's driver, and without NVML."""
    monkeypatch.setattr("feeder.tools.doctor.open_nvml", lambda: "NVML is absent")
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: Kernel Module  580.65.06  Sun\n")
    (tmp_path / "proc/cpuinfo").write_text(CPUINFO)
    return tmp_path


def test_report_names_the_machine(machine: Path) -> None:
    found = rows(version_report.report(str(machine)))
    assert found["CPU"] == "Example CPU 9000: sse4_2 avx avx2 fma bmi2"
    assert found["GPU"] == "driver 580.65.06, but NVML is absent"
    assert f"kernels at {_native.simd_level()}" in found["kernels"]
    assert found["system"].count(", ") == 3
    assert re.search(r"^obstore [\d.]+$", found["extras"].replace(", ", "\n"), re.MULTILINE)


def test_report_fits_a_terminal_but_for_long_paths() -> None:
    lines = version_report.report().splitlines()
    assert [line for line in lines if len(line) > 80 and " /" not in line] == []


def test_report_does_without_what_the_machine_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.doctor.open_nvml", lambda: "not installed")
    found = rows(version_report.report(str(tmp_path)))
    assert (found["CPU"], found["GPU"]) == ("unknown", "no NVIDIA driver here")


def test_report_has_no_users_name(monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(Path(sys.executable).parents[2])
    monkeypatch.setenv("HOME", home)
    text = version_report.report()
    assert home + "/" not in text
    assert "~/" in text
