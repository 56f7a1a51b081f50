"""Workers that are forked from a process with garbage: its finalizers are not for them."""

from __future__ import annotations

import gc
import os
import select
import signal
from pathlib import Path

import torch

from feeder.decoders.dali.pipeline import PipelineOptions, build_pipeline
from feeder.loader.dataloader import DataLoader


class _Garbage:
    """A cycle that leaves a file if another process than its own collects it."""

    def __init__(self, path: Path) -> None:
        self.itself, self.path, self.owner = self, path, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.owner:
            self.path.touch()


class _Collecting(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> int:
        gc.collect()
        return i


def test_forked_workers_do_not_collect_garbage_of_the_trainer(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        _Garbage(tmp_path / "collected")
        loader: DataLoader[torch.Tensor] = DataLoader(
            _Collecting(), batch_size=2, num_workers=1, multiprocessing_context="fork"
        )
        assert torch.cat(list(loader)).tolist() == [0, 1, 2, 3]
    finally:
        gc.enable()
    assert not (tmp_path / "collected").exists()
    assert gc.get_freeze_count() == 0


def test_a_process_that_was_forked_off_drops_pipelines_of_dali_without_waiting_for_their_threads() -> None:
    pipeline = build_pipeline(PipelineOptions())
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        del pipeline
        gc.collect()
        os.write(write, b"x")
        os._exit(0)
    os.close(write)
    with open(read, "rb"):
        is_done = bool(select.select([read], [], [], 60)[0])
    if not is_done:
        os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == 0
