"""Imports go one way: from a room to those before it, TYPE_CHECKING and imports inside functions included."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
from collections.abc import Iterator
from pathlib import Path

import feeder
from tests.support import ROOT
from tests.support.sources import statements

# Each line may import from itself and from the lines before it. Of the two in one line neither may import the other.
ROOMS = (
    ("system.text",),
    ("errors",),
    ("_native",),
    ("system",),
    ("order",),
    ("transforms",),
    ("fields",),
    ("decoders",),
    ("wds",),
    ("shard.store",),
    ("shard.format",),
    ("shard.cache",),
    ("shard.source",),
    ("shard.write",),
    ("dataset",),
    ("loader.service_options",),
    ("loader.options", "loader.stateful", "loader.random_state", "loader.collate_errors"),
    ("loader.ranks",),
    ("loader.rank_agreement", "loader.order_identity", "loader.path_choice"),
    ("loader.run_seed",),
    ("loader.observe",),
    ("loader.slots",),
    ("loader.workers",),
    ("loader.samplers", "loader.left_out"),
    ("loader.device",),
    ("service.frames",),
    ("loader.fast", "loader.generic"),
    ("loader.auto_workers",),
    ("loader.dataloader",),
    ("loader.from_torch",),
    ("service",),
    ("tools",),
)
# Packages that workers and the fork server import below, without torch: nothing is imported on the way. (Below
# decoders/gpu they import nothing: its kernels need torch.)
WITHOUT_IMPORTS = ("decoders", "dataset", "loader", "order", "shard", "system")
LAZY = {"importlib", "sys", "types", "typing", "__future__"}


def modules() -> dict[str, Path]:
    found = {}
    for path in (ROOT / "feeder").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


@functools.cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The import statements of a module, wherever in it."""
    nodes = statements(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path, names: set[str]) -> Iterator[str]:
    """The modules of feeder that a module imports, wherever in it."""
    for node in imports(path):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in names else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def room(module: str) -> tuple[int, str] | None:
    """The line of a module's room, and the room."""
    inside = module.removeprefix("feeder.")
    for line, rooms in enumerate(ROOMS):
        for name in rooms:
            if inside == name or inside.startswith(name + "."):
                return line, name
    return None


def test_imports_go_one_way() -> None:
    found = modules()
    wrong = []
    for name, path in sorted(found.items()):
        place = room(name)
        for other in sorted(set(imported(path, set(found)))):
            to = room(other)
            if place is None or to is None:  # a package of rooms, or the whole, see the tests below
                continue
            if to[0] > place[0] or (to[0] == place[0] and to[1] != place[1]):
                wrong.append((name, other))
    assert wrong == []


def test_no_modules_import_each_other() -> None:
    """Not in a function either, nor for types only."""
    found = modules()
    below = {name: {*imported(path, set(found))} & found.keys() - {name, "feeder"} for name, path in found.items()}
    graphlib.TopologicalSorter(below).prepare()  # which names a circle


def test_every_module_has_a_room() -> None:
    packages = {name.rpartition(".")[0] for name in modules()}
    without = [name for name in modules() if room(name) is None and name not in packages]
    assert without == ["feeder.__main__"]


def test_packages_that_workers_import_below_import_nothing() -> None:
    for name in WITHOUT_IMPORTS:
        for path in {*(ROOT / "feeder" / name).rglob("__init__.py")} - {ROOT / "feeder/decoders/gpu/__init__.py"}:
            found = {other.partition(".")[0] for other in imported(path, set())}
            assert found <= LAZY, path


def test_the_top_folder_stays_small() -> None:
    tracked = [
        path
        for path in (ROOT / "feeder").iterdir()
        if path.name != "__pycache__" and path.suffix not in (".so", ".fatbin")
    ]
    assert len(tracked) <= 17


def test_what_reads_from_the_network_has_no_pickle() -> None:
    """The server, and what the relay has of it; neither has anything to unpickle."""
    readers = [*(ROOT / "feeder/service").glob("*.py")]
    readers += [ROOT / f"feeder/loader/fast/{name}.py" for name in ("relay", "server_link", "servers")]
    for path in readers:
        nodes = imports(path)
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module is not None}
        assert not any("pickle" in name or name in ("marshal", "shelve") for name in names), path


def test_type_checkers_find_every_public_name() -> None:
    tree = ast.parse((ROOT / "feeder/__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = {alias.name: str(node.module) for node in imports for alias in node.names if "feeder" in str(node.module)}
    assert ours.keys() == set(feeder.__all__)
    homes = {name: importlib.import_module(module) for name, module in ours.items()}
    assert [name for name, home in homes.items() if getattr(home, name) is not getattr(feeder, name)] == []
