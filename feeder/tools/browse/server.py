"""The pages, and the server that shows them to the user who started it and to nobody else.

Note [Whom the page is for]
    A set may hold what others on a machine, and pages of other sites in the user's browser, must not see. So the server
    listens on the loopback address unless it is told otherwise. It answers only requests that name it as their host,
    which keeps away sites whose names lead here (DNS rebinding), and that have its token: in the URL that the command
    prints, then in a cookie that other sites' requests don't bring. Pages load nothing from elsewhere, all text from
    the set is escaped, and pictures are made anew from decoded pixels, so that no byte of a file reaches the browser.
"""

from __future__ import annotations

import functools
import hmac
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jinja2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from feeder.errors import ArgumentError, BackendError, DecodeError, FeederError
from feeder.tools.browse.pictures import Pictures, difference, png
from feeder.tools.browse.scan import SCANNED
from feeder.tools.browse.set_view import KINDS, Choice, SetView
from feeder.tools.browse.training import Batch, Step, Training
from feeder.tools.html.page import displayable

__all__ = ["make_app"]

_FOLDER = Path(__file__).parent
_ROWS = 60
_EPOCHS = 8
_MOST_BATCH = 1024
_BACKENDS = ("cpu", "pillow")
_DAY_S = 86_400
_POLICY = "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; form-action 'self'; base-uri 'none'"
_HEADERS = {
    "Content-Security-Policy": _POLICY + "; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_NO_PICTURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="192" height="192"><rect width="192" height="192" fill="#888"/>'
    '<text x="96" y="100" text-anchor="middle" font-family="sans-serif" fill="#fff">not readable</text></svg>'
)


def make_app(view: SetView, training: Training, token: str | None = None, hosts: list[str] | None = None) -> Starlette:
    """Returns the application.

    Args:
        view: The set.
        training: The run whose batches are shown.
        token: What a request must have, see Note [Whom the page is for]; None makes one, ``app.state.token``.
        hosts: Names by which requests may call the server; None: those of the loopback address.
    """
    pages = _Pages(view, training)
    routes = [
        Route("/", pages.set),
        Route("/samples", pages.samples),
        Route("/sample/{id:int}", pages.sample),
        Route("/batch", pages.batch),
        Route("/rejected", pages.rejected),
        Route("/scan/{what}", pages.scan, methods=["POST"]),
        Route("/small/{id:int}", pages.small),
        Route("/whole/{id:int}", pages.whole),
        Route("/crop/{id:int}", pages.crop),
        Route("/compared/{id:int}", pages.compared),
        Route("/step-image", pages.step_image),
        Mount("/static", StaticFiles(directory=_FOLDER / "static")),
    ]
    token = secrets.token_urlsafe(24) if token is None else token
    middleware = [
        Middleware(TrustedHostMiddleware, allowed_hosts=hosts or ["127.0.0.1", "localhost"], www_redirect=False),
        Middleware(_Guard, token=token),
    ]
    refused = {FeederError: pages.refused, 404: pages.missing}
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=refused)
    app.state.token = token
    return app


class _Guard(BaseHTTPMiddleware):
    """Lets in who has the token, and adds the headers of Note [Whom the page is for]."""

    def __init__(self, app: Any, token: str) -> None:
        super().__init__(app)
        self._token = token

    async def dispatch(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
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


class _Pages:
    """The answers to requests. Methods that are no coroutines run in threads."""

    def __init__(self, view: SetView, training: Training) -> None:
        self._view = view
        self._pictures = Pictures(view)
        self._training = training
        self._batch = functools.lru_cache(4)(training.batch)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            # File names may have what HTML can't: lone surrogates, control characters.
            finalize=lambda value: displayable(value) if type(value) is str else value,
        )

    def set(self, request: Request) -> Response:
        view = self._view
        kinds = [(kind, words, view.kinds[kind]) for kind, words in KINDS.items()]
        rejected = sum(len(paths) for _, paths in view.rejected)
        scan = view.scan
        looked_at, is_whole = scan.done
        return self._page(
            "set.html",
            facts=view.facts,
            classes=view.classes,
            kinds=kinds,
            rejected=rejected,
            scan=scan,
            looked_at=looked_at,
            is_whole=is_whole,
            scanned=[(kind, SCANNED[kind], number) for kind, number in scan.counts().items()],
        )

    def scan(self, request: Request) -> Response:
        """Starts or stops the scan."""
        what = request.path_params["what"]
        if what not in ("start", "stop"):
            return self._page("message.html", 404, message="There is no such page.")
        getattr(self._view.scan, what)()
        return RedirectResponse("/", 303)

    def samples(self, request: Request) -> Response:
        label = request.query_params.get("label", "")
        choice = Choice(
            _number(request, "label") if label else None,
            request.query_params.get("text", "").strip(),
            request.query_params.get("kind", ""),
        )
        first = _number(request, "first")
        rows, following = self._view.rows(choice, first, _ROWS)
        name = "" if choice.label is None else self._view.class_name(choice.label)
        return self._page(
            "samples.html",
            rows=rows,
            following=following,
            first=first,
            choice=choice,
            kinds=KINDS | SCANNED,
            class_name=name,
        )

    def sample(self, request: Request) -> Response:
        i = self._id(request)
        seed = _number(request, "seed", self._training.first.seed)
        first = _number(request, "epoch", self._training.first.epoch)
        return self._page(
            "sample.html",
            row=self._view.row(i),
            numbers=self._view.numbers(i),
            members=self._view.members(i),
            is_drawn_over=self._pictures.can_draw_over(i),
            last=len(self._view) - 1,
            seed=seed,
            epochs=range(first, first + _EPOCHS),
            recipe=str(self._training.recipe),
            backends=_BACKENDS,
        )

    def batch(self, request: Request) -> Response:
        step = self._step(request)
        found: Batch | None = None
        error = ""
        try:
            found = self._batch(step)
        except FeederError as refused:
            error = str(refused)
        rows = [] if found is None else [(drawn, self._view.row(there)) for drawn, there in found.ids]
        return self._page(
            "batch.html",
            step=step,
            rows=rows,
            views=0 if found is None else len(found.images),
            error=error,
            is_saved=self._training.state is not None,
            recipe=str(self._training.recipe),
        )

    def rejected(self, request: Request) -> Response:
        return self._page("rejected.html", reasons=self._view.rejected)

    def small(self, request: Request) -> Response:
        return _picture(lambda: self._pictures.small(self._id(request)))

    def whole(self, request: Request) -> Response:
        is_drawn_over = "over" in request.query_params
        return _picture(lambda: self._pictures.whole(self._id(request), is_drawn_over=is_drawn_over))

    def crop(self, request: Request) -> Response:
        i, seed, epoch = self._id(request), _number(request, "seed"), _number(request, "epoch")
        return _picture(lambda: png(self._training.crop(i, seed, epoch)))

    def compared(self, request: Request) -> Response:
        """A sample by one backend, or the difference of two."""
        i, seed, epoch = self._id(request), _number(request, "seed"), _number(request, "epoch")
        backends = request.query_params.getlist("backend")

        def picture() -> bytes:
            images = self._training.on_backends(i, seed, epoch, backends)
            return png(images[0] if len(images) == 1 else difference(images[0], images[1]))

        if not 1 <= len(backends) <= 2 or set(backends) - set(_BACKENDS):
            raise ArgumentError(f"backend must be one or two of {', '.join(_BACKENDS)}")
        return _picture(picture)

    def step_image(self, request: Request) -> Response:
        step, row, number = self._step(request), _number(request, "row"), _number(request, "view")
        images = self._batch(step).images
        if not (0 <= number < len(images) and 0 <= row < len(images[number])):
            raise ArgumentError(f"the batch has no image {row} of view {number}")
        return _picture(lambda: png(images[number][row]))

    def refused(self, request: Request, error: Exception) -> Response:
        return self._page("message.html", 400, message=str(error))

    def missing(self, request: Request, error: Exception) -> Response:
        return self._page("message.html", 404, message="There is no such page.")

    def _step(self, request: Request) -> Step:
        first = self._training.first
        step = Step(*(_number(request, name, default) for name, default in first._asdict().items()))
        if not 1 <= step.batch_size <= _MOST_BATCH:
            raise ArgumentError(f"batch_size must be 1 to {_MOST_BATCH}, got {step.batch_size}")
        return step

    def _id(self, request: Request) -> int:
        i: int = request.path_params["id"]
        if i >= len(self._view):
            raise ArgumentError(f"there is no sample {i:,}: the set has {len(self._view):,}")
        return i

    def _page(self, template: str, status: int = 200, **values: Any) -> Response:
        html = self._templates.get_template(template).render(path=self._view.path, samples=len(self._view), **values)
        return HTMLResponse(html, status)


def _number(request: Request, name: str, default: int = 0) -> int:
    """Returns a number of the query.

    Raises:
        ArgumentError: if it is none, or negative.
    """
    text = request.query_params.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ArgumentError(f"{name} must be a number of 0 or more, got {text!r}")
    return int(text)


def _picture(make: Callable[[], bytes]) -> Response:
    """Returns a picture; a grey one with a word, if the sample can't be decoded."""
    try:
        data = make()
    except (DecodeError, BackendError):
        return Response(_NO_PICTURE, media_type="image/svg+xml")
    kind = "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"
    return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=600"})
