"""`make quick`: the tests that a change reaches, and what it says of those that it has no time for."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import quick
from tests.support import ROOT

FILES = {
    "feeder/order/__init__.py": '_HOMES = {"Split": "split"}',
    "feeder/order/lanes.py": "",
    "feeder/order/split.py": "def split():\n    from feeder.order.lanes import Lanes",
    "feeder/order/random.py": "",
    "feeder/_native.pyi": "",
    "kernels/cpu/crc32c.cc": "",
    "docs/loading.md": "",
    "examples/train.py": "",
    "tests/support/documents.py": "",
    "tests/bench/test_walk.py": "from feeder.order import (  # both\n    lanes as these,\n)",
    "tests/kernels/test_crc32c.py": "",
    "tests/kernels/test_threads.py": "",
    "tests/order/test_gaps.py": "import feeder.order.lanes",
    "tests/order/test_lanes.py": "import feeder.order.lanes",
    "tests/order/test_public.py": "from feeder.order import Split",
    "tests/order/test_random.py": "import feeder.order.random",
    "tests/order/test_script.py": "SCRIPT = '''\nimport feeder.order.random  # first\n'''",
    "tests/order/test_split.py": "from feeder.order.split import split",
    "tests/scenarios/conftest.py": "",
    "tests/scenarios/test_documents.py": "from tests.support.documents import blocks",
    "tests/scenarios/test_training.py": 'SCRIPT = "examples/train.py"',
    "tests/shard/test_image.py": "from feeder import _native",
}


def git(root: Path, *command: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *identity, *command], cwd=root, check=True, stdout=subprocess.DEVNULL)


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository, committed."""
    write(tmp_path, FILES)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_module_reaches_the_tests_that_import_it_nearest_first(tree: Path) -> None:
    assert quick.reached_tests(tree, {"feeder/order/lanes.py"}) == [
        "tests/order/test_lanes.py",  # of its name
        "tests/order/test_gaps.py",  # of its folder
        "tests/bench/test_walk.py",
        "tests/order/test_split.py",  # by another module's function
        "tests/order/test_public.py",  # by a name that a package loads on first use
    ]


def test_a_removed_module_reaches_the_tests_that_still_import_it(tree: Path) -> None:
    git(tree, "rm", "-q", "feeder/order/random.py")
    assert quick.reached_tests(tree, {"feeder/order/random.py"}) == [
        "tests/order/test_random.py",
        "tests/order/test_script.py",  # by a script in a string
    ]


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ("tests/order/test_gaps.py", ["order/test_gaps"]),
        ("tests/scenarios/conftest.py", ["scenarios/test_documents", "scenarios/test_training"]),
        ("kernels/cpu/crc32c.cc", ["kernels/test_crc32c", "kernels/test_threads", "shard/test_image"]),
        ("docs/loading.md", ["scenarios/test_documents"]),
        ("examples/train.py", ["scenarios/test_training"]),
        ("LICENSE", []),
    ],
)
def test_files_reach_tests_that_use_them_otherwise(tree: Path, changed: str, reached: list[str]) -> None:
    assert quick.reached_tests(tree, {changed}) == [f"tests/{each}.py" for each in reached]


def test_the_change_is_what_is_not_committed_or_else_the_last_commit(tree: Path) -> None:
    git(tree, "branch", "base")
    write(tree, {"feeder/order/lanes.py": "changed"})
    git(tree, "commit", "-q", "-a", "-m", "second")
    assert quick.changed_files(tree) == {"feeder/order/lanes.py"}
    write(tree, {"feeder/order/split.py": "changed", "feeder/order/new name.py": ""})
    (tree / "feeder/order/random.py").unlink()
    uncommitted = {"feeder/order/split.py", "feeder/order/new name.py", "feeder/order/random.py"}
    assert quick.changed_files(tree) == uncommitted
    assert quick.changed_files(tree, "base") == {*uncommitted, "feeder/order/lanes.py"}


@pytest.fixture
def root(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that the script takes for its own, with one test that passes and checks that do."""
    (tree / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/quick.py", tree / "scripts")
    write(tree, {"tests/order/test_random.py": "def test_passes(): pass"})
    monkeypatch.setattr(quick, "ROOT", tree)
    monkeypatch.setattr(quick, "changed_files", lambda root, base: {"tests/order/test_random.py"})
    monkeypatch.setattr(quick, "CHECKS", [(name, "python", "-c", "") for name in ("style", "format", "types")])
    return tree


def test_tests_run_in_their_order_until_the_time_is_over(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stop = "import time\ndef test_stop():\n    time.monotonic = lambda: float('inf')\n    assert False\n"
    files = {
        "tests/test_z.py": f"def test_passes(): pass\n{stop}def test_late(): pass\n",
        "tests/test_a.py": "raise ImportError('collected before its turn')",
        "conftest.py": "def pytest_collection_modifyitems(items): items.sort(key=lambda item: item.path)",
    }
    write(root, files)
    found = quick.run_tests(root, ["tests/test_z.py", "tests/test_a.py"], float("inf"), runners=1)
    assert found == (False, {"files": 1, "tests": 1})
    said = capfd.readouterr().out
    assert "assert False" in said
    assert "1 failed, 1 passed" in said


def test_each_file_is_run_by_one_of_several_runners(root: Path) -> None:
    files = [f"tests/test_{name}.py" for name in "abc"]
    write(root, dict.fromkeys(files, "def test_first(): open(__file__ + '.ran', 'x').close()"))
    assert quick.run_tests(root, files, float("inf"), runners=2) == (True, {"files": 0, "tests": 0})
    assert all((root / f"{file}.ran").exists() for file in files)


def test_a_failed_check_is_printed_and_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fails = ("types", "python", "-c", "raise SystemExit('line 1: error')")
    monkeypatch.setattr(quick, "CHECKS", [*quick.CHECKS[:2], fails])
    assert quick.main(["--limit", "3600"]) == 1
    said = capfd.readouterr().out
    assert "1 passed" in said
    assert "line 1: error\n" in said
    assert re.fullmatch(r"quick: failed: types in \d+ s; test files in reach: 1", said.splitlines()[-1])


def test_the_last_line_says_what_was_left_out_and_what_does_all(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    endless = [(name, "python", "-c", "import signal; signal.pause()") for name in ("style", "format", "types")]
    monkeypatch.setattr(quick, "CHECKS", endless)
    monkeypatch.setattr(quick, "run_tests", lambda *arguments: (True, {"files": 3, "tests": 0}))
    assert quick.main(["main", "--limit", "0"]) == 0
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("quick: passed in ")
    assert 'left out for time: style, format, 3 files, types (all: make quick QUICK_ARGS="main --limit 3600")' in last
