"""Pipelines that are slow at a known stage: the sleeps are the load, and predictions are held to what then happens."""

from __future__ import annotations

import copy
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feeder
from feeder.dataset.base import FeederDataset
from feeder.dataset.shards import ShardDataset
from feeder.decode.registry import available_decoders
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.tools.headroom.fit import Fit
from feeder.tools.headroom.headroom import Headroom, _seekable_gain
from feeder.transforms import Compose, Lambda, Normalize, RandomResizedCrop
from tests.support.generators import generator_states
from tests.support.loader_data import write_shards
from tests.support.slow import SlowItems, Slowly, SlowReader
from tests.support.undisturbed import undisturbed

_BATCH = 4
_SLOW_S = 0.05  # a sample


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 40)


def _dataset(shards: Path, slow: str, sample_s: float = _SLOW_S) -> FeederDataset:
    if slow == "read":
        return FeederDataset(SlowReader(str(shards / "index.bin"), sample_s), RandomResizedCrop(8), ())
    if slow == "transform":
        return ShardDataset(shards, Compose([RandomResizedCrop(8), Lambda(Slowly(sample_s))]))
    return ShardDataset(shards, RandomResizedCrop(8))


def _loader(shards: Path, slow: str, workers: int, sample_s: float = _SLOW_S) -> DataLoader[Any]:
    sampler = [i % 40 for i in range(400)]
    return DataLoader(_dataset(shards, slow, sample_s), _BATCH, sampler=sampler, num_workers=workers)


def _quick(batch: Any) -> None:
    time.sleep(_SLOW_S / 10)


@pytest.mark.parametrize("slow", ["transform", "read"])
@undisturbed
def test_more_workers_are_predicted_as_they_turn_out(shards: Path, slow: str) -> None:
    found = feeder.headroom(_loader(shards, slow, 1), _quick, seconds=4)
    assert found.limit == slow
    assert found.input_bound_share > 0.5
    assert f"{slow} on 1 worker is the limit" in str(found)
    assert any(remedy.setting and remedy.setting[0] == "num_workers" for remedy in found.remedies)
    real = feeder.headroom(_loader(shards, slow, 2), _quick, seconds=3).fit.fed_rate
    assert 0.6 < real / found.fit.predict(workers=2) < 1.7
    assert 1.5 < found.fit.predict(workers=2) / found.fit.fed_rate < 2.1


@undisturbed
def test_faster_storage_is_predicted_as_it_turns_out(shards: Path) -> None:
    found = feeder.headroom(_loader(shards, "read", 1), _quick, seconds=4)
    rates = [remedy.rate for remedy in found.remedies if remedy.text == "faster storage"]
    assert len(rates) == 1
    assert rates[0] > 1.5 * found.fit.fed_rate
    real = feeder.headroom(_loader(shards, "read", 1, _SLOW_S / 4), _quick, seconds=3).fit.fed_rate
    assert 0.5 < real / found.fit.predict(scale={"read": 0.25}) < 2


@undisturbed
def test_without_workers_the_step_and_the_loader_take_turns(shards: Path) -> None:
    def step(batch: Any) -> None:
        time.sleep(_SLOW_S * _BATCH)

    found = feeder.headroom(_loader(shards, "transform", 0), step, seconds=4)
    assert found.limit == "transform"
    assert 0.3 < found.input_bound_share < 0.9
    assert found.fit.predict() == pytest.approx(found.fit.fed_rate, rel=0.3)
    assert "in the training process (num_workers=0)" in str(found)


@undisturbed
def test_a_slow_step_is_the_limit(shards: Path) -> None:
    found = feeder.headroom(_loader(shards, "nothing", 2), lambda batch: time.sleep(0.4), seconds=4)
    assert found.limit == "step"
    assert found.remedies == ()
    assert "it is the limit" in str(found)


def test_headroom_says_that_a_feeder_dataset_goes_without_the_fast_path(shards: Path) -> None:
    with pytest.warns(UserWarning, match="runs torch's path"):
        loader = DataLoader(_dataset(shards, "nothing"), batch_size=None)
    found = feeder.headroom(loader, lambda batch: None, seconds=0.1)
    assert found.path_reason == "batch_size is None: give batch_size"
    assert str(found).endswith("runs torch's path, not feeder's fast one: batch_size is None: give batch_size")
    assert feeder.headroom(_loader(shards, "nothing", 0), lambda batch: None, seconds=0.1).path_reason is None


@undisturbed
def test_a_dataset_that_is_not_feeders_can_be_judged_too() -> None:
    loader = DataLoader(SlowItems(400, _SLOW_S), batch_size=_BATCH, num_workers=1)
    found = feeder.headroom(loader, _quick, seconds=2)
    assert found.limit == "fetch"
    assert found.remedies
    assert found.remedies[0].setting is not None
    assert found.remedies[0].setting[0] == "num_workers"


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_is_changed_by_the_measurement(shards: Path, fast: bool, workers: int) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4), torch.nn.Dropout(0.5)).eval()
    optimizer = torch.optim.Adam(model.parameters())

    def make() -> DataLoader[Any]:
        dataset: Any = _dataset(shards, "nothing")
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
    feeder.headroom(loader, step, seconds=0.5, restore=[model, optimizer])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[0][name])
    assert optimizer.state_dict() == before[1]
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert generator_states() == chance
    for images, (other, _) in zip(expected, loader, strict=True):
        assert torch.equal(images, other)


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
    assert _fit(cores=2).predict(workers=8) == pytest.approx(1240)  # what it gets it can get
    assert _fit(workers=0).predict() == pytest.approx(1 / (1 / 1900 + 0.0032))
    assert _fit(waited_share=0.0).predict() == pytest.approx(1300)
    assert _fit(busy_share=0.8).steady_rate() == pytest.approx(1550)


def test_the_text_is_a_sentence() -> None:
    from feeder.tools.headroom.headroom import Remedy

    remedies = Remedy("7 workers", 1900, True), Remedy("seekable shards", 1890, True), Remedy("storage", 1300, False)
    assert str(Headroom(_fit(), 0.35, "decode", remedies)) == (
        "the step could take 1,900 images/s, gets 1,240: input-bound 35% of the time; decode on 4 workers is the "
        "limit; 7 workers or seekable shards would close it"
    )
    partial = str(Headroom(_fit(), 0.35, "decode", remedies[2:]))
    assert partial.endswith("storage (1,300 images/s) would help, and nothing tried closes it")


def test_wrong_arguments_are_refused(shards: Path) -> None:
    with pytest.raises(ArgumentError, match=r"must be a feeder.DataLoader, got list"):
        feeder.headroom([], _quick)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="seconds must be more than 0"):
        feeder.headroom(_loader(shards, "nothing", 0), _quick, seconds=0)
    with pytest.raises(ArgumentError, match="restore takes"):
        feeder.headroom(_loader(shards, "nothing", 0), _quick, restore=[3])
    empty = DataLoader(_dataset(shards, "nothing"), batch_size=64, drop_last=True)
    with pytest.raises(ArgumentError, match="the loader has no batch"):
        feeder.headroom(empty, _quick)


def test_a_step_that_the_workers_slow_down_is_not_said_to_be_caught_up_with(shards: Path) -> None:
    from feeder.tools.headroom.headroom import _judged

    found = _judged(_loader(shards, "nothing", 2), _fit(step_s=1 / 1500))
    (workers,) = [remedy for remedy in found.remedies if remedy.setting is not None]
    assert workers.setting == ("num_workers", 5)
    assert workers.rate == pytest.approx(1500)
    assert not workers.closes
    assert _judged(_loader(shards, "nothing", 2), _fit()).remedies[0].closes


def test_the_gain_of_seekable_shards_is_measured_where_a_device_does_the_last_ops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "cpu" not in available_decoders():
        pytest.skip("feeder._native is not built")
    from feeder.decode.native import CpuDecoder

    recipe = Compose([RandomResizedCrop(8), Normalize([0.5] * 3, [0.25] * 3)])
    dataset = ShardDataset(write_shards(tmp_path, 8, jpegs=True), recipe)
    loader = DataLoader(dataset, _BATCH, backend="cpu", device="cpu")
    dtypes = []

    def decode(self: CpuDecoder, *arguments: Any) -> Any:
        dtypes.append(arguments[-1].dtype)
        return original(self, *arguments)

    original = CpuDecoder.decode
    monkeypatch.setattr(CpuDecoder, "decode", decode)
    gain = _seekable_gain(loader)
    assert gain is None or 0 < gain < 1
    assert dtypes == [np.uint8] * 6
