"""Predictions are held to what happens on a simulated clock; a real loader, model and optimizer stay as they were."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feeder
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.tools.headroom.fit import Fit
from feeder.tools.headroom.headroom import Headroom, Remedy
from feeder.transforms import Compose, Normalize, RandomResizedCrop
from tests.support.generators import generator_states
from tests.support.loader_data import write_shards
from tests.support.simulated_loader import Clock, SimulatedLoader

_BATCH = 4
_SLOW_S = 0.05  # a sample


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 40)


def _dataset(shards: Path) -> ShardDataset:
    return ShardDataset(shards, RandomResizedCrop(8))


def _loader(shards: Path, workers: int) -> DataLoader[Any]:
    return DataLoader(_dataset(shards), _BATCH, num_workers=workers)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time that headroom measures; no CPU time is known."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr("feeder.loader.trial.cpu_seconds_by_process", dict)
    return clock


def _found(clock: Clock, costs_s: dict[str, float], workers: int, step_s: float = _SLOW_S / 10) -> Headroom:
    loader: Any = SimulatedLoader(clock, costs_s, workers, _BATCH)
    return feeder.headroom(loader, lambda batch: clock.sleep(step_s), seconds=20)


@pytest.mark.parametrize("slow", ["transform", "read", "fetch"])
def test_more_workers_are_predicted_as_they_turn_out(clock: Clock, slow: str) -> None:
    costs_s = {slow: _SLOW_S, "decode": _SLOW_S / 50}
    found = _found(clock, costs_s, 1)
    assert found.limit == slow
    assert found.input_bound_share > 0.5
    assert f"{slow} on 1 worker is the limit" in str(found)
    assert any(remedy.setting and remedy.setting[0] == "num_workers" for remedy in found.remedies)
    for workers in (2, 3, 8):
        real = _found(clock, costs_s, workers).fit.fed_rate
        assert found.fit.predict(workers=workers) == pytest.approx(real, rel=0.05)


def test_faster_storage_is_predicted_as_it_turns_out(clock: Clock) -> None:
    found = _found(clock, {"read": _SLOW_S}, 1)
    rates = [remedy.rate for remedy in found.remedies if remedy.text == "faster storage"]
    assert len(rates) == 1
    assert rates[0] > 1.5 * found.fit.fed_rate
    real = _found(clock, {"read": _SLOW_S / 4}, 1).fit.fed_rate
    assert found.fit.predict(scale={"read": 0.25}) == pytest.approx(real, rel=0.05)


def test_without_workers_the_step_and_the_loader_take_turns(clock: Clock) -> None:
    found = _found(clock, {"transform": _SLOW_S}, 0, step_s=_SLOW_S * _BATCH)
    assert found.limit == "transform"
    assert found.input_bound_share == pytest.approx(0.5, abs=0.02)
    assert found.fit.predict() == pytest.approx(found.fit.fed_rate, rel=0.02)
    assert "in the training process (num_workers=0)" in str(found)


def test_a_slow_step_is_the_limit(clock: Clock) -> None:
    found = _found(clock, {"transform": _SLOW_S / 10}, 2, step_s=0.4)
    assert found.limit == "step"
    assert found.remedies == ()
    assert "it is the limit" in str(found)


def test_a_step_that_the_workers_slow_down_is_not_said_to_be_caught_up_with(clock: Clock) -> None:
    loader: Any = SimulatedLoader(clock, {"decode": 4 / 1240}, 4, _BATCH)

    latest = [torch.empty(0)]

    def step(batch: torch.Tensor) -> None:
        clock.sleep(_BATCH / (1900 if batch is latest[0] else 1500))  # faster on one batch again and again
        latest[0] = batch

    found = feeder.headroom(loader, step, seconds=20)
    (workers,) = [remedy for remedy in found.remedies if remedy.setting is not None]
    assert workers.setting == ("num_workers", 5)
    assert workers.rate == pytest.approx(1500, rel=0.02)
    assert not workers.closes
    undisturbed = _found(clock, {"decode": 4 / 1240}, 4, step_s=_BATCH / 1900)
    assert undisturbed.remedies[0].closes


def test_headroom_says_that_a_feeder_dataset_goes_without_the_fast_path(shards: Path) -> None:
    with pytest.warns(UserWarning, match="runs torch's path"):
        loader = DataLoader(_dataset(shards), batch_size=None)
    found = feeder.headroom(loader, lambda batch: None, seconds=0.1)
    assert found.path_reason == "batch_size is None: give batch_size"
    assert str(found).endswith("runs torch's path, not feeder's fast one: batch_size is None: give batch_size")
    assert feeder.headroom(_loader(shards, 0), lambda batch: None, seconds=0.1).path_reason is None


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_is_changed_by_the_measurement(shards: Path, fast: bool, workers: int) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4), torch.nn.Dropout(0.5)).eval()
    optimizer = torch.optim.Adam(model.parameters())

    def make() -> DataLoader[Any]:
        dataset: Any = _dataset(shards)
        if not fast:
            dataset = torch.utils.data.TensorDataset(torch.arange(40 * 192.0).view(40, 3, 8, 8), torch.arange(40))
        return DataLoader(dataset, _BATCH, shuffle=True, num_workers=workers)

    def step(batch: Any) -> None:
        model.train()
        optimizer.zero_grad()
        model(batch[0].float()).mean().backward()
        optimizer.step()
        random.random()
        np.random.rand()

    torch.manual_seed(1)
    expected = [images.clone() for images, _ in make()]
    torch.manual_seed(1)
    loader = make()
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    chance = generator_states()
    feeder.headroom(loader, step, seconds=0.2, restore=[model, optimizer])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[0][name])
    assert optimizer.state_dict() == before[1]
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert generator_states() == chance
    for images, (other, _) in zip(expected, loader, strict=True):
        assert torch.equal(images, other)


class _Few(torch.utils.data.IterableDataset[torch.Tensor]):
    """Two batches, and no length that would tell so."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.zeros(2 * _BATCH, 2))


def test_epochs_of_two_batches_without_a_length_are_measured() -> None:
    found = feeder.headroom(DataLoader(_Few(), _BATCH), lambda batch: None, seconds=0.05)
    assert found.fit.fed_rate > 0


def _fit(**changes: Any) -> Fit:
    values: dict[str, Any] = {
        "step_rate": 1900.0,
        "fed_rate": 1240.0,
        "loader_rate": 1300.0,
        "workers": 4,
        "costs_s": {"read": 0.0004, "decode": 0.0024, "transform": 0.0004},
        "step_s": 1 / 1900,
        "hand_out_s": 0.0,
        "waited_share": 0.35,
        "busy_share": 0.99,
        "cpu_s": 0.004,
        "cores": 64,
    }
    return Fit(**{**values, **changes})


def test_the_model() -> None:
    fit = _fit()
    assert fit.predict() == pytest.approx(1240)
    assert fit.predict(workers=6) == pytest.approx(1240 * 6 / 4)
    assert fit.predict(workers=40) == fit.ceiling == pytest.approx(1900)
    assert fit.predict(scale={"decode": 0.75}) == pytest.approx(1240 * 32 / 26)
    assert _fit(cores=6).predict(workers=8) == pytest.approx(1500)  # 6 cores / 4 ms
    assert _fit(cores=2).predict(workers=8) == pytest.approx(1240)  # a rate that was measured is possible
    assert _fit(workers=0).predict() == pytest.approx(1 / (1 / 1900 + 0.0032))
    assert _fit(waited_share=0.0).predict() == pytest.approx(1300)
    assert _fit(busy_share=0.8).steady_rate() == pytest.approx(1550)


def test_the_text_is_a_sentence() -> None:
    remedies = Remedy("7 workers", 1900, True), Remedy("seekable shards", 1890, True), Remedy("storage", 1300, False)
    assert str(Headroom(_fit(), 0.35, "decode", remedies)) == (
        "the step could take 1,900 images/s and gets 1,240: input-bound 35% of the time; decode on 4 workers is the "
        "limit; 7 workers or seekable shards would close the gap"
    )
    partial = str(Headroom(_fit(), 0.35, "decode", remedies[2:]))
    assert partial.endswith("storage (1,300 images/s) would help, and nothing tried closes the gap")


def test_wrong_arguments_are_refused(shards: Path) -> None:
    with pytest.raises(ArgumentError, match=r"must be a feeder.DataLoader, got list"):
        feeder.headroom([], lambda batch: None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="seconds must be more than 0"):
        feeder.headroom(_loader(shards, 0), lambda batch: None, seconds=0)
    with pytest.raises(ArgumentError, match="restore takes"):
        feeder.headroom(_loader(shards, 0), lambda batch: None, restore=[3])
    empty = DataLoader(_dataset(shards), batch_size=64, drop_last=True)
    with pytest.raises(ArgumentError, match="the loader has no batch"):
        feeder.headroom(empty, lambda batch: None)


def test_the_gain_of_seekable_shards_is_measured_where_a_device_does_the_last_ops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feeder import _native
    from feeder.decoders.cpu_decoder import CpuDecoder

    recipe = Compose([RandomResizedCrop(8), Normalize([0.5] * 3, [0.25] * 3)])
    dataset = ShardDataset(write_shards(tmp_path, 8, jpegs=True), recipe)
    loader = DataLoader(dataset, _BATCH, backend="cpu", device="cpu")
    made: list[bytes] = []
    dtypes: list[Any] = []
    transcode, original = _native.transcode, CpuDecoder.decode
    monkeypatch.setattr("feeder.tools.headroom.headroom.step_rate", lambda step, loader, seconds: 1e9)
    monkeypatch.setattr(
        _native, "transcode", lambda data, **options: made.append(transcode(data, **options)) or made[-1]
    )

    def decode(self: CpuDecoder, buffers: Any, orientations: Any, views: Any, *arguments: Any) -> Any:
        if list(buffers) == made:
            dtypes.extend(view.out.dtype for view in views)
        return original(self, buffers, orientations, views, *arguments)

    monkeypatch.setattr(CpuDecoder, "decode", decode)
    feeder.headroom(loader, lambda batch: None, seconds=0.1)
    assert made
    assert dtypes
    assert all(dtype == np.uint8 for dtype in dtypes)
