"""Fields that are one value of a member of JSON, such as a column of a manifest. Needs no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from feeder.dataset.extras import MemberField
from feeder.dataset.reader import member_and_key
from feeder.fields.text_fields import Json

__all__ = ["KeyField"]


@dataclass(frozen=True)
class KeyField(MemberField):
    """A field that a kind of :mod:`feeder.fields` makes from the value of a key, named as "json:caption".

    The kind parses the value's text in UTF-8, or its JSON if it is no text; the kind Json always has its JSON. A sample
    without the key, or with null, lacks the value.
    """

    @property
    def member(self) -> str:
        return member_and_key(self.name)[0]

    def _parse(self, data: bytes, draw: float) -> Any:
        value = Json(member_and_key(self.name)[1]).parse(data)
        is_text = isinstance(value, str) and not isinstance(self.kind, Json)
        return super()._parse(value.encode() if is_text else json.dumps(value).encode(), draw)
