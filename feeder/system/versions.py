"""Versions of the installed packages, and of the PIL that is imported.

torch and DALI are looked up, not imported, which takes a fraction of a second. Pillow is imported: two
distributions own the package ``PIL``, and only its files show which one is there.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
from dataclasses import asdict, dataclass
from typing import Any

import feeder

__all__ = ["PILLOW_SIMD", "PillowInfo", "pillow_info", "pillow_simd_command", "versions"]

_DALI = ("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-dali-cuda110")


@dataclass(frozen=True)
class PillowInfo:
    """The package ``PIL`` that Python imports.

    Args:
        distribution: ``"pillow"`` or ``"pillow-simd"``: the one whose record lists the imported compiled core;
            ``"unknown"`` if neither's does (a build of the user's own).
        version: ``PIL.__version__``.
        folder: Its folder.
        simd: True for pillow-simd, a build of the user's own included.
        libjpeg: Its JPEG library and that library's version, or None if it has none.
        libjpeg_path: The shared library's file, or None if it is linked statically.
        overlaid: Version of the pillow distribution that pillow-simd's files replaced, or None.
        undone: Version of the pillow-simd distribution whose files pillow replaced, or None.
        absent_codecs: Formats it was built without, sorted.
    """

    distribution: str
    version: str
    folder: str
    simd: bool
    libjpeg: str | None
    libjpeg_path: str | None
    overlaid: str | None
    undone: str | None
    absent_codecs: tuple[str, ...]

    @property
    def mixed(self) -> bool:
        """True if the folder has files of two Pillow releases. That isn't safe: their compiled parts share structs."""
        return self.overlaid is not None and self.overlaid != re.sub(r"\.post\d+$", "", self.version)


PILLOW_SIMD = "12.1.1.post0"  # the newest release, which constraints.txt pins


def pillow_simd_command(version: str = PILLOW_SIMD) -> str:
    """Returns the command that puts a release of pillow-simd over the same release of pillow."""
    return (
        f"pip install pillow=={version.partition('.post')[0]} && "
        'CC="cc -mavx2" pip install --no-cache-dir --no-deps --force-reinstall '
        f"--no-binary pillow-simd pillow-simd=={version}"
    )


def _distribution_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _owners(folder: str, core_path: str, core: bytes) -> tuple[str, dict[str, str]]:
    """Returns the distribution whose record lists this core, and the versions of all that provide ``PIL``."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(core).digest()).rstrip(b"=").decode()
    owner, claims = "unknown", {}
    for distribution in importlib.metadata.distributions(path=[os.path.dirname(folder)]):
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if name not in ("pillow", "pillow-simd"):
            continue
        claims[name] = distribution.version
        for file in distribution.files or ():
            if file.name == os.path.basename(core_path) and file.hash is not None and file.hash.value == digest:
                owner = name
    return owner, claims


def _loaded_library(core: bytes) -> str | None:
    """Returns the path of the libjpeg that the core is linked to, from the process's memory maps."""
    names = {match.decode() for match in re.findall(rb"lib(?:turbo)?jpeg[A-Za-z0-9_.-]*\.so[0-9.]*", core)}
    try:
        with open("/proc/self/maps", errors="surrogateescape") as maps:
            paths = [line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "jpeg" in line]
    except OSError:
        return None
    # The name is often a link to the file of the exact version: libjpeg.so.62 to libjpeg.so.62.3.0.
    return next((path for path in paths for name in sorted(names) if os.path.basename(path).startswith(name)), None)


def pillow_info() -> PillowInfo | None:
    """Examines the PIL that Python imports; None if there is none, or if it doesn't load."""
    try:
        import PIL
        from PIL import _imaging, features
    except ImportError:
        return None
    core_path = str(_imaging.__file__)
    folder = os.path.dirname(os.path.abspath(PIL.__file__))
    with open(core_path, "rb") as file:
        core = file.read()
    owner, claims = _owners(folder, core_path, core)
    turbo, plain = features.version("libjpeg_turbo"), features.version("jpg")
    return PillowInfo(
        distribution=owner,
        version=PIL.__version__,
        folder=folder,
        # pillow-simd's releases carry Pillow's number with a .postN, which Pillow has never used.
        simd=owner == "pillow-simd" or ".post" in PIL.__version__,
        libjpeg=f"libjpeg-turbo {turbo}" if turbo else f"libjpeg {plain}" if plain else None,
        libjpeg_path=_loaded_library(core),
        overlaid=claims.get("pillow") if owner == "pillow-simd" else None,
        undone=claims.get("pillow-simd") if owner == "pillow" else None,
        absent_codecs=tuple(
            name
            for name, feature in (("JPEG 2000", "jpg_2000"), ("TIFF compression", "libtiff"), ("WebP", "webp"))
            if not features.check(feature)
        ),
    )


def _torch_cuda() -> str | None:
    """Returns the CUDA version that torch was built for, read from its version file without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "version.py"), encoding="utf-8") as file:
            match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", file.read(), re.MULTILINE)
    except OSError:
        return None
    return match[1] if match else None


def versions() -> dict[str, Any]:
    """Returns versions by name, ready for JSON: None for what is absent, and ``pillow`` in detail."""
    pillow = pillow_info()
    dali = next(((name, version) for name in _DALI if (version := _distribution_version(name))), None)
    return {
        "feeder": feeder.__version__,
        "native": importlib.util.find_spec("feeder._native") is not None,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": _distribution_version("torch"),
        "torch_cuda": _torch_cuda(),
        "numpy": _distribution_version("numpy"),
        "dali": dali[1] if dali else None,
        "dali_package": dali[0] if dali else None,
        "webdataset": _distribution_version("webdataset"),
        "pillow": asdict(pillow) if pillow else None,
    }
