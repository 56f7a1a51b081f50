"""feeder bench: everybody does the same work, and every result says what it is of."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch._utils import ExceptionWrapper

from feeder.dataset.dataset_shards import write_shards
from feeder.errors import ArgumentError, BackendError, FormatError, SourceError
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.bench import bench_run as bench_run
from feeder.tools.bench import contestant
from feeder.tools.bench.bench_options import BenchOptions, RivalTask, default_workers
from feeder.tools.bench.bench_run import throughput
from feeder.tools.bench.images import files_of, image_fields, listed, tars
from feeder.tools.bench.result_file import interleave, spread
from feeder.tools.bench.rivals import RIVALS, Rival, webdataset_sample
from feeder.tools.bench.show import limit_of, render
from feeder.tools.cli import main
from feeder.tools.terminal import table
from tests.support.images import encode, make_tree, pixels


def quiet(line: str) -> None:
    pass


@pytest.mark.slow
def test_the_command_measures_all_that_is_installed_and_writes_the_result(
    shards: Path, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shards.parent / "out"
    sizes = ["--image-size", "32", "--batch-size", "8", "--workers", "0,1", "--seconds", "0.05", "--repeats", "1"]
    report = ["--json", str(out / "result.json")]
    assert main(["bench", str(shards), "--folder", str(tree), *sizes, *report]) == 0
    done = capsys.readouterr()
    saved = json.loads((out / "result.json").read_text())
    assert saved["benchmark"] == "throughput"
    assert saved["machine"]["cores"] >= 1
    assert saved["machine"]["versions"]
    assert saved["options"]["workers"] == [0, 1]
    measured = set(saved["images_per_s"])
    assert {"feeder"} < measured
    assert {rival.title() for rival in RIVALS.values()} == measured | set(saved["absent"])
    for measure in ("images_per_s", "first_batch_s", "cpu_ms_per_image", "pss_mib", "ratio"):
        assert set(saved[measure]) == measured
        for by_workers in saved[measure].values():
            assert set(by_workers) == {"0", "1"}
            assert all(len(values["all"]) == 1 for values in by_workers.values())
            # The kernel counts CPU time in hundredths of a second, and a busy machine gives less than that.
            least = 0 if measure == "cpu_ms_per_image" else 1e-9
            assert all(values["median"] >= least for values in by_workers.values())
    assert set(saved["check"]) == measured
    assert saved["check"]["feeder"] < bench_run.CHECK_LEVELS
    assert {"read", "decode"} <= set(saved["stages_ms"]["1"])
    assert max(map(len, done.out.splitlines())) <= max(80, len(str(out)) + 30)
    assert "torch+" in done.out
    assert "checked feeder" in done.err


@pytest.fixture(scope="module")
def packed(tree: Path) -> Path:
    """The shards of ``tree``, packed."""
    out = tree.parent / "packed"
    shard(str(tree), str(out), ShardOptions(encode=EncodeOptions("packed")))
    return out


@pytest.mark.slow
def test_packed_shards_are_measured_beside_all_that_is_installed(packed: Path, tree: Path) -> None:
    """DALI gets the files, webdataset unpacks."""
    lines: list[str] = []
    options = BenchOptions("train", "uint8", 24, 8, (0,), seconds=0.02, repeats=1)
    result = throughput(str(packed), options, folder=str(tree), note=lines.append)
    missing = {rival.title() for rival in RIVALS.values() if rival.missing(str(packed), str(tree))}
    assert set(result["absent"]) == missing
    assert set(result["images_per_s"]) == {rival.title() for rival in RIVALS.values()} - missing
    assert any("webdataset unpacks the packed images first" in line for line in lines)


def test_the_files_of_a_packed_set_are_in_its_order(packed: Path, tree: Path, tmp_path: Path) -> None:
    files = files_of(str(packed), str(tree))
    assert sorted(files) == sorted(listed(str(tree)))
    assert files != listed(str(tree))
    with pytest.raises(SourceError, match=r"not there; --folder is for the files .* `feeder export`"):
        files_of(str(packed), str(tmp_path))


def test_dali_measures_packed_images_only_with_their_files(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert "give it the files of `feeder export` with --folder" in (RIVALS["dali"].missing(str(packed), None) or "")
    assert RIVALS["dali"].missing(str(packed), str(tree)) is None


@pytest.mark.slow
def test_fewer_images_than_a_batch_are_measured_in_smaller_batches(tree: Path) -> None:
    options = BenchOptions("val", "uint8", 24, 64, (0,), seconds=0.02, repeats=1, peers=False)
    result = throughput(str(tree), options, note=quiet)
    assert result["options"]["batch_size"] == result["images"] == 32
    assert list(result["images_per_s"]) == ["feeder"]
    assert set(result["absent"].values()) == {"not asked for"}
    assert "ratio" not in result
    text = render(result)
    assert "batches of 32" in text
    assert ", webdataset, DALI (CPU): not asked for" in text


def test_a_measurement_can_be_interrupted(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_run, "run_turn", interrupt)
    monkeypatch.setattr(bench_run, "check_rivals", lambda names, *rest: (dict.fromkeys(names, 0.0), 3.0))
    with pytest.raises(KeyboardInterrupt):
        throughput(str(tree), BenchOptions(peers=False), note=quiet)


def test_only_what_would_help_is_advised(tree: Path, shards: Path) -> None:
    found: dict[str, Any] = {"bottleneck": {"2": "decode"}, "kind": "shards", "usable_cores": 4}
    assert limit_of(found, "2") == "decoding: more workers"
    assert limit_of({**found, "usable_cores": 2}, "2") == "decoding: more cores"
    assert limit_of({**found, "kind": "folder"}, "2") == "decoding: more workers, or shards in place of files"
    found["bottleneck"] = {"2": "read"}
    assert limit_of(found, "2") == "reading: a faster disk"
    assert limit_of({**found, "kind": "folder"}, "2") == "reading: a faster disk, or shards in place of files"
    assert limit_of({**found, "bottleneck": {"2": None}}, "2") is None


def test_the_report_begins_with_the_verdict_and_doubts_what_a_busy_machine_measured() -> None:
    def shown(ours: list[float], theirs: list[float], load: float = 0.5) -> str:
        options = asdict(BenchOptions("train", "uint8", 24, 64, (1,), seconds=1, repeats=2))
        rates = {name: {"1": spread(found)} for name, found in (("feeder", ours), (RIVALS["torch"].title(), theirs))}
        about = {"kind": "shards", "images": 9, "absent": {}, "usable_cores": 2, "load": load, "options": options}
        return render({**about, "images_per_s": rates, "pss_mib": rates, "stages_ms": {}, "bottleneck": {}})

    ours = RIVALS["torch"].title()
    assert shown([600, 620], [100, 140]).startswith(f"feeder gives 5.1 times as many images a second as {ours}, the")
    assert shown([60, 60], [120, 120]).startswith(f"feeder gives 0.50 of the images a second as {ours}, the")
    assert "warning" not in shown([600, 620], [100, 140])
    assert "warning: feeder's runs differ 1.6 times: measure" in shown([600, 960], [100, 140])
    assert "warning: 9.5 processes wanted the 2 cores before it" in shown([600, 620], [100, 140], load=9.5)


def test_what_a_rival_makes_is_checked_before_it_is_timed() -> None:
    images = np.full((2, 3, 4, 4), 100, np.uint8)
    good = {"images": images, "labels": np.array([1, 2])}
    assert bench_run.difference_of(good, {"images": images + 3}) == (None, 3.0)
    wrong, _ = bench_run.difference_of(good, {"images": images + 50})
    assert "50.0 levels from Pillow's, more than" in (wrong or "")
    wrong, _ = bench_run.difference_of(good, {"images": images, "labels": np.array([2, 1])})
    assert "its labels are [2, 1], expected [1, 2]" in (wrong or "")
    wrong, _ = bench_run.difference_of(good, {"images": images[:1]})
    assert "expected (2, 3, 4, 4)" in (wrong or "")


def test_a_rival_that_fails_or_says_nothing_is_named_with_its_reason(tree: Path) -> None:
    task = RivalTask(str(tree), None, BenchOptions(), 0)
    with bench_run.Contestant() as contestant, pytest.raises(bench_run.Failed, match="no answer in 0 s"):
        contestant.ask("nobody", task, 0.0)
    assert contestant.ended
    with bench_run.Contestant() as contestant, pytest.raises(bench_run.Failed, match="KeyError: 'nobody'"):
        contestant.ask("nobody", task, 100)


def test_the_reason_of_a_failure_in_a_worker_is_the_worker_s() -> None:
    for error in (OSError("no room in /dev/shm"), RuntimeError("no room in /dev/shm\nmore of it")):
        try:
            raise error
        except Exception:
            wrapped = ExceptionWrapper(where="in DataLoader worker process 1")  # as torch's loader does
        with pytest.raises(type(error)) as caught:
            wrapped.reraise()
        assert contestant.reason_of(caught.value) == f"{type(error).__name__}: no room in /dev/shm"
    assert contestant.reason_of(ValueError("first\n  second")) == "ValueError: first"


def test_images_that_feeder_or_pillow_cannot_decode_end_the_measurement(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "images", 1, 4)
    (tree / "class-0" / "img-001.jpg").write_bytes(b"no image")
    with pytest.raises(BackendError, match="Pillow, which the others are checked against, failed"):
        throughput(
            str(tree), BenchOptions(image_size=16, batch_size=4, workers=(0,), seconds=0.02, repeats=1), note=quiet
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench",), "required: DIR"),
        (("bench", "missing"), "missing"),
        (("bench", "x", "--workers", "1;2"), "not a list of numbers"),
        (("bench", "x", "--workers", "1,1"), "workers must be different numbers"),
        (("bench", "x", "--json", "/proc/x.json"), "/proc/x.json: can't be written"),
        (("bench", "x", "--json", "/dev/null/x.json"), "/dev/null/x.json: can't be written"),
    ],
)
def test_wrong_usage_is_named_before_anything_runs(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code: Any = main(arguments)
    except SystemExit as exit:
        code = exit.code
    assert code in (1, 2)
    assert message in capsys.readouterr().err


def test_a_missing_folder_or_index_is_the_input_s_fault(tmp_path: Path) -> None:
    (tmp_path / "index.bin").write_bytes(b"damaged")
    with pytest.raises(FormatError):
        throughput(str(tmp_path), BenchOptions(), note=quiet)
    with pytest.raises(SourceError):
        throughput(str(tmp_path / "missing"), BenchOptions(), note=quiet)


@pytest.mark.parametrize(
    "options",
    [
        *({"preset": "x"}, {"dtype": "int4"}, {"image_size": 0}, {"batch_size": 0}, {"workers": (-1,)}),
        *({"workers": (2, 2)}, {"seconds": 0.0}, {"seconds": float("nan")}, {"repeats": 0}),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(options))} must be"):
        BenchOptions(**options)


def test_workers_go_up_to_the_cores_by_powers_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for usable, expected in ((1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))):
        monkeypatch.setattr(
            "feeder.tools.bench.bench_options.cores", lambda usable=usable: type("", (), {"usable": usable})
        )
        assert default_workers() == expected


def test_peers_read_the_samples_that_feeder_reads(tree: Path, shards: Path, tmp_path: Path) -> None:
    assert [label for _, label in listed(str(tree))] == [0] * 16 + [1] * 16
    assert all(Path(path).is_file() for path, _ in listed(str(tree)))
    assert [Path(path).name for path in tars(str(shards))] == ["shard-000000.tar"]
    assert image_fields(str(shards)) == ["jpg"]
    shard(str(tree), str(tmp_path / "raw"), ShardOptions(encode=EncodeOptions("raw")))
    assert (
        RIVALS["webdataset"].missing(str(tree), None)
        == "reads tars only: run `feeder shard` on the images, and measure the shards"
    )
    assert "raw pixels" in (RIVALS["dali"].missing(str(tmp_path / "raw"), None) or "raw pixels")


@pytest.mark.parametrize("kind", ["text", "targets"])
def test_labels_that_are_text_or_targets_are_no_reason_to_stop(tmp_path: Path, kind: str) -> None:
    samples = [{"jpg": encode(pixels(i)), "cls": "dog" if i % 2 else "cat", "json": {"x": i / 2}} for i in range(4)]
    write_shards(samples, tmp_path / "set")
    path = str(tmp_path / "set")
    if kind == "targets":
        shard(path, str(tmp_path / "targets"), ShardOptions(columns=ManifestColumns(targets=("x",))))
        path = str(tmp_path / "targets")
    task = RivalTask(path, None, BenchOptions(image_size=16, batch_size=4, workers=(0,)), 0, True)
    made = {name: contestant.first_batch(name, task) for name in ("torch", "feeder")}
    assert [bench_run.difference_of(made["torch"], made[name])[0] for name in made] == [None] * 2
    for text, label in ((b"dog", 1), (b"7", 7), (b"", -1), (b"cow", -1)):
        fields = {"jpg": encode(pixels(0)), "cls": text}
        assert webdataset_sample(["jpg"], task.options, {"cat": 0, "dog": 1}, fields)[1] == label


def test_a_peer_that_is_not_installed_is_reported_as_absent(monkeypatch: pytest.MonkeyPatch, tree: Path) -> None:
    monkeypatch.setattr("feeder.decoders.registry.find_spec", lambda name: None)
    assert RIVALS["dali"].missing(str(tree), None) == "not installed (pip install nvidia-dali-cuda130)"
    assert isinstance(RIVALS["feeder"], Rival)


# In a process of its own: what ends among those that other tests have started would be missing.
TREE = """
import subprocess, sys
from feeder.system.process_usage import cpu_seconds, memory, process_tree

code = "import sys; held = bytearray(96 << 20); print('ready', flush=True); sys.stdin.read()"
before = memory()
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
held = memory()
assert child.pid in process_tree()
assert held.pss - before.pss > 90, (held, before)
assert held.peak_rss - before.peak_rss > 90, (held, before)
child.communicate(b"")
spent = cpu_seconds()
burn = "import time\\nwhile time.process_time() < 0.3: pass"
subprocess.run([sys.executable, "-c", burn], check=True)
assert cpu_seconds() - spent >= 0.25, (cpu_seconds(), spent)
"""


def test_memory_and_cpu_time_are_those_of_the_whole_tree() -> None:
    done = subprocess.run([sys.executable, "-c", TREE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_rivals_take_turns() -> None:
    calls: list[str] = []

    def rival(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    found = interleave({"a": lambda: rival("a"), "b": lambda: rival("b")}, 3, lambda line: None)
    assert calls == ["a", "b"] * 3
    assert found == {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]}
    assert spread(found["a"])["median"] == 3


def test_tables_line_up() -> None:
    assert table([["", "n"], ["long name", "1"], ["x", "1,000"]]).splitlines() == [
        "               n",
        "----------------",
        "long name      1",
        "x          1,000",
    ]


def test_a_set_in_a_store_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="s3://bucket/set: the rivals read local files alone"):
        throughput("s3://bucket/set", BenchOptions(), note=quiet)
