"""Mistakes of training scripts beyond the options of their loaders: what they do in each epoch, step and sample."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from feeder.tools.doctor.script_names import Names, arguments_of, text_of

_DEVICE = re.compile(r"device|cuda|gpu|rank", re.IGNORECASE)

# The finding, the reason and the fix, by rule.
LOOP_RULES = {
    "loader-in-epoch": (
        "a loader that is made anew in each epoch",
        "Its workers start anew each time, and the loop waits for their first batches.",
        "make it once, before the loop, with persistent_workers=True",
    ),
    "too-many-workers": (
        "several workers for each core",
        "Workers beyond the cores take turns on them and take memory; cpu_count() also counts cores of other jobs.",
        "num_workers=len(os.sched_getaffinity(0)) at most",
    ),
    "kept-graph": (
        "a loss that is kept with the graph of its step",
        "The graph of every step stays in memory until the list or the sum goes, which grows with each step.",
        "keep loss.detach()",
    ),
    "no-grad": (
        "an evaluation that keeps what gradients need",
        "The model's activations are kept for a backward() that never comes: time and memory.",
        "with torch.no_grad(): around the loop",
    ),
    "resized-twice": (
        "a resize whose result is resized again to less",
        "The first one costs as much as all the rest, and its pixels are thrown away.",
        "resize once, to the last size",
    ),
    "device-in-dataset": (
        "a sample that is copied to the GPU by itself",
        "Workers that were forked can't use CUDA, and one copy a sample takes far longer than one a batch.",
        "return it on the CPU; copy the batch in the loop: .to(device, non_blocking=True)",
    ),
    "native-op": (
        "an op that has no native form in this place",
        "Pillow runs it, and with it all ops of the recipe that follow the first crops and resizes.",
        "crops and resizes first, functions behind them; docs/transforms.md lists the ops that stay native",
    ),
}
# Parameters of a loader, by position.
LOADER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
_LOOPS = (ast.For, ast.AsyncFor)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_GRADLESS = ("no_grad", "inference_mode")


class Mistake(NamedTuple):
    """A mistake.

    Attributes:
        rule: Its rule, one of :data:`LOOP_RULES`.
        node: Its place.
    """

    rule: str
    node: ast.expr


def mistakes(tree: ast.Module, names: Names, loaders: set[str]) -> Iterator[Mistake]:
    """Yields the mistakes of a script.

    Args:
        tree: Its syntax tree.
        names: Its names.
        loaders: Full names of classes of loaders.
    """
    text, trained = ast.unparse(tree), _trained(ast.walk(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            yield from (Mistake("loader-in-epoch", call) for call in _loaders_of_epoch(node, names, loaders))
        if isinstance(node, ast.For) or (isinstance(node, ast.FunctionDef) and node.name == "training_step"):
            yield from (Mistake("kept-graph", kept) for kept in _kept_graphs(node, trained))
        elif isinstance(node, ast.Call):
            workers = arguments_of(node, *LOADER)[0].get("num_workers")
            if names.called(node) in loaders and workers is not None and _is_times_cores(workers, names):
                yield Mistake("too-many-workers", workers)
            yield from (Mistake("resized-twice", call) for call in _resized_again(node, names))
            yield from (Mistake("native-op", call) for call in _slow_ops(node, names))
        elif isinstance(node, ast.ClassDef) and any(re.search("(Dataset|Folder)$", ast.unparse(b)) for b in node.bases):
            yield from (Mistake("device-in-dataset", call) for call in _copies(node))

    if any(word in text for word in ("requires_grad", "set_grad_enabled", "autograd.grad")):
        return  # gradients are switched off in ways that are not followed here
    without_grad = _called_without_grad(tree)
    for scope in (tree, *(each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))):
        if not (isinstance(scope, ast.FunctionDef) and (scope.name in without_grad or _is_gradless(scope))):
            yield from (Mistake("no-grad", call) for call in _evaluations(scope))


def _inside(node: ast.AST, *, but: tuple[type[ast.AST], ...] = _SCOPES) -> Iterator[ast.AST]:
    """Yields what stands in a node, but in no function or class of its own, nor in nodes of other kinds."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, but):
            yield child
            yield from _inside(child, but=but)


def _steps(node: ast.AST) -> Iterator[ast.AST]:
    """Yields what stands in a loop, but in no inner loop, nor where no gradients are kept."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*_SCOPES, *_LOOPS)) and not (isinstance(child, ast.With) and _is_gradless(child)):
            yield child
            yield from _steps(child)


def has_backward(node: ast.AST) -> bool:
    """Returns whether gradients are computed somewhere in a node."""
    return any(isinstance(each, ast.Attribute) and each.attr == "backward" for each in ast.walk(node))


def _trained(nodes: Iterable[ast.AST]) -> set[str]:
    """Returns the names whose gradients are computed."""
    owners = [text_of(owner) for _, owner, method in _methods(nodes) if method == "backward"]
    return {name for name in owners if name is not None}


def _loaders_of_epoch(loop: ast.For, names: Names, loaders: set[str]) -> Iterator[ast.Call]:
    """Yields the loaders that a loop over epochs makes alike each time: its inner loop, the only one that trains, has
    the steps."""
    inner = [each for each in _inside(loop) if isinstance(each, _LOOPS) and has_backward(each)]
    steps = list(_inside(loop, but=(*_SCOPES, *_LOOPS)))
    changing = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
    changing |= {each.id for each in steps if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}

    for call in (*steps, *ast.walk(inner[0].iter)) if len(inner) == 1 else ():
        if isinstance(call, ast.Call) and names.called(call) in loaders:
            workers = arguments_of(call, *LOADER)[0].get("num_workers")
            used = {each.id for each in ast.walk(call) if isinstance(each, ast.Name)}
            if workers is not None and names.value(workers) != 0 and not used & changing:
                yield call


def _kept_graphs(steps_of: ast.AST, trained: set[str]) -> Iterator[ast.expr]:
    """Yields losses that are appended or added up in the loop that computes their gradients, or in a training_step."""
    steps = list(_steps(steps_of))
    losses = _trained(steps)
    if isinstance(steps_of, ast.FunctionDef):
        losses |= {each.value.id for each in steps if isinstance(each, ast.Return) and isinstance(each.value, ast.Name)}
    for each in steps:
        if isinstance(each, ast.Assign) and re.search(r"\.(detach|item)\(\)$", ast.unparse(each.value)):
            losses -= {text_of(target) or "" for target in each.targets}

    for call, _, method in _methods(steps):
        if method == "append" and len(call.args) == 1 and _terms(call.args[0]) & losses:
            yield call
    for each in steps:
        if isinstance(each, ast.Assign | ast.AugAssign) and _terms(each.value) & losses:
            targets = {text_of(each.target)} if isinstance(each, ast.AugAssign) else {*map(text_of, each.targets)}
            is_sum = isinstance(each, ast.AugAssign) or targets & _terms(each.value)
            if is_sum and not targets & (trained | losses):
                yield each.value


def _terms(node: ast.expr) -> set[str]:
    """Returns the names that are added, multiplied and so on."""
    return _terms(node.left) | _terms(node.right) if isinstance(node, ast.BinOp) else {text_of(node) or ""}


def _is_times_cores(node: ast.expr, names: Names) -> bool:
    """Returns True for cores times 2 or more."""
    found = names.definition(node)
    if not isinstance(found, ast.BinOp) or not isinstance(found.op, ast.Mult):
        return False
    counts = [_is_cores(names.definition(each), names) for each in (found.left, found.right)]
    factors = [each.value for each in (found.left, found.right) if isinstance(each, ast.Constant)]
    return any(counts) and any(isinstance(factor, int) and factor >= 2 for factor in factors)


def _is_cores(node: ast.expr, names: Names) -> bool:
    """Returns True for the number of cores, by ``cpu_count()`` or ``len(os.sched_getaffinity(0))``."""
    if isinstance(node, ast.Call) and names.called(node) == "len" and node.args:
        node = names.definition(node.args[0])
    return (names.called(node) or "").endswith(("cpu_count", "sched_getaffinity"))


def _ops(chain: ast.Call, names: Names) -> Iterator[ast.Call]:
    """Yields the ops of a Compose or Sequential."""
    if re.search(r"\b(Compose|Sequential)$", names.called(chain) or ""):
        only = names.definition(chain.args[0]) if len(chain.args) == 1 else None
        yield from (op for op in (only.elts if isinstance(only, ast.List) else chain.args) if isinstance(op, ast.Call))


def _resized_again(chain: ast.Call, names: Names) -> Iterator[ast.Call]:
    """Yields resizes before one to less."""
    last: tuple[ast.Call, int] | None = None
    for op in _ops(chain, names):
        if re.search(r"\.(Resize|RandomResizedCrop)$", names.called(op) or ""):
            given = arguments_of(op, "size")[0].get("size", op)
            sides = [names.value(each) for each in ast.walk(given) if isinstance(each, ast.expr)]
            size = max((side for side in sides if isinstance(side, int)), default=0)
            if last is not None and 0 < size < last[1]:
                yield last[0]
            last = op, size


def _slow_ops(chain: ast.Call, names: Names) -> Iterator[ast.Call]:
    """Yields the first op that takes a recipe of feeder's from the kernels, by the ops whose arguments are literals."""
    if names.called(chain) != "feeder.transforms.Compose":
        return
    calls = [*_ops(chain, names)]
    ops: list[Any] = []
    are_native: list[bool] = []
    # An op that can't be made here ends the list: nothing is known of it and those after it.
    with contextlib.suppress(ImportError, ValueError, TypeError, AttributeError):
        from feeder import transforms
        from feeder.decoders.programs import has_programs

        for call in calls:
            kind = getattr(transforms, (names.called(call) or "").rpartition(".")[2])
            given = [*map(ast.literal_eval, call.args)] if kind is not transforms.Lambda else [abs]
            named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords if each.arg != "lambd"}
            ops.append(kind(*given, **named))
            are_native.append(has_programs(transforms.Recipe(tuple(ops))))
    if are_native and not are_native[-1]:
        yield calls[max((number for number, native in enumerate(are_native) if native), default=-1) + 1]


def _copies(dataset: ast.ClassDef) -> Iterator[ast.Call]:
    """Yields copies of single samples to a GPU, and tensors of a sample that are made there."""
    for function in dataset.body:
        if isinstance(function, ast.FunctionDef) and function.name == "__getitem__":
            own = {
                each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }
            for call, _, _ in _methods(ast.walk(function)):
                device = _device_of(call)
                if _DEVICE.search(device) and not (device.endswith(".device") and device.partition(".")[0] in own):
                    yield call


def is_copy(call: ast.Call) -> bool:
    """Returns whether a call copies to a device."""
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in ("cuda", "to")
    return is_method and bool(_DEVICE.search(_device_of(call)))


def _device_of(call: ast.Call) -> str:
    """Returns the text of the device that a call copies to, or makes something on; empty without one."""
    kind = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    device = arguments_of(call, *(["device"] if kind == "to" else []))[0].get("device")
    return "cuda" if kind == "cuda" else "" if device is None else ast.unparse(device)


def _called_without_grad(tree: ast.Module) -> set[str]:
    """Returns the names of functions that are called where no gradients are kept."""
    blocks = [each for each in ast.walk(tree) if isinstance(each, ast.With | ast.FunctionDef) and _is_gradless(each)]
    calls = [each for block in blocks for each in ast.walk(block) if isinstance(each, ast.Call)]
    return {(text_of(each.func) or "").rpartition(".")[2] for each in calls}


def _is_gradless(node: ast.With | ast.FunctionDef) -> bool:
    around = [item.context_expr for item in node.items] if isinstance(node, ast.With) else node.decorator_list
    return any(name in ast.unparse(each) for each in around for name in _GRADLESS)


def _evaluations(scope: ast.AST) -> Iterator[ast.Call]:
    """Yields the calls of a model that was set to evaluate, in loops without gradients whose graphs are kept."""
    found = list(_inside(scope))
    if any(isinstance(each, ast.With) and _is_gradless(each) for each in found):
        return
    models = {text_of(owner) for _, owner, method in _methods(found) if method == "eval"} - {None}
    for loop in found:
        if isinstance(loop, _LOOPS) and not has_backward(loop) and "scaler" not in ast.unparse(loop):
            calls = [each for each in _inside(loop) if isinstance(each, ast.Call)]
            yield from [call for call in calls if text_of(call.func) in models][:1]


def _methods(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.Call, ast.expr, str]]:
    """Yields the calls of methods, each with what it is called of and its name."""
    for each in nodes:
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            yield each, each.func.value, each.func.attr
