"""Checks a change within a minute: style, format and types, and the tests that the change reaches by imports.

    python scripts/quick.py [BASE] [--limit SECONDS]

The change is what differs from HEAD or, if nothing does, the last commit; BASE names another commit or branch. The
nearest tests run first: those that import a changed module, then those that import a module that imports it, and so on.
The last line says what there was no time for.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pytest

__all__ = ["changed_files", "main", "reached_tests", "run_tests"]

ROOT = Path(__file__).resolve().parents[1]
LAST_S = 10  # for the last test, which takes at most five seconds, or is marked slow, and for the end of pytest
CHECKS = (("style", "ruff", "check"), ("format", "ruff", "format", "--check"), ("types", "mypy"))

# Users of a changed file that no import shows, as patterns of both. Every line that fits counts.
USERS = (
    ("*.py", "tests/project/test_directions.py"),
    ("*.py", "tests/project/test_private_names.py"),
    ("*.py", "tests/project/test_words.py"),
    ("*.md", "tests/project/test_ground.py"),
    ("*.md", "tests/support/documents.py"),
    ("kernels/*.[ch]*", "feeder/_native.pyi"),
    ("kernels/*.[ch]*", "tests/kernels/test_*.py"),
    ("scripts/*", "tests/project/test_*.py"),
    (".*", "tests/project/test_*.py"),
)


def git(root: Path, *command: str) -> set[str]:
    """Returns the paths that a command of git prints with -z."""
    done = subprocess.run(["git", *command], cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return set(filter(None, done.stdout.split("\0")))


def changed_files(root: Path, base: str | None = None) -> set[str]:
    """Returns the paths of files that differ from a commit, with untracked and removed ones.

    Args:
        root: The checkout, from which paths count.
        base: A commit or branch; the last commit that HEAD has from it counts. If not given, HEAD, or the commit before
            it if nothing differs from HEAD.
    """

    def differ(commit: str) -> set[str]:
        return git(root, "diff", "-z", "--name-only", "--no-renames", "--merge-base", commit)

    untracked = git(root, "ls-files", "-z", "--others", "--exclude-standard")
    if base is not None:
        return untracked | differ(base)
    return untracked | differ("HEAD") or differ("HEAD~1")


def module_name(path: str) -> str:
    return ".".join(PurePosixPath(path).with_suffix("").parts).removesuffix(".__init__")


def imported(text: str, name: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Yields the modules that a module imports, wherever in it, and those that it names for importlib.

    Args:
        text: Its source. Scripts in its strings count, too.
        name: The module, which for a package its lazy names are relative to.
        modules: Those that there are.
    """
    # ast takes ten times as long: for the whole repository, some seconds of the minute.
    for package, names in re.findall(r"^ *from ([\w.]+) import (\([^)]+\)|[^#\n]+)", text, re.MULTILINE):
        for inside in re.findall(r"(\w+)(?: as \w+)?", re.sub("#.*", "", names)):
            whole = f"{package}.{inside}"
            yield whole if whole in modules else package
    for names in re.findall(r"^ *import ([^#\n]+)", text, re.MULTILINE):
        yield from re.findall(r"[\w.]+", names)
    for string in re.findall(r"""["']([\w.]+)["']""", text):
        yield from (string, f"{name}.{string}")


def users_of_files(root: Path, changed: set[str]) -> dict[str, set[str]]:
    """Returns, by path, the files that import a file or, if it is a changed one, use it otherwise."""
    sources = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py", "*.pyi")
    modules = {module_name(path): path for path in sources | changed}  # with removed ones
    sources = {path for path in sources if (root / path).is_file() and not path.startswith("tests/scripts/")}
    users = defaultdict(set)

    for path in sources:
        text = (root / path).read_text()
        for name in imported(text, module_name(path), modules):
            if name in modules:
                users[modules[name]].add(path)
        words = set(re.findall(r"[\w./-]+", text)) if path.startswith("tests/") else set()
        for each in changed:
            name = PurePosixPath(each).name
            if each in words or ("." in name and name in words):
                users[each].add(path)

    for each in changed:
        fit = [pattern for file, pattern in USERS if fnmatch(each, file)]
        if each.endswith("/conftest.py"):
            fit.append(each.replace("conftest.py", "*"))
        users[each] |= {path for path in sources if any(fnmatch(path, pattern) for pattern in fit)}
    return users


def reached_tests(root: Path, changed: set[str]) -> list[str]:
    """Returns the files of tests that a change reaches, nearest first.

    The distance is the number of imports between. Of those that are equally near, the tests of the changed modules' own
    names come first, and then those in the folders of their names.
    """
    users = users_of_files(root, changed)
    distance = dict.fromkeys(changed, 0)
    queue = [*changed]
    for path in queue:
        for user in users.get(path, set()) - distance.keys():
            distance[user] = distance[path] + 1
            queue.append(user)

    tests = [path for path in distance if re.fullmatch(r"tests/(.*/)?test_\w+\.py", path) and (root / path).is_file()]
    return sorted(tests, key=lambda test: (distance[test], *unlikeness(test, changed), test))


def unlikeness(test: str, changed: set[str]) -> tuple[bool, int]:
    """Returns (False if a test has the name of a changed file, minus the number of folders that they share)."""
    mirrored = PurePosixPath(test.removeprefix("tests/").replace("/test_", "/")).with_suffix("")
    found = []
    for each in changed:
        place = PurePosixPath(each.removeprefix("feeder/")).with_suffix("")
        shared = sum(parent in mirrored.parents for parent in place.parents)
        found.append((place.name != mirrored.name, -shared))
    return min(found)


class Runner:
    """A plugin of pytest that runs files of tests, of which other runners take some, and starts none after a moment.

    A file is collected when its turn comes, as to collect all can take longer than there is time for.

    Args:
        stop_at: The moment, of time.monotonic.
        folder: Has a file ``N.taken`` for each file of tests that a runner has taken, by its number, and of each runner
            a file ``PID.left`` with the number of tests that it has left out of the last one.
    """

    def __init__(self, stop_at: float, folder: Path) -> None:
        self.stop_at = stop_at
        self.folder = folder
        self.files: list[pytest.Item | pytest.Collector] = []

    def is_over(self) -> bool:
        return time.monotonic() >= self.stop_at

    def takes(self, number: int) -> bool:
        try:
            (self.folder / f"{number}.taken").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def pytest_collection(self, session: pytest.Session) -> bool:
        place = {session.config.invocation_params.dir / path: number for number, path in enumerate(session.config.args)}
        self.files = sorted(session.perform_collect(genitems=False), key=lambda file: place[file.path])
        return True

    def tests(self, session: pytest.Session) -> Iterator[pytest.Item]:
        """Collects the tests of one file after the other, until the time is over."""
        for number, file in enumerate(self.files):
            if not self.is_over() and self.takes(number):
                found = [*session.genitems(file)]
                session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=found)
                session.testscollected += len(found)
                yield from found

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        tests = self.tests(session)
        test = next(tests, None)
        while test is not None and not self.is_over():
            following = next(tests, None)
            session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            test = following
        left_out = (test is not None) + sum(1 for _ in tests)
        (self.folder / f"{os.getpid()}.left").write_text(str(left_out))
        return True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stop-at", type=float, required=True)
    parser.addoption("--runners-folder", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Runner(config.getoption("stop_at"), config.getoption("runners_folder")))


def run_tests(root: Path, tests: list[str], stop_at: float, runners: int) -> tuple[bool, dict[str, int]]:
    """Runs files of tests in their order, prints the output of those that fail, and only the counts of others.

    Args:
        root: The checkout.
        tests: Paths from there.
        stop_at: The moment, of time.monotonic, after which no test starts.
        runners: Number of processes, each of which takes the next file when it is done with one.

    Returns:
        True if none failed, and the number of ``files`` and of further ``tests`` left out.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plugin = ["-p", "scripts.quick", f"--stop-at={stop_at}", f"--runners-folder={folder}"]
        options = ["-q", "-m", "not slow", "--timeout=60"]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": ""}  # as for `make test`
        outputs = [folder / f"{number}.out" for number in range(runners)]
        started = []
        for output in outputs:
            command = [sys.executable, "-m", "pytest", *plugin, *options, *tests]
            with output.open("w") as to:
                started.append(subprocess.Popen(command, cwd=root, env=environment, stdout=to, stderr=to))

        passed = True
        for runner, output in zip(started, outputs, strict=True):
            failed = runner.wait() not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
            passed = passed and not failed
            text = output.read_text()
            print(text if failed else text.strip().rpartition("\n")[2], flush=True)
        left_out = sum(int(file.read_text()) for file in folder.glob("*.left"))
        return passed, {"files": len(tests) - len([*folder.glob("*.taken")]), "tests": left_out}


def main(arguments: list[str] | None = None) -> int:
    started = time.monotonic()
    parser = argparse.ArgumentParser(description="Checks a change, and runs the tests that it reaches, nearest first.")
    parser.add_argument("base", nargs="?", help="commit or branch to compare with (HEAD, or the one before it)")
    parser.add_argument("--limit", type=float, default=60, metavar="SECONDS", help="most time for all (%(default)s)")
    args = parser.parse_args(arguments)
    end = started + args.limit
    failed = []
    left_out = []

    # Beside the tests, many of which wait for other processes.
    checks = {}
    for name, program, *options in CHECKS:
        command = [str(Path(sys.executable).with_name(program)), *options]
        checks[name] = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(name: str) -> None:
        try:
            output, _ = checks[name].communicate(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            with checks[name] as check:
                check.terminate()  # mypy goes on from its cache the next time
            left_out.append(name)
            return
        if checks[name].returncode != 0:
            print(output, flush=True)
            failed.append(name)

    tests = reached_tests(ROOT, changed_files(ROOT, args.base))
    finish("style")
    finish("format")
    if tests:
        runners = min(len(os.sched_getaffinity(0)), len(tests))
        passed, left = run_tests(ROOT, tests, end - LAST_S, runners)
        failed += [] if passed else ["tests"]
        left_out += [f"{count} {kind}" for kind, count in left.items() if count]
    finish("types")

    result = f"failed: {', '.join(failed)}" if failed else "passed"
    said = f"quick: {result} in {time.monotonic() - started:.0f} s; test files in reach: {len(tests)}"
    if left_out:
        again = " ".join([*([args.base] if args.base else []), "--limit 3600"])
        said += f'; left out for time: {", ".join(left_out)} (all: make quick QUICK_ARGS="{again}")'
    print(said)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
