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

_DALI = ("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-dali-cuda110")


@dataclass(frozen=True)
class PillowInfo:
    """The package ``PIL`` that Python imports.

    Args:
        distribution: ``"pillow"`` or ``"pillow-simd"``: the one whose record lists the imported compiled core;
            ``"unknown"`` if neither's does (a build of the user's own).
        version: ``PIL.__version__``.
        simd: True for pillow-simd, a build of the user's own included.
        libjpeg: Its JPEG library and that library's version, or None if it has none.
        overlaid: Version of the pillow distribution that pillow-simd's files replaced, or None.
    """

    distribution: str
    version: str
    simd: bool
    libjpeg: str | None
    overlaid: str | None


PILLOW_SIMD = "12.1.1.post0"  # the newest release, which constraints.txt pins


def pillow_simd_command(version: str = PILLOW_SIMD) -> str:
    """Returns the command that puts a release of pillow-simd over the same release of pillow."""
    return (
        f"pip install pillow=={version.partition('.post')[0]} && "
        'CC="cc -mavx2" pip install --no-cache-dir --no-deps --force-reinstall '
        f"--no-binary pillow-simd pillow-simd=={version}"
    )


def distribution_version(name: str) -> str | None:
    """Returns the version of an installed package; None without it."""
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
        # pillow-simd's releases carry Pillow's number with a .postN, which Pillow has never used.
        simd=owner == "pillow-simd" or ".post" in PIL.__version__,
        libjpeg=f"libjpeg-turbo {turbo}" if turbo else f"libjpeg {plain}" if plain else None,
        overlaid=claims.get("pillow") if owner == "pillow-simd" else None,
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
    dali = next(((name, version) for name in _DALI if (version := distribution_version(name))), None)
    return {
        "feeder": feeder.__version__,
        "native": importlib.util.find_spec("feeder._native") is not None,
        "python": platform.python_version(),
        "torch": distribution_version("torch"),
        "torch_cuda": _torch_cuda(),
        "numpy": distribution_version("numpy"),
        "dali": dali[1] if dali else None,
        "dali_package": dali[0] if dali else None,
        "webdataset": distribution_version("webdataset"),
        "pillow": asdict(pillow) if pillow else None,
    }
