"""The page of running loaders and services, which renews its figures every two seconds."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from feeder.tools.browse.endpoints import Endpoints
from feeder.tools.browse.figures import STAGES_SAID
from feeder.tools.browse.renderer import Renderer

__all__ = ["LivePages"]


class LivePages:
    """The answers to requests, which run in threads.

    Args:
        endpoints: The loaders and services.
        renderer: Makes the pages.
    """

    def __init__(self, endpoints: Endpoints, renderer: Renderer) -> None:
        self._endpoints, self._renderer = endpoints, renderer
        self.routes = [Route("/live", self.page), Route("/live/figures", self.figures)]

    def page(self, request: Request) -> Response:
        """The whole page."""
        return self._answer("live.html")

    def figures(self, request: Request) -> Response:
        """The part of it that is renewed."""
        return self._answer("live_figures.html")

    def _answer(self, template: str) -> Response:
        return self._renderer.page(template, endpoints=self._endpoints.look(), said=STAGES_SAID)
