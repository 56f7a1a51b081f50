"""Findings on packages: Pillow and its libjpeg, torch, DALI, the native kernels, and their fit to the GPU's driver."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from feeder.errors import KERNELS_COMMAND
from feeder.system.nvml import Nvml
from feeder.system.versions import pillow_simd_command, versions
from feeder.tools.doctor.finding import Finding

_NEWER_DRIVER = "sudo apt-get install -y nvidia-driver"


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver.

    Args:
        version: The driver's version; None without a driver.
        cuda: The newest CUDA version that it runs; None if unknown.
        computes: Compute capabilities of the GPUs.
    """

    version: str | None = None
    cuda: tuple[int, int] | None = None
    computes: tuple[tuple[int, int], ...] = ()


def driver_of(nvml: Nvml | str, root: str = "/") -> Driver:
    """Returns the driver, from NVML if it opens, else from the kernel module's entry in /proc."""
    if isinstance(nvml, Nvml):
        return Driver(nvml.driver, nvml.cuda, tuple(g.compute for g in nvml.gpus if g.compute is not None))
    try:
        with open(f"{root.rstrip('/')}/proc/driver/nvidia/version", encoding="utf-8") as file:
            match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", file.read())
    except OSError:
        return Driver()
    return Driver(match[1] if match else "unknown")


def check_packages(driver: Driver, found: dict[str, Any] | None = None) -> Iterator[Finding]:
    """Checks the packages.

    Args:
        driver: The NVIDIA driver.
        found: Result of :func:`feeder.system.versions.versions`; None calls it.
    """
    found = versions() if found is None else found
    yield _native(found)
    yield from _pillow(found["pillow"])
    yield _torch(found, driver)
    yield _dali(found, driver)


def _native(found: dict[str, Any]) -> Finding:
    wheel = " `make wheel` in a clone makes the wheel."
    why, remedy = f"Without them feeder loads nothing.{wheel}", KERNELS_COMMAND
    if not found["native"]:
        return Finding("kernels", "problem", "feeder's native kernels are absent", why, remedy)
    try:
        native = importlib.import_module("feeder._native")
    except ImportError as error:
        return Finding("kernels", "problem", f"feeder's native kernels do not load: {error}", why, remedy)
    turbo, simd = native.libjpeg_turbo()
    if not simd:
        said = f"libjpeg-turbo {turbo} in feeder's kernels runs without its SIMD code"
        why = "Progressive files, and exact pixels of all files, take several times as long to decode."
        if os.environ.get("JSIMD_FORCENONE") == "1":
            remedy, wheel = "unset JSIMD_FORCENONE", ""
        return Finding("kernels", "problem", said, why + wheel, remedy)
    return Finding("kernels", "ok", f"native kernels at {native.simd_level()}, libjpeg-turbo {turbo}")


def _pillow(pillow: dict[str, Any] | None) -> Iterator[Finding]:
    if pillow is None:
        why = "torchvision's data sets decode with it, and feeder decodes other formats than JPEG with it."
        yield Finding("Pillow", "problem", "Pillow is absent, or does not load", why, "pip install pillow")
        return

    version = pillow["version"]
    base = version.partition(".post")[0]
    said = f"{pillow['distribution']} {version}"

    if pillow["overlaid"] is not None and pillow["overlaid"] != base:
        yield Finding(
            "Pillow",
            "problem",
            f"{said} is installed over files of pillow {pillow['overlaid']}",
            "Compiled parts of two releases are mixed: expect wrong pixels or a crash.",
            pillow_simd_command(version),
        )
    elif not pillow["simd"] and platform.machine() == "x86_64":
        why = "Resizing with Pillow (torchvision's transforms, feeder's pillow backend) does not use AVX2. "
        why += "feeder's native backend is not affected. pillow-simd is compiled when it is installed: see "
        why += "docs/operations.md for the packages that this needs."
        yield Finding("Pillow", "note", f"{said}, not a SIMD build", why, pillow_simd_command())
    else:
        yield Finding("Pillow", "ok", said + (", a SIMD build" if pillow["simd"] else ""))

    again = f"pip install --force-reinstall --no-deps --only-binary pillow pillow=={base}"
    if pillow["distribution"] == "pillow-simd":
        again = f"sudo apt-get install -y libjpeg-dev && {pillow_simd_command(version)}"

    jpeg = pillow["libjpeg"]
    if jpeg is None:
        yield Finding("libjpeg", "problem", "Pillow was built without JPEG", "No JPEG can be opened.", again)
    elif "turbo" not in jpeg:
        why = "Decoding without libjpeg-turbo's SIMD code takes several times as long."
        yield Finding("libjpeg", "warning", f"Pillow decodes with {jpeg}", why, again)
    else:
        yield Finding("libjpeg", "ok", jpeg)


def _torch(found: dict[str, Any], driver: Driver) -> Finding:
    version, cuda = found["torch"], found["torch_cuda"]
    if version is None:
        return Finding("torch", "problem", "torch is absent", "Nothing can be trained.", "pip install torch")
    said = f"torch {version}, " + (f"built for CUDA {cuda}" if cuda else "built for the CPU only")
    if driver.version is None:
        if cuda is None:
            return Finding("torch", "ok", said)
        why = "torch.cuda.is_available() is False; everything runs on the CPU."
        remedy = "on a machine with a GPU: install its driver; in a container: docker run --gpus all"
        return Finding("torch", "note", f"{said}; no NVIDIA driver here", why, remedy)
    if cuda is None:
        why = f"There is an NVIDIA driver ({driver.version}), but this build can't use a GPU."
        return _for_driver("torch", said, why, _torch_command(driver))
    if driver.cuda is not None and int(cuda.partition(".")[0]) > driver.cuda[0]:
        why = f"The driver ({driver.version}) runs CUDA up to {_dotted(driver.cuda)}: torch.cuda fails to initialize."
        return _for_driver("torch", said, why, _torch_command(driver))
    return _architectures(said, driver)


def _for_driver(name: str, said: str, why: str, remedy: str) -> Finding:
    if remedy == _NEWER_DRIVER:
        why += " It takes a driver for CUDA 12, 525 or newer; the command is Debian's."
    return Finding(name, "problem", said, why, remedy)


def _torch_command(driver: Driver, compute: int | None = None) -> str:
    """Returns the command that installs a torch for the driver, built for the least CUDA of the driver's major that has
    code for a GPU of a compute capability, such as 90 for 9.0."""
    if driver.cuda is not None and driver.cuda[0] < 12:
        return _NEWER_DRIVER
    index = "cu126" if driver.cuda is not None and driver.cuda[0] == 12 else "cu130"
    if compute is not None and compute < 75:
        index = "cu126"  # CUDA 13 has no code for these
    elif compute is not None and compute >= 100 and index == "cu126":
        index = "cu128"  # the first that has
    return f"pip uninstall -y torch && pip install torch --index-url https://download.pytorch.org/whl/{index}"


def _architectures(said: str, driver: Driver) -> Finding:
    """Checks that this build has code for the machine's GPUs; no other check imports torch."""
    if driver.computes:
        import torch

        names = torch.cuda.get_arch_list()
        for major, minor in driver.computes:
            # sm_80 runs on 8.0 and later of the same major; compute_80 is compiled for any later GPU when loaded.
            digits = [(n[:3], int(re.sub(r"\D", "", n.partition("_")[2]))) for n in names]
            here = 10 * major + minor
            fits = any(d <= here and (kind == "com" or d // 10 == major) for kind, d in digits)
            if names and not fits:
                why = f"It has no code for this GPU (compute capability {major}.{minor}): no kernel image is available."
                return Finding("torch", "problem", said, why, _torch_command(driver, here))
    return Finding("torch", "ok", said)


def _dali(found: dict[str, Any], driver: Driver) -> Finding:
    name, version = found["dali_package"], found["dali"]
    if name is None:
        if driver.version is None:
            return Finding("DALI", "ok", "absent; it is of no use without a GPU")
        major = 13 if driver.cuda is None or driver.cuda[0] >= 13 else 12
        why = "It decodes images on the GPU, which helps where the CPU is the limit."
        return Finding("DALI", "note", "absent", why, f'pip install "feeder-data[dali-cuda{major}]"')
    others = sorted({n for n in distributions() if n.startswith("nvidia-dali-cuda") and n != name})
    if others:
        why = "They own the same files: the one installed last is imported."
        remedy = f"pip uninstall -y {' '.join(others)} && pip install --force-reinstall --no-deps {name}"
        return Finding("DALI", "problem", f"{name} and {', '.join(others)}", why, remedy)
    needed = int(name[len("nvidia-dali-cuda") :][:2])
    if driver.version is None:
        return Finding("DALI", "ok", f"{version} ({name}); CPU operators only, without an NVIDIA driver")
    if driver.cuda is not None and driver.cuda[0] < needed:
        why = f"The driver ({driver.version}) runs CUDA up to {_dotted(driver.cuda)}: its GPU operators fail."
        remedy = _NEWER_DRIVER
        if driver.cuda[0] >= 12:
            remedy = f'pip uninstall -y {name} && pip install "feeder-data[dali-cuda{driver.cuda[0]}]"'
        return _for_driver("DALI", f"{version} is built for CUDA {needed}", why, remedy)
    return Finding("DALI", "ok", f"{version} ({name})")


def distributions() -> set[str]:
    names = (d.metadata["Name"] or "" for d in importlib.metadata.distributions())
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
