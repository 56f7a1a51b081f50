"""``feeder replay``: shows the samples of a batch of a training run, and makes it again."""

from __future__ import annotations

import argparse
from typing import Any

from feeder.system.text import count, printable, say
from feeder.tools.commands.common import add_output, say_json


def add(commands: Any) -> None:
    command = commands.add_parser(
        "replay",
        help="show the samples of a batch of a training run, and make it again",
        description="Makes a step of a training run again, by a saved state of its loader. It shows which samples the "
        "step had, and which ones stood in for bad ones. It writes the images as the run saw them.",
        examples=(
            "feeder replay ./shards --state checkpoint.pt --key loader --step 1200",
            "feeder replay ./shards --state loader.json --epoch 3 --step 17 --out batch",
        ),
    )
    command.add_argument("set", metavar="SET", help="shard set, its URL, or a folder of images")
    command.add_argument(
        "--state", metavar="FILE", required=True, help="what state_dict() gave: a JSON file, or a checkpoint of torch"
    )
    command.add_argument("--key", metavar="NAME", help="name of the loader's state in the checkpoint, such as loader")
    command.add_argument("--epoch", type=int, metavar="E", help="epoch (default: the state's)")
    command.add_argument(
        "--step", type=int, metavar="N", required=True, help="number of the batch in the epoch, from 0"
    )
    command.add_argument("--rank", type=int, metavar="R", default=0, help="rank whose batch it is (default: 0)")
    command.add_argument("--out", metavar="DIR", help="write the images as PNG files to a new folder")
    add_output(command)


def run(arguments: argparse.Namespace) -> int:
    from feeder.tools.replayed_run import (
        batch_pixels,
        loader_of,
        naming,
        read_state,
        refuse_without_images,
        save_images,
        why_without_images,
    )

    state = read_state(arguments.state, arguments.key)
    with naming(arguments.state):
        why = why_without_images(state)
        loader = loader_of(arguments.set, state, images=not why)
    epoch = state["epoch"] if arguments.epoch is None else arguments.epoch
    substitutions: list[dict[str, Any]] | None = None  # not known
    if not why:
        batch, samples, substitutions = loader.replay(epoch, arguments.step, rank=arguments.rank)
        if arguments.out is not None:
            save_images(batch_pixels(loader, batch), arguments.out)
    else:
        samples = loader.samples_of(epoch, arguments.step, rank=arguments.rank)
    rows = zip(samples.ids.tolist(), samples.keys, samples.paths, strict=True)
    if arguments.json:
        listed = [{"id": i, "key": key, "path": path} for i, key, path in rows]
        head = {"epoch": epoch, "step": arguments.step, "rank": arguments.rank}
        taken_down = [{"id": i, "substitute": other} for i, other in samples.taken_down.items()]
        say_json({**head, "samples": listed, "substitutions": substitutions, "taken_down": taken_down})
    elif not arguments.quiet:
        say(f"epoch {epoch}, step {arguments.step}, rank {arguments.rank}: {count(len(samples.ids), 'sample')}")
        for i, key, path in rows:
            say(printable(f"{i:>10}  {key or ''}  {path or ''}".rstrip()))
        for i, other in samples.taken_down.items():
            say(f"sample {i} was taken down, and sample {other} stands in: a run before that saw the one that is gone")
        for each in substitutions or ():
            say(printable(f"{each['key']} is bad, and sample {each['substitute']} stands in: {each['reason']}"))
        if why:
            say(f"{why}: its images are not known here, nor which of these samples were bad")
        elif arguments.out is not None:
            say(f"images written to {arguments.out}")
    if arguments.out is not None:
        with naming(arguments.state):
            refuse_without_images(state)
    return 0
