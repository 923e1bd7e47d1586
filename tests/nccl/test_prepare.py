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
    "src/include/transport.h": "#define NTRANSPORTS 4\n",
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


TRACED = {
    "src/enqueue.cc": """
static ncclResult_t uploadProxyOps(struct ncclComm* comm, struct ncclKernelPlan* plan) {
    NCCLCHECK(ncclProxySaveOp(comm, op, nullptr));
}
static ncclResult_t hostStreamPlanTask(struct ncclComm* comm, struct ncclKernelPlan* plan) {
  if (!plan->persistent) {
    ncclIntruQueueMpscEnqueue(&comm->callbackQueue, &plan->reclaimer);
  }
}
static ncclResult_t reclaimPlan(struct ncclComm* comm, struct ncclCommCallback* me) {
    comm->localPersistentRefs -= 1;
    ncclResult_t res1 = cb->fn(comm, cb);
  ncclMemoryPoolFree(&comm->memPool_ncclKernelPlan, plan);
}
static void persistentDestructor(void* plans_) {
  struct ncclComm* comm = plan->comm;
    ncclIntruQueueMpscEnqueue(&comm->callbackQueue, &plan->reclaimer);
}
ncclResult_t ncclLaunchPrepare(struct ncclComm* comm) {
      plan->comm = comm;
    planner->unlaunchedPlansHead = planHead;
      CUDACHECKGOTO(cudaStreamWaitEvent(launchStream, comm->sharedRes->scratchEvent, 0), result, failure);
    NCCLCHECKGOTO(ncclStreamWaitStream(launchStream, deviceStream, comm->sharedRes->scratchEvent), result, failure);
        NCCLCHECKGOTO(ncclStreamWaitStream(launchStream, hostStream, comm->sharedRes->scratchEvent), result, failure);
      comm->localPersistentRefs += nPlans;
failure:
  return result;
}
ncclResult_t ncclLaunchKernelAfter_NoCuda(struct ncclComm* comm, struct ncclKernelPlan* plan) {
  return ncclSuccess;
}
ncclResult_t ncclLaunchFinish(struct ncclComm* comm) {
    NCCLCHECK(ncclStreamAdvanceToEvent(planner->capturingGraph, deviceStream, comm->sharedRes->scratchEvent));
      CUDACHECK(cudaStreamWaitEvent(l->stream, comm->sharedRes->scratchEvent, 0));
  return ncclSuccess;
}
""",
    "src/group.cc": """#include "transport.h"
static ncclResult_t doLaunches(struct ncclComm* head) {
            NCCLCHECKGOTO(ncclLaunchKernelBefore_NoUncapturedCuda(comm, plan), result, failure);
}
static void groupCleanup(struct ncclComm** head) {
            ncclMemoryPoolFree(&comm->memPool_ncclKernelPlan, plan);
}
""",
    "src/init.cc": """#include "transport.h"
static ncclResult_t commFree(ncclComm_t comm) {
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
}
""",
}
LAUNCHES = """  cudaStream_t launchStream = planner->streams->stream;
    CUCHECKGOTO(cuLaunchKernelEx(&launchConfig, fn, nullptr, extra), ret, do_return);
    CUCHECKGOTO(cuLaunchKernel(fn, grid.x, nullptr), ret, do_return);
"""


def with_plans(tree: Path) -> Path:
    """The tree with the places where plans are made, launched and freed, in the style of 2.27."""
    for name, text in TRACED.items():
        before = (tree / name).read_text() if (tree / name).exists() else ""
        before = before.replace("  cudaStream_t launchStream = planner->streams->stream;\n", LAUNCHES)
        (tree / name).write_text(before + text)
    return tree


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


def test_a_table_without_the_profiler_and_a_file_that_moved_are_found_too(tree: Path) -> None:
    """As 2.31.2 has them."""
    (tree / "src/enqueue").mkdir()
    (tree / "src/enqueue.cc").rename(tree / "src/enqueue/enqueue.cc")
    text = FILES["src/transport.cc"].replace("NTRANSPORTS+1", "NTRANSPORTS")
    text = text.replace("&profilerTransport // { the last }", "&collNetTransport,")
    (tree / "src/transport.cc").write_text(text)
    made = edits.changes(tree)
    assert {change.file for change in made if "enqueue" in change.file} == {"src/enqueue/enqueue.cc"}
    edits.apply(tree, made)
    table = (tree / "src/transport.cc").read_text()
    assert (
        "ncclTransports[NTRANSPORTS + 2] = {\n  &p2pTransport,\n  &collNetTransport, nullptr, &psmP2pTransport,\n"
        in table
    )
    assert "psmTakePart(" in (tree / "src/enqueue/enqueue.cc").read_text()


def test_a_file_that_is_nowhere_is_refused_with_both_names(tree: Path) -> None:
    (tree / "src/enqueue.cc").unlink()
    with pytest.raises(TreeError, match=r"has no src/enqueue\.cc or src/enqueue/enqueue\.cc that can be read"):
        edits.changes(tree)


def test_a_release_that_is_too_old_is_refused_by_its_number(tree: Path) -> None:
    (tree / "makefiles/version.mk").write_text("NCCL_MAJOR := 2\nNCCL_MINOR := 25\nNCCL_PATCH := 1\n")
    with pytest.raises(TreeError, match=r"is NCCL 2\.25\.1: psmkit's transport needs 2\.26 or newer"):
        prepare.look(tree)


def test_rccl_is_refused_by_its_name(tree: Path) -> None:
    (tree / "src/include/rccl_vars.h").write_text("")
    with pytest.raises(
        TreeError, match=r"is RCCL \(of NCCL 2\.26\.6\): psmkit's transport is compiled with CUDA's headers"
    ):
        prepare.look(tree)


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
    assert f"{tree}: NCCL 2.26.6, a plain tree, without PassSM hooks\n" in said
    assert "  src/transport.cc:3: make the table of transports longer\n" in said
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


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            "In file included from x.h:3:\nnccl/src/include/alloc.h:31:10: fatal error: other/specs.h: No such file or directory\n",
            "nccl/src/include/alloc.h includes other/specs.h, which is neither in this tree nor among CUDA's headers",
        ),
        (
            "CMake Error at x.cmake:3 (message):\n  NCCL takes CUDA 13\n  from 2.27 on\n\n",
            "NCCL takes CUDA 13 from 2.27 on",
        ),
        ("x.cc:3:1: error: no matching function\nx.cc:9:1: error: another\n", "x.cc:3:1: error: no matching function"),
        ("killed\n", ""),
    ],
)
def test_a_build_that_fails_is_told_by_its_first_cause(output: str, said: str) -> None:
    assert prepare._why(output).startswith(said) and bool(prepare._why(output)) == bool(said)


def test_headers_without_cccl_are_refused_before_anything_is_copied(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "headers", lambda **_: home.Headers((tmp_path / "include",), (13, 0)))
    with pytest.raises(TreeError, match=r"lack nv/target.*pip install nvidia-cuda-cccl"):
        prepare.prepare(prepare.look(tree), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("minor", "newest"), [(26, 12), (27, None)])
def test_a_tree_before_2_27_gets_the_headers_of_cuda_12_where_both_are_installed(
    minor: int, newest: int | None, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "makefiles/version.mk").write_text(f"NCCL_MAJOR := 2\nNCCL_MINOR := {minor}\nNCCL_PATCH := 1\n")
    asked: list[int | None] = []

    def headers(newest: int | None = None) -> home.Headers:
        asked.append(newest)
        return home.Headers((tmp_path / "include",), (newest or 13, 0))

    monkeypatch.setattr(home, "headers", headers)
    with pytest.raises(TreeError, match="lack nv/target"):
        prepare.prepare(prepare.look(tree), tmp_path / "out")
    assert asked == [newest]


def test_headers_are_the_newest_installed_up_to_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, number in (("cu13", 13050), ("cuda_runtime", 12090)):
        include = tmp_path / "nvidia" / folder / "include"
        (include / "crt").mkdir(parents=True)
        (include / "crt" / "host_defines.h").write_text("")
        (include / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {number}\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    for name in ("PSM_NVCC_HOME", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    home.headers.cache_clear()
    try:
        assert (home.headers().release, home.headers(newest=12).release) == ((13, 5), (12, 9))
    finally:
        home.headers.cache_clear()


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


def test_plans_are_recorded_where_they_are_made_launched_and_freed(tree: Path) -> None:
    plan = prepare.look(with_plans(tree), plan_trace=True)
    assert plan.traced and len(plan.changes) > len(prepare.look(tree).changes) + 20
    edits.apply(tree, list(plan.changes))
    enqueue, group, init = ((tree / "src" / f"{name}.cc").read_text() for name in ("enqueue", "group", "init"))
    assert all(text.count('#include "psm/plan_trace.h"\n') == 1 for text in (enqueue, group, init))
    # The reclaimer is recorded before the plan may be gone, and the failed group's plan before it is freed.
    assert re.search(r"PSM_TRACE_RECLAIMER\(comm, plan, PSM_TRACE_BY_HOST_TASK\);\s+ncclIntruQueueMpscEnqueue", enqueue)
    assert re.search(r"PSM_TRACE_RECLAIM\(comm, plan\);\s+ncclMemoryPoolFree", enqueue)
    assert re.search(r"PSM_TRACE_CANCELLED\(.*\s+PSM_TRACE_RECLAIMER\(.*\s+PSM_TRACE_RECLAIM\(.*\s+ncclMemory", group)
    assert re.search(
        r"PSM_TRACE_PREPARED\(.*\nfailure:\n  if \(result != ncclSuccess\) PSM_TRACE_PREPARE_FAILED", enqueue
    )
    assert "PSM_TRACE_BARRIER(comm);" in group and "{\n  PSM_TRACE_DESTROY(comm, 0, 0, 0);" in init


def test_the_macros_of_every_edit_exist() -> None:
    data = (Path(edits.__file__).parent / edits.PLAN_TRACE).read_text()
    header = (GLUE.parent / "psm/include/psm/plan_trace.h").read_text()
    used = set(re.findall(r"PSM_TRACE_\w+|psm_trace_\w+", data))
    assert used and [name for name in sorted(used) if not re.search(rf"\b{name}\b", header)] == []


def test_a_tree_that_records_plans_is_not_edited_again(tree: Path) -> None:
    edits.apply(tree, edits.changes(with_plans(tree), edits.PLAN_TRACE))
    with pytest.raises(TreeError, match=r"enqueue\.cc includes psm/plan_trace\.h: this tree has the edits already"):
        edits.changes(tree, edits.PLAN_TRACE)


def test_a_place_that_only_some_releases_have_is_found_there(tree: Path) -> None:
    before = len(edits.changes(with_plans(tree), edits.PLAN_TRACE))
    path = tree / "src/enqueue.cc"
    after = "ncclLaunchKernelAfter_NoCuda(struct ncclComm* comm, struct ncclKernelPlan* plan) {\n"
    path.write_text(path.read_text().replace(after, after + "      ncclIntruQueueMpscEnqueue(&q, &plan->reclaimer);\n"))
    assert len(edits.changes(tree, edits.PLAN_TRACE)) == before + 1
