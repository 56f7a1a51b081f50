"""The pages, and the server that shows them to the user who started it and to nobody else.

Note [Whom the page is for]
    A set may hold what others on a machine, and pages of other sites in the user's browser, must not see. So the server
    listens on the loopback address alone. It answers only requests that name it as their host,
    which keeps away sites whose names lead here (DNS rebinding), and that have its token: in the URL that the command
    prints, then in a cookie that other sites' requests don't bring. No request changes anything. Pages load nothing
    from elsewhere, all text from the set is escaped, and pictures are made anew from decoded pixels, so that no byte of
    a file reaches the browser.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from feeder.errors import FeederError
from feeder.tools.browse.set_pages import Renderer, SetPages
from feeder.tools.browse.set_view import SetView
from feeder.tools.browse.training import Training

_STATIC = Path(__file__).parent / "static"
_DAY_S = 86_400
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_POLICY = "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; form-action 'self'; base-uri 'none'"
_HEADERS = {
    "Content-Security-Policy": _POLICY + "; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def make_app(view: SetView, training: Training, token: str | None = None) -> Starlette:
    """Returns the application.

    Args:
        view: The set.
        training: The run whose batches are shown.
        token: What a request must have, see Note [Whom the page is for]; None makes one, ``app.state.token``.
    """
    renderer = Renderer(path=view.path, samples=len(view))

    def refused(request: Request, error: Exception) -> Response:
        return renderer.page("message.html", 400, message=str(error))

    def missing(request: Request, error: Exception) -> Response:
        return renderer.page("message.html", 404, message="There is no such page.")

    routes: list[BaseRoute] = [Mount("/static", StaticFiles(directory=_STATIC))]
    routes += SetPages(view, training, renderer).routes
    token = secrets.token_urlsafe(24) if token is None else token
    guard = Middleware(_Guard, token=token)
    app = Starlette(routes=routes, middleware=[guard], exception_handlers={FeederError: refused, 404: missing})
    app.state.token = token
    return app


class _Guard(BaseHTTPMiddleware):
    """Refuses everybody but the user, and adds headers; see Note [Whom the page is for]."""

    def __init__(self, app: Any, token: str) -> None:
        super().__init__(app)
        self._token = token

    async def dispatch(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        if not _HOST.fullmatch(request.headers.get("host", "")):
            return HTMLResponse("<!doctype html><title>feeder</title><p>This server has another name.", 400, _HEADERS)
        name = f"feeder-{request.url.port or 80}"  # cookies are shared by the ports of a host
        given = request.query_params.get("token")
        if given is not None and self._is_right(given):
            response: Response = RedirectResponse(request.url.remove_query_params("token"), 303)
            response.set_cookie(name, self._token, max_age=_DAY_S, httponly=True, samesite="strict")
        elif self._is_right(request.cookies.get(name, "")):
            response = await call_next(request)
        else:
            text = "<!doctype html><title>feeder</title><p>Open the URL that <code>feeder browse</code> printed."
            response = HTMLResponse(text, 403)
        response.headers.update(_HEADERS)
        return response

    def _is_right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())
