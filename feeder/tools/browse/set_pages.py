"""The pages of a set: at a glance, samples, one sample, batches."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from feeder.errors import ArgumentError, BackendError, DecodeError, FeederError
from feeder.system.checks import check_int
from feeder.tools.browse.kinds import GROUPS
from feeder.tools.browse.pictures import Pictures, png
from feeder.tools.browse.set_view import ClassRow, SampleChoice, SetView
from feeder.tools.browse.training import Batch, Step, Training

ROWS_AT_ONCE = 60
_EPOCHS = 8  # epochs whose crops are shown
_EPOCHS_OF_A_RUN = 1 << 32
CLASSES_AT_ONCE = 120
_CLASSES_AT_A_GLANCE = 24
CLASSES_TO_CHOOSE = 1000  # with more classes, the page of classes leads to one
_MOST_BATCH = 1024
_NO_PICTURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="192" height="192"><rect width="192" height="192" fill="#888"/>'
    '<text x="96" y="100" text-anchor="middle" font-family="sans-serif" fill="#fff">not readable</text></svg>'
)


class SetPages:
    """The answers to requests, which run in threads.

    Args:
        view: The set.
        training: The run whose batches are shown.
        renderer: Makes the pages.
    """

    def __init__(self, view: SetView, training: Training, renderer: Renderer) -> None:
        self._view = view
        self._pictures = Pictures(view)
        self._training = training
        self._batch = functools.lru_cache(4)(training.batch)
        self._renderer = renderer
        self.routes = [
            Route("/", self.set),
            Route("/samples", self.samples),
            Route("/sample/{id}", self.sample),
            Route("/member/{id}/{number}", self.member),
            Route("/classes", self.classes),
            Route("/batch", self.batch),
            Route("/small/{id}", self.small),
            Route("/whole/{id}", self.whole),
            Route("/crop/{id}", self.crop),
            Route("/step-image", self.step_image),
        ]

    def set(self, request: Request) -> Response:
        view = self._view
        counted = {
            name: [(kind, words, view.kinds[kind]) for kind, words in group.items() if kind in view.kinds]
            for name, group in GROUPS.items()
        }
        page = self._renderer.page(
            "set.html",
            facts=view.facts,
            groups={name: rows for name, rows in counted.items() if rows},
            problems=next(iter(GROUPS)),
            classes=view.classes[:_CLASSES_AT_A_GLANCE],
            number=len(view.classes),
            most=_most(view.classes),
        )
        page.background = BackgroundTask(view.texts.read_names)  # once the page is sent
        return page

    def classes(self, request: Request) -> Response:
        """Returns a page of classes, by their names or numbers, some hundred a page."""
        text = request.query_params.get("text", "").strip()
        found = [each for each in self._view.classes if text.lower() in each.name.lower() or text == str(each.label)]
        first = _number(request, "first")
        return self._renderer.page(
            "classes.html",
            classes=found[first : first + CLASSES_AT_ONCE],
            number=len(found),
            text=text,
            first=first,
            step=CLASSES_AT_ONCE,
            most=_most(self._view.classes),
        )

    def samples(self, request: Request) -> Response:
        query, view = request.query_params, self._view
        choice = SampleChoice(
            _number(request, "label") if query.get("label") else None,
            query.get("text", "").strip(),
            tuple(filter(None, query.getlist("kind"))),
            tuple(_as_number("ids", each) for each in query.get("ids", "").split(",") if each),
            query.get("order", ""),
        )
        first = _number(request, "first")
        rows, following = view.rows(choice, first, ROWS_AT_ONCE)
        return self._renderer.page(
            "samples.html",
            rows=rows,
            following=following,
            first=first,
            previous=max(0, first - ROWS_AT_ONCE) if first and not view.is_searched(choice) else None,
            is_searched=view.is_searched(choice),
            choice=choice,
            number=len(view.listed(choice)),
            groups={name: group for name, group in GROUPS.items() if view.kinds.keys() & group.keys()},
            orders=view.orders,
            classes=view.classes if len(view.classes) <= CLASSES_TO_CHOOSE else [],
            has_classes=len(view.classes) > 0,
            class_name="" if choice.label is None else view.class_name(choice.label),
            searched=following if len(rows) < ROWS_AT_ONCE else None,
            has_overlays=self._pictures.has_overlays,
            is_marked="over" in query,
        )

    def sample(self, request: Request) -> Response:
        i = self._id(request)
        seed, first = _draws(request, self._training.first)
        canvas = request.query_params.get("canvas", "")
        is_plain = canvas == "none"
        return self._renderer.page(
            "sample.html",
            row=self._view.row(i),
            numbers=self._view.numbers(i),
            members=self._view.members(i),
            is_turned=self._view.numbers(i).get("orientation", "1") != "1",
            is_plain=is_plain,
            overlays=self._pictures.overlays(i, "" if is_plain else canvas),
            last=len(self._view) - 1,
            stand_in=self._view.stand_in(i),
            seed=seed,
            views=len(self._training.recipe.views),
            epochs=range(first, min(first + _EPOCHS, _EPOCHS_OF_A_RUN)),
            named=self._training.named,
            recipe=str(self._training.recipe),
            is_mixed=self._training.is_mixed,
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
        return self._renderer.page(
            "batch.html",
            step=step,
            steps=self._training.steps(step),
            rows=rows,
            views=len(self._training.recipe.views),
            ranks=self._training.ranks,
            error=error,
            is_saved=self._training.state is not None,
            named=self._training.named,
            recipe=str(self._training.recipe),
        )

    def small(self, request: Request) -> Response:
        return _picture(lambda: self._pictures.small(self._id(request), "over" in request.query_params))

    def whole(self, request: Request) -> Response:
        canvas = request.query_params.get("over", "")
        return _picture(lambda: self._pictures.whole(self._id(request), canvas))

    def member(self, request: Request) -> Response:
        """Returns a further image of a sample, by its member's number."""
        i, number = self._id(request), _as_number("member", request.path_params["number"])
        members = self._view.members(i)
        if number >= len(members):
            raise ArgumentError(f"sample {i:,} has no member {number}")
        return _picture(lambda: self._pictures.member(i, members[number].name))

    def crop(self, request: Request) -> Response:
        i, *drawn = self._drawn(request)
        canvas = request.query_params.get("over", "")
        return _picture(lambda: self._pictures.crop(i, *self._training.crop(i, *drawn), canvas))

    def step_image(self, request: Request) -> Response:
        step, row, number = self._step(request), _number(request, "row"), _number(request, "view")
        images = self._batch(step).images
        if not (0 <= number < len(images) and 0 <= row < len(images[number])):
            raise ArgumentError(f"the batch has no image {row} of view {number}")
        return _picture(lambda: png(images[number][row]))

    def _step(self, request: Request) -> Step:
        first = self._training.first
        step = Step(*(_number(request, name, default) for name, default in first._asdict().items()))
        check_int("batch_size", step.batch_size, 1, _MOST_BATCH)
        return step

    def _drawn(self, request: Request) -> tuple[int, int, int, int]:
        """Returns the sample, seed, epoch and view of a picture."""
        return self._id(request), *_draws(request, Step()), _number(request, "view")

    def _id(self, request: Request) -> int:
        i = _as_number("sample", request.path_params["id"])
        if i >= len(self._view):
            raise ArgumentError(f"there is no sample {i:,}: the set has {len(self._view):,}")
        return i


def _most(classes: list[ClassRow]) -> int:
    """Returns the number of samples of the class that has most."""
    return max((each.number or 0 for each in classes), default=0)


def _draws(request: Request, default: Step) -> tuple[int, int]:
    """Returns the seed and the epoch of the query.

    Raises:
        ArgumentError: if a run can't have them.
    """
    seed, epoch = _number(request, "seed", default.seed), _number(request, "epoch", default.epoch)
    check_int("seed", seed, 0, (1 << 64) - 1)
    check_int("epoch", epoch, 0, _EPOCHS_OF_A_RUN - 1)
    return seed, epoch


def _number(request: Request, name: str, default: int = 0) -> int:
    """Returns a number of the query.

    Raises:
        ArgumentError: if it is none, or negative.
    """
    return _as_number(name, request.query_params.get(name) or str(default))


def _as_number(name: str, text: str) -> int:
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
