from __future__ import annotations

import gc
import io
import itertools
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.loader.observe import live_view as view
from feeder.loader.observe.live_view import LiveView, Pace, bar_text, line_text
from feeder.loader.options import Metrics
from feeder.system.nvml import current_gpu_busy
from feeder.transforms import RandomResizedCrop
from tests.support import fake_nvml
from tests.support.loader_data import write_shards

_LARGEST = Pace(123456, 99_999e6, 35999, 1.0, 1.0, 128, 128, 64)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Time in the view's own measure: a second a look."""

    def __init__(self) -> None:
        self.looks = itertools.count()

    def monotonic(self) -> float:
        return float(next(self.looks))


def _stats(batch: int) -> dict[str, Any]:
    """Of a loader that hands out a batch of 100 images of 1 MB a second, and lets the caller wait for a quarter."""
    return {
        "batches": batch,
        "samples": 100 * batch,
        "waited_ns": batch * 250_000_000,
        "busy_ns": batch * 1_000_000_000,
        "encoded_bytes": 0,
        "stages": {"read": {"bytes": batch * 100_000_000}},
        "slots": {"total": 6, "held": 1, "making": 2, "ready": 3},
        "workers": [{}, {}],
    }


def _run(
    stream: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    batches: int | None,
    steps: int,
    gpu_busy: Callable[[], float | None] = lambda: None,
) -> str:
    monkeypatch.setattr(view, "time", Clock())
    done = itertools.count()
    shown = LiveView(lambda: _stats(shown_batches[0]), batches, "epoch 3", stream, gpu_busy)
    for _ in range(steps):
        shown_batches[0] = next(done) + 1
        shown.step()
    shown.end()
    shown.end()  # a second time does nothing
    return stream.getvalue()


shown_batches = [0]


@pytest.fixture(autouse=True)
def _start() -> None:
    shown_batches[0] = 0


def test_a_pipe_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _run(io.StringIO(), monkeypatch, 20, 12).splitlines()
    assert lines[0] == (
        "epoch 3: 5/20 batches, 100 images/s, 100 MB/s, 0:15 left, waits 25% of the time, 3 of 6 slots full, "
        "workers 50% busy"
    )
    assert lines[-1].startswith("epoch 3: 12/20 batches, 13.0 s, 92 images/s, 92 MB/s, waits 23% of the time")
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _run(Terminal(), monkeypatch, 20, 12)
    drawn = [line for line in text.replace("\n", "\r").split("\r") if line.strip()]
    assert "100 img/s 100 MB/s 0:15 left wait 25% full 3/6 busy 50%" in text
    assert "60%" in drawn[-1]
    assert {len(line) for line in drawn} == {79}  # the last column stays free
    assert text.endswith("\n")


class Shell:
    """IPython's shell, as far as the view uses it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: self))


class Notebook(Shell):
    kernel = None


@pytest.mark.parametrize(("kind", "bar"), [(Notebook, True), (Shell, False)])
def test_a_notebook_gets_a_bar_although_it_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, kind: type[Shell], bar: bool
) -> None:
    kind(monkeypatch)
    assert ("60%|" in _run(io.StringIO(), monkeypatch, 20, 12)) is bar


def test_a_gpu_s_utilisation_is_shown_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = itertools.cycle([0.2, 0.4])
    lines = _run(io.StringIO(), monkeypatch, 20, 12, lambda: next(readings)).splitlines()
    assert [line.rpartition(", ")[2] for line in lines] == ["GPU 20% busy", "GPU 40% busy", "GPU 30% busy"]
    assert bar_text(_LARGEST._replace(gpu_share=1.0)).endswith("wait 100% full 128/128 GPU 100%")
    assert len(bar_text(_LARGEST._replace(gpu_share=1.0))) <= 71


def test_the_gpu_is_found_by_its_uuid_once_cuda_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(fake_nvml.install(tmp_path)))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    cuda, uuid = torch.cuda, ["10000000"]
    monkeypatch.setattr(cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuid[0]))
    monkeypatch.setattr(cuda, "is_initialized", lambda: False)
    look = current_gpu_busy()
    assert look() is None
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    assert look() == 0.35
    uuid[0] = "unknown"
    assert current_gpu_busy()() is None
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)


def test_an_epoch_of_unknown_length_has_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _run(io.StringIO(), monkeypatch, None, 6)
    assert text.startswith("epoch 3: 5 batches, 100 images/s")
    assert "left" not in text


def test_without_workers_nothing_is_said_about_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = _LARGEST._replace(workers=0)
    assert "busy" not in bar_text(pace) + line_text("epoch 0", 1, 2, pace)


def test_usual_figures_leave_room_for_a_bar() -> None:
    usual = Pace(1240, 136e6, 30, 0.35, 0.97, 6, 8, 4)
    assert bar_text(usual) == "1,240 img/s 136 MB/s 0:30 left wait 35% full 6/8 busy 97%"
    assert len(bar_text(_LARGEST)) <= 71


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_loader_shows_its_epochs(
    tmp_path: Path, workers: int, fast: bool, device: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset: Any = ShardDataset(write_shards(tmp_path, 8), RandomResizedCrop(8)) if fast else range(8)
    loader = DataLoader(dataset, batch_size=2, num_workers=workers, device=device, metrics=Metrics(progress=True))
    for _ in range(2):
        for _ in loader:
            pass
    out, err = capsys.readouterr()
    assert out == ""
    whole = [parts[0] for line in err.splitlines() if (parts := line.split(", "))[1].endswith(" s")]
    assert whole == (["epoch 0: 4/4 batches", "epoch 1: 4/4 batches"] if fast else ["loader: 4/4 batches"] * 2)


@pytest.mark.parametrize("persistent", [False, True])
def test_an_iterator_may_outlive_its_loader(persistent: bool, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = torch.utils.data.TensorDataset(torch.arange(12))
    assert (
        sum(
            1
            for _ in DataLoader(
                numbers, 4, num_workers=1, persistent_workers=persistent, metrics=Metrics(progress=True)
            )
        )
        == 3
    )
    assert capsys.readouterr().err.splitlines()[-1].startswith("loader: 3/3 batches")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_view_keeps_no_iterator(workers: int, device: str | None) -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(12))
    loader = DataLoader(dataset, 4, num_workers=workers, device=device, metrics=Metrics(progress=True))
    gc.disable()
    try:
        iterator = iter(loader)
        next(iterator)
        kept = weakref.ref(iterator)
        del iterator, loader
        assert kept() is None
    finally:
        gc.enable()


def test_an_epoch_that_a_framework_sets_late_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = ShardDataset(write_shards(tmp_path / "set", 6), RandomResizedCrop(8))
    loader: Any = DataLoader(dataset, batch_size=2, metrics=Metrics(progress=True))
    iterator = iter(loader)
    loader.sampler.set_epoch(4)
    assert len(list(iterator)) == 3
    assert capsys.readouterr().err.startswith("epoch 4: 3/3 batches")


def test_other_ranks_show_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 8), RandomResizedCrop(8))
    for _ in DataLoader(dataset, batch_size=2, rank=1, world_size=2, seed=0, metrics=Metrics(progress=True)):
        pass
    assert capsys.readouterr().err == ""
