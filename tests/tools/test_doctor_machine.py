"""feeder doctor on the machine: faults are put in, and must be found with a way out."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from feeder.system.nvml import Nvml, open_nvml
from feeder.system.versions import PILLOW_SIMD
from feeder.tools.doctor import Finding, check_machine, colored, render
from feeder.tools.doctor.packages import Driver, check_packages, driver_of
from feeder.tools.doctor.resources import check_cores, check_gpus, check_memory, check_shared_memory
from tests.support import ROOT, fake_nvml
from tests.support.requirements import pins

PILLOW = {
    "distribution": "pillow-simd",
    "version": "12.1.1.post0",
    "folder": "/site/PIL",
    "simd": True,
    "libjpeg": "libjpeg-turbo 3.1.0",
    "libjpeg_path": "/usr/lib/libjpeg.so.62.4.0",
    "overlaid": "12.1.1",
    "undone": None,
    "absent_codecs": (),
}
FOUND = {
    "feeder": "0.1.0",
    "native": True,
    "torch": "2.9.0",
    "torch_cuda": "12.8",
    "dali": "2.4.0",
    "dali_package": "nvidia-dali-cuda120",
    "pillow": PILLOW,
}


def levels(findings: Any) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings}


def doctor(*arguments: str, before: str = "", path: Path = ROOT) -> tuple[int, dict[str, Finding]]:
    """Output of the command in a process of its own, after some code."""
    code = (
        f"{before}\nimport sys\nfrom feeder.tools.cli import main\nsys.exit(main({['doctor', '--json', *arguments]!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, {f["name"]: Finding(**f) for f in json.loads(done.stdout)["findings"]}


def test_every_finding_above_ok_says_why_and_the_way_out() -> None:
    found = check_machine()
    assert {"GPU", "cores", "memory", "/dev/shm", "open files", "kernels", "Pillow", "torch", "DALI"} <= {
        f.name for f in found
    }
    assert all(f.why for f in found if f.level != "ok")
    assert all(f.remedy for f in found if f.level in ("warning", "problem"))
    lines = render(found, 80).splitlines()
    assert max(len(line) for line in lines if not line.lstrip().startswith("fix: ")) <= 80


def test_a_fix_has_one_line_to_be_pasted_and_levels_have_colors_where_they_are_asked_for() -> None:
    command = f"pip install {' '.join(['--force-reinstall'] * 9)} pillow"
    found = [Finding("Pillow", "problem", "absent", "No JPEG can be opened.", command), Finding("cores", "ok", "2 ok")]
    found.append(Finding("rule", "warning", "a warning", "Slow.", "less", "train.py", 3, 1, "warning = 1"))
    plain = render(found, 60)
    shown = colored(plain)
    assert f"fix: {command}\n" in plain
    assert "\x1b" not in plain
    assert shown.count("\x1b[") == 6
    assert re.sub(r"\x1b\[\d+m", "", shown) == plain
    assert "\x1b[31mproblem\x1b[0m" in shown
    assert "train.py:3: \x1b[33mwarning\x1b[0m: a warning" in shown


def test_colors_are_for_terminals_that_want_them() -> None:
    script = ROOT / "tests/scripts/planted/copies.py"
    for wanted, env in ((True, {}), (False, {"NO_COLOR": "1"})):
        leader, follower = pty.openpty()
        command = [sys.executable, "-m", "feeder", "doctor", str(script)]
        given = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | env
        with os.fdopen(leader, "rb") as shown, subprocess.Popen(command, stdout=follower, env=given) as process:
            os.close(follower)
            assert (b"\x1b[33mwarning" in shown.read1(1 << 16)) == wanted
            process.terminate()


def test_few_open_files_are_a_warning_and_very_few_a_problem_with_an_exit_code() -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({}, 2048))"
    code, found = doctor(before=limit.format(1024))
    assert found["open files"].level == "warning"
    assert "ulimit -n 2048" in found["open files"].remedy
    assert code == (1 if "problem" in levels(found.values()).values() else 0)
    code, found = doctor(before=limit.format(256))
    assert (code, found["open files"].level) == (1, "problem")


def test_warnings_fail_only_when_strict(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from feeder.tools.cli import main

    monkeypatch.setattr("feeder.tools.doctor.check_machine", lambda: [Finding("cores", "warning", "few", "w", "r")])
    assert main(["doctor"]) == 0
    assert main(["doctor", "--strict"]) == 1
    assert capsys.readouterr().out.endswith("0 problems, 1 warning, 0 notes\n")


def group(root: Path, quota: str, memory: int = 0) -> str:
    cpu = root / "sys/fs/cgroup"
    cpu.mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/\n")
    (root / "proc/self/mountinfo").write_text("30 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n")
    (cpu / "cpu.max").write_text(quota)
    if memory:
        (cpu / "memory.max").write_text(str(memory))
        (cpu / "memory.current").write_text(str(memory - 1000))
        (cpu / "memory.stat").write_text("inactive_file 0\n")
    return str(root)


def test_a_quota_that_nproc_does_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    root = group(tmp_path, "600000 100000")
    (finding,) = check_cores(root, {})
    assert finding.level == "warning"
    assert "6 given, 64 seen" in finding.found
    assert "at most 6 for num_workers" in finding.remedy
    (finding,) = check_cores(root, {"LOCAL_WORLD_SIZE": "4"})
    assert "shared by 4 ranks" in finding.found
    assert "take turns" in finding.why
    (finding,) = check_cores("/nothing", {"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "8"})
    assert (finding.level, finding.found) == ("note", "8 given, 64 seen (by SLURM)")
    (finding,) = check_cores("/nothing", {})
    assert (finding.level, finding.found) == ("ok", "64 given, 64 seen")


def test_a_memory_limit_that_is_nearly_used_up(tmp_path: Path) -> None:
    (finding,) = check_memory(group(tmp_path, "max 100000", 1 << 30))
    assert finding.level == "warning"
    assert "of the control group's 1.0 GiB" in finding.found


def test_shared_memory_too_small_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(check_shared_memory(str(tmp_path / "none"))) == {"/dev/shm": "warning"}
    real = os.statvfs("/dev/shm")
    small = os.statvfs_result((4096, 4096, 16384, 16384, 16384, *real[5:10]))  # docker's 64 MiB
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    (finding,) = check_shared_memory()
    assert finding.level == "warning"
    assert finding.found.startswith("64.0 MiB")
    assert "--shm-size" in finding.remedy


def test_packages_against_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.doctor.packages.distributions", lambda: {"torch", "nvidia-dali-cuda120"})
    new, old = Driver("580.65", (13, 0)), Driver("470.57", (11, 4))
    assert set(levels(check_packages(new, FOUND)).values()) == {"ok"}
    assert levels(check_packages(old, FOUND)) | {"torch": "problem", "DALI": "problem"} == levels(
        check_packages(old, FOUND)
    )
    assert levels(check_packages(new, {**FOUND, "torch_cuda": None}))["torch"] == "problem"
    assert levels(check_packages(Driver(), FOUND))["torch"] == "note"
    assert levels(check_packages(Driver(), {**FOUND, "torch_cuda": None}))["torch"] == "ok"
    assert levels(check_packages(new, {**FOUND, "dali": None, "dali_package": None}))["DALI"] == "note"
    assert levels(check_packages(new, {**FOUND, "torch": None, "native": False})) == {
        **levels(check_packages(new, FOUND)),
        "torch": "problem",
        "kernels": "problem",
    }
    monkeypatch.setattr(
        "feeder.tools.doctor.packages.distributions", lambda: {"nvidia-dali-cuda130", "nvidia-dali-cuda120"}
    )
    assert levels(check_packages(new, FOUND))["DALI"] == "problem"


def remedy(name: str, driver: Driver, **found: Any) -> str:
    (finding,) = (f for f in check_packages(driver, {**FOUND, **found}) if f.name == name)
    assert finding.level in ("warning", "problem")
    return finding.remedy


def test_a_wrong_package_is_mended_by_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.doctor.packages.distributions", lambda: {"torch", "nvidia-dali-cuda130"})
    cuda12, cuda13, old = Driver("535.104", (12, 2)), Driver("580.65", (13, 0)), Driver("470.57", (11, 4))
    torch = "pip uninstall -y torch && pip install torch --index-url https://download.pytorch.org/whl/"
    assert remedy("torch", cuda12, torch_cuda=None) == torch + "cu126"
    assert remedy("torch", cuda12, torch_cuda="13.0") == torch + "cu126"
    assert remedy("torch", cuda13, torch_cuda=None) == torch + "cu130"
    newer = "sudo apt-get install -y nvidia-driver"
    assert remedy("torch", old) == remedy("torch", old, torch_cuda=None) == newer
    dali = {"dali_package": "nvidia-dali-cuda130"}
    assert remedy("DALI", cuda12, **dali) == (
        'pip uninstall -y nvidia-dali-cuda130 && pip install "feeder-data[dali-cuda12]"'
    )
    assert remedy("DALI", old, **dali) == newer
    reasons = [f.why for f in check_packages(old, {**FOUND, **dali}) if f.remedy == newer]
    assert [reason.partition(" It takes ")[2] for reason in reasons] == 2 * [
        "a driver for CUDA 12, 525 or newer; the command is Debian's."
    ]
    (kernels,) = (f for f in check_packages(cuda13, {**FOUND, "native": False}) if f.name == "kernels")
    assert kernels.remedy == "pip install --force-reinstall --no-deps dist/feeder_data-*.whl"
    assert "`make wheel` in a clone makes the wheel" in kernels.why


@pytest.mark.parametrize(
    ("driver", "index"),
    [
        (Driver("580.65", (13, 0), ((6, 1),)), "cu126"),
        (Driver("570.86", (12, 8), ((12, 0),)), "cu128"),
        (Driver("580.65", (13, 0), ((12, 0),)), "cu130"),
    ],
)
def test_a_torch_without_code_for_the_gpu_is_mended_by_one_command(
    driver: Driver, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: ["sm_80", "sm_90"])
    assert remedy("torch", driver) == (
        f"pip uninstall -y torch && pip install torch --index-url https://download.pytorch.org/whl/{index}"
    )


def test_pillow_is_mended_by_one_command() -> None:
    plain = {**PILLOW, "distribution": "pillow", "version": "12.1.1", "simd": False, "overlaid": None}
    over = "--no-binary pillow-simd pillow-simd==12.1.1.post0"
    assert remedy("Pillow", Driver(), pillow={**PILLOW, "overlaid": "13.0.0"}).endswith(over)
    assert remedy("Pillow", Driver(), pillow=None) == "pip install pillow"
    for jpeg in (None, "libjpeg 9.5"):
        assert remedy("libjpeg", Driver(), pillow={**plain, "libjpeg": jpeg}) == (
            "pip install --force-reinstall --no-deps --only-binary pillow pillow==12.1.1"
        )
        compiled = remedy("libjpeg", Driver(), pillow={**PILLOW, "libjpeg": jpeg})
        assert compiled.startswith("sudo apt-get install -y libjpeg-dev && pip install pillow==12.1.1 && ")
        assert compiled.endswith(over)


def test_the_newest_pillow_simd_is_the_pinned_one() -> None:
    assert pins()["pillow-simd"] == {PILLOW_SIMD}


def test_a_libjpeg_turbo_without_its_simd_code_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSIMD_FORCENONE", "1")
    code, found = doctor()
    assert (code, found["kernels"].level, found["kernels"].remedy) == (1, "problem", "unset JSIMD_FORCENONE")
    monkeypatch.delenv("JSIMD_FORCENONE")
    assert re.search(r"libjpeg-turbo \d", doctor()[1]["kernels"].found)


@pytest.mark.parametrize(
    ("change", "name", "level"),
    [
        ({"distribution": "pillow", "version": "12.1.1", "simd": False, "overlaid": None}, "Pillow", "note"),
        ({"distribution": "pillow", "version": "13.0.0", "simd": False, "overlaid": None}, "Pillow", "note"),
        ({"overlaid": "13.0.0"}, "Pillow", "problem"),
        ({"distribution": "pillow", "simd": False, "overlaid": None, "undone": "12.1.1.post0"}, "Pillow", "note"),
        ({"libjpeg": "libjpeg 9.5"}, "libjpeg", "warning"),
        ({"libjpeg": None}, "libjpeg", "problem"),
    ],
)
def test_pillow(change: dict[str, Any], name: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = {**FOUND, "pillow": {**PILLOW, **change}}
    assert levels(check_packages(Driver(), found))[name] == level


def test_a_pillow_that_does_not_load_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "PIL").mkdir()
    (tmp_path / "PIL" / "__init__.py").write_text("raise ImportError('libjpeg.so.62: cannot open')")
    code, found = doctor(path=tmp_path)
    assert (code, found["Pillow"].level) == (1, "problem")


def test_nvml_is_read_and_absence_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(fake_nvml.install(tmp_path)))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    nvml = open_nvml()
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    assert isinstance(nvml, Nvml)
    assert driver_of(nvml) == Driver("535.104.05", (12, 2))
    assert nvml.busy(nvml.gpus[0]) == 0.35
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [f.level for f in check_gpus(nvml, "535")] == ["ok"]
    assert [g.index for g in nvml.visible({"CUDA_VISIBLE_DEVICES": "GPU-1000,0"})] == [1, 0]
    assert [g.index for g in nvml.visible({"CUDA_VISIBLE_DEVICES": "0,-1,1"})] == [0]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    first, second = check_gpus(nvml, "535")
    assert (first.level, second.level) == ("warning", "ok")
    assert "4 of 16 PCIe lanes" in first.found
    assert [f.level for f in check_gpus("nvidia-ml-py is not installed", "535.1")] == ["warning"]
    assert [f.level for f in check_gpus("nvidia-ml-py is not installed", None)] == ["note"]


@pytest.mark.parametrize(
    ("driver", "said"), [(True, "nvidia-ml-py is not installed"), (False, "no NVIDIA driver here")]
)
def test_the_library_is_missed_only_where_there_is_a_driver(
    driver: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("os.path.exists", lambda path: driver)
    assert said in str(open_nvml())


def test_a_gpu_is_named_without_nvml(tmp_path: Path) -> None:
    gpu = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    (finding,) = check_gpus("nvidia-ml-py is not installed", "580.65.06", str(tmp_path))
    assert finding.found == "NVIDIA H200, driver 580.65.06, but nvidia-ml-py is not installed"


def test_a_driver_is_seen_without_nvml(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:03:44 UTC 2025\n"
    (tmp_path / "proc/driver/nvidia/version").write_text(text)
    assert driver_of("absent", str(tmp_path)) == Driver("580.65.06")
    assert driver_of("absent", str(tmp_path / "sys")) == Driver()
