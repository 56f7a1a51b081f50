from __future__ import annotations

import ast
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import feeder
from feeder import transforms as T
from feeder.errors import ArgumentError
from feeder.system.cores import cores
from feeder.system.process_usage import process_tree
from feeder.tools import cli
from feeder.tools.trial import Trial, run
from feeder.tools.tune.report import Budget, Tuning
from feeder.tools.tune.search import Outcome
from feeder.tools.tune.setting import Gain, Setting, TriedSetting
from tests.support.images import make_tree
from tests.support.warm_python import run_warm

WORK = ["--image-size", "16", "--batch-size", "8", "--dtype", "uint8"]
CPUS = cores().usable


def family() -> set[int]:
    """Processes that descend from this one."""
    return set(process_tree())


def command(*arguments: object) -> int:
    return cli.main(["tune", *map(str, arguments)])


def call_arguments(text: str) -> dict[str, Any]:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    return {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg is not None}


def test_a_whole_search_as_json(shards: Path) -> None:
    done = run_warm(
        [
            "-m",
            "feeder",
            "tune",
            str(shards),
            *WORK,
            "--seconds",
            "3",
            "--json",
            "--cpus",
            "1",
            "--backend",
            "cpu",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert "baseline: 0 workers, cpu" in done.stderr
    assert found["budget"]["cpus"] == 1
    assert found["baseline"]["num_workers"] == 0
    assert found["machine"]["versions"]
    for point in found["points"]:
        assert max(1, point["num_workers"]) * point["worker_threads"] == 1
        assert point["backend"] == "cpu"
        for trial in point["search"] + point["in_turn"]:
            assert trial["images_per_s"] > 0
            assert trial["cpu_ms"] >= 0
    chosen = found["chosen"]
    pasted = call_arguments(found["call"])
    assert pasted["num_workers"] == chosen["num_workers"] == 1
    assert pasted["batch_size"] == 8
    # What is printed can be run.
    dataset = feeder.ShardDataset(shards, T.Compose([T.RandomResizedCrop(16)]))
    loader = feeder.DataLoader(dataset, **pasted)
    assert len(loader) == 4
    loader.close()


def test_the_table_fits_80_columns_and_names_what_to_take(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tree, *WORK, "--seconds", "2", "--target", "1", "-q") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "the target of 1 images/s is reached" in shown.out
    assert "num_workers=1" in shown.out
    assert "take" in shown.out


def test_an_unreachable_target_gives_the_best_and_what_limits(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tree, *WORK, "--seconds", "2", "--target", "1e9", "--cpus", "1", "--backend", "cpu") == 3
    shown = capsys.readouterr().out
    assert "target of 1,000,000,000 images/s is not reached; the best is" in shown
    assert "limit" in shown
    assert "feeder.DataLoader(" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--cpus", CPUS + 62], 2, f"cpus must be 1 to {CPUS}, got {CPUS + 62}"),
        (["--cpus", "0"], 2, "cpus must be 1 to"),
        (["--target", "0"], 2, "target must be a number above 0"),
        (["--seconds", "0"], 2, "seconds must be a number above 0"),
        (["--backend", "gpujpeg"], 2, "backend must be 'auto' or one of"),
        (["--num-workers", "-1"], 2, "num_workers must be an integer of 0 or more"),
    ],
)
def test_wrong_use_is_refused(
    tree: Path, capsys: pytest.CaptureFixture[str], arguments: list[Any], code: int, message: str
) -> None:
    assert command(tree, *WORK, *arguments) == code
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_no_such_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path / "missing", *WORK) == 1
    assert "missing" in capsys.readouterr().err


def test_a_broken_image_is_counted_and_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = make_tree(tmp_path / "images", 2, 8)
    file = broken / "class-0" / "img-000.jpg"
    file.write_bytes(file.read_bytes()[:300])
    assert command(broken, *WORK, "--seconds", "1", "--target", "1", "-q") == 0
    assert "samples of a run could not be decoded" in capsys.readouterr().out


def test_a_step_is_the_target_and_may_do_without_workers(tree: Path) -> None:
    rows: list[int] = []

    def step(batch: Any) -> None:
        rows.append(len(batch[0]))
        time.sleep(0.05)

    dataset = feeder.FolderDataset(tree, T.Compose([T.RandomResizedCrop(16)]))
    found = feeder.tune(dataset, step=step, batch_size=8, shuffle=True, seconds=3)
    assert set(rows) == {8}
    assert found.step_images_per_s is not None
    assert 0 < found.step_images_per_s <= 160
    assert found.outcome.chosen is not None
    assert any(line.startswith("the step gets ") for line in found.verdict())
    assert found.outcome.points[0].setting.num_workers == 0


def test_the_callers_own_setting_is_the_baseline(tree: Path) -> None:
    dataset = feeder.FolderDataset(tree, T.Compose([T.RandomResizedCrop(16)]))
    found = feeder.tune(
        dataset, seconds=0.5, target=1, batch_size=8, num_workers=1, prefetch_factor=3, backend="pillow"
    )
    assert found.outcome.baseline.setting == Setting(1, 1, "pillow")
    assert "prefetch_factor=3" in (found.call or "")
    assert {point.setting.backend for point in found.outcome.points} == {"pillow"}


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor(i * i)


def test_any_dataset() -> None:
    before = family()
    drawn = torch.get_rng_state()
    plain = feeder.tune(Squares(), batch_size=4, seconds=1, target=1)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert plain.outcome.chosen is not None
    assert plain.outcome.chosen.setting == Setting(1)
    assert family() <= before


def test_wrong_ways_in_python(tree: Path) -> None:
    with pytest.raises(ArgumentError, match=r"takes a dataset, .* got function"):
        feeder.tune(lambda **setting: [], batch_size=4)
    with pytest.raises(ArgumentError, match="has no batch"):
        feeder.tune(Squares(), batch_size=100, drop_last=True, seconds=1)


def test_errors_of_a_run_close_the_loader(tree: Path) -> None:
    before = family()

    def step(batch: Any) -> None:
        raise RuntimeError("out of memory")

    dataset = feeder.FolderDataset(tree, T.Compose([T.RandomResizedCrop(16)]))
    with pytest.raises(RuntimeError, match="out of memory"):
        run(feeder.DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True), 0.1, step)
    assert len(family() - before) <= 1  # the fork server


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        while True:
            yield torch.zeros(2)


def test_an_endless_dataset_is_measured_for_its_time_only() -> None:
    trial = run(feeder.DataLoader(Endless(), batch_size=4), 0.05)
    assert trial.images_per_s > 0
    assert trial.make_ms is not None


INTERRUPTED = """
import sys
from feeder.tools import cli
sys.exit(cli.main(["tune", *sys.argv[1:]]))
"""


@pytest.mark.slow
def test_ctrl_c_leaves_no_process(tree: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tree), *WORK, "--seconds", "1000", "--backend", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if "core" in line:  # "a worker for each core": one with workers has been measured
            break
    child.send_signal(signal.SIGINT)
    _, err = child.communicate()
    assert child.returncode == 130, err
    for pid in [p for p in os.listdir("/proc") if p.isdecimal() and _session(p) == child.pid]:
        with contextlib.suppress(ProcessLookupError):  # it ends when it finds the command gone, if it has not yet
            descriptor = os.pidfd_open(int(pid))
            assert select.select([descriptor], [], [], 60)[0], f"process {pid} is left"
            os.close(descriptor)


def _session(pid: str) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    except OSError:
        return None


def trial(rate: float, **more: Any) -> Trial:
    return Trial(rate, more.pop("cpu_ms", 2.0), 100 << 20, **more)


def tuning(chosen: TriedSetting | None, baseline: TriedSetting, *, target: float | None = None, **more: Any) -> Tuning:
    points = [baseline] + ([] if chosen is None or chosen is baseline else [chosen])
    reached = None if target is None else False
    outcome = Outcome(points, baseline, chosen, reached, **more)
    return Tuning(outcome, Budget(4, cores(), 60.0), target, None, None, {}, 1.0)


@pytest.mark.parametrize(
    ("runs", "workers", "target", "said"),
    [
        ([trial(900, read_share=0.7)], 2, None, "reading is the limit: 70%"),
        ([trial(1900)], 4, 5000, "CPU time is the limit: an image takes 2.00 ms, so 5,000 images/s need 10.0"),
        ([trial(900, busy_share=0.3)], 2, None, "the caller is the limit: workers are idle 70%"),
        ([trial(900)], 2, None, "more workers were not faster"),
    ],
)
def test_the_limit_is_named(runs: list[Trial], workers: int, target: float | None, said: str) -> None:
    found = tuning(TriedSetting(Setting(workers), "", runs), TriedSetting(Setting(0), "", [trial(400)]), target=target)
    assert any(line.startswith(said) for line in found.verdict())


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ((2.0, 2.1, 1.9), "2.00 times the baseline (1.90-2.10 in 3 rounds)"),
        ((1.0, 1.1, 0.9), "1.00 times the baseline (0.90-1.10 in 3 rounds), which is within the noise"),
        ((1.5,), "1.50 times the baseline (1.50-1.50 in 1 round): too little time to be sure"),
    ],
)
def test_a_gain_is_told_with_its_spread(ratios: tuple[float, ...], said: str) -> None:
    chosen, baseline = TriedSetting(Setting(2), "", [trial(900)]), TriedSetting(Setting(1), "", [trial(450)])
    assert said in tuning(chosen, baseline, gain=Gain(ratios)).verdict()


def test_nothing_measured_is_said() -> None:
    found = tuning(None, TriedSetting(Setting(0), ""))
    assert found.verdict() == ["no setting could be measured"]
    assert found.call is None
    assert json.dumps(found.to_json())
    assert found.render()


def test_a_call_without_workers_leaves_out_what_torch_refuses() -> None:
    found = tuning(None, TriedSetting(Setting(0), ""))
    for workers, given in ((0, ""), (2, "prefetch_factor=3, ")):
        made = replace(found, keywords={"num_workers": workers}, arguments={"prefetch_factor": 3})
        assert made.call == f"feeder.DataLoader(dataset, {given}num_workers={workers})"


def test_a_setting_with_a_problem_is_named_as_runs_are() -> None:
    refused = TriedSetting(Setting(2, 3, backend="cpu"), "", problem="too large")
    assert "2 workers of 3 threads, cpu: too large" in tuning(None, refused).render()
