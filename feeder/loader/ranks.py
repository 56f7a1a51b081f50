"""The rank of this process and the world size."""

from __future__ import annotations

import os

from torch import distributed

from feeder.loader.group_store import is_initialized


def current_ranks(given: tuple[int, int] | None) -> tuple[int, int]:
    """Returns (rank, world size): as given, else torch.distributed's, else torchrun's, else (0, 1)."""
    if given is not None:
        return given
    if is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def is_in_group(given: tuple[int, int] | None) -> bool:
    """Returns True if the ranks are those of a torch.distributed group of two or more."""
    return given is None and is_initialized() and distributed.get_world_size() > 1
