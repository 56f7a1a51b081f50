"""Checks a wheel for what its users rely on, from outside and by importing its native module.

python scripts/check_wheel.py dist/feeder_data-*.whl --libjpeg-turbo 3.1.3 --cuda on
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import tempfile
import zipfile
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent


def check(wheel: Path, turbo: str, cuda: bool) -> None:
    """Raises SystemExit with what is wrong."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        (module,) = (name for name in names if ".so" in Path(name).suffixes)
        licences = {Path(name).name for name in names if re.match(r"[^/]+\.dist-info/licenses/", name)}
        lacks = {"LICENSE", *(path.name for path in (ROOT / "licenses").iterdir())} - licences
        if lacks:
            raise SystemExit(f"{wheel.name} lacks the licences {', '.join(sorted(lacks))}")
        if cuda != ("feeder/_native.fatbin" in names):
            raise SystemExit(f"{wheel.name} {'lacks' if cuda else 'has'} the CUDA kernels")
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
