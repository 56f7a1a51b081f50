"""The form of other libraries' samples. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feeder.dataset.extras import Extra
from feeder.dataset.foreign import pillow_image
from feeder.dataset.reader import Reader
from feeder.errors import ArgumentError
from feeder.order.random import Stream
from feeder.transforms import Draws
from feeder.transforms.function import keyed_generators
from feeder.transforms.op import Uniforms

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ForeignSample(Extra):
    """The target of another library's sample, and the form of the sample.

    Their functions run as late as they can: ``change`` when a target is finished, ``change_both`` and ``change_rows``
    when the whole sample is arranged, as they need its image.

    Args:
        has_target: True if the target is none of feeder's labels.
        change: Their ``target_transform``; None: the target stays as it is.
        gives_pillow: True if their samples have Pillow images; batches have tensors.
        row_names: Names of a row's values, if samples are rows; the target is the others than the image.
        image_column: Name of the image in a row.
        change_rows: Their function of a dict of lists of values; None for none.
        keeps_mode: True if an image in a row has the mode of its file.
        change_both: Their function of a Pillow image and its target; None for none.
    """

    has_target: bool
    change: Callable[[Any], Any] | None = None
    gives_pillow: bool = False
    row_names: tuple[str, ...] = ()
    image_column: str | None = None
    change_rows: Callable[[Any], Any] | None = None
    keeps_mode: bool = False
    change_both: Callable[[Any, Any], Any] | None = None
    name: str = "target"

    @property
    def is_plain(self) -> bool:
        """True if samples have the form of feeder's."""
        return not (self.has_target or self.gives_pillow)

    @property
    def replaces_label(self) -> bool:
        return self.has_target

    def read(self, reader: Reader, i: int) -> Any:
        value: Any = reader.field(i, self.name) if self.has_target else None
        if not self.keeps_mode:
            return value
        return value | {self.image_column: reader.field(i, "file")}  # a row, whose image is decoded from its file

    def finish_views(self, value: Any, draws: Sequence[Draws], row: int) -> Any:
        if self.change is None and self.change_both is None:
            return value

        # Their function draws from generators that follow from the sample's key.
        drawn = draws[0]
        key = int(Uniforms(drawn.seed, drawn.epoch, drawn.keys[row : row + 1], Stream.CHOICE).keys()[0])
        if self.change is None:
            return value, key  # for change_both
        with keyed_generators(key):
            return self.change(value)

    def collate(self, values: list[Any]) -> Any:
        from torch.utils.data import default_collate

        if self.change_both is not None:
            raise ArgumentError("the transforms of these samples change image and target together: give a collate_fn")
        if self.keeps_mode:
            values = [{name: each for name, each in row.items() if name != self.image_column} for row in values]

        same: Any = tuple(values)  # as torch's loader has them, whose tuples of text stay what they are
        return default_collate(same) if self.has_target else None

    def arrange(self, entries: tuple[Any, ...], *, is_batch: bool) -> Any:
        image, label, *others, target = entries
        if self.change_both is not None:
            given, key = target
            with keyed_generators(key):
                return self.change_both(_pillow(image), given)
        if self.gives_pillow and not is_batch:
            image = _pillow(image, target[self.image_column] if self.keeps_mode else None)
        if self.image_column is None:
            return image, target if self.has_target else label, *others

        row = {name: image if name == self.image_column else target[name] for name in self.row_names}
        if self.change_rows is None or is_batch:
            return row
        return {name: value[0] for name, value in self.change_rows({k: [v] for k, v in row.items()}).items()}


def _pillow(image: torch.Tensor, data: bytes | None = None) -> Any:
    """Returns the Pillow image of a tensor, uint8 [1 or 3, H, W]; or that of a file, upright."""
    from PIL import Image, ImageOps

    if data is not None:
        return ImageOps.exif_transpose(pillow_image(data))
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
