"""The helper process of a relay: asks a Ray cluster for a service's servers, and prints them when they change.

    python -m feeder.service.finder NAME ADDRESS

Each line is a JSON object, see :class:`feeder.loader.fast.service_directory.Directory`. It ends with its standard
input.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from typing import TextIO

__all__ = ["find"]

_LOOK_S = 0.5
_ANSWER_S = 5.0


def find(name: str, address: str, output: TextIO) -> None:
    """Prints the servers of a service for ever.

    Args:
        name: Its name.
        address: The Ray cluster.
        output: The place to print to.
    """
    said = ""

    def say(found: object) -> None:
        nonlocal said
        line = json.dumps(found)
        if line != said:
            said = line
            print(line, file=output, flush=True)

    try:
        import ray

        from feeder.service.actors import NAMESPACE, registry_name

        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except ModuleNotFoundError:
        say({"problem": "the package ray is missing: pip install 'feeder-data[ray]'"})
        return
    except (ConnectionError, RuntimeError, ValueError) as error:
        say({"problem": f"can't join the Ray cluster {address!r}: {str(error).strip()}"})
        return
    while True:
        try:
            registry = ray.get_actor(registry_name(name), NAMESPACE)
            say(ray.get(registry.directory.remote(), timeout=_ANSWER_S))
        except ValueError:
            say({"problem": f"there is no service {name!r} in the Ray cluster {address!r}"})
        except Exception as error:  # the registry or the head is gone for now
            say({"problem": f"its registry does not answer: {type(error).__name__}"})
        time.sleep(_LOOK_S)


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    printed = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Ray prints
    threading.Thread(target=_end_with_input, daemon=True).start()
    find(sys.argv[1], sys.argv[2], printed)
    os._exit(1)
