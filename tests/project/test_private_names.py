"""Tests hold behaviour by public names: of feeder's and the benchmarks' private ones, they use the listed alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support import ROOT

# Faults in the middle of a step, to which no public name leads: a lock that is held while a process dies or a signal
# comes, a step that fails, a page-locked slot. An entry that no test needs any more is an error.
_EXCEPTIONS = {
    # On the CPU, as if images were decoded whole on a GPU.
    "tests/decoders/test_dali_gpu.py": {"_borrowed", "_queue"},
    "tests/decoders/test_dali_queue.py": {"_borrowed", "_queue"},
    "tests/loader/device/test_page_lock.py": {"_engine", "_fast"},  # addresses of the slots
    "tests/loader/fast/test_replacement.py": {"_locked", "_patience_s", "_start"},
    "tests/loader/fast/test_task_board.py": {"_locked", "_workers"},
    "tests/support/drawn_samples.py": {"_drawn"},  # the draws that the loader has, sample by sample
    # Names of torch's own loader, too: _iterator and _workers are the way to the worker processes.
    "tests/loader/generic/test_replacement.py": {"_batches", "_iterator", "_workers"},
    "tests/loader/generic/test_shutdown.py": {"_iterator", "_workers"},
    "tests/loader/observe/test_prometheus.py": {"_Server", "_lock", "_server", "_servers", "_thread"},
    "tests/loader/test_collate.py": {"_host", "_source"},  # messages as they come, before they are unpacked
    "tests/loader/test_loader.py": {"_get_iterator"},
    "tests/loader/workers/test_fork_server.py": {"_lock", "_shared_lock"},
    "tests/loader/workers/test_iterator_lock.py": {"_use", "_workers"},
    "tests/loader/workers/test_sockets.py": {"_workers"},
}  # fmt: skip


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in ("_native", "_replace")


def _texts(folder: str) -> dict[Path, str]:
    """The files of a folder."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {path: path.read_text() for path in paths if not path.is_relative_to(ROOT / "tests" / "scripts")}


def _nodes(text: str) -> list[ast.AST]:
    """All that is in the tree of a file."""
    return list(ast.walk(ast.parse(text)))


def _defined(nodes: list[ast.AST]) -> set[str]:
    """Private names of functions, classes, module variables, fields, and attributes set on self."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _root(node) in ("self", "cls"):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {name for name in found if _private(name)}


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str, str]]:
    """(local name, module, name there) of every import of something in a module."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.partition(".")[0], alias.name, "") for alias in node.names)


def _strings_patched(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """(patched name, attribute) of each setattr, delattr and getattr with a literal; a dotted path has no name."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name not in ("setattr", "delattr", "getattr"):
            continue
        for place, argument in enumerate(node.args[:2]):
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield (_root(node.args[0]) if place else ""), argument.value


def _used(nodes: list[ast.AST], ours: set[str]) -> set[str]:
    """Private names of feeder's or the benchmarks' that a test file uses; ``ours``: all that are defined there."""
    own = _defined(nodes)
    imported = list(_imported(nodes))
    others = {local for local, module, _ in imported if module.partition(".")[0] not in ("feeder", "bench", "tests")}
    found = {name for _, module, name in imported if module.startswith(("feeder", "bench")) and _private(name)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and _root(node) not in {"self", "cls", *others}:
            found.add(node.attr)
    for root, path in _strings_patched(nodes):
        found |= {part for part in path.split(".") if root not in others}
    return {name for name in found if _private(name) and name in ours - own}


def test_private_names_stay_in_their_rooms() -> None:
    """Tests whose text has none of the names are not parsed, as all together take seconds."""
    ours = {
        name for folder in ("feeder", "bench") for text in _texts(folder).values() for name in _defined(_nodes(text))
    }
    assert len(ours) > 500
    used = {
        str(path.relative_to(ROOT)): _used(_nodes(text), ours)
        for path, text in _texts("tests").items()
        if not ours.isdisjoint(re.findall(r"\b_\w+", text))
    }
    assert {path: sorted(names) for path, names in used.items() if names} == {
        path: sorted(names) for path, names in _EXCEPTIONS.items()
    }
