"""The GPU benchmarks where there is no GPU: what fails or is missing never takes other results along."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import types
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

import feeder
from bench.gpu import common, cuda, feed, quick, summary, train, transfer
from feeder.decoders.gpu import dispatch
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.bench import result_file
from tests.support import ROOT
from tests.support.images import encode, pixels


def test_no_step_of_the_measured_training_asks_for_what_the_scaler_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait in the loop would make the GPU idle while Python prepares the next batch, in every row."""
    integers = torch.randint
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    monkeypatch.setattr(train, "resnet50", lambda: torch.nn.Linear(2, 2))
    monkeypatch.setattr(torch.nn.Module, "cuda", lambda module: module)
    monkeypatch.setattr(torch, "randint", lambda low, high, shape, device: integers(low, high, shape))
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, enabled: None)
    trainer = train.Trainer()
    scaler = torch.amp.grad_scaler.GradScaler("cpu")
    loss = trainer.model(torch.ones(1, 2)).sum()
    scaler.scale(loss).backward()
    monkeypatch.setattr(torch.Tensor, "item", None)
    scaler.step(trainer.optimizer)


@pytest.mark.usefixtures("one_machine")
def test_a_row_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gpu-x.json"
    states: list[Any] = []
    reached: list[bool] = []

    def row(value: float) -> dict[str, float]:
        states.append(json.loads(path.read_text()).get("rows", {}))
        reached.append("goals" in json.loads(path.read_text()))
        return {"images_per_s": value}

    def measure(result: common.Result) -> None:
        none: dict[str, Any] = {}
        rivals = {"a": lambda: row(4.0), "b": lambda: none["b"], "feeder c": lambda: row(2.0)}
        middle = common.interleaved(rivals, 3, result, lambda found: {"goals": {"c (1.0)": found["feeder c"]}})
        assert middle == {"a": {"images_per_s": 4.0}, "feeder c": {"images_per_s": 2.0}}
        raise RuntimeError("late")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(common, "gpu", lambda: {"name": "a GPU"})
    assert common.on_gpu("gpu-x", str(path), measure) == 1
    # Each run was saved before the next.
    assert [sum(len(v["images_per_s"]["all"]) for v in state.values()) for state in states] == list(range(6))
    # A run that ends in the middle states the goals by the rounds before.
    assert reached == [False, False, True, True, True, True]
    found = json.loads(path.read_text())
    assert found["errors"] == {
        "b": "KeyError: 'b'",
        "gpu-x": "RuntimeError: late",
    }
    text = summary.summarize(tmp_path)
    assert "on a GPU" in text
    assert "b FAILED: KeyError" in text


def test_rows_that_would_measure_the_references_fail_and_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = types.SimpleNamespace(name="a GPU", total_memory=2**34, multi_processor_count=80)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(dispatch, "lacks", lambda: "a C compiler: install gcc")
    common.triton_lacks.cache_clear()
    feeds = {"feeder cpu": lambda: next(common.loader_feed("no shards", "cpu", 1, 4)), "other": lambda: {"x": 1.0}}
    try:
        code = common.on_gpu(
            "gpu-x",
            str(tmp_path / "gpu-x.json"),
            lambda result: common.interleaved(feeds, 2, result),  # type: ignore[arg-type]
        )
    finally:
        common.triton_lacks.cache_clear()
    found = json.loads((tmp_path / "gpu-x.json").read_text())
    assert code == 1
    assert found["gpu"]["triton"]["runs"] is False
    assert list(found["errors"]) == ["feeder cpu"]
    assert "install gcc" in found["errors"]["feeder cpu"]
    assert list(found["rows"]) == ["other"]
    assert "Triton's kernels DON'T RUN: using='triton' can't run here; missing is a C" in summary.summarize(tmp_path)


@pytest.mark.parametrize("workers", [1, 8])
def test_a_rate_does_not_count_what_workers_had_ready(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def batches() -> Generator[torch.Tensor, None, None]:
        # As torch's loader gives them: each worker makes a whole batch in a second, all side by side; while the first
        # was worked on, each made the two that it may be ahead.
        nonlocal now
        for number in itertools.count():
            now = max(now, 1.0 + max(0, number // workers - 2))
            yield torch.zeros(4)

    assert common.rate(batches(), 0.5, workers)["images_per_s"] == 4 * workers


def test_goals_are_of_the_rows_that_there_are_and_name_plain_dalis_decoder() -> None:
    few, many = feed.Settings(True, 0.65, 3, 4), feed.Settings(False, 0.85, 3, 8)
    rates = {"feeder dali, seekable": 30.0, "feeder cpu + kernel 1": 20.0, "torch + Pillow": 5.0}
    rates |= dict(zip(feed.plain_rows(few, many, 4, True), (20.0, 24.0), strict=True))
    assert feed.goals(rates, 4) == {
        "feeder dali, seekable / plain DALI (image_random_crop, up to 4 threads) (1.3)": 1.5,
        "feeder dali, seekable / plain DALI (whole images, up to 8 threads) (1.3)": 1.25,
        "best of feeder / torch + Pillow (4.0)": 6.0,
    }
    assert list(feed.plain_rows(many, many, 8, False)) == [
        "plain DALI (whole images, as image_random_crop fails, up to 8 or 16 threads)"
    ]
    assert feed.goals({"torch + Pillow": 5.0}, 8) == {}


@pytest.mark.parametrize(
    ("off", "by_workers", "error"),
    [
        (0.0, 0, None),
        (0.001, 1, None),
        (0.001, 0, r"1 images of set .* workers decoded 0 only"),
        (0.03, 1, r"1 of 4 images of batch 1 of set are not the CPU's"),
        (float("nan"), 1, r"1 of 4 images of batch 1 of set are not the CPU's"),
        (0.0, 20, r"the GPU decoded 60 of 80 images"),
    ],
    ids=["equal", "rounded by a worker", "rounded by the GPU", "wrong", "not a number", "left to workers"],
)
def test_a_cuda_decoder_is_not_timed_unless_its_batches_are_right(
    monkeypatch: pytest.MonkeyPatch, off: float, by_workers: int, error: str | None
) -> None:
    closed: list[str] = []

    class Loader:
        def __init__(self, dataset: str, *, backend: str, **options: Any) -> None:
            self.backend = backend

        def __iter__(self) -> Generator[tuple[torch.Tensor, None], None, None]:
            for number in range(2):
                images = torch.full((4, 3, 2, 2), 0.5, dtype=torch.float16)
                if self.backend == "cuda" and number == 1:
                    images[2, 1, 0, 1] += off
                yield images, None

        def stats(self) -> dict[str, int]:
            return {"samples": 80, "redone_images": 0, "cuda_images": 80 - by_workers, "cpu_images": by_workers}

        def close(self) -> None:
            closed.append(self.backend)

    monkeypatch.setattr(cuda, "feeder", types.SimpleNamespace(ShardDataset=lambda *_, **__: "set", DataLoader=Loader))
    if error is None:
        cuda.check("set", 1)
    else:
        with pytest.raises(RuntimeError, match=error):
            cuda.check("set", 1)
    assert closed == ["cuda", "cpu"]


def test_goals_of_the_cuda_decoder_are_of_the_rows_that_there_are() -> None:
    rows = {
        "feeder cuda, seekable": {"images_per_s": 60_000.0, "cores_per_1000_images_per_s": 0.05},
        "plain DALI (whole images, up to 16 threads)": {"images_per_s": 10_000.0, "cores_per_1000_images_per_s": 1.0},
        "plain DALI (whole images, up to 32 threads)": {"images_per_s": 12_000.0, "cores_per_1000_images_per_s": 2.0},
    }
    assert cuda.goals(rows) == {
        "seekable, images/s (50000)": 60_000.0,
        "seekable, CPU us an image, at most (60)": 50.0,
        "seekable / plain DALI (4.0)": 5.0,
    }
    packed = {"feeder cuda, packed": {**rows["feeder cuda, seekable"], "images_per_s": 90_000.0}}
    assert cuda.goals({**rows, **packed})["packed / seekable (1.0)"] == 1.5
    assert cuda.goals(packed) == {"packed, CPU us an image, at most (60)": 50.0}


def test_training_is_held_against_the_resident_batch_where_both_were_measured() -> None:
    rows = {"resident batch": {"images_per_s": 50.0}, "cpu": {"images_per_s": 30.0}, "dali": {"images_per_s": 40.0}}
    assert train.reached(rows) == {"best": "dali", "goals": {"dali, of a resident batch (0.98)": 0.8}}
    assert train.reached({"resident batch": rows["resident batch"]}) == {}
    assert train.reached({"cpu": rows["cpu"]}) == {}


@pytest.mark.usefixtures("one_machine")
def test_plain_dali_is_looked_for_with_as_many_threads_as_feeder_has_processes_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def speed(settings: feed.Settings) -> float:
        # Another share of the engine is best with more threads.
        fits = 1 - abs(settings.hw_decoder_load - (1.0 if settings.num_threads > 4 else 0.85))
        return settings.num_threads + settings.prefetch_queue_depth / 10 + fits

    monkeypatch.setattr(feed, "survives", lambda what, *_: "random_resized" in what)
    monkeypatch.setattr(feed, "plain_dali", lambda _, *settings: speed(feed.Settings(*settings)))
    monkeypatch.setattr(feed, "rate", lambda speed, *_: {"images_per_s": speed})
    found = feed.best_plain("shards", 4, 1.0, common.Result("x", str(tmp_path / "x.json")))
    assert found == {
        "plain DALI (whole images, as image_random_crop fails, up to 4 threads)": feed.Settings(False, 0.85, 4, 4),
        "plain DALI (whole images, as image_random_crop fails, up to 8 threads)": feed.Settings(False, 1.0, 4, 8),
    }


@pytest.mark.usefixtures("one_machine")
def test_settings_that_fail_are_passed_over_and_the_best_of_the_others_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(load: float) -> dict[str, float]:
        if load == 0.65:
            raise RuntimeError("no engine")
        return {"images_per_s": 2 - abs(load - 1.0)}

    result = common.Result("x", str(tmp_path / "x.json"))
    monkeypatch.setattr(feed, "survives", lambda what, *_: "random_resized" in what)
    monkeypatch.setattr(feed, "plain_dali", lambda _, *settings: feed.Settings(*settings).hw_decoder_load)
    monkeypatch.setattr(feed, "loader_feed", lambda _, dali, *rest, fidelity: dali.hw_decoder_load)
    monkeypatch.setattr(feed, "rate", lambda load, *_: run(load))
    (plain,) = feed.best_plain("shards", 4, 1.0, result).values()
    assert plain.hw_decoder_load == feed.best_load("feeder dali, keep", "shards", 4, 1.0, result) == 1.0
    assert "feeder dali, keep, hw_decoder_load 0.65" in result.errors
    tried = json.loads((tmp_path / "x.json").read_text())["feeder dali, keep, tried"]
    assert [each["hw_decoder_load"] for each in tried] == [0.85, 1.0]
    monkeypatch.setattr(feed, "rate", lambda *_: run(0.65))
    for search in (feed.best_plain, lambda *rest: feed.best_load("x", *rest)):
        with pytest.raises(RuntimeError, match="runs with no"):
            search("shards", 4, 1.0, result)


def test_plain_dali_is_looked_for_one_setting_after_the_other_and_from_what_was_best_elsewhere() -> None:
    tried: list[tuple[feed.Settings, dict[str, Any]]] = []

    def try_out(settings: feed.Settings, further: Any) -> float:
        tried.append((settings, dict(further)))
        if settings.image_random_crop:
            return 0.0
        return (
            settings.num_threads
            - abs(settings.hw_decoder_load - 0.8)
            - ("hints" in further)
            + further.get("pipelines", 1)
        )

    settings, further, rate = quick.best_settings(try_out, 16)
    assert (settings, further) == (feed.Settings(False, 0.8, 2, 32), {"pipelines": 4})
    assert rate == 36
    assert len(tried) == 12
    assert quick.best_settings(try_out, 4, (settings, further))[:2] == (settings._replace(num_threads=8), further)
    assert max(each.num_threads for each, _ in tried[12:]) == 8


@pytest.mark.slow
def test_both_quick_calls_come_to_their_end_in_a_dry_run(tmp_path: Path) -> None:
    """On the CPU, by the kernels' emulator. What they measure there is of no use."""
    for k in range(12):
        path = tmp_path / "photos" / f"{k % 2}" / f"{k}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels(k, 300, 260)))
    environment = {**os.environ, "PYTHON": sys.executable, "IMAGES": str(tmp_path / "photos")}
    for number, names in (("1", ("decoder", "rates", "train")), ("2", ("plain", "dali", "train-dali"))):
        script = ["bash", str(ROOT / "bench/gpu.sh"), str(tmp_path / "out"), "--quick", number, "--dry-run"]
        done = subprocess.run(script, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr
        with tarfile.open(tmp_path / "out" / "results.tar") as tar:
            for name in names:
                file = tar.extractfile(f"./gpu-quick-{name}.json")
                assert file is not None
                assert "errors" not in json.load(file)
    found = json.loads((tmp_path / "out" / "gpu-quick-decoder.json").read_text())
    assert found["packed"]["ms_a_batch"].keys() == {"upload"} | {
        f"feeder_{kernel}" for kernel in ("unpack", "idct", "filters", "resize")
    }
    alone = subprocess.run([*script[:3], "--dry-run"], capture_output=True, text=True, env=environment)
    assert alone.returncode == 2  # of parts that need a GPU there is no dry run


def test_dalis_memory_is_held_until_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    class Output:
        """DALI's list of tensors."""

        def as_tensor(self) -> torch.Tensor:
            return torch.zeros(2, 4, 5, 3)

    class Event:
        """Of a GPU that does nothing until it is waited for."""

        done = False

        def query(self) -> bool:
            return self.done

        def synchronize(self) -> None:
            self.done = True

    stream = types.SimpleNamespace(record_event=Event)
    outputs: list[weakref.ref[Output]] = []

    def run(where: Any) -> tuple[Output]:
        assert where is stream
        output = Output()
        outputs.append(weakref.ref(output))
        return (output,)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    batches = feed.owned(types.SimpleNamespace(run=run), 2)
    alive = []
    for _ in range(4):
        assert next(batches).shape == (2, 3, 4, 5)
        alive.append([output() is not None for output in outputs])
    # The newest is still bound in the generator's frame, and is to be copied, too.
    assert alive == [[True], [True, True], [False, True, True], [False, False, True, True]]


def test_what_a_step_left_half_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "gpu-feed-4.json").write_text('{"benchmark": ')
    (tmp_path / "parity-fast.json").write_text("")
    (tmp_path / "tests-gpu.xml").write_text("<testsuite")
    (tmp_path / "gpu-kernels.json").write_text("{}")
    (tmp_path / "gpu-kernels.log").write_bytes("half a character: ü".encode()[:-1])
    text = summary.summarize(tmp_path)
    assert "tests-gpu: unreadable" in text
    assert "NOT PASSED" in text
    assert "half a character" in text


def stand_in(folder: Path, answers: str = "", *, has_gpu: bool = False) -> Path:
    """Writes a program that is Python to bench/gpu.sh, but says itself what torch, which takes long, would say.

    Args:
        folder: Where it is written.
        answers: Further cases, of sh, of arguments that it does not hand on to Python.
        has_gpu: True if it says that there is a GPU.
    """
    program = folder / "python"
    program.write_text(
        f"""#!/bin/sh
case "$*" in
{answers}
*is_available*) exit {int(not has_gpu)} ;;
*"import feeder, torch"* | *"feeder --version"*) exit 0 ;;
esac
exec {sys.executable} "$@"
"""
    )
    program.chmod(0o755)
    return program


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_one_part_of_the_script_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "gpu-train.json").write_text(json.dumps({"skipped": "an earlier run's"}))
    script = ["bash", str(ROOT / "bench/gpu.sh"), str(tmp_path)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(stand_in(tmp_path)), "HOME": str(tmp_path)}
    options: dict[str, Any] = {"capture_output": True, "text": True, "env": environment, "timeout": 200}
    done = subprocess.run([*script, "--only", "kernels,ladder"], **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "gpu-kernels.json").read_text())["skipped"] == "no CUDA device"
    assert not (tmp_path / "data").exists()
    assert "an earlier run's" in (tmp_path / "summary.txt").read_text()
    assert subprocess.run([*script, "--only", "everything"], **options).returncode == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_script_that_is_stopped_sums_up_what_there_is(tmp_path: Path, how: signal.Signals) -> None:
    python = stand_in(tmp_path, "*bench.gpu.kernels*) exec sleep 100 ;;")
    (tmp_path / "gpu-train.json").write_text(json.dumps({"skipped": "an earlier run's"}))
    script = ["bash", str(ROOT / "bench/gpu.sh"), str(tmp_path), "--only", "kernels,train"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(python), "HOME": str(tmp_path)}
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stdout is not None
        assert any(line == "gpu.sh: gpu-kernels\n" for line in running.stdout)
        running.send_signal(how)
        assert "gpu.sh: stopped" in running.stdout.read()
        assert running.wait(60) == 130
    summed_up = (tmp_path / "summary.txt").read_text()
    assert "an earlier run's" in summed_up
    assert "gpu.sh: stopped" in summed_up


@pytest.mark.parametrize("state", ["clean", "changed", "differs"])
def test_an_installed_feeder_is_measured_with_the_checkouts_files_and_commit(tmp_path: Path, state: str) -> None:
    checkout, installed, out = (tmp_path / name for name in ("checkout", "site/feeder", "out"))
    files = dict.fromkeys(("feeder/a.py", "tests/t.py", "examples/e.py", "kernels/fuzz/make_corpus.py"), "as committed")
    built = {"kernels/k.fatbin": "", "kernels/fuzz/__pycache__/a.pyc": "", "kernels/n.so": ""}
    files |= {"pyproject.toml": "", "bench/gpu.sh": (ROOT / "bench/gpu.sh").read_text(), **built}
    for name, text in files.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "All"]):
        subprocess.run([*git, *command], check=True)
    if state == "changed":
        (checkout / "examples/e.py").write_text("changed")
    installed.mkdir(parents=True)
    (installed / "a.py").write_text("other" if state == "differs" else "as committed")
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
case "$*" in
*feeder._native*) [ "$PWD" = / ] ;;
*"feeder, os"*) echo {installed} ;;
*is_available*) exit 1 ;;
*bench.gpu.kernels*) echo "${{FEEDER_COMMIT-none}}" >{tmp_path}/commit ;;
esac
"""
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", str(checkout / "bench/gpu.sh"), str(out), "--only", "kernels"],
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python), "FEEDER_COMMIT": "an earlier one"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    expected = {"clean": head, "changed": f"{head}+changes", "differs": "none"}[state]
    assert (tmp_path / "commit").read_text() == f"{expected}\n"
    assert ("is not this checkout's" in done.stdout) == (state == "differs")
    copied = {str(path.relative_to(out / "run")) for path in (out / "run").rglob("*") if path.is_file()}
    assert copied == files.keys() - built.keys() - {"feeder/a.py"}


def test_an_installed_feeder_has_the_commit_that_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "0123456789" * 4
    monkeypatch.setenv("FEEDER_COMMIT", told)
    assert result_file.machine()["commit"] != told
    monkeypatch.setattr(feeder, "__file__", str(tmp_path / "site/feeder/__init__.py"))
    assert result_file.machine()["commit"] == told
    monkeypatch.delenv("FEEDER_COMMIT")
    assert result_file.machine()["commit"] is None


def test_images_are_counted_once_however_many_links_lead_to_them(tmp_path: Path) -> None:
    sizes, folder = [(40, 30), (60, 20), (60, 20)], tmp_path / "images"
    files = [encode(pixels(seed, *size)) for seed, size in enumerate(sizes)]
    for copy in range(3):
        for seed, data in enumerate(files):
            path = folder / f"class-{copy}/{seed}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    shard(str(folder), str(tmp_path / "set"), ShardOptions())
    assert common.images_of(str(tmp_path / "set")) == {
        "samples": 9,
        "distinct": 3,
        "mean_bytes": round(sum(map(len, files)) / 3),
        "mean_pixels": 1200,
    }


def event(name: str, first: float, last: float, *, on: str = "CUDA", annotation: bool = False) -> Any:
    """An event of torch's profiler."""
    return types.SimpleNamespace(
        name=name,
        device_type=getattr(torch.autograd.DeviceType, on),
        time_range=types.SimpleNamespace(start=first, end=last),
        is_user_annotation=annotation,
    )


def test_a_copy_is_hidden_by_any_kernel_but_by_nothing_else() -> None:
    events = [
        event("Memcpy HtoD (Pinned -> Device)", 0, 10),
        event("Memcpy HtoD (Pinned -> Device)", 20, 30),
        event("nvjet_hsh_256x128", 2, 6),
        event("nvjet_hsh_256x128", 0, 2),
        event("normalize_kernel", 4, 8),
        event("normalize_kernel", 28, 40),
        event("Memset (Device)", 20, 22),
        event("Memcpy DtoH (Device -> Pinned)", 22, 24),
        event("Stream Wait Event", 24, 25),
        event("ProfilerStep#1", 0, 40, annotation=True),
        event("aten::mm", 0, 40, on="CPU"),
    ]
    assert transfer.overlap_of(events) == {
        "copies": 2,
        "copy_us": 20,
        "kernels_busy_share": 0.5,
        "products_busy_share": 1.0,
        "hidden_by_products": 0.3,
        "hidden (0.95)": 0.5,
    }
    for missing in (events[:2], events[2:]):
        with pytest.raises(RuntimeError, match="matrix products, of"):
            transfer.overlap_of(missing)


def test_help_says_what_is_needed_and_what_to_run_in_30_minutes() -> None:
    done = subprocess.run(["bash", str(ROOT / "bench/gpu.sh"), "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    limits = {name: int(minutes) for name, minutes in re.findall(r"^  (\S+) +(\d+) min  ", done.stdout, re.MULTILINE)}
    assert max(limits.values()) <= 10
    chosen = re.search(r"--only ([a-z0-9,-]+), (\d+) min at most.\n.*goes: (.*)\.", done.stdout)
    assert chosen is not None
    assert int(chosen[2]) <= 30
    assert sorted([*chosen[1].split(","), *chosen[3].split()]) == sorted(limits)
    for needed in ("pytest", "python3-dev", "gcc", "cmake", "Dockerfile"):
        assert needed in done.stdout


def test_parity_is_looked_at_on_both_shard_sets_and_on_all_backends(tmp_path: Path) -> None:
    answers = """*triton_lacks*) echo "no gcc" >&2; exit 1 ;;
*"feeder shard"*) exit 0 ;;
*"feeder parity"*)
    echo "{\\"passed\\": true, \\"device\\": \\"$4 $6 $8 ${10}\\", \\"views_differing\\": 0}"
    exit 0 ;;"""
    python = stand_in(tmp_path, answers, has_gpu=True)
    out = tmp_path / "a folder"
    (out / "data/images").mkdir(parents=True)
    script = ["bash", str(ROOT / "bench/gpu.sh"), str(out), "--only", "parity"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(python), "HOME": str(tmp_path)}
    done = subprocess.run(script, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    summed_up = (out / "summary.txt").read_text()
    for shards in ("seekable", "keep"):
        for fidelity in ("fast", "exact"):
            name = f"parity-{shards}-{fidelity}"
            assert f"{name} ({out}/data/{shards} dali cuda {fidelity}): passed" in summed_up
    for backend in ("cpu", "dali", "pillow"):
        assert f"parity-cpu-{backend} ({out}/data/seekable {backend} cpu fast): passed" in summed_up
    assert "off: 0 views" in summed_up
    assert "feeder's rows fail, and ladder and lessons mean little: no gcc" in summed_up


def test_a_first_try_ends_its_feed_and_fails_with_what_the_end_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement = """
import torch
from bench.gpu.common import first_batch
torch.cuda.synchronize = lambda: None
def feed():
    try:
        yield torch.zeros(2)
        yield torch.zeros(2)
    finally:
        {}
first_batch(feed())
"""
    result = common.Result("x", str(tmp_path / "x.json"))
    monkeypatch.chdir(ROOT)
    assert common.survives("good", statement.format("pass"), result)
    assert not common.survives("bad", statement.format("raise RuntimeError('DALI failed')"), result)
    assert list(result.errors) == ["bad"]
    assert "DALI failed" in result.errors["bad"]
    compile(common.first_loader_batch("it's", 256), "", "exec")


def test_kernels_are_run_under_every_tool_of_the_sanitizer(tmp_path: Path) -> None:
    stand_in(tmp_path, has_gpu=True)
    programs = {
        "df": "echo '- - - Available'; echo '- - - 64'",
        "compute-sanitizer": 'echo "$PYTORCH_NO_CUDA_MEMORY_CACHING $@"; case "$*" in *racecheck*) exit 9 ;; esac',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    out = tmp_path / "out"
    script = ["bash", str(ROOT / "bench/gpu.sh"), str(out), "--only", "sanitizer"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHON": str(tmp_path / "python"), "HOME": str(tmp_path)}
    done = subprocess.run(script, capture_output=True, text=True, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    files = {
        "sanitizer": "triton tests/gpu/test_normalize.py",
        "sanitizer-cuda": "all_kinds or damage tests/gpu/test_cuda_",
    }
    for (name, wanted), tool in itertools.product(files.items(), ("memcheck", "racecheck")):
        log = (out / f"{name}-{tool}.log").read_text()
        assert re.match(rf"1 --error-exitcode 9 --tool {tool} .*-m pytest .*-k {wanted}", log)
    summed_up = (out / "summary.txt").read_text()
    for name in files:
        assert f"{name}-racecheck FAILED" in summed_up
        assert f"{name}-memcheck FAILED" not in summed_up
    assert "/dev/shm has 64 MiB free, of which torch's workers may need 24,000" in summed_up


def test_tests_that_end_their_process_are_counted_as_an_error(tmp_path: Path) -> None:
    answers = """*"-m pytest"*) exit 139 ;;
*"feeder shard"* | *bench.gpu.cuda* | *triton_lacks*) exit 0 ;;"""
    python = stand_in(tmp_path, answers, has_gpu=True)
    out = tmp_path / "out"
    (out / "data/images").mkdir(parents=True)
    (out / "tests-cuda.json").write_text("an earlier run's")
    script = ["bash", str(ROOT / "bench/gpu.sh"), str(out), "--only", "cuda"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(python), "HOME": str(tmp_path)}
    done = subprocess.run(script, capture_output=True, text=True, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "tests-cuda: 1 tests, 0 failures, 1 errors, 0 skipped\n" in (out / "summary.txt").read_text()
    assert not (out / "tests-cuda.json").exists()


def test_reports_of_other_programs_get_the_machine_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "gpu", lambda: {"name": "a GPU"})
    (tmp_path / "parity-a.json").write_text('{"passed": true}')
    (tmp_path / "parity-b.json").write_text('{"machine": "an earlier one"}')
    (tmp_path / "parity-c.json").write_text("")
    (tmp_path / "tests-a.xml").write_text(
        """<testsuites><testsuite errors="1" failures="1" skipped="3" tests="9"><testcase classname="t" name="good"/>
        <testcase classname="t" name="bad"><failure/></testcase><testcase classname="t" name="worse"><error/></testcase>
        </testsuite></testsuites>"""
    )
    (tmp_path / "tests-b.xml").write_text("<testsuite")
    (tmp_path / "tests-c.xml").write_text("<testsuite tests='1'/>")
    (tmp_path / "tests-c.json").write_text("an earlier one")
    summary.complete(tmp_path)
    parity, tests = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("parity-a", "tests-a"))
    assert (parity["gpu"]["name"], parity["passed"], parity["machine"]["commit"][:1].isalnum()) == ("a GPU", True, True)
    assert (tests["passed"], tests["failed"], tests["skipped"]) == (4, 2, 3)
    assert tests["names_of_failed"] == ["t::bad", "t::worse"]
    assert tests["gpu"] == parity["gpu"]
    assert (tmp_path / "parity-b.json").read_text() == '{"machine": "an earlier one"}'
    assert (tmp_path / "parity-c.json").read_text() == ""
    assert (tmp_path / "tests-c.json").read_text() == "an earlier one"
    assert not (tmp_path / "tests-b.json").exists()
    assert "parity-a" in summary.summarize(tmp_path)


@pytest.mark.slow
def test_the_cuda_kernels_are_tested_and_then_timed(tmp_path: Path) -> None:
    python = stand_in(tmp_path, '*"feeder shard"*) exit 0 ;;', has_gpu=True)
    out = tmp_path / "out"
    (out / "data/images").mkdir(parents=True)
    script = ["bash", str(ROOT / "bench/gpu.sh"), str(out), "--only", "cuda"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHON": str(python), "HOME": str(tmp_path)}
    subprocess.run(script, capture_output=True, text=True, env=environment)
    summed_up = (out / "summary.txt").read_text()
    assert "tests-cuda FAILED" not in summed_up
    assert (out / "tests-cuda.xml").exists()
    assert json.loads((out / "gpu-cuda.json").read_text())["skipped"] == "no CUDA device"


def test_too_few_images_for_a_batch_are_an_error_and_no_endless_wait() -> None:
    with pytest.raises(ValueError, match="fewer images"):
        next(common.endless([]))
    assert list(itertools.islice(common.endless([1, 2]), 5)) == [1, 2, 1, 2, 1]
