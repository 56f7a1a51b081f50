"""Measures WebDataset tars on the Hugging Face Hub beside the same set on a web server.

CPU time of all processes for an image of an epoch with an empty cache, of the shards' tars in a dataset's repository
beside a set of these tars with their index at an https address. The hub is a stand-in of its listing and its redirects
to a CDN, on this machine; the web server is that CDN. Both are this process, whose CPU time does not count. The hub's
index of the tars is made before, as it is once for all jobs. Equal: tars, TLS, recipe, order, batches, workers, and the
rate of the consumer. The first epochs' pixels are compared. Goal: at most 1.05 times as much.

Every epoch is a process of its own, rivals take turns, and a ratio is that of one turn. CPU time and such ratios hold
on a busy machine, too: the result has the load of the machine before and after.

    python -m bench.hub --shards SHARDS [--rate 2000] [--workers 2] [--repeats 9] [--json OUT]
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from bench.remote import Job
from bench.remote_runs.epoch import Run
from bench.smoke import arguments
from feeder.shard.write.index_tars import index_tars
from feeder.tools.bench.result_file import interleave, save, spread
from feeder.tools.terminal import table
from tests.support.hub_server import HubServer
from tests.support.tls import write_certificates

GOAL = 1.05


class _Hub(HubServer):
    """The stand-in, of which the CDN serves files also by unsigned URLs, as a web server."""

    @property
    def site(self) -> str:
        return f"https://127.0.0.1:{self._cdn.server_port}"

    def _bytes(self, path: str, headers: Any) -> tuple[int, dict[str, str], bytes]:
        return super()._bytes(path if "?" in path else f"{path}?Signature={self.expired + 1}", headers)


def files(shards: Path, folder: Path) -> dict[str, bytes]:
    """Returns the files of the repository: the tars in tars/, and with their index in set/."""
    tars = {tar.name: tar.read_bytes() for tar in shards.glob("*.tar")}
    folder.mkdir()
    for name, data in tars.items():
        (folder / name).write_bytes(data)
    index_tars(str(folder))
    index = {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in tars}
    return {f"tars/{name}": data for name, data in tars.items()} | {
        f"set/{name}": data for name, data in (tars | index).items()
    }


def environment(hub: HubServer, folder: Path) -> dict[str, str]:
    """Returns the variables that lead a run to the hub, with caches of its own."""
    return {
        **{"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "", "HF_HUB_OFFLINE": "", "HF_HOME": str(folder / "hf")},
        **{"SSL_CERT_FILE": str(folder / "authority.pem"), "XDG_CACHE_HOME": str(folder / "cache")},
        "NO_PROXY": "localhost,127.0.0.1",
    }


def main() -> None:
    options = arguments(
        __doc__, "hub",
        smoke={"rate": 20000.0, "workers": 1, "image_size": 32, "batch_size": 8, "repeats": 1},
        shards=None, rate=2000.0, workers=2, image_size=224, batch_size=64, repeats=9,
    )  # fmt: skip
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="feeder-hub-") as name:
        folder = Path(name)
        write_certificates(folder, folder / "authority.pem")
        hub = _Hub(folder, "org/name")
        commit = hub.push(files(Path(options.shards), folder / "files"))
        places = {"https": f"{hub.site}/{commit}/set", "hub": f"hf://datasets/org/name@{commit}/tars"}

        def epoch(place: str, **further: bool) -> dict[str, Any]:
            sizes = {each: getattr(options, each) for each in ("rate", "workers", "image_size", "batch_size")}
            run = Run(place, cache=tempfile.mkdtemp(prefix="cache-", dir=folder), **sizes, **further)
            job = Job("bench.remote_runs.epoch", dataclasses.asdict(run), environment(hub, folder))
            found = job.epoch()
            job.close()
            shutil.rmtree(run.cache)
            return found

        if len({epoch(place, checked=True)["digest"] for place in places.values()}) != 1:
            raise SystemExit("the hub's batches are not those of the web server")

        def ms(place: str) -> float:
            found = epoch(place)
            return 1000 * float(found["cpu_s"]) / int(found["images"])

        cpu = interleave({rival: partial(ms, place) for rival, place in places.items()}, options.repeats)
        hub.close()
    load.append(os.getloadavg()[0])
    ratio = spread([a / b for a, b in zip(cpu["hub"], cpu["https"], strict=True)])
    found = {"cpu_ms_per_image": {rival: spread(values) for rival, values in cpu.items()}, "ratio": ratio}
    lines = [["", "median", "least", "most"]]
    for name, each in (*found["cpu_ms_per_image"].items(), ("ratio", ratio)):
        lines.append([name, *(f"{each[figure]:.3f}" for figure in ("median", "min", "max"))])
    print(table(lines))
    print(f"written to {save('hub', {**found, 'goals': {'ratio': GOAL}, 'load': load}, options.json)}")


if __name__ == "__main__":
    main()
