"""A calculation: the nodes, cores and network that an input service takes for hosts with GPUs, from measured figures.

The figures are those of bench/results/service.json: CPU time of the service and of the training host for an image, and
the rate of local workers. Cores count as the benchmark's, and nothing is added for what is uneven or still to come.

    python -m bench.service_plan [--result JSON]    # the table of docs/cluster.md
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["HOSTS", "RATE", "markdown"]

HOSTS, RATE = 8, 30_000  # hosts of eight H100 each, and images/s of each
_RANKS, _NODE_CORES = 8, 64


class _Needs(NamedTuple):
    server_ms: float
    host_ms: float
    local_ms: float
    image_bytes: int

    @property
    def cores(self) -> float:
        return HOSTS * RATE * self.server_ms / 1000

    @property
    def nodes(self) -> int:
        return math.ceil(self.cores / _NODE_CORES)


_ROWS: dict[str, Callable[[_Needs], str]] = {
    "CPU time of the service for an image": lambda each: f"{each.server_ms:.2f} ms",
    f"cores of the service for {HOSTS} hosts": lambda each: f"{math.ceil(each.cores):,}",
    f"nodes of {_NODE_CORES} cores": lambda each: f"{each.nodes}",
    "cores of each host that receive": lambda each: f"{RATE * each.host_ms / 1000:.1f}",
    f"of these, for each of {_RANKS} ranks": lambda each: f"{RATE / _RANKS * each.host_ms / 1000:.2f}",
    "network into each host": lambda each: f"{_gigabits(each):.0f} Gbit/s",
    "network out of each node": lambda each: f"{_gigabits(each) * HOSTS / each.nodes:.0f} Gbit/s",
    "cores of each host for local workers alone": lambda each: f"{math.ceil(RATE * each.local_ms / 1000)}",
}


def markdown(result: Mapping[str, Any]) -> str:
    """Returns the table of what the service takes, by a benchmark's result."""
    image_bytes = 3 * result["options"]["size"] ** 2
    plain, heavy = (_needs(each, result["options"]["cores"], image_bytes) for each in (result, result["heavy"]))
    lines = ["| | crop and flip | with RandAugment |", "|---|---|---|"]
    return "\n".join(lines + [f"| {name} | {show(plain)} | {show(heavy)} |" for name, show in _ROWS.items()])


def _needs(found: Mapping[str, Any], cores: int, image_bytes: int) -> _Needs:
    local = next(spread for name, spread in found["images_per_s"].items() if name.endswith("local workers"))
    server_ms, host_ms = (found[name]["median"] for name in ("server_cpu_ms", "host_cpu_ms"))
    return _Needs(server_ms, host_ms, 1000 * cores / local["median"], image_bytes)


def _gigabits(each: _Needs) -> float:
    return RATE * each.image_bytes * 8 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--result", default="bench/results/service.json")
    print(markdown(json.loads(Path(parser.parse_args().result).read_text())))


if __name__ == "__main__":
    main()
