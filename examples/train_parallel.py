"""The ways to spread examples/train.py over devices: one for each choice of --parallel.

    torchrun --nproc-per-node 8 examples/train.py train val --out runs/first --parallel ddp
    torchrun --nproc-per-node 8 examples/train.py train val --out runs/first --parallel fsdp
    torchrun --nproc-per-node 8 examples/train.py train val --out runs/first --parallel pipeline --stages 4

none, ddp and dp keep the whole model on each device; fsdp shards its parameters, and a pipeline its layers. Each way
has the whole model's state in a checkpoint, so a run may go on another way.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel, parallel_apply, replicate
from torch.utils._pytree import tree_map

__all__ = ["WAYS"]


class Whole:
    """none and ddp: each process has the whole model.

    Attributes:
        part, parts: The part of each batch that this process trains with, and the number of parts.
        source, peers: Rank whose BatchNorm statistics count, and the group that takes them over; None: all processes.
    """

    peers: Any = None

    def __init__(self, args: Any) -> None:
        self.args, self.source = args, 0
        is_distributed = distributed.is_initialized()
        self.part = distributed.get_rank() if is_distributed else 0
        self.parts = distributed.get_world_size() if is_distributed else 1

    def loader_options(self, training: bool) -> dict[str, Any]:
        """Returns the loader's arguments that depend on the process."""
        # Whoever gives a rank leaves out by himself what fills the last batch, as validate() does.
        return {} if training else {"rank": self.part, "world_size": self.parts}

    def begin(self, loader: Any) -> tuple[int, Iterable[tuple[Any, Any]]]:
        """Returns the number of batches that are left of an epoch, and them: (images, labels)."""
        batches = iter(loader)
        return len(batches), batches

    def shared(self, batches: Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
        """Returns the batches of all processes that work on the same ones, where one of these has them."""
        return batches

    def spread(self, module: Any) -> nn.Module:
        """Spreads the model over devices, and returns what of it this process trains."""
        self.module = module
        self.forward: Any = DistributedDataParallel(module) if self.args.parallel == "ddp" else module
        return module.model

    def backward(self, images: Any, labels: Any, group: int, last: bool, scaler: Any) -> tuple[Any, Any]:
        """Adds the gradients of a batch.

        Args:
            images, labels: The batch.
            group: Number of batches for a step of the optimizer.
            last: True for the last of these.
            scaler: Scales the loss.

        Returns:
            The mean loss and the number of correct answers of this process's part.
        """
        with contextlib.nullcontext() if last else self.without_sum():
            loss, right = self.forward(images, labels)
            scaler.scale(loss / group).backward()
        return loss.detach(), right

    def without_sum(self) -> Any:
        """A context in which processes do not sum their gradients."""
        return self.forward.no_sync() if self.args.parallel == "ddp" else contextlib.nullcontext()

    def right(self, images: Any, labels: Any) -> Any:
        """Returns the number of correct answers."""
        return self.module(images.to(self.args.device), labels.to(self.args.device))[1]

    def gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns a state with that of the whole model and of its optimizer, on rank 0; all processes call it."""
        return state

    def own(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns this process's part of such a state; all processes call it."""
        return state

    def end(self) -> None:
        """Lets go of what would keep threads of torch.distributed alive."""


class DataParallel(Whole):
    """dp: one process, and on each device a replica that computes the loss of its part of the batch.

    On the CPU, which torch's replicate and parallel_apply do not support, two replicas share the parameters.
    """

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        count = torch.cuda.device_count() if args.device == "cuda" else 2
        self.devices = [torch.device(args.device, i) for i in range(count)]

    def spread(self, module: Any) -> nn.Module:
        self.module, self.forward = module, self.on_all_devices
        return module.model

    def on_all_devices(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chunks = images.chunk(len(self.devices)), labels.chunk(len(self.devices))
        parts = list(zip(*chunks, self.devices, strict=False))
        inputs = [(i.to(device, non_blocking=True), n.to(device, non_blocking=True)) for i, n, device in parts]
        devices = [device for *_, device in parts]
        if devices[0].type == "cuda":
            for device in devices[1:]:  # the loader reuses a slot once the first device's stream is past it
                torch.cuda.current_stream(devices[0]).wait_stream(torch.cuda.current_stream(device))
            outputs = parallel_apply(replicate(self.module, devices), inputs, devices=devices)
        else:
            shared = {id(tensor): tensor for tensor in self.module.parameters()}
            replicas = [self.module, *(copy.deepcopy(self.module, dict(shared)) for _ in devices[1:])]
            outputs = [replica(*part) for replica, part in zip(replicas, inputs, strict=True)]
        # Only these few numbers are copied to the first device.
        shares = [len(part) / len(images) for part, *_ in parts]
        loss = sum(loss.to(devices[0]) * share for (loss, _), share in zip(outputs, shares, strict=True))
        return loss, sum(right.to(devices[0], non_blocking=True) for _, right in outputs)


class FullySharded(Whole):
    """fsdp: each process has a shard of every parameter, and its part of each batch."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        refuse(args, ("amp", "fp16"))
        self.fsdp: Any = importlib.import_module("torch.distributed.fsdp")
        if not hasattr(self.fsdp, "fully_shard"):
            raise SystemExit(f"--parallel fsdp: torch {torch.__version__} has no torch.distributed.fsdp.fully_shard")
        self.sums = distributed.get_backend() == "gloo"  # which has no mean
        if self.sums and not hasattr(self.fsdp.FSDPModule, "set_force_sum_reduction_for_comms"):
            raise SystemExit(f"--parallel fsdp: FSDP2 of torch {torch.__version__} does not go with gloo, on CPUs")
        self.mesh = distributed.init_device_mesh(args.device, (self.parts,))

    def spread(self, module: Any) -> nn.Module:
        self.module = self.forward = module
        layers = [layer for layer in module.model.children() if any(True for _ in layer.parameters())]
        for each in (*layers, module.model):
            self.fsdp.fully_shard(each, mesh=self.mesh)
            if self.sums:
                each.set_force_sum_reduction_for_comms(True)
        self.trained = [p for p in module.model.parameters() if p.requires_grad]
        return module.model

    @contextlib.contextmanager
    def without_sum(self) -> Any:
        self.module.model.set_requires_gradient_sync(False)
        yield
        self.module.model.set_requires_gradient_sync(True)

    def right(self, images: Any, labels: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad():  # what is gathered here may be used for training
            return super().right(images, labels)

    def gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        return tree_map(lambda value: value.full_tensor() if hasattr(value, "full_tensor") else value, state)

    def own(self, state: dict[str, Any]) -> dict[str, Any]:
        own = self.module.model.state_dict()
        model = {name: self.sharded(value, own[name]) for name, value in state["model"].items()}
        moments = {
            number: {name: self.sharded(value, self.trained[number]) for name, value in values.items()}
            for number, values in state["optimizer"]["state"].items()
        }
        return state | {"model": model, "optimizer": state["optimizer"] | {"state": moments}}

    def end(self) -> None:
        # torch's caches keep the mesh, and the mesh its group, for which gloo has threads.
        vars(self.mesh).get("_pg_registry", {}).clear()

    def sharded(self, value: Any, like: Any) -> Any:
        """Returns this process's shard of a tensor that belongs to a parameter; of anything else the value."""
        if not hasattr(like, "full_tensor") or not isinstance(value, torch.Tensor) or value.shape != like.shape:
            return value
        distribute: Any = importlib.import_module("torch.distributed.tensor").distribute_tensor
        return distribute(value.to(self.args.device), like.device_mesh, like.placements)


class Pipeline(Whole):
    """pipeline: each process has some of the layers, and batches run through in microbatches (GPipe).

    Processes 0 to S-1 are the stages of the first replica of the pipeline, the next S those of the second. The first
    stage of a replica loads its part of each batch, and sends the labels to the others.
    """

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        refuse(args, ("amp", "fp16"), ("channels_last", True), ("freeze", True))
        module: Any = importlib.import_module("torch.distributed.pipelining")
        if "scale_grads" not in inspect.signature(module.ScheduleGPipe).parameters:
            raise SystemExit(f"--parallel pipeline: ScheduleGPipe of torch {torch.__version__} has no scale_grads")
        self.pipelining, rank, size = module, self.part, self.parts
        if args.stages < 2 or size % args.stages:
            raise SystemExit(f"--stages {args.stages}: {size} processes are no pipelines of 2 or more stages")
        self.stage, self.part, self.parts = rank % args.stages, rank // args.stages, size // args.stages
        if args.batch_size % (self.parts * args.microbatches):
            parts = f"{self.parts} times {args.microbatches} microbatches"
            raise SystemExit(f"--batch-size {args.batch_size} does not divide into {parts}")
        self.is_first, self.is_last = self.stage == 0, self.stage == args.stages - 1
        self.first, self.source = rank - self.stage, self.stage
        replicas = [range(first, first + args.stages) for first in range(0, size, args.stages)]
        # All processes make all groups.
        self.stages = [distributed.new_group([*ranks]) for ranks in replicas][self.part]
        self.peers = [distributed.new_group([*ranks]) for ranks in zip(*replicas, strict=True)][self.stage]

    def loader_options(self, training: bool) -> dict[str, Any]:
        return {"rank": self.part, "world_size": self.parts}

    def begin(self, loader: Any) -> tuple[int, Iterable[tuple[Any, Any]]]:
        batches = iter(loader) if self.is_first else ()
        return self.of_the_first(len(batches)), self.shared(batches)

    def shared(self, batches: Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
        if self.is_first:
            for images, labels in batches:
                self.of_the_first(labels.cpu())
                yield images, labels
            self.of_the_first(None)
        else:
            while (labels := self.of_the_first(None)) is not None:
                yield None, labels.to(self.args.device)

    def of_the_first(self, value: Any) -> Any:
        """Returns the first stage's value."""
        values = [value]
        distributed.broadcast_object_list(values, self.first, self.stages)
        return values[0]

    def spread(self, module: Any) -> nn.Module:
        args, whole = self.args, module.model
        if not isinstance(whole, nn.Sequential):
            raise SystemExit(f"--parallel pipeline splits a sequence of layers; --model {args.model} is none")
        if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in whole.modules()):
            warnings.warn(
                f"BatchNorm takes its statistics from microbatches, {args.microbatches} of each batch; --norm group "
                "has none",
                stacklevel=2,
            )
        layers, names = [*whole.named_children()], [name for name, _ in whole.named_parameters()]
        edges = [len(layers) * k // args.stages for k in range(args.stages + 1)]
        parts = [nn.Sequential() for _ in range(args.stages)]
        for part, start, end in zip(parts, edges, edges[1:], strict=False):
            for name, layer in layers[start:end]:
                part.add_module(name, layer)
        if not all(any(True for _ in part.parameters()) for part in parts):
            raise SystemExit(f"--stages {args.stages}: some of them would have no parameters; take fewer")
        self.module = module
        count = args.batch_size // (self.parts * args.microbatches)
        shapes = [torch.zeros(count, 3, args.image_size, args.image_size, device=args.device)]
        whole.eval()
        with torch.no_grad():
            for part in parts:
                module.model = part
                shapes.append(module.logits(shapes[-1]))
        self.input = shapes[self.stage][:0]
        module.model = part = parts[self.stage]
        own = [name for name, _ in part.named_parameters()]
        self.offset, self.count = names.index(own[0]), len(own)
        for made in shapes[1:]:
            made.requires_grad_()  # or no gradients would go back
        stage = self.pipelining.PipelineStage(
            Logits(module),
            self.stage,
            args.stages,
            torch.device(args.device),
            input_args=shapes[self.stage],
            output_args=shapes[self.stage + 1],
            group=self.stages,
        )
        # Without its own scaling: it would divide gradients of earlier batches of a step once more.
        self.schedule = self.pipelining.ScheduleGPipe(stage, args.microbatches, self.share_of_loss, scale_grads=False)
        return part

    def share_of_loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.module.loss(logits, labels) / self.shares

    def backward(self, images: Any, labels: Any, group: int, last: bool, scaler: Any) -> tuple[Any, Any]:
        self.shares = group * self.args.microbatches
        losses: list[torch.Tensor] = []
        target = {"target": labels, "losses": losses} if self.is_last else {}
        logits = self.schedule.step(*([images] if self.is_first else []), **target)
        if last and self.parts > 1:
            for parameter in self.module.model.parameters():
                distributed.all_reduce(parameter.grad, group=self.peers)
                parameter.grad /= self.parts
        if not self.is_last:  # its loss counts once
            return torch.zeros((), device=self.args.device), torch.zeros((), device=self.args.device)
        return torch.stack(losses).detach().sum() * group, (logits.argmax(1) == labels).sum()

    def right(self, images: Any, labels: Any) -> Any:
        none, rank = torch.zeros((), device=self.args.device), distributed.get_rank()
        if not len(labels):
            return none
        if self.is_first:
            inputs = images.to(self.args.device)
        else:
            inputs = self.input.new_empty(len(labels), *self.input.shape[1:])
            distributed.recv(inputs, rank - 1)
        logits = self.module.logits(inputs)
        if not self.is_last:
            distributed.send(logits.contiguous(), rank + 1)
            return none
        return (logits.argmax(1) == labels.to(self.args.device)).sum()

    def gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        """Joins the states of the first replica's stages: names of tensors differ, numbers of parameters go on."""
        here = tree_map(lambda value: value.cpu() if isinstance(value, torch.Tensor) else value, state)
        if "optimizer" in here:
            here["optimizer"]["state"] = self.numbered(here["optimizer"]["state"], self.offset)
        rank, size = distributed.get_rank(), distributed.get_world_size()
        found: list[Any] = [None] * size
        distributed.gather_object(here if self.part == 0 else None, found if rank == 0 else None)
        if rank:
            return state
        stages = found[: self.args.stages]
        here["model"] = {name: value for each in stages for name, value in each["model"].items()}
        if "optimizer" in here:
            moments = {number: value for each in stages for number, value in each["optimizer"]["state"].items()}
            here["optimizer"]["state"] = moments
            numbers = [range(len(each["optimizer"]["param_groups"][0]["params"])) for each in stages]
            here["optimizer"]["param_groups"][0]["params"] = [*range(sum(map(len, numbers)))]
        return here

    def own(self, state: dict[str, Any]) -> dict[str, Any]:
        names = {*self.module.model.state_dict()}
        optimizer = state["optimizer"]
        (group,) = optimizer["param_groups"]
        moments = self.numbered(optimizer["state"], -self.offset)
        return state | {
            "model": {name: value for name, value in state["model"].items() if name in names},
            "optimizer": {
                "state": {n: moments[n] for n in range(self.count) if n in moments},
                "param_groups": [group | {"params": [*range(self.count)]}],
            },
        }

    def numbered(self, moments: dict[int, Any], offset: int) -> dict[int, Any]:
        """Returns an optimizer's state with other numbers of the parameters."""
        return {number + offset: value for number, value in moments.items()}


class Logits(nn.Module):
    """The logits of ModelAndLoss, or what a stage makes on the way to them."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.model, self.logits = module.model, module.logits

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.logits(images)


def refuse(args: Any, *options: tuple[str, Any]) -> None:
    """Ends the program if an option has a value that a way does not go with."""
    for name, value in options:
        if getattr(args, name) == value:
            given = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            raise SystemExit(f"--parallel {args.parallel} does not go with {given}: leave it out")


WAYS: dict[str, Callable[[Any], Whole]] = {
    "none": Whole,
    "ddp": Whole,
    "dp": DataParallel,
    "fsdp": FullySharded,
    "pipeline": Pipeline,
}
