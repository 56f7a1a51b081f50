"""Rules on what a script creates before it trains: loaders, samplers, and wrappers of the model."""

from __future__ import annotations

import ast
import re

from feeder.tools.doctor.rules import NO_MIXED_PRECISION, RuleFindings
from feeder.tools.doctor.script_names import Default, arguments_of, text_of

__all__ = ["LoaderRules"]

_LOADER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
_LOADERS = {
    "torch.utils.data.DataLoader",
    "torchdata.stateful_dataloader.StatefulDataLoader",
    "torch_geometric.loader.DataLoader",
    "feeder.DataLoader",
}
_FEEDER_DATASETS = ("feeder.ShardDataset", "feeder.FolderDataset")
_TORCH_WRAPPERS = ("torch.utils.data.Subset", "torch.utils.data.random_split", "torch.utils.data.ConcatDataset")


class LoaderRules:
    """Rules on loaders, samplers and wrappers of the model.

    Args:
        findings: Takes the findings.
    """

    def __init__(self, findings: RuleFindings) -> None:
        self._add = findings.add
        self.script = findings.script
        self.names = findings.script.names

    def check(self) -> None:
        """Checks every loader, sampler and wrapper of a model."""
        self._loaders()
        self._whole_script()

    def _loaders(self) -> None:
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
                    self._add("autocast", call, NO_MIXED_PRECISION, remedy, "note")

    def _is_one_batch(self, call: ast.Call) -> bool:
        """Returns True if a loader is made for a single batch: next(iter(DataLoader(...)))."""
        around = self.script.parents.get(call)
        return isinstance(around, ast.Call) and text_of(around.func) == "iter"

    def _workers(self, call: ast.Call, name: str, given: dict[str, ast.expr], is_all: bool) -> None:
        why = "The training loop reads, decodes and collates every batch itself, while the GPU waits."
        remedy = "num_workers=4 or more (up to the cores of each rank; feeder doctor shows them)"
        if name != "feeder.DataLoader":
            remedy += ", persistent_workers=True"
        if "num_workers" not in given:
            if is_all and not self._is_in_memory(given.get("dataset"), 0):
                self._add("num-workers", call, why, remedy)
            return
        value = self.names.value(given["num_workers"])
        if isinstance(value, Default) and value.value == 0 and type(value.value) is int:
            if not self._is_in_memory(given.get("dataset"), 0):
                what = f"the loader has no workers unless {value.option} is given"
                self._add("num-workers", call, why, f"a default of 4 or more for {value.option}", "note", what)
        elif value == 0 and type(value) is int and not self._is_in_memory(given.get("dataset"), 0):
            self._add("num-workers", call, why, remedy)

    def _path(self, call: ast.Call, name: str, given: dict[str, ast.expr]) -> None:
        wrapper = self._around_feeder(given.get("dataset"), 0)
        if wrapper is None:
            return
        why = "Its workers decode without feeder's order, rank split and speed."
        if name != "feeder.DataLoader":
            remedy = "feeder.DataLoader with the same arguments"
            self._add("feeder-path", call, why, remedy, what="a feeder dataset in a loader that is not feeder's")
        elif wrapper:
            remedy = "give the feeder dataset itself to the loader, and change its samples in a collate_fn"
            self._add("feeder-path", call, why, remedy, what=f"{wrapper} around a feeder dataset: the fast path is off")
        elif "batch_size" in given and self.names.value(given["batch_size"]) is None:
            what = "batch_size=None: the fast path is off"
            why, remedy = (
                "Its workers decode without feeder's speed.",
                "batch_size=32 or more in place of your own batches",
            )
            self._add("feeder-path", call, why, remedy, what=what)

    def _around_feeder(self, node: ast.expr | None, depth: int) -> str | None:
        """Returns the name of the class of this file that wraps a feeder dataset.

        Returns:
            "" for a feeder dataset alone or in torch's wrappers, None for anything else.
        """
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
        self._add("pin-memory", call, why, remedy)

    def _training_arguments(self, call: ast.Call) -> None:
        given, is_all = arguments_of(call)
        if not is_all:
            return
        value = self.names.value(given["dataloader_num_workers"]) if "dataloader_num_workers" in given else 0
        if value == 0:
            why = "The Trainer's loader has no workers by default: the training loop makes every batch itself."
            self._add("num-workers", call, why, "TrainingArguments(..., dataloader_num_workers=4)")
        if not given.keys() & {"fp16", "bf16", "use_cpu", "no_cuda", "deepspeed", "fp16_full_eval"}:
            self._add("autocast", call, NO_MIXED_PRECISION, "TrainingArguments(..., bf16=True)", "note")

    def _is_in_memory(self, node: ast.expr | None, depth: int) -> bool:
        """Returns True if a data set is certainly in memory, where workers cost more than they gain."""
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

    def _whole_script(self) -> None:
        script = self.script
        # Uses count, imports alone do not.
        named = (n for n in ast.walk(self.script.tree) if isinstance(n, ast.Name | ast.Attribute))
        has_ddp = any((self.names.dotted(n) or "").endswith("DistributedDataParallel") for n in named)
        for call in script.calls() if script.regions else ():
            if self.names.called(call) == "torch.nn.DataParallel":
                why = "One process drives all GPUs: it copies the model to each in every step, gathers the outputs on "
                why += "the first, and Python's lock makes them take turns."
                remedy = "DistributedDataParallel, one process per GPU: torchrun --nproc-per-node=gpu train.py"
                what = "DataParallel where DistributedDataParallel is not chosen"
                if not has_ddp:
                    what = "DataParallel in place of DistributedDataParallel"
                self._add("data-parallel", call, why, remedy, "note" if has_ddp else "warning", what)
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
                self._add("set-epoch", call, why, remedy, "problem")


def _only_indexes(owner: ast.ClassDef) -> bool:
    """Returns True if a data set's __getitem__ only indexes memory: it calls nothing but the simplest functions."""
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__getitem__":
            calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
            return all(_is_simple(call) for call in calls)
    return False


def _is_simple(call: ast.Call) -> bool:
    text = (text_of(call.func) or "").rpartition(".")[2]
    return text in ("tensor", "from_numpy", "as_tensor", "int", "float", "long", "len", "astype", "copy")
