"""The check that ranks which split one order load it with the same settings.

Note [Agreement]
    Ranks that differ in seed, batch size or dataset take parts of different orders: some samples are seen twice, others
    never, and nothing shows it. So the first rank that begins an epoch writes its settings to the store that
    torch.distributed keeps for its own start, and the others compare theirs. A rank that finds a difference writes an
    error there for all ranks, and raises it. Nothing waits: a late rank compares when it comes. A missing, dead or slow
    store is no error, and is not asked again in that epoch.

    Epochs are compared with their counterparts on other ranks: of the loader that was made at the same place of the
    program (the lines of code that led there), has the same number among the loaders begun there, and has begun as many
    epochs after as many calls of set_epoch. So a loader that one rank alone makes, to look at images for example, is
    compared with none. A rank that takes a batch of the shared loader and breaks off goes on to another epoch than the
    others. It writes that to the store when it begins that epoch, and they find it.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from feeder.errors import ArgumentError
from feeder.loader.ranks import group_life, group_store, within
from feeder.order.split import Split
from feeder.system.text import count

PATIENCE_S = 5.0  # the longest wait for an answer of the store
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # functions' addresses in the text of a recipe
_T = TypeVar("_T")
_begun: dict[tuple[str, int], int] = {}


class Connection(NamedTuple):
    """A rank's connection to the others.

    Attributes:
        store: An object with ``compare_set``, ``set``, ``get`` and ``check`` as torch.distributed's stores have them.
        life: The group's number; see :func:`feeder.loader.ranks.group_life`.
    """

    store: Any
    life: int


def connect(rank: int) -> Connection | None:
    """Returns a connection to the other ranks of torch.distributed's default group; None without a group or a store."""
    store = group_store()
    life = None if store is None else within(PATIENCE_S, lambda: group_life(store, rank))
    return None if life is None else Connection(store, life)


def epoch_values(identity: Mapping[str, Any], split: Split, recipes: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Returns the values of an epoch that all ranks have to agree on, by their names in the error, as recipes are."""
    rest = {name: value for name, value in identity.items() if name not in ("samples", "fingerprint")}
    texts = {name: _ADDRESS.sub("", repr(recipe)).encode() for name, recipe in recipes.items()}
    return {
        "dataset": f"{identity['samples']} samples, fingerprint {identity['fingerprint']}",
        **rest,
        "batch_size": split.batch_size,
        "drop_last": split.drop_last,
        **{name: hashlib.blake2b(text, digest_size=8).hexdigest() for name, text in texts.items()},
        "epoch": epoch,
        "consumed": split.start,
    }


class Agreement:
    """Compares the settings of a loader's epochs on all ranks; see Note [Agreement].

    Args:
        reach: Returns this rank's connection for an epoch; None if there is none.
        place: The place in the program where the loader was made; None: the caller's, outside of feeder.
        numbers: Number of loaders that were begun, by place and life.
    """

    def __init__(
        self,
        reach: Callable[[int], Connection | None] = connect,
        place: str | None = None,
        numbers: dict[tuple[str, int], int] | None = None,
    ) -> None:
        self._reach = reach
        self._place = calling_place() if place is None else place
        self._numbers = _begun if numbers is None else numbers
        self._number: dict[int, int] = {}
        self._settings = 0
        self._epochs = 0
        self._rank = 0
        self._scope = self._key = ""
        self._has_raised = self._is_silent = False

    def epoch_was_set(self) -> None:
        """Counts epochs anew, as all ranks do after ``set_epoch``."""
        self._settings += 1
        self._epochs = 0

    def begin(self, rank: int, values: Mapping[str, Any], left_after: int | None = None) -> None:
        """Compares an epoch that begins.

        Args:
            rank: This rank.
            values: Settings that have to be the same on all ranks, by name; of JSON's types.
            left_after: Number of batches after which the loader's previous epoch was broken off; None: it was not.

        Raises:
            ArgumentError: if ranks differ.
        """
        before, self._key = self._key, ""
        self._rank = rank
        self._is_silent = False
        self._has_raised = False

        connection = self._reach(rank)
        if connection is None:
            return

        life = connection.life
        if life not in self._number:
            self._number[life] = self._numbers.get((self._place, life), 0)
            self._numbers[self._place, life] = self._number[life] + 1
        self._scope = f"feeder/agreement/{life}"
        self._key = f"{self._scope}/{self._place}/{self._number[life]}/{self._settings}/{self._epochs}"
        self._epochs += 1

        if before and left_after is not None:
            self._ask(lambda store: store.set(f"{before}/left", f"{left_after} {rank}"))
        mine = json.dumps({"rank": rank, **values})
        found = self._ask(lambda store: bytes(store.compare_set(self._key, "", mine)).decode())
        first = json.loads(mine if found is None else found)

        other, names = first.pop("rank"), {**values, **first}
        both = [(name, first.get(name), values.get(name)) for name in names]  # one rank alone may have set weights
        said = "; ".join(f"{name} is {there!r} there and {here!r} here" for name, there, here in both if there != here)
        if said:
            self._spread(
                f"rank {rank} does not load what rank {other} does: {said}. Ranks take their parts of one "
                "order, so give all of them the same; a loader that one rank alone iterates needs rank=0, world_size=1"
            )
        self.check(0)

    def check(self, steps: int) -> None:
        """Looks for differences that other ranks have found.

        Args:
            steps: Number of batches of the epoch that were handed out; 0 when it begins, or is given up.

        Raises:
            ArgumentError: if ranks differ.
        """
        if not self._key or self._has_raised:
            return
        error, left = self._ask(
            lambda store: [stored(store, f"{self._scope}/error"), stored(store, f"{self._key}/left")]
        ) or ("", "")
        if error:
            self._has_raised = True
            raise ArgumentError(error)
        if left and steps:
            after, rank = map(int, left.split())
            if after < steps + 1:
                self._spread(
                    f"rank {rank} left an epoch of this loader after {count(after, 'batch', 'batches')} and began "
                    "another, while other ranks go on in it, so they take parts of different orders. For a batch to "
                    "look at on one rank take a loader of its own with rank=0, world_size=1, or call set_epoch before "
                    "each epoch"
                )

    def close(self) -> None:
        """Looks for differences that other ranks have found, for the last time.

        Raises:
            ArgumentError: if ranks differ, and this rank has not raised it before.
        """
        self._is_silent = False
        self.check(0)

    def _spread(self, message: str) -> None:
        """Writes an error for all ranks, and raises it."""
        self._ask(lambda store: store.set(f"{self._scope}/error", message))
        self._has_raised = True
        raise ArgumentError(message)

    def _ask(self, question: Callable[[Any], _T]) -> _T | None:
        """Returns the store's answer; None without one, and then the store is not asked again in this epoch.

        The store is not kept, as a group that is destroyed should end. It is not cloned either: connecting may take
        seconds where the name service does not answer.
        """
        connection = None if self._is_silent else self._reach(self._rank)
        answer = None if connection is None else within(PATIENCE_S, lambda: [question(connection.store)])
        self._is_silent = answer is None
        return None if answer is None else answer[0]


def stored(store: Any, key: str) -> str:
    """Returns the value of a key; "" without one. Checks first, as ``get`` waits for a key."""
    return bytes(store.get(key)).decode() if store.check([key]) else ""


def calling_place() -> str:
    """Returns a digest of the lines of code outside of feeder that led here: the same in all processes of a job."""
    digest, feeder = hashlib.blake2b(digest_size=8), __name__.partition(".")[0]
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] != feeder:
            digest.update(f"{module} {frame.f_code.co_name} {frame.f_lineno}\n".encode())
        frame = frame.f_back
    return digest.hexdigest()
