"""One thread of a worker that hangs in a system call, while its others go on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop
from tests.support.loader_data import write_shards

# The first read of the kernels in any thread but its process's first never ends, and reads of the first one wait until
# it has begun. Afterwards, in this process and in all others, every read is as usual.
_STUCK_READ = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t pread(int file, void* into, size_t count, off_t at) {
    Dl_info caller;
    const char* const mark = getenv("STUCK_READ");
    if (mark && dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "_native")) {
        if (syscall(SYS_gettid) == getpid()) {
            while (access(mark, F_OK) != 0) sched_yield();
        } else if (open(mark, O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0) {
            for (;;) pause();
        }
    }
    return (ssize_t)syscall(SYS_pread64, file, into, count, at);
}
"""
_TRAINER = """
import json, sys, torch, feeder
dataset = feeder.ShardDataset(sys.argv[1], feeder.transforms.RandomResizedCrop(16))
loader = feeder.DataLoader(
    dataset, batch_size=16, shuffle=True, seed=1, num_workers=2, backend="cpu", persistent_workers=True,
    worker_options=feeder.WorkerOptions(threads=2, hang_timeout_s=2),
)
torch.save([tuple(each.clone() for each in batch) for batch in loader], sys.argv[2])
print(json.dumps([[event["cause"], event["pid"], event["keys"]] for event in loader.stats()["replaced_workers"]]))
print(json.dumps(loader.worker_pids()))
"""


@pytest.fixture(scope="module")
def stuck_read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("stuck_read")
    (folder / "stuck_read.c").write_text(_STUCK_READ)
    library = folder / "stuck_read.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "stuck_read.c", "-ldl"], check=True)
    return library


@pytest.mark.slow
def test_a_worker_with_one_stuck_thread_is_replaced_and_every_sample_comes_once(
    stuck_read: Path, tmp_path: Path
) -> None:
    shards, mark = write_shards(tmp_path / "shards", 64, jpegs=True), tmp_path / "mark"
    done = subprocess.run(
        [sys.executable, "-c", _TRAINER, shards, tmp_path / "batches.pt"],
        env={**os.environ, "LD_PRELOAD": str(stuck_read), "STUCK_READ": str(mark)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert mark.exists()
    dataset = ShardDataset(shards, RandomResizedCrop(16))
    expected = list(DataLoader(dataset, batch_size=16, shuffle=True, seed=1, backend="cpu"))
    batches = torch.load(tmp_path / "batches.pt")
    assert len(batches) == len(expected)
    for batch, wanted in zip(batches, expected, strict=True):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(batch, wanted, strict=True))
    events, running = map(json.loads, done.stdout.splitlines())
    assert any(cause == "silent for 2 s" and len(keys) == 8 for cause, _, keys in events)
    assert not {pid for _, pid, _ in events} & set(running)
