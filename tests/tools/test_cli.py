from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder.tools.cli import main
from feeder.tools.commands import common
from feeder.tools.set_report import inspect
from tests.support.commands import command_names
from tests.support.images import encode, make_tree, pixels
from tests.support.shard_sets import damage_row, write_tar


def run(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Calls the command in this process."""
    command, out, err = [*map(str, arguments)], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            ended: Any = main(command)
        except SystemExit as error:
            ended = error.code
    done = subprocess.CompletedProcess(command, ended, out.getvalue(), err.getvalue())
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def run_python(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "images", 2, 6)


HELP = """
import contextlib, sys, feeder.tools.cli
with contextlib.suppress(SystemExit):
    feeder.tools.cli.main(["shard", "--help"])
print("slow modules:", sorted({"torch", "numpy", "PIL", "nvidia"} & set(sys.modules)))
"""


def test_help_does_not_import_what_is_slow() -> None:
    assert run_python("-c", HELP).stdout.endswith("slow modules: []\n")


def test_the_shell_completes_commands_and_options(tmp_path: Path) -> None:
    def completed(line: str) -> set[str]:
        answers = tmp_path / "answers"
        environment = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "IFS": "\n"}
        command = (
            f"exec {shlex.quote(sys.executable)} -m feeder 8>{shlex.quote(str(answers))}"  # argcomplete writes there
        )
        subprocess.run(["sh", "-c", command], env=os.environ | environment, check=True)
        return {each.strip() for each in re.split(r"[\n\v]", answers.read_text()) if each.strip()}

    assert completed("feeder re") == {"replay"}
    assert {"--encode", "--out", "--seed"} <= completed("feeder shard --")
    assert {"keep", "seekable", "packed"} <= completed("feeder shard x --encode ")


def test_sharding_never_imports_torch(tree: Path, tmp_path: Path) -> None:
    code = f"from feeder.tools.cli import main; main(['shard', {str(tree)!r}, '-q']); import sys"
    code += "; assert 'torch' not in sys.modules"
    run_python("-c", code)


def test_every_command_explains_itself_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ([], *([name] for name in command_names())):
        done = run(*command, "--help")
        assert max(map(len, done.stdout.splitlines())) <= 80


def test_help_lists_the_commands_in_groups_and_explains_one(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*arguments: str) -> str:
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
        return capsys.readouterr().out

    listed = shown("help")
    assert listed == shown("--help")
    found = re.findall(r"^  ([a-z]+):$|^    ([a-z]+)\b", listed, re.MULTILINE)
    groups = [number for number, (group, _) in enumerate(found) if group]
    assert groups == [0, 7, 10, 16]  # six commands, two, five and two
    assert sorted(name for _, name in found if name) == sorted(command_names())
    assert shown("help", "shard") == shown("shard", "--help")


@pytest.mark.parametrize("name", command_names())
def test_the_examples_of_the_help_are_calls_of_the_command(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    examples = re.findall(rf"^  feeder ({name}\b.*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(examples) >= 2
    monkeypatch.setattr(f"feeder.tools.commands.{name}.run", lambda arguments: 7)
    assert [main(shlex.split(example, comments=True)) for example in examples] == [7] * len(examples)


def test_shard_inspect_verify_from_the_command_line(tree: Path) -> None:
    out = tree.parent / "images-shards"
    (tree / "class-0" / "notes.txt").write_text("no image")
    done = run("shard", tree, "--samples-per-shard", "5")
    assert done.stdout.splitlines()[0].startswith("12 samples (class folders, 2 classes) in 3 shards")
    assert str(out) in done.stdout
    assert inspect(str(out)).samples == 12
    again = run("shard", tree, "--samples-per-shard", "5").stdout
    assert "nothing to do" in again
    assert all("rejected  1 of 13 inputs, see rejected.jsonl" in text for text in (done.stdout, again))
    assert "12 in 3 shards" in run("inspect", out).stdout
    assert "verified: 0 problems" in run("inspect", out, "--verify").stdout
    os.truncate(out / "shard-000001.tar", 600)
    done = run("inspect", out, "--verify", code=1)
    assert "shard-000001.tar: has 600 bytes" in done.stdout
    found = json.loads(run("inspect", out, "--verify", "--json", code=1).stdout)
    assert found["samples"] == 12
    assert {d["shard"] for d in found["damages"]} == {"shard-000001.tar"}


def test_verify_names_the_damage_of_an_index_that_has_no_report(tree: Path) -> None:
    run("shard", tree, "-q")
    path = tree.parent / "images-shards" / "index.bin"
    damage_row(path, "field", 0, 77)
    done = run("inspect", path.parent, "--verify", code=1)
    assert "SHA-256 is" in done.stdout
    assert "field 77" in done.stdout + done.stderr


def test_json_is_one_object_and_quiet_is_silent(tree: Path, tmp_path: Path) -> None:
    done = run("shard", tree, "--json", "--out", tmp_path / "a")
    assert json.loads(done.stdout)["samples"] == 12
    done = run("shard", tree, "--quiet", "--out", tmp_path / "b")
    assert (done.stdout, done.stderr) == ("", "")


def test_a_dry_run_writes_nothing(tree: Path, tmp_path: Path) -> None:
    done = run("shard", tree, "--dry-run", "--samples-per-shard", "4")
    assert "would write 12 samples (class folders, 2 classes) in 3 shards" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["images"]


def test_too_many_bad_images_end_with_3_and_the_way_out(tree: Path) -> None:
    (tree / "class-0" / "bad.jpg").write_text("x")
    done = run("shard", tree, code=3)
    assert "1 of 13 images (7.69%) were rejected" in done.stderr
    assert "--max-bad" in done.stderr
    run("shard", tree, "--max-bad", "10%")
    assert json.loads((tree.parent / "images-shards" / "rejected.jsonl").read_text())["path"] == "class-0/bad.jpg"


def test_quiet_hides_no_loss(tree: Path, tmp_path: Path) -> None:
    (tree / "class-0" / "bad.jpg").write_text("x")
    (tree / "class-0" / "notes.txt").write_text("x")
    done = run("shard", tree, "--max-bad", "10%", "-q")
    assert done.stdout == ""
    assert done.stderr == f"feeder: 1 of 13 images left out, see {tmp_path}/images-shards/rejected.jsonl\n"


def test_a_closed_stderr_hides_the_progress_alone(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.redirect_stderr(None):
        assert main(["shard", str(tree)]) == 0
    assert capsys.readouterr().out.startswith("12 samples")


def test_errors_are_one_line_without_a_traceback(tmp_path: Path) -> None:
    done = run_python("-m", "feeder", "shard", tmp_path / "missing", code=1)
    assert done.stderr.startswith("feeder: ")
    assert "no such file or folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard-size", "huge"], "is not a size"),
        (["--max-bad", "200%"], "is not a share"),
        (["--shard-size", "1MB", "--samples-per-shard", "3"], "not allowed with"),
        (["--json", "-q"], "not allowed with"),
    ],
)
def test_wrong_usage_ends_with_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    assert message in run("shard", tmp_path, *arguments, code=2).stderr


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("256MiB", 256 << 20),
        ("1.5 GB", 1_500_000_000),
        ("4k", 4000),
        ("2KiB", 2048),
        ("2TB", 2 * 10**12),
    ],
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert common.size_bytes(text) == size


INTERRUPTED = """
import os, signal, sys
import feeder.tools.cli, feeder.system.progress
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
feeder.system.progress.LineProgress.advance = lambda *a: os.kill(os.getpid(), signal.SIGINT)
sys.exit(feeder.tools.cli.main(sys.argv[1:]))
"""


def test_ctrl_c_leaves_a_resumable_folder_and_says_how_to_go_on(tree: Path, tmp_path: Path) -> None:
    arguments = ["shard", tree, "--samples-per-shard", "2", "--workers", "1"]
    done = run_python("-c", INTERRUPTED, *arguments, code=130)
    assert "Traceback" not in done.stderr
    assert "the same command resumes the run" in done.stderr
    done = run(*arguments)
    assert "resuming" in done.stderr
    assert inspect(str(tmp_path / "images-shards")).samples == 12


def test_a_terminal_gets_a_bar_and_a_pipe_gets_plain_lines(tree: Path) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "feeder", "shard", str(tree)]
    with subprocess.Popen(command, stdout=follower, stderr=follower) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                chunk = os.read(leader, 4096)
            except OSError:  # how Linux says that the other end is closed
                break
            if not chunk:
                break
            shown += chunk
    os.close(leader)
    assert process.returncode == 0
    assert b"0/12 [" in shown
    piped = run("shard", tree, "--out", tree.parent / "b")
    assert "\r" not in piped.stdout + piped.stderr


def test_index_from_the_command_line(tree: Path, tmp_path: Path) -> None:
    run("shard", tree, "-q")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (tmp_path / "images-shards" / "shard-000000.tar").rename(foreign / "x.tar")
    assert "12 samples in 1 tar" in run("index", foreign).stdout
    assert json.loads(run("index", foreign / "x.tar", "--json").stdout)["samples"] == 12
    write_tar(tmp_path / "y.tar", [("a.jpg", encode(pixels(1))), ("a.cls", b"cat")])
    assert "labels are class names, as the cls field holds 'cat'" in run("index", tmp_path / "y.tar").stderr


def test_a_quiet_index_says_what_it_leaves_out(tmp_path: Path) -> None:
    members = [(f"{i}.jpg", encode(pixels(1))) for i in range(3)]
    write_tar(tmp_path / "t.tar", [*members, ("broken.jpg", b"\xff\xd8\xff")])
    done = run("index", tmp_path / "t.tar", "-q", "--max-bad", "0.5")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "feeder: 1 of 4 samples left out of the index\n"


def test_index_ends_with_3_on_too_many_bad_samples(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", [("a.jpg", encode(pixels(1))), ("b.jpg", b"no image")])
    assert "x.tar/b: not an image" in run("index", tmp_path / "x.tar", code=3).stdout
    run("index", tmp_path / "x.tar", "--max-bad", "50%")


def test_parity_from_the_command_line(tree: Path) -> None:
    done = run("parity", tree, "--backend", "pillow", "--images", "4")
    assert "pillow" in done.stdout
    assert json.loads(run("parity", tree, "--backend", "pillow", "--images", "4", "--json").stdout)
    assert "no-such" in run("parity", tree, "--backend", "no-such", code=2).stderr


def test_public_names_are_sorted_and_all_load() -> None:
    assert feeder.__all__ == sorted(feeder.__all__)
    for name in feeder.__all__:
        assert getattr(feeder, name) is not None
        assert name in dir(feeder)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        feeder.nothing  # noqa: B018


def test_version_is_printed() -> None:
    assert run_python("-m", "feeder", "--version").stdout == f"feeder {feeder.__version__}\n"
