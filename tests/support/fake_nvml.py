"""A stand-in for nvidia-ml-py: one GPU with 4 of its 16 PCIe lanes, a driver for CUDA 12.2, and set readings."""

from __future__ import annotations

from pathlib import Path

__all__ = ["install"]

_CODE = """
from types import SimpleNamespace as Found
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlSystemGetDriverVersion(): return b"535.104.05"
def nvmlSystemGetCudaDriverVersion(): return 12020
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return "Paper GPU"
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}0000000"
def nvmlDeviceGetMemoryInfo(handle): return Found(total=16 << 30)
def nvmlDeviceGetCurrPcieLinkWidth(handle): return 4 if handle == 0 else 16
def nvmlDeviceGetMaxPcieLinkWidth(handle): return 16
def nvmlDeviceGetCudaComputeCapability(handle): raise NVMLError("not supported")
def nvmlDeviceGetUtilizationRates(handle): return Found(gpu=35)
def nvmlDeviceGetCpuAffinity(handle, words):
    if handle: raise NVMLError("not supported")
    return [0b1111, 1]
"""


def install(folder: Path) -> Path:
    """Puts it in a folder, for PYTHONPATH."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pynvml.py").write_text(_CODE)
    return folder
