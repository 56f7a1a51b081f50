"""Limits of the process are named in the error that comes of them, with the way out."""

from __future__ import annotations

import errno
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from feeder.system import limit_errors
from tests.support.loader_data import write_shards

_LOAD = """
import resource, sys
import torch
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop

shards, limit, value, workers, kind = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
dataset = ShardDataset(shards, RandomResizedCrop(224)) if kind == "fast" else torch.zeros(64, 3, 224, 224)
context = "forkserver" if kind == "forkserver" else None
loader = DataLoader(dataset, batch_size=32, num_workers=workers, multiprocessing_context=context)
resource.setrlimit(getattr(resource, limit), (value, value))
for batch in loader:
    del batch
"""


@pytest.mark.slow
def test_a_limit_that_a_loader_meets_is_named(tmp_path: Path) -> None:
    shards = str(write_shards(tmp_path / "shards", 64))
    memory = "RLIMIT_AS", 600 << 20
    files = "RLIMIT_NOFILE", 16, 4
    cases = [(*files, kind) for kind in ("fast", "generic", "forkserver")]
    cases += [(*memory, 2, "fast"), (*memory, 2, "generic")]
    runs = [
        subprocess.Popen([sys.executable, "-c", _LOAD, shards, *map(str, case)], stderr=subprocess.PIPE, text=True)
        for case in cases
    ]
    said = [run.communicate()[1] for run in runs]
    assert [run.returncode for run in runs] == [1] * len(runs)
    for text in said[:3]:
        assert re.search(r"this process may have 16 files open \(RLIMIT_NOFILE\).*ulimit -n", text), text
    for text in said[3:]:
        assert re.search(r"limited to 600 MiB \(RLIMIT_AS\).*ulimit -v", text), text


def test_errors_keep_their_kind_and_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (7, 7))
    with pytest.raises(OSError, match=r"may have 7 files open") as caught, limit_errors.explained():
        raise OSError(errno.EMFILE, "Too many open files", "some/file")
    assert (caught.value.errno, caught.value.filename) == (errno.EMFILE, "some/file")
    with pytest.raises(MemoryError, match="limited to 0 MiB"), limit_errors.explained():
        raise MemoryError
    for unlimited, cause in ((None, "limited to 0 MiB"), (resource.RLIMIT_AS, "this user may have 7 processes")):
        limits = {unlimited: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)}
        monkeypatch.setattr(resource, "getrlimit", lambda kind, limits=limits: limits.get(kind, (7, 7)))
        with pytest.raises(RuntimeError, match=f"can't start new thread: .*{cause}"), limit_errors.explained():
            raise RuntimeError("can't start new thread")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (7, 7))
    for error in (OSError(errno.ENOENT, "gone"), RuntimeError("a bug"), KeyError("x"), StopIteration()):
        with pytest.raises(type(error)) as same, limit_errors.explained():
            raise error
        assert same.value is error
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert limit_errors.limit_reached(MemoryError()) is None
