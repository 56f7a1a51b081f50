"""Targets of an image of which several views are made. Needs no torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from feeder.dataset.extras import Column, Extra
from feeder.transforms.targets import Target

if TYPE_CHECKING:
    from feeder.dataset.reader import Reader
    from feeder.transforms import Draws


@dataclass(frozen=True)
class ViewsTarget(Extra):
    """A target that goes through the draws of each view: a list of its values, one for each.

    Args:
        name: The member's name.
        target: The declaration.
        views: The target with the recipe of each view.
    """

    name: str
    target: Target
    views: tuple[Extra, ...]

    @cached_property
    def columns(self) -> tuple[Column, ...]:  # asked for once a sample
        found = [view.columns for view in self.views]
        if not all(found):
            return ()
        return tuple(
            column if column.image is None else column._replace(image=number)
            for number, columns in enumerate(found)
            for column in columns
        )

    @property
    def is_ragged(self) -> bool:
        return any(view.is_ragged for view in self.views)

    def read(self, reader: Reader, i: int) -> Any:
        return self.views[0].read(reader, i)

    def finish_views(self, value: Any, draws: Sequence[Draws], row: int) -> Any:
        values = [view.finish(value, drawn, row) for view, drawn in zip(self.views, draws, strict=True)]
        return tuple(itertools.chain(*values)) if self.columns else values

    def gather(self, tensors: tuple[Any, ...]) -> list[Any]:
        given = iter(tensors)
        return [view.gather(tuple(itertools.islice(given, len(view.columns)))) for view in self.views]

    def collate(self, values: list[Any]) -> list[Any]:
        return [
            view.collate(list(of_view)) for view, of_view in zip(self.views, zip(*values, strict=True), strict=True)
        ]

    def sample(self, value: Any) -> list[Any]:
        if self.columns:
            given = iter(value)
            value = [tuple(itertools.islice(given, len(view.columns))) for view in self.views]
        return [view.sample(each) for view, each in zip(self.views, value, strict=True)]
