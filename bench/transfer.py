"""The lessons about devices as measurements: when a GPU pays, what a copy costs, what a wait costs, what overlaps.

products     Matrix products, small and large: the CPU, the GPU with its data there already, and with both copies.
copies       Host to GPU, 64 MiB: pageable, pinned, pinned with non_blocking (how long until the host goes on).
             Without a GPU only the plain copy from memory to memory, which a copy to a GPU can't beat.
log          1,000 products of 100x100 matrices and their norms: each norm fetched at its step, all fetched once at the
             end, and feeder.DeviceLog.
at once      Two series of products on two streams (GPU) or two threads (CPU) against one after the other.

Equal in each: the products and their data; results are compared before anything is timed. What needs a GPU is left out
where there is none, and the result says so.

    python -m bench.transfer [--repeats 7] [--json OUT]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from bench.gpu.common import gpu
from feeder import DeviceLog
from feeder.measure import interleave, save, spread, table

NO_GPU = "no CUDA device"
COPY_BYTES = 64 << 20


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _in_turn(rivals: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, Any]]:
    """Milliseconds of each, until the device is done; the first run of each is not counted."""

    def timed(run: Callable[[], object]) -> float:
        _synchronize()
        began = time.perf_counter()
        run()
        _synchronize()
        return 1000 * (time.perf_counter() - began)

    for run in rivals.values():
        timed(run)
    found = interleave({n: (lambda r=r: timed(r)) for n, r in rivals.items()}, repeats, lambda _: None)  # type: ignore[misc]
    return {name: spread(values) for name, values in found.items()}


def products(sizes: tuple[int, ...], repeats: int) -> dict[str, Any]:
    results = {}
    for size in sizes:
        a, b = torch.randn(size, size), torch.randn(size, size)
        rounds = max(1, min(1000, int(2e8 / size**3)))
        rivals: dict[str, Callable[[], object]] = {"CPU": lambda a=a, b=b, n=rounds: [a @ b for _ in range(n)]}  # type: ignore[misc]
        if torch.cuda.is_available():
            x, y = a.cuda(), b.cuda()
            torch.testing.assert_close((x @ y).cpu(), a @ b, rtol=1e-2, atol=1e-1)
            rivals["GPU, data there"] = lambda x=x, y=y, n=rounds: [x @ y for _ in range(n)]  # type: ignore[misc]
            rivals["GPU, with copies"] = lambda a=a, b=b, n=rounds: [  # type: ignore[misc]
                (a.cuda() @ b.cuda()).cpu() for _ in range(n)
            ]
        results[f"{size}x{size}"] = {"products": rounds, "ms": _in_turn(rivals, repeats)}
    return results


def copies(size_bytes: int, repeats: int) -> dict[str, Any]:
    source, target = torch.ones(size_bytes, dtype=torch.uint8), torch.empty(size_bytes, dtype=torch.uint8)
    result: dict[str, Any] = {"bytes": size_bytes}
    rivals: dict[str, Callable[[], object]] = {"memory to memory": lambda: target.copy_(source)}
    if torch.cuda.is_available():
        pinned, there = source.pin_memory(), torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        rivals["pageable"] = lambda: there.copy_(source)
        rivals["pinned"] = lambda: there.copy_(pinned)
        rivals["pinned, non_blocking"] = lambda: there.copy_(pinned, non_blocking=True)
        result["ms until the host goes on"] = spread([_host_ms(there, pinned) for _ in range(repeats)])
    return result | {"ms": _in_turn(rivals, repeats)}


def _host_ms(target: torch.Tensor, source: torch.Tensor) -> float:
    _synchronize()
    began = time.perf_counter()
    target.copy_(source, non_blocking=True)
    return 1000 * (time.perf_counter() - began)


def log(count: int, repeats: int) -> dict[str, Any]:
    results = {}
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        matrices = torch.randn(2, 100, 100, generator=torch.Generator().manual_seed(0)).to(device)

        def norms(matrices: torch.Tensor = matrices) -> Any:
            for _ in range(count):
                yield (matrices[0] @ matrices[1]).norm()

        def each_step() -> list[float]:
            return [norm.item() for norm in norms()]

        def at_the_end() -> list[float]:
            values: list[float] = torch.stack(list(norms())).tolist()
            return values

        def device_log() -> list[float]:
            values: list[float] = []
            with DeviceLog(lambda _, row: values.append(row["norm"]), every=50) as kept:  # type: ignore[arg-type]
                for step, norm in enumerate(norms()):
                    kept.write(step, norm=norm)
            return values

        rivals = {"fetched at each step": each_step, "once at the end": at_the_end, "feeder.DeviceLog": device_log}
        expected = each_step()
        assert all(run() == expected for run in rivals.values())
        results[device] = {"steps": count, "ms": _in_turn(rivals, repeats)}
    return results


def at_once(size: int, count: int, repeats: int) -> dict[str, Any]:
    a = torch.randn(size, size)
    result: dict[str, Any] = {"size": size, "products": 2 * count}

    def series(x: torch.Tensor = a) -> None:
        for _ in range(count):
            x @ x

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that one series leaves the other cores idle
    with ThreadPoolExecutor(2) as pool:
        rivals = {
            "one after the other": lambda: [series() for _ in range(2)],
            "two threads": lambda: list(pool.map(lambda _: series(), range(2))),
        }
        result["CPU ms"] = _in_turn(rivals, repeats)
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        x, streams = a.cuda(), [torch.cuda.Stream() for _ in range(2)]

        def two_streams() -> None:
            for stream in streams:
                with torch.cuda.stream(stream):
                    series(x)

        on_gpu: dict[str, Callable[[], object]] = {
            "one stream": lambda: [series(x) for _ in range(2)],
            "two streams": two_streams,
        }
        if torch.cuda.device_count() > 1:
            other = x.to("cuda:1")
            on_gpu["two devices"] = lambda: [series(each) for each in (x, other)]
        result["GPU ms"] = _in_turn(on_gpu, repeats)
    return result


def measure(repeats: int, *, tiny: bool = False) -> dict[str, Any]:
    result: dict[str, Any] = {
        "products": products((10, 100) if tiny else (10, 100, 1000, 2000), repeats),
        "copies": copies(COPY_BYTES >> (6 if tiny else 0), repeats),
        "log": log(100 if tiny else 1000, repeats),
        "at once": at_once(64 if tiny else 512, 10 if tiny else 50, repeats),
    }
    if torch.cuda.is_available():
        return {"gpu": gpu(), **result, "left_out": {}}
    names = ("products on the GPU", "copies to the GPU", "the log on the GPU", "two streams", "two devices")
    return {**result, "left_out": dict.fromkeys(names, NO_GPU)}


def render(result: dict[str, Any]) -> str:
    """What was measured, and what was left out, for a terminal."""
    rows = [["", "ms", "min", "max"]]

    def add(question: str, times: dict[str, dict[str, Any]]) -> None:
        for name, value in times.items():
            numbers = [f"{value[k]:,.2f}" for k in ("median", "min", "max")]
            rows.append([f"{question}: {name}", *numbers])

    for size, found in result["products"].items():
        add(f"{found['products']} products {size}", found["ms"])
    add(f"copy of {result['copies']['bytes'] >> 20} MiB", result["copies"]["ms"])
    for device, found in result["log"].items():
        add(f"log of {found['steps']} steps, {device}", found["ms"])
    for device in ("CPU", "GPU"):
        add(f"{result['at once']['products']} products, {device}", result["at once"].get(f"{device} ms", {}))
    left_out = [f"left out, {why}: {name}" for name, why in result["left_out"].items()]
    return "\n".join([table(rows), *([""] if left_out else []), *left_out])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", default="bench/results/transfer.json")
    parser.add_argument("--smoke", metavar="DIR", help="once through, at the smallest size")
    options = parser.parse_args()
    result = measure(1 if options.smoke else options.repeats, tiny=bool(options.smoke))
    print(render(result))
    print(save("transfer", result, options.json))


if __name__ == "__main__":
    main()
