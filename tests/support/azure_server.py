"""Azurite, Microsoft's own emulator of Azure Blob Storage, on 127.0.0.1."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.client
import shutil
from pathlib import Path

from tests.support.daemons import Daemon, answers, free_port

__all__ = ["ACCOUNT", "KEY", "AzureServer", "azurite_is_installed"]

ACCOUNT = "devstoreaccount1"
# The emulator's key is public: learn.microsoft.com/azure/storage/common/storage-connect-azurite
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_PROGRAM, _VERSION = "azurite-blob", "2021-08-06"


def azurite_is_installed() -> bool:
    """True if ``npm install -g azurite`` has been run."""
    return shutil.which(_PROGRAM) is not None


class AzureServer:
    """A server with the emulator's one account, on plain HTTP.

    Args:
        folder: An empty folder, for what the server writes.

    Attributes:
        endpoint: URL of the account.
    """

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}/{ACCOUNT}"
        place = ["--blobHost", "127.0.0.1", "--blobPort", str(self._port), "--location", str(folder)]
        options = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        self._daemon = Daemon([_PROGRAM, *place, *options], folder / "azurite.out")
        self._daemon.wait_until(lambda: answers(self._port))

    def environment(self) -> dict[str, str]:
        """The environment variables of clients."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def create_container(self, name: str) -> None:
        """Creates a container, by a request that is signed with the account's key."""
        date = email.utils.formatdate(usegmt=True)
        headers = {"x-ms-date": date, "x-ms-version": _VERSION}
        signed = "PUT" + "\n" * 12 + "".join(f"{key}:{value}\n" for key, value in headers.items())
        signed += f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
        connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()
        connection.close()

    def close(self) -> None:
        """Ends the server."""
        self._daemon.close()
