"""``feeder serve``: makes parts of batches for training jobs on other machines."""

from __future__ import annotations

import argparse
import secrets
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.text import count, printable, say
from feeder.tools.commands.common import say_json, size_bytes


def add(commands: Any) -> None:
    command = commands.add_parser(
        "serve",
        help="make parts of batches for training jobs, on the nodes of a cluster",
        description="Starts an input service on the nodes of a Ray cluster: feeder.DataLoader(..., service=NAME) has "
        "parts of its batches made there. The service goes on after the command has ended, until --stop.",
        examples=(
            "feeder serve --root /data --cpus 8",
            "feeder serve --root s3://bucket/sets --cpus 16 --name in1k --address HEAD:6379",
            "feeder serve --status",
            "feeder serve --stop",
            "feeder serve --root /data --cpus 8 --host 10.0.0.5 --file /shared/service.json",
        ),
        epilog="Pixels travel unencrypted, and a Ray cluster trusts everybody who reaches its ports: keep both in a "
        "closed network.",
    )

    command.add_argument("--name", default="feeder", metavar="NAME", help="name of the service (default: %(default)s)")
    command.add_argument(
        "--address", default="auto", metavar="HOST:PORT", help="the Ray cluster (default: the one that Ray finds)"
    )

    command.add_argument(
        "--root",
        action="append",
        default=[],
        metavar="DIR|URL",
        help="folder or URL below which sets may be read; may be repeated. Nothing else is",
    )
    command.add_argument(
        "--allow-module",
        action="append",
        default=[],
        metavar="MODULE",
        help="module whose functions recipes and fields may call; may be repeated. No others are",
    )

    _add_nodes(command)
    command.add_argument(
        "--host",
        default=None,
        metavar="ADDRESS",
        help="address to listen on (default: the node's in the cluster unless it is public, 127.0.0.1 with --file); "
        "0.0.0.0 for all of a node's",
    )
    command.add_argument(
        "--file",
        metavar="FILE",
        help="without Ray: serve on this machine until interrupted, and write address and token to this file, for "
        "service='file:FILE'",
    )
    command.add_argument(
        "--tcp-only", action="store_true", help="send parts over TCP to jobs on the same machine, too: to measure that"
    )

    what = command.add_mutually_exclusive_group()
    what.add_argument("--status", action="store_true", help="show nodes, jobs and images/s")
    what.add_argument("--stop", action="store_true", help="end the service")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _add_nodes(command: Any) -> None:
    """Adds the options for the nodes, and for what a server takes of its node."""
    command.add_argument("--metrics-port", type=int, metavar="PORT", help="serve each node's counts to Prometheus")
    command.add_argument("--cpus", type=int, metavar="N", help="cores of each node that make parts")
    command.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: all that have the cores)")
    command.add_argument("--job-cpus", type=int, metavar="N", help="most cores of a node that one job gets at a time")
    command.add_argument(
        "--window",
        type=size_bytes,
        default=512 << 20,
        metavar="SIZE",
        help="memory of each node for parts that other trials of a search may want, too (default: 512MiB)",
    )

    command.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        type=_pair,
        help="only on nodes with this label of Ray; may be given several times",
    )
    command.add_argument(
        "--resource",
        action="append",
        default=[],
        metavar="NAME=AMOUNT",
        type=_amount,
        help="resource of Ray that each server takes from its node, such as memory=8GiB; may be given several times",
    )


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


def _amount(text: str) -> tuple[str, float]:
    name, value = _pair(text)
    try:
        return name, float(size_bytes(value) if name == "memory" else value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=AMOUNT, got {text!r}") from None


def run(arguments: argparse.Namespace) -> int:
    if arguments.status:
        return _status(arguments)
    if arguments.stop:
        if arguments.file is not None:
            raise ArgumentError("--stop ends a service of Ray; one with --file ends when its command is interrupted")
        from feeder.service.cluster import stop

        stop(arguments.name, address=arguments.address)
        return 0
    if not arguments.root or arguments.cpus is None or arguments.cpus < 1:
        raise ArgumentError("give --root, below which sets may be read, and --cpus, 1 or more")

    if arguments.file is not None:
        from feeder.service.local_server import serve_file
        from feeder.service.server_options import ServerOptions

        options = ServerOptions(
            tuple(arguments.root),
            arguments.cpus,
            secrets.token_hex(32),
            arguments.host or "127.0.0.1",
            window_bytes=arguments.window,
            job_cores=arguments.job_cpus,
            modules=tuple(arguments.allow_module),
            tcp_only=arguments.tcp_only,
        )
        serve_file(arguments.file, options, arguments.metrics_port)
        return 0

    from feeder.service.cluster import start

    found = start(
        arguments.name,
        roots=arguments.root,
        cpus=arguments.cpus,
        nodes=arguments.nodes,
        address=arguments.address,
        host=arguments.host,
        window_bytes=arguments.window,
        job_cores=arguments.job_cpus,
        metrics_port=arguments.metrics_port,
        allow_modules=arguments.allow_module,
        tcp_only=arguments.tcp_only,
        labels=dict(arguments.label),
        resources=dict(arguments.resource),
    )
    if arguments.json:
        say_json(found)
    else:
        nodes = count(len(found["servers"]), "node")
        say(f"service {printable(arguments.name)} runs on {nodes}; feeder.DataLoader(..., service={arguments.name!r})")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from feeder.service.cluster import status
    from feeder.service.local_server import directory_of
    from feeder.service.server_status import service_status

    if arguments.file is None:
        found = status(arguments.name, address=arguments.address)
    else:
        found = service_status(directory_of(arguments.file))
    if arguments.json:
        say_json(found)
        return 0
    for node in found["servers"]:
        if "problem" in node:
            say(printable(f"{node['address']}: {node['problem']}"))
            continue
        say(
            printable(
                f"{node['address']}: {node['busy']} of {count(node['cores'], 'core')} busy, {node['queue']} parts "
                "wait, "
                f"{node['images_per_s']:.0f} images/s, CPU {node['cpu_share']:.0%}, {node['shared']} parts shared, "
                f"{node['lost']} processes and {node['dropped']} connections lost"
            )
        )
        for name, job in node["jobs"].items():
            shown = (
                f"{job['images']} images, {job['busy']} parts in flight, {job['queue']} wait, {job['failed']} failed"
            )
            say(printable(f"  job {name}: {shown}"))
    if not found["servers"]:
        say("the service has no node now")
    return 0
