"""The build files agree with each other: what is required, pinned, documented and called."""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import feeder
from bench import decode, decode_builds, ladder, pages, recipes, service_plan, standin, tasks
from bench.gpu import tables as gpu_tables
from bench.make_images import make_images
from bench.switch_rival import FOLDER
from feeder import transforms as T
from feeder.shard.store.store import TIMEOUT_S
from feeder.tools.bench import show
from feeder.tools.cli import main, make_parser
from scripts import draw_chart
from tests.support import ROOT
from tests.support.documents import block
from tests.support.requirements import normalized, pins, pyproject


def required() -> set[str]:
    """Every distribution that the tested environment asks for by name."""
    extras = pyproject()["project"]["optional-dependencies"]
    lines = [*pyproject()["project"]["dependencies"], *pyproject()["build-system"]["requires"]]
    for extra in ("dev", "dev-gil", "dali-cuda13", "parquet"):
        lines += extras[extra]
    return {normalized(re.match(r"[A-Za-z0-9._-]+", line)[0]) for line in lines}  # type: ignore[index]


def test_all_that_is_required_is_pinned() -> None:
    assert required() - pins().keys() == set()


def test_pillow_and_pillow_simd_are_of_one_version() -> None:
    pinned = pins()
    assert {re.sub(r"\.post\d+$", "", v) for v in pinned["pillow-simd"]} == pinned["pillow"]


def test_every_make_command_of_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in (*documents(), ROOT / ".ci/run"):
        called = set(re.findall(r"(?:^\s*|`)make ([a-z-]+)", path.read_text(), re.MULTILINE))
        assert called <= targets, path


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_between_the_documents_leads_somewhere() -> None:
    for path in documents():
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            if re.match(r"https?://", target):
                continue
            file, _, anchor = target.partition("#")
            to = path.parent / file if file else path
            assert to.exists(), f"{path.relative_to(ROOT)}: {target}"
            assert not anchor or anchor in anchors(to.read_text()), f"{path.relative_to(ROOT)}: {target}"


@pytest.mark.parametrize(
    "script", [".ci/run", *sorted(f"scripts/{path.name}" for path in (ROOT / "scripts").glob("*.sh"))]
)
def test_scripts_can_be_run(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111, "not executable"
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def test_system_check_names_a_python_that_is_too_old(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    tools = tmp_path / "bin"  # a system where nothing can be installed
    tools.mkdir()
    done = subprocess.run(
        ["bash", ROOT / "scripts/system.sh", old],
        env={"PATH": f"{tools}:/usr/bin:/bin", "FEEDER_NO_INSTALL": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"PYTHON={old} is not" in done.stderr
    assert "sudo apt-get install python3" in done.stderr


def test_files_are_compiled_through_ccache_where_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    ccache = tmp_path / "bin/ccache"
    ccache.write_text('#!/bin/sh\nexec "$@"\n')
    ccache.chmod(0o755)
    path = os.pathsep.join([str(ccache.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    for name, further, is_called in (("plain", [], True), ("own", ["-DCMAKE_CXX_COMPILER_LAUNCHER=env"], False)):
        options = ["-DFEEDER_PYTHON=OFF", "-DFEEDER_CUDA=OFF", *further]
        subprocess.run(
            ["cmake", "-S", ROOT, "-B", tmp_path / name, "-G", "Ninja", *options],
            env={**os.environ, "PATH": path},
            capture_output=True,
            check=True,
        )
        assert (str(ccache) in (tmp_path / name / "build.ninja").read_text()) == is_called


def test_version_is_the_same_everywhere() -> None:
    import feeder

    assert feeder.__version__ == pyproject()["project"]["version"]
    assert feeder.__version__ == yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]


def test_the_issue_template_asks_for_the_version_report() -> None:
    fields = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text())["body"]
    (asked,) = [each for each in fields if "`feeder --version -v`" in each["attributes"]["label"]]
    assert asked["validations"]["required"]
    assert make_parser().parse_args(["--version", "-v"]).verbose


def test_pictures_of_pages_are_small_shown_and_come_in_light_and_dark() -> None:
    pictures = {path.name: path for path in (ROOT / "docs/images").glob("*.jpg")}
    assert {name for name in pictures if name.removesuffix(".jpg") + "-dark.jpg" not in pictures} == {
        name for name in pictures if name.endswith("-dark.jpg")
    }
    text = "".join(path.read_text() for path in documents())
    assert [
        name for name, path in pictures.items() if f"images/{name})" not in text or path.stat().st_size > 150_000
    ] == []


def test_the_training_example_of_the_readme_runs(tmp_path: Path) -> None:
    make_images(tmp_path / "images", count=6, classes=3)
    assert main(["shard", str(tmp_path / "images"), "-q"]) == 0
    code = block("README.md", "optimizer.zero_grad()")
    shorter = {"range(90)": "range(2)", 'num_workers="auto"': "num_workers=1", "batch_size=256": "batch_size=4"}
    for long, short in shorter.items():
        assert long in code
        code = code.replace(long, short)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code + "\nprint(images.shape, images.dtype, labels.dtype)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *epochs, kinds = done.stdout.splitlines()
    assert [line.partition(" loss ")[0] for line in epochs] == ["epoch 0:", "epoch 1:"]
    assert kinds == "torch.Size([2, 3, 224, 224]) torch.float32 torch.int64"


def test_system_check_prints_the_python_to_use() -> None:
    done = subprocess.run(
        ["bash", ROOT / "scripts/system.sh", sys.executable],
        env={"PATH": os.environ["PATH"], "FEEDER_NO_INSTALL": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{sys.executable}\n"), done.stderr


def committed(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "bench/results" / f"{name}.json").read_text())


def performance() -> str:
    return (ROOT / "docs/performance.md").read_text()


def test_the_documented_ladder_is_the_committed_one() -> None:
    assert ladder.render(committed("ladder"), markdown=True) in performance()


def test_the_documented_bench_session_is_the_committed_one() -> None:
    assert f"\n{show.render(committed('throughput'))}\n" in performance()


def test_the_chart_and_the_cores_of_the_readme_are_of_the_committed_result() -> None:
    found = committed("decode")
    assert draw_chart.TO.read_text() == draw_chart.chart(found), "run python scripts/draw_chart.py"
    rates = {name: spread["median"] for name, spread in found["images_per_cpu_s"].items()}
    text = (ROOT / "README.md").read_text()
    taken = standin.RATES["amp"]
    assert f"An A100 takes {taken:,.0f} images a second" in text
    for name, label in draw_chart.ROWS.items():
        label = label if name.startswith("feeder") else "torch `DataLoader` with Pillow, or DALI on the CPU"
        assert f"| {label} | {taken / rates[name]:.1f} |" in text


def test_the_documented_decode_table_is_the_committed_one() -> None:
    found = committed("decode")
    rates = {name: spread["median"] for name, spread in found["images_per_cpu_s"].items()}

    def times(name: str, rival: str, result: dict[str, Any] = found) -> str:
        turns = (result["images_per_cpu_s"][each]["all"] for each in (name, rival))
        return f"{statistics.median(a / b for a, b in zip(*turns, strict=True)):.1f}"

    cells = {
        "feeder, packed shards, uint8": "feeder-packed-uint8",
        "feeder, packed shards (`--encode packed`)": "feeder-packed",
        "feeder, seekable shards": "feeder-seekable",
        "feeder, ordinary JPEGs (`--encode keep`)": "feeder-keep",
        "DALI 2.4, CPU, ordinary JPEGs": "dali",
        "torch DataLoader with Pillow": "torch",
    }
    lines = performance().splitlines()
    for label, name in cells.items():
        rate, beside_torch, beside_dali = next(
            [cell.strip() for cell in line.split("|")[2:5]] for line in lines if line.startswith(f"| {label} |")
        )
        assert rate == f"{rates[name]:,.0f}"
        for shown, rival in ((beside_torch, "torch"), (beside_dali, "dali")):
            if shown and shown != "1":
                assert shown == f"{times(name, rival)}x"
    speed = " ".join((ROOT / "README.md").read_text().split())
    assert f"{times('feeder-seekable', 'torch')} times as fast as torch's `DataLoader` with Pillow" in speed
    assert f"{times('feeder-seekable', 'dali')} times as fast as DALI on the CPU" in speed
    packed = f"{times('feeder-packed', 'torch')} and {times('feeder-packed', 'dali')} times as fast"
    assert f"Packed shards are {packed}" in speed
    assert f"of an {found['machine']['processor'].split()[0]} {found['machine']['cpu']['microarchitecture']}:" in speed
    sharding = " ".join((ROOT / "docs/sharding.md").read_text().split())
    assert f"which workers make at {rates['cut-packed']:,.0f} images/s a core" in sharding
    older = committed("decode_zen4")
    packed, uint8, seekable = (
        times(f"feeder-{name}", "dali", older) for name in ("packed", "packed-uint8", "seekable")
    )
    text = " ".join(performance().split())
    assert f"packed shards were {packed}x as fast as DALI, with uint8 {uint8}x, and seekable ones {seekable}x" in text


def test_the_committed_decoding_reaches_its_targets() -> None:
    """A new measurement on a quiet machine must show this before it may take the old one's place."""
    found = committed("decode")
    assert found["absent"] == []
    targets = {(name, rival): least for name, rival, least in decode.TARGETS}
    ratios = {(each["name"], each["rival"]): each["ratio"] for each in found["ratios"]}
    assert {names: ratio for names, ratio in ratios.items() if ratio < targets[names]} == {}
    assert ratios.keys() == targets.keys()
    for what, most in decode.MOST_BYTES.items():
        tars = found["tar_bytes"][what]
        assert tars["packed"] <= most * tars["seekable"], what


def test_the_documented_rivals_over_a_store_are_the_committed_ones() -> None:
    found = committed("remote_rivals")["rivals"]
    text = (ROOT / "docs/remote.md").read_text()
    labels = {"feeder": "feeder", "MosaicML Streaming": "streaming", "LitData": "litdata", "webdataset": "webdataset"}
    for label, name in labels.items():
        first, second = (found[name]["images_per_s"][epoch]["median"] for epoch in ("first", "second"))
        assert f"\n| {label} | {first:.0f} | {second:.0f} | " in text


def test_the_documented_tasks_are_the_committed_ones() -> None:
    """The table and, below it, the bytes of the shards; and what the text on webdataset says."""
    found = committed("tasks")
    assert f"\n{tasks.markdown(found)}\n" in performance()
    one, two = (
        {rival: ratio["median"] for rival, ratio in found["webdataset"][cores]["ratio"].items()}
        for cores in ("cores_1", "cores_2")
    )
    text = " ".join((ROOT / "docs/frameworks.md").read_text().split())
    said = "come {:.1f} times as fast as samples that are decoded and collated one by one, and {:.1f} times as fast as"
    assert f"On one core these {said.format(one['feeder, one by one'], one['Pillow'])} with Pillow" in text
    said = "On two cores with two workers it is {:.1f} times and {:.1f} times:"
    assert said.format(two["feeder, one by one"], two["Pillow"]) in text


def test_the_committed_tasks_reach_their_goals() -> None:
    """Without packed shards, beside each rival with a goal, on one core and two."""
    found = committed("tasks")
    for name, task in tasks.TASKS.items():
        for cores in ("cores_1", "cores_2"):
            if (name, cores) != ("webdataset", "cores_2"):  # which has a goal on one core alone
                ratios = {rival: found[name][cores]["ratio"][rival]["median"] for rival in task.goals}
                short = {rival: ratio for rival, ratio in ratios.items() if ratio < task.goals[rival]}
                assert not short, f"{name}, {cores}: expected {task.goals}, got {short}"


def test_kernels_readme_has_the_committed_tables() -> None:
    text = (ROOT / "kernels/README.md").read_text()
    for script in (decode, decode_builds):
        name = script.__name__.rpartition(".")[2]
        assert f"\n{script.markdown(committed(name))}\n" in text, f"kernels/README.md: another table than {name}.json's"


def test_the_documented_gain_of_wide_decoding_is_the_committed_one() -> None:
    found, where = committed("decode_wide"), "avx512, seekable"
    text = " ".join((ROOT / "kernels/README.md").read_text().split())
    before, after = (found["stages_us"][where][name]["entropy"] for name in ("before", "after"))
    assert f"Huffman decoding took {after:.0f} us an image instead of {before:.0f} so" in text
    before, after = (found["us_per_image"][where][name]["min"] for name in ("before", "after"))
    assert f"the whole decode {after:.0f} instead of {before:.0f}" in text
    assert found["times_as_fast"][where]["median"] > 1


def test_the_committed_loading_result_is_what_the_loader_promises() -> None:
    """A new measurement on a quiet machine must show this before it may take the old one's place."""
    found = committed("loader")
    assert found["generic"]["speed_ratio"] >= 1.3
    assert found["generic"]["cpu_ratio"] <= 1.0
    assert found["decode"]["ratio"]["median"] >= 0.95
    assert found["outside"]["outside_decode"]["median"] <= 0.05
    trainer = found["trainer"]
    assert trainer["cpu_ms_per_batch_of_256"]["median"] + trainer["order_ms_per_batch_of_256"]["median"] <= 1.0
    runner = found["runner"]
    for size, figures in runner["us_an_image"].items():
        assert figures["above_decoding_and_preadv"]["median"] <= runner["goals"][size] <= {"64": 6, "4": 10}[size], size
    for way, order in committed("loader_order")["order"].items():
        assert order["us_per_sample"]["median"] <= 1.0, way
    assert committed("loader_order")["order"]["lanes_unequal_shards"]["tables_mib"] < 14
    for name, first in found["first"].items():  # by as little as the starts of two processes differ
        assert first["ratio"]["median"] <= 1.05, name
    soak = found["soak"]
    assert soak["exact"] == soak["epochs"] == soak["killed"] == 200
    start, end = soak["marks"]
    assert end["anonymous_kib"] <= start["anonymous_kib"] + 1024
    assert end["descriptors"] <= start["descriptors"]


def test_the_committed_simulation_of_many_cores_is_what_the_documents_say() -> None:
    found = committed("many_cores")
    parts = found["us_per_further_part"]["median"]
    shares = found["ranks"]["share_of_a_core"]
    assert shares["max"] <= found["goals"]["share_of_a_core"] <= 0.25
    assert parts <= found["goals"]["us_per_further_part"] <= 30
    assert found["growth_of_a_part"]["median"] <= found["goals"]["growth_of_a_part"]
    text = " ".join((ROOT / "docs/loading.md").read_text().split())
    assert f"it is {100 * shares['median']:.0f} % of a core" in text
    assert f"each further part of a batch costs {parts:.0f} us" in text


def test_the_documented_figures_of_fuzzing_and_of_the_difference_to_pillow_are_the_committed_ones() -> None:
    text = " ".join((ROOT / "kernels/README.md").read_text().split())
    found = committed("fuzz_packed")
    assert f"gave fuzz_packed {found['executions']:,} inputs without a finding" in text
    assert found["findings"] == 0
    assert f"differ by {committed('decode')['mean_levels_from_pillow']:.2f} levels on average" in text


@pytest.mark.parametrize("name", ["decode_wheel", "decode_abi"])
def test_a_committed_comparison_of_builds_costs_at_most_three_percent(name: str) -> None:
    ratios = {where: ratio["median"] for where, ratio in committed(name)["times_as_fast"].items()}
    assert not {where for where, ratio in ratios.items() if ratio < 0.97}
    if name == "decode_wheel":
        text = " ".join((ROOT / "docs/operations.md").read_text().split())
        levels = (("avx2", "avx512"), ("portable",))
        worst = (min(ratio for where, ratio in ratios.items() if where.startswith(names)) for names in levels)
        least = (math.floor(100 * ratio) / 100 for ratio in worst)
        assert "at least {:.2f} times as fast with AVX2 or AVX-512, and {:.2f} times without".format(*least) in text


def test_the_committed_way_to_a_trained_epoch_takes_less_than_three_minutes() -> None:
    found = committed("bare")
    seconds, download = found["seconds"]["all"], found["download"]
    assert seconds + download["seconds"] < 180
    assert re.fullmatch("[0-9a-f]{40}", found["machine"]["commit"])
    text = " ".join((ROOT / "docs/operations.md").read_text().split())
    assert f"`build/bare/times.json`: {seconds:.0f} in the" in text
    assert f"and {download['seconds']:.0f} for the download of {download['mib']:.0f} MiB" in text


def test_the_committed_first_page_of_a_million_samples_takes_less_than_half_a_second() -> None:
    seconds = committed("browse")["seconds"]["1000000"]
    assert seconds["first page"]["max"] < 0.5
    filters = [figure["max"] for name, figure in seconds.items() if name.startswith(("samples of a", "search for"))]
    assert len(filters) == 4
    assert max(filters) < 0.3


def test_the_committed_tars_on_the_hub_cost_at_most_a_twentieth_more_than_on_a_web_server() -> None:
    found = committed("hub")
    assert len(found["ratio"]["all"]) == 9
    assert found["ratio"]["median"] <= found["goals"]["ratio"]


def test_the_tables_of_recipes_are_those_of_the_committed_result() -> None:
    found = committed("recipes")
    texts = {path: path.read_text() for path in pages.documents()}
    assert texts == pages.documents(), "run python -m bench.pages"
    for name in pages.TABLES:
        assert sum(text.count(f"<!-- {name}: python -m bench.pages -->\n") for text in texts.values()) == 1, name
    assert recipes.markdown(found) in texts[ROOT / "docs/performance.md"]
    assert recipes.overview(found) in texts[ROOT / "README.md"]
    assert found.keys() >= recipes.RECIPES.keys()

    times: dict[str, list[float]] = {name: [] for name in recipes.OURS}
    for recipe in ("nothing", "jitter", "randaugment", "trivialaugment", "autoaugment", "simclr"):
        rates = {name: rate["median"] for name, rate in found[recipe]["images_per_cpu_s"].items()}
        best = max(rate for name, rate in rates.items() if name.startswith("torchvision"))
        for name, ratios in times.items():
            ratios.append(rates[name] / best)
    least = [math.floor(10 * min(ratios)) / 10 for ratios in times.values()]
    said = re.findall(r"\d+\.\d", str(feeder.explain([T.RandomResizedCrop(224)])))
    assert [float(number) for number in said] == least


def test_the_committed_bytes_from_a_store_are_those_that_were_not_kept() -> None:
    found = {name: share["median"] for name, share in committed("remote_bytes")["bytes"]["share_of_the_set"].items()}
    most = committed("remote_bytes")["bytes"]["goals"]["share_of_the_set"]
    assert most <= 1.02
    assert max(found["first epoch, all cached"], found["two ranks of a host"]) <= most
    assert found["second epoch, all cached"] == 0
    assert found["one of two ranks"] <= most / 2
    for name in ("a cache of half the set", "half the set kept"):
        assert found[f"second epoch, {name}"] <= most * (1 - found[f"kept by {name}"]), name
    text = " ".join((ROOT / "docs/remote.md").read_text().split())
    assert f"| first epoch of one of two ranks, each on a host of its own | {found['one of two ranks']:.2f} |" in text
    assert f"| second epoch, half of the set kept | {found['second epoch, half the set kept']:.2f} |" in text
    name = "a cache of half the set"
    assert f"which keeps {found[f'kept by {name}']:.2f} beside" in text
    assert f"the order reads from | {found[f'second epoch, {name}']:.2f} |" in text


def test_the_committed_costs_of_a_store_are_those_that_the_documents_state() -> None:
    found, text = committed("remote"), " ".join((ROOT / "docs/remote.md").read_text().split())
    first = found["first-epoch"]
    ratios = [first["ratio"][way]["median"] for way in ("http", "tls")]
    above = [first["cpu_ms_above_local"][way]["median"] for way in ("http", "tls")]
    assert min(ratios) >= 0.95
    assert above[0] <= first["goals"]["cpu_ms_above_local"] <= 0.15
    assert "relative to the local disk | {:.2f} | {:.2f} |".format(*ratios) in text
    assert "above the local disk's, ms an image | {:.2f} | {:.2f} |".format(*above) in text
    assert sum(found["faults"]["faults"].values()) >= 10
    assert found["faults"]["ratio"]["median"] <= 1.1
    assert f"an epoch took {found['faults']['ratio']['median']:.2f} times as long" in text
    seconds = found["resume"]["seconds"]
    assert found["resume"]["ratio"]["median"] <= 1
    later = seconds["first batch"]["median"] - seconds["first batch, local"]["median"]
    ratio = found["resume"]["ratio"]["median"]
    assert f"first batch {later:.2f} s later than from the local disk (medians)." in text
    assert f"that is {ratio:.2f} of the time in which two ranges of 8 MiB come" in text
    names = {"streaming": "MosaicML Streaming", "litdata": "LitData"}
    for name, speeds in committed("remote_rivals")["rivals"].items():
        figures = " | ".join(f"{speeds['images_per_s'][epoch]['median']:.0f}" for epoch in ("first", "second"))
        assert f"| {names.get(name, name)} | {figures} |" in text


def test_the_committed_campaign_against_a_failing_store_gave_no_wrong_byte() -> None:
    found = committed("remote_faults")
    assert found["wrong"] == 0
    assert len(found["seconds"]["all"]) >= 10
    assert set(found["faults"]) == {"stall", "drop", "503", "reset", "cut", "flip"}
    assert min(found["faults"].values()) >= 0.04 * found["requests"]
    ways = found["outage"]["ways"]
    assert not any(way["wrong"] or way["replaced_workers"] for way in ways.values())
    assert len(ways) == 4
    assert TIMEOUT_S == 600
    assert "for up to `timeout` seconds (600) without an answer" in " ".join(
        (ROOT / "docs/remote.md").read_text().split()
    )
    assert found["outage"]["length_s"] >= 120
    text = " ".join((ROOT / "docs/remote.md").read_text().split())
    assert f"all {found['batches']} batches were those of the local copy" in text


def test_the_committed_suite_result_has_a_reason_for_each_test_that_fails() -> None:
    found = committed("torch_tests")
    assert found["passed"] >= 266
    assert found["failed"] == len(found["exceptions"]) <= 3
    assert all(each["test"] and each["reason"] for each in found["exceptions"])
    assert found["older_torch"]["failed"] == 0


def test_other_pythons_have_a_committed_run_with_a_reason_for_each_test_that_failed() -> None:
    runs = committed("pythons")["runs"]
    assert {(each["python"].rpartition(".")[0], each["free_threaded"]) for each in runs} >= {
        ("3.14", False),
        ("3.14", True),
    }
    for each in runs:
        assert re.fullmatch("[0-9a-f]{40}", each["commit"])
        assert each["passed"] > 7000
        assert each["failed"] == len(each["exceptions"]) <= 3
        assert all(found["test"] and found["reason"] for found in each["exceptions"])
        assert not each["exceptions"] or each["again"]["failed"] == 0
    slow = committed("pythons")["slow"]
    assert re.fullmatch("[0-9a-f]{40}", slow["commit"])
    assert (slow["free_threaded"], slow["failed"]) == (True, 0)
    assert slow["passed"] > 100


def test_images_with_a_label_are_no_slower_than_before_all_other_tasks() -> None:
    """In turns beside a checkout of before."""
    found = committed("revisions")["ratios"]
    faster = [
        "decode/images_per_s/loader",
        *(f"images_per_cpu_s/feeder-{kind}" for kind in ("seekable", "keep", "raw")),
    ]
    for name in faster:
        assert len(found[name]["all"]) >= 5
        assert found[name]["median"] >= 0.98, name
    assert found["trainer/cpu_ms_per_batch_of_256"]["median"] <= 1.02


def test_wheels_have_a_committed_run_on_other_pythons() -> None:
    wheels = committed("pythons")["wheels"]
    assert re.fullmatch("[0-9a-f]{40}", wheels["commit"])
    tried = {each["python"].rpartition(".")[0] + "t" * each["free_threaded"]: each for each in wheels["runs"]}
    assert set(tried) == {"3.10", "3.12", "3.13", "3.14", "3.14t"}
    for each in tried.values():
        assert each["passed"] > 1000
        assert each["failed"] == 0


def test_the_documented_plan_of_a_cluster_is_that_of_the_committed_result() -> None:
    text = (ROOT / "docs/cluster.md").read_text()
    assert f"\n{service_plan.markdown(committed('service'))}\n" in text


def test_the_committed_cost_of_ranges_is_the_documented_part_of_obstores() -> None:
    found = {way: ratio["median"] for way, ratio in committed("remote_ranges")["ranges"]["ratio"].items()}
    assert max(found.values()) < 0.75
    text = " ".join((ROOT / "docs/remote.md").read_text().split())
    http, tls = (f"{found[way]:.2f}" for way in ("http", "tls"))
    assert f"takes {http} of the CPU time of requests by obstore alone, over TLS {tls} of it" in text


def test_the_committed_cost_of_folders_in_a_bucket_is_the_documented_one() -> None:
    found, text = committed("remote_raw")["raw"], (ROOT / "docs/remote.md").read_text()
    for workers in (1, 2, 4, 8):
        kinds = {kind: found[f"{kind}, {workers} workers"] for kind in ("bytes", "decoded")}
        assert kinds["bytes"]["ratio"]["min"] >= 1.5
        cost = [kinds[kind]["cpu_ms_per_image"][name]["median"] for kind in kinds for name in ("feeder", "litdata")]
        assert f"\n| {workers} | {' | '.join(f'{each:.2f}' for each in cost)} |\n" in text
    busy = max(each["store_cores"]["max"] for name, each in found.items() if name != "goals")
    assert f"busy on at most {busy:.1f} of two cores" in " ".join(text.split())


def test_a_set_of_ten_billion_samples_opened_as_fast_as_the_documents_say() -> None:
    found = committed("remote_open")["open"]
    assert found["samples"] == 10**10
    assert found["seconds"]["local"]["max"] < 0.01
    assert max(memory["max"] for memory in found["memory_mib"].values()) < 64
    seconds, memory = (found[what]["store"]["median"] for what in ("seconds", "memory_mib"))
    assert f"opens in {seconds:.2f} s and {memory:.1f} MiB of memory" in (ROOT / "docs/remote.md").read_text()


def test_the_committed_index_of_real_photos_takes_at_most_70_bytes_a_sample() -> None:
    found = committed("size")
    assert found["index_samples"] >= 2000
    assert found["index_bytes_a_sample"] + found["index_fixed_bytes"] / found["index_samples"] <= 70


def test_the_committed_campaigns_of_faults_lost_nothing() -> None:
    found = committed("service_campaign")
    worst = {kind: pauses["worst"] for kind, pauses in found["longest_pause_s"].items()}
    head = worst.pop("head killed")
    assert max(head, *worst.values()) < 2
    assert found["options"]["head_seconds"] >= 180
    assert found["fuzz_messages"] >= 1_000_000
    text = " ".join((ROOT / "docs/cluster.md").read_text().split())
    assert f"was {head:.1f} s, after the end of the head, and {max(worst.values()):.1f} s after the loss" in text
    cluster = committed("cluster")
    assert cluster["kills"]["nodes_killed"] >= 50
    assert cluster["kills"]["shards"] >= 40
    ratio = cluster["efficiency"]["ratio"]["median"]
    assert ratio >= 0.9
    assert f"wrote {cluster['efficiency']['bytes'] / 1e9:.0f} GB of photos at {ratio:.2f} times the speed" in text


def test_the_committed_service_costs_what_the_documents_say() -> None:
    found = committed("service")
    near, far = found["same_host"]["service_of_local"]["median"], found["service_of_local"]["median"]
    hosts = found["same_host"]["host_cpu_ms"]["median"], found["host_cpu_ms"]["median"]
    trials = [found["share_of_a_further_trial"][way]["median"] for way in ("same host", "over TCP")]
    assert near >= 0.9
    rates = {name: speed["median"] for name, speed in found["images_per_s"].items()}
    assert rates["the same host"] > max(rates["Ray's object store"], rates["Ray Data"])
    assert max(hosts) <= 0.06
    assert max(trials) <= 0.1
    text = " ".join((ROOT / "docs/cluster.md").read_text().split())
    assert f"gave {near:.2f} of what two local workers gave on them, {far:.2f} if the pixels went over TCP" in text
    assert "a trainer's host paid {:.2f} and {:.2f} ms an image".format(*hosts) in text
    shown = (100 * trial for trial in (*trials, found["share_of_a_further_trial"]["late"]["median"]))
    cost = "cost {:.0f} % of the first one's CPU time on one host, {:.0f} % over TCP, and {:.0f} % where trials of some"
    assert cost.format(*shown) in text


def test_the_committed_gpu_results_are_of_one_clean_commit_and_name_their_gpu() -> None:
    results = gpu_tables.read()
    assert {path.stem for path in gpu_tables.RESULTS.rglob("*") if path.is_file()} == results.keys()
    assert gpu_tables.faults(results) == []


def test_the_readme_says_where_plain_dali_is_ahead_on_a_gpu() -> None:
    found = {each.name: each.median for each in gpu_tables.goals(gpu_tables.read()) if each.median is not None}
    behind = [ratio for name, ratio in found.items() if "feeder dali" in name and "plain DALI" in name and ratio < 1]
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"which makes {min(behind):.2f} to {max(behind):.2f} times as many images" in text


def test_the_readme_says_how_many_more_images_six_scripts_load() -> None:
    found = [
        each[FOLDER]["ratio"]["median"]
        for each in committed("switch").values()
        if isinstance(each, dict) and FOLDER in each
    ]
    assert len(found) == 6
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"six of these scripts load {min(found):.1f} to {max(found):.1f} times as many images" in text


def test_the_documented_gpu_results_are_the_committed_ones() -> None:
    """python -m bench.gpu.tables writes them; a missed goal's reason is written by hand."""
    found = gpu_tables.documents(gpu_tables.read())
    text = "".join(path.read_text() for path in found)
    assert [text.count(f"<!-- {mark}: python -m bench.gpu.tables -->") for mark in gpu_tables.MARKS] == [1, 1, 1, 1]
    for path, expected in found.items():
        assert path.read_text() == expected, f"{path.name}: run python -m bench.gpu.tables"
    assert gpu_tables.NO_REASON not in text
