"""The search alone, on machines that are made up: no clock, no process."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from feeder.errors import BackendError
from feeder.tools.trial import Trial
from feeder.tools.tune.search import Outcome, Search, Space
from feeder.tools.tune.setting import Gain, Setting, TriedSetting, cheaper, gain

BASELINE = Setting(0, backend="cpu")


@dataclass
class Machine:
    """Decodes at a fixed cost of CPU time an image."""

    cores: int = 16
    decode_ms: dict[str, float] = field(default_factory=lambda: {"cpu": 2.0, "pillow": 6.0})
    read_ms: float = 0.0
    most: float = math.inf  # what disk or caller let through
    thread_loss: float = 0.05
    process_mib: int = 100
    noise: float = 0.0
    start_s: float = 0.2
    now: float = 0.0
    asked: list[Setting] = field(default_factory=list)
    _wobble: Iterator[float] = field(default_factory=lambda: itertools.cycle((0.7, -1, 0.2, -0.5, 1, -0.3, 0.4)))

    def measure(self, setting: Setting, seconds: float) -> Trial:
        self.asked.append(setting)
        self.now += seconds + self.start_s
        ms = self.read_ms + self.decode_ms[setting.backend or "cpu"]
        lanes = max(1, setting.num_workers) * (1 + (setting.worker_threads - 1) * (1 - self.thread_loss))
        full = min(lanes, self.cores) * 1000 / ms
        rate = min(full, self.most)
        return Trial(
            images_per_s=rate * (1 + self.noise * next(self._wobble)),
            cpu_ms=ms,
            memory_bytes=setting.num_workers * self.process_mib << 20,
            make_ms=ms,
            read_share=self.read_ms / ms,
            busy_share=rate / full,
        )

    def search(self, target: float | None = None, seconds: float = 600.0, **space: Any) -> Outcome:
        defaults: dict[str, Any] = {
            "cores": self.cores,
            "baseline": BASELINE,
            "backends": tuple(self.decode_ms),
            "threads": True,
        }
        return Search(
            self.measure,
            Space(**{**defaults, **space}),
            target,
            seconds,
            clock=lambda: self.now,
        ).run()


def chosen(outcome: Outcome) -> Setting:
    assert outcome.chosen is not None
    return outcome.chosen.setting


def test_the_fewest_workers_for_a_target() -> None:
    machine = Machine()
    outcome = machine.search(target=2000)
    assert outcome.reached is True
    assert chosen(outcome) == Setting(5, backend="cpu")  # 4 do 2,000, without a margin
    assert outcome.gain is not None
    assert outcome.gain.median == pytest.approx(5)
    # One image's time gave the number of workers: no number far from it was tried.
    assert {setting.num_workers for setting in machine.asked} <= {0, 4, 5, 6}


def test_a_target_that_nothing_reaches_gives_the_best_there_is() -> None:
    outcome = Machine(cores=4).search(target=5000)
    assert outcome.reached is False
    assert chosen(outcome).cores == 4
    assert outcome.chosen is not None
    assert outcome.chosen.rate >= 1900


def test_without_a_model_the_target_is_found_by_bisection() -> None:
    machine = Machine(cores=64)
    measure = machine.measure

    def without_model(setting: Setting, seconds: float) -> Trial:
        return replace(measure(setting, seconds), make_ms=None, busy_share=None, read_share=None)

    machine.measure = without_model  # type: ignore[method-assign]
    outcome = machine.search(target=1200, backends=(), threads=False, baseline=Setting(0))
    assert chosen(outcome) == Setting(3)
    assert len(set(machine.asked)) <= 6


def test_without_a_target_the_knee_is_found_and_no_core_is_wasted() -> None:
    machine = Machine(cores=64, most=5000)  # ten workers' worth
    outcome = machine.search(threads=False)
    assert outcome.reached is None
    assert 10 <= chosen(outcome).cores <= 11
    assert len(set(machine.asked)) <= 10


def test_cores_that_all_help_are_all_taken() -> None:
    assert chosen(Machine(cores=8).search(threads=False)).num_workers >= 7


def test_threads_take_the_place_of_processes_where_they_cost_nothing() -> None:
    found = chosen(Machine(cores=8, thread_loss=0.0).search())
    assert (found.worker_threads, found.cores) == (8, 8)
    assert chosen(Machine(cores=16, thread_loss=0.0).search()).worker_threads == 8
    assert chosen(Machine(cores=8, thread_loss=0.5).search()).worker_threads == 1


def test_a_faster_backend_is_taken_and_a_slow_one_is_tried_on_one_core_only() -> None:
    assert chosen(Machine(decode_ms={"cpu": 4.0, "other": 1.0}).search()).backend == "other"
    machine = Machine()
    assert chosen(machine.search()).backend == "cpu"
    assert [s.num_workers for s in machine.asked if s.backend == "pillow"] == [0]


def test_no_workers_are_taken_only_where_the_callers_step_ran() -> None:
    machine = Machine(most=300)  # a slow step
    assert chosen(machine.search(target=200, in_caller=True)).num_workers == 0
    assert chosen(Machine(most=300).search(target=200)).num_workers == 1


def test_a_present_setting_is_compared_with_and_kept_if_nothing_heartbeats_it() -> None:
    present = Setting(4, backend="cpu")
    outcome = Machine(cores=4, decode_ms={"cpu": 2.0}, thread_loss=0.5).search(baseline=present)
    assert chosen(outcome) == present
    assert outcome.gain is None


def test_a_present_setting_over_the_budget_is_measured_but_not_taken() -> None:
    outcome = Machine(cores=16).search(cores=2, baseline=Setting(12, backend="cpu"), threads=False)
    assert outcome.baseline.turns
    assert chosen(outcome).cores <= 2
    assert outcome.gain is not None
    assert not outcome.gain.certain


@pytest.mark.parametrize("phase", range(7))
def test_noise_never_makes_a_winner(phase: int) -> None:
    """The disk lets 490 through, whatever the setting: the cheapest must be taken, and no gain claimed."""
    machine = Machine(cores=8, most=490, noise=0.03)
    for _ in range(phase):
        next(machine._wobble)
    outcome = machine.search(baseline=Setting(4, backend="cpu"), threads=False)
    assert chosen(outcome).cores == 1
    assert outcome.gain is not None
    assert not outcome.gain.certain


def test_a_gain_needs_size_agreement_and_rounds() -> None:
    assert gain([110, 112, 111], [100, 100, 100]).certain
    assert not gain([110, 112], [100, 100]).certain
    assert not gain([110, 112, 99], [100, 100, 100]).certain
    assert not gain([102, 102, 102], [100, 100, 100]).certain
    assert Gain((1.5, 0.9, 1.2)).median == 1.2


@pytest.mark.parametrize("seconds", [1.0, 3.0, 10.0, 40.0])
def test_the_time_budget_is_kept(seconds: float) -> None:
    machine = Machine(cores=64)
    outcome = machine.search(seconds=seconds)
    assert machine.now <= seconds + 2 * (max(0.3, seconds / 40) + machine.start_s)
    assert outcome.chosen is not None
    if seconds == 3.0:
        assert any("raise --seconds" in note for note in outcome.notes)


def test_finalists_take_turns_in_alternating_order() -> None:
    machine = Machine(cores=4)
    outcome = machine.search(threads=False)
    finalists = [p for p in outcome.points if p.turns]
    last = machine.asked[-outcome.rounds * len(finalists) :]
    rounds = [last[k : k + len(finalists)] for k in range(0, len(last), len(finalists))]
    assert len(rounds) == 5
    assert rounds[0] == rounds[1][::-1] == rounds[2]


def test_a_backend_that_fails_is_left_out_with_its_reason() -> None:
    machine = Machine()
    measure = machine.measure

    def fails(setting: Setting, seconds: float) -> Trial:
        if setting.backend == "pillow":
            raise BackendError("no such library\nand so on")
        return measure(setting, seconds)

    machine.measure = fails  # type: ignore[method-assign]
    outcome = machine.search()
    assert next(p.problem for p in outcome.points if p.setting.backend == "pillow") == "no such library"
    assert chosen(outcome).backend == "cpu"


def test_cost_is_cores_then_cpu_time_then_memory() -> None:
    def point(workers: int, threads: int, cpu_ms: float, mib: int) -> TriedSetting:
        return TriedSetting(Setting(workers, threads), "", [Trial(1.0, cpu_ms, mib << 20)])

    assert cheaper(point(2, 1, 9, 900), point(3, 1, 1, 100))
    assert cheaper(point(2, 2, 1, 900), point(4, 1, 2, 100))
    assert cheaper(point(2, 2, 1.01, 100), point(4, 1, 1, 200))
    assert cheaper(point(4, 1, 1, 100), point(2, 2, 1.01, 101))
