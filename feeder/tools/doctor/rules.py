"""The classic mistakes of training scripts: what each costs, and the rewrite."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator

from feeder.tools.doctor.finding import WAITS, Finding, Level
from feeder.tools.doctor.flow import Event, Walk
from feeder.tools.doctor.names import Default, arguments_of, text_of
from feeder.tools.doctor.script import Region, Script
from feeder.tools.doctor.source import Source

__all__ = ["RULES", "check"]

RULES = {
    "num-workers": "the loader has no workers",
    "feeder-path": "a feeder dataset without feeder's fast path",
    "pin-memory": "the loader's batches are not page-locked",
    "blocking-copy": "a copy to the GPU that the loop waits for",
    "cpu-then-move": "a tensor made on the CPU and then moved",
    "sync-item": "a number read back from the GPU in every step",
    "sync-cpu": "a tensor copied back from the GPU in every step",
    "sync-print": "a tensor printed or logged in every step",
    "data-parallel": "DataParallel",
    "autocast": "no mixed precision",
    "zero-grad": "gradients never cleared",
    "set-epoch": "a DistributedSampler that has the same order in every epoch",
    "file-in-loop": "torch.load or torch.save in every step",
    "empty-cache": "torch.cuda.empty_cache() in every step",
}
_EVENTS: dict[Event, str] = {
    "item": "sync-item",
    "cpu": "sync-cpu",
    "print": "sync-print",
    "copy": "blocking-copy",
    "made": "cpu-then-move",
    "empty-cache": "empty-cache",
    "file": "file-in-loop",
}
_LOADER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
_LOADERS = {
    "torch.utils.data.DataLoader",
    "torchdata.stateful_dataloader.StatefulDataLoader",
    "torch_geometric.loader.DataLoader",
    "feeder.DataLoader",
}
_FEEDER_DATASETS = ("feeder.ShardDataset", "feeder.FolderDataset")
_TORCH_WRAPPERS = ("torch.utils.data.Subset", "torch.utils.data.random_split", "torch.utils.data.ConcatDataset")
_PRECISION = re.compile(
    r"autocast|\bamp\b|amp_|GradScaler|bfloat16|float16|\.half\(|fp16|bf16|fp8|mixed_precision|precision|deepspeed|apex",
    re.IGNORECASE,
)


class _Checker:
    def __init__(self, source: Source, script: Script) -> None:
        self.source, self.script, self.names = source, script, script.names
        self.found: dict[tuple[str, int, int], tuple[Finding, ast.AST]] = {}

    def add(self, rule: str, node: ast.AST, why: str, remedy: str, level: Level = "warning", what: str = "") -> None:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        finding = Finding(
            name=rule,
            level=level,
            found=what or RULES[rule],
            why=why,
            remedy=remedy,
            file=self.source.path,
            line=line,
            column=column + 1,
            excerpt=self.source.excerpt(line),
            place=self.source.place(line),
        )
        self.found.setdefault((rule, line, column), (finding, node))

    def loaders(self) -> None:
        trains = bool(self.script.regions) or self.script.is_lightning
        for call in self.script.calls():
            name = self.names.called(call) or ""
            if name in _LOADERS and not self._is_one_batch(call):
                given, is_all = arguments_of(call, *_LOADER)
                self._workers(call, name, given, is_all)
                self._path(call, name, given)
                if trains:
                    self._pinned(call, name, given, is_all)
            elif name.endswith("TrainingArguments") and name.startswith("transformers"):
                self._training_arguments(call)
            elif name == "pytorch_lightning.Trainer":
                given, is_all = arguments_of(call)
                accelerator = given.get("accelerator")
                on_cpu = accelerator is not None and self.names.value(accelerator) == "cpu"
                if is_all and "precision" not in given and not on_cpu:
                    remedy = 'Trainer(..., precision="bf16-mixed"), or "16-mixed" before Ampere'
                    self.add("autocast", call, _precision_why(), remedy, "note")

    def _is_one_batch(self, call: ast.Call) -> bool:
        """Whether a loader is made for a single batch: next(iter(DataLoader(...)))."""
        around = self.script.parents.get(call)
        return isinstance(around, ast.Call) and text_of(around.func) == "iter"

    def _workers(self, call: ast.Call, name: str, given: dict[str, ast.expr], is_all: bool) -> None:
        why = "The training loop reads, decodes and collates every batch itself, and the GPU waits for all of it."
        remedy = "num_workers=4 or more (up to the cores given to each rank; feeder doctor says how many those are)"
        if name != "feeder.DataLoader":
            remedy += ", persistent_workers=True"
        if "num_workers" not in given:
            if is_all and not self._is_in_memory(given.get("dataset"), 0):
                self.add("num-workers", call, why, remedy)
            return
        value = self.names.value(given["num_workers"])
        if isinstance(value, Default) and value.value == 0 and type(value.value) is int:
            if not self._is_in_memory(given.get("dataset"), 0):
                what = f"the loader has no workers unless {value.option} is given"
                self.add("num-workers", call, why, f"another default for {value.option}: 4 or more", "note", what)
        elif value == 0 and type(value) is int and not self._is_in_memory(given.get("dataset"), 0):
            self.add("num-workers", call, why, remedy)

    def _path(self, call: ast.Call, name: str, given: dict[str, ast.expr]) -> None:
        wrapper = self._around_feeder(given.get("dataset"), 0)
        if wrapper is None:
            return
        why = "Its workers decode without feeder's order, rank split and speed."
        if name != "feeder.DataLoader":
            remedy = "feeder.DataLoader with the same arguments"
            self.add("feeder-path", call, why, remedy, what="a feeder dataset in a loader that is not feeder's")
        elif wrapper:
            remedy = "give the feeder dataset itself to the loader, and change what comes out in a collate_fn"
            self.add("feeder-path", call, why, remedy, what=f"{wrapper} around a feeder dataset: the fast path is off")
        elif "batch_size" in given and self.names.value(given["batch_size"]) is None:
            what = "batch_size=None: the fast path is off"
            self.add("feeder-path", call, why, "batch_size=32 or more, without batches of your own", what=what)

    def _around_feeder(self, node: ast.expr | None, depth: int) -> str | None:
        """The class of this file that hides a feeder dataset; "" for one that is none or torch's, None for no
        feeder dataset."""
        if node is None or depth > 4:
            return None
        if isinstance(node, ast.Subscript):
            node = node.value
        node = self.names.definition(node)
        if isinstance(node, ast.List | ast.Tuple):
            found = [self._around_feeder(item, depth + 1) for item in node.elts]
            return next((each for each in found if each is not None), None)
        if not isinstance(node, ast.Call):
            return None
        name = self.names.called(node) or ""
        if name in _FEEDER_DATASETS:
            return ""
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if name in _TORCH_WRAPPERS:
            return self._around_feeder(arguments[0], depth + 1) if arguments else None
        if name in self.script.classes:
            inside = [self._around_feeder(argument, depth + 1) for argument in arguments]
            return name if any(each is not None for each in inside) else None
        return None

    def _pinned(self, call: ast.Call, name: str, given: dict[str, ast.expr], is_all: bool) -> None:
        script = self.script
        if not script.uses_gpu or not is_all or "accelerate" in script.frameworks or "pin_memory()" in script.text:
            return
        if name == "feeder.DataLoader" and "device" in given:
            return
        if "pin_memory" in given and self.names.value(given["pin_memory"]) is not False:
            return
        if script.is_lightning and not re.search(r"accelerator\s*=\s*['\"](gpu|cuda)", script.text):
            return
        why = "Copies to the GPU go through a second buffer and can't overlap with the step."
        remedy = "pin_memory=True, and .to(device, non_blocking=True)"
        if name == "feeder.DataLoader":
            remedy = 'device="cuda": batches are copied ahead and arrive on the GPU'
        self.add("pin-memory", call, why, remedy)

    def _training_arguments(self, call: ast.Call) -> None:
        given, is_all = arguments_of(call)
        if not is_all:
            return
        value = self.names.value(given["dataloader_num_workers"]) if "dataloader_num_workers" in given else 0
        if value == 0:
            why = "The Trainer's loader has no workers unless told: the training loop makes every batch itself."
            self.add("num-workers", call, why, "TrainingArguments(..., dataloader_num_workers=4)")
        if not given.keys() & {"fp16", "bf16", "use_cpu", "no_cuda", "deepspeed", "fp16_full_eval"}:
            self.add("autocast", call, _precision_why(), "TrainingArguments(..., bf16=True)", "note")

    def _is_in_memory(self, node: ast.expr | None, depth: int) -> bool:
        """Whether a data set surely lies in memory, where workers cost more than they gain."""
        if node is None or depth > 4:
            return False
        if isinstance(node, ast.List | ast.ListComp | ast.Tuple):
            return True
        found = self.names.definition(node)
        if found is not node:
            return self._is_in_memory(found, depth + 1)
        if isinstance(node, ast.Subscript):
            return self._is_in_memory(node.value, depth + 1)
        if not isinstance(node, ast.Call):
            return False
        name = self.names.called(node) or ""
        last = name.rpartition(".")[2]
        if last in ("TensorDataset", "range", "list", "zip", "FakeData"):
            return True
        if last in ("Subset", "random_split", "ConcatDataset") and node.args:
            return self._is_in_memory(node.args[0], depth + 1)
        owner = self.script.classes.get(name)
        return owner is not None and _only_indexes(owner)

    def everywhere(self) -> None:
        script = self.script
        # Where it is used, not only imported.
        named = (n for n in ast.walk(self.source.tree) if isinstance(n, ast.Name | ast.Attribute))
        has_ddp = any((self.names.dotted(n) or "").endswith("DistributedDataParallel") for n in named)
        for call in script.calls() if script.regions else ():
            if self.names.called(call) == "torch.nn.DataParallel":
                why = "One process drives all GPUs: it copies the model to each in every step, gathers the outputs on "
                why += "the first, and Python's lock makes them take turns."
                remedy = "DistributedDataParallel, one process a GPU: torchrun --nproc-per-node=gpu train.py"
                what = (
                    "DataParallel where DistributedDataParallel is not chosen"
                    if has_ddp
                    else "DataParallel in place of "
                )
                what += "" if has_ddp else "DistributedDataParallel"
                self.add("data-parallel", call, why, remedy, "note" if has_ddp else "warning", what)
        if not script.prepares_loaders and not re.search(r"\bset_epoch\b", script.text):
            self._samplers()

    def _samplers(self) -> None:
        if not any(region.loops_around for region in self.script.regions):
            return
        for call in self.script.calls():
            if self.names.called(call) != "torch.utils.data.DistributedSampler":
                continue
            given, is_all = arguments_of(call, "dataset", "num_replicas", "rank", "shuffle")
            shuffle = self.names.value(given["shuffle"]) if "shuffle" in given else True
            around = self.script.parents.get(call)
            texts = [text_of(t) or "" for t in around.targets] if isinstance(around, ast.Assign) else []
            texts += [ast.unparse(given["dataset"])] if "dataset" in given else []
            if is_all and shuffle is True and not re.search(r"val|test|eval", " ".join(texts).lower()):
                name = texts[0] if len(texts) > 1 and texts[0] else "sampler"
                why = "Its order follows from seed and epoch, and the epoch stays 0: every epoch has the same order."
                remedy = f"{name}.set_epoch(epoch) before each epoch; feeder.DataLoader needs neither sampler nor call"
                self.add("set-epoch", call, why, remedy, "problem")

    def regions(self) -> None:
        script = self.script
        for region in script.regions:
            self._zero_grad(region)
            if region.coarse:
                continue
            walk = Walk(script, self._event)
            walk.region(region)
        if script.uses_gpu and any(not region.coarse for region in script.regions):
            for owner in script.classes.values():
                for function in owner.body:
                    if isinstance(function, ast.FunctionDef) and function.name == "forward" and script.is_module(owner):
                        Walk(script, self._event).module(function)
            region = next(r for r in script.regions if not r.coarse)
            if not _PRECISION.search(script.text) and not script.is_lightning and not script.prepares_loaders:
                remedy = 'with torch.autocast("cuda", torch.bfloat16): around the forward pass and the loss; before '
                remedy += "Ampere float16 with torch.amp.GradScaler"
                self.add("autocast", region.node, _precision_why(), remedy, "note")

    def _event(self, event: Event, node: ast.expr, about: ast.expr) -> None:
        text = _shortened(about)
        gpu_only = event not in ("file",)
        if gpu_only and not self.script.uses_gpu:
            return
        if event == "item":
            remedy = (
                f"read it every N steps (if step % 100 == 0: ...), and until then keep {text}.detach(), or a sum on "
            )
            remedy += "the GPU"
            what = f"{_shortened(node)} in every step waits for the GPU"
            self.add("sync-item", node, WAITS, remedy, what=what)
        elif event == "cpu":
            remedy = (
                f"compute on the GPU and read the result once an epoch, or collect {text}.detach() and copy at the end"
            )
            what = f"{_shortened(node)} in every step waits for the GPU"
            self.add("sync-cpu", node, WAITS, remedy, what=what)
        elif event == "print":
            remedy = (
                f"every N steps only: if step % 100 == 0: ...; the rest of the time {text}.detach() may be collected"
            )
            self.add("sync-print", node, WAITS, remedy, what=f"{text} is shown in every step, which waits for the GPU")
        elif event == "copy":
            assert isinstance(node, ast.Call)
            if self.script.is_lightning:
                why = "Lightning has moved the batch already, without blocking."
                self.add("blocking-copy", node, why, "leave it out", "note")
                return
            better = copy.deepcopy(node)
            better.keywords = [k for k in better.keywords if k.arg != "non_blocking"]
            better.keywords.append(ast.keyword("non_blocking", ast.Constant(True)))
            why = "The loop waits for the copy; with page-locked memory it could run while the step before is computed."
            remedy = f"{ast.unparse(better)}, and pin_memory=True in the loader"
            self.add("blocking-copy", node, why, remedy, what=f"{_shortened(node)} waits for the copy")
        elif event == "made":
            why = "It is filled by the CPU and copied over, in every step, and the copy blocks."
            remedy = "make it there" + _made_there(self.names.definition(about), node)
            self.add("cpu-then-move", node, why, remedy)
        elif event == "empty-cache":
            why = (
                "It waits for the GPU and gives memory back to the driver, which has to hand it out again in the next "
            )
            why += "step (cudaMalloc: a wait too). It makes no more memory available to torch."
            self.add("empty-cache", node, why, "leave it out, or once before a phase of another shape (evaluation)")
        else:
            name = self.names.called(node) or "torch.load"
            why = (
                "Reading or writing a file in the loop stops it for as long as the disk takes, and a copy from the GPU."
            )
            remedy = (
                "every N steps or once an epoch; saving in a thread or with torch.distributed.checkpoint.async_save"
            )
            if name == "torch.load":
                remedy = "in the data set's __getitem__, where workers do it ahead; or once, before the loop"
            self.add("file-in-loop", node, why, remedy, what=f"{name} in every step")

    def _zero_grad(self, region: Region) -> None:
        script = self.script
        if script.is_lightning and "manual_backward" not in script.text:
            return
        if script.frameworks & {"deepspeed", "fastai"} or re.search(
            r"dist_autograd|distributed\.autograd", script.text
        ):
            return  # DeepSpeed clears them in step(), and distributed autograd makes new ones in each context
        calls = list(script.reached(region.body, region.owner, loops=True))
        steps = [call for call in calls if script.steps_optimizer(call)]
        if not steps:
            return
        cleared = any(isinstance(c.func, ast.Attribute) and c.func.attr in ("zero_grad", "zero_") for c in calls)
        nodes = [n for statement in region.body for n in ast.walk(statement)]
        cleared = cleared or any(
            isinstance(n, ast.Assign) and any(isinstance(t, ast.Attribute) and t.attr == "grad" for t in n.targets)
            for n in nodes
        )
        # What is not in this file may clear them: a helper that gets the optimizer, or a call on an object of its own.
        elsewhere = any(
            any(map(script.is_optimizer, [*c.args, *(k.value for k in c.keywords)]))
            and script.resolve(c, region.owner) is None
            and not (isinstance(c.func, ast.Attribute) and c.func.attr in ("step", "unscale_", "update"))
            for c in calls
        )
        if cleared or elsewhere:
            return
        optimizer = steps[0].func.value if isinstance(steps[0].func, ast.Attribute) else None
        if optimizer is not None and not script.is_optimizer(optimizer) and steps[0].args:
            optimizer = steps[0].args[0]
        text = ast.unparse(optimizer) if optimizer is not None else "optimizer"
        where = " in this loop" if re.search(r"zero_grad", script.text) else ""
        why = "backward() adds to the gradients that are there: each step goes along the sum of all before it."
        remedy = f"{text}.zero_grad(set_to_none=True) after each {text}.step()"
        self.add("zero-grad", steps[0], why, remedy, "problem", f"gradients are never cleared{where}")


def check(source: Source, script: Script) -> Iterator[Finding]:
    """The findings of a script, by line, without those that its comments silence."""
    checker = _Checker(source, script)
    checker.loaders()
    checker.everywhere()
    checker.regions()
    for key in sorted(checker.found, key=lambda key: (key[1], key[2], key[0])):
        finding, node = checker.found[key]
        last = finding.line if isinstance(node, ast.stmt) else getattr(node, "end_lineno", None) or finding.line
        statement: ast.AST = node
        while not isinstance(statement, ast.stmt) and statement in script.parents:
            statement = script.parents[statement]
        lines = {getattr(statement, "lineno", finding.line), *range(finding.line, last + 1)}
        silenced = {rule for line in lines for rule in source.ignores.get(line, ())}
        if not silenced & {finding.name, "*"}:
            yield finding


def _precision_why() -> str:
    return (
        "In float32 the matrix units of a GPU run at a fraction of their rate, and activations take twice the memory."
    )


def _shortened(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 48 else text[:45] + "..."


def _made_there(made: ast.expr, move: ast.expr) -> str:
    """The rewrite of ``torch.zeros(n).to(device)``; "" where it can't be given in full."""
    if not isinstance(made, ast.Call) or not isinstance(move, ast.Call):
        return ": device=... where it is made"
    device = next((k.value for k in move.keywords if k.arg == "device"), move.args[0] if move.args else None)
    better = copy.deepcopy(made)
    better.keywords.append(ast.keyword("device", device or ast.Constant("cuda")))
    return f": {ast.unparse(better)}"


def _only_indexes(owner: ast.ClassDef) -> bool:
    """Whether a data set's __getitem__ takes what is in memory already: no call but of the simplest."""
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__getitem__":
            calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
            return all(_is_simple(call) for call in calls)
    return False


def _is_simple(call: ast.Call) -> bool:
    text = (text_of(call.func) or "").rpartition(".")[2]
    return text in ("tensor", "from_numpy", "as_tensor", "int", "float", "long", "len", "astype", "copy")
