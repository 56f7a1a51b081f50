"""Lessons about devices as measurements: when a GPU pays, and the costs of copies, waits and overlap.

products     Matrix products, small and large: on the CPU, on the GPU with the data there, and with both copies.
copies       Host to GPU, 64 MiB, pageable, pinned, and pinned with non_blocking: the time until the copy is complete,
             and until the host continues. Without a GPU, the plain copy from memory to memory, which a copy to a GPU
             can't beat.
log          1,000 products of 100x100 matrices and their norms: each norm fetched at its step, all fetched once at the
             end, and feeder.DeviceLog.
at once      Two series of products on two streams (GPU) or two threads (CPU), against one after the other.

Equal in each: the products and their data. Results are compared before anything is timed. Without a GPU, the parts that
need one are left out, and the result says so.

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
from feeder.tools.bench.result_file import interleave, save, spread
from feeder.tools.terminal import table

NO_GPU = "no CUDA device"
COPY_BYTES = 64 << 20


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _in_turn(rivals: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns milliseconds: ``ms`` until the device is done, and with a GPU ``host_ms`` until the host continues.

    The first run of each is not counted.
    """
    host: dict[str, list[float]] = {name: [] for name in rivals}

    def timed(name: str) -> float:
        _synchronize()
        began = time.perf_counter()
        rivals[name]()
        host[name].append(1000 * (time.perf_counter() - began))
        _synchronize()
        return 1000 * (time.perf_counter() - began)

    for name in rivals:
        timed(name)
        host[name].clear()
    found = interleave({n: (lambda n=n: timed(n)) for n in rivals}, repeats, lambda _: None)  # type: ignore[misc]
    times = {"ms": found, "host_ms": host} if torch.cuda.is_available() else {"ms": found}
    return {kind: {name: spread(values) for name, values in each.items()} for kind, each in times.items()}


def must_agree(question: str, results: Mapping[str, torch.Tensor], rtol: float = 0.0, atol: float = 0.0) -> None:
    """Checks that results computed in different ways agree, before their times count."""
    (first, expected), *others = results.items()
    for name, found in others:

        def told(text: str, name: str = name) -> str:
            return f"{question}: {name}, {first}: {text}"

        torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=rtol, atol=atol, msg=told)


def products(sizes: tuple[int, ...], repeats: int) -> dict[str, Any]:
    results = {}
    for size in sizes:
        a, b = torch.randn(size, size), torch.randn(size, size)
        ways: dict[str, Callable[[], torch.Tensor]] = {"CPU": lambda a=a, b=b: a @ b}  # type: ignore[misc]
        if torch.cuda.is_available():
            x, y = a.cuda(), b.cuda()
            ways["GPU, data there"] = lambda x=x, y=y: x @ y  # type: ignore[misc]
            ways["GPU, with copies"] = lambda a=a, b=b: (a.cuda() @ b.cuda()).cpu()  # type: ignore[misc]
        # Each element is a sum of as many products as the matrix has rows, in another order on each device.
        must_agree(f"products {size}x{size}", {name: way() for name, way in ways.items()}, 1e-4, 1e-5 * size)
        rounds = max(1, min(1000, int(2e8 / size**3)))
        rivals = {name: (lambda way=way, n=rounds: [way() for _ in range(n)]) for name, way in ways.items()}
        results[f"{size}x{size}"] = {"products": rounds, **_in_turn(rivals, repeats)}
    return results


def copies(size_bytes: int, repeats: int) -> dict[str, Any]:
    source = torch.randint(0, 256, (size_bytes,), dtype=torch.uint8)
    ways: dict[str, tuple[torch.Tensor, torch.Tensor, bool]] = {
        "memory to memory": (torch.zeros_like(source), source, False)
    }
    if torch.cuda.is_available():
        pinned = source.pin_memory()
        for name, each, non_blocking in (
            ("pageable", source, False),
            ("pinned", pinned, False),
            ("pinned, non_blocking", pinned, True),
        ):
            ways[name] = torch.zeros_like(source, device="cuda"), each, non_blocking
    rivals = {name: (lambda to=to, frm=frm, n=n: to.copy_(frm, non_blocking=n)) for name, (to, frm, n) in ways.items()}
    for run in rivals.values():
        run()
    _synchronize()
    must_agree("copies", {"source": source, **{name: to for name, (to, _, _) in ways.items()}})
    return {"bytes": size_bytes, **_in_turn(rivals, repeats)}


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
        must_agree(f"log, {device}", {name: torch.tensor(run()) for name, run in rivals.items()})
        results[device] = {"steps": count, **_in_turn(rivals, repeats)}
    return results


def at_once(size: int, count: int, repeats: int) -> dict[str, Any]:
    a = torch.randn(size, size)
    result: dict[str, Any] = {"size": size, "products": 2 * count}

    def series(x: torch.Tensor = a) -> torch.Tensor:
        for _ in range(count):
            product = x @ x
        return product

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that one series leaves the other cores idle
    with ThreadPoolExecutor(2) as pool:
        rivals = {
            "one after the other": lambda: [series() for _ in range(2)],
            "two threads": lambda: list(pool.map(lambda _: series(), range(2))),
        }
        for name, run in rivals.items():
            must_agree(f"at once, {name}", {"alone": a @ a, **dict(zip("12", run(), strict=True))}, 1e-4, 1e-5 * size)
        result |= {f"CPU {kind}": times for kind, times in _in_turn(rivals, repeats).items()}
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        x, streams = a.cuda(), [torch.cuda.Stream() for _ in range(2)]

        def two_streams() -> list[torch.Tensor]:
            products = []
            for stream in streams:
                with torch.cuda.stream(stream):
                    products.append(series(x))
            return products

        on_gpu: dict[str, Callable[[], list[torch.Tensor]]] = {
            "one stream": lambda: [series(x) for _ in range(2)],
            "two streams": two_streams,
        }
        if torch.cuda.device_count() > 1:
            other = x.to("cuda:1")
            on_gpu["two devices"] = lambda: [series(each) for each in (x, other)]
        for name, run in on_gpu.items():
            _synchronize()  # so that every stream can use x
            found = run()
            _synchronize()
            must_agree(f"at once, {name}", {"alone": x @ x, **dict(zip("12", found, strict=True))}, 1e-4, 1e-5 * size)
        result |= {f"GPU {kind}": times for kind, times in _in_turn(on_gpu, repeats).items()}
    return result


def measure(repeats: int, *, tiny: bool = False) -> dict[str, Any]:
    result: dict[str, Any] = {
        "products": products((10, 100) if tiny else (10, 100, 1000, 2000), repeats),
        "copies": copies(COPY_BYTES >> (6 if tiny else 0), repeats),
        "log": log(100 if tiny else 1000, repeats),
        "at once": at_once(64 if tiny else 512, 10 if tiny else 50, repeats),
    }
    if torch.cuda.is_available():
        two = {} if torch.cuda.device_count() > 1 else {"two devices": "one CUDA device"}
        return {"gpu": gpu(), **result, "left_out": two}
    names = ("products on the GPU", "copies to the GPU", "the log on the GPU", "two streams", "two devices")
    return {**result, "left_out": dict.fromkeys(names, NO_GPU)}


def render(result: dict[str, Any]) -> str:
    """Renders the measurements, and those left out, for a terminal."""
    on_gpu = "gpu" in result
    rows = [["", "ms", "min", "max", *(["host"] if on_gpu else [])]]

    def add(question: str, found: dict[str, Any], prefix: str = "") -> None:
        for name, value in found.get(f"{prefix}ms", {}).items():
            numbers = [value[k] for k in ("median", "min", "max")]
            numbers += [found[f"{prefix}host_ms"][name]["median"]] if on_gpu else []
            rows.append([f"{question}: {name}", *(f"{number:,.2f}" for number in numbers)])

    for size, found in result["products"].items():
        add(f"{found['products']} products {size}", found)
    add(f"copy of {result['copies']['bytes'] >> 20} MiB", result["copies"])
    for device, found in result["log"].items():
        add(f"{found['steps']} steps, {device}", found)
    for device in ("CPU", "GPU"):
        add(f"{result['at once']['products']} products, {device}", result["at once"], f"{device} ")
    where = f"GPU: {result['gpu']['name']}" if on_gpu else "CPU only"
    notes = "medians, until the device is done" + ("; host: ms until the host continues" if on_gpu else "")
    left_out = [f"left out, {why}: {name}" for name, why in result["left_out"].items()]
    return "\n".join([where, "", table(rows), "", notes, *left_out])


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
