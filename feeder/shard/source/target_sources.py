"""The places of the boxes and masks that belong to a folder of images."""

from __future__ import annotations

import re
from dataclasses import dataclass

from feeder.decoders.image_header import is_image_field
from feeder.errors import ArgumentError

IMAGES = "images"
_FIELD = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True)
class TargetSources:
    """The places of the boxes and masks that belong to a folder of images.

    Attributes:
        annotations: COCO's instances JSON, or a folder of Pascal VOC's XML files; None for neither.
        instance_masks: True to rasterize COCO's polygons and RLE.
        pairs: (name, folder) of further files, which become the field ``name.EXTENSION`` of the image with the same
            path without its extension. In place of a folder, ``folder/*_suffix.png`` takes the files of this name
            alone; ``*`` is what the names have in common.
        names: File with the names of the samples to take, a line each, as their paths without the extension.
        members: Images beside the images of a folder that belong to their samples: "seg.png" takes ``a.seg.png`` as
            that field of ``a.jpg``.
    """

    annotations: str | None = None
    instance_masks: bool = False
    pairs: tuple[tuple[str, str], ...] = ()
    names: str | None = None
    members: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for member in self.members:
            if not _FIELD.fullmatch(member) or not is_image_field(member):
                raise ArgumentError(f"a member must be named as an image's field, such as 'seg.png', got {member!r}")
        if self.members and (self.annotations is not None or self.pairs):
            raise ArgumentError("members stand beside the images of a folder; leave annotations and pairs out")
        fields = [name for name, _ in self.pairs]
        for name in fields:
            if name == IMAGES or not _FIELD.fullmatch(name):
                raise ArgumentError(f"a pair's name must be a field's, such as 'masks', got {name!r}")
            if fields.count(name) > 1:
                raise ArgumentError(f"pair {name!r} is given twice")
        if self.pairs and self.annotations is not None:
            raise ArgumentError("annotations and pairs can't be given together; shard one of them")
        if self.instance_masks and self.annotations is None:
            raise ArgumentError("instance_masks are made of annotations; give COCO's JSON")
        if self.names is not None and self.annotations is None and not self.pairs:
            raise ArgumentError("names choose among the samples of annotations or pairs; give one of these")

    def __bool__(self) -> bool:
        return self.annotations is not None or bool(self.pairs) or bool(self.members)
