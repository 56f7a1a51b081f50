"""Trains an image classifier: from scratch or from weights, on one device or several, resumable when killed.

    feeder shard train_images --out train && feeder shard val_images --out val
    python examples/train.py train val --out runs/first
    python examples/train.py train val --out runs/second --model resnet50 --pretrained --freeze
    torchrun --nproc-per-node 8 examples/train.py train val --out runs/third --parallel ddp --amp bf16 --channels-last

The same command again resumes with exactly the batch that would have followed the last checkpoint.
--batch-size is that of the whole job: ddp gives each process, and dp each device, an equal part. The loss is the mean
over the whole batch, so its curve is that of a single device, except for rounding. BatchNorm is an exception, as it
takes its statistics from each part alone; --norm group has no such statistics.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import importlib.util
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed.nn  # before the process group is made, which its default arguments would keep alive
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel, parallel_apply, replicate

import feeder
from feeder import transforms as T


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("train", help="training images: a folder or URL that `feeder shard` wrote, or a folder of class folders")
    add("val", help="validation images, in the same form")
    add("--out", required=True, type=Path, help="folder for last.pt, best.pt and log.csv")
    add("--model", default="small", help="small, or a name of timm's or torchvision's models")
    add("--norm", choices=("batch", "group"), default="batch", help="of the small model")
    add("--pretrained", action="store_true", help="start from timm's or torchvision's weights")
    add("--weights", type=Path, help="start from the weights in this file; a head of another size is left out")
    add("--freeze", action="store_true", help="train the last layer only")
    add("--epochs", type=int, default=90)
    add("--batch-size", type=int, default=256, help="of the whole job")
    add("--accumulate", type=int, default=1, help="batches for each step of the optimizer")
    add("--lr", type=float, default=0.1)
    add("--weight-decay", type=float, default=5e-5)
    add("--label-smoothing", type=float, default=0.1)
    add("--image-size", type=int, default=224)
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # which torchrun sets
    add("--workers", type=int, default=max(1, cores - 1), help="for each process")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    add("--parallel", choices=("none", "ddp", "dp"), default="none")
    add("--amp", choices=("off", "bf16", "fp16"), default="off", help="autocast")
    add("--channels-last", action="store_true")
    add("--checkpoint-every", type=int, default=500, help="steps")
    add("--log-every", type=int, default=50, help="steps between two fetches of the metrics")
    add("--patience", type=int, default=10, help="stop after this many epochs without a better model")
    add("--seed", type=int, default=0)
    return parser.parse_args(argv)


def make_loader(args: argparse.Namespace, training: bool) -> feeder.DataLoader[Any]:
    """Returns a loader of (images, labels); with ddp each process gets its part of a batch."""
    size, path = args.image_size, args.train if training else args.val
    val = [T.Resize(round(size * 8 / 7)), T.CenterCrop(size)]
    ops = [T.RandomResizedCrop(size), T.RandomHorizontalFlip()] if training else val
    values = [T.ToDtype(torch.float32, scale=True), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    kind = feeder.ShardDataset if "://" in path or (Path(path) / "index.bin").exists() else feeder.FolderDataset
    return feeder.DataLoader(
        kind(path, T.Compose([*ops, *values])),
        args.batch_size // world_size(),
        shuffle=training,
        drop_last=training,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        seed=args.seed,
        rank=None if training else rank(),  # validate() leaves out the samples that pad batches
        world_size=None if training else world_size(),
        # dp copies each part of a batch to its own device, directly from the memory into which workers decoded it.
        device="cuda" if args.device == "cuda" and args.parallel != "dp" else None,
        pin_memory=args.device == "cuda",
    )


class Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self[0](x) + self[1](x))


def small_resnet(classes: int, norm: str) -> nn.Module:
    """A small residual network for trials: 0.4 million parameters."""

    def convolution(inputs: int, outputs: int, stride: int) -> nn.Module:
        normalize = nn.GroupNorm(8, outputs) if norm == "group" else nn.BatchNorm2d(outputs)
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), normalize)

    blocks = [
        Residual(nn.Sequential(convolution(i, o, s), nn.ReLU(), convolution(o, o, 1)), convolution(i, o, s))
        for i, o, s in ((32, 32, 1), (32, 64, 2), (64, 128, 2))
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes)]
    return nn.Sequential(convolution(3, 32, 2), nn.ReLU(), *blocks, *head)


def make_model(args: argparse.Namespace, classes: int) -> Any:
    """Returns the model, with a last layer for that many classes."""
    if args.model == "small":
        model = small_resnet(classes, args.norm)
    elif importlib.util.find_spec("timm"):
        model = importlib.import_module("timm").create_model(args.model, pretrained=args.pretrained)
    elif importlib.util.find_spec("torchvision"):
        models = importlib.import_module("torchvision.models")
        model = models.get_model(args.model, weights="DEFAULT" if args.pretrained else None)
    else:
        raise SystemExit(f"--model {args.model}: install timm or torchvision, or use --model small")
    name, head = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)][-1]
    if head.out_features != classes:
        model.set_submodule(name, nn.Linear(head.in_features, classes))
    if args.weights:
        loaded, own = torch.load(args.weights, map_location="cpu", weights_only=True), model.state_dict()
        loaded = loaded.get("model", loaded)
        fitting = {n: t for n, t in loaded.items() if n in own and t.shape == own[n].shape}
        if not fitting:
            raise SystemExit(f"--weights {args.weights}: holds no tensor of {args.model}")
        model.load_state_dict(fitting, strict=False)
        say(f"{len(fitting)} of {len(own)} tensors from {args.weights}")
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad = not args.freeze or parameter_name.startswith(f"{name}.")
    return model


class ModelAndLoss(nn.Module):
    """Returns (mean loss, number of correct answers), so that each device computes the loss of its own part."""

    def __init__(self, model: nn.Module, args: argparse.Namespace) -> None:
        super().__init__()
        self.model, self.args = model, args
        self.dtype = torch.float16 if args.amp == "fp16" else torch.bfloat16

    def train(self, mode: bool = True) -> ModelAndLoss:
        # Frozen layers stay as they are: no dropout, and BatchNorm keeps its statistics.
        self.model.train(mode and not self.args.freeze)
        return self

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.args.channels_last:
            images = images.to(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, self.dtype, enabled=self.args.amp != "off"):
            logits = self.model(images)
        loss = nn.functional.cross_entropy(logits.float(), labels, label_smoothing=self.args.label_smoothing)
        return loss, (logits.argmax(1) == labels).sum()


class DataParallel:
    """dp: one process, and on each device a replica that computes the loss of its part of the batch.

    On the CPU, which torch's replicate and parallel_apply do not support, two replicas share the parameters.
    """

    def __init__(self, module: ModelAndLoss, device: str) -> None:
        self.module, count = module, torch.cuda.device_count() if device == "cuda" else 2
        self.devices = [torch.device(device, i) for i in range(count)]

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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


def world_size() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def say(text: str) -> None:
    if rank() == 0:
        print(text, flush=True)


def sum_over_processes(values: torch.Tensor) -> None:
    if distributed.is_initialized():
        distributed.all_reduce(values)


def save(state: dict[str, Any], path: Path) -> None:
    """Writes a file completely or not at all."""
    if rank() != 0:
        return
    with open(path.with_suffix(".unfinished"), "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


class Trainer:
    """A run; its checkpoints hold everything that STATEFUL and NUMBERS name."""

    STATEFUL = ("model", "optimizer", "scaler", "loader")
    NUMBERS = ("epoch", "step", "best", "stale_epochs")

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        torch.manual_seed(args.seed)
        self.loader, self.val_loader = make_loader(args, training=True), make_loader(args, training=False)
        classes = self.loader.dataset.classes
        if not classes or classes != self.val_loader.dataset.classes or not len(self.loader):
            raise SystemExit(f"{args.train} and {args.val} need the same classes, by name, and a batch of images")
        memory_format = torch.channels_last if args.channels_last else torch.contiguous_format
        self.model = make_model(args, len(classes)).to(args.device, memory_format=memory_format)
        self.module = ModelAndLoss(self.model, args)
        self.forward: Any = self.module
        if args.parallel == "ddp":
            self.forward = DistributedDataParallel(self.module)
        elif args.parallel == "dp":
            self.forward = DataParallel(self.module, args.device)
        decay, fused = args.weight_decay, args.device == "cuda"  # else GradScaler would wait for the GPU at each step
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, args.lr, 0.9, weight_decay=decay, nesterov=True, fused=fused)
        self.scaler = torch.amp.GradScaler(args.device, enabled=args.amp == "fp16")
        self.epoch = self.step = self.stale_epochs = 0
        self.best = -1.0
        self.last_path, self.best_path = args.out / "last.pt", args.out / "best.pt"
        if self.last_path.exists():
            state = torch.load(self.last_path, map_location="cpu", weights_only=True)
            for name in self.STATEFUL:
                getattr(self, name).load_state_dict(state[name])
            for name in self.NUMBERS:
                setattr(self, name, state[name])
            say(f"resuming at step {self.step} in epoch {self.epoch}")

    def checkpoint(self) -> None:
        state = {name: getattr(self, name).state_dict() for name in self.STATEFUL}
        save(state | {name: getattr(self, name) for name in self.NUMBERS}, self.last_path)

    def learning_rate(self) -> float:
        """Returns the rate: a linear warm-up over 5 % of the steps, then half a cosine."""
        done = self.step / max(1, self.args.epochs * math.ceil(len(self.loader) / self.args.accumulate))
        return self.args.lr * (min(1.0, (done + 1e-3) / 0.05) if done < 0.05 else (1 + math.cos(math.pi * done)) / 2)

    def train_epoch(self, log: feeder.DeviceLog) -> int:
        """Trains the rest of the epoch and returns its number of batches; no step waits for the device."""
        args, batches = self.args, iter(self.loader)
        total, summary = len(batches), torch.zeros(2, device=args.device)
        for number, (images, labels) in enumerate(batches):
            place = number % args.accumulate
            group = min(args.accumulate, total - number + place)  # batches for this step of the optimizer
            # A batch's draws depend only on its number, so that they are the same after a resume.
            torch.manual_seed(((args.seed << 20) + self.step * args.accumulate + place) * world_size() + rank())
            with self.forward.no_sync() if args.parallel == "ddp" and place < group - 1 else contextlib.nullcontext():
                loss, right = self.forward(images, labels)
                self.scaler.scale(loss / group).backward()
            summary += torch.stack([loss.detach(), right / len(labels)]) / (group * world_size())
            if place == group - 1:
                self.optimizer_step()
                sum_over_processes(summary)
                log.write(self.step, loss=summary[0], accuracy=summary[1], lr=self.learning_rate())
                summary.zero_()
                self.step += 1
                if self.step % args.checkpoint_every == 0:
                    log.flush()  # the log must reach at least as far as the checkpoint
                    self.checkpoint()
        return total

    def optimizer_step(self) -> None:
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = self.learning_rate()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    @torch.inference_mode()
    def validate(self) -> float:
        """Returns the accuracy on the validation set, 0 to 1; every sample counts once."""
        self.module.eval()
        if distributed.is_initialized():  # BatchNorm's statistics are the first process's, as in the checkpoint
            for buffer in self.model.buffers():
                distributed.broadcast(buffer, 0)
        right = torch.zeros((), device=self.args.device)
        padded = len(self.val_loader.stats()["padded"])
        for images, labels in self.val_loader:
            # All processes get batches of the same size; repeats fill the end of the last one.
            padded, before = len(self.val_loader.stats()["padded"]), padded
            count = len(labels) - (padded - before)
            right += self.module(images[:count].to(self.args.device), labels[:count].to(self.args.device))[1]
        sum_over_processes(right)
        return right.item() / len(self.val_loader.dataset)

    def run(self) -> None:
        args = self.args
        sinks = [feeder.CsvWriter(args.out / "log.csv", resume_at=self.step or None)] if rank() == 0 else []
        with feeder.DeviceLog(*sinks, every=args.log_every, device=args.device) as log:
            while self.epoch < args.epochs and self.stale_epochs < args.patience:
                self.module.train()
                began = time.perf_counter()
                speed = self.train_epoch(log) * args.batch_size / (time.perf_counter() - began)
                accuracy = self.validate()
                self.stale_epochs = 0 if accuracy > self.best else self.stale_epochs + 1
                if accuracy > self.best:
                    self.best = accuracy
                    save({"model": self.model.state_dict(), "accuracy": accuracy, "epoch": self.epoch}, self.best_path)
                say(f"epoch {self.epoch}: validation accuracy {accuracy:.2%}, best {self.best:.2%}")
                waited = self.loader.stats()["waited_share"]
                say(f"    {speed:,.0f} images/s, {waited:.0%} of the time waited for data")
                self.epoch += 1
                log.flush()
                self.checkpoint()
        say(f"best accuracy {self.best:.2%} after {self.epoch} epochs: {self.best_path}")


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    if args.device == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if args.parallel == "ddp":
        distributed.init_process_group("nccl" if args.device == "cuda" else "gloo")
    if args.batch_size % world_size():
        raise SystemExit(f"--batch-size {args.batch_size} does not divide into {world_size()} equal parts")
    args.out.mkdir(parents=True, exist_ok=True)
    Trainer(args).run()
    if distributed.is_initialized():
        gc.collect()  # frees the model, which holds the group, whose threads must end before the interpreter does
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
