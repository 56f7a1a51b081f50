"""The tables of docs/gpu.md are made of the results that there are, and keep the reasons that a person wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import tables
from feeder.tools.bench.result_file import spread
from tests.support import ROOT

COMMIT = "0123456789" * 4


def result(**values: Any) -> dict[str, Any]:
    """A result of one machine."""
    versions = {"torch": "2.11.0", "dali": None}
    gpu = {"name": "NVIDIA X", "memory_gib": 80.0, "driver": "580.1", "torch_cuda": "13.0", "triton": {"version": "3"}}
    machine = {"processor": "a CPU", "cores": 16, "commit": COMMIT, "versions": versions}
    return {"machine": machine, "gpu": gpu, **values}


def row(*images_per_s: float, cores: float = 0.5, used: float | None = None) -> dict[str, Any]:
    found = {"images_per_s": spread(images_per_s), "cores_per_1000_images_per_s": spread([cores] * len(images_per_s))}
    return found if used is None else found | {"gpu_utilisation_percent": spread([used] * len(images_per_s))}


PLAIN = "plain DALI (whole images, up to 4 threads)"


def results() -> dict[str, dict[str, Any]]:
    """Results of which some goals are missed; medians of rates would give other ratios than rounds do."""
    kernel = {"kernel": "normalize nhwc to float16 nchw", "gb_per_s": 1000.0, "copy_gb_per_s": 2000.0}
    kernel |= {"seconds": spread([2.0, 2.0, 4.0]), "copy_seconds": spread([1.0, 1.6, 2.0])}
    rates = {"slot": spread([9.0, 30.0, 28.0]), "pinned": spread([10.0, 30.0, 20.0])}
    bucket = {"images": 9, "mean": 0.25, "percentile_999": 2.0, "max": 11}
    report = {"backend": "dali", "device": "cuda", "fidelity": "fast", "images": 10, "views_differing": 0}
    report |= {"buckets": [bucket, {**bucket, "images": 0, "max": 99}], "passed": True}
    feeds = {
        "feeder dali, seekable": row(100.0, 300.0, 200.0),
        "feeder cpu + kernel 1": row(250.0, 100.0, 100.0),
        PLAIN: row(100.0, 200.0, 100.0),
        "torch + Pillow": row(50.0, 60.0, 25.0),
    }
    trained = {"resident batch": row(100.0, 200.0), "feeder dali": row(99.0, 198.0, used=96.0), "other": row(9.0, 9.0)}
    images = {"samples": 60_000, "distinct": 2000, "mean_bytes": 110_400, "mean_pixels": 190_000}
    return {
        "gpu-kernels": result(normalize=[kernel], crop_resize=[], batch=256),
        "gpu-transfer": result(
            bandwidth={"gb_per_s": rates}, overlap={"hidden (0.95)": 0.97, "hidden_by_products": 0.9}
        ),
        "gpu-feed-4": result(
            rows=feeds,
            workers=4,
            images=images,
            processes_and_dali_threads={PLAIN: "0 + 4"},
            errors={"feeder dali, keep": "x", "plain DALI, Settings(load=0)": "x"},
        ),
        "gpu-cuda": result(
            rows={
                "feeder cuda, seekable": row(60_000.0, cores=0.05),
                PLAIN: row(12_000.0),
                "feeder cuda, packed": row(9.0),
            },
            workers=16,
        ),
        "gpu-train": result(rows=trained, workers=8),
        "parity-seekable-fast": result(**report),
        "tests-cuda": result(passed=9, failed=1, skipped=2, names_of_failed=["tests.t::test_x"]),
    }


def test_goals_are_the_medians_of_the_rounds_ratios() -> None:
    found = {goal.name: goal for goal in tables.goals(results())}
    medians = {name: (goal.median, goal.is_reached) for name, goal in found.items()}
    assert medians == {
        "kernel 1, of a copy's bandwidth, slowest form (nhwc to float16 nchw)": (0.5, False),
        "copy from a slot, of one from torch's pinned memory": (1.0, True),
        "copies' time that kernels hide": (0.97, True),
        f"4 workers: feeder dali, seekable / {PLAIN}": (1.5, True),
        # Of the loader that is the best in the median, though another was the best in the first round.
        "4 workers: feeder dali, seekable / torch + Pillow": (5.0, True),
        "feeder's decoder: seekable, images/s": (60_000.0, True),
        "feeder's decoder: seekable / plain DALI": (5.0, True),
        "feeder's decoder: seekable, CPU us an image": (50.0, True),
        "feeder's decoder: packed, CPU us an image": (500.0, False),
        "feeder's decoder: packed / seekable": (0.00015, False),
        "ResNet-50: feeder dali, of a resident batch": (0.99, True),
        "ResNet-50: feeder dali, GPU utilisation in percent": (96.0, False),
    }
    assert found[f"4 workers: feeder dali, seekable / {PLAIN}"].values == (1.0, 1.5, 2.0)


def test_a_loader_that_failed_in_a_later_round_has_the_rounds_before() -> None:
    given = {"gpu-feed-4": results()["gpu-feed-4"]}
    given["gpu-feed-4"]["rows"]["torch + Pillow"] = row(50.0)
    found = {goal.name: goal.values for goal in tables.goals(given)}
    assert found["4 workers: feeder dali, seekable / torch + Pillow"] == (2.0,)
    assert len(found[f"4 workers: feeder dali, seekable / {PLAIN}"]) == 3


def test_tables_have_the_rows_that_there_are_and_name_the_others() -> None:
    text = tables.markdown(results())
    for line in (
        "| nhwc to float16 nchw | 1,000 | 2,000 | 0.500 | 0.500 to 0.800 |",
        f"| {PLAIN} | 0 + 4 | 100.0 | 100.0 to 200.0 | 0.50 |",
        "| feeder dali | 148 | 0.990 | 0.990 to 0.990 | 96.0 % | 0.50 |",
        "| feeder cuda, seekable | 60,000 |  | 50 |",
        "| share of the copies' time that kernels hide | 0.970 |  |",
        "| seekable-fast | dali | cuda | fast | 10 | 0.250 | 2 | 11 | 0 | yes |",
        "| cuda | 9 | 1 | 2 |",
        "Failed: `tests.t::test_x`.",
        "Failed, and so not measured: feeder dali, keep.",
    ):
        assert f"\n{line}\n" in f"{text}\n", line
    assert tables.markdown({}) == ""
    assert "###" not in tables.markdown({"gpu-lessons": result()})


def write_documents(root: Path, reasons: str = "") -> None:
    (root / "docs").mkdir(exist_ok=True)
    marks = {name: f"<!-- {name}: python -m bench.gpu.tables -->\n" for name in tables.MARKS}
    readme = marks.pop("sentence")
    inner = {"reasons": reasons}
    blocks = (f"{mark}{inner.get(name, 'old')}\n<!-- end -->\n" for name, mark in marks.items())
    (root / "docs/gpu.md").write_text("kept\n" + "between\n".join(blocks))
    (root / "README.md").write_text(f"{readme}old\n<!-- end -->\nkept\n")


def test_documents_are_filled_between_their_marks_and_keep_reasons(tmp_path: Path) -> None:
    name = "ResNet-50: feeder dali, GPU utilisation in percent"
    write_documents(tmp_path, f"- **{name}**: It waits\n  for disks.\n- **a goal of old**: It was missed once.")
    found = tables.documents(results(), tmp_path)
    gpu, readme = found[tmp_path / "docs/gpu.md"], found[tmp_path / "README.md"]
    assert gpu.startswith("kept\n")
    assert gpu.count("between\n") == 2
    assert "old" not in gpu + readme
    assert gpu.count(tables.NO_REASON) == 3
    assert f"\n- **{name}**: It waits\n  for disks.\n" in gpu
    assert "| ResNet-50: feeder dali, of a resident batch | at least 0.98 | 0.990 | 0.990 to 0.990 | yes |" in gpu
    assert "2,000 different JPEGs of 110 KB and 0.19 megapixels on average, 60,000 samples" in gpu
    assert gpu.count("NVIDIA X (80.0 GiB, driver 580.1), 16 cores of a CPU; torch 2.11.0") == 1
    sentence = " ".join(readme.split())
    assert "On an NVIDIA X, ResNet-50 on batches of feeder reaches 0.990 of its speed without a loader. W" in sentence
    assert "feeder loads 5.0 times as many images as torch's `DataLoader` with Pillow. feeder's" in sentence
    assert "own decoder makes 5.0 times as many images as plain DALI ([GPU](docs/gpu.md#measured))." in sentence
    for path, text in found.items():
        path.write_text(text)
    assert tables.documents(results(), tmp_path) == found
    assert tables.NOTHING in tables.documents({}, tmp_path)[tmp_path / "docs/gpu.md"]


def test_two_machines_are_named_each_with_its_results() -> None:
    given = results()
    given["gpu-train"]["gpu"]["name"] = "NVIDIA Y"
    text = tables.documents(given)[ROOT / "docs/gpu.md"]
    assert "NVIDIA Y (80.0 GiB" in text
    assert f"commit {COMMIT[:12]}: gpu-train.\n" in text


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("gpu", "name"), None, "gpu-train: does not name the GPU"),
        (("gpu", "driver"), None, "gpu-train: does not name its driver"),
        (("machine", "versions"), {}, "gpu-train: does not name torch"),
        (("machine", "commit"), None, "gpu-train: is of commit None"),
        (("machine", "commit"), COMMIT + "+changes", f"gpu-train: is of commit {COMMIT}"),
        (("machine", "commit"), COMMIT[::-1], "several commits"),
    ],
)
def test_results_that_are_not_of_one_known_state_are_not_taken(
    path: tuple[str, str], value: Any, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = results()
    assert tables.faults(given) == []
    given["gpu-train"][path[0]][path[1]] = value
    assert tables.faults(given)[0].startswith(fault)
    before = (ROOT / "docs/gpu.md").read_text()
    monkeypatch.setattr(tables, "read", lambda: given)
    assert tables.main() == 1
    assert fault in capsys.readouterr().out
    assert (ROOT / "docs/gpu.md").read_text() == before


def test_results_without_a_gpu_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "gpu-a.json").write_text(json.dumps(result(x=1)))
    (tmp_path / "gpu-b.json").write_text(json.dumps({"skipped": "no CUDA device"}))
    assert list(tables.read(tmp_path)) == ["gpu-a"]
