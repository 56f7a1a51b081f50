"""The seed of a loader's order and augmentation: as given, or drawn when the loader is made.

Note [Drawn seeds]
    A loader without ``seed=`` draws one from torch's default generator, as torch's samplers do, so torch.manual_seed
    decides about it and two loaders differ. Every rank draws, so that the generators of all ranks stay alike, and the
    number of rank 0 counts. Rank 0 writes it to the store of Note [Agreement], under the place of the program where the
    loader was made and its number among the loaders made there. The others read it at the first use of the order: in
    the constructor they would wait for a rank 0 that may wait for them in a collective operation.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from feeder.errors import ArgumentError
from feeder.loader.random_state import draw_seed
from feeder.loader.rank_agreement import PATIENCE_S, Connection, calling_place, connect, stored
from feeder.loader.ranks import current_ranks, is_in_group, within
from feeder.system.warning import warn

WAIT_S = 60.0  # the longest wait for rank 0's seed
_POLL_S = 0.05
_made: dict[tuple[str, int, int], int] = {}


def checked_seed(seed: Any) -> int | None:
    """Returns a loader's argument ``seed``, an integer of any kind, as Python's; ArgumentError for anything else."""
    if seed is not None and not isinstance(seed, (int, np.integer)):
        raise ArgumentError(f"seed must be an integer, 0 to 2**64-1, got {seed!r}")
    return None if seed is None else int(seed)


class RunSeed:
    """The seed of a loader; see Note [Drawn seeds].

    Args:
        given: The loader's ``seed``, 0 to 2**64-1; None: a state's, or drawn.
        generator: Source of the draw; None: torch's default generator.
        ranks: (rank, world size) as given to the loader.

    Attributes:
        known: The seed; None until :meth:`value` has found out the one that all ranks have.
    """

    def __init__(self, given: int | None, generator: torch.Generator | None, ranks: tuple[int, int] | None) -> None:
        self._is_given = given is not None
        self._ranks = ranks
        self._drawn = draw_seed(generator) if given is None else given
        self.known = None if given is None and generator is None else self._drawn
        self._place = calling_place() if self.known is None else ""
        self._key: str | None = None
        if self.known is None and is_in_group(ranks):
            self._connect(current_ranks(ranks)[0])

    def value(self) -> int:
        """Returns the seed, 0 to 2**64-1. The first call may wait for rank 0.

        Raises:
            ArgumentError: if rank 0 has made no such loader within a minute.

        Warns:
            UserWarning: if there are several ranks and no group in which they can agree; the seed is 0 then.
        """
        if self.known is None:
            rank, world_size = current_ranks(self._ranks)
            if world_size == 1:
                self.known = self._drawn
            elif not is_in_group(self._ranks):
                self.known = 0
                why = "rank= and world_size= are given" if self._ranks else "there is no torch.distributed group"
                warn(
                    f"as {why}, ranks can't agree on a seed that is drawn, so it is 0: give all of them the same seed="
                )
            else:
                self._connect(rank)
                self.known = self._drawn if rank == 0 else self._read(rank)
        return self.known

    def of_state(self, state: Mapping[str, Any]) -> int:
        """Returns the seed by which a run goes on from a state: the state's, if none was given."""
        saved = state.get("seed")
        return saved if not self._is_given and type(saved) is int and 0 <= saved < 1 << 64 else self.value()

    def _connect(self, rank: int) -> Connection | None:
        """Returns the connection to the group's other ranks; publishes rank 0's seed with the first one."""
        connection = connect(rank)
        if connection is not None and self._key is None:
            store, life = connection
            place = self._place, life, rank
            number = _made[place] = _made.get(place, 0) + 1
            key = self._key = f"feeder/seed/{life}/{self._place}/{number}"
            if rank == 0:
                within(PATIENCE_S, lambda: store.set(key, str(self._drawn)))
        return connection

    def _read(self, rank: int) -> int:
        """Returns the seed that rank 0 has published."""
        deadline = time.monotonic() + WAIT_S
        while not (found := self._published(rank)):
            if time.monotonic() >= deadline:
                raise ArgumentError(
                    f"rank {rank} waited {WAIT_S:.0f} s for this loader's seed, which rank 0 draws when it makes its "
                    "own at the same place: give all ranks the same seed=, or a loader of one rank rank=0, world_size=1"
                )
            time.sleep(_POLL_S)  # a call that waits in the store would keep the group's own threads from it
        return int(found)

    def _published(self, rank: int) -> str | None:
        """Returns what rank 0 has published; "" or None without it."""
        connection, key = self._connect(rank), self._key
        if connection is None or key is None:
            return None
        return within(PATIENCE_S, lambda: stored(connection.store, key))
