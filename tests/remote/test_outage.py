"""A network that is gone for a while: every way to load goes on with the right batches, and no worker is taken for one
that hangs."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data

import feeder
from feeder import transforms as T
from tests.support.fault_proxy import FaultProxy, Faults
from tests.support.remote import Bucket
from tests.support.remote_sets import end_fetchers, make_set, upload

_OUTAGE_S = 12.0  # and a worker that is silent for a third of it is taken for one that hangs


def _digests(batches: Any) -> list[str]:
    found = []
    for images, labels, keys in batches:
        data = np.ascontiguousarray(images).tobytes() + np.ascontiguousarray(labels).tobytes()
        found.append(hashlib.sha256(data + repr(list(keys)).encode()).hexdigest())
    return found


def _loaders(data: feeder.ShardDataset) -> dict[str, Any]:
    """A loader of each kind."""
    options: dict[str, Any] = {"shuffle": feeder.Lanes(2, 8), "seed": 1, "hang_timeout_s": _OUTAGE_S / 3}
    return {
        "fast": feeder.DataLoader(data, 8, num_workers=2, **options),
        "generic": feeder.DataLoader(_Plain(data), 8, num_workers=2, hang_timeout_s=_OUTAGE_S / 3),
        "in the trainer": feeder.DataLoader(data, 8, num_workers=0, **options | {"hang_timeout_s": None}),
        "torch's": torch.utils.data.DataLoader(data, 8, num_workers=2),
    }


class _Plain(torch.utils.data.Dataset[Any]):
    """A dataset of the caller's own, which reads from feeder's."""

    def __init__(self, data: feeder.ShardDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> Any:
        return self.data[i]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this loader runs torch's path")
def test_an_outage_is_survived_by_every_way_to_load(bucket: Bucket, fault_proxy: FaultProxy, tmp_path: Path) -> None:
    local = make_set(tmp_path)
    url = upload(bucket, local)

    def dataset(path: str, **options: Any) -> feeder.ShardDataset:
        return feeder.ShardDataset(path, T.Compose([T.CenterCrop(32)]), ["key"], **options)

    expected = {name: _digests(loader) for name, loader in _loaders(dataset(str(local))).items()}
    assert feeder.DataLoader(_Plain(dataset(str(local))), 8).path == "generic"
    with end_fetchers(tmp_path), ThreadPoolExecutor() as threads:
        sets: dict[str, Any] = {}
        loaders, found, iterators = {}, {}, {}
        for name in expected:  # each with a cache of its own, so that each waits for the network
            sets[name] = dataset(url, cache_dir=tmp_path / name)
            loaders[name] = _loaders(sets[name])[name]
            iterators[name] = iter(loaders[name])
            found[name] = _digests([next(iterators[name])])
        for path in tmp_path.glob("*/*/*.tar"):
            path.unlink()  # what was cached has to come again
        fault_proxy.set(Faults(offline=True))
        began = time.monotonic()
        rests = {name: threads.submit(_digests, iterator) for name, iterator in iterators.items()}
        while time.monotonic() - began < _OUTAGE_S:
            time.sleep(0.1)
        fault_proxy.set(Faults())
        for name, rest in rests.items():
            assert found[name] + rest.result() == expected[name], name
            assert sets[name].reader.mirror.counts()["retries"] > 0, name
        for name in ("fast", "generic"):
            assert loaders[name].stats()["replaced_workers"] == [], name
