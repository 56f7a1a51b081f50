"""Two results side by side: what changed beyond noise, and what can't be compared."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import ArgumentError
from feeder.tools.bench.compare import compare, load
from feeder.tools.bench.result_file import spread
from feeder.tools.cli import main


def result(scale: Callable[[str], float] = lambda name: 1.0, *, seed: int = 0, repeats: int = 5) -> dict[str, Any]:
    """A result whose rates have a spread of 3 % or so, times a factor by rival."""
    chance = random.Random(seed)

    def values(middle: float) -> dict[str, Any]:
        return spread([middle * chance.uniform(0.97, 1.03) for _ in range(repeats)])

    rates = {"feeder": 1200.0, "torch+pillow": 300.0, "DALI (CPU)": 500.0}
    return {
        "benchmark": "throughput",
        "machine": {"processor": "X", "cores": 2, "versions": {"torch": "2", "pillow": "13", "dali": "2.4"}},
        "options": {"batch_size": 64},
        "images_per_s": {name: {"2": values(rate * scale(name))} for name, rate in rates.items()},
        "cpu_ms_per_image": {"feeder": {"2": values(0.8 / scale("feeder"))}},
        "pss_mib": {"feeder": {"2": values(400)}},
    }


def verdicts(a: dict[str, Any], b: dict[str, Any]) -> dict[str, str]:
    return {change.name: change.verdict for change in compare(a, b).changes}


def test_a_gain_beyond_noise_is_faster_and_the_way_back_slower():
    quicker = result(lambda name: 1.3 if name == "feeder" else 1.0, seed=1)
    found = verdicts(result(), quicker)
    assert found["images_per_s feeder 2"] == found["cpu_ms_per_image feeder 2"] == "faster"
    assert found["images_per_s torch+pillow 2"] == found["pss_mib feeder 2"] == "same"
    back = verdicts(quicker, result())
    assert back["images_per_s feeder 2"] == back["cpu_ms_per_image feeder 2"] == "slower"


def test_noise_alone_changes_nothing():
    changed = [v for seed in range(20) for v in verdicts(result(seed=seed), result(seed=seed + 100)).values()]
    assert changed.count("same") >= len(changed) - 1


def test_what_unchanged_peers_moved_by_is_the_machine_and_no_change():
    found = compare(result(), result(lambda name: 1.25, seed=2))
    assert found.drift == pytest.approx(1.25, abs=0.05)
    same = verdicts(result(), result(lambda name: 1.15 if name == "feeder" else 1.25, seed=2))
    assert set(same.values()) == {"same"}
    slower = verdicts(result(), result(lambda name: 0.5 if name == "feeder" else 1.25, seed=2))
    assert slower["images_per_s feeder 2"] == "slower"
    # A peer of another version says nothing of the machine.
    newer = result(lambda name: 1.25 if name.startswith("torch") else 1.0, seed=3)
    newer["machine"]["versions"]["torch"] = "3"
    assert (compare(result(), newer).drift or 9) < 1.06


def test_memory_is_more_or_less_and_not_slower():
    bigger = result(seed=4)
    bigger["pss_mib"]["feeder"]["2"] = spread([600.0, 601, 602, 603, 604])
    assert verdicts(result(), bigger)["pss_mib feeder 2"] == "more"


def test_too_few_repeats_say_nothing():
    few = result(lambda name: 2.0, seed=5, repeats=3)
    found = compare(result(repeats=3), few)
    assert {change.verdict for change in found.changes} == {"?"}
    assert "too few repeats to tell" in found.render()


def test_machine_options_and_versions_that_differ_are_named():
    other = result()
    other["machine"] |= {"processor": "Y", "versions": {**other["machine"]["versions"], "torch": "3"}}
    other["options"]["batch_size"] = 32
    other["extra"] = spread([1.0])
    found = compare(result(), other)
    assert found.warnings == (
        "processor differs: X in A, Y in B",
        "torch's version differs: 2 in A, 3 in B",
        "option batch_size differs: 64 in A, 32 in B",
    )
    assert found.only_one == ("extra",)
    assert max(map(len, found.render().splitlines())) <= 80


def test_processors_of_one_name_and_two_models_are_named():
    zen4, zen5 = result(), result()
    zen4["machine"]["cpu"] = {"microarchitecture": "Zen 4", "family": 25}
    assert compare(result(), zen4).warnings == ()  # an earlier result does not tell it
    zen5["machine"]["cpu"] = {"microarchitecture": "Zen 5", "family": 26}
    assert compare(zen4, zen5).warnings == (
        "processor's microarchitecture differs: Zen 4 in A, Zen 5 in B",
        "processor's family differs: 25 in A, 26 in B",
    )


def test_repeats_that_overlap_are_the_same_and_those_apart_are_not():
    """Over all orders of 5 and 5 ranks that chance may give, less than 1 % are called a change."""
    changed = 0
    for chosen in itertools.combinations(range(10), 5):
        a = spread([2.0**rank for rank in chosen])
        b = spread([2.0**rank for rank in range(10) if rank not in chosen])
        (found,) = compare({"benchmark": "x", "took_s": a}, {"benchmark": "x", "took_s": b}).changes
        changed += found.verdict != "same"
    assert changed == 2


def test_the_range_of_a_change_is_that_of_all_quotients():
    before, after = spread([1.0, 2, 3, 4, 5]), spread([10.0, 20, 30, 40, 50])
    (found,) = compare({"benchmark": "x", "took_s": before}, {"benchmark": "x", "took_s": after}).changes
    assert (found.low, found.high, found.verdict) == (2, 50, "slower")
    zero = spread([0.0, 1, 1, 1, 1])
    (found,) = compare({"benchmark": "x", "took_s": zero}, {"benchmark": "x", "took_s": after}).changes
    assert (found.low, found.verdict) == (None, "?")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected a benchmark's result as JSON, found damage: .*line 1"),
        ("\x80\x81", "expected a benchmark's result as JSON"),
        ("[]", 'found other JSON: it has no "benchmark"'),
        ('{"benchmark": 3}', 'found other JSON: it has no "benchmark"'),
    ],
)
def test_files_that_are_no_result_are_refused(text: str, message: str, tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ArgumentError, match=message):
        load(str(path))


def test_results_without_a_measure_in_common_are_refused():
    with pytest.raises(ArgumentError, match="A is of benchmark 'throughput', B of 'decode'"):
        compare(result(), {"benchmark": "decode"})
    with pytest.raises(ArgumentError, match="no measure in common"):
        compare(result(), {"benchmark": "throughput", "machine": 3, "options": [], "images_per_s": {"median": "x"}})


def test_the_command_compares_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    quicker = result(lambda name: 1.3 if name == "feeder" else 1.0, seed=1)
    for name, value in (("a", result()), ("b", quicker)):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    assert main(["bench", "--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    printed = capsys.readouterr().out
    assert "images_per_s feeder 2" in printed
    assert "faster" in printed


def test_a_comparison_of_equal_results_says_so():
    assert "5 of 5 measures are the same within noise" in compare(result(), result()).render()
