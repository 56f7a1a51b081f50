"""The order that a loader takes for its ``shuffle``: with remote sets one that stays within few shards."""

from __future__ import annotations

from typing import Any

from feeder.dataset.subset import remote_readers
from feeder.errors import ArgumentError
from feeder.loader.ranks import current_ranks
from feeder.order.lanes import Lanes
from feeder.order.sample_order import FullShuffle, Shuffle, goes_by_shard
from feeder.system.warning import warn

__all__ = ["choose_shuffle", "refuse_full_shuffle"]


def choose_shuffle(
    dataset: Any, given: FullShuffle | Shuffle | None, *, by_size: bool, ranks: tuple[int, int] | None
) -> Shuffle:
    """Returns the way to shuffle of a loader.

    Args:
        dataset: The loader's dataset.
        given: The loader's argument.
        by_size: True if the loader puts images of one size together, which takes a full shuffle.
        ranks: Rank and world size as given.

    Raises:
        ArgumentError: for an unknown name, and for a full shuffle of a remote set that does not fit its cache.

    Warns:
        UserWarning: on the first rank, if it is lanes because the set is remote.
    """
    if goes_by_shard(given):
        return given

    if isinstance(given, str) and given != "full":
        raise ArgumentError(f"shuffle must be True, False, 'full', a feeder.Window or feeder.Lanes, got {given!r}")
    if not given:
        return False

    remote = remote_readers(dataset)
    if not remote or by_size or given == "full":
        refuse_full_shuffle(dataset)
        return True

    if current_ranks(ranks)[0] == 0:
        warn(
            f"{remote[0].place} is remote, so shuffle=True shuffles it in lanes, by which a rank reads the same share "
            "of the shards in every epoch. shuffle=feeder.Lanes() does so without this warning; shuffle='full' mixes "
            "all shards, and needs a cache for the whole set"
        )
    return Lanes()


def refuse_full_shuffle(dataset: Any) -> None:
    """Raises ArgumentError if a dataset has a remote set that does not fit its cache."""
    for reader in remote_readers(dataset):
        needed, has = reader.store_bytes, reader.cache_bytes
        if needed > has:
            raise ArgumentError(
                f"a full shuffle reads from all shards at all times, and the {needed / 1e9:,.3g} GB of {reader.place} "
                f"do not fit its cache of {has / 1e9:,.3g} GB: give shuffle=feeder.Lanes(), or "
                f"cache_bytes={needed:_} or more where the disk has that"
            )
