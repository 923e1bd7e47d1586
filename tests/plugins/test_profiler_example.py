"""The profiler that docs/profiler_write.md shows is complete, and right, as it is printed there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.plugins.drive_profiler import drive_profiler, profiler_versions
from tests.plugins.build import ROOT


def block(name: str) -> str:
    page = (ROOT / "docs" / "profiler_write.md").read_text()
    found = re.search(rf"<!-- example: {re.escape(name)} -->\n```\w*\n(.*?)```", page, re.S)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    (folder / "profiler.c").write_text(block("profiler.c"))
    built = folder / "libnccl-profiler-mine.so"
    flags = [
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        f"-I{ROOT / 'psmkit' / 'psm' / 'include'}",
    ]
    done = subprocess.run(
        ["cc", "-shared", "-fPIC", *flags, str(folder / "profiler.c"), "-o", str(built)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return built


def test_no_check_of_the_drive_finds_anything_wrong_with_it(library: Path) -> None:
    assert profiler_versions(library) == (7,)
    done = drive_profiler(library, timeout=60.0)
    wrong = {(result.check, result.text) for result in done.results if result.outcome == "failed"}
    passed = {result.check for result in done.results if result.outcome == "passed"}
    assert not wrong and {"collective", "p2p", "group", "threads", "leaks", "open-end", "pool", "unload"} <= passed


def test_it_says_in_nccls_log_what_it_counted(library: Path, tmp_path: Path) -> None:
    program = tmp_path / "calls.c"
    program.write_text(
        """
        #include <dlfcn.h>
        #include <stdarg.h>
        #include <stdio.h>
        #include "psm_abi/profiler.h"
        static void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...)
        {
            va_list arguments;
            va_start(arguments, format);
            if (level == NCCL_LOG_INFO && flags == NCCL_PROFILE && file && line) vprintf(format, arguments);
            va_end(arguments);
        }
        int main(int argc, char **argv)
        {
            const ncclProfiler_v7_t *table = argc > 1 ? dlsym(dlopen(argv[1], RTLD_NOW), "ncclProfiler_v7") : 0;
            void *context, *handles[3] = {0};
            int mask = 0;
            if (!table || table->init(&context, 1, &mask, "world", 1, 2, 1, logger) != ncclSuccess) return 1;
            ncclProfilerEventDescr_v7_t coll = {.type = ncclProfileColl}, p2p = {.type = ncclProfileP2p};
            coll.coll.userTag = UINT64_C(1) << 63 | 42;
            table->startEvent(context, &handles[0], &coll);
            table->startEvent(context, &handles[1], &coll);
            table->startEvent(context, &handles[2], &p2p);
            for (int i = 0; i < 3; i++) table->stopEvent(handles[i]);
            return handles[0] == handles[1] || !handles[2] || table->finalize(context) != ncclSuccess;
        }
        """
    )
    made = tmp_path / "calls"
    include = f"-I{ROOT / 'psmkit' / 'psm' / 'include'}"
    subprocess.run(["cc", include, str(program), "-o", str(made), "-ldl"], check=True, timeout=120)
    done = subprocess.run([made, library], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert re.fullmatch(
        r"PROFILER/Mine : rank 1: 2 collectives, the last with tag 42, 1 sends and receives; 0\.\d{3} ms to enqueue those of this process",
        done.stdout,
    ), done.stdout


def test_the_page_shows_what_the_drive_prints(
    library: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, _, shown = block("profiler.out").partition("\n")
    monkeypatch.setenv("COLUMNS", "100")
    assert main(command.removeprefix("$ psmkit ").replace("libnccl-profiler-mine.so", str(library)).split()) == 0
    assert capsys.readouterr().out == shown, "put this into docs/profiler_write.md"
