"""Measures a shard set in an object store beside the same set on the local disk.

first-epoch  Images/s of the first epoch from the store, with an empty cache, beside an epoch from the local disk, for a
             stand-in consumer of --rate images/s; and CPU time of all processes per image beyond the local one's. Over
             plain HTTP and, if HAProxy is installed, over TLS (whose own CPU time does not count).
bytes        Bytes that the store sent, in shares of the set's size: in a first epoch; in a second one with everything
             in the cache, with a cache of half the set, and with one that keeps half of it beside the shards that the
             order reads from at a time; for one of two ranks; and for two ranks of one host. Those of a half need
             many more shards than the order reads from at a time: `feeder shard --samples-per-shard 50`, and here
             --window 64.
faults       Seconds of first epochs with 1 % of the requests failing (each kind of fault equally often), beside others
             without faults, both by way of the same proxy. An epoch has few requests, so turns go on until ten failed,
             or four times --repeats; the ratio is that of all turns together.
resume       Seconds from the start in the middle of an epoch to the first batch, with an empty cache, beside the time
             of two ranges of 8 MiB one after the other, both by way of a proxy with --latency (s) and --bandwidth
             (MB/s); and the same from the local disk, where workers take most of it to start.
ranges       CPU time of getting all ranges of the set's shards, ms a MiB, without looking at them: as the fetcher does,
             and by obstore alone.
open         Seconds and memory to open a set of --samples samples, in shards of 2,400, in a new process: from
             the store, with an empty cache, and from the local disk. There is its header only.
rivals       Seconds of a first epoch beside a second one from the cache, and CPU time per image, of MosaicML Streaming,
             LitData and webdataset over the same server, for the same consumer; of feeder also those of two epochs from
             the local disk. Rivals give the encoded bytes: only what lies before decoding is compared. --rivals names a
             Python that has them.
raw          CPU time per image of an epoch over the images as they lie in a bucket, by FolderDataset and by LitData's
             StreamingRawDataset, the bytes alone and decoded to --image-size by feeder in both, with each count of
             --raw-workers. Both have their listing, and keep no images. The store's cores are those that its processes
             were busy on. --rivals names a Python that has both; without it feeder is measured alone.

The store is Ceph's gateway over one in-memory OSD, or moto's server where Ceph is not installed and with --smoke. It is
on the same machine, so its processes and the proxy have the lowest priority: those of a real store take no CPU from a
trainer. In a virtual machine, memory that nobody has used yet comes from its host, by page faults that count as the
writer's CPU time. So as much as an epoch from the store takes is used once before it. Where the host takes free memory
back within seconds (free page reporting), that has to be off while the benchmark runs: as root, write 11 to
/sys/module/page_reporting/parameters/page_reporting_order.
Equal: images, recipe (RandomResizedCrop(224), flip), order, batch size, workers, consumer. The first run compares all
pixels with the local ones'. Every run is a process of its own; rivals take turns.

    python -m bench.remote --shards SHARDS [--only first-epoch,faults] [--rivals PYTHON] [--repeats 5] [--json OUT]
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench.remote_runs.epoch import Run
from bench.remote_runs.opening import Opening, make_header
from bench.remote_runs.ranges import Ranges
from bench.remote_runs.rivals import samples
from bench.smoke import ROOT, arguments
from feeder.shard.cache.link import ENVIRONMENT
from feeder.shard.cache.presence import Record
from feeder.tools.bench.result_file import interleave, save, spread
from feeder.tools.terminal import table
from tests.support.fault_proxy import FaultProxy, Faults
from tests.support.s3_server import S3Server
from tests.support.tls import TlsProxy, haproxy_is_installed

BUCKET, PREFIX, LARGE = "feeder-bench", "set", "large"
URL, LARGE_URL = f"s3://{BUCKET}/{PREFIX}", f"s3://{BUCKET}/{LARGE}"
RANGE_BYTES = 8 << 20
KINDS = ("503", "reset", "drop", "cut", "stall", "flip")
FAULTS, LEAST_FAULTS = 0.01, 10
# By parts of a figure's name, as the table shows it.
GOALS = {
    ("first-epoch", "ratio", "http"): ">= 0.95",
    ("first-epoch", "cpu_ms_above_local", "http"): "<= 0.15",
    ("bytes", "first epoch, all cached"): "<= 1.02",
    ("bytes", "second epoch, all cached"): "0",
    ("bytes", "second epoch, half the set kept"): "<= 0.51",
    ("bytes", "one of two ranks"): "<= 0.51",
    ("bytes", "two ranks of a host"): "<= 1.02",
    ("faults", "ratio"): "<= 1.1",
    ("resume", "ratio"): "<= 1",
    ("raw", "ratio"): ">= 1.5",
    ("open", "seconds"): "< 2",
    ("open", "memory_mib"): "< 64",
}


class Job:
    """A run in a process of its own.

    Args:
        module: The module, or the path of a script.
        run: Its argument.
        environment: Environment variables beside this process's.
        python: The Python.
    """

    def __init__(self, module: str, run: Any, environment: Mapping[str, str], python: str = sys.executable) -> None:
        place = [module] if module.endswith(".py") else ["-m", module]
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [python, *place, json.dumps(run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )

    def begin(self) -> None:
        """Begins the next epoch."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Waits for the epoch's end and returns its figures."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a run failed: {self._process.args!r}")
        found: dict[str, Any] = json.loads(line)
        return found

    def epoch(self) -> dict[str, Any]:
        """Runs the next epoch and returns its figures."""
        self.begin()
        return self.end()

    def close(self) -> None:
        """Waits until the process has ended."""
        self._process.communicate(timeout=600)


class Bench:
    """The set in a store and on the local disk.

    Args:
        options: The arguments.
        server: The store.
        folder: An empty folder.
    """

    def __init__(self, options: Any, server: S3Server, folder: Path) -> None:
        self._options, self._server, self._folder = options, server, folder
        self.size_bytes = server.upload(Path(options.shards), BUCKET, PREFIX)

    def job(self, place: str = URL, endpoint: str | None = None, **keywords: Any) -> Job:
        """Starts a run; one from the store has an empty cache, unless it is given one."""
        options = self._options
        if place == URL and "cache" not in keywords:
            keywords["cache"] = self.cache()
        run = Run(
            place,
            batch_size=options.batch_size,
            workers=options.workers,
            image_size=options.image_size,
            rate=options.rate,
            lanes=options.lanes,
            window=options.window,
        )
        return Job(
            "bench.remote_runs.epoch",
            dataclasses.asdict(dataclasses.replace(run, **keywords)),
            self._server.environment(endpoint),
        )

    def cache(self) -> str:
        """Returns an empty cache folder, in place of those before it; memory for its files is at hand."""
        for old in self._folder.glob("cache-*"):
            shutil.rmtree(old)
        with mmap.mmap(-1, 2 * self.size_bytes) as memory:
            for page in range(0, len(memory), mmap.PAGESIZE):
                memory[page] = 1
        return tempfile.mkdtemp(prefix="cache-", dir=self._folder)

    def epoch(self, place: str = URL, endpoint: str | None = None, **keywords: Any) -> dict[str, Any]:
        """Runs one epoch."""
        job = self.job(place, endpoint, **keywords)
        found = job.epoch()
        job.close()
        return found

    @contextlib.contextmanager
    def proxy(self, faults: Faults | None = None) -> Iterator[FaultProxy]:
        """A proxy before the store."""
        proxy = FaultProxy(self._server.port)
        _make_low([proxy.pid])
        proxy.set(faults or Faults())
        yield proxy
        proxy.close()

    @contextlib.contextmanager
    def endpoints(self) -> Iterator[dict[str, str | None]]:
        """The store's endpoints: over plain HTTP and, if HAProxy is installed, over TLS."""
        if self._options.smoke or not haproxy_is_installed():
            yield {"http": None}
            return
        tls = TlsProxy(Path(tempfile.mkdtemp(dir=self._folder)), self._server.port)
        with contextlib.closing(tls), _variable("AWS_CA_BUNDLE", str(tls.authority)):
            yield {"http": None, "tls": tls.good}

    def check(self) -> None:
        """Raises SystemExit if the store's pixels are not the local ones."""
        local, remote = (self.epoch(place, checked=True)["digest"] for place in (self._options.shards, URL))
        if local != remote:
            raise SystemExit("the store's batches are not the local disk's")

    def first_epoch(self) -> dict[str, Any]:
        """Measures the question of this name."""
        with self.endpoints() as endpoints:
            ways: dict[str, Callable[[], dict[str, Any]]] = {"local": lambda: self.epoch(self._options.shards)}
            ways |= {name: partial(self.epoch, URL, endpoint) for name, endpoint in endpoints.items()}
            found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}

            def run(name: str) -> float:
                found[name].append(ways[name]())
                return found[name][-1]["images"] / found[name][-1]["seconds"]

            rates = interleave({name: partial(run, name) for name in ways}, self._options.repeats)
        cpu_ms = {name: [1e3 * each["cpu_s"] / each["images"] for each in runs] for name, runs in found.items()}
        remote = [name for name in ways if name != "local"]
        first = {name: spread([each["first_batch_s"] for each in runs]) for name, runs in found.items()}
        return {
            "first_batch_s": first,
            "images_per_s": {name: spread(values) for name, values in rates.items()},
            "cpu_ms_per_image": {name: spread(values) for name, values in cpu_ms.items()},
            "ratio": {name: spread(_ratios(rates[name], rates["local"])) for name in remote},
            "cpu_ms_above_local": {
                name: spread([a - b for a, b in zip(cpu_ms[name], cpu_ms["local"], strict=True)]) for name in remote
            },
            "goals": {"ratio": 0.95, "cpu_ms_above_local": 0.15},
        }

    def bytes(self) -> dict[str, Any]:
        """Measures the question of this name."""
        found: dict[str, Any] = {}
        with self.proxy() as proxy:
            twice = dict[Job, int]()

            def sent(*jobs: Job) -> float:
                """Runs an epoch of each job; returns the share that was sent, but for ranges that were slow and so
                were asked for twice."""
                before = sum(request.size_bytes for request in proxy.requests())
                for job in jobs:
                    job.begin()
                again = max([job.end()["remote"]["hedged_bytes"] for job in jobs])
                again -= twice.get(jobs[0], 0)
                twice[jobs[0]] = twice.get(jobs[0], 0) + again
                now = sum(request.size_bytes for request in proxy.requests())
                return (now - before - again) / self.size_bytes

            fast = 10 * self._options.rate
            job = self.job(URL, proxy.endpoint, epochs=2, rate=fast)
            for epoch in ("first", "second"):
                found[f"{epoch} epoch, all cached"] = sent(job)
            job.close()
            budget = self.size_bytes // 2
            for name in ("a cache of half the set", "half the set kept"):
                cache = self.cache()
                job = self.job(URL, proxy.endpoint, cache=cache, cache_bytes=budget, epochs=2, rate=fast)
                sent(job)
                found[f"kept by {name}"] = kept = _kept_bytes(cache) / self.size_bytes
                found[f"second epoch, {name}"] = sent(job)
                job.close()
                budget += int((0.5 - kept) * self.size_bytes)  # what the order reads from at a time comes on top
            for name, ranks in (("one of two ranks", (0,)), ("two ranks of a host", (0, 1))):
                cache = self.cache()
                jobs = [
                    self.job(URL, proxy.endpoint, cache=cache, rank=rank, world_size=2, rate=fast) for rank in ranks
                ]
                found[name] = sent(*jobs)
                for job in jobs:
                    job.close()
        return {
            "share_of_the_set": {name: spread([share]) for name, share in found.items()},
            "asked_for_twice": spread([sum(twice.values()) / self.size_bytes]),
            "goals": {"share_of_the_set": 1.02},
        }

    def faults(self) -> dict[str, Any]:
        """Measures the question of this name."""
        spoiled = Faults(dict.fromkeys(KINDS, FAULTS / len(KINDS)), in_turn=True, only=f"{PREFIX}/")
        counts: dict[str, int] = {}
        with self.proxy() as proxy:
            found: dict[str, list[float]] = {"clean": [], "faults": []}
            requests, turns, least = 0, self._options.repeats, 0 if self._options.smoke else LEAST_FAULTS
            most = 4 * turns
            while len(found["clean"]) < turns or (sum(counts.values()) < least and len(found["clean"]) < most):
                for name, seconds in found.items():
                    proxy.set(spoiled if name == "faults" else Faults())
                    before = len(proxy.requests())
                    seconds.append(self.epoch(URL, proxy.endpoint)["seconds"])
                    requests += len(proxy.requests()) - before if name == "faults" else 0
                counts = dict.fromkeys(KINDS, 0) | proxy.counts()
        missing = [kind for kind in KINDS if not counts[kind]]
        if missing and not self._options.smoke:
            raise SystemExit(f"of {requests:,} requests none failed by {', '.join(missing)}: {counts}")
        return {
            "seconds": {name: spread(values) for name, values in found.items()},
            "ratio": spread([sum(found["faults"]) / sum(found["clean"])]),
            "ratio_by_turn": spread(_ratios(found["faults"], found["clean"])),
            "faults": counts,
            "kinds": sum(map(bool, counts.values())),
            "requests": requests,
            "goals": {"ratio": 1.1},
        }

    def resume(self) -> dict[str, Any]:
        """Measures the question of this name."""
        options = self._options
        slow = Faults(latency_s=options.latency, bandwidth=options.bandwidth * 1e6)
        shard = max(Path(options.shards).glob("*.tar"), key=lambda path: path.stat().st_size)
        size = min(RANGE_BYTES, shard.stat().st_size)
        with self.proxy(slow) as proxy:
            client = self._server.client_of(proxy.endpoint)

            def ranges() -> float:
                started = time.perf_counter()
                for _ in range(2):
                    answer = client.get_object(Bucket=BUCKET, Key=f"{PREFIX}/{shard.name}", Range=f"bytes=0-{size - 1}")
                    answer["Body"].read()
                return time.perf_counter() - started

            def first(place: str) -> float:
                seconds: float = self.epoch(place, proxy.endpoint, start=0.5)["first_batch_s"]
                return seconds

            ways: dict[str, Callable[[], float]] = {
                "two ranges": ranges,
                "first batch": partial(first, URL),
                "first batch, local": partial(first, options.shards),
            }
            found = interleave(ways, options.repeats)
            client.close()
        return {
            "seconds": {name: spread(values) for name, values in found.items()},
            "ratio": spread(
                [
                    (remote - local) / ranges
                    for remote, local, ranges in zip(
                        found["first batch"], found["first batch, local"], found["two ranges"], strict=True
                    )
                ]
            ),
            "range_bytes": size,
            "goals": {"ratio": 1.0},
        }

    def ranges(self) -> dict[str, Any]:
        """Measures the question of this name."""
        with self.endpoints() as endpoints:

            def cost(endpoint: str | None, *, is_obstore: bool) -> float:
                ranges = Ranges(URL, self._options.shards, is_obstore)
                environment = ENVIRONMENT | self._server.environment(endpoint)
                job = Job("bench.remote_runs.ranges", dataclasses.asdict(ranges), environment)
                found = job.end()
                job.close()
                ms: float = 1e3 * found["cpu_s"] / (found["bytes"] / (1 << 20))
                return ms

            ways = {
                f"{name}{of}": partial(cost, endpoint, is_obstore=bool(of))
                for name, endpoint in endpoints.items()
                for of in ("", ", obstore alone")
            }
            found = interleave(ways, self._options.repeats)
        return {
            "cpu_ms_per_mib": {name: spread(values) for name, values in found.items()},
            "ratio": {name: spread(_ratios(found[name], found[f"{name}, obstore alone"])) for name in endpoints},
        }

    def open(self) -> dict[str, Any]:
        """Measures the question of this name."""
        local = Path(tempfile.mkdtemp(dir=self._folder))
        make_header(local, self._options.samples)
        self._server.upload(local, BUCKET, LARGE)
        found: dict[str, list[dict[str, Any]]] = {"local": [], "store": []}
        for _ in range(self._options.repeats):
            for name, runs in found.items():
                opening = Opening(str(local)) if name == "local" else Opening(LARGE_URL, self.cache())
                job = Job("bench.remote_runs.opening", dataclasses.asdict(opening), self._server.environment())
                runs.append(job.end())
                job.close()
                if runs[-1]["samples"] != self._options.samples:
                    raise SystemExit(f"expected {self._options.samples} samples, got {runs[-1]['samples']}")
        shutil.rmtree(local)
        return {
            figure: {name: spread([run[figure] for run in runs]) for name, runs in found.items()}
            for figure in ("seconds", "memory_mib")
        } | {"samples": self._options.samples}

    def rivals(self) -> dict[str, Any]:
        """Measures the question of this name."""
        options = self._options
        script = str(ROOT / "bench/remote_runs/rivals.py")
        common = {"shards": options.shards, "bucket": BUCKET, "rate": options.rate, "batch_size": options.batch_size}
        _open_to_all(self._server)
        environment = self._server.environment() | {"S3_ENDPOINT_URL": self._server.endpoint}
        names = ("streaming", "litdata", "webdataset")
        for name in names:  # each writes the images in its own format, once
            self._rival(script, {**common, "name": name, "write": True, "cache": self.cache()}, environment)
        found: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in ("local", "feeder", *names)}
        for _ in range(options.repeats):
            for name, runs in found.items():
                if name in ("local", "feeder"):
                    job = self.job(options.shards if name == "local" else URL, epochs=2)
                else:
                    run = {**common, "name": name, "cache": self.cache(), "workers": options.workers}
                    job = Job(script, run, environment, options.rivals)
                runs.append([job.epoch(), job.epoch()])
                job.close()
                first, second = runs[-1]
                print(f"  {name}: {first['seconds']:.2f} s, then {second['seconds']:.2f} s", flush=True)
        ratio = [a[0]["seconds"] / b[0]["seconds"] for a, b in zip(found["local"], found["feeder"], strict=True)]
        return {"first_to_local": spread(ratio)} | {
            name: {
                "images_per_s": {
                    epoch: spread([run[k]["images"] / run[k]["seconds"] for run in runs])
                    for k, epoch in enumerate(("first", "second"))
                },
                "first_to_second": spread([run[1]["seconds"] / run[0]["seconds"] for run in runs]),
                "cpu_ms_above_second": [1e3 * (run[0]["cpu_s"] - run[1]["cpu_s"]) / run[0]["images"] for run in runs],
            }
            for name, runs in found.items()
        }

    def raw(self) -> dict[str, Any]:
        """Measures the question of this name."""
        options, store = self._options, self._server.pids()
        names = ("litdata", "feeder") if options.rivals else ("feeder",)
        script, prefix = str(ROOT / "bench/remote_runs/raw.py"), "raw"
        with ThreadPoolExecutor(16) as pool:
            puts = []
            for number, sample in enumerate(samples(options.shards)):
                key = f"{prefix}/{sample['label']:04d}/{number}.jpg"
                puts.append(pool.submit(self._server.client.put_object, Bucket=BUCKET, Key=key, Body=sample["image"]))
        for put in puts:
            put.result()
        common = {"url": f"s3://{BUCKET}/{prefix}", "store": store, "batch_size": options.batch_size}
        result: dict[str, Any] = {"goals": {"ratio": 1.5}}
        for workers in map(int, options.raw_workers.split(",")):
            for kind, size in (("bytes", 0), ("decoded", options.image_size)):
                cores: list[float] = []
                rates: dict[str, list[float]] = {name: [] for name in names}

                def epoch(name: str, each: dict[str, Any], cores: list[float] = cores, rates: Any = rates) -> float:
                    run = {**common, **each, "name": name, "cache": self.cache()}
                    job = Job(script, run, self._server.environment(), options.rivals or sys.executable)
                    found = job.epoch()
                    job.close()
                    rates[name].append(found["images"] / found["seconds"])
                    cores.append(found["store_cpu_s"] / found["seconds"])
                    return 1e3 * float(found["cpu_s"]) / int(found["images"])

                each = {"workers": workers, "image_size": size}
                cpu = interleave({name: partial(epoch, name, each) for name in names}, options.repeats)
                result[f"{kind}, {workers} workers"] = {
                    "cpu_ms_per_image": {name: spread(values) for name, values in cpu.items()},
                    "images_per_s": {name: spread(values) for name, values in rates.items()},
                    "store_cores": spread(cores),
                } | ({"ratio": spread(_ratios(cpu["litdata"], cpu["feeder"]))} if options.rivals else {})
        return result

    def _rival(self, script: str, run: dict[str, Any], environment: Mapping[str, str]) -> None:
        job = Job(script, run, environment, self._options.rivals)
        job.epoch()
        job.close()


def _open_to_all(server: S3Server) -> None:
    """Has anyone read the bucket, for rivals that take plain URLs."""
    allowed = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{BUCKET}/*"}
    policy = {"Version": "2012-10-17", "Statement": [allowed]}
    server.client.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(policy))
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{server.endpoint}/{BUCKET}/{PREFIX}/index.bin"):
        pass


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    yield
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before


def _make_low(pids: Iterable[int]) -> None:
    """Gives the threads of processes the lowest priority."""
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(thread), 19)


def _kept_bytes(cache: str) -> int:
    """Returns the size of the shards that stay in a cache."""
    records = [Record(str(path)) for path in Path(cache).glob("*/.have/*.tar")]
    return sum(record.size_bytes for record in records if record.is_pinned)


def _ratios(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def _rows(value: Any, path: tuple[str, ...] = ()) -> Iterator[list[str]]:
    if isinstance(value, dict) and "median" in value:
        goal = next((text for names, text in GOALS.items() if all(name in path for name in names)), "")
        yield [" ".join(path), *(f"{value[name]:.4g}" for name in ("median", "min", "max")), goal]
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _rows(inner, (*path, str(name)))


def main() -> None:
    smoke = {
        "only": "first-epoch,faults,open,raw",
        "repeats": 1,
        "batch_size": 8,
        "image_size": 32,
        "rate": 5000.0,
        "lanes": 2,
        "window": 8,
        "workers": 1,
        "raw_workers": "1",
        "samples": 100_000,
    }
    questions = {"first-epoch": "first_epoch"} | {
        name: name for name in ("bytes", "faults", "resume", "ranges", "open", "raw")
    }
    options = arguments(
        __doc__, "remote", smoke, shards=None, only="", rivals="", repeats=5, rate=500.0, batch_size=64, workers=2,
        image_size=224, lanes=4, window=256, latency=0.02, bandwidth=100.0, samples=10_000_000_000,
        raw_workers="1,2,4,8",
    )  # fmt: skip
    options.shards = os.path.abspath(options.shards)  # runs start in the repository's root
    if options.rivals:
        options.rivals = os.path.abspath(options.rivals)
        questions["rivals"] = "rivals"
    names = options.only.split(",") if options.only else list(questions)
    with tempfile.TemporaryDirectory(prefix="feeder-remote-") as made:
        (folder := Path(made) / "s3").mkdir()
        server = S3Server(folder, memory_bytes=8 << 30, ceph=not options.smoke)
        _make_low(server.pids())
        try:
            bench = Bench(options, server, Path(made))
            if not options.smoke:
                bench.check()
            result: dict[str, Any] = {"server": "Ceph" if server.is_real else "moto", "size_bytes": bench.size_bytes}
            for name in names:
                print(name, flush=True)
                result[name] = getattr(bench, questions[name])()
        finally:
            server.close()
    print(table([["", "median", "min", "max", "goal"], *_rows(result)]))
    print(f"written to {save('remote', result, options.json)}")


if __name__ == "__main__":
    main()
