"""The edits of a plain tree, over a tree of our own that has only the places."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.nccl import edits, prepare
from psmkit.nccl.edits import TreeError
from psmkit.nvcc import home

GLUE = Path(__file__).parents[2] / "csrc" / "nccl"
# What is around the places, in the style of older releases; newer ones have other blanks and names.
FILES = {
    "makefiles/version.mk": "NCCL_MAJOR   := 2\nNCCL_MINOR   := 26\nNCCL_PATCH   := 6\n",
    "src/include/transport.h": "#define TRANSPORT_PROFILER 4\n",
    "src/transport.cc": """#include "comm.h"
#include "transport.h"
struct ncclTransport* ncclTransports[NTRANSPORTS+1] = {
  &p2pTransport,
  &profilerTransport // { the last }
};
template <int type>
static ncclResult_t selectTransport(struct ncclComm* comm, int* transportType) {
  for (int t=0; t<NTRANSPORTS; t++) {
  }
}
""",
    "src/enqueue.cc": """#include "transport.h"
static ncclResult_t addP2pToPlan(struct ncclComm* comm, int a[2]);
static ncclResult_t addP2pToPlan(struct ncclComm* comm, int a[2]) {
  for (int part=0; part < nChannelsMax; part++) {
    plan->channelMask |= uint64_t(1)<<channelId;
    NCCLCHECK(addProxyOpIfNeeded(comm, plan, &proxyOps[dir]));
  }
}
static ncclResult_t other() { plan->channelMask |= 1; }
ncclResult_t ncclLaunchKernel(struct ncclComm* comm, struct ncclKernelPlan* plan) {
  cudaStream_t launchStream = planner->streams->stream;
}
""",
    "src/register/sendrecv_reg.cc": """#include "transport.h"
ncclResult_t ncclRegisterP2pIpcBuffer(struct ncclComm* comm,
    void* userbuff) {
  return ncclSuccess;
}
""",
    "src/register/register.cc": """#include "transport.h"
static ncclResult_t regCleanup(struct ncclComm* comm, struct ncclReg* reg) {
}
int use() { return regCleanup(comm, reg); }
""",
}
NEWER = {
    "src/transport.cc": (
        ("NTRANSPORTS+1", "NTRANSPORTS + 1"),
        ("int t=0; t<NTRANSPORTS;", "int t = 0; t < NTRANSPORTS;"),
        ("&profilerTransport //", "&profilerTransport, //"),
    ),
    "src/enqueue.cc": (
        (
            "NCCLCHECK(addProxyOpIfNeeded(comm, plan, &proxyOps[dir]))",
            "NCCLCHECKGOTO(ncclAddProxyOpIfNeeded(comm, plan,\n &proxyOps[dir]), ret, cleanup)",
        ),
    ),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "nccl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nccl" / name).write_text(text)
    return tmp_path / "nccl"


def edited(tree: Path) -> dict[str, str]:
    edits.apply(tree, edits.changes(tree))
    return {name: (tree / name).read_text() for name in FILES}


def test_each_edit_comes_to_its_place(tree: Path) -> None:
    text = edited(tree)
    assert "ncclTransports[NTRANSPORTS + 2] = {" in text["src/transport.cc"]
    assert "&profilerTransport, &psmP2pTransport // { the last }" in text["src/transport.cc"]
    assert re.search(r"psmSelect\(.*?return ncclSuccess;\n  }\n  for \(int t=0", text["src/transport.cc"], re.DOTALL)
    plan = text["src/enqueue.cc"]
    assert re.search(
        r"NCCLCHECK\(psmTakePart\(.*?continue;\n    }\n    plan->channelMask \|= uint64_t", plan, re.DOTALL
    )
    assert "if (proxyOps[dir].nsteps) NCCLCHECK(addProxyOpIfNeeded(comm, plan, &proxyOps[dir]));" in plan
    assert "static ncclResult_t other() { plan->channelMask |= 1; }" in plan
    assert "streams->stream;\n  bool done;\n  NCCLCHECK(psmLaunch(" in plan
    assert "{\n  if (psmOn()) return psmRegister(" in text["src/register/sendrecv_reg.cc"]
    assert "{\n  psmDeregister(comm, reg);\n" in text["src/register/register.cc"]
    assert all(text[f"src/{n}"].count('"psm_hooks.h"') == 1 for n in ("transport.cc", "enqueue.cc"))


def test_names_that_differ_by_release_are_taken_from_the_tree(tree: Path) -> None:
    for name, pairs in NEWER.items():
        text = (tree / name).read_text()
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        (tree / name).write_text(text)
    text = edited(tree)
    assert "&profilerTransport, &psmP2pTransport, //" in text["src/transport.cc"]
    assert (
        "NCCLCHECKGOTO(psmTakePart(comm, plan, channelId, part, work, proxyOps, &taken), ret, cleanup);"
        in text["src/enqueue.cc"]
    )
    assert "NCCLCHECKGOTO(ncclAddProxyOpIfNeeded(comm, plan, &proxyOps[dir]), ret, cleanup);" in text["src/enqueue.cc"]


@pytest.mark.parametrize("times", [0, 2])
def test_a_place_that_is_not_there_once_is_refused_with_what_was_looked_for(tree: Path, times: int) -> None:
    path = tree / "src" / "enqueue.cc"
    line = "    plan->channelMask |= uint64_t(1)<<channelId;\n"
    path.write_text(path.read_text().replace(line, line * times))
    with pytest.raises(TreeError) as caught:
        edits.changes(tree)
    assert "src/enqueue.cc: looked for `plan->channelMask" in str(caught.value)
    assert f"found it {times} times instead of once" in str(caught.value)


def test_a_tree_that_was_edited_is_not_edited_again(tree: Path) -> None:
    edited(tree)
    with pytest.raises(TreeError, match=r"transport\.cc includes psm_hooks\.h: this tree has the edits already"):
        edits.changes(tree)


def test_without_out_it_only_says_what_it_would_change(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    assert main(["nccl", "prepare", str(tree)]) == 0
    said = capsys.readouterr().out
    assert f"{tree}: NCCL 2.26.6, a plain tree\n" in said
    assert "  src/transport.cc:3: make the table of transports longer by one entry\n" in said
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


def test_a_fork_with_hooks_loses_its_own_transport_only(tree: Path) -> None:
    (tree / "src/include/transport.h").write_text("#define TRANSPORT_PSM_P2P 5\n")
    with pytest.raises(TreeError, match=r"has PassSM hooks, but not src/transport/psm_p2p\.cc"):
        prepare.look(tree)
    (tree / "src/transport").mkdir()
    (tree / "src/transport/psm_p2p.cc").write_text("")
    plan = prepare.look(tree)
    assert (plan.hooked, plan.changes) == (True, ())


def test_a_folder_that_is_no_tree_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nccl", "prepare", str(tmp_path)]) == 2
    assert "is no NCCL tree: makefiles/version.mk is not there" in capsys.readouterr().err


def test_headers_without_cccl_are_refused_before_anything_is_copied(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "headers", lambda: home.Headers((tmp_path / "include",), (13, 0)))
    with pytest.raises(TreeError, match=r"lack nv/target.*pip install nvidia-cuda-cccl"):
        prepare.prepare(prepare.look(tree), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("nccl", "cuda", "fits"), [(22606, 13000, False), (22606, 12090, True), (22707, 13000, True)])
def test_cmake_refuses_headers_of_cuda_13_for_a_tree_before_2_27(
    tmp_path: Path, nccl: int, cuda: int, fits: bool
) -> None:
    (tmp_path / "build/include").mkdir(parents=True)
    (tmp_path / "cuda/cccl/cuda").mkdir(parents=True)
    (tmp_path / "cuda/cccl/cuda/atomic").write_text("")
    (tmp_path / "build/include/nccl.h").write_text(f"#define NCCL_VERSION_CODE {nccl}\n")
    (tmp_path / "cuda/cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {cuda}\n")
    (tmp_path / "try.cmake").write_text(
        f"cmake_minimum_required(VERSION 3.18)\ninclude({GLUE}/cuda.cmake)\nfind_cuda_headers()\nmessage(STATUS ${{CUDA_INCLUDE}})\n"
    )
    command = [
        "cmake",
        f"-DNCCL_BUILD={tmp_path}/build",
        f"-DCUDA_INCLUDE={tmp_path}/cuda",
        "-P",
        tmp_path / "try.cmake",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if fits:
        assert f"{tmp_path}/cuda/cccl" in done.stdout  # CMake joins the words of a list
    else:
        assert "NCCL takes CUDA 13 from 2.27 on. Give the headers of CUDA 12" in " ".join(done.stderr.split())
