"""Several datasets as one, mixed by weight: the dataset of :class:`feeder.order.mixture_order.MixtureOrder`."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from feeder.dataset.base import FeederDataset
from feeder.dataset.extras import SourceNumber
from feeder.dataset.folder_reader import FolderReader
from feeder.dataset.joined_reader import JoinedReader
from feeder.dataset.reader import Reader
from feeder.dataset.relabel import share_classes
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.subset import as_feeder
from feeder.dataset.subset_reader import SubsetReader
from feeder.errors import ArgumentError
from feeder.order.lanes import Lanes
from feeder.order.mixture_lanes import MixtureInLanes
from feeder.order.mixture_order import MixtureOrder
from feeder.order.mixture_shares import Shares
from feeder.order.sample_order import Shuffle, goes_by_shard
from feeder.order.shard_sizes import ShardSizes
from feeder.system.arrays import Int64s
from feeder.system.checks import check_one_of


class Mixture(FeederDataset):
    """Several datasets, mixed by weight in every batch of :class:`feeder.DataLoader`.

    Batches are those of a dataset, and end with the number of each sample's source in :attr:`names`, int64 [N]. Each
    source has passes of its own; order and augmentation are functions of (seed, the source's name, its pass, sample).
    A run resumes exactly on any number of ranks and workers, and with any batch size.

    Args:
        sources: The datasets by name: feeder's, or a ``Subset`` or ``ConcatDataset`` of them, with equal fields and
            kinds of labels, and with recipes of their own whose images have one size and dtype. The order of the names
            has no effect.
        weights: Shares of samples, a number for each name, 0 to pause a source; or a schedule of such, by the samples
            of the run that they begin at: {0: {...}, 1_000_000: {...}}. None: by length.
        repeats: In place of weights the passes that an epoch has of some sources; it has one of the others.
        stop: The end of an epoch: "first_exhausted", the default, when a source has given all its samples;
            "all_exhausted" when all have, of which short ones begin again in another order;
            "all_exhausted_without_replacement" has each sample once, and weights set the pace.
        samples: In place of ``stop`` the samples of an epoch. Sources go on in the next where they stood.
        batching: "mixed", or "per_source": the batches of all ranks at a step are of one source, in exact shares.
        labels: "keep" leaves each source its labels; "merge" numbers all classes by their names.

    Attributes:
        names: Names of the sources, sorted.
        sources: The sources, in this order.
        shares: The samples that an epoch takes of each.
        loaders: The paths of the loaders of this process that it was given to, which may refuse a change of weights.

    Raises:
        ArgumentError: for sources that differ, naming them, or arguments that do not go together.
    """

    is_mixture = True

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, float] | Mapping[int, Mapping[str, float]] | None = None,
        *,
        repeats: Mapping[str, int] | None = None,
        stop: Literal["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"] | None = None,
        samples: int | None = None,
        batching: Literal["mixed", "per_source"] = "mixed",
        labels: Literal["keep", "merge"] = "keep",
    ) -> None:
        check_one_of("labels", labels, ("keep", "merge"))
        check_one_of("batching", batching, ("mixed", "per_source"))
        if not isinstance(sources, Mapping) or not all(isinstance(name, str) and name for name in sources):
            raise ArgumentError(f"sources must be a mapping of names to datasets, got {sources!r:.120}")

        found = {name: _source(name, sources[name]) for name in sorted(sources)}
        self.shares = Shares.of({name: len(each) for name, each in found.items()}, weights, repeats, stop, samples)
        self.names = self.shares.names
        self.batching = batching
        self.loaders: weakref.WeakSet[Any] = weakref.WeakSet()
        self.sources = tuple(_merged([*found.values()]) if labels == "merge" else found.values())
        first = self.sources[0]
        for name, source in zip(self.names, self.sources, strict=True):
            _check_alike(self.names[0], first, name, source)
        joined = JoinedReader([source.reader for source in self.sources])
        self._starts = joined.starts
        super().__init__(joined, first.recipe, (*first.extras, SourceNumber()))

    @classmethod
    def by(
        cls,
        dataset: Any,
        name: str,
        weights: Mapping[str, float] | Mapping[int, Mapping[str, float]] | None = None,
        *,
        stop: Literal["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"] | None = None,
        samples: int | None = None,
        batching: Literal["mixed", "per_source"] = "mixed",
    ) -> Mixture:
        """Returns a mixture of the groups of one dataset: its classes, or the samples with one value of a column.

        Args:
            dataset: The dataset, see ``sources``.
            name: "label", or a column of whole numbers or text, see :meth:`FeederDataset.column`.
            weights: See :class:`Mixture`, by the names of the classes, or by values as text; None: equal ones.
            stop: See :class:`Mixture`.
            samples: See there; None without ``stop``: as many as the dataset has.
            batching: See there.

        Raises:
            ArgumentError: for a column of other values, or without one.
        """
        if isinstance(dataset, Mixture):
            raise ArgumentError("Mixture.by takes one dataset, not a Mixture: give it one of the mixture's sources")
        whole = _source("dataset", dataset)
        column = whole.reader.labels() if name == "label" else whole.column(name)
        values = np.asarray(column)
        if values.ndim != 1 or values.dtype.kind not in "iuU":
            raise ArgumentError(f"groups are by whole numbers or text, and {name!r} has others: {values[:2]!r:.80}")

        found, group_of = np.unique(values, return_inverse=True)
        ids = np.argsort(group_of.astype(np.min_scalar_type(len(found))), kind="stable")
        texts = [str(value) for value in found.tolist()]
        if name == "label" and whole.classes is not None:
            texts = [whole.classes[value] if value >= 0 else str(value) for value in found.tolist()]
        text, times = Counter(texts).most_common(1)[0]
        if times > 1:
            raise ArgumentError(f"{times} groups of {name!r} have the name {text!r}: give them names of their own")
        each = np.split(ids, np.cumsum(np.bincount(group_of))[:-1])
        groups = [FeederDataset(SubsetReader(whole.reader, own), whole.recipe, whole.extras) for own in each]

        weights = dict.fromkeys(texts, 1.0) if weights is None else weights
        samples = len(whole) if stop is None and samples is None else samples
        return cls(dict(zip(texts, groups, strict=True)), weights, stop=stop, samples=samples, batching=batching)

    def __len__(self) -> int:
        """Samples of an epoch; of the first, where weights change."""
        return self.shares.samples(0)

    def samples_in(self, epoch: int) -> int:
        """Returns the samples of an epoch."""
        return self.shares.samples(epoch)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "loaders"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"loaders": weakref.WeakSet()}

    def __repr__(self) -> str:
        return f"Mixture({list(self.names)}, samples={len(self)})"

    def __getitem__(self, i: Any) -> NoReturn:
        raise TypeError("a Mixture's samples are known by epoch and position: give it to feeder.DataLoader")

    def set_weights(self, weights: Mapping[str, float], *, at_sample: int) -> None:
        """Changes the weights from a sample of the run on, in all loaders of it; call it on all ranks alike.

        Args:
            weights: A number for each source, 0 to pause it.
            at_sample: The samples before, of all ranks, since the run began.

        Raises:
            ArgumentError: if that sample was handed out or is being made, naming the first that can be; for a loader in
                lanes, but with ``samples`` or batches of one source.
        """
        shares = self.shares.changed(weights, at_sample)
        for loader in list(self.loaders):
            loader.check_reweighted(shares, at_sample)
        self.take(shares)

    def take(self, shares: Shares, by: object = None) -> None:
        """Sets the shares, and tells all loaders but ``by``."""
        self.shares = dataclasses.replace(shares, batch=None)
        for loader in list(self.loaders):
            if loader is not by:
                loader.reweight()

    def order(self, seed: int, shuffle: Shuffle, batch: int) -> MixtureOrder:
        """Returns the order of its epochs, for a loader with global batches of this many samples.

        Raises:
            ArgumentError: for lanes, with weights that change within an epoch by a stop rule.
        """
        shards = [_shards(source.reader) for source in self.sources] if goes_by_shard(shuffle) else []
        shares = self.shares if self.batching == "mixed" else self.shares.in_batches(batch)
        return (MixtureInLanes if isinstance(shuffle, Lanes) else MixtureOrder)(shares, seed, shuffle, shards)

    def ids(self, name: str, ids: npt.ArrayLike) -> Int64s:
        """Returns the numbers by which ``skip=`` and states know samples of a source.

        Args:
            name: The source.
            ids: integers [N], its samples; of a ``Subset`` by their ids in the whole dataset.

        Returns:
            int64 [N]; of a ``Subset`` those that it has.

        Raises:
            ArgumentError: for a source or sample that there is not.
        """
        if name not in self.names:
            raise ArgumentError(f"the Mixture has no source {name!r}; it has {', '.join(map(repr, self.names))}")
        number, found = self.names.index(name), np.array(ids, np.int64, ndmin=1)
        reader = self.sources[number].reader
        size = len(reader.whole if isinstance(reader, SubsetReader) else reader)
        if found.size and (found.min() < 0 or found.max() >= size):
            raise ArgumentError(f"source {name!r} has samples 0 to {size - 1}, got {found.min()} to {found.max()}")
        return int(self._starts[number]) + (
            np.flatnonzero(np.isin(reader.ids, found)) if isinstance(reader, SubsetReader) else found
        )

    def named(self, ids: npt.ArrayLike) -> list[tuple[str, int]]:
        """Returns the source and the id there of samples by the numbers that :meth:`ids` gives."""
        found = []
        for i in np.array(ids, np.int64, ndmin=1).tolist():
            number = int(np.searchsorted(self._starts, i, side="right")) - 1
            reader, own = self.sources[number].reader, i - int(self._starts[number])
            found.append((self.names[number], int(reader.ids[own]) if isinstance(reader, SubsetReader) else own))
        return found


def _shards(reader: Reader) -> Sequence[int] | ShardSizes:
    """Returns the samples in each shard, in stored order; empty for a ``Subset`` in an order of its own."""
    is_stored = not isinstance(reader, SubsetReader) or not (np.diff(reader.ids) < 0).any()
    return reader.shard_sizes() if is_stored else ()


def _source(name: str, dataset: Any) -> FeederDataset:
    found = as_feeder(dataset)
    if found is None or isinstance(found, Mixture):
        raise ArgumentError(
            f"source {name!r} of the Mixture is a {type(dataset).__name__}: sources are feeder's datasets, and Subset "
            "and ConcatDataset of them; feeder.from_torch converts others"
        )
    return found


def _check_alike(first: str, model: FeederDataset, name: str, source: FeederDataset) -> None:
    """Refuses sources whose samples can't stand in one batch."""
    for each, dataset in ((first, model), (name, source)):
        if dataset.recipe.is_variable:
            raise ArgumentError(f"source {each!r} has sizes by bucket or by epoch: a Mixture has fixed ones only")
    a, b = _outputs(model), _outputs(source)
    if a != b:
        raise ArgumentError(
            f"sources {first!r} and {name!r} make other images, {a} and {b}: end their recipes with one size and dtype"
        )
    if model.extras != source.extras:
        raise ArgumentError(f"sources {first!r} and {name!r} differ in targets or fields: give all the same")
    if model.reader.label_dtype != source.reader.label_dtype:
        kinds = f"{model.reader.label_dtype} and {source.reader.label_dtype}"
        raise ArgumentError(f"the labels of sources {first!r} and {name!r} are {kinds}: give all one kind of labels")


def _outputs(source: FeederDataset) -> list[str]:
    return [f"{each.output_dtype} {each.leading_shape} {each.output_size}" for each in source.recipe.views]


def _merged(sources: Sequence[FeederDataset]) -> list[FeederDataset]:
    """Returns the sources with labels that count the classes of all by their names; those given keep theirs."""
    wholes = [source.reader.whole if isinstance(source.reader, SubsetReader) else source.reader for source in sources]
    copies: dict[int, ShardReader | FolderReader] = {}
    for whole in wholes:
        if not isinstance(whole, (ShardReader, FolderReader)):
            raise ArgumentError(f"labels='merge' is for single sets and folders, and Subset of them; not {whole.place}")
        copies.setdefault(id(whole), copy.copy(whole))
    share_classes([*copies.values()], merge=True, option="labels")

    def relabelled(source: FeederDataset, whole: Reader) -> Reader:
        merged = copies[id(whole)]
        return SubsetReader(merged, source.reader.ids) if isinstance(source.reader, SubsetReader) else merged

    both = zip(sources, wholes, strict=True)
    return [FeederDataset(relabelled(source, whole), source.recipe, source.extras) for source, whole in both]
