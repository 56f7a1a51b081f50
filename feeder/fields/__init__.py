"""Kinds of fields: from the bytes of a sample's member to a value, in the workers. Needs no torch at import."""

from __future__ import annotations

from feeder.fields.array_field import Array
from feeder.fields.drawn_entry import Choice
from feeder.fields.field import Field
from feeder.fields.function_field import Apply
from feeder.fields.number_fields import Float, Int
from feeder.fields.text_fields import Bytes, Json, Lines, Text
from feeder.fields.tokens import Tokens

__all__ = ["Apply", "Array", "Bytes", "Choice", "Field", "Float", "Int", "Json", "Lines", "Text", "Tokens"]
