"""Checks a wheel for what its users rely on, from outside and by importing its native module.

python scripts/check_wheel.py dist/feeder_data-*.whl --libjpeg-turbo 3.1.3 --cuda on
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import struct
import tempfile
import zipfile
from pathlib import Path

__all__ = ["main", "wrong_with_fatbin"]

ROOT = Path(__file__).resolve().parent.parent

MACHINE_CODE = {75, 80, 86, 89, 90, 100, 120}
PTX = {75}
PTX_VERSION = (9, 0)  # of CUDA 13.0: the latest that driver 580 loads
MAGIC = 0xBA55ED50  # of a fat binary; what follows is not documented, and read off those of nvcc 13.0


def wrong_with_fatbin(data: bytes) -> str | None:
    """Returns what a fat binary lacks of the architectures, or has that driver 580 does not load; None: it is good."""
    header, entry = struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHI")
    if len(data) < header.size or header.unpack_from(data)[0] != MAGIC:
        return "is no fat binary"
    _, _, at, size = header.unpack_from(data)
    if at + size != len(data):
        return f"has {len(data)} bytes, not {at + size}"
    found: dict[int, set[int]] = {1: set(), 2: set()}  # PTX, machine code
    while at + entry.size <= len(data):
        kind, _, head_bytes, payload_bytes, _, _, minor, major, architecture = entry.unpack_from(data, at)
        if head_bytes < entry.size:
            return f"is damaged at byte {at}"
        if kind == 1 and (major, minor) > PTX_VERSION:
            return f"has PTX {major}.{minor}, which driver 580 does not load: take nvcc 13.0"
        found.setdefault(kind, set()).add(architecture)
        at += head_bytes + payload_bytes
    lacks = [f"sm_{code}" for code in sorted(MACHINE_CODE - found[2])]
    lacks += [f"PTX of compute_{code}" for code in sorted(PTX - found[1])]
    return f"lacks {', '.join(lacks)}" if lacks else None


def packaged() -> set[str]:
    """Returns the names of all files of the package here but for what is built."""
    return {
        os.path.relpath(os.path.join(folder, name), ROOT)
        for folder, _, names in os.walk(ROOT / "feeder", followlinks=True)
        for name in names
        if os.path.basename(folder) != "__pycache__" and not name.endswith((".so", ".fatbin"))
    }


def check(wheel: Path, turbo: str, cuda: bool) -> None:
    """Raises SystemExit with what is wrong."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        (module,) = (name for name in names if ".so" in Path(name).suffixes)
        licences = {Path(name).name for name in names if re.match(r"[^/]+\.dist-info/licenses/", name)}
        lacks = {"LICENSE", *(path.name for path in (ROOT / "licenses").iterdir())} - licences
        if lacks:
            raise SystemExit(f"{wheel.name} lacks the licences {', '.join(sorted(lacks))}")
        absent = sorted(packaged() - {*names})
        if absent:
            raise SystemExit(f"{wheel.name} lacks {', '.join(absent[:5])}{', ...' if len(absent) > 5 else ''}")
        if cuda != ("feeder/_native.fatbin" in names):
            raise SystemExit(f"{wheel.name} {'lacks' if cuda else 'has'} the CUDA kernels")
        wrong = wrong_with_fatbin(archive.read("feeder/_native.fatbin")) if cuda else None
        if wrong is not None:
            raise SystemExit(f"{wheel.name}: feeder/_native.fatbin {wrong}")
        archive.extract(module, folder)
        spec = importlib.util.spec_from_file_location("_native", Path(folder, module))
        assert spec is not None
        assert spec.loader is not None
        native = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(native)
    if native.libjpeg_turbo() != (turbo, True):
        raise SystemExit(f"{wheel.name} has libjpeg-turbo {native.libjpeg_turbo()}, not {turbo} with SIMD")
    inside = [f"libjpeg-turbo {turbo} with SIMD", f"kernels at {native.simd_level()}"]
    inside += [f"{'' if cuda else 'no '}CUDA kernels", f"{len(licences)} licences"]
    print(f"{wheel.name}: {', '.join(inside)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Checks a wheel.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--libjpeg-turbo", required=True, metavar="VERSION", help="the version that must be inside")
    parser.add_argument("--cuda", choices=("on", "off"), required=True, help="whether the CUDA kernels must be inside")
    options = parser.parse_args()
    check(options.wheel, options.libjpeg_turbo, options.cuda == "on")


if __name__ == "__main__":
    main()
