"""Measures what the tests protect: branch coverage, processes included, and how many small faults they find.

    pip install coverage
    python scripts/mutants.py cover OUT                       # all tests but the slow ones; OUT/coverage.json
    python scripts/mutants.py draw OUT [--unchanged-since REF]  # OUT/mutants.json: 60, over all rooms, by SEED
    python scripts/mutants.py try OUT [--tree TREE]            # each by the tests that run its line

TREE is another checkout with an environment of its own, whose files are changed for a moment.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import copy
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quick import reached_tests

ROOT = Path(__file__).resolve().parents[1]
SEED = 43
COUNT = 60
LIMIT_S = 90
MOST_TESTS = 400
NEAREST = 4

SETTINGS = """
[run]
branch = true
parallel = true
source = feeder
data_file = {out}/data
patch = subprocess, _exit, fork
sigterm = true
core = ctrace
"""
PLUGIN = """
import os, coverage, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.switch_context(item.nodeid)
"""

CHOOSE = """
from pathlib import Path

CHOSEN = set(Path(__file__).with_name("chosen").read_text().splitlines())

def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if CHOSEN & {item.nodeid, item.nodeid.partition("::")[0]}]
"""
NOTHING_FAILED = 0, 5  # pytest's exit codes; of 5, no test was there

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult}


def mutations(node: ast.AST) -> Iterator[ast.AST]:
    """Yields a node's small faults."""
    new: Any = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in COMPARED:
        new.ops[0] = COMPARED[type(new.ops[0])]()
        yield new
    elif isinstance(new, ast.BinOp) and type(new.op) in COMPUTED:
        new.op = COMPUTED[type(new.op)]()
        yield new
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
        yield new.operand
    elif isinstance(new, ast.Constant) and type(new.value) in (bool, int):
        new.value = not new.value if isinstance(new.value, bool) else new.value + 1
        yield new
    elif isinstance(new, ast.Expr) and isinstance(new.value, ast.Call):
        yield ast.Pass()
    elif isinstance(new, ast.Return) and new.value is not None and not isinstance(new.value, ast.Constant):
        new.value = ast.Constant(None)
        yield new


class Fault(ast.NodeTransformer):
    """Puts a node in the place of the one that has a number, in the order of a walk."""

    def __init__(self, number: int) -> None:
        self.number, self.at = number, -1
        self.line = 0

    def visit(self, node: ast.AST) -> Any:
        self.at += 1
        if self.at == self.number:
            self.line = node.lineno  # type: ignore[attr-defined]
            return ast.copy_location(next(mutations(node)), node)
        return self.generic_visit(node)


def numbered(node: ast.AST, count: Iterator[int]) -> Iterator[tuple[int, ast.AST]]:
    """Yields the nodes that have faults, with their numbers as Fault counts them."""
    number = next(count)
    if next(mutations(node), None) is not None:
        yield number, node
    for child in ast.iter_child_nodes(node):
        yield from numbered(child, count)


def functions(text: str) -> dict[str, ast.FunctionDef]:
    """Returns the functions and methods of a module by their qualified names."""
    found: dict[str, ast.FunctionDef] = {}

    def look(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inside = f"{name}.{child.name}".removeprefix(".")
                if isinstance(child, ast.FunctionDef):
                    found[inside] = child
                else:
                    look(child, inside)

    look(ast.parse(text), "")
    return found


def room(path: str) -> str:
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else "feeder"


def draw(unchanged_since: str | None) -> list[dict[str, Any]]:
    """Returns COUNT faults, as evenly over the rooms as these have functions for them."""
    tracked = subprocess.run(["git", "ls-files", "feeder/*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    by_room = collections.defaultdict(list)
    for path in sorted(tracked.stdout.split()):
        if not (ROOT / path).is_file() or (ROOT / path).is_symlink():
            continue
        here = functions((ROOT / path).read_text())
        if unchanged_since is not None:
            show = ["git", "show", f"{unchanged_since}:{path}"]
            there = functions(subprocess.run(show, cwd=ROOT, capture_output=True, text=True, check=False).stdout)
            here = {
                name: node for name, node in here.items() if name in there and ast.dump(node) == ast.dump(there[name])
            }
        for name, node in here.items():
            if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
                node.body.pop(0)
            numbers = [number for number, each in numbered(node, iter(range(1 << 30))) if hasattr(each, "lineno")]
            by_room[room(path)] += [{"path": path, "function": name, "number": number} for number in numbers]

    drawn: list[dict[str, Any]] = []
    random.seed(SEED)
    for each in by_room.values():
        random.shuffle(each)
    while len(drawn) < COUNT:
        for each in by_room.values():
            if each and len(drawn) < COUNT:
                drawn.append(each.pop())
    return drawn


def with_fault(text: str, mutant: dict[str, Any]) -> tuple[str, int]:
    """Returns a module's source with a fault, and its line before."""
    node = functions(text)[mutant["function"]]
    lines, indent = text.splitlines(keepends=True), node.col_offset
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
    end = node.end_lineno
    if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
        node.body.pop(0)
    fault = Fault(mutant["number"])
    new = ast.unparse(ast.fix_missing_locations(fault.visit(node)))
    lines[first:end] = [f"{' ' * indent}{line}\n" for line in new.splitlines()]
    return "".join(lines), fault.line


def tests_of(data: Path, tree: Path, path: str, line: int) -> list[str]:
    """Returns the tests that run a line, of most MOST_TESTS, and the nearest files of tests: workers run lines, too."""
    with sqlite3.connect(data) as database:
        rows = database.execute(
            "select distinct context.context from arc join file on file.id = arc.file_id join context on context.id = "
            "arc.context_id where file.path like ? and (abs(arc.fromno) = ? or abs(arc.tono) = ?)",
            (f"%/{path}", line, line),
        )
        tests = sorted({name for (name,) in rows if "::" in name})
    random.seed(SEED)
    near = [each for each in reached_tests(tree, {path}) if not each.startswith("tests/project/")]  # of every module
    return [*near[:NEAREST], *random.sample(tests, min(MOST_TESTS, len(tests)))]


def cover(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "settings").write_text(SETTINGS.format(out=out.resolve()))
    (out / "measured.py").write_text(PLUGIN)
    env = {**os.environ, "COVERAGE_PROCESS_START": str(out.resolve() / "settings"), "PYTHONPATH": str(out.resolve())}
    coverage = [sys.executable, "-m", "coverage"]
    rc = f"--rcfile={out.resolve() / 'settings'}"
    run = [*coverage, "run", rc, "-m", "pytest", "-p", "measured", "-m", "not slow", "-n", "4", "--dist=loadfile"]
    subprocess.run(run, cwd=ROOT, env=env, check=False)
    subprocess.run([*coverage, "combine", rc, "-q"], cwd=ROOT, check=True)
    subprocess.run([*coverage, "json", rc, "-q", "-o", out.resolve() / "coverage.json"], cwd=ROOT, check=True)
    totals = json.loads((out / "coverage.json").read_text())["totals"]
    covered, count = totals["covered_branches"], totals["num_branches"]
    print(f"branches: {covered} of {count}; {totals['percent_covered']:.2f} % with lines")


def attempt(out: Path, tree: Path, mutants: list[dict[str, Any]]) -> None:
    (out / "choose.py").write_text(CHOOSE)
    counts = collections.Counter[str]()
    for mutant in mutants:
        file = tree / mutant["path"]
        before = file.read_text()
        after, line = with_fault(before, mutant)
        tests = tests_of(out / "data", tree, mutant["path"], line)
        (out / "chosen").write_text("\n".join(tests))
        files = sorted({name.partition("::")[0] for name in tests})
        options = ["-x", "-q", "-n", "2", "-m", "not slow", "-p", "choose", *files]
        file.write_text(after)
        run = subprocess.Popen(
            [tree / ".venv/bin/python", "-m", "pytest", *options],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(out.resolve())},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        result = "lives"
        try:
            result = "lives" if run.wait(LIMIT_S) in NOTHING_FAILED else "found"
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            file.write_text(before)
        counts[result] += 1
        print(f"{result} {mutant['path']}:{line} {mutant['function']} ({len(tests)} tests and files)", flush=True)
    print(dict(counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cover", "draw", "try"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--unchanged-since", metavar="REF")
    parser.add_argument("--tree", type=Path, default=ROOT)
    given = parser.parse_args()
    if given.what == "cover":
        cover(given.out)
    elif given.what == "draw":
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "mutants.json").write_text(json.dumps(draw(given.unchanged_since), indent=1))
    else:
        attempt(given.out, given.tree, json.loads((given.out / "mutants.json").read_text()))


if __name__ == "__main__":
    main()
