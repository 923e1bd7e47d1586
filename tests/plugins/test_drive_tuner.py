"""The drive for tuners: green on a right one, and what it finds in broken ones."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.model.errors import InputError
from psmkit.plugins.drive import Drive, Result
from psmkit.plugins.drive_checks import Grade
from psmkit.plugins.drive_tuner import TUNER_VERSIONS, drive_tuner, tuner_versions
from psmkit.plugins.drive_tuner_checks import TUNER_CHECKS
from tests.csrc.base import compiled

CHECKS = [check.name for check in TUNER_CHECKS]

OURS = compiled.ROOT / "psmkit" / "psm" / "lib" / "libnccl-tuner-psm.so"
SOURCE = """
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "psm_abi/tuner.h"
static int last;
static ncclResult_t init(void **c, uint64_t id, size_t ranks, size_t nodes, ncclDebugLogger_t log, ncclNvlDomainInfo_v5_t *d,
                         ncclTunerConstants_v5_t *k)
{
    (void)id; (void)nodes; (void)log; (void)d; (void)k;
    int *mine = malloc(sizeof *mine);
    *mine = last = (int)ranks;
    *c = mine;
    INIT
    return ncclSuccess;
}
static ncclResult_t get(void *c, ncclFunc_t op, size_t bytes, int pipe_ops, float **costs, int na, int np, int reg, int *channels)
{
    float *t = (float *)(void *)costs;
    (void)c; (void)op; (void)bytes; (void)pipe_ops; (void)na; (void)np; (void)reg; (void)channels; (void)t;
    GET
    return ncclSuccess;
}
static ncclResult_t end(void *c) { END; return ncclSuccess; }
static ncclResult_t chunk(void *c, ncclFunc_t op, size_t bytes, int a, int p, int n, size_t *size)
{
    (void)c; (void)op; (void)bytes; (void)a; (void)p; (void)n; (void)size;
    CHUNK
    return ncclSuccess;
}
const ncclTuner_v6_t ncclTunerPlugin_v6 = {.name = "Example", .init = init, .getCollInfo = get, .finalize = end, .getChunkSize = chunk};
"""
# What is wrong -> (where, the code, the check that has to find it, of what kind, words of its text, what it means for a job).
BROKEN = {
    "error-for-some": ("GET", "if (bytes == 3) return ncclInvalidArgument;", "strange", "contract", "NCCL fails the coll", Grade.BREAKS),
    "error-for-unknown": ("GET", "if (op > 4) return ncclInvalidArgument;", "unknown", "contract", "NCCL fails the coll", Grade.ADVICE),
    "offers-what-is-not": ("GET", "for (int i = 0; i < na * np; i++) t[i] = 1 + (i < 6);", "answers", "contract", "NCCL runs what", Grade.BREAKS),
    "offers-at-a-high-cost": ("GET", "for (int i = 0; i < na * np; i++) if (t[i] < 0) t[i] = 1e9;", "answers", "unchosen", "was not available", Grade.LUCK),
    "seven-by-four": ("GET", "t[na * 4 - 1] = 0;", "answers", "contract", "outside its outputs", Grade.BREAKS),
    "own-rank": ("GET", 'if (atoi(getenv("RANK"))) *channels = 2;', "ranks", "differ", "different answers", Grade.BREAKS),
    "last-communicator": ("GET", "*channels = last % 60;", "stable", "contract", "other communicators", Grade.LUCK),
    "pointer-array": ("GET", "costs[0][0] = 0;", "answers", "died", "SIGSEGV", Grade.BREAKS),
    "too-many-channels": ("GET", "t[5] = 0; *channels = 99;", "answers", "clamped", "99 channels", Grade.LUCK),
    "channels-of-collnet": ("GET", "if (t[8] >= 0) { t[8] = 0; *channels = 99; }", "answers", "contract", "does not lower", Grade.BREAKS),
    "channels-in-a-byte": ("GET", "*channels = 128;", "answers", "contract", "NCCL keeps -128", Grade.BREAKS),
    "no-number": ("GET", "t[4] = __builtin_nanf(\"\");", "answers", "skipped", "nan", Grade.ADVICE),
    "all-forbidden": ("GET", "for (int i = 0; i < na * np; i++) t[i] = -1;", "answers", "contract", "no pair is left", Grade.BREAKS),
    "waits": ("GET", "pause();", "answers", "blocked", "did not end", Grade.BREAKS),
    "exits": ("GET", "exit(0);", "answers", "died", "as by exit(0)", Grade.BREAKS),
    "slow": ("GET", "for (volatile int i = 0; i < 20000; i++);", "latency", "late", "allowed", Grade.LUCK),
    "leaks-calls": ("GET", "*(void *volatile *)&(void *){0} = malloc(64);", "memory", "leak", "20000 calls", Grade.LUCK),
    "leaks-communicators": ("END", "(void)c", "memory", "leak", "200 communicators", Grade.LUCK),
    "end-fails": ("END", "free(c); return ncclSystemError", "init", "end", "finalize returned 2", Grade.LUCK),
    "tiny-chunks": ("CHUNK", "*size = 1024;", "chunk", "contract", "with ll128: NCCL rounds it to 0", Grade.BREAKS),
    "writes-behind": ("INIT", "((double *)k)[146] = 1;", "constants", "contract", "beyond the constants", Grade.BREAKS),
    "endless-constant": ("INIT", "k->baseLatencies[0][0] = 1.0 / 0;", "constants", "number", "is inf after init", Grade.LUCK),
    "init-fails": ("INIT", "if (ranks == 1) return ncclInternalError;", "init", "contract", "returned 3", Grade.BREAKS),
}  # fmt: skip


def build(folder: Path, place: str = "", code: str = "") -> Path:
    source = SOURCE
    for name in ("INIT", "GET", "CHUNK", "END"):
        source = source.replace(name, code if name == place else "free(c)" if name == "END" else "")
    path = folder / "tuner.c"
    path.write_text(source)
    library = folder / "libnccl-tuner-example.so"
    command = [
        compiled.compiler(),
        "-O1",
        "-w",
        "-shared",
        "-fPIC",
        f"-I{compiled.ROOT / 'psmkit' / 'psm' / 'include'}",
    ]
    subprocess.run([*command, path, "-o", library], check=True, timeout=60)
    return library


def failed(done: Drive) -> list[Result]:
    return [result for result in done.results if result.outcome == "failed"]


def test_a_tuner_that_does_nothing_is_right(tmp_path: Path) -> None:
    done = drive_tuner(build(tmp_path))
    assert not failed(done) and [r.check for r in done.results] == CHECKS
    assert done.clean and not any(r.outcome == "skipped" for r in done.results)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_tuner_is_found(tmp_path: Path, name: str) -> None:
    place, code, check, kind, words, grade = BROKEN[name]
    timeout = 5.0 if kind == "blocked" else 60.0
    begun: list[str] = []
    done = drive_tuner(
        build(tmp_path, place, code),
        ranks=2,
        timeout=timeout,
        limit_ns=1000.0 if kind == "late" else float("inf"),
        watch=lambda _, check: begun.append(check),
    )
    assert begun[0] == "load" and begun == [check for check in CHECKS if check in begun]
    # Checks that need no answers run after it in fresh processes. Whether these are seen to begin depends on the machine.
    assert kind != "blocked" or check in begun
    found = [r for r in failed(done) if r.check == check]
    assert found, done.results
    assert (found[0].kind, found[0].grade) == (kind, grade) and words in found[0].text
    codes = {"died": 42, "blocked": 43, "differ": 44, "leak": 45, "late": 46}
    told = [(finding.code, finding.title, finding.severity) for finding in done.findings]
    assert (f"PSM9{codes.get(kind, 41)}", f"{check} (v6): {found[0].text}", grade.severity) in told
    assert done.clean == (grade is Grade.ADVICE)


def test_chunks_that_their_protocol_can_hold_are_right(tmp_path: Path) -> None:
    done = drive_tuner(build(tmp_path, "CHUNK", "*size = p == 0 ? 16 : p == 1 ? 1920 : 512;"), only=("chunk",))
    assert not failed(done) and [r.check for r in done.results] == ["load", "slots", "init", "chunk"]


def test_what_nccl_tolerates_does_not_hide_what_it_does_not(tmp_path: Path) -> None:
    code = "for (int i = 0; i < na * np; i++) if (t[i] < 0) t[i] = 1e9; static int calls; if (++calls == 9000) *channels = 200;"
    (answers,) = failed(drive_tuner(build(tmp_path, "GET", code), ranks=2, only=("answers",)))
    assert (answers.kind, answers.grade) == ("contract", Grade.BREAKS) and "200 channels" in answers.text


def test_the_checks_after_a_death_run_in_fresh_processes(tmp_path: Path) -> None:
    done = drive_tuner(build(tmp_path, "CHUNK", "*(volatile int *)0 = 1;"), ranks=2)
    outcomes = {result.check: result.outcome for result in done.results}
    assert [(r.check, r.kind) for r in failed(done)] == [("chunk", "died")]
    assert outcomes["threads"] == outcomes["latency"] == "passed" and outcomes["ranks"] == "skipped"


def test_without_ordinary_answers_there_are_no_others_to_check(tmp_path: Path) -> None:
    done = drive_tuner(build(tmp_path, "GET", "costs[0][0] = 0;"), ranks=2)
    assert [r.check for r in done.results if r.follows] == [
        "stable",
        "strange",
        "unknown",
        "threads",
        "memory",
        "latency",
    ]
    (fault,) = done.faults
    assert fault.next_step.startswith("Take the cost table for one array of floats")


def test_ours_is_right_in_every_version(tmp_path: Path) -> None:
    rules = tmp_path / "rules.csv"
    rules.write_text(
        "op,bytes,ranks,algorithm,protocol,channels,chunk\n*,..64K,*,tree,ll,2,*\n*,*,16,ring,simple,8,64K\n"
    )
    assert tuner_versions(OURS) == TUNER_VERSIONS
    settings = {"PSM_TUNER_CONFIG": str(rules), "PSM_RECORD_DIR": str(tmp_path / "records")}
    done = drive_tuner(OURS, versions=TUNER_VERSIONS, ranks=2, environment=settings, limit_ns=float("inf"))
    assert not failed(done), failed(done)
    times = {result.version for result in done.results if result.check == "latency" and "ns a call" in result.text}
    assert times == set(TUNER_VERSIONS)


def test_a_drive_leaves_no_record_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = tmp_path / "records"
    records.mkdir(0o700)
    monkeypatch.setenv("PSM_RECORD_DIR", str(records))
    assert not failed(drive_tuner(OURS, ranks=2, limit_ns=float("inf")))
    assert list(records.iterdir()) == []
    monkeypatch.setenv("PSM_RECORD_KEEP", "1")
    assert not failed(drive_tuner(OURS, ranks=2, limit_ns=float("inf")))
    assert len(list(records.glob("*.rec"))) == 2


def test_what_is_no_tuner_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tuner table v2; it has v6"):
        drive_tuner(build(tmp_path), versions=[2])
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(InputError, match="not a shared library"):
        drive_tuner(tmp_path / "text.so")


def test_the_command_takes_tuners_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin", "drive", str(build(tmp_path))]) == 0
    out = capsys.readouterr().out
    assert out.startswith("green: libnccl-tuner-example.so\ntuner v6; 2 ranks; 13 passed")
    many = str(build(tmp_path, "GET", "t[5] = 0; *channels = 99;"))
    assert main(["plugin", "drive", "--format", "json", "--only", "answers", many]) == 1
    plain = json.loads(capsys.readouterr().out)
    assert (plain["schema"], plain["clean"]) == ("psmkit.plugin-drive/1", False)
    assert {(finding["code"], finding["severity"]) for finding in plain["findings"]} == {("PSM941", "warning")}
    assert [one["class"] for one in plain["results"] if one["check"] == "answers"] == ["NCCL works by luck"]
    assert main(["plugin", "drive", "--only", "answers", many]) == 1
    out = capsys.readouterr().out
    assert out.startswith("1 by luck: ") and "warning PSM941 answers (v6): 99 channels" in out
    assert "NCCL works by luck. Check answers with v6, 2 ranks." in out and "scheduleCollTasksToPlan" in out


def test_an_unknown_function_is_advice_and_fails_no_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = build(tmp_path, "GET", "if (op > 4) return ncclInvalidArgument;")
    assert main(["plugin", "drive", str(library), "--only", "unknown"]) == 0
    assert "note PSM941 unknown (v6): " in capsys.readouterr().out


def test_the_list_has_the_checks_of_a_tuner(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin", "drive", "--list", "--kind", "tuner", "--format", "json"]) == 0
    listed = {one["check"]: one["class"] for one in json.loads(capsys.readouterr().out)}
    assert list(listed) == CHECKS and listed["unknown"] == "advice" and listed["threads"] == "NCCL works by luck"


def test_the_log_of_a_tuner_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "tuner.log"
    assert main(["plugin", "drive", str(OURS), "--only", "init", "--log", str(log)]) == 0
    assert any(line.startswith("[v7 rank 1] NCCL INFO") for line in log.read_text().splitlines())
