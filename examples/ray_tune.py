"""Searches hyper-parameters with Ray Tune (ASHA). Trials read the same samples, so an input service makes them once.

    pip install 'feeder-data[ray]' 'ray[tune]'
    feeder serve --root SETS --cpus 4
    python examples/ray_tune.py SETS/train SETS/val --out runs --trials 16 --service feeder

All trials load one order, by one seed, and share its parts while they are at about the same place. With --own-order
each has its own, and shares nothing. Each trial has a checkpoint for each epoch: one that dies goes on from there, and
so does the whole search by the same command. Other trials or options of training need another --name.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.search.basic_variant import BasicVariantGenerator

from feeder import DataLoader, Service, ShardDataset, transforms

COLUMNS = {"config/lr": "lr", "config/weight_decay": "weight_decay", "config/width": "width"}
COLUMNS |= {"epoch": "epochs", "loss": "loss", "accuracy": "accuracy"}
FIXED = ("train", "val", "own_order", "trials", "epochs", "batch_size", "size", "seed")  # of a search that goes on


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("train", help="training images: a folder that `feeder shard` wrote")
    parser.add_argument("val", help="validation images, in the same form")
    parser.add_argument("--out", required=True, type=Path, help="folder for checkpoints and the table")
    parser.add_argument("--name", default="ray-tune", help="of the search, in that folder; an unfinished one goes on")
    parser.add_argument("--address", help="of the Ray cluster; without one Ray looks for it, or starts one here")
    parser.add_argument("--service", help="name of an input service; without one each trial decodes for itself")
    parser.add_argument("--service-only", action="store_true", help="leave all decoding to the service")
    parser.add_argument("--own-order", action="store_true", help="another order for each trial")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--at-once", type=int, help="trials at a time; by default as many as there are cores")
    parser.add_argument("--epochs", type=int, default=9, help="of the best trials")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--loader-workers", type=int, default=1, help="of each trial")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_loader(args: dict[str, Any], training: bool) -> DataLoader[Any]:
    """Returns a loader that has nothing of the trial's but its order, if that is its own."""
    val = [transforms.Resize(args["size"]), transforms.CenterCrop(args["size"])]
    crop = [transforms.RandomResizedCrop(args["size"]), transforms.RandomHorizontalFlip()]
    values = [
        transforms.ToDtype(torch.float32, scale=True),
        transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    ]
    recipe = transforms.Compose([*(crop if training else val), *values])
    return DataLoader(
        ShardDataset(args["train" if training else "val"], transform=recipe),
        args["batch_size"],
        shuffle=training,
        drop_last=training,
        num_workers=args["loader_workers"],
        persistent_workers=args["loader_workers"] > 0,
        seed=args["order"],
        rank=0,
        world_size=1,
        service=None if args["service"] is None else Service(args["service"], only=args["service_only"]),
    )


def trial(config: dict[str, Any]) -> None:
    """Trains with some hyper-parameters, from the trial's checkpoint on."""
    args = config["args"] | {"order": config["order"]}
    loader, val_loader = make_loader(args, training=True), make_loader(args, training=False)
    torch.manual_seed(args["seed"])
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, config["width"], 7, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        # Ray takes .classes for torch.classes, and can't send it.
        torch.nn.Linear(config["width"], len(loader.dataset.class_to_idx)),
    )
    decay = config["weight_decay"]
    optimizer = torch.optim.SGD(model.parameters(), config["lr"], 0.9, weight_decay=decay, nesterov=True)
    stateful: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    epoch, last = 0, tune.get_checkpoint()
    if last is not None:
        with last.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", weights_only=True)
        for name, each in stateful.items():
            each.load_state_dict(state[name])
        epoch = state["epoch"]
    while epoch < args["epochs"]:
        losses, right = [], 0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.inference_mode():
            for images, labels in val_loader:
                right += int((model(images).argmax(1) == labels).sum())
        epoch += 1
        metrics = {"epoch": epoch, "loss": sum(losses) / len(losses), "accuracy": right / len(val_loader.dataset)}
        with tempfile.TemporaryDirectory() as folder:
            state = {name: each.state_dict() for name, each in stateful.items()}
            torch.save(state | {"epoch": epoch}, f"{folder}/state.pt")
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))
    loader.close()
    val_loader.close()


def drop_torn_states(place: Path) -> bool:
    """Removes Ray's states of a search that are incomplete; returns True if an earlier one is left to go on from.

    A driver that is killed while Ray copies its state leaves a part of it. ``Tuner.restore`` would take the newest one,
    and run a trial of no parameters where it can't read it.
    """
    if not tune.Tuner.can_restore(str(place)):
        return False
    for stamp in sorted({path.name.partition("state-")[2] for path in place.glob("*state-*.json")}, reverse=True):
        experiment, searcher = place / f"experiment_state-{stamp}", place / f"basic-variant-state-{stamp}"
        try:
            json.loads(experiment.read_bytes())
            pickle.loads(searcher.read_bytes())
            return True
        except (EOFError, FileNotFoundError, ValueError, pickle.UnpicklingError) as error:
            print(f"{place}: Ray's state of {stamp} is incomplete: {error}", file=sys.stderr)
            experiment.unlink(missing_ok=True)
            searcher.unlink(missing_ok=True)
    print(f"{place}: there is no state of Ray's to go on from: the search begins again", file=sys.stderr)
    return False


def search(args: argparse.Namespace) -> Any:
    """Returns Ray's results: those of all trials of this search, finished before or now."""
    place, resources = args.out.absolute() / args.name, {"cpu": 1.0}
    trainable = tune.with_resources(trial, resources)
    options, fixed = place / "options.json", {name: getattr(args, name) for name in FIXED}
    if drop_torn_states(place):
        before = json.loads(options.read_text()) if options.exists() else fixed
        changed = [name for name in FIXED if before[name] != fixed[name]]
        if changed:  # Ray would go on with the former ones, and not say so
            told = ", ".join(f"{name} {before[name]} (now {fixed[name]})" for name in changed)
            raise SystemExit(f"{place} holds a search with {told}: repeat them, or take another --name")
        return tune.Tuner.restore(str(place), trainable, resume_unfinished=True, resume_errored=True).fit()
    names = ("batch_size", "epochs", "loader_workers", "seed", "service", "service_only", "size", "train", "val")
    space = {
        "lr": tune.loguniform(1e-3, 1.0),
        "weight_decay": tune.loguniform(1e-6, 1e-2),
        "width": tune.choice([16, 32, 64]),
        "order": tune.randint(0, 1 << 31) if args.own_order else args.seed,
        "args": {name: getattr(args, name) for name in names},
    }
    place.mkdir(parents=True, exist_ok=True)
    options.write_text(json.dumps(fixed))
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=args.trials,
            search_alg=BasicVariantGenerator(max_concurrent=args.at_once or 0, random_state=args.seed),
            scheduler=tune.schedulers.ASHAScheduler(
                time_attr="epoch", max_t=args.epochs, grace_period=1, reduction_factor=3
            ),
        ),
        run_config=tune.RunConfig(
            name=args.name,
            storage_path=str(place.parent),
            failure_config=tune.FailureConfig(max_failures=3),
            verbose=0,
        ),
    ).fit()


def main() -> None:
    args = arguments()
    ray.init(address=args.address, log_to_driver=False)
    if args.service is not None and "@" not in args.service and not args.service.startswith("file:"):
        args.service += f"@{ray.get_runtime_context().gcs_address}"
    for name in ("train", "val"):
        path = getattr(args, name)
        setattr(args, name, path if "://" in path else os.path.abspath(path))  # trials run in folders of their own
    results = search(args)
    table = results.get_dataframe().reindex(columns=[*COLUMNS]).rename(columns=COLUMNS)
    table = table.sort_values(["accuracy", "loss"], ascending=[False, True])
    table.to_csv(args.out / args.name / "trials.csv", index=False)
    print(table.to_string(index=False, float_format="{:.6g}".format))
    if results.num_errors:
        raise SystemExit(f"{results.num_errors} trials ended in errors: {results.errors[0]}")


if __name__ == "__main__":
    main()
