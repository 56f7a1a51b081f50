"""NVIDIA's management library, through nvidia-ml-py: the GPUs, their utilization, memory and PCIe traffic."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_WORD_BITS = 64


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Args:
        index: NVML's number, which CUDA_VISIBLE_DEVICES uses too where CUDA_DEVICE_ORDER is PCI_BUS_ID.
        name: The model.
        uuid: Unique name.
        memory_bytes: Total memory.
        pcie_width: Lanes in use; None where NVML does not report them.
        pcie_width_max: Lanes that GPU and slot could use.
        compute: Compute capability.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int
    pcie_width: int | None
    pcie_width_max: int | None
    compute: tuple[int, int] | None


class Nvml:
    """The opened library.

    Args:
        library: The module ``pynvml``, initialized.
    """

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self.driver = _text(library.nvmlSystemGetDriverVersion())
        version = int(library.nvmlSystemGetCudaDriverVersion())
        self.cuda = version // 1000, version % 1000 // 10
        self._handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
        self.gpus = [self._gpu(index, handle) for index, handle in enumerate(self._handles)]

    def visible(self, environ: Mapping[str, str] | None = None) -> list[Gpu]:
        """Returns the GPUs in CUDA_VISIBLE_DEVICES, or all GPUs if it is not set."""
        environ = os.environ if environ is None else environ
        chosen = environ.get("CUDA_VISIBLE_DEVICES")
        if chosen is None:
            return list(self.gpus)
        found = []
        for word in filter(None, (part.strip() for part in chosen.split(","))):
            match = [g for g in self.gpus if word == str(g.index) or (len(word) > 4 and g.uuid.startswith(word))]
            if not match:
                break  # CUDA ignores the rest
            found += match[:1]
        return found

    def busy(self, gpu: Gpu) -> float | None:
        """Returns the share of the time since NVML's last sample in which a kernel ran, 0-1; None if unknown."""
        rates = self._try(lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handles[gpu.index]).gpu)
        return None if rates is None else rates / 100

    def near_cpus(self, gpu: Gpu) -> frozenset[int] | None:
        """Returns the CPUs of the host that are nearest to a GPU; None if NVML does not tell."""
        words = -(-(os.cpu_count() or 1) // _WORD_BITS)
        masks = self._try(lambda: list(self._nvml.nvmlDeviceGetCpuAffinity(self._handles[gpu.index], words)))
        if masks is None:
            return None
        bits = range(_WORD_BITS)
        return frozenset(_WORD_BITS * k + bit for k, mask in enumerate(masks) for bit in bits if int(mask) >> bit & 1)

    def close(self) -> None:
        """Closes the library."""
        self._try(self._nvml.nvmlShutdown)

    def _gpu(self, index: int, handle: Any) -> Gpu:
        nvml = self._nvml
        return Gpu(
            index=index,
            name=_text(nvml.nvmlDeviceGetName(handle)),
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            pcie_width=self._try(lambda: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))),
            pcie_width_max=self._try(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))),
            compute=self._try(lambda: tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))),
        )

    def _try(self, look: Callable[[], Any]) -> Any:
        """Returns ``look()``, or None if this GPU or driver does not support it (under MIG, in some containers)."""
        try:
            return look()
        except self._nvml.NVMLError:
            return None


def open_nvml() -> Nvml | str:
    """Opens the library, or returns the reason why it can't be opened."""
    try:
        import pynvml
    except ImportError:
        if not os.path.exists("/proc/driver/nvidia"):
            return "there is no NVIDIA driver here"
        return "nvidia-ml-py is not installed (pip install nvidia-ml-py)"
    try:
        pynvml.nvmlInit()
        return Nvml(pynvml)
    except pynvml.NVMLError as error:
        return f"NVML says: {error}"


def gpu_of(torch: Any, number: int) -> tuple[Nvml, Gpu] | None:
    """Returns NVML and its record of a GPU; None if it has none, as under MIG, or can't be opened.

    Args:
        torch: The module; CUDA is initialized.
        number: CUDA's number of the GPU.
    """
    nvml = open_nvml()
    if isinstance(nvml, str):
        return None
    # CUDA and NVML may number GPUs differently.
    uuid = str(getattr(torch.cuda.get_device_properties(number), "uuid", ""))
    return next(((nvml, gpu) for gpu in nvml.gpus if uuid and gpu.uuid.removeprefix("GPU-") == uuid), None)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
