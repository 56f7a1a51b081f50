"""The flow of tensors through a training step: which are on the device, and which calls wait for the device.

Note [Kinds]
    An expression's value is "device" (a tensor on the accelerator), "host" (part of a batch, not yet moved), "made" (a
    tensor just made on the CPU) or "" (anything else). Batches begin as "host". A tensor that is moved becomes
    "device", and so does everything computed from it; ``.item()``, ``.cpu()``, ``.shape`` and the like give "". If no
    code moves the batch, it arrives on the device. Only code that certainly runs in every step is reported: code under
    a condition only if the condition is the same in every step, such as ``if rank == 0``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

from feeder.tools.doctor.device_copies import MAKERS, is_async, is_device, is_device_name, moves_tensor
from feeder.tools.doctor.script import Function, Script, StepCode, is_no_grad
from feeder.tools.doctor.script_names import text_of

__all__ = [
    "Event",
    "Kind",
    "Walk",
]

Kind = Literal["", "made", "host", "device"]
Event = Literal["item", "cpu", "print", "copy", "made", "empty-cache", "file"]
_ORDER: dict[str, int] = {"": 0, "made": 1, "host": 2, "device": 3}
_PLAIN_ATTRIBUTES = {"shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "itemsize", "nbytes", "layout"}
_PLAIN_METHODS = {
    "size",
    "dim",
    "numel",
    "nelement",
    "stride",
    "get_device",
    "element_size",
    "data_ptr",
    "keys",
    "ndimension",
}
_PLAIN_FUNCTIONS = {"len", "isinstance", "issubclass", "type", "id", "range", "hasattr", "callable", "repr", "super"}
_SHOWS = {"info", "debug", "warning", "add_scalar", "add_scalars", "set_postfix", "set_postfix_str", "set_description"}
_STEADY = re.compile(
    r"cuda|gpu|amp|fp16|bf16|half|scaler|distributed|ddp|rank|main_process|master|device|mixup|cutmix|ema"
)
_CHANGING = re.compile(
    r"step|iter|idx|index|count|batch|^i$|^it$|^n$|^t$|log|print|debug|verbose|profile|best|every|last"
)


class Walk:
    """Follows the tensors of a training step.

    Args:
        script: The script.
        report: Called with the event, the node, and the tensor or argument concerned.
    """

    def __init__(self, script: Script, report: Callable[[Event, ast.expr, ast.expr], None]) -> None:
        self._script = script
        self._names = script.names
        self._report = report
        self._losses: set[str] = set()
        self._env: dict[str, Kind] = {}
        self._owner: ast.ClassDef | None = None
        self._returned: Kind = ""
        self._done: dict[tuple[ast.AST, tuple[tuple[str, Kind], ...], bool], Kind] = {}
        self._depth = 0

    def region(self, region: StepCode) -> None:
        """Follows a training loop or step."""
        script = self._script
        calls = list(script.reached(region.body, region.owner, loops=True))
        for call in calls:
            for lost in script.backward_of(call) or ():
                if (text := text_of(lost)) is not None:
                    self._losses.add(text)
        moves = any(moves_tensor(script, call) for call in calls)
        first: Kind = "host" if moves and not script.prepares_loaders else "device"
        self._env = {}
        self._owner = region.owner
        if isinstance(region.node, ast.For | ast.AsyncFor):
            self._bind_loop(region.node.target, region.node.iter, first)
        elif isinstance(region.node, ast.FunctionDef | ast.AsyncFunctionDef):
            for argument in [*region.node.args.posonlyargs, *region.node.args.args]:
                if (
                    re.search(r"batch|image|input|target|label|data|^x$|^y$", argument.arg)
                    and "idx" not in argument.arg
                ):
                    self._env[argument.arg] = first
        self._block(region.body, True)

    def module(self, function: Function) -> None:
        """Follows a module's ``forward()``, whose arguments are on the device."""
        self._env = {}
        self._owner = self._script.owners[function]
        for argument in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]:
            if argument.arg != "self":
                self._env[argument.arg] = "device"
        self._block(function.body, True)

    def _block(self, body: Iterable[ast.stmt], steady: bool) -> None:
        for statement in body:
            self._statement(statement, steady)
            if isinstance(statement, ast.If) and _leaves(statement.body) and not self._is_steady(statement.test):
                # After "if step % 100: continue" code rarely runs; "if loss is nan: continue" itself is rare.
                steady = steady and not any(isinstance(n, ast.Mod) for n in ast.walk(statement.test))

    def _statement(self, node: ast.stmt, steady: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return

        if isinstance(node, ast.Assign):
            kind = self._kind(node.value, steady)
            for target in node.targets:
                self._bind(target, node.value, kind)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._bind(node.target, node.value, self._kind(node.value, steady))
        elif isinstance(node, ast.AugAssign):
            kind = _most(self._kind(node.target, False), self._kind(node.value, steady))
            self._bind(node.target, node.value, kind)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._bind_loop(node.target, node.iter, self._kind(node.iter, steady))
            self._block(node.body, steady)
            self._block(node.orelse, False)
        elif isinstance(node, ast.While):
            self._kind(node.test, steady)
            self._block(node.body, steady)
        elif isinstance(node, ast.If):
            self._kind(node.test, steady)
            same = steady and self._is_steady(node.test)
            self._block(node.body, same)
            self._block(node.orelse, same)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self._kind(item.context_expr, steady)
            # A loop without gradients inside a step is an evaluation, run now and then.
            loops = is_no_grad(self._names, node) and any(isinstance(n, ast.For | ast.While) for n in ast.walk(node))
            self._block(node.body, steady and not loops)
        elif isinstance(node, ast.Try):
            self._block(node.body, steady)
            for handler in node.handlers:
                self._block(handler.body, False)
            self._block([*node.orelse, *node.finalbody], steady)
        elif isinstance(node, ast.Return):
            if node.value is not None:
                self._returned = _most(self._returned, self._kind(node.value, steady))
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self._kind(child, steady)

    def _bind(self, target: ast.expr, value: ast.expr, kind: Kind) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            parts = (
                value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else None
            )
            for at, part in enumerate(target.elts):
                self._bind(part, value, kind if parts is None else self._kind(parts[at], False))
        elif isinstance(target, ast.Starred):
            self._bind(target.value, value, kind)
        elif (text := text_of(target)) is not None:
            is_loss = text in self._losses and self._script.uses_gpu and not _is_host_number(value)
            self._env[text] = "device" if is_loss else kind

    def _bind_loop(self, target: ast.expr, over: ast.expr, kind: Kind) -> None:
        name = self._names.called(over) or ""
        last = name.rpartition(".")[2]
        if last in ("range", "count", "trange"):
            kind = ""
        elif last in ("parameters", "named_parameters", "named_buffers", "buffers"):
            kind = "device"
        if last in ("enumerate", "items", "named_parameters") and isinstance(target, ast.Tuple | ast.List):
            self._bind(target.elts[0], over, "")
            for part in target.elts[1:]:
                self._bind_all(part, kind)
        else:
            self._bind_all(target, kind)

    def _bind_all(self, target: ast.expr, kind: Kind) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._env[node.id] = kind

    def _kind(self, node: ast.expr, steady: bool) -> Kind:
        if isinstance(node, ast.Name):
            return self._env.get(node.id, "")

        if isinstance(node, ast.Attribute):
            text = text_of(node)
            if text is not None and text in self._env:
                return self._env[text]
            kind = self._kind(node.value, steady)
            return "" if node.attr in _PLAIN_ATTRIBUTES else kind

        if isinstance(node, ast.Call):
            return self._call(node, steady)
        if isinstance(node, ast.JoinedStr):
            for part in node.values:
                if isinstance(part, ast.FormattedValue) and self._kind(part.value, steady) == "device" and steady:
                    self._report("print", node, part.value)
            return ""

        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            for generator in node.generators:
                self._bind_loop(generator.target, generator.iter, self._kind(generator.iter, steady))
            return self._kind(node.value if isinstance(node, ast.DictComp) else node.elt, steady)
        if isinstance(node, ast.Subscript):
            self._kind(node.slice, steady)
            return self._kind(node.value, steady)

        if isinstance(node, ast.IfExp):
            self._kind(node.test, steady)
            same = steady and self._is_steady(node.test)
            return _most(self._kind(node.body, same), self._kind(node.orelse, same))
        if isinstance(node, ast.BoolOp):
            kinds = [self._kind(value, steady and at == 0) for at, value in enumerate(node.values)]
            return _most(*kinds)

        if isinstance(node, ast.NamedExpr):
            kind = self._kind(node.value, steady)
            self._bind(node.target, node.value, kind)
            return kind
        if isinstance(node, ast.Lambda):
            return ""

        kinds = [self._kind(child, steady) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        if isinstance(node, ast.Compare) and all(
            isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops
        ):
            return ""
        return _most(*(kind for kind in kinds if kind != "made"))

    def _call(self, node: ast.Call, steady: bool) -> Kind:
        func, names = node.func, self._names
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        dotted = names.dotted(func) or ""

        if steady and dotted == "torch.cuda.empty_cache":
            self._report("empty-cache", node, node)
        if steady and dotted in ("torch.save", "torch.load"):
            self._report("file", node, node)

        if dotted in MAKERS:
            for argument in arguments:
                self._kind(argument, steady)
            place = next((k.value for k in node.keywords if k.arg in ("device", None)), None)
            if place is None:
                return "made"
            return "device" if is_device_name(self._script, place) else ""

        if isinstance(func, ast.Attribute):
            made = self._method(node, func, steady)
            if made is not None:
                return made

        kinds = [self._kind(argument, steady) for argument in arguments]
        on_device = [a for a, kind in zip(arguments, kinds, strict=True) if kind == "device"]

        if isinstance(func, ast.Name):
            if func.id in _PLAIN_FUNCTIONS:
                return ""
            if func.id in ("float", "int", "bool", "str", "format"):
                if on_device and steady:
                    self._report("item", node, on_device[0])
                return ""
            if func.id == "next":
                return "device" if on_device or self._script.prepares_loaders else "host"

        shows = func.attr in _SHOWS if isinstance(func, ast.Attribute) else False
        if dotted in ("print", "tqdm.tqdm.write", "tqdm.write", "wandb.log") or shows:
            if on_device and steady:
                self._report("print", node, on_device[0])
            return ""

        function = self._script.resolve(node, self._owner)
        if function is not None:
            return self._follow(function, node, steady)

        base = self._kind(func.value, steady) if isinstance(func, ast.Attribute) else ""
        return _most(base, *kinds)

    def _method(self, node: ast.Call, func: ast.Attribute, steady: bool) -> Kind | None:
        """Returns the kind of the result of a tensor's method; None for a method that does not matter here."""
        if func.attr in _PLAIN_METHODS:
            return ""
        if func.attr not in ("item", "tolist", "numpy", "cpu", "cuda", "to"):
            return None
        kind = self._kind(func.value, steady)
        if func.attr in ("item", "tolist", "numpy", "cpu"):
            if kind == "device" and steady and not is_async(node):
                self._report("item" if func.attr == "item" else "cpu", node, func.value)
            return ""
        place = is_device(self._script, node)
        if place is None:
            return kind
        if place is False:
            if kind == "device" and steady and not is_async(node):
                self._report("cpu", node, func.value)
            return ""
        if steady and kind == "made":
            self._report("made", node, func.value)
        elif steady and kind == "host" and not is_async(node):
            self._report("copy", node, func.value)
        return "device"

    def _follow(self, function: Function, call: ast.Call, steady: bool) -> Kind:
        """Follows a function of this file, given the kinds of its arguments; returns the kind of its result."""
        parameters = [*function.args.posonlyargs, *function.args.args]
        if parameters and parameters[0].arg in ("self", "cls"):
            parameters = parameters[1:]

        env: dict[str, Kind] = {}
        for parameter, argument in zip(parameters, call.args, strict=False):
            env[parameter.arg] = self._kind(argument, False)
        for keyword in call.keywords:
            if keyword.arg is not None:
                env[keyword.arg] = self._kind(keyword.value, False)

        # A nested function sees the names around it, and a method those of self.
        seen = {
            k: v for k, v in self._env.items() if k.startswith("self.") or self._script.enclosing_function(function)
        }
        env = {**seen, **env}

        key = function, tuple(sorted(env.items())), steady
        if key in self._done or self._depth > 12:
            return self._done.get(key, "")
        self._done[key] = ""

        saved = self._env, self._owner, self._returned
        self._env = env
        self._owner = self._script.owners[function]
        self._returned = ""
        self._depth += 1
        is_evaluation = is_no_grad(self._names, function) and any(isinstance(n, ast.For) for n in ast.walk(function))
        self._block(function.body, steady and not is_evaluation)
        self._depth -= 1
        self._done[key] = found = self._returned

        shared = {k: v for k, v in self._env.items() if k.startswith("self.")}
        self._env = saved[0]
        self._owner = saved[1]
        self._returned = saved[2]
        self._env.update(shared)
        return found

    def _is_steady(self, test: ast.expr) -> bool:
        """Returns True if a condition is the same in every step."""
        if isinstance(test, ast.BoolOp):
            return all(map(self._is_steady, test.values))
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._is_steady(test.operand)
        if isinstance(test, ast.Constant):
            return bool(test.value)
        texts = [
            n.id if isinstance(n, ast.Name) else n.attr
            for n in ast.walk(test)
            if isinstance(n, ast.Name | ast.Attribute)
        ]
        if any(isinstance(n, ast.Mod) for n in ast.walk(test)) or any(_CHANGING.search(t.lower()) for t in texts):
            return False
        if isinstance(test, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in test.ops):
            return True
        return any(_STEADY.search(t.lower()) for t in texts)


def _is_host_number(node: ast.expr) -> bool:
    """Returns True if an expression is a Python number: ``.item()``, ``float(...)``, a constant."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.BinOp):
        return _is_host_number(node.left) and _is_host_number(node.right)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in ("item", "tolist", "cpu", "numpy")
    return isinstance(node.func, ast.Name) and node.func.id in ("float", "int")


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Continue | ast.Break | ast.Return | ast.Raise)


def _most(*kinds: Kind) -> Kind:
    found: Any = max(kinds, key=_ORDER.__getitem__, default="")
    return found  # type: ignore[no-any-return]
