"""Python sources as trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator

__all__ = ["statements"]


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yields all statements in a tree. Unlike ``ast.walk`` it skips expressions, which most nodes are parts of."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(tree, name, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)
