"""Debian's Chromium without a window, driven by Playwright, servers for it, and checks of how pages look."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from typing import Literal
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import ConsoleMessage, Dialog, Page, Request, expect, sync_playwright
from starlette.applications import Starlette

__all__ = ["PHONE_PX", "check_look", "open_page", "serve"]

PHONE_PX = 360

_LIMIT_MS = 60_000  # a machine may be busy; what takes longer fails
_NARROW_PX = 500  # a phone's window
_LEAST_CONTRAST = 4.5
_IS_SCHEME = """scheme => {
    const [red, green, blue] = getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).map(Number);
    return (red + green + blue > 384) === (scheme === "light");
}"""
_END_TRANSITIONS = """() => {
    for (const each of document.getAnimations()) if (each instanceof CSSTransition) each.finish();
}"""
# Text and images that reach beyond the right edge, but for those in a box that scrolls by itself.
_BEYOND = """() => {
    const scrolls = element => element
        && (["auto", "scroll"].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
    const found = document.documentElement.scrollWidth > innerWidth ? ["the whole page"] : [];
    for (const element of document.body.querySelectorAll("*")) {
        if (!element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        const text = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data).join("").trim();
        if (!text && element.tagName !== "IMG") continue;
        if (element.getBoundingClientRect().right > innerWidth + 1 && !scrolls(element))
            found.push(`${element.tagName} ${text.slice(0, 40)}`);
    }
    return found;
}"""
_MISSING_IMAGES = """async () => {
    const found = [];
    for (const image of document.images) {
        image.loading = "eager";
        await image.decode().catch(() => found.push(image.src));
    }
    return found;
}"""
# The contrast of each text with what is behind it, by the formula of WCAG 2.2.
_CONTRASTS = """() => {
    const numbers = color => {
        const [red, green, blue, alpha = 1] = color.match(/[0-9.]+/g).map(Number);
        return [red, green, blue, alpha];
    };
    const over = ([red, green, blue, alpha], below) =>
        [red, green, blue].map((value, k) => value * alpha + below[k] * (1 - alpha));
    const light = color => color
        .map(value => value / 255).map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
        .reduce((sum, value, k) => sum + value * [0.2126, 0.7152, 0.0722][k], 0);
    const known = new Map([[null, [255, 255, 255]]]);
    const behind = element => {
        if (!known.has(element)) {
            const color = numbers(getComputedStyle(element).backgroundColor);
            known.set(element, color[3] === 1 ? color.slice(0, 3) : over(color, behind(element.parentElement)));
        }
        return known.get(element);
    };
    // What is drawn under the middle of a drawing's text.
    const drawnBehind = element => {
        element.scrollIntoView({block: "center"});
        const box = element.getBoundingClientRect();
        const layers = [];
        for (const each of document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2)) {
            if (!(each instanceof SVGElement))
                return layers.reduceRight((below, layer) => over(layer, below), behind(each));
            const style = getComputedStyle(each);
            if (each instanceof SVGGeometryElement && style.fill.startsWith("rgb")) {
                const [red, green, blue, alpha] = numbers(style.fill);
                layers.push([red, green, blue, alpha * style.opacity * style.fillOpacity]);
            }
        }
    };
    const found = [];
    const add = (element, color, text, below) => {
        const [low, high] = [light(over(numbers(color), below)), light(below)].sort((a, b) => a - b);
        found.push([element.tagName, text.trim().slice(0, 40), (high + 0.05) / (low + 0.05)]);
    };
    for (const element of document.body.querySelectorAll("*")) {
        if (!element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        if (["SCRIPT", "STYLE"].includes(element.tagName)) continue;
        const text = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data).join("").trim();
        const style = getComputedStyle(element);
        if (element instanceof SVGTextContentElement) {
            if (text) add(element, style.fill, text, drawnBehind(element));
            continue;
        }
        if (text || element.value) add(element, style.color, text || element.value.toString(), behind(element));
        if (element.placeholder)
            add(element, getComputedStyle(element, "::placeholder").color, element.placeholder, behind(element));
    }
    return found;
}"""


@contextlib.contextmanager
def open_page(width_px: int = 1280, height_px: int = 900, *, allowed: str = "(?!)") -> Iterator[Page]:
    """Starts the browser, and ends it with all its processes. Skips the test where there is none, which fails with
    CI=true.

    Args:
        width_px: Width of the window; a narrow one is a phone's.
        height_px: Its height.
        allowed: A pattern of whole errors in the console that are no faults; nothing matches the default.

    Raises:
        AssertionError: at the end, if a script has failed, a page has written an error to the console, broken its
            Content-Security-Policy, opened a dialog, or asked another host than this one.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        assert os.environ.get("CI") != "true", "CI needs chromium"
        pytest.skip("needs chromium")
    faults: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        is_error = message.type == "error" and not re.fullmatch(allowed, message.text)
        if is_error or "Content Security Policy" in message.text:
            faults.append(message.text)

    def asked(request: Request) -> None:
        if urlsplit(request.url).hostname not in (None, "127.0.0.1"):
            faults.append(f"a request: {request.url}")

    def dismiss(dialog: Dialog) -> None:
        faults.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    expect.set_options(timeout=_LIMIT_MS)
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium, timeout=_LIMIT_MS) as browser,
    ):
        page = browser.new_page(
            viewport={"width": width_px, "height": height_px},
            is_mobile=width_px < _NARROW_PX,
            has_touch=width_px < _NARROW_PX,
        )
        page.set_default_timeout(_LIMIT_MS)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", heard)
        page.on("request", asked)
        page.on("dialog", dismiss)
        yield page
    assert not faults, faults


def check_look(page: Page, scheme: Literal["light", "dark"]) -> set[str]:
    """Fails if a page does not follow the scheme, has text that hardly stands out from what is behind it, lacks an
    image, or is wider than the window; tables and code may scroll in boxes of their own.

    Returns:
        The names of the elements that have text.
    """
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(_IS_SCHEME, arg=scheme)
    page.evaluate(_END_TRANSITIONS)
    contrasts = page.evaluate(_CONTRASTS)
    faults = [
        f"{name} {text!r} has a contrast of {ratio:.1f}" for name, text, ratio in contrasts if ratio < _LEAST_CONTRAST
    ]
    faults += [f"{each} is beyond the edge" for each in page.evaluate(_BEYOND)]
    faults += [f"{each} is no image" for each in page.evaluate(_MISSING_IMAGES)]
    assert not faults, f"{page.url}, {scheme}: {faults}"
    return {name for name, _, _ in contrasts}


@contextlib.contextmanager
def serve(app: Starlette) -> Iterator[tuple[str, uvicorn.Server]]:
    """Serves an application at a free port of the loopback address.

    Yields:
        Its URL, which ends in a slash, and the server, whose ``should_exit`` ends it before the block does.
    """
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/", server
        finally:
            server.should_exit = True
            thread.join()
