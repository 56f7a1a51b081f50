from __future__ import annotations

import gc
import io
import itertools
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.loader.observe import live_view as view
from feeder.loader.observe.live_view import LiveView, pace_text
from feeder.loader.options import Metrics
from feeder.transforms import RandomResizedCrop
from tests.support.loader_data import write_shards


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
    """Of a loader that hands out a batch of 100 images a second, and lets the caller wait for a quarter."""
    return {
        "samples": 100 * batch,
        "waited_ns": batch * 250_000_000,
        "busy_ns": batch * 1_000_000_000,
        "workers": [{}, {}],
    }


def _run(
    stream: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    batches: int | None,
    steps: int,
) -> str:
    monkeypatch.setattr(view, "time", Clock())
    done = itertools.count()
    shown = LiveView(lambda: _stats(shown_batches[0]), batches, "epoch 3", stream)
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
    assert lines == [
        "epoch 3: 5/20 batches, 100 images/s, waits 25%, workers 50% busy, 0:15 left",
        "epoch 3: 10/20 batches, 100 images/s, waits 25%, workers 50% busy, 0:10 left",
        "epoch 3: 12/20 batches, 13.0 s, 92 images/s, waits 23%, workers 46% busy",
    ]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _run(Terminal(), monkeypatch, 20, 12)
    drawn = [line for line in text.replace("\n", "\r").split("\r") if line.strip()]
    assert "100 images/s, waits 25%, workers 50% busy, 0:15 left" in text
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


def test_an_epoch_of_unknown_length_has_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _run(io.StringIO(), monkeypatch, None, 6)
    assert text.startswith("epoch 3: 5 batches, 100 images/s")
    assert "left" not in text


def test_without_workers_nothing_is_said_about_them() -> None:
    after = _stats(3) | {"workers": []}
    assert pace_text((0.0, _stats(0)), (1.0, after)) == "300 images/s"


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
