"""Debian's Chromium, driven by the DevTools protocol over a pipe: no further package is needed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Page", "open_chromium"]


class Page:
    """A page of a browser without a window.

    Args:
        send: Descriptor that commands are written to.
        receive: Descriptor that answers come from.
    """

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._answers, self._number, self._session = send, os.fdopen(receive, "rb"), 0, ""
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.command("Page.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command, and returns its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                found: dict[str, Any] = answer["result"]
                return found

    def _next(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            data += byte
        message: dict[str, Any] = json.loads(data)
        return message

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self._send)
        self._answers.close()

    def _loaded(self) -> None:
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def open(self, url: str) -> None:
        """Opens a URL, and waits until it has loaded."""
        self.command("Page.navigate", url=url)
        self._loaded()

    def value(self, expression: str) -> Any:
        """Returns the value of an expression of JavaScript in the page."""
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, text: str) -> None:
        """Clicks at the middle of the first link or button of the page's main part with a text, and waits for the page
        that it leads to."""
        place = self.value(
            "(() => { const found = [...document.querySelectorAll('main :is(a, button)')].find(each => "
            f"each.innerText.includes({json.dumps(text)})); if (!found) return null; "
            "found.scrollIntoView({block: 'center'}); "
            "const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        assert place is not None, f"no link or button {text!r} in: {self.text()}"
        for kind in ("mousePressed", "mouseReleased"):
            at = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
            self.command("Input.dispatchMouseEvent", type=kind, **at)
        self._loaded()

    def press(self, key: str, *, loads: bool = False) -> None:
        """Presses a key; waits for the page that it leads to, if it does."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self.command("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        self.command("Input.dispatchKeyEvent", type="keyUp", key=key)
        if loads:
            self._loaded()

    def type(self, text: str) -> None:
        """Types a text where the focus is."""
        self.command("Input.insertText", text=text)

    def text(self) -> str:
        """The text that a person sees."""
        return str(self.value("document.body.innerText"))

    def wait_until(self, condition: str) -> None:
        """Waits until an expression of JavaScript is true of the page, which changes."""
        self.value(
            "new Promise(done => { const look = () => { if (" + condition + ") { observer.disconnect(); done(); } }; "
            "const observer = new MutationObserver(look); "
            "observer.observe(document, {subtree: true, childList: true, attributes: true, characterData: true}); "
            "look(); })"
        )

    def wait_for(self, text: str) -> None:
        """Waits until the page, which changes, shows a text."""
        self.wait_until(f"document.body.innerText.includes({json.dumps(text)})")

    def screen(self, width_px: int, height_px: int = 900, *, dark: bool = False) -> None:
        """Sets the size of the window, and the colors that the user wants."""
        size = {"width": width_px, "height": height_px, "deviceScaleFactor": 1, "mobile": width_px < 500}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """Writes what is seen as a PNG file."""
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def open_chromium(profile: Path) -> Iterator[Page]:
    """Starts the browser; skips the test where there is none, which fails with CI=true."""
    binary = shutil.which("chromium")
    if binary is None:
        assert os.environ.get("CI") != "true", "CI needs chromium"
        pytest.skip("needs chromium")
    theirs, send = os.pipe()
    receive, answers = os.pipe()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    # The protocol's pipe is descriptors 3 and 4.
    command = ["bash", "-c", f'exec "$0" "$@" 3<&{theirs} 4>&{answers}', binary, *options]
    command += ["--remote-debugging-pipe", f"--user-data-dir={profile}"]
    process = subprocess.Popen(command, pass_fds=(theirs, answers), stderr=subprocess.DEVNULL)
    os.close(theirs)
    os.close(answers)
    page = Page(send, receive)
    try:
        yield page
    finally:
        process.kill()
        process.wait()
        page.close()
