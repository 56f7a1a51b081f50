"""The check of a training script, which is read and never run: its loaders, samplers, and copies of batches.

Waits for results show in a run: ``feeder doctor --run`` names each line, also those in libraries.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from feeder.tools.doctor.finding import Finding, Level
from feeder.tools.doctor.script_loops import LOADER, LOOP_RULES, has_backward, is_copy, mistakes
from feeder.tools.doctor.script_names import Default, Names, arguments_of, text_of
from feeder.tools.instrument.script_file import ScriptSource, read_source

RULES = {
    "num-workers": "the loader has no workers",
    "pin-memory": "the loader's batches are not page-locked",
    "python-images": "the loader's images are made in Python",
    "blocking-copy": "a copy to the GPU that the loop waits for",
    "set-epoch": "a DistributedSampler that has the same order in every epoch",
    **{rule: found for rule, (found, _, _) in LOOP_RULES.items()},
}
_LOADERS = {
    "torch.utils.data.DataLoader",
    "torchdata.stateful_dataloader.StatefulDataLoader",
    "torch_geometric.loader.DataLoader",
    "feeder.DataLoader",
}
# Libraries that place batches on the device themselves, and tell samplers the epoch; of transformers only its Trainer.
_PREPARING = {"pytorch_lightning", "lightning", "lightning_fabric", "accelerate", "fastai", "deepspeed"}
_TRAINER = re.compile(r"\b(from transformers\b.* import .*|transformers\.[\w.]*)Train(er|ing)")
_IN_MEMORY = {"TensorDataset", "FakeData", "range", "list", "zip"}
_WRAPPERS = {"Subset", "random_split", "ConcatDataset"}
_ACCELERATED = re.compile(r"\b(cuda|gpu|xpu|hpu|npu|nccl|local_rank)\b")


def check_script(path: str) -> list[Finding]:
    """Looks for the classic mistakes in a script.

    Args:
        path: The file.

    Returns:
        The findings, by line.

    Raises:
        SourceError: if it can't be read, or is not Python.
    """
    return check_source(read_source(path))


def check_source(source: ScriptSource) -> list[Finding]:
    """Looks for the classic mistakes in a script that has been read."""
    return [*_Check(source).findings()]


class _Check:
    """The rules on one script."""

    def __init__(self, source: ScriptSource) -> None:
        self._source = source
        self._names = Names(source.tree)
        self._found: dict[tuple[int, int, str], Finding] = {}
        self._parents = {child: node for node in ast.walk(source.tree) for child in ast.iter_child_nodes(node)}
        self._calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]

        text = ast.unparse(source.tree)
        prepared = {module.partition(".")[0] for module in self._names.modules} & _PREPARING
        is_prepared = bool(prepared or _TRAINER.search(text))
        self._has_backward = has_backward(source.tree)
        self._places_batches = self._has_backward and not is_prepared and bool(_ACCELERATED.search(text))
        self._sets_epochs = is_prepared or "set_epoch" in text

    def findings(self) -> Iterator[Finding]:
        """Yields the findings by line."""
        for call in self._calls:
            self._check_call(call)
        if self._places_batches:
            for loop in ast.walk(self._source.tree):
                if isinstance(loop, ast.For | ast.AsyncFor) and has_backward(loop):
                    self._check_loop(loop)

        for rule, node in mistakes(self._source.tree, self._names, _LOADERS):
            self._add(rule, node, *LOOP_RULES[rule][1:])
        yield from (self._found[key] for key in sorted(self._found))

    def _add(self, rule: str, node: ast.expr, why: str, remedy: str, level: Level = "warning", what: str = "") -> None:
        finding = Finding(
            name=rule,
            level=level,
            found=what or RULES[rule],
            why=why,
            remedy=remedy,
            file=self._source.path,
            line=node.lineno,
            column=node.col_offset + 1,
            excerpt=self._source.excerpt(node.lineno),
        )
        self._found.setdefault((node.lineno, node.col_offset, rule), finding)

    def _check_call(self, call: ast.Call) -> None:
        """Checks a loader, a sampler, or the arguments of Hugging Face's trainer."""
        name = self._names.called(call) or ""
        around = self._parents.get(call)
        is_one_batch = isinstance(around, ast.Call) and text_of(around.func) == "iter"

        if name in _LOADERS and not is_one_batch:
            given, is_all = arguments_of(call, *LOADER)
            self._workers(call, name, given, is_all)
            self._python_images(call, given.get("dataset"))
            if self._places_batches and is_all and not (name == "feeder.DataLoader" and "device" in given):
                self._pinned(call, name, given)
        elif name.startswith("transformers") and name.endswith("TrainingArguments"):
            given, is_all = arguments_of(call)
            value = self._names.value(given["dataloader_num_workers"]) if "dataloader_num_workers" in given else 0
            if is_all and value == 0:
                why = "The Trainer's loader has no workers by default: the training loop makes every batch itself."
                self._add("num-workers", call, why, "TrainingArguments(..., dataloader_num_workers=4)")
        elif name == "torch.utils.data.DistributedSampler" and self._has_backward and not self._sets_epochs:
            self._sampler(call)

    def _workers(self, call: ast.Call, name: str, given: dict[str, ast.expr], is_all: bool) -> None:
        why = "The training loop reads, decodes and collates every batch itself, while the GPU waits."
        remedy = "num_workers=4 or more (up to the cores of each rank; feeder doctor shows them)"
        if name != "feeder.DataLoader":
            remedy += ", persistent_workers=True"

        value = self._names.value(given["num_workers"]) if "num_workers" in given else 0 if is_all else ...
        number = value.value if isinstance(value, Default) else value
        if number != 0 or type(number) is not int or self._is_in_memory(given.get("dataset")):
            return
        if isinstance(value, Default):
            what = f"the loader has no workers unless {value.option} is given"
            self._add("num-workers", call, why, f"a default of 4 or more for {value.option}", "note", what)
        else:
            self._add("num-workers", call, why, remedy)

    def _python_images(self, call: ast.Call, dataset: ast.expr | None) -> None:
        """Names a dataset of torchvision's that feeder reads natively."""
        from feeder.dataset.foreign import TORCHVISION_KINDS  # with numpy, which the report of a machine does without

        origin = self._origin(dataset)
        library, _, kind = (self._names.called(origin) or "").rpartition(".") if origin is not None else ("", "", "")
        if library.startswith("torchvision.datasets") and kind in TORCHVISION_KINDS:
            why = f"Each worker decodes and augments the images of this {kind} with Pillow and torchvision, one by one."
            remedy = "feeder.DataLoader(feeder.from_torch(dataset), ...): the same samples and transform, made natively"
            self._add("python-images", call, why, remedy, "note")

    def _is_in_memory(self, node: ast.expr | None) -> bool:
        """Returns True if a data set is certainly in memory, where workers cost more than they gain."""
        found = self._origin(node)
        if found is None:
            return False
        last = (self._names.called(found) or "").rpartition(".")[2]
        return last in _IN_MEMORY or isinstance(found, ast.List | ast.ListComp | ast.Tuple)

    def _origin(self, node: ast.expr | None, depth: int = 0) -> ast.expr | None:
        """Returns the expression that makes a data set, behind names and wrappers; None if it is far away."""
        if node is None or depth > 4:
            return None
        found = self._names.definition(node.value if isinstance(node, ast.Subscript) else node)
        if found is not node and not isinstance(found, ast.Call):
            return self._origin(found, depth + 1)
        last = (self._names.called(found) or "").rpartition(".")[2]
        if isinstance(found, ast.Call) and found.args and last in _WRAPPERS:
            return self._origin(found.args[0], depth + 1)
        return found

    def _pinned(self, call: ast.Call, name: str, given: dict[str, ast.expr]) -> None:
        if "pin_memory" in given and self._names.value(given["pin_memory"]) is not False:
            return
        why = "Copies to the GPU go through a second buffer and can't overlap with the step."
        remedy = "pin_memory=True, and .to(device, non_blocking=True)"
        if name == "feeder.DataLoader":
            remedy = 'device="cuda": batches are copied ahead and arrive on the GPU'
        self._add("pin-memory", call, why, remedy)

    def _sampler(self, call: ast.Call) -> None:
        given, is_all = arguments_of(call, "dataset", "num_replicas", "rank", "shuffle")
        around = self._parents.get(call)
        texts = [text_of(target) or "" for target in around.targets] if isinstance(around, ast.Assign) else []
        shown = " ".join([*texts, *(ast.unparse(given[name]) for name in given.keys() & {"dataset"})]).lower()

        is_shuffled = "shuffle" not in given or self._names.value(given["shuffle"]) is True
        if is_all and is_shuffled and not re.search(r"val|test|eval", shown):
            why = "Its order follows from seed and epoch, and the epoch stays 0: every epoch has the same order."
            remedy = f"{next(filter(None, texts), 'sampler')}.set_epoch(epoch) before each epoch; feeder.DataLoader "
            remedy += "needs neither sampler nor call"
            self._add("set-epoch", call, why, remedy, "problem")

    def _check_loop(self, loop: ast.For | ast.AsyncFor) -> None:
        """Checks the copies of what a training loop iterates over."""
        batch = _names_in(loop.target)
        for each in ast.walk(loop):
            if isinstance(each, ast.comprehension) and _root(each.iter) in batch:
                batch |= _names_in(each.target)
            elif isinstance(each, ast.Assign) and not isinstance(each.value, ast.Call) and _root(each.value) in batch:
                batch |= set[str]().union(*map(_names_in, each.targets))

        for call in ast.walk(loop):
            if isinstance(call, ast.Call) and _root(call.func) in batch and _is_blocking_copy(call):
                shown = " ".join(ast.unparse(call).split())
                why = "The loop waits for the copy, which from page-locked memory could overlap with the previous step."
                remedy = "add non_blocking=True, and pin_memory=True in the loader"
                self._add("blocking-copy", call, why, remedy, what=f"{shown} waits for the copy")


def _names_in(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _root(node: ast.expr) -> str:
    """Returns the name that a chain of attributes, calls and subscripts begins with; empty without one."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_blocking_copy(call: ast.Call) -> bool:
    """Returns True if a call copies to a device, and whoever calls waits for it."""
    given, _ = arguments_of(call)
    waits = given.get("non_blocking")
    is_asked = waits is not None and not (isinstance(waits, ast.Constant) and waits.value is False)
    return is_copy(call) and not is_asked and all(keyword.arg for keyword in call.keywords)
