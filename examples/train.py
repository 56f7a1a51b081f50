"""Trains an image classifier: from scratch or from weights, on one device or several, resumable when killed.

    feeder shard images
    python examples/train.py images-shards --out runs/first
    feeder shard train_images --out train && feeder shard val_images --out val
    python examples/train.py train val --out runs/second --model resnet50 --pretrained --freeze
    torchrun --nproc-per-node 8 examples/train.py train val --out runs/third --parallel ddp --amp bf16 --channels-last

The same command again resumes with exactly the batch that would have followed the last checkpoint, which any way of
--parallel takes. --batch-size is that of the whole job: ddp and fsdp give each process, dp each device, and a pipeline
each microbatch an equal part. The loss is the mean over the whole batch, so its curve is that of a single device, but
for rounding. BatchNorm is an exception, as it takes its statistics from each part alone; --norm group has none.
Without validation images the run has no early stopping, and its weights are in last.pt.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch.distributed.nn  # before the process group is made, which its default arguments would keep alive
from torch import distributed, nn

import feeder
from feeder import transforms as T


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("train", help="training images: a folder or URL that `feeder shard` wrote, or a folder of class folders")
    add("val", nargs="?", help="validation images, in the same form; without them nothing is validated")
    add("--cache-dir", help="folder of the cache of remote sets")
    add("--cache-bytes", type=int, help="bytes that the cache of each remote set may take")
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
    add("--on-error", default="raise", choices=("raise", "skip"), help="skip: others take damaged images' places")
    add("--parallel", choices=("none", "ddp", "dp", "fsdp", "pipeline"), default="none")
    add("--stages", type=int, default=2, help="of a pipeline; more processes than these are replicas of it")
    add("--microbatches", type=int, default=4, help="of each batch in a pipeline")
    add("--amp", choices=("off", "bf16", "fp16"), default="off", help="autocast")
    add("--channels-last", action="store_true")
    add("--checkpoint-every", type=int, default=500, help="steps")
    add("--log-every", type=int, default=50, help="steps between two fetches of the metrics")
    add("--patience", type=int, default=10, help="stop after this many epochs without a better model")
    add("--seed", type=int, default=0)
    return parser.parse_args(argv)


def make_loader(args: argparse.Namespace, training: bool, way: Any) -> feeder.DataLoader[Any]:
    """Returns a loader of this process's part of each batch, (images, labels)."""
    size, path = args.image_size, args.train if training else args.val
    val = [T.Resize(round(size * 8 / 7)), T.CenterCrop(size)]
    ops = [T.RandomResizedCrop(size), T.RandomHorizontalFlip()] if training else val
    values = [T.ToDtype(torch.float32, scale=True), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    kind = feeder.ShardDataset if "://" in path or (Path(path) / "index.bin").exists() else feeder.FolderDataset
    cache = {"cache_dir": args.cache_dir, "cache_bytes": args.cache_bytes} if kind is feeder.ShardDataset else {}
    return feeder.DataLoader(
        kind(path, T.Compose([*ops, *values]), **cache),
        args.batch_size // way.parts,
        shuffle=training,
        drop_last=training,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        seed=args.seed,
        on_error=args.on_error,
        # dp copies each part of a batch to its own device, directly from the memory into which workers decoded it.
        device="cuda" if args.device == "cuda" and args.parallel != "dp" else None,
        pin_memory=args.device == "cuda",
        **way.loader_options(training),
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

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        if self.args.channels_last:
            images = images.to(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, self.dtype, enabled=self.args.amp != "off"):
            return self.model(images)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.float(), labels, label_smoothing=self.args.label_smoothing)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.logits(images)
        return self.loss(logits, labels), (logits.argmax(1) == labels).sum()


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


def make_way(args: argparse.Namespace) -> Any:
    """Returns the way of --parallel, of which train_parallel.py says more."""
    sys.path += {str(Path(__file__).parent)} - set(sys.path)
    return importlib.import_module("train_parallel").WAYS[args.parallel](args)


class Trainer:
    """A run; its checkpoints hold everything that STATEFUL and NUMBERS name."""

    STATEFUL = ("model", "optimizer", "scaler", "loader")
    NUMBERS = ("epoch", "step", "best", "stale_epochs")

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.way = args, make_way(args)
        if args.batch_size % self.way.parts:
            raise SystemExit(f"--batch-size {args.batch_size} does not divide into {self.way.parts} equal parts")
        torch.manual_seed(args.seed)
        self.loader = make_loader(args, True, self.way)
        self.val_loader: Any = make_loader(args, False, self.way) if args.val else None
        classes, count = self.loader.dataset.classes, len(self.loader.dataset)
        if not classes:
            raise SystemExit(f"{args.train} has no classes: put its images into a folder for each, ./images/cat/1.jpg")
        if self.val_loader is not None and classes != self.val_loader.dataset.classes:
            raise SystemExit(f"{args.train} and {args.val} need the same classes, by name")
        if not len(self.loader):
            raise SystemExit(f"{args.train} has {count} images, fewer than a batch: use --batch-size {count} or less")
        memory_format = torch.channels_last if args.channels_last else torch.contiguous_format
        model = make_model(args, len(classes)).to(args.device, memory_format=memory_format)
        self.module = ModelAndLoss(model, args)
        self.model = self.way.spread(self.module)
        decay, fused = args.weight_decay, args.device == "cuda"  # else GradScaler would wait for the GPU at each step
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, args.lr, 0.9, weight_decay=decay, nesterov=True, fused=fused)
        self.scaler = torch.amp.GradScaler(args.device, enabled=args.amp == "fp16")
        self.epoch = self.step = self.stale_epochs = 0
        self.best = -1.0
        self.last_path, self.best_path = args.out / "last.pt", args.out / "best.pt"
        if self.last_path.exists():
            state = self.way.own(torch.load(self.last_path, map_location="cpu", weights_only=True))
            for name in self.STATEFUL:
                getattr(self, name).load_state_dict(state[name])
            for name in self.NUMBERS:
                setattr(self, name, state[name])
            say(f"resuming at step {self.step} in epoch {self.epoch}")

    def checkpoint(self) -> None:
        state = self.way.gathered({name: getattr(self, name).state_dict() for name in self.STATEFUL})
        save(state | {name: getattr(self, name) for name in self.NUMBERS}, self.last_path)

    def learning_rate(self) -> float:
        """Returns the rate: a linear warm-up over 5 % of the steps, then half a cosine."""
        done = self.step / max(1, self.args.epochs * math.ceil(len(self.loader) / self.args.accumulate))
        return self.args.lr * (min(1.0, (done + 1e-3) / 0.05) if done < 0.05 else (1 + math.cos(math.pi * done)) / 2)

    def train_epoch(self, log: feeder.DeviceLog) -> tuple[int, list[float]]:
        """Trains the rest of the epoch without a wait in any step; returns its batches, and mean loss and accuracy."""
        args, first, summary, sums = self.args, self.step, *torch.zeros(2, 2, device=self.args.device)
        total, batches = self.way.begin(self.loader)
        for number, (images, labels) in enumerate(batches):
            place = number % args.accumulate
            group = min(args.accumulate, total - number + place)  # batches for this step of the optimizer
            # A batch's draws depend only on its number, so that they are the same after a resume.
            torch.manual_seed(((args.seed << 20) + self.step * args.accumulate + place) * world_size() + rank())
            loss, right = self.way.backward(images, labels, group, place == group - 1, self.scaler)
            summary += torch.stack([loss, right / len(labels)]) / (group * self.way.parts)
            if place == group - 1:
                self.optimizer_step()
                sum_over_processes(summary)
                log.write(self.step, loss=summary[0], accuracy=summary[1], lr=self.learning_rate())
                sums += summary
                summary.zero_()
                self.step += 1
                if self.step % args.checkpoint_every == 0:
                    log.flush()  # the log must reach at least as far as the checkpoint
                    self.checkpoint()
        return total, (sums / max(1, self.step - first)).tolist()

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
                distributed.broadcast(buffer, self.way.source, self.way.peers)
        right = torch.zeros((), device=self.args.device)
        for images, labels in self.way.shared(self.each_once()):
            right += self.way.right(images, labels)
        sum_over_processes(right)
        return right.item() / len(self.val_loader.dataset)

    def each_once(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields the batches to validate with: all processes get as many of the same size, whose end repeats fill."""
        padded = len(self.val_loader.stats()["padded"])
        for images, labels in self.val_loader:
            padded, before = len(self.val_loader.stats()["padded"]), padded
            count = len(labels) - (padded - before)
            yield images[:count], labels[:count]

    def run(self) -> None:
        args = self.args
        sinks = [feeder.CsvWriter(args.out / "log.csv", resume_at=self.step or None)] if rank() == 0 else []
        with feeder.DeviceLog(*sinks, every=args.log_every, device=args.device) as log:
            while self.epoch < args.epochs and self.stale_epochs < args.patience:
                self.module.train()
                began = time.perf_counter()
                batches, (loss, accuracy) = self.train_epoch(log)
                speed = batches * args.batch_size / (time.perf_counter() - began)
                say(f"epoch {self.epoch}: loss {loss:.3f}, training accuracy {accuracy:.2%}")
                if args.val:
                    self.keep_best(self.validate())
                waited = self.loader.stats()["waited_share"]
                say(f"    {speed:,.0f} images/s, {waited:.0%} of the time waited for data")
                self.epoch += 1
                log.flush()
                self.checkpoint()
        best = f"best accuracy {self.best:.2%}" if args.val else "trained"
        say(f"{best} after {self.epoch} epoch(s): {self.best_path if args.val else self.last_path}")
        self.way.end()

    def keep_best(self, accuracy: float) -> None:
        self.stale_epochs = 0 if accuracy > self.best else self.stale_epochs + 1
        if accuracy > self.best:
            self.best = accuracy
            state = self.way.gathered({"model": self.model.state_dict()})
            save(state | {"accuracy": accuracy, "epoch": self.epoch}, self.best_path)
        say(f"    validation accuracy {accuracy:.2%}, best {self.best:.2%}")


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    if args.device == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if args.parallel in ("ddp", "fsdp", "pipeline"):
        distributed.init_process_group("nccl" if args.device == "cuda" else "gloo")
    args.out.mkdir(parents=True, exist_ok=True)
    Trainer(args).run()
    if distributed.is_initialized():
        gc.collect()  # frees the model, which holds the group, whose threads must end before the interpreter does
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
