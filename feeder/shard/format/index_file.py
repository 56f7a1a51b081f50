"""Name of a set's index, and of its samples' numbers."""

from __future__ import annotations

INDEX_NAME = "index.bin"
# Fields that are integers: "index" is the sample id; "width" and "height" are those of the image before the recipe, in
# pixels, upright if orientation is applied; "orientation" is EXIF's, as stored, 1-8; "row" is the sample's row in its
# manifest, from 0.
NUMBER_FIELDS = ("index", "width", "height", "orientation", "row")
