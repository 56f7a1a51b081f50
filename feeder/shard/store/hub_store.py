"""Datasets' repositories on the Hugging Face Hub, read at one commit.

What a commit holds never changes, so one listing serves all jobs of a machine; it lies in the cache, beside the indexes
that feeder makes for tars. Files that the hub's own cache has are read from there. All others come as from a web server
that redirects: the token goes to the hub itself, over https only, and to no host that it redirects to.
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from obstore.store import LocalStore

from feeder.errors import NotFoundError, StoreError
from feeder.shard.store.client import HUB
from feeder.shard.store.fault import Fault
from feeder.shard.store.object_store import ObjectStore
from feeder.shard.store.store import Entry, hub_folder
from feeder.shard.store.url import Url
from feeder.system.files import atomic_file, exclusive_lock

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REQUEST_S = 30
_ADVICE = "set HF_TOKEN or run `hf auth login`; a gated dataset also wants your consent, on its page"


class HubStore(ObjectStore):
    """A folder of a dataset's repository; see :class:`feeder.shard.store.store.Store`.

    Args:
        url: The URL; a revision that is no commit is resolved to one at once, by a request.
        options: As of :class:`ObjectStore`.

    Raises:
        NotFoundError: if there is no such repository or revision.
        StoreError: if huggingface_hub is not installed, or the hub can't be read.
    """

    def __init__(self, url: Url, **options: Any) -> None:
        super().__init__(url, **options)
        self._import()
        self._repository, revision, self._path = url.repository()
        self._commit = revision if _COMMIT.fullmatch(revision) else self._resolved(revision)
        self.url = replace(url, prefix="/".join(filter(None, (f"{self._repository}@{self._commit}", self._path))))
        self._made = hub_folder(self.url)
        self._sizes: dict[str, int] | None = None

    def _import(self) -> None:
        try:
            from huggingface_hub import constants, get_token
        except ModuleNotFoundError:
            raise StoreError(
                f"{self.url}: datasets of the Hub need the package huggingface_hub: pip install 'feeder-data[hf]'"
            ) from None
        self._service = self.url.service or HUB
        self._is_offline = constants.is_offline_mode()
        token = get_token() if self._service.startswith("https://") else None
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def size(self, key: str, *, is_wanted: Callable[[], bool] = lambda: True) -> Entry:
        self._check(key)
        if (local := self._local(key)) is not None:
            status = os.stat(local)
            return Entry(key, status.st_size, modified_ns=status.st_mtime_ns if local.startswith(self._made) else 0)
        size_bytes = self._listing().get(self._full(key))
        if size_bytes is None:
            raise NotFoundError(f"{self.url.object(key)}: there is no such file in the repository")
        return Entry(key, size_bytes)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        folder = self._full(prefix)
        for path, size_bytes in sorted(self._listing().items()):
            if not folder or path.startswith(f"{folder}/"):
                yield Entry(path[len(self._path) + 1 if self._path else 0 :], size_bytes)

    def _place(self, key: str) -> tuple[Client, str]:
        if (local := self._local(key)) is not None:
            return LocalStore(os.path.dirname(local)), os.path.basename(local)
        self._refuse_offline(key)
        return super()._place(key)

    def _follow(self, key: str, place: tuple[str, str] | None) -> None:
        if self._local(key) is None:
            self._refuse_offline(key)
            super()._follow(key, place)

    def _full(self, key: str) -> str:
        """Returns the path of a file in the repository."""
        return "/".join(filter(None, (self._path, key)))

    def _local(self, key: str) -> str | None:
        """Returns the path of a file that is here already: an index that was made, or one in the hub's own cache."""
        from huggingface_hub import try_to_load_from_cache

        self._check(key)
        made = os.path.join(self._made, self._full(key))
        if os.path.isfile(made):
            return made
        found = try_to_load_from_cache(self._repository, self._full(key), revision=self._commit, repo_type="dataset")
        return found if isinstance(found, str) else None

    def _listing(self) -> dict[str, int]:
        """Returns the size of each file of the commit by its path; asks for them once a machine. Offline they are those
        of the hub's own cache, unless it was asked before."""
        path = os.path.join(self._made, "listing.json")
        if self._sizes is None and self._is_offline and not os.path.exists(path):
            self._sizes = self._downloaded()
        if self._sizes is None:
            os.makedirs(self._made, mode=0o700, exist_ok=True)
            with exclusive_lock(f"{path}.lock", waits=True):
                if not os.path.exists(path):
                    found = self._ask(self._commit, {"blobs": "true"})["siblings"]
                    with atomic_file(path) as file:
                        file.write(json.dumps({each["rfilename"]: each["size"] for each in found}).encode())
            with open(path, "rb") as file:
                self._sizes = json.load(file)
        return self._sizes

    def _downloaded(self) -> dict[str, int]:
        """Returns the size of each file of the commit that is in the hub's own cache, by its path."""
        folder = os.path.join(self._hub_cache, "snapshots", self._commit)
        files = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
        if not files:
            self._refuse_offline("")
        return {os.path.relpath(file, folder): os.path.getsize(file) for file in files}

    @property
    def _hub_cache(self) -> str:
        """The folder of the repository in the hub's own cache."""
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        return os.path.join(constants.HF_HUB_CACHE, repo_folder_name(repo_id=self._repository, repo_type="dataset"))

    def _resolved(self, revision: str) -> str:
        """Returns the commit of a branch or a tag; offline that of the hub's cache."""
        if not self._is_offline:
            return str(self._ask(revision, {})["sha"])
        try:
            with open(os.path.join(self._hub_cache, "refs", revision), encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            raise NotFoundError(
                f"{self.url}: is not in the hub's cache, and HF_HUB_OFFLINE is set: download it before"
            ) from None

    def _ask(self, revision: str, options: dict[str, str]) -> Any:
        """Asks the hub for what a revision holds; huggingface_hub waits and repeats as the hub asks for.

        Raises:
            NotFoundError, StoreError: as the constructor.
        """
        from huggingface_hub import errors, utils

        place = f"{self._service}/api/datasets/{self._repository}/revision/{urllib.parse.quote(revision, safe='')}"
        try:
            answer = utils.http_backoff(  # type: ignore[attr-defined]
                "GET", place, params=options, headers=self._headers, timeout=_REQUEST_S
            )
            utils.hf_raise_for_status(answer)  # type: ignore[attr-defined]
            return answer.json()
        except errors.GatedRepoError:
            raise StoreError(f"{self.url}: is gated: {_ADVICE}") from None
        except errors.RepositoryNotFoundError:
            raise NotFoundError(f"{self.url}: there is no such dataset, or it is private: {_ADVICE}") from None
        except errors.RevisionNotFoundError:
            raise NotFoundError(f"{self.url}: has no revision {revision!r}") from None
        except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise StoreError(f"{self.url}: {self._service} can't be asked: {reason}") from None

    def _refuse_offline(self, key: str) -> None:
        if self._is_offline:
            raise StoreError(
                f"{self.url.object(key)}: is not in the hub's cache, and HF_HUB_OFFLINE is set: download it before, by "
                f"`hf download --repo-type dataset {self._repository}`"
            )

    def _error(self, key: str, fault: Fault) -> StoreError:
        return super()._error(key, fault._replace(advice=_ADVICE) if fault.reason[:3] in ("401", "403") else fault)
