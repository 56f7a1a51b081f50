"""The crops of a sample by epoch, a batch as the loader gives it: what training sees."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from feeder.dataset.base import FeederDataset
from feeder.decoders.decoder import View
from feeder.decoders.registry import get_decoder
from feeder.decoders.tensors import as_tensor
from feeder.errors import ArgumentError, FeederError
from feeder.loader.dataloader import DataLoader
from feeder.order.buckets import Buckets
from feeder.system.arrays import Uint8s
from feeder.tools.browse.set_view import SetView
from feeder.tools.presets import preset
from feeder.tools.replayed_run import as_pixels, batch_pixels, loader_of
from feeder.transforms import Recipe, Views
from feeder.transforms.moves import Moves, drawn_moves

_LOADERS = 8  # loaders that are kept


class Step(NamedTuple):
    """A step of a run.

    Attributes:
        seed, epoch, step: Its seed, epoch and number in the epoch.
        batch_size: Number of samples.
        rank: The rank whose batch it is.
    """

    seed: int = 0
    epoch: int = 0
    step: int = 0
    batch_size: int = 32
    rank: int = 0


class Batch(NamedTuple):
    """A batch as the loader gives it.

    Attributes:
        ids: The id of each sample that was drawn, and that of the sample that is there: another one, if it is bad.
        images: Of each view N, uint8 [H, W, 3].
    """

    ids: list[tuple[int, int]]
    images: list[list[Uint8s]]


class Training:
    """A run over a set: the training preset's recipe, a given one, or that of a saved state.

    Args:
        view: The set.
        image_size: Height and width of the preset's crops, pixels.
        state: The state of a loader; None: a run of its own.
        recipe: Its recipe, where there is no state; None: the preset.

    Raises:
        ArgumentError: if the state does not fit the set.
    """

    def __init__(
        self,
        view: SetView,
        image_size: int = 224,
        state: dict[str, Any] | None = None,
        recipe: Recipe | Views | None = None,
    ) -> None:
        self._view = view
        self.state = state
        self._saved = None if state is None else loader_of(view.path, state)
        self.named = "the recipe of the saved state"
        if self._saved is not None:
            self.dataset: FeederDataset = self._saved.dataset
        elif recipe is not None:
            self.named = "the given recipe"
            self.dataset = FeederDataset(view.open(None).reader, recipe, ())  # view.open() refuses ops on targets
        else:
            self.named = "feeder's default recipe; --state or --recipe shows a run's own"
            self.dataset = view.open(preset("train", "uint8", image_size))
        self.recipe = self.dataset.recipe
        self._loader = functools.lru_cache(_LOADERS)(self._new_loader)

    @property
    def first(self) -> Step:
        """The step to begin with."""
        if self.state is None:
            return Step()
        seed, epoch, spans = (self.state[name] for name in ("seed", "epoch", "spans"))
        return Step(seed, epoch, 0, spans[-1]["batch_size"]) if spans else Step(seed, epoch)

    @property
    def ranks(self) -> int:
        """The most ranks of the run, as far as its state knows."""
        return 1 if self.state is None else max((span["world_size"] for span in self.state["spans"]), default=1)

    @property
    def is_mixed(self) -> bool:
        """True if the run mixes the samples of its batches, which crops do not show."""
        return self._saved is not None and self._saved.mix is not None

    def batch(self, step: Step) -> Batch:
        """Makes a batch. Without a saved state, bad samples are replaced as with ``on_error="skip"``.

        Raises:
            ArgumentError: if there is no such step.
            DecodeError: for a bad sample.
        """
        with self._view.lock:
            loader = self._loader_at(step)
            found = loader.replay(step.epoch, step.step, rank=step.rank)
        replaced = {each["key"]: each["substitute"] for each in found.substitutions}
        ids = [(i, replaced.get(key, i)) for i, key in zip(found.samples.ids.tolist(), found.samples.keys, strict=True)]
        return Batch(ids, batch_pixels(loader, found.batch))

    def steps(self, step: Step) -> int | None:
        """Returns the number of steps of a step's epoch; None if it is not known."""
        with self._view.lock:
            try:
                return self._loader_at(step).steps_of(step.epoch)
            except FeederError:
                return None

    def crop(self, i: int, seed: int, epoch: int, view: int = 0) -> tuple[Uint8s, Callable[[], Moves]]:
        """Returns a view of a sample in an epoch by the run's backend and fidelity, uint8 [H, W, 3], and what begins
        the moves to it from the upright image.

        Raises:
            ArgumentError: if the recipe has no such view.
            BackendError: if the backend is missing.
            DecodeError: if it can't be decoded.
        """
        if view >= len(self.recipe.views):
            raise ArgumentError(f"view must be 0 to {len(self.recipe.views) - 1}, got {view}")
        with self._view.lock:
            found = self.dataset.reader.read(np.array([i]))
            recipe = self._recipe_of(i, epoch, view)
            key = i + view * len(self.dataset)  # as the loader draws
            draws = recipe.draw(seed, epoch, np.array([key]), found.sizes)
            out = np.empty((1, *recipe.leading_shape, *draws.output_size[0].tolist()), recipe.storage_dtype)
            error = found.errors[0]
            if error is None:
                backend = "cpu" if self.state is None else str(self.state["backend"])
                fidelity = "fast" if self._saved is None else self._saved.fidelity
                decoder = get_decoder(backend, recipe, fidelity=fidelity)
                error = decoder.decode(found.buffers, found.orientations, [View(recipe, draws, out)]).errors[0]
        if error is not None:
            raise self.dataset.reader.at(error, i)
        pixels: Uint8s = as_pixels(as_tensor(out, recipe.output_dtype), recipe)[0][0]
        height, width = draws.image_size[0].tolist()
        return pixels, lambda: drawn_moves(recipe.ops, draws.ops, 0, (height, width))

    def _recipe_of(self, i: int, epoch: int, view: int) -> Recipe:
        """Returns the recipe of a view of a sample at an epoch; with buckets that of the sample's own one."""
        recipe: Recipe = self.recipe.views[view]
        buckets = None if self._saved is None else self._saved.sizes
        if not isinstance(buckets, Buckets):
            return recipe.at(None, epoch)
        known = self.dataset.reader.stored(np.array([i]))
        assert known is not None  # the loader has measured them
        return recipe.at(buckets.sizes[int(buckets.nearest(known[1])[0])], epoch)

    def _loader_at(self, step: Step) -> DataLoader[Any]:
        return self._saved or self._loader(step.seed, step.batch_size)

    def _new_loader(self, seed: int, batch_size: int) -> DataLoader[Any]:
        loader: DataLoader[Any] = DataLoader(
            self.dataset, batch_size=batch_size, shuffle=True, seed=seed, on_error="skip", rank=0, world_size=1
        )
        for _ in loader:  # a run's batches are known from its first one on
            break
        return loader
