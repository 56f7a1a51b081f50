"""``feeder browse``: a local web page of a set, and of what training sees of it."""

from __future__ import annotations

import argparse
import socket
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.text import say
from feeder.tools.commands.common import check_pages


def add(commands: Any) -> None:
    command = commands.add_parser(
        "browse",
        help="show a set of images, and what training sees of it, in the browser",
        description="Shows a local web page: the samples of a set by class, name and kind, each with all its members, "
        "and the batches that training sees. It is for this machine's user alone: the address that is printed holds a "
        "secret.",
        examples=(
            "feeder browse ./images-shards",
            "feeder browse s3://bucket/set --port 8000",
            "feeder browse ./images-shards --state run.pt --key loader  # of that run",
            "feeder browse ./images-shards --recipe recipe.json         # as a recipe crops",
            "feeder browse ./images-shards --scores losses.parquet      # sorted by them",
        ),
    )

    command.add_argument("set", metavar="SET", help="shard set, its URL, or a folder of images")
    command.add_argument("--port", type=int, metavar="N", default=0, help="TCP port (default: a free one)")
    command.add_argument("--image-size", type=int, metavar="PX", default=224, help="side of crops (default: 224)")

    command.add_argument(
        "--scores",
        metavar="FILE",
        help="sort by the columns of numbers of a CSV or Parquet file, whose column key or id names the samples",
    )
    command.add_argument("--state", metavar="FILE", help="take recipe, seed and batches from what state_dict() gave")
    command.add_argument(
        "--recipe", metavar="FILE", help='take the recipe from a JSON file with state_dict()["recipe"] of a loader'
    )
    command.add_argument("--key", metavar="NAME", help="name of the loader's state in the checkpoint, such as loader")
    command.add_argument(
        "--version",
        dest="set_version",
        type=int,
        metavar="N",
        help="version of the set (default: the newest, or --state's)",
    )


def run(arguments: argparse.Namespace) -> int:
    check_pages("feeder browse")
    import uvicorn

    from feeder.loader.order_identity import set_version
    from feeder.tools.browse.page_server import make_app
    from feeder.tools.browse.set_view import SetView
    from feeder.tools.browse.training import Training
    from feeder.tools.replayed_run import naming, read_recipe, read_state, targets_of

    state = None if arguments.state is None else read_state(arguments.state, arguments.key)
    recipe = None if arguments.recipe is None else read_recipe(arguments.recipe)
    if state is not None and recipe is not None:
        raise ArgumentError(f"{arguments.state}: has a recipe of its own: leave --recipe out")

    version, targets = arguments.set_version, []
    if state is not None:
        version = set_version(state)
        if arguments.set_version not in (None, version):
            raise ArgumentError(f"{arguments.state}: is of version {version} of the set: leave --version out")
        with naming(arguments.state):
            targets = targets_of(state)
    view = SetView(arguments.set, version=version, targets=targets, scores=arguments.scores)
    with naming(arguments.state):
        training = Training(view, arguments.image_size, state, recipe)

    app = make_app(view, training)
    with _listening(arguments.port) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/?token={app.state.token}"
        say(f"{arguments.set}: open {url}")
        say("Ctrl-C ends it")
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        server.run(sockets=[listening])
    return 0


def _listening(port: int) -> socket.socket:
    """Returns a socket that listens on the loopback address, so that the port is good once it is shown.

    Raises:
        ArgumentError: if the port can't be had.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(f"127.0.0.1:{port}: can't listen there: {reason}; choose another --port") from error
    return listening
