"""psm/plan_trace.h: a recorder in one header, and what `psmkit plan check` says of its record (traced.c)."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from psmkit.logparse.records import open_record
from tests.csrc.base import compiled
from tests.csrc.psm import ground

HERE = Path(__file__).parent
HEADER = ground.PSM / "include" / "psm" / "plan_trace.h"
EVENTS = ground.PSM / "include" / "psm" / "psm_plan_events.h"
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")


def build(folder: Path, *words: str | Path, compiler: str | None = None, name: str = "traced") -> Path:
    """The program, compiled in a folder that has the header and nothing else of psmkit."""
    (folder / "psm").mkdir(parents=True, exist_ok=True)
    shutil.copy(HEADER, folder / "psm")
    command = [compiler or compiled.compiler(), *STRICT, "-I.", *words, "-o", folder / name, "-lpthread"]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=folder, env=compiled.environment(), timeout=120
    )
    assert done.returncode == 0, done.stderr
    return folder / name


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    return build(tmp_path_factory.mktemp("traced"), "-std=gnu11", "-g", *sanitizers, HERE / "traced.c")


def run(program: Path, mode: str, folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    env = compiled.environment(PSM_PLAN_TRACE=str(folder), **settings)
    return subprocess.run([program, mode], capture_output=True, text=True, env=env, timeout=60)


def checked(folder: Path, status: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "psmkit", "plan", "check", "--format", "json", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ground.ROOT, timeout=60)
    assert done.returncode == status, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def broken(found: dict[str, Any]) -> list[str]:
    return [finding["title"].partition(":")[0] for finding in found["findings"]]


@pytest.mark.parametrize("std", ["c99", "gnu11", "c11", "gnu17"])
def test_the_header_compiles_alone_as_c(tmp_path: Path, std: str) -> None:
    assert build(tmp_path, f"-std={std}", HERE / "traced.c").is_file()


@pytest.mark.parametrize("std", ["c++11", "c++17", "gnu++20"])
def test_the_header_compiles_alone_as_cxx(tmp_path: Path, std: str) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "a C++ compiler is needed: install g++"
    assert build(tmp_path, f"-std={std}", "-x", "c++", HERE / "traced.c", compiler=compiler).is_file()


def test_files_of_one_library_write_one_record(tmp_path: Path) -> None:
    """enqueue.cc, group.cc and init.cc include it."""
    (tmp_path / "one.c").write_text(
        '#include "psm/plan_trace.h"\nvoid two(void *);\nint main(void)\n{\n    int comm;\n'
        "    PSM_TRACE_PREPARE(&comm, 0, 7, 1, 0, 0);\n    two(&comm);\n    PSM_TRACE_DESTROY(&comm, 0, 0, 0);\n    return 0;\n}\n"
    )
    (tmp_path / "two.c").write_text(
        '#include "psm/plan_trace.h"\nvoid two(void *);\nvoid two(void *comm)\n{\n    PSM_TRACE_FINISH(comm, 1, 0);\n}\n'
    )
    program = build(tmp_path, "-std=gnu11", "-fvisibility=hidden", tmp_path / "one.c", tmp_path / "two.c")
    assert run(program, "", tmp_path / "traces").returncode == 0
    (trace,) = checked(tmp_path / "traces", 0)["traces"]
    assert (trace["events"], trace["first_event"], trace["destroyed"]) == (3, 0, True)


def test_its_numbers_are_those_of_the_events(tmp_path: Path) -> None:
    names = re.findall(r"PSM_TRACE_E_(\w+) = (\d+)", HEADER.read_text())
    pairs = [(f"PSM_TRACE_E_{name}", f"PSM_PLAN_{name}") for name, _ in names]
    pairs += [(f"PSM_TRACE_ON_{n}", f"PSM_PLAN_ON_{n}") for n in ("DEVICE", "HOST", "LAUNCH")]
    pairs += [(f"PSM_TRACE_BY_{n}", f"PSM_PLAN_BY_{n}") for n in ("HOST_TASK", "LAUNCH_AFTER", "DESTRUCTOR", "CANCEL")]
    pairs += [("PSM_TRACE_COUNTS", "PSM_PLAN_OP_DECREMENTS"), ("PSM_TRACE_COPIED", "PSM_PLAN_OP_COPIED")]
    asserts = "".join(f'_Static_assert((int){a} == (int){b}, "{a}");\n' for a, b in pairs)
    (tmp_path / "same.c").write_text(
        f'#include "psm/plan_trace.h"\n#include "{EVENTS}"\n{asserts}int main(void)\n{{\n    return 0;\n}}\n'
    )
    build(tmp_path, "-std=gnu11", tmp_path / "same.c", name="same")
    events = re.search(r"enum psm_plan_what \{(.*?)\};", EVENTS.read_text(), re.DOTALL)
    assert events
    known = re.findall(r"\bPSM_PLAN_(\w+)(?: = 1)?,? */\*|\bPSM_PLAN_(ABORT),", events[1])
    # Nobody in NCCL can tell the others: the end of a kernel, replays, and what only a simulation or a work FIFO of slots has.
    assert {a or b for a, b in known} - {n for n, _ in names} == {"KERNEL_DONE", "REPLAY", "STUCK", "UPLOADED"}


def test_a_right_run_breaks_no_rule(traced: Path, tmp_path: Path) -> None:
    done = run(traced, "right", tmp_path / "traces")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (file,) = (tmp_path / "traces").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert (open_record(str(file)).owner, open_record(str(file)).notes) == ("clean", [])
    (trace,) = checked(tmp_path / "traces", 0)["traces"]
    assert (trace["plans"], trace["events"], trace["destroyed"], trace["open"]) == (3, 37, True, [])


@pytest.mark.parametrize(("mode", "rule"), [("wrong", "reclaim.twice"), ("freed", "freed.touched")])
def test_a_mistake_breaks_its_rule_and_no_other(traced: Path, tmp_path: Path, mode: str, rule: str) -> None:
    run(traced, mode, tmp_path / "traces")
    found = checked(tmp_path / "traces", 1)
    assert broken(found) == [rule]
    assert "plan 2" in found["findings"][0]["title"]  # the memory of plan 1 became plan 3


def test_events_of_what_is_not_known_are_dropped(traced: Path, tmp_path: Path) -> None:
    run(traced, "unknown", tmp_path / "traces")
    (trace,) = checked(tmp_path / "traces", 0)["traces"]
    assert trace["events"] == 37


def test_threads_record_each_event_once_and_in_order(tmp_path: Path) -> None:
    program = build(tmp_path, "-std=gnu11", "-g", "-O1", "-fsanitize=thread", "-Wno-tsan", HERE / "traced.c")
    done = run(program, "threads", tmp_path / "traces")
    assert (done.returncode, done.stderr) == (0, "")
    found = checked(tmp_path / "traces", 0)
    assert [(t["rank"], t["plans"], t["events"], t["first_event"]) for t in found["traces"]] == [
        (rank, 500, 4001, 0) for rank in (0, 1)
    ]


def test_a_killed_process_leaves_its_record(traced: Path, tmp_path: Path) -> None:
    assert run(traced, "killed", tmp_path / "traces").returncode == -signal.SIGKILL
    (file,) = (tmp_path / "traces").iterdir()
    assert open_record(str(file)).owner == "dead"
    (trace,) = checked(tmp_path / "traces", 0)["traces"]
    assert (trace["plans"], trace["events"], trace["destroyed"]) == (3, 36, False)


def test_a_full_ring_keeps_the_last_events_and_says_where_they_begin(tmp_path: Path) -> None:
    program = build(tmp_path, "-std=gnu11", HERE / "traced.c")
    run(program, "threads", tmp_path / "traces", PSM_PLAN_TRACE_EVENTS="1")
    found = checked(tmp_path / "traces", 0)
    assert sum(t["events"] for t in found["traces"]) == 1024
    assert all(t["first_event"] + t["events"] == 4001 for t in found["traces"])


def test_a_child_of_fork_has_a_record_of_its_own(traced: Path, tmp_path: Path) -> None:
    run(traced, "fork", tmp_path / "traces")
    begins = Counter(trace["first_event"] for trace in checked(tmp_path / "traces", 0)["traces"])
    assert begins == {0: 1, 36: 1}


@pytest.mark.parametrize("value", ["", "0"])
def test_it_is_off_by_default_and_evaluates_nothing(traced: Path, tmp_path: Path, value: str) -> None:
    env = compiled.environment(**({"PSM_PLAN_TRACE": value} if value else {}))
    done = subprocess.run([traced, "off"], capture_output=True, text=True, env=env, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_one_line_and_the_program_goes_on(traced: Path, tmp_path: Path) -> None:
    done = run(traced, "right", tmp_path / "missing" / "traces")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "PSM_PLAN_TRACE: plans are not recorded: " in done.stderr and "No such file or directory" in done.stderr


def test_its_schema_is_that_of_libpsm(traced: Path, tmp_path: Path) -> None:
    """The fields of csrc/psm/plan/trace.c, and the line of the catalogue."""
    run(traced, "right", tmp_path / "traces")
    (file,) = (tmp_path / "traces").iterdir()
    (section,) = open_record(str(file)).sections
    catalogue = tomllib.loads((compiled.CATALOGUE.parent / "libpsm_plan.toml").read_text())
    (event,) = [m for m in catalogue["message"] if m["name"] == "libpsm.plan.event"]
    assert [(line.name, line.level, line.pattern) for line in section.messages] == [
        (event["name"], event["level"], event["pattern"])
    ]
    source = (ground.PSM / "plan" / "trace.c").read_text()
    named = [
        name for group in re.findall(r"PSM_FIELDS\(struct row, \w+, ([\w, ]+)\)", source) for name in group.split(", ")
    ]
    assert [f.name for f in section.fields] == named
    assert (section.name, section.version, section.kind, section.lost) == ("psm.plan", 1, "ring", 0)
