"""The code stays as small and as plain as it is: whoever needs more of something raises its number, with a reason."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch

import feeder
from tests.support import ROOT
from tests.support.sources import statements

FOLDER = ROOT / "feeder"
FILES = sorted(FOLDER.rglob("*.py"))


@functools.cache
def nodes() -> dict[Path, list[ast.stmt]]:
    """The statements of each file."""
    return {path: [*statements(ast.parse(path.read_text()))] for path in FILES}


STATEMENTS = {
    "(top)": 177,
    "dataset": 2_783,
    "decoders": 3_455,
    "fields": 344,
    "loader": 7_956,
    "order": 1_617,
    "service": 1_520,
    "shard": 8_457,
    "system": 728,
    "tools": 4_955,
    "transforms": 2_506,
}
# The house's own, and what the issues after it may add: augmentation 400, switching 1,200, mixtures and the Hub 1,000,
# the GPU 400, the first screen 500.
MOST_STATEMENTS = 31_000 + 3_500
TOKENS = 459_803
OWN_PARAMETERS = 15
DENSE = 8

# Functions of more than 60 lines: with the documentation of many arguments, or steps that share most of their names.
LONG = {
    "dataset/dataset_shards.py": ["write_shards"],
}
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, found in nodes().items():
        for node in found:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path.relative_to(FOLDER).as_posix(), node


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def test_no_room_has_more_statements() -> None:
    """Imports and docstrings apart; an assignment to a tuple counts as its targets."""
    found = Counter[str]()
    for path, each in nodes().items():
        parts = path.relative_to(FOLDER).parts
        for node in each:
            if not is_docstring(node) and not isinstance(node, ast.Import | ast.ImportFrom):
                target = node.targets[0] if isinstance(node, ast.Assign) else None
                is_several = isinstance(target, ast.Tuple) and isinstance(getattr(node, "value", None), ast.Tuple)
                found[parts[0] if len(parts) > 1 else "(top)"] += len(target.elts) if is_several else 1  # type: ignore[union-attr]
    assert {room: number for room, number in found.items() if number > STATEMENTS.get(room, 0)} == {}


def test_the_rooms_have_no_more_statements_together_than_they_may() -> None:
    assert sum(STATEMENTS.values()) <= MOST_STATEMENTS


def test_there_are_no_more_tokens() -> None:
    """Without comments, docstrings and layout."""
    found = 0
    for path, each in nodes().items():
        found += sum(
            token.type not in _LAYOUT for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        )
        found -= sum(map(is_docstring, each))
    assert found <= TOKENS


def test_the_loader_has_no_further_parameter() -> None:
    ours, torchs = (inspect.signature(each).parameters for each in (feeder.DataLoader, torch.utils.data.DataLoader))
    assert len(ours.keys() - torchs.keys()) <= OWN_PARAMETERS


def test_no_two_public_classes_share_a_name() -> None:
    found = defaultdict(set)
    for path, each in nodes().items():
        for node in each:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(path.relative_to(FOLDER).as_posix())
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_two_files_outside_of_the_commands_share_a_name() -> None:
    found = Counter(path.name for path in FILES if path.name != "__init__.py" and "commands" not in path.parts)
    assert [name for name, number in found.items() if number > 1] == []


def test_no_further_function_has_more_than_60_lines() -> None:
    found = defaultdict(list)
    for path, function in functions():
        if lines(function) > 60:
            found[path].append(function.name)
    assert dict(sorted(found.items())) == LONG


def test_no_more_functions_go_without_paragraphs() -> None:
    found = 0
    for path, function in functions():
        if lines(function) >= 30:
            first = function.body[1] if len(function.body) > 1 and is_docstring(function.body[0]) else function.body[0]
            body = (FOLDER / path).read_text().splitlines()[first.lineno - 1 : function.end_lineno]
            found += all(line.strip() for line in body)
    assert found <= DENSE


def test_no_line_assigns_several_attributes() -> None:
    found = []
    for path, each in nodes().items():
        for node in each:
            targets = getattr(node.targets[0], "elts", []) if isinstance(node, ast.Assign) else []
            if targets and all(isinstance(each, ast.Attribute) for each in targets):
                found.append(f"{path.relative_to(FOLDER)}:{node.lineno}")
    assert found == []
