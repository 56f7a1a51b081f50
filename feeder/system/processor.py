"""The processor, as the kernel tells it: its name alone often leaves its microarchitecture open ("AMD EPYC")."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# AMD's microarchitectures by family and ranges of models, as in Linux' arch/x86/kernel/cpu/amd.c.
_ZEN = {
    0x17: (
        ("Zen 1", ((0x00, 0x2F), (0x50, 0x5F))),
        ("Zen 2", ((0x30, 0x4F), (0x60, 0x7F), (0x90, 0x91), (0xA0, 0xAF))),
    ),
    0x19: (("Zen 3", ((0x00, 0x0F), (0x20, 0x5F))), ("Zen 4", ((0x10, 0x1F), (0x60, 0xAF)))),
    0x1A: (("Zen 5", ((0x00, 0x2F), (0x40, 0x4F), (0x60, 0x7F))),),
}


@dataclass(frozen=True)
class Processor:
    """A processor.

    Attributes:
        name: Its name; None if the kernel has none.
        vendor: Its vendor, such as "AuthenticAMD"; None where the kernel doesn't tell it, as on ARM.
        family: Its family, in CPUID's counting; None as for ``vendor``.
        model: Its model within the family.
        stepping: Its stepping.
        flags: Names of its instruction sets.
    """

    name: str | None
    vendor: str | None
    family: int | None
    model: int | None
    stepping: int | None
    flags: frozenset[str]

    @property
    def microarchitecture(self) -> str | None:
        """Its microarchitecture, such as "Zen 4"; None if it is not known here."""
        if self.vendor != "AuthenticAMD" or self.family is None or self.model is None:
            return None
        for name, ranges in _ZEN.get(self.family, ()):
            if any(low <= self.model <= high for low, high in ranges):
                return name
        return None


def processor(root: str = "/") -> Processor:
    """Returns the first processor.

    Args:
        root: Folder that holds /proc.
    """
    try:
        text = Path(root, "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        text = ""
    lines = (line.partition(":") for line in text.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}

    def number(name: str) -> int | None:
        value = fields.get(name, "")
        return int(value) if value.isdecimal() else None

    return Processor(
        fields.get("model name") or fields.get("CPU part") or None,
        fields.get("vendor_id") or None,
        number("cpu family"),
        number("model"),
        number("stepping"),
        frozenset((fields.get("flags") or fields.get("Features") or "").split()),
    )
