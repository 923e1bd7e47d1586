"""psmkit lab cuda-coverage and faults: what a library needs of CUDA, what is there, what can be made to fail."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from psmkit.cli.app import main
from psmkit.lab import coverage, elf
from psmkit.lab.cuda import LabError, folder, functions

from . import headers

pytestmark = pytest.mark.skipif(headers.GCC is None, reason="needs a C compiler")

# cudaMalloc is linked, cuMemCreate and nvmlInit_v2 are asked for by name; the last two are no names of functions.
SOURCE = r"""
int cudaMalloc(void **, unsigned long);
const char *const names[] = {"cuMemCreate", "nvmlInit_v2", "cudaFree", "cuNonsense", "see cuMemMap"};
int work(void **p) { return cudaMalloc(p, 8) + names[0][0]; }
"""


def build(folder: Path, source: str, *arguments: str) -> Path:
    assert headers.GCC
    library = folder / "libneeds.so"
    command = [headers.GCC, "-shared", "-fPIC", "-O0", "-w", "-x", "c", "-", "-o", str(library), *arguments]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)
    return library


def test_needs_are_linked_symbols_and_names_for_run_time(tmp_path: Path) -> None:
    found = {(n.name, n.how, n.library) for n in coverage.needs(build(tmp_path, SOURCE))}
    assert found == {
        ("cudaMalloc", "linked", "libcudart"),
        ("cuMemCreate", "named", "libcuda"),
        ("nvmlInit_v2", "named", "libnvidia-ml"),
    }


def test_variants_for_the_per_thread_stream_are_known(tmp_path: Path) -> None:
    library = build(tmp_path, "int cudaMemcpyAsync_ptsz(void); int work(void) { return cudaMemcpyAsync_ptsz(); }")
    assert [n.name for n in coverage.needs(library)] == ["cudaMemcpyAsync_ptsz"]


def test_areas_count_every_function_once() -> None:
    assert sum(a.known for a in coverage.areas()) == len(functions())
    assert sum(a.provided for a in coverage.areas()) == sum(f.provider is not None for f in functions())


@pytest.mark.parametrize(("form", "status"), [("text", 1), ("json", 1)])
def test_command_fails_and_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = coverage.Need("cuMemCreate", "libcuda", "named", True)
    missing = coverage.Need("cuMulticastCreate", "libcuda", "named", False)
    monkeypatch.setattr(coverage, "needs", lambda path: [need, missing])
    library = build(tmp_path, SOURCE)
    assert main(["lab", "cuda-coverage", str(library), "--format", form]) == status
    out = capsys.readouterr().out
    if form == "json":
        rows = json.loads(out)["needs"]
        assert [(r["name"], r["provided"]) for r in rows] == [("cuMemCreate", True), ("cuMulticastCreate", False)]
    else:
        assert "0 CUDA functions linked, 2 looked up by name at run time; 1 missing" in out
        lines = [line.split() for line in out.splitlines()[3:]]
        assert lines == [["no", "named", "libcuda", "cuMulticastCreate"], ["yes", "named", "libcuda", "cuMemCreate"]]
    monkeypatch.setattr(coverage, "needs", lambda path: [need])
    assert main(["lab", "cuda-coverage", str(library), "--format", form]) == 0


def test_command_without_a_library_shows_the_areas(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "cuda-coverage", "--format", "json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert {r["library"] for r in rows} == {"libcudart", "libcuda", "libnvidia-ml"}
    assert main(["lab", "cuda-coverage"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1


def test_file_that_is_no_elf_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("cudaMalloc\n" * 50)
    with pytest.raises(LabError, match="not an ELF file"):
        elf.read(file)
    assert main(["lab", "cuda-coverage", str(file)]) == 2
    assert "not an ELF file" in capsys.readouterr().err


SITES = r"""
#include "fault.h"
PSM_FAULT_SITE(one, "demo.send", "before a message is sent");
PSM_FAULT_SITE_OF(two, "demo.write", "a write", PSM_FAULT_CAN(PSM_FAULT_SHORT) | PSM_FAULT_CAN(PSM_FAULT_DROP));
void *work(int n) { return n ? (void *)&one : (void *)&two; }
"""


def test_sites_are_read_from_the_binary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = Path(__file__).parents[2] / "csrc" / "base"
    library = build(tmp_path, SITES, f"-I{base}")
    assert set(elf.sites(library)) == {
        elf.Site("demo.send", ("error", "hang", "slow", "late", "kill"), "before a message is sent"),
        elf.Site("demo.write", ("drop", "short"), "a write"),
    }
    assert main(["lab", "faults", str(library)]) == 0
    out = capsys.readouterr().out
    assert "demo.write" in out
    assert "drop short" in out
    assert main(["lab", "faults", str(library), "--format", "json"]) == 0
    assert {r["site"] for r in json.loads(capsys.readouterr().out)} == {"demo.send", "demo.write"}


def test_every_cuda_function_is_a_site(capsys: pytest.CaptureFixture[str]) -> None:
    assert folder().exists()
    assert main(["lab", "faults", "--format", "json"]) == 0
    sites = {r["site"]: r["actions"] for r in json.loads(capsys.readouterr().out)}
    assert {f.name for f in functions()} <= set(sites)
    assert "error" in sites["cudaMemcpyAsync"]
