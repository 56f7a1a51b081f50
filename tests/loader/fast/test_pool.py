"""Workers at work: their messages, threads, errors and timeouts."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, WorkerError
from feeder.loader.dataloader import DataLoader
from feeder.loader.options import WorkerOptions
from feeder.transforms import Compose, Lambda, RandomResizedCrop
from tests.support import ROOT
from tests.support.processes import wait_until
from tests.support.rogue_readers import WideReader, rogue_dataset
from tests.support.warm_python import run_warm

RECIPE = RandomResizedCrop(16)


def test_words_larger_than_what_a_channel_holds_come_whole(shards: Path) -> None:
    def wide(workers: int) -> list[bytes]:
        dataset = ShardDataset(shards, RECIPE, fields=("json",))
        dataset.reader = WideReader(str(shards / "index.bin"))
        return [field for _, _, fields in DataLoader(dataset, batch_size=16, num_workers=workers) for field in fields]

    assert wide(2) == wide(0)


def test_forked_workers_use_torch_though_the_trainer_has_used_its_threads(shards: Path) -> None:
    def product(image: npt.NDArray[Any]) -> npt.NDArray[Any]:  # a local function: workers are forked
        side = torch.ones(512, 512)
        return image + np.uint8((side @ side).sum() > 0)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        product(np.zeros(1, np.uint8))
        dataset = ShardDataset(shards, Compose([RECIPE, Lambda(product)]))
        loader = DataLoader(dataset, batch_size=16, num_workers=2, worker_options=WorkerOptions(hang_timeout_s=100))
        assert sum(len(images) for images, _ in loader) == 64
        assert loader.stats()["replaced_workers"] == []
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def _impatient_sockets() -> Iterator[None]:
    socket.setdefaulttimeout(0.05)
    yield
    socket.setdefaulttimeout(None)


@pytest.mark.usefixtures("_impatient_sockets")
@pytest.mark.parametrize("context", [None, "fork"])
def test_a_default_timeout_of_sockets_is_none_of_the_workers(shards: Path, context: str | None) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("json",))
    dataset.reader = WideReader(str(shards / "index.bin"))
    loader = DataLoader(dataset, batch_size=16, num_workers=2, multiprocessing_context=context)
    assert sum(len(labels) for _, labels, _ in loader) == 64
    assert loader.stats()["replaced_workers"] == []


def test_a_slow_sample_delays_only_its_part_of_the_batch(shards: Path, tmp_path: Path) -> None:
    """It waits for the other half of its batch, which another worker makes."""
    dataset = rogue_dataset(shards, 0, "wait", str(tmp_path / "mark"))
    loader = DataLoader(dataset, batch_size=8, num_workers=2, timeout=60)
    assert next(iter(loader))[2].tolist() == list(range(8))


def test_a_bug_in_a_worker_is_raised_with_its_traceback(shards: Path) -> None:
    iterator = iter(DataLoader(rogue_dataset(shards, 5, "raise"), batch_size=4, num_workers=1))
    assert next(iterator)[2].tolist() == [0, 1, 2, 3]
    with pytest.raises(WorkerError, match="a bug in the reader") as caught:
        next(iterator)
    assert "in read" in str(caught.value)
    assert next(iterator)[2].tolist() == [8, 9, 10, 11]


def test_worker_that_cannot_start_says_why(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards), num_workers=1, worker_init_fn=lambda i: 1 // 0)  # type: ignore[arg-type]
    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        next(iter(loader))


def test_a_script_without_a_main_guard_under_spawn_learns_of_it(shards: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
from feeder import DataLoader, ShardDataset, transforms
dataset = ShardDataset({str(shards)!r}, transforms.RandomResizedCrop(8))
list(DataLoader(dataset, num_workers=1, multiprocessing_context="spawn"))
""")
    ended = run_warm([script], capture_output=True, text=True)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert "WorkerError: worker 0 could not start: exit code 1" in last
    assert "if __name__ == '__main__':" in last
    assert ended.stderr.count("bootstrapping phase") == 1


def test_timeout_means_what_torchs_means(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards, 5, "stop"), batch_size=4, num_workers=1, timeout=3)
    iterator = iter(loader)
    wait_until(lambda: loader.stats()["slots"]["ready"])  # however long the worker takes to start
    next(iterator)
    with pytest.raises(RuntimeError, match=r"timed out after 3 seconds"):
        next(iterator)


def test_a_function_that_can_not_be_sent_to_a_worker_is_an_error_with_the_way_out(shards: Path) -> None:
    loader = DataLoader(
        rogue_dataset(shards), num_workers=1, multiprocessing_context="forkserver", worker_init_fn=lambda i: None
    )
    with pytest.raises(ArgumentError, match=r"'forkserver' can't be sent .* top level of a module"):
        iter(loader)


def test_a_server_of_workers_that_can_not_start_is_an_error_at_once(shards: Path) -> None:
    code = (
        "import sys, feeder\n"
        "dataset = feeder.ShardDataset(sys.argv[1], feeder.transforms.RandomResizedCrop(8))\n"
        "sys.executable = '/bin/false'\n"
        "try:\n"
        "    next(iter(feeder.DataLoader(dataset, 4, num_workers=2)))\n"
        "except feeder.WorkerError as error:\n"
        "    print(error)\n"
    )
    done = run_warm(["-c", code, str(shards)], capture_output=True, text=True, cwd=ROOT)
    told = "start: exit code 1; the process that starts workers has ended before it started one"
    assert told in done.stdout, done.stdout + done.stderr


def test_meters_do_not_go_back_while_workers_are_ended(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(rogue_dataset(shards), batch_size=16, num_workers=1)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    found: list[dict[str, Any]] = []
    process = iterator.epoch.engine.pool.workers[0].process
    ended = process.ended

    def look() -> int | None:
        found.append(loader.stats())  # as another thread may at any time
        return ended()

    monkeypatch.setattr(process, "ended", look)
    loader.close()
    found.append(loader.stats())
    assert [stats["parts"] for stats in found] == [4] * len(found)
    assert {stats["workers"][0]["stages"]["read"]["count"] for stats in found} == {4}
    assert len(found) > 1


def test_workers_for_images_and_labels_start_without_what_they_never_use(shards: Path) -> None:
    code = (
        "import sys; import feeder.loader.fast.fast_worker; from feeder.dataset.shard_reader import ShardReader; "
        "from feeder.loader.fast.sample_maker import Work; from feeder.transforms import RandomResizedCrop, Recipe; "
        "Work(ShardReader(sys.argv[1]), Recipe.of(RandomResizedCrop(16)), 'cpu').prepare(); "
        "unused = {'torch', 'PIL', 'importlib.metadata', 'feeder.dataset.target_values', 'feeder.fields.tokens'}; "
        "print(sorted(unused & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(shards / "index.bin")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "[]"
