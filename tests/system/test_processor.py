"""The processor: its microarchitecture where its name leaves it open."""

from __future__ import annotations

from pathlib import Path

import pytest

from feeder.system.processor import Processor, processor

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
flags\t\t: fpu avx2

processor\t: 1
model name\t: Another
"""


def test_the_first_processor_is_read(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(CPUINFO)
    found = processor(str(tmp_path))
    assert found == Processor("AMD EPYC", "AuthenticAMD", 25, 17, 1, frozenset({"fpu", "avx2"}))
    assert found.microarchitecture == "Zen 4"


def test_what_the_kernel_does_not_tell_is_none(tmp_path: Path) -> None:
    nothing = Processor(None, None, None, None, None, frozenset())
    assert processor(str(tmp_path)) == nothing
    assert nothing.microarchitecture is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nFeatures\t: asimd sve\nCPU part\t: 0xd40\n")
    assert processor(str(tmp_path)) == Processor("0xd40", None, None, None, None, frozenset({"asimd", "sve"}))


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name"),
    [
        ("AuthenticAMD", 0x17, 0x01, "Zen 1"),
        ("AuthenticAMD", 0x17, 0x31, "Zen 2"),
        ("AuthenticAMD", 0x19, 0x01, "Zen 3"),
        ("AuthenticAMD", 0x19, 0x11, "Zen 4"),
        ("AuthenticAMD", 0x19, 0xA0, "Zen 4"),
        ("AuthenticAMD", 0x1A, 0x02, "Zen 5"),
        ("AuthenticAMD", 0x1A, 0x50, None),
        ("GenuineIntel", 0x19, 0x11, None),
    ],
)
def test_microarchitectures_follow_from_family_and_model(
    vendor: str, family: int, model: int, name: str | None
) -> None:
    assert Processor("X", vendor, family, model, 0, frozenset()).microarchitecture == name
