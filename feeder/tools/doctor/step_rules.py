"""Rules on every training step of a script: copies, waits for the GPU, precision, gradients."""

from __future__ import annotations

import ast
import copy
import re

from feeder.tools.doctor.device_flow import Event, Walk
from feeder.tools.doctor.finding import WAITS
from feeder.tools.doctor.rules import NO_MIXED_PRECISION, RuleFindings
from feeder.tools.doctor.script import StepCode

__all__ = ["StepRules"]

_PRECISION = re.compile(
    r"autocast|\bamp\b|amp_|GradScaler|bfloat16|float16|\.half\(|fp16|bf16|fp8|mixed_precision|precision|deepspeed|apex",
    re.IGNORECASE,
)


class StepRules:
    """Rules on training steps.

    Args:
        findings: Takes the findings.
    """

    def __init__(self, findings: RuleFindings) -> None:
        self._add = findings.add
        self.script = findings.script
        self.names = findings.script.names

    def check(self) -> None:
        """Checks every training loop and step, and the modules that they call."""
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
                self._add("autocast", region.node, NO_MIXED_PRECISION, remedy, "note")

    def _event(self, event: Event, node: ast.expr, about: ast.expr) -> None:
        text = _shortened(about)
        gpu_only = event not in ("file",)
        if gpu_only and not self.script.uses_gpu:
            return
        if event == "item":
            remedy = f"read it every N steps (if step % 100 == 0: ...); until then keep {text}.detach(), or a sum on "
            remedy += "the GPU"
            what = f"{_shortened(node)} in every step waits for the GPU"
            self._add("sync-item", node, WAITS, remedy, what=what)
        elif event == "cpu":
            remedy = (
                f"compute on the GPU and read the result once per epoch, or collect {text}.detach() and copy at the end"
            )
            what = f"{_shortened(node)} in every step waits for the GPU"
            self._add("sync-cpu", node, WAITS, remedy, what=what)
        elif event == "print":
            remedy = f"every N steps only: if step % 100 == 0: ...; until then, collect {text}.detach()"
            self._add("sync-print", node, WAITS, remedy, what=f"{text} is shown in every step, which waits for the GPU")
        elif event == "copy":
            assert isinstance(node, ast.Call)
            if self.script.is_lightning:
                why = "Lightning has already moved the batch, without blocking."
                self._add("blocking-copy", node, why, "leave it out", "note")
                return
            better = copy.deepcopy(node)
            better.keywords = [k for k in better.keywords if k.arg != "non_blocking"]
            better.keywords.append(ast.keyword("non_blocking", ast.Constant(True)))
            why = "The loop waits for the copy, which from page-locked memory could overlap with the previous step."
            remedy = f"{ast.unparse(better)}, and pin_memory=True in the loader"
            self._add("blocking-copy", node, why, remedy, what=f"{_shortened(node)} waits for the copy")
        elif event == "made":
            why = "In every step the CPU fills it and copies it to the GPU, and the loop waits for the copy."
            remedy = "make it there" + _made_there(self.names.definition(about), node)
            self._add("cpu-then-move", node, why, remedy)
        elif event == "empty-cache":
            why = "It waits for the GPU and returns memory to the driver, only to allocate it again in the next step "
            why += "(cudaMalloc waits too). It makes no more memory available to torch."
            self._add(
                "empty-cache", node, why, "leave it out, or call it once before a phase with other shapes (evaluation)"
            )
        else:
            name = self.names.called(node) or "torch.load"
            why = "The loop stops while the disk reads or writes and while the tensors are copied from or to the GPU."
            remedy = "every N steps or once per epoch; save in a thread or by torch.distributed.checkpoint.async_save"
            if name == "torch.load":
                remedy = "load in the data set's __getitem__, which workers run ahead; or once, before the loop"
            self._add("file-in-loop", node, why, remedy, what=f"{name} in every step")

    def _zero_grad(self, region: StepCode) -> None:
        script = self.script
        if script.is_lightning and "manual_backward" not in script.text:
            return
        if script.frameworks & {"deepspeed", "fastai"} or re.search(
            r"dist_autograd|distributed\.autograd", script.text
        ):
            return  # DeepSpeed clears gradients in step(), and distributed autograd makes new ones in each context
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
        # Code outside of this file may clear them: a helper that gets the optimizer.
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
        why = "backward() adds to the gradients: each step follows the sum of all gradients so far."
        remedy = f"{text}.zero_grad(set_to_none=True) after each {text}.step()"
        self._add("zero-grad", steps[0], why, remedy, "problem", f"gradients are never cleared{where}")


def _shortened(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 48 else text[:45] + "..."


def _made_there(made: ast.expr, move: ast.expr) -> str:
    """Returns the rewrite of ``torch.zeros(n).to(device)``."""
    if not isinstance(made, ast.Call) or not isinstance(move, ast.Call):
        return ": device=... where it is made"
    device = next((k.value for k in move.keywords if k.arg == "device"), move.args[0] if move.args else None)
    better = copy.deepcopy(made)
    better.keywords.append(ast.keyword("device", device or ast.Constant("cuda")))
    return f": {ast.unparse(better)}"
