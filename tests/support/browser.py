"""Debian's Chromium without a window, driven by Playwright, and servers for it to look at."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from playwright.sync_api import ConsoleMessage, Dialog, Page, expect, sync_playwright
from starlette.applications import Starlette

__all__ = ["open_page", "serve"]

_LIMIT_MS = 60_000  # a machine may be busy; what takes longer fails
_NARROW_PX = 500  # a phone's window


@contextlib.contextmanager
def open_page(width_px: int = 1280, height_px: int = 900) -> Iterator[Page]:
    """Starts the browser, and ends it with all its processes. Skips the test where there is none, which fails with
    CI=true.

    Args:
        width_px: Width of the window; a narrow one is a phone's.
        height_px: Its height.

    Raises:
        AssertionError: at the end, if a script has failed, a page has broken its Content-Security-Policy or opened a
            dialog.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        assert os.environ.get("CI") != "true", "CI needs chromium"
        pytest.skip("needs chromium")
    faults: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            faults.append(message.text)

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
        page.on("dialog", dismiss)
        yield page
    assert not faults, faults


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
