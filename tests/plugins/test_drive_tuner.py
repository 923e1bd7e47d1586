"""The drive for tuners: green on a right one, and what it finds in broken ones."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.model.errors import InputError
from psmkit.plugins.drive_tuner import CHECKS, VERSIONS, TunerDrive, drive_tuner, tuner_versions
from tests.csrc.base import compiled

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
# What is wrong -> (where, the code, the check that has to find it, of what kind, words of its text).
BROKEN = {
    "error-for-unknown": ("GET", "if (op > 4) return ncclInvalidArgument;", "strange", "contract", "NCCL fails the coll"),
    "offers-what-is-not": ("GET", "for (int i = 0; i < na * np; i++) t[i] = 1;", "answers", "contract", "not available"),
    "seven-by-four": ("GET", "t[na * 4 - 1] = 0;", "answers", "contract", "outside its outputs"),
    "own-rank": ("GET", 'if (atoi(getenv("RANK"))) *channels = 2;', "ranks", "differ", "different answers"),
    "last-communicator": ("GET", "*channels = last % 60;", "stable", "contract", "other communicators"),
    "pointer-array": ("GET", "costs[0][0] = 0;", "answers", "died", "SIGSEGV"),
    "too-many-channels": ("GET", "*channels = 128;", "answers", "contract", "128 channels"),
    "no-number": ("GET", "t[4] = __builtin_nanf(\"\");", "answers", "contract", "nan"),
    "all-forbidden": ("GET", "for (int i = 0; i < na * np; i++) t[i] = -1;", "answers", "contract", "no pair is left"),
    "waits": ("GET", "pause();", "answers", "blocked", "did not end"),
    "slow": ("GET", "for (volatile int i = 0; i < 20000; i++);", "latency", "late", "allowed"),
    "leaks-calls": ("GET", "*(void *volatile *)&(void *){0} = malloc(64);", "memory", "leak", "20000 calls"),
    "leaks-communicators": ("END", "(void)c", "memory", "leak", "200 communicators"),
    "tiny-chunks": ("CHUNK", "*size = 512;", "chunk", "contract", "divides by that"),
    "writes-behind": ("INIT", "((double *)k)[146] = 1;", "constants", "contract", "beyond the constants"),
    "init-fails": ("INIT", "if (ranks == 1) return ncclInternalError;", "init", "contract", "returned 3"),
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


def failures(done: TunerDrive) -> list[tuple[str, str]]:
    return [(result.check, result.kind) for result in done.failed]


def test_a_tuner_that_does_nothing_is_right(tmp_path: Path) -> None:
    done = drive_tuner(build(tmp_path))
    assert not done.failed and [r.check for r in done.results] == list(CHECKS)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_tuner_is_found(tmp_path: Path, name: str) -> None:
    place, code, check, kind, words = BROKEN[name]
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
    if kind == "blocked":
        assert begun[-1] == check
    found = [r for r in done.failed if r.check == check]
    assert found, done.results
    assert found[0].kind == kind and words in found[0].text
    codes = {"contract": 41, "died": 42, "blocked": 43, "differ": 44, "leak": 45, "late": 46}
    told = [(finding.code, finding.title) for finding in done.findings]
    assert (f"PSM9{codes[kind]}", f"{check} (v6): {found[0].text}") in told


def test_ours_is_right_in_every_version(tmp_path: Path) -> None:
    rules = tmp_path / "rules.csv"
    rules.write_text(
        "op,bytes,ranks,algorithm,protocol,channels,chunk\n*,..64K,*,tree,ll,2,*\n*,*,16,ring,simple,8,64K\n"
    )
    assert tuner_versions(OURS) == VERSIONS
    settings = {"PSM_TUNER_CONFIG": str(rules), "PSM_RECORD_DIR": str(tmp_path / "records")}
    done = drive_tuner(OURS, versions=VERSIONS, ranks=2, environment=settings, limit_ns=float("inf"))
    assert not done.failed, done.failed
    assert set(done.nanoseconds) == set(VERSIONS)


def test_a_drive_leaves_no_record_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = tmp_path / "records"
    records.mkdir(0o700)
    monkeypatch.setenv("PSM_RECORD_DIR", str(records))
    assert not drive_tuner(OURS, ranks=2, limit_ns=float("inf")).failed
    assert list(records.iterdir()) == []
    monkeypatch.setenv("PSM_RECORD_KEEP", "1")
    assert not drive_tuner(OURS, ranks=2, limit_ns=float("inf")).failed
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
    assert out.startswith("green: libnccl-tuner-example.so\ntuner v6; 2 ranks\n")
    assert main(["plugin", "drive", "--format", "json", str(build(tmp_path, "GET", "*channels = 99;"))]) == 1
    plain = json.loads(capsys.readouterr().out)
    assert (plain["clean"], {finding["code"] for finding in plain["findings"]}) == (False, {"PSM941"})
    assert main(["plugin", "drive", str(build(tmp_path, "GET", "*channels = 99;"))]) == 1
    assert "error PSM941 answers (v6): " in capsys.readouterr().out
