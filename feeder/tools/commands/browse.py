"""``feeder browse``: a local web page of a set, and of what training sees of it."""

from __future__ import annotations

import argparse
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.text import printable, say

__all__ = ["add", "run"]


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
            "feeder browse ./images-shards --state checkpoint.pt --key loader    # batches of that run",
        ),
    )
    command.add_argument("set", metavar="SET", help="shard set, its URL, or a folder of images")
    command.add_argument("--port", type=int, metavar="N", default=0, help="TCP port (default: a free one)")
    command.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 lets other machines in who have the secret, without encryption "
        "(default: 127.0.0.1)",
    )
    command.add_argument("--image-size", type=int, metavar="PX", default=224, help="side of crops (default: 224)")
    command.add_argument("--state", metavar="FILE", help="take recipe, seed and batches from what state_dict() gave")
    command.add_argument("--key", metavar="NAME", help="name of the loader's state in the checkpoint, such as loader")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError:
        raise ArgumentError("feeder browse needs starlette and uvicorn; pip install 'feeder-data[browse]'") from None
    import socket

    from feeder.tools.browse.server import make_app
    from feeder.tools.browse.set_view import SetView
    from feeder.tools.browse.training import Training
    from feeder.tools.replay import read_state

    state = None if arguments.state is None else read_state(arguments.state, arguments.key)
    view = SetView(arguments.set)
    training = Training(view, arguments.image_size, state)
    is_open = arguments.host in ("0.0.0.0", "::")
    app = make_app(view, training, hosts=["*"] if is_open else ["127.0.0.1", "localhost", arguments.host])
    listening = socket.socket(socket.AF_INET6 if ":" in arguments.host else socket.AF_INET)
    with listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((arguments.host, arguments.port))
            listening.listen()  # before the address is shown
        except OSError as error:
            where = f"{arguments.host}:{arguments.port}"
            raise ArgumentError(f"{where}: can't listen there: {error.strerror}; choose another --port") from error
        name = socket.gethostname() if is_open else arguments.host
        url = f"http://{f'[{name}]' if ':' in name else name}:{listening.getsockname()[1]}/?token={app.state.token}"
        say(printable(f"{arguments.set}: open {url}"))
        say("Ctrl-C ends it")
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        server.run(sockets=[listening])
    return 0
