"""The path that a loader takes, feeder's fast one or torch's, with the reason and the way to the other; its order."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from feeder.dataset.base import FeederDataset
from feeder.dataset.foreign import convertible
from feeder.dataset.further_images import images_in
from feeder.dataset.mixture import Mixture
from feeder.dataset.subset import as_feeder, differing_dataset, readers_of, remote_of
from feeder.errors import ArgumentError
from feeder.loader.options import DEFAULT_COLLATES
from feeder.loader.ranks import current_ranks
from feeder.order.buckets import Buckets
from feeder.order.lanes import Lanes
from feeder.order.sample_order import FullShuffle, Shuffle, goes_by_shard
from feeder.system.warning import warn
from feeder.transforms.pad_to_batch import PadToBatch

_log = logging.getLogger(__name__)

_DEEPEST = 4  # wrappers around each other
_MOST_ITEMS = 16  # the most items of a list in a wrapper that are looked at
# Arguments that only the fast path takes, or those of them that torch's path takes in some cases.
_OF_RANKS = frozenset({"rank", "world_size"})
_OF_IMAGES = frozenset({"seed", "backend", "fidelity", "on_error"})
_OF_FAST_PATH = _OF_RANKS | _OF_IMAGES | {"mix", "sizes", "memory_format", "service"}


class _Reason(NamedTuple):
    """The reason why a loader runs torch's path.

    Attributes:
        why: The obstacle, in words: "batch_size is None".
        way_out: The remedy; "" if no sample comes from a feeder dataset, as nothing is gained then.
    """

    why: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.why}: {self.way_out}" if self.way_out else self.why


@dataclass(frozen=True)
class PathChoice:
    """The path that a loader takes.

    Attributes:
        source: The samples as one feeder dataset; None if they can't be taken so.
        shuffle: The way to shuffle; on torch's path True or False, unless that is refused.
        given_shuffle: The loader's argument ``shuffle``.
        own_order: True without an explicit sampler.
        generic_reason: The reason for torch's path; None on the fast path.
        is_iterable: True for an iterable dataset.
    """

    source: FeederDataset | None
    shuffle: Shuffle
    given_shuffle: FullShuffle | Shuffle | None
    own_order: bool
    generic_reason: _Reason | None
    is_iterable: bool

    @property
    def is_fast(self) -> bool:
        """True for the fast path, False for torch's."""
        return self.generic_reason is None

    @property
    def follows_state(self) -> bool:
        """True if a state decides between a full shuffle and lanes, as ``shuffle=True`` leaves it open."""
        return self.shuffle is not False and self.given_shuffle != "full" and not goes_by_shard(self.given_shuffle)

    @property
    def takes_encoded(self) -> bool:
        """True if samples may hold images as :class:`feeder.Encoded`."""
        return not self.is_fast and not self.is_iterable

    def of_images(self, given: Iterable[str]) -> tuple[str, ...]:
        """Returns the given arguments, by name, that are for :class:`feeder.Encoded` alone."""
        if self.source is not None or not self.takes_encoded:
            return ()
        return tuple(name for name in given if name in _OF_IMAGES)

    @property
    def reason(self) -> str | None:
        """The reason why feeder's samples go without the fast path; None if they don't, or are not feeder's."""
        found = self.generic_reason
        return None if found is None or not found.way_out else str(found)

    def check(self, given: Iterable[str], ranks: tuple[int, int] | None) -> None:
        """Checks the arguments of a loader on torch's path.

        Args:
            given: Names of the loader's given arguments.
            ranks: Rank and world size as given.

        Raises:
            ArgumentError: if torch's path does not have one of them.

        Warns:
            UserWarning: if a feeder dataset goes without the fast path: nothing else would show it.
        """
        refused = [name for name in given if name in _OF_FAST_PATH.difference(self.of_images(given))]
        if goes_by_shard(self.shuffle):
            refused.insert(0, f"shuffle={type(self.shuffle).__name__}(...)")
        if refused:
            raise self._refusal(refused)
        if self.reason is not None:
            world_size, further = current_ranks(ranks)[1], ""
            if world_size > 1 and self.own_order:
                further = f". Each of the {world_size} ranks gets all samples, unless a sampler splits them"
            warn(f"this loader runs torch's path, without feeder's order, rank split and speed: {self.reason}{further}")

    def _refusal(self, names: list[str]) -> ArgumentError:
        are, them = ("is", "it") if len(names) == 1 else ("are", "them")
        way = ""
        if "seed" in names or names[0].startswith("shuffle="):
            way = "; torch.manual_seed(), generator= or a sampler decides about the order here"
        elif _OF_RANKS.intersection(names):
            way = "; a DistributedSampler splits the samples by rank here"
        return ArgumentError(
            f"{', '.join(names)} {are} for feeder's datasets, in batches of images of one size. Here "
            f"{self.generic_reason}. Leave {them} out{way}"
        )


def choose_path(given: Mapping[str, Any], ranks: tuple[int, int] | None) -> PathChoice:
    """Returns the path for a loader.

    Args:
        given: The loader's arguments, by name.
        ranks: Rank and world size, if both are given.

    Raises:
        ArgumentError: for an unknown way to shuffle; for a full shuffle of a remote set that does not fit its cache; if
            the recipe has sizes that the path can't give it.

    Warns:
        UserWarning: on the first rank, if it shuffles in lanes because the set is remote.
    """
    dataset, shuffle, sizes = given["dataset"], given["shuffle"], given["sizes"]
    own_order = given["sampler"] is None and given["batch_sampler"] is None
    in_batches = given["batch_size"] is not None or given["batch_sampler"] is not None
    collates = given["collate_fn"] not in DEFAULT_COLLATES  # images of different sizes, too
    by_size = isinstance(sizes, Buckets) or (isinstance(sizes, PadToBatch) and sizes.group_by_aspect)
    if isinstance(shuffle, str) and shuffle != "full":
        raise ArgumentError(f"shuffle must be True, False, 'full', a feeder.Window or feeder.Lanes, got {shuffle!r}")
    source = as_feeder(dataset)
    reason = None

    if source is None:
        reason = _foreign(dataset)
    elif not (in_batches and collates) and (why := sizeless(source, sizes is not None)) is not None:
        reason = why
    elif not in_batches:
        reason = _Reason("batch_size is None", "give batch_size")

    if isinstance(source, Mixture) and (reason is not None or not own_order or collates or sizes is not None):
        raise ArgumentError(
            "a Mixture is loaded on feeder's path, in its own order and as feeder collates it: leave out sampler, "
            "collate_fn and sizes=" + (f". Here {reason}" if reason is not None else "")
        )

    held = _wrapped(dataset, _DEEPEST) if source is None else source
    recipes = [] if held is None else [held.recipe, *(image.recipe for image in images_in(held.extras))]
    if held is not None and reason is not None and any(each.is_variable for each in recipes):
        raise ArgumentError(
            "the recipe has sizes by bucket or by epoch, which a loader has on feeder's path only: "
            + ("give sizes=feeder.Buckets(...)" if held.recipe.has_bucket and sizes is None else str(reason))
        )
    chosen = shuffle if goes_by_shard(shuffle) else bool(shuffle)
    if reason is None:
        chosen = _choose_shuffle(dataset, shuffle, by_size or isinstance(dataset, Mixture), ranks)
        source = as_feeder(dataset, stored_order=goes_by_shard(chosen))
    is_iterable = isinstance(dataset, IterableDataset)
    return PathChoice(source, chosen, shuffle, own_order, reason, is_iterable)


def sizeless(source: FeederDataset, sizes: bool) -> _Reason | None:
    """Returns the reason that some images have no fixed size; None if all have one.

    Args:
        source: The dataset.
        sizes: True if the loader gives the samples' images one size.
    """
    crop = "a crop, or Resize((height, width))"
    if source.recipe.views[0].output_size is None and not sizes:
        return _Reason(
            "images have sizes of their own", f"end the geometry of the recipe with {crop}, or give a collate_fn"
        )
    for image in images_in(source.extras):
        if any(view.output_size is None and not (sizes and view.has_bucket) for view in image.recipe.views):
            why = f"the images of target {image.name!r} have sizes of their own"
            if sizes:
                return _Reason(why, f"give it T.Image(transform=...) whose geometry ends with {crop}")
            return _Reason(why, f"end the geometry of its recipe with {crop}, or give a collate_fn")
    return None


def _foreign(dataset: Any) -> _Reason:
    inner = _wrapped(dataset, _DEEPEST)
    kinds = [type(dataset).__name__]
    while type(dataset) is Subset:
        dataset = dataset.dataset
        kinds.append(type(dataset).__name__)
    why = f"the dataset is a {' of a '.join(kinds)}"
    if inner is None:
        return _Reason(why, "")
    if inner is dataset:
        why += ", whose samples or length are not a feeder dataset's"
        return _Reason(why, "change what comes out of feeder's own samples in a collate_fn")
    if type(dataset) is ConcatDataset and (found := differing_dataset(dataset)) is not None:
        number, what = found
        if what == "samples":
            why += f", of which dataset {number} is a {type(dataset.datasets[number]).__name__}"
            return _Reason(why, "join feeder datasets only, and change what comes out in a collate_fn")
        why += f", of which dataset {number} differs from the first in its {what}"
        return _Reason(why, f"give the same {what} to all")
    name = type(inner).__name__
    way_out = f"give the {name} itself to the loader, and change what comes out in a collate_fn"
    return _Reason(f"{why} around a {name}", way_out)


def tell_of_conversion(dataset: Any) -> None:
    """Logs once that a dataset of another library can be feeder's."""
    kind = convertible(dataset)
    if kind is not None:
        _tell(kind)


@functools.cache  # once for each kind
def _tell(kind: str) -> None:
    _log.info("feeder.from_torch(dataset) reads this %s natively, which is faster", kind)


def _wrapped(value: Any, depth: int) -> FeederDataset | None:
    if isinstance(value, FeederDataset):
        return value
    if depth:
        is_list = isinstance(value, (list, tuple))
        for item in value[:_MOST_ITEMS] if is_list else getattr(value, "__dict__", {}).values():
            if isinstance(item, (Dataset, list, tuple)) and (found := _wrapped(item, depth - 1)) is not None:
                return found
    return None


def _choose_shuffle(
    dataset: Any, given: FullShuffle | Shuffle | None, by_size: bool, ranks: tuple[int, int] | None
) -> Shuffle:
    """Returns the way to shuffle on the fast path; images of one size are put together by a full shuffle."""
    if goes_by_shard(given):
        return given
    if not given:
        return False

    remote = remote_of(readers_of(dataset))
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
    for reader in remote_of(readers_of(dataset)):
        needed, has = reader.store_bytes, reader.cache_bytes
        if needed > has:
            raise ArgumentError(
                f"a full shuffle reads from all shards at all times, and the {needed / 1e9:,.3g} GB of {reader.place} "
                f"do not fit its cache of {has / 1e9:,.3g} GB: give shuffle=feeder.Lanes(), or "
                f"cache_bytes={needed:_} or more where the disk has that"
            )
