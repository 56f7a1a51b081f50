"""The meaning of a script's names: imports, constants, assignments, defaults of the command line."""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

# Names that the rules know, by other names of theirs, and those that a ``*`` imports.
_CANONICAL = {
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.utils.data.distributed.DistributedSampler": "torch.utils.data.DistributedSampler",
    "torchdata.stateful_dataloader.stateful_dataloader.StatefulDataLoader": "torchdata.stateful_dataloader."
    "StatefulDataLoader",
}
_STARRED = {
    "torch.utils.data": ("DataLoader", "DistributedSampler"),
    "feeder": ("DataLoader",),
}
_OPTIONS = {"args", "opt", "opts", "options", "arguments", "hparams", "config", "cfg"}


class Default(NamedTuple):
    """A value that applies unless the command line gives another.

    Attributes:
        value: The value.
        option: The option, such as "--workers".
    """

    value: Any
    option: str


class Names:
    """The names of one script.

    Args:
        tree: Its syntax tree.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.imports: dict[str, str] = {}
        self.modules: set[str] = set()
        self.assigned: dict[str, list[ast.expr]] = {}
        self.defaults: dict[str, Default] = {}
        self._classes: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.AugAssign) and node.value is not None:
                self._assign(node.target, node.value)
                if isinstance(node, ast.AugAssign):
                    self._assign(node.target, node.value)  # twice, so that it does not count as a constant
            elif isinstance(node, ast.ClassDef):
                self._classes.add(node.name)
                for each in (each for each in node.body if isinstance(each, ast.Assign)):
                    self.assigned.setdefault(f"{node.name}.{text_of(each.targets[0])}", []).append(each.value)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                self._option(node)

    def dotted(self, node: ast.expr) -> str | None:
        """Returns an expression's full name, such as "torch.utils.data.DataLoader"; None if it has none."""
        if isinstance(node, ast.Name):
            name = self.imports.get(node.id)
            if name is None:
                values = self.assigned.get(node.id, [])
                is_alias = len(values) == 1 and isinstance(values[0], ast.Attribute | ast.Name)
                alias = text_of(values[0]) if is_alias else None
                root = alias.partition(".")[0] if alias else ""
                name = self.dotted(values[0]) if root in self.imports and root != node.id else node.id
            return None if name is None else _canonical(name)
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return None if base is None else _canonical(f"{base}.{node.attr}")
        return None

    def called(self, node: ast.expr) -> str | None:
        """Returns the full name of the callee of a call; None for another expression."""
        return self.dotted(node.func) if isinstance(node, ast.Call) else None

    def value(self, node: ast.expr) -> Any:
        """Returns an expression's constant value, a :class:`Default` of the command line, or ``...`` for neither."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Attribute) and text_of(node.value) in _OPTIONS and text_of(node) not in self.assigned:
            return self.defaults.get(node.attr, ...)
        is_plain = isinstance(node, ast.Name) or text_of(getattr(node, "value", node)) in self._classes
        found = self.definition(node) if is_plain else node
        return found.value if isinstance(found, ast.Constant) else ...

    def definition(self, node: ast.expr) -> ast.expr:
        """Returns the expression assigned to a name, if there is exactly one; else the expression itself."""
        key = text_of(node)
        values = self.assigned.get(key, []) if key else []
        return values[0] if len(values) == 1 else node

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for name in node.names:
                self.modules.add(name.name)
                local = name.asname or name.name.partition(".")[0]
                self.imports[local] = name.name if name.asname else local
            return
        module = "." * node.level + (node.module or "")
        self.modules.add(module)
        for name in node.names:
            if name.name == "*":
                for known in _STARRED.get(module, ()):
                    self.imports.setdefault(known, f"{module}.{known}")
            else:
                self.imports[name.asname or name.name] = f"{module}.{name.name}"

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            pairs = (
                value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else ()
            )
            for at, part in enumerate(target.elts):
                self._assign(part, pairs[at] if pairs else value)
        elif (key := text_of(target)) is not None:
            self.assigned.setdefault(key, []).append(value)

    def _option(self, node: ast.Call) -> None:
        assert isinstance(node.func, ast.Attribute)
        options = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if node.func.attr != "add_argument" or not options:
            return
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        option = next((o for o in options if o.startswith("--")), options[0])
        destination = given.get("dest")
        name = destination.value if isinstance(destination, ast.Constant) else option.lstrip("-").replace("-", "_")
        default = given.get("default")
        if isinstance(default, ast.Constant) and isinstance(name, str):
            self.defaults[name] = Default(default.value, option)
        elif default is not None and isinstance(name, str):
            for owner in _OPTIONS:
                self.assigned.setdefault(f"{owner}.{name}", []).append(default)


def arguments_of(call: ast.Call, *positions: str) -> tuple[dict[str, ast.expr], bool]:
    """Returns a call's arguments by name, and True if these are all of them (there is no ``*`` or ``**``).

    Args:
        call: The call.
        positions: Names of the positional parameters, in order.
    """
    starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    found = dict(zip(positions, call.args, strict=False))
    found |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    return found, not starred and all(keyword.arg is not None for keyword in call.keywords)


def _canonical(name: str) -> str:
    name = re.sub(r"^(pytorch_lightning|lightning)(\.pytorch)?\b", "pytorch_lightning", name)
    return _CANONICAL.get(name, name)


def text_of(node: ast.expr) -> str | None:
    """Returns "a.b.c" for a name or a chain of attributes; else None."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = text_of(node.value)
        return None if base is None else f"{base}.{node.attr}"
    return None
