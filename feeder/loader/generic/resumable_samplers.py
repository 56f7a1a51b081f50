"""Resume for datasets of any kind, by torchdata's state protocol: ``state_dict()`` and ``load_state_dict()``.

The keys are those of torchdata's StatefulDataLoader, so that states pass between the two.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _InfiniteConstantSampler

from feeder.errors import ArgumentError
from feeder.loader.generic.encoded_samples import DrawnIndex, DrawnSampler, ImageDraws
from feeder.loader.generic.torchdata_state import DRAWS_KEY, SEEDS_KEY, sampler_place
from feeder.loader.random_state import draw_seed
from feeder.loader.stateful import is_stateful, load_if_stateful, state_of


class ResumableRandomSampler(RandomSampler):
    """torch's RandomSampler, with iterators that can be resumed. Same numbers, same use of the random state.

    Attributes:
        next_seed: The next iterator's seed, if a :class:`SeedChain` has fixed it; None: it is drawn as torch draws it.
    """

    next_seed: int | None = None

    def __iter__(self) -> Iterator[int]:
        return _ResumableRandomIterator(self)


class _ResumableIterator(abc.ABC):
    """An iterator over sample numbers that resumes by beginning again from the random state that it began with.

    Args:
        sampler: The sampler.

    Attributes:
        _start: The random state that it began with; None before the first number.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._yielded = 0
        self._start: torch.Tensor | None = None
        self._indices: Iterator[int] | None = None

    def __iter__(self) -> _ResumableIterator:
        return self

    def __next__(self) -> int:
        value = next(self._begun())
        self._yielded += 1
        return value

    def state_dict(self) -> dict[str, Any]:
        self._begun()
        return {"yielded": self._yielded, "generator": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start = state["generator"].cpu()  # torch.load(map_location=...) may have moved it
        self._indices = None
        _pass_over(self._begun(), state["yielded"])
        self._yielded = state["yielded"]

    @abc.abstractmethod
    def _begun(self) -> Iterator[int]:
        """Returns the plain iterator; begins it if need be."""


class _ResumableRandomIterator(_ResumableIterator):
    def _begun(self) -> Iterator[int]:
        if self._indices is None:
            generator = self._sampler.generator
            if generator is None:
                generator = torch.Generator()
                if self._start is None:
                    fixed, self._sampler.next_seed = self._sampler.next_seed, None
                    generator.manual_seed(draw_seed() if fixed is None else fixed)
            if self._start is None:
                self._start = generator.get_state()
            else:
                generator.set_state(self._start)
            plain = RandomSampler(
                self._sampler.data_source,
                self._sampler.replacement,
                None if self._sampler._num_samples is None else self._sampler.num_samples,
                generator,
            )
            self._indices = iter(plain)
        return self._indices


class _AtOnce(Sampler[int]):
    """Base of samplers that draw a whole epoch at once, in front of torch's."""

    next_seed: int | None = None

    def __iter__(self) -> Iterator[int]:
        return _DrawnAtOnce(self, super().__iter__)


class ResumableSubsetSampler(_AtOnce, SubsetRandomSampler):
    """torch's SubsetRandomSampler, with iterators that can be resumed. Same numbers, same use of the random state."""


class ResumableWeightedSampler(_AtOnce, WeightedRandomSampler):
    """torch's WeightedRandomSampler, with iterators that can be resumed. Same numbers, same use of the random state."""


class _DrawnAtOnce(_ResumableIterator):
    """The iterator of a sampler that draws a whole epoch at once, from its generator or the global one.

    Args:
        sampler: The sampler.
        iterate: Returns the sampler's plain iterator.
    """

    def __init__(self, sampler: Any, iterate: Callable[[], Iterator[int]]) -> None:
        super().__init__(sampler)
        self._iterate = iterate

    def _begun(self) -> Iterator[int]:
        if self._indices is None:
            own, fixed = self._sampler.generator, self._sampler.next_seed
            self._sampler.next_seed = None
            if self._start is None and fixed is not None:
                self._start = torch.Generator().manual_seed(fixed).get_state()
            generator = torch.default_generator if own is None else own
            before, is_given = generator.get_state(), self._start is not None
            if self._start is None:
                self._start = before
            else:
                generator.set_state(self._start)
            self._indices = iter([*self._iterate()])
            if is_given and own is None:  # another run drew these numbers, or none does
                generator.set_state(before)
        return self._indices


_RESUMABLE: dict[type, type] = {
    RandomSampler: ResumableRandomSampler,
    SubsetRandomSampler: ResumableSubsetSampler,
    WeightedRandomSampler: ResumableWeightedSampler,
}


class SeedChain:
    """The source of the seeds of epochs after a state, of a random sampler without a generator.

    torch draws the seeds of each epoch from its global random state, which is not ours to restore. So the first state
    copies it: all later seeds are drawn from the copy, as torch would draw them, and states hold it.
    """

    def __init__(self) -> None:
        self._source: torch.Generator | None = None
        self._draws_base = True  # else each epoch draws the sampler's seed alone, as with workers that stay

    def follow(self, sampler: Any, state: Mapping[str, Any], *, draws_base: bool) -> dict[str, Any]:
        """Fixes the seeds of the epochs after that of a state, under torchdata's keys; returns it with their source.

        Args:
            sampler: The sampler.
            state: The state.
            draws_base: True if each epoch draws the workers' base seed, too; a state that has it says it better.
        """
        if type(sampler) not in _RESUMABLE.values() or sampler.generator is not None:
            return {**state}
        if self._source is None:
            kept = state.get(SEEDS_KEY) or {"source": torch.get_rng_state(), "draws_base": draws_base}
            self._draws_base = kept["draws_base"]
            self._source = torch.Generator()
            self._source.set_state(kept["source"].cpu())
        return {**state, SEEDS_KEY: {"source": self._source.get_state(), "draws_base": self._draws_base}}

    def begin(self, sampler: Any, base_seed: int | None = None) -> int | None:
        """Fixes the sampler's seed for an epoch that begins.

        Args:
            sampler: The sampler.
            base_seed: The workers' base seed, if this epoch draws none.

        Returns:
            The workers' base seed; None: both are drawn as torch draws them.
        """
        if self._source is None:
            return base_seed
        drawn = draw_seed(self._source) if self._draws_base else None
        sampler.next_seed = draw_seed(self._source)
        return next(seed for seed in (base_seed, drawn, sampler.next_seed) if seed is not None)


def check_sampler(sampler: Any, state: Mapping[str, Any]) -> None:
    """Refuses a state, under torchdata's keys, of a random sampler for one in stored order, and the other way around.

    Args:
        sampler: The loader's sampler of single samples; None: it has another kind of batches.
        state: The state.

    Raises:
        ArgumentError: naming what the loader shuffles by.
    """
    try:
        place = sampler_place(dict(state)).get("_sampler_iter_state") or {}
        was_random = "generator" in place.get("sampler_iter_state", place)
    except (AttributeError, LookupError, TypeError):
        raise ArgumentError(f"this state is damaged: it has no sampler's place, but {str(state)[:200]}") from None
    # Torchdata's loader saves no state of the other random samplers: their numbers are counted off.
    if type(sampler) is (SequentialSampler if was_random else ResumableRandomSampler):
        raise ArgumentError(
            f"this state does not fit: it is {'' if was_random else 'not '}of a shuffled epoch, and this loader has a "
            f"{'Sequential' if was_random else 'Random'}Sampler; resume with the shuffle= or sampler= that it was "
            "saved with"
        )


def make_resumable(*samplers: Any) -> None:
    """Gives resumable iterators to torch's random samplers, and to those in a BatchSampler of torch's."""
    for sampler in samplers:
        inner = sampler.sampler if type(sampler) is BatchSampler else sampler
        if type(inner) in _RESUMABLE:
            inner.__class__ = _RESUMABLE[type(inner)]


class IndexIterator:
    """Iterates over an index sampler (of batches, or without automatic batches of samples) and keeps its place.

    Args:
        sampler: The index sampler. A BatchSampler of torch's is taken apart, as its iterator has no state.
    """

    def __init__(self, sampler: Any) -> None:
        self._draws: ImageDraws | None = None
        if isinstance(sampler, DrawnSampler):
            self._draws, sampler = sampler.draws, sampler.sampler
            self._drawn = self._draws.begin()
        self.sampler = sampler
        self.yielded = 0
        self._samples = 0
        self._is_batches = type(sampler) is BatchSampler
        self._source: Any = sampler.sampler if self._is_batches else sampler
        self._may_repeat = _may_repeat(self._source)
        self._iterator = iter(self._source)

    def __iter__(self) -> IndexIterator:
        return self

    def __next__(self) -> Any:
        # A batch of another kind of sampler may have any size.
        place = self._samples if self._is_batches else self.yielded << 20
        index = self._next()
        return index if self._draws is None else DrawnIndex(index, *self._drawn, place if self._may_repeat else None)

    def _next(self) -> Any:
        if not self._is_batches:
            value = next(self._iterator)
            self.yielded += 1
            return value

        most = self.sampler.batch_size
        values = list(itertools.islice(self._iterator, most))
        if not values or (self.sampler.drop_last and len(values) < most):
            raise StopIteration
        self._samples += len(values)
        self.yielded += 1
        return values

    def state(self) -> dict[str, Any]:
        """Returns its place, under torchdata's keys."""
        own, iterator = state_of(self._source), state_of(self._iterator)
        draws = {} if self._draws is None else {DRAWS_KEY: dict(zip(("seed", "epoch"), self._drawn, strict=True))}
        if self._is_batches:
            states = {"sampler_state": own, "sampler_iter_state": iterator}
            iterator = {"samples_yielded": self._samples} | {k: v for k, v in states.items() if v is not None}
            own = None
        return {
            "_index_sampler_state": own,
            "_sampler_iter_state": iterator,
            "_sampler_iter_yielded": self.yielded,
            **draws,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Goes to a place from :meth:`state`; passes over what is before it if sampler and iterator have no state."""
        inner: dict[str, Any] = state["_sampler_iter_state"] or {}
        if self._draws is not None and DRAWS_KEY in state:  # torchdata's states have none
            self._drawn = self._draws.resume(state[DRAWS_KEY])
        own, iterator = state["_index_sampler_state"], inner or None
        self.yielded = skip = state["_sampler_iter_yielded"]
        if self._is_batches:
            if "samples_yielded" not in inner:
                raise ArgumentError(
                    "this state does not fit: it was saved with another sampler; resume with the dataset and arguments "
                    "that it was saved with"
                )
            skip = self._samples = inner["samples_yielded"]
            own, iterator = inner.get("sampler_state"), inner.get("sampler_iter_state")
        if isinstance(self._source, _InfiniteConstantSampler):
            return
        load_if_stateful(self._source, own)
        self._iterator = iter(self._source)
        load_if_stateful(self._iterator, iterator)
        loaded = own is not None and is_stateful(self._source)
        if not loaded and not (iterator is not None and is_stateful(self._iterator)):
            _pass_over(self._iterator, skip)


def _may_repeat(sampler: Any) -> bool:
    """Returns True if a sampler may give an index twice in an epoch of a rank."""
    if type(sampler) in (RandomSampler, ResumableRandomSampler):
        return bool(sampler.replacement or sampler.num_samples > len(sampler.data_source))
    return type(sampler) not in (SequentialSampler, DistributedSampler)


def _pass_over(iterator: Iterator[Any], count: int) -> None:
    passed = sum(1 for _ in itertools.islice(iterator, count))
    if passed < count:
        raise ArgumentError(
            f"this state does not fit: {count} of its sampler's numbers were handed out, and this sampler gives "
            f"{passed} in an epoch; resume with the dataset and arguments that it was saved with"
        )
