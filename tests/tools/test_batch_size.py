"""find_batch_size: what fits, what is fastest, and that the search leaves no trace."""

from __future__ import annotations

import copy
import gc
import json
import random
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch

import feeder
from feeder import find_batch_size
from tests.support.generators import generator_states

pytestmark = pytest.mark.usefixtures("few_objects")

MIB = 1 << 20


class Clock:
    """Time that only passes when the step says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


def _limited(limit: int, error: Exception, seconds: Any = lambda size: 1.0, clock: Clock | None = None) -> Any:
    """A step that has memory for that many samples."""

    def step(size: int) -> None:
        if size > limit:
            raise error
        if clock is not None:
            clock.now += seconds(size)

    return step


@pytest.mark.parametrize("limit", [1, 3, 7, 8, 13, 100, 257])
@pytest.mark.parametrize(("start", "multiple_of"), [(1, 1), (12, 8), (64, 4), (10, 8), (20, 8), (5, 8), (300, 32)])
def test_the_largest_that_fits_is_found(
    limit: int, start: int, multiple_of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # nothing to collect here, and it takes long
    step = _limited(limit, torch.OutOfMemoryError("CUDA out of memory"), clock=clock)
    found = find_batch_size(step, start=start, multiple_of=multiple_of, maximum=4096, steps=1)
    unit = multiple_of if limit >= multiple_of else 1
    assert found.largest == found.batch_size
    assert found.largest == limit - limit % unit
    sizes = [trial.batch_size for trial in found.trials]
    assert len(sizes) == len(set(sizes)) <= 24
    assert all(size < multiple_of or size % multiple_of == 0 for size in sizes)
    assert [trial.fits for trial in found.trials] == [size <= limit for size in sizes]


@pytest.mark.parametrize(("maximum", "largest"), [(1, 1), (7, 7), (8, 8), (100, 96)])
def test_the_maximum_is_tried_and_kept(maximum: int, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step = _limited(10**9, MemoryError(), clock=Clock(monkeypatch))
    assert find_batch_size(step, maximum=maximum, steps=1).largest == largest


def test_a_smaller_batch_that_is_faster_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    step = _limited(200, MemoryError(), lambda size: size / 1000 * (1 if size <= 64 else 1.5), clock)
    found = find_batch_size(step)
    assert (found.batch_size, found.largest) == (64, 200)
    by_size = {trial.batch_size: trial.images_per_s for trial in found.trials}
    assert by_size[64] == pytest.approx(1000)
    assert by_size[128] == pytest.approx(1000 / 1.5)


def test_a_larger_batch_that_is_nearly_as_fast_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    step = _limited(200, MemoryError(), lambda size: size / 1000 * (1 if size <= 64 else 1.02), clock)
    assert find_batch_size(step).batch_size == 200


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in"),
        RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"),
        RuntimeError("FIND was unable to find an engine to execute this computation"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        RuntimeError("could not create a primitive"),
        RuntimeError("could not execute a primitive"),
        MemoryError(),
    ],
)
def test_out_of_memory_is_known_in_all_its_forms(error: Exception) -> None:
    found = find_batch_size(_limited(20, error), multiple_of=4, steps=1)
    assert found.largest == 20
    assert {t.reason.partition(" (")[0] for t in found.trials if not t.fits} == {"out of memory"}


def test_other_errors_of_the_step_are_raised_and_the_state_is_put_back() -> None:
    model = torch.nn.Linear(2, 2)
    before = model.weight.detach().clone()

    def step(size: int) -> None:
        with torch.no_grad():
            model.weight.zero_()
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        find_batch_size(step, restore=(model,))
    assert torch.equal(model.weight, before)


def test_not_even_one_sample_fits() -> None:
    with pytest.raises(feeder.ArgumentError, match=r"not even a batch of 1 fits: out of memory \(no more\)"):
        find_batch_size(_limited(0, MemoryError("no more")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": 0}, "start must be 1 or more, got 0"),
        ({"maximum": 0}, "maximum must be 1 or more"),
        ({"multiple_of": 0}, "multiple_of must be 1 or more"),
        ({"steps": 0}, "steps must be 1 or more"),
        ({"tolerance": 1.0}, r"tolerance must be in \[0, 1\)"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes must be 1 or more"),
        ({"device": "meta"}, "device must be 'cpu', or 'cuda'"),
        ({"restore": (3,)}, "restore takes modules and objects with load_state_dict, got int"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(feeder.ArgumentError, match=message):
        find_batch_size(lambda size: None, **arguments)


@pytest.mark.parametrize("had_gradients", [False, True])
def test_model_optimizer_and_random_state_are_as_before(had_gradients: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def train(size: int) -> None:
        model.train()
        optimizer.zero_grad()
        model(torch.randn(size, 4)).square().mean().backward()
        optimizer.step()
        schedule.step()
        random.random()
        np.random.rand()

    def step(size: int) -> None:
        train(size)
        if size > 20:
            raise torch.OutOfMemoryError("out of memory, after half of a step")

    def state() -> list[Any]:
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return [weights, gradients, copy.deepcopy(optimizer.state_dict()), schedule.state_dict()]

    if had_gradients:
        train(4)
    model.eval()
    addresses = [p.data_ptr() for p in model.parameters()]
    before, generators = state(), generator_states()
    assert find_batch_size(step, restore=(model, optimizer, schedule), multiple_of=4).largest == 20
    assert generator_states() == generators
    torch.testing.assert_close(state(), before, rtol=0, atol=0)
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert not model.training
    train(4)


def test_the_memory_of_a_failed_trial_is_freed() -> None:
    alive: list[Any] = []

    class Held(torch.Tensor):
        def __del__(self) -> None:
            alive.remove(id(self))

    def step(size: int) -> None:
        held = torch.zeros(8).as_subclass(Held)
        alive.append(id(held))
        if size > 8:
            raise torch.OutOfMemoryError("out of memory")
        assert len(alive) == 1

    assert find_batch_size(step, multiple_of=1).largest == 8
    assert not alive


# In a process of their own: what others have left in the allocator's hands would be measured too.
_MEASURED = """
import dataclasses, json
import torch
from feeder.tools.training import batch_size
from feeder import find_batch_size

MIB, sizes = 1 << 20, []

def step(size):
    sizes.append(size)
    torch.ones(size, MIB // 4).sum()  # a MiB for each sample, resident

step(64)  # torch's threads and buffers are made at the first use
arguments = {"start": 16, "steps": 1, "device": "cpu"}
limited = find_batch_size(step, memory_limit_bytes=100 * MIB, **arguments)
sizes.clear()
batch_size.available_bytes = lambda: 100 * MIB
available = find_batch_size(step, **arguments)
print(json.dumps([dataclasses.asdict(limited), dataclasses.asdict(available), max(sizes)]))
"""


def _run(script: str) -> str:
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_memory_on_the_cpu_is_measured_and_its_limit_kept() -> None:
    limited, available, largest_run = json.loads(_run(_MEASURED))
    for found in (limited, available):
        assert 80 <= found["largest"] <= 104
    for trial in limited["trials"]:
        assert trial["fits"] == (trial["memory_bytes"] <= 100 * MIB)
        assert trial["memory_bytes"] == pytest.approx(trial["batch_size"] * MIB, abs=12 * MIB)
        assert trial["fits"] or "bytes, more than 104,857,600" in trial["reason"]
    # What would exhaust the machine is not run.
    assert largest_run <= 112
    (skipped,) = [trial for trial in available["trials"] if trial["batch_size"] == 128]
    assert "would take about" in skipped["reason"]


_UNDER_A_LIMIT = """
import resource
import torch
from feeder import find_batch_size

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(4))

def step(size):
    model.zero_grad()
    model(torch.zeros(size, 3, 64, 64)).sum().backward()

step(2)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
# In large steps, so that a tensor is what runs out of memory, and not one of the many small allocations.
found = find_batch_size(step, restore=(model,), steps=1, multiple_of=64, device="cpu")
failed = [trial for trial in found.trials if not trial.fits]
assert failed and all("out of memory" in trial.reason for trial in failed), found
# Half of it: how much address space is free in one piece changes from run to run.
step(found.largest // 2)
print(found.largest, max(trial.batch_size for trial in found.trials))
"""


def test_a_real_model_under_a_real_limit_of_the_system() -> None:
    largest, tried = map(int, _run(_UNDER_A_LIMIT).split())
    assert 32 <= largest < tried <= 2048
