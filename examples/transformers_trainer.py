"""Trains a small classifier with transformers.Trainer, on batches of feeder's loader.

python examples/transformers_trainer.py DIR [--epochs 3] [--size 224] [--out RUN] [--resume]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from feeder import DataLoader, ShardDataset, transforms


class Named:
    """A loader whose batches are dicts, as Trainer passes them to a model; everything else is the loader's.

    Args:
        loader: A loader of (images, labels, ...).
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for images, labels, *_ in self.loader:
            yield {"pixel_values": images, "labels": labels}

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class SaveLoader(TrainerCallback):
    """Saves the training loader's place with each checkpoint and resumes there."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        place = kwargs["train_dataloader"].state_dict()
        if state.is_world_process_zero:
            torch.save(place, self._path(args, state))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            kwargs["train_dataloader"].load_state_dict(torch.load(self._path(args, state), weights_only=True))

    def _path(self, args: Any, state: Any) -> str:
        return os.path.join(args.output_dir, f"checkpoint-{state.global_step}", "loader.pt")


class LoaderTrainer(Trainer):
    """A Trainer with a given loader.

    Args:
        train_loader: The loader.
    """

    def __init__(self, *args: Any, train_loader: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.args.ignore_data_skip = True  # the loader itself resumes where it was
        self.train_loader = train_loader
        self.add_callback(SaveLoader())

    def get_train_dataloader(self) -> Any:
        # Not through accelerator.prepare(), which would replace it by torch's loader.
        return Named(self.train_loader)


class Classifier(torch.nn.Module):
    """A network of two layers.

    Args:
        classes: Number of classes.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 7, stride=4),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(32, classes),
        )

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.layers(pixel_values)
        if labels is None:
            return {"logits": logits}
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder that `feeder shard` wrote")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--out", default="trainer-run", help="the checkpoints' folder")
    parser.add_argument("--save-steps", type=int, default=100)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    args = parser.parse_args()

    recipe = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.size),
            transforms.RandomHorizontalFlip(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ]
    )
    dataset = ShardDataset(args.dir, transform=recipe)
    training = TrainingArguments(
        args.out,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        learning_rate=1e-2,
        save_steps=args.save_steps,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        seed=0,
    )
    torch.manual_seed(0)
    model = Classifier(len(dataset.classes or []))
    # Rank and world size come from torch.distributed, which TrainingArguments has initialized.
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, device=training.device
    )
    trainer = LoaderTrainer(model, training, train_loader=loader)
    result = trainer.train(resume_from_checkpoint=args.resume)
    if trainer.is_world_process_zero():
        print(f"epochs {args.epochs}, steps {result.global_step}, loss {result.training_loss:.6f}")


if __name__ == "__main__":
    main()
