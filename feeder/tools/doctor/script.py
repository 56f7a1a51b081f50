"""A script's functions, classes and loops, and the code that runs in every training step.

Note [Training steps]
    A loop trains if its body calls backward() outside of any inner loop, directly or in functions of the same file.
    If a loop around it steps the optimizer (gradient accumulation) or iterates over a loader, that loop counts instead.
    A function that calls backward(), and that nothing in the file calls, is a step that some library calls, as is
    Lightning's training_step. All other code, above all evaluation, is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from feeder.tools.doctor.script_names import Names, text_of

__all__ = ["Function", "Loop", "Script", "StepCode", "is_no_grad"]

Loop = ast.For | ast.AsyncFor | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef
_COARSE = re.compile(r"epoch|episode|fold|trial|round")
_ACCELERATED = re.compile(r"\b(cuda|gpu|gpus|xpu|hpu|npu|nccl|accelerator|local_rank)\b|cuda")
_OPTIMIZER = re.compile(r"optim|^opt(_|$)|_opt$|^optimi[sz]er")


@dataclass(frozen=True)
class StepCode:
    """Code that runs in every training step.

    Args:
        node: The loop, or the function that is a step.
        body: Its statements.
        coarse: True if the loop variable's name says that a step is an epoch: such steps are rare.
        owner: The class of ``self``.
        loops_around: True if it runs in an outer loop, such as one over epochs.
    """

    node: Loop | Function
    body: list[ast.stmt]
    coarse: bool = False
    owner: ast.ClassDef | None = None
    loops_around: bool = False


@dataclass
class Script:
    """A script with an index of its functions and classes, and its training steps.

    Args:
        tree: The syntax tree.
        names: The script's names.
        text: The script's code without comments.
    """

    tree: ast.Module
    names: Names
    text: str
    functions: dict[str, list[Function]] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    owners: dict[ast.AST, ast.ClassDef | None] = field(default_factory=dict)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._index(self.tree, None)
        words = {module.partition(".")[0] for module in self.names.modules}
        self.frameworks = words & {
            "pytorch_lightning",
            "lightning",
            "accelerate",
            "transformers",
            "deepspeed",
            "fastai",
        }
        self.uses_gpu = bool(_ACCELERATED.search(self.text)) or "accelerate" in words or self._moves_to_device()
        self._called: set[str] = set()
        self._around: dict[ast.AST, bool] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._called.add(node.id)
            elif isinstance(node, ast.Attribute):
                self._called.add(node.attr)
        self.regions = list(self._regions())

    @property
    def is_lightning(self) -> bool:
        """True if Lightning's Trainer runs the script."""
        return bool(self.frameworks & {"pytorch_lightning", "lightning"}) and not self._mentions(
            "Fabric", "LightningLite"
        )

    @property
    def prepares_loaders(self) -> bool:
        """True if a library moves the loader's batches to the device, and tells the sampler the epoch."""
        if self.is_lightning or "accelerate" in self.frameworks:
            return True
        return self._mentions("Fabric", "setup_dataloaders") or (
            "transformers" in self.frameworks and self._mentions("Trainer", "Seq2SeqTrainer")
        )

    def calls(self) -> Iterator[ast.Call]:
        """Yields all calls in the script."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def resolve(self, call: ast.Call, owner: ast.ClassDef | None) -> Function | None:
        """Returns the function of this file that a call runs, ``forward()`` of a module included; None if unknown."""
        func = call.func
        if isinstance(func, ast.Name):
            found = self._plain(func.id)
            if found is not None:
                return found
            return self._method(self._class_of(func, owner), "forward")
        if isinstance(func, ast.Attribute):
            if isinstance(func.value, ast.Name) and func.value.id in ("self", "cls"):
                return self._method(owner, func.attr) or self._method(self._class_of(func, owner), "forward")
            found = self._method(self._class_of(func.value, owner), func.attr)
            return found or self._method(self._class_of(func, owner), "forward")
        return None

    def is_module(self, node: ast.ClassDef | None) -> bool:
        """Returns True if a class is a torch module."""
        return node is not None and any((self.names.dotted(b) or "").endswith("nn.Module") for b in node.bases)

    def is_optimizer(self, node: ast.expr) -> bool:
        """Returns True if an expression is an optimizer, judging by its assignment or its name."""
        text = text_of(node)
        if text is None:
            return isinstance(node, ast.Subscript) and self.is_optimizer(node.value)
        made = (self.names.called(value) or "" for value in self.names.assigned.get(text, ()))
        last = text.rpartition(".")[2].lower()
        return any(re.search(r"(^|\.)optim\.(?!lr_scheduler)", name) for name in made) or (
            bool(_OPTIMIZER.search(last)) and "sched" not in last
        )

    def steps_optimizer(self, call: ast.Call) -> bool:
        """Returns True if a call is ``optimizer.step()`` or ``scaler.step(optimizer)``."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
            return False
        return self.is_optimizer(call.func.value) or any(map(self.is_optimizer, call.args))

    def backward_of(self, call: ast.Call) -> list[ast.expr] | None:
        """Returns the losses of a call of ``backward()``; None for another call."""
        func = call.func
        if self.names.dotted(func) == "torch.autograd.backward":
            return call.args[:1]
        if isinstance(func, ast.Attribute) and func.attr in ("backward", "manual_backward"):
            if isinstance(func.value, ast.Call) and isinstance(func.value.func, ast.Name):
                return None if func.value.func.id == "super" else [func.value]
            if isinstance(func.value, ast.Call):  # scaler.scale(loss).backward()
                return list(func.value.args[:1]) or [func.value]
            if call.args:  # accelerator.backward(loss), or loss.backward(gradient)
                return [*call.args[:1], func.value]
            return [func.value]
        # timm's: loss_scaler(loss, optimizer, ...)
        is_scaler = "scaler" in (text_of(func) or "").rpartition(".")[2].lower()
        return call.args[:1] if is_scaler and any(map(self.is_optimizer, call.args)) else None

    def reached(self, body: Iterable[ast.AST], owner: ast.ClassDef | None, *, loops: bool) -> Iterator[ast.Call]:
        """Yields the calls in some statements and in the functions of this file that they call.

        Args:
            body: The statements.
            owner: The class of ``self``.
            loops: True to look into loops too.
        """
        seen: set[ast.AST] = set()
        stack: list[tuple[ast.AST, ast.ClassDef | None]] = [(node, owner) for node in body]
        while stack:
            node, owner = stack.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
                continue
            if isinstance(node, ast.For | ast.AsyncFor | ast.While) and not loops:
                continue
            if isinstance(node, ast.Call):
                yield node
                function = self.resolve(node, owner)
                if function is not None and function not in seen:
                    seen.add(function)
                    stack += [(child, self.owners[function]) for child in function.body]
            stack += [(child, owner) for child in ast.iter_child_nodes(node)]

    def enclosing(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields the nodes around one, inside out."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def enclosing_function(self, node: ast.AST) -> ast.AST | None:
        """Returns the function that contains a node; None at the top level."""
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        return next((around for around in self.enclosing(node) if isinstance(around, kinds)), None)

    def _regions(self) -> Iterator[StepCode]:
        loops = [n for n in ast.walk(self.tree) if isinstance(n, ast.For | ast.AsyncFor | ast.While)]
        trains = [loop for loop in loops if self._is_training(loop.body, self.owners[loop])]
        hot: list[Any] = []
        for loop in trains:
            outer: Any = loop
            for around in self.enclosing(loop):
                if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    break
                if isinstance(around, ast.For | ast.AsyncFor | ast.While) and self._takes_over(around):
                    outer = around
            if outer not in hot:
                hot.append(outer)
        for loop in hot:
            yield StepCode(loop, loop.body, _is_coarse(loop), self.owners[loop], self._has_loop_around(loop))
        covered = {f for loop in hot for f in self._functions_reached(loop.body, self.owners[loop])}
        for function in (f for group in self.functions.values() for f in group):
            owner = self.owners[function]
            is_step = function.name == "training_step" and self.is_lightning
            if not is_step and function not in covered and function.name not in self._called:
                is_step = self._is_training(function.body, owner) and not self._makes_optimizer(function)
                is_step = is_step and not (owner is not None and function.name in ("backward", "__call__"))
            if is_step:
                yield StepCode(function, function.body, owner=owner, loops_around=True)

    def _is_training(self, body: Sequence[ast.stmt], owner: ast.ClassDef | None) -> bool:
        return any(self.backward_of(call) is not None for call in self.reached(body, owner, loops=False))

    def _takes_over(self, loop: Any) -> bool:
        """Returns True if a loop around a training loop is the one whose iterations are steps."""
        if _is_coarse(loop):
            return False
        if isinstance(loop, ast.For | ast.AsyncFor) and _names_loader(loop.iter):
            return True
        return any(self.steps_optimizer(call) for call in self.reached(loop.body, self.owners[loop], loops=False))

    def _has_loop_around(self, loop: ast.AST) -> bool:
        for around in self.enclosing(loop):
            if isinstance(around, ast.For | ast.AsyncFor | ast.While):
                return True
            if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
                return self._is_called_in_loop(around, set())
        return False

    def _is_called_in_loop(self, function: Function, seen: set[ast.AST]) -> bool:
        seen.add(function)
        for call in self.calls():
            if self.resolve(call, self._owner_at(call)) is function:
                for around in self.enclosing(call):
                    if isinstance(around, ast.For | ast.AsyncFor | ast.While):
                        return True
                    if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
                        if around not in seen and self._is_called_in_loop(around, seen):
                            return True
                        break
        return False

    def _functions_reached(self, body: Iterable[ast.AST], owner: ast.ClassDef | None) -> Iterator[Function]:
        for call in self.reached(body, owner, loops=True):
            function = self.resolve(call, self._owner_at(call))
            if function is not None:
                yield function

    def _makes_optimizer(self, function: Function) -> bool:
        nodes = (n for n in ast.walk(function) if isinstance(n, ast.Call))
        return any(re.search(r"(^|\.)optim\.", self.names.called(node) or "") for node in nodes)

    def _owner_at(self, node: ast.AST) -> ast.ClassDef | None:
        return next((n for n in self.enclosing(node) if isinstance(n, ast.ClassDef)), None)

    def _plain(self, name: str) -> Function | None:
        """Returns a function that is not a method, also if it is called by an alias such as torch.compile(function)."""
        found = [f for f in self.functions.get(name, ()) if not isinstance(self.parents.get(f), ast.ClassDef)]
        if found:
            return found[0]
        values = self.names.assigned.get(name, ())
        if len(values) == 1 and isinstance(values[0], ast.Call) and values[0].args:
            maker, first = self.names.called(values[0]) or "", values[0].args[0]
            if (
                isinstance(first, ast.Name)
                and first.id != name
                and maker.rpartition(".")[2] in ("compile", "partial", "jit")
            ):
                return self._plain(first.id)
        return None

    def _class_of(self, node: ast.expr, owner: ast.ClassDef | None) -> ast.ClassDef | None:
        """Returns the class of this file that an expression is an instance of."""
        if isinstance(node, ast.Name) and node.id == "self":
            return owner
        text = text_of(node)
        for value in self.names.assigned.get(text, ()) if text else ():
            while isinstance(value, ast.Call):
                if isinstance(value.func, ast.Name) and value.func.id in self.classes:
                    return self.classes[value.func.id]
                # Net().to(device), torch.compile(Net()), DistributedDataParallel(Net())
                inner = value.func.value if isinstance(value.func, ast.Attribute) else None
                value = inner if isinstance(inner, ast.Call) else value.args[0] if value.args else ast.Constant(None)
        return None

    def _method(self, owner: ast.ClassDef | None, name: str, depth: int = 0) -> Function | None:
        if owner is None or depth > 8:
            return None
        for node in owner.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                return node
        for base in owner.bases:
            if isinstance(base, ast.Name) and base.id in self.classes and base.id != owner.name:
                return self._method(self.classes[base.id], name, depth + 1)
        return None

    def _index(self, node: ast.AST, owner: ast.ClassDef | None) -> None:
        stack: list[tuple[ast.AST, ast.ClassDef | None]] = [(node, owner)]
        while stack:
            node, owner = stack.pop()
            self.owners[node] = owner
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = owner = node
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions.setdefault(node.name, []).append(node)
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                stack.append((child, owner))

    def _moves_to_device(self) -> bool:
        """Returns True if the script calls ``.to(...)`` with a name that contains "device" and is not the CPU."""
        for call in self.calls():
            if isinstance(call.func, ast.Attribute) and call.func.attr == "to" and call.args:
                text = text_of(call.args[0]) or ""
                if "device" in text and not _is_cpu(self.names, call.args[0]):
                    return True
        return False

    def _mentions(self, *words: str) -> bool:
        return any(re.search(rf"\b{word}\b", self.text) for word in words)


def is_no_grad(names: Names, node: ast.AST) -> bool:
    """Returns True if a ``with`` statement or a function runs without gradients."""
    found: list[ast.expr] = []
    if isinstance(node, ast.With | ast.AsyncWith):
        found = [item.context_expr for item in node.items]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        found = list(node.decorator_list)
    texts = (names.dotted(item.func if isinstance(item, ast.Call) else item) or "" for item in found)
    return any(text.rpartition(".")[2] in ("no_grad", "inference_mode") for text in texts)


def _is_cpu(names: Names, node: ast.expr) -> bool:
    """Returns True if an expression is certainly the CPU as a device."""
    node = names.definition(node)
    if isinstance(node, ast.Call) and names.called(node) == "torch.device" and node.args:
        node = node.args[0]
    return isinstance(node, ast.Constant) and node.value in ("cpu", "mps")


def _is_coarse(loop: Any) -> bool:
    if isinstance(loop, ast.While):
        return False
    names = [node.id.lower() for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
    words = (n for n in ast.walk(loop.iter) if isinstance(n, ast.Name | ast.Attribute))
    over = [(n.id if isinstance(n, ast.Name) else n.attr).lower() for n in words]
    # "for t in range(num_epochs)" counts epochs too; "for step, batch in enumerate(epoch_iterator)" does not.
    is_range = isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Name) and loop.iter.func.id == "range"
    return any(map(_COARSE.search, names)) or (is_range and any(map(_COARSE.search, over)))


def _names_loader(node: ast.expr) -> bool:
    names = [
        n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)
    ]
    return any(re.search(r"loader|batches|dataset|data_iter", name.lower()) for name in names)
