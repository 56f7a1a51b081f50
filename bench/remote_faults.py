"""Loads epochs from a store that fails again and again, and compares every batch with the local copy's.

The store is Ceph's gateway, or moto's server where Ceph is not installed and with --smoke, behind a proxy that spoils
--rate of the requests by each kind of fault: answers 503, resets, requests that are never answered, connections cut in
the middle of an answer or silent from there on, and flipped bytes. The cache holds half of the set, so that every epoch
downloads.
Then no connection comes about for --outage seconds, in the middle of an epoch of each way to load: feeder's workers, a
dataset of the caller's own in feeder's loader, the trainer itself and torch's loader, with their defaults.
Fails on a wrong batch, if a kind of fault was made fewer than --least times, if a worker was taken for one that hangs,
and if more than a hundredth of the bytes, or one range, was asked for a second time because it was slow.

    python -m bench.remote_faults --shards SHARDS [--epochs 10] [--rate 0.05] [--outage 120] [--json OUT]
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from bench.smoke import arguments
from feeder.order.lanes import Lanes
from feeder.shard.cache.downloads import Counts
from feeder.tools.bench.result_file import save, spread
from tests.support.fault_campaign import KINDS, run_campaign
from tests.support.fault_proxy import FaultProxy, Faults
from tests.support.outage import run_outage
from tests.support.s3_server import S3Server

BUCKET = "feeder-faults"


def main() -> None:
    smoke = {"epochs": 1, "batch_size": 8, "lanes": 2, "window": 8, "workers": 1, "rate": 0.01, "least": 0,
             "outage": 1.0}  # fmt: skip
    options = arguments(
        __doc__, "remote_faults", smoke, shards=None, epochs=10, rate=0.05, seed=1, batch_size=64, workers=2,
        lanes=4, window=256, least=10, outage=120.0,
    )  # fmt: skip
    log = list[str]()

    def note(text: str) -> None:
        print(text, flush=True)
        log.append(text)

    with tempfile.TemporaryDirectory(prefix="feeder-faults-") as made:
        (folder := Path(made) / "s3").mkdir()
        server = S3Server(folder, memory_bytes=8 << 30, ceph=not options.smoke)
        proxy = FaultProxy(server.port)
        try:
            size_bytes = server.upload(Path(options.shards), BUCKET, "set")
            os.environ.update(server.environment(proxy.endpoint))
            found = run_campaign(
                Path(options.shards),
                f"s3://{BUCKET}/set",
                proxy,
                Path(made) / "cache",
                epochs=options.epochs,
                rate=options.rate,
                seed=options.seed,
                cache_bytes=None if options.smoke else size_bytes // 2,
                workers=options.workers,
                batch_size=options.batch_size,
                lanes=Lanes(options.lanes, options.window),
                note=note,
            )
            proxy.set(Faults())
            outage = run_outage(
                Path(options.shards),
                f"s3://{BUCKET}/set",
                proxy,
                Path(made) / "outage",
                seconds=options.outage,
                batch_size=options.batch_size,
                lanes=Lanes(options.lanes, options.window),
            )
        finally:
            proxy.close()
            server.close()
    result: dict[str, Any] = {
        "server": "Ceph" if server.is_real else "moto",
        "size_bytes": size_bytes,
        "log": log,
    } | found._asdict()
    ways = {name: survived._asdict() for name, survived in outage.items()}
    result |= {"outage": {"length_s": options.outage, "ways": ways}}
    print(f"{found.wrong} of {found.batches} batches wrong; faults {found.faults}")
    for name, survived in outage.items():
        print(f"no connection for {options.outage:g} s, {name}: {survived}")
    print(f"written to {save('remote_faults', result | {'seconds': spread(found.seconds)}, options.json)}")
    rare = {kind: found.faults.get(kind, 0) for kind in KINDS if found.faults.get(kind, 0) < options.least}
    harmed = [name for name, survived in outage.items() if survived.wrong or survived.replaced_workers]
    counts = Counts(found.counts.get("bytes", 0), hedged_bytes=found.counts.get("hedged_bytes", 0))
    twice = max(0, counts.hedged_bytes - counts.most_hedged_bytes)
    if found.wrong or rare or harmed or twice:
        raise SystemExit(
            f"{found.wrong} wrong batches; too few faults to tell: {rare}; outage not survived: {harmed}; "
            f"{twice:,} bytes too many asked for twice"
        )


if __name__ == "__main__":
    main()
