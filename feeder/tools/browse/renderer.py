"""The templates, and what all pages have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
from starlette.responses import HTMLResponse, Response

__all__ = ["Renderer"]

# Characters that HTML forbids even as references: control characters, and the lone surrogates of file names.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class Renderer:
    """Makes pages of templates, in which all text is escaped.

    Args:
        shared: Values that all pages have.
    """

    def __init__(self, **shared: Any) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            # File names may have what HTML can't: lone surrogates, control characters.
            finalize=lambda value: _FORBIDDEN.sub("\ufffd", value) if type(value) is str else value,
        )
        self._templates.globals.update(shared)

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Returns a page.

        Args:
            template: File name of the template.
            status: Status of the answer.
            values: Values of the template.
        """
        return HTMLResponse(self._templates.get_template(template).render(values), status)
