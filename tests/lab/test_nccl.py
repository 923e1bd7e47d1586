"""``psmkit lab nccl`` from end to end, over a library of ours with NCCL's public API."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psmkit.cli.app import main
from psmkit.lab import nccl, nccl_library, nccl_tasks
from psmkit.lab.cuda import LIBRARIES, LabError, folder

SOURCE = Path(__file__).parent / "standin_nccl.c"
COMPILER = os.environ.get("CC", "cc")
#: The patterns that each release has; test_nccl_engine.py has the others.
OLD = [name for name in nccl.PATTERNS if name not in ("put-signal", "alltoall-coll", "gather", "scatter")]
DEADLINE = ("--deadline", "90")  # of runs that end by themselves
SHORT = ("--deadline", "6")  # of runs that hang: enough for a busy machine to come to where they do


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a libnccl.so.2 that is linked to the shared CUDA runtime."""
    place = tmp_path_factory.mktemp("nccl")
    compile_library(place / "libnccl.so.2", "12.8", str(folder() / LIBRARIES["cudart12"]))
    return place


def compile_library(path: Path, cuda: str, *more: str) -> None:
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f'-DSTANDIN_CUDA="{cuda}"']
    subprocess.run([COMPILER, *flags, str(SOURCE), "-o", str(path), *more], check=True)


class Lab:
    """Runs the command and reads what it says and leaves."""

    def __init__(self, library: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.library, self.folder, self.capsys = library, out, capsys

    def __call__(self, *arguments: str, deadline: tuple[str, str] = DEADLINE) -> tuple[int, dict[str, Any]]:
        command = ["lab", "nccl", "--lib", str(self.library), *arguments, *deadline, "--out", str(self.folder)]
        status = main([*command, "--format", "json"])
        out, err = self.capsys.readouterr()
        assert status != 2, err
        return status, json.loads(out)


@pytest.fixture
def lab(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Lab:
    return Lab(library, tmp_path / "out", capsys)


def shared_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("nccl-")}


def states(result: dict[str, Any]) -> list[str]:
    return [rank["state"] for rank in result["ranks"]]


def report(result: dict[str, Any], rank: int) -> dict[str, Any]:
    (found,) = result["ranks"][rank]["reports"]
    assert isinstance(found, dict)
    return found


def test_bytes_arrive_and_evidence_is_kept(lab: Lab) -> None:
    status, result = lab("--ranks", "2", "--size", "16K", "--iters", "3")
    assert (status, states(result)) == (0, ["good", "good"]), result
    assert [report(result, rank)["bytes"] for rank in (0, 1)] == [2 * 3 * 16384] * 2
    assert result["analysis"]["verdict"] == "healthy"
    assert (result["settings"]["version"], result["settings"]["cudart"]) == ("2.26.6", "shared 12")
    for name in ("logs/rank-0.log", "logs/rank-1.log", "cases/rank-1.txt", "topology.xml", "result.json"):
        assert (lab.folder / name).stat().st_size > 0
    assert "Send: opCount" in (lab.folder / "logs" / "rank-1.log").read_text()


def test_every_pattern_and_operation(lab: Lab) -> None:
    patterns = ",".join(OLD)
    status, result = lab(
        "--ranks", "3", "--pattern", patterns, "--type", "uint32", "--op", ",".join(nccl.OPS), "--size", "0,4,4096"
    )
    assert (status, states(result)) == (0, ["good"] * 3), [r["text"] for r in result["ranks"]]
    assert len(result["ranks"][2]["reports"]) == len(OLD) * len(nccl.OPS) * 3


def test_sums_of_floats_and_means_are_exact(lab: Lab) -> None:
    arguments = ("--pattern", "allreduce,reducescatter", "--type", "float32", "--op", "sum,prod,max,min,avg")
    status, result = lab("--ranks", "4", *arguments, "--size", "8K", "--root", "3")
    assert (status, states(result)) == (0, ["good"] * 4), [r["text"] for r in result["ranks"]]


def test_a_communicator_is_kept_and_means_are_rounded(library: Path, tmp_path: Path) -> None:
    cases = [
        nccl.NcclCase(str(i), "allreduce", 4096, type="float32", op="avg", seed=i, keep=int(i < 2)) for i in range(3)
    ]
    run = nccl.start(nccl_library.find(library), cases, 3, tmp_path / "out", deadline=60.0)
    assert [rank.state for rank in run.outcome.ranks] == ["good"] * 3, [rank.text for rank in run.outcome.ranks]
    log = (tmp_path / "out" / "logs" / "rank-0.log").read_text()
    assert log.count("Init COMPLETE") == 1


def test_a_wrong_byte_is_found(lab: Lab) -> None:
    arguments = ("--pattern", "allreduce", "--type", "uint32", "--size", "4K", "--iters", "1")
    status, result = lab("--ranks", "2", *arguments, "--env", "STANDIN_WRONG=1")
    assert (status, states(result)) == (1, ["failed", "failed"])
    # The second may see the first one's end before its own data.
    found = next(r for rank in (0, 1) if (r := report(result, rank))["by"] == "data")
    assert (found["wrong"], found["wrong_offset"]) == (1, 512)
    assert "byte 512 of iteration 0" in found["text"]


def test_data_that_is_damaged_on_the_way_is_found_where_it_arrives(lab: Lab) -> None:
    status, result = lab(
        "--ranks", "2", "--pattern", "pair", "--fault", "lab.data:corrupt,rank=1,nth=2", "--size", "4K"
    )
    assert status == 1
    assert (report(result, 0)["by"], report(result, 0)["wrong_from"], report(result, 0)["wrong_iter"]) == ("data", 1, 1)
    assert report(result, 1)["by"] in ("lab", "nccl")


def test_a_shorter_send_is_told_with_its_ranks(lab: Lab) -> None:
    status, result = lab("--ranks", "2", "--pattern", "ring", "--differ", "rank=1,shorter=1K", "--size", "4K")
    assert status == 1
    assert (report(result, 0)["wrong_from"], report(result, 0)["wrong_offset"]) == (1, 3072)
    assert "PSM303" in result["analysis"]["codes"]


def test_sends_that_are_left_out_hang_the_others(lab: Lab) -> None:
    status, result = lab("--ranks", "3", "--differ", "rank=1,skip=send", "--size", "4K", deadline=SHORT)
    assert (status, states(result)) == (1, ["hung", "waiting", "hung"])
    assert {result["ranks"][rank]["stage"] for rank in (0, 1, 2)} == {"move"}
    assert result["ranks"][1]["waits"] == "barrier moved"
    assert result["analysis"]["verdict"] != "healthy"
    assert len(result["ranks"][0]["stacks"]) == 1


def test_a_rank_that_dies_before_it_begins_leaves_no_file(lab: Lab) -> None:
    before = shared_files()
    fault = ("--fault", "lab.stage:kill,rank=1,op=init")
    status, result = lab("--ranks", "2", *fault, "--size", "4K", deadline=SHORT)
    assert (status, states(result)) == (1, ["hung", "died"])
    assert len(result["settings"]["reaped"]) == 1
    assert not set(result["settings"]["reaped"]) & shared_files()
    assert shared_files() - before <= shared_files() - set(result["settings"]["reaped"])


def test_a_file_that_the_library_forgets_is_told(lab: Lab) -> None:
    status, result = lab("--ranks", "2", "--size", "4K", "--env", "STANDIN_KEEPS_FILES=1")
    assert (status, states(result)) == (1, ["good", "good"]), result
    assert result["shared_memory"] == result["settings"]["reaped"] and len(result["shared_memory"]) == 1, result


def test_a_death_in_an_iteration_fails_the_others(lab: Lab) -> None:
    fault = ("--fault", "lab.iteration:kill,rank=1,nth=2")
    status, result = lab("--ranks", "3", "--size", "4K", "--iters", "4", *fault)
    assert (status, states(result)) == (1, ["failed", "died", "failed"])
    # They may be at what the dead rank had behind it.
    assert report(result, 0)["status"] == "ncclRemoteError" and report(result, 0)["stage"] in ("setup", "move")


def test_a_crash_is_told_with_the_functions_that_it_was_in(lab: Lab) -> None:
    status, result = lab("--ranks", "2", "--size", "4K", "--differ", "rank=1,STANDIN_CRASHES=1")
    assert (status, states(result)) == (1, ["good", "died"])
    rank = result["ranks"][1]
    assert "killed by SIGSEGV in stage end: standin_crash < ncclCommDestroy" in rank["text"]
    assert [Path(path).name for path in rank["stacks"]] == ["rank-1.crash.txt"]
    stack = (lab.folder / "stacks" / "rank-1.crash.txt").read_text()
    assert f"Thread 1 (LWP {rank['pid']}):" in stack and " in standin_crash () from " in stack
    assert result["analysis"]["culprits"] == [1]


def test_an_exit_tells_its_status(lab: Lab) -> None:
    status, result = lab("--ranks", "2", "--size", "4K", "--fault", "lab.stage:error=7,rank=0,op=setup")
    assert (status, result["ranks"][0]["exit_status"]) == (1, 7)
    assert report(result, 0)["text"] == "a fault asked for the end of this process, status 7"


def test_a_cuda_call_that_fails_is_the_ranks_own(lab: Lab) -> None:
    status, result = lab("--ranks", "2", "--size", "4K", "--fault", "cudaMalloc:error=2,rank=1,nth=2")
    assert status == 1
    assert report(result, 1)["text"] == "the rank's own cudaMalloc returned cudaErrorMemoryAllocation"


def test_wrong_fault_starts_no_rank(lab: Lab) -> None:
    command = ["lab", "nccl", "--lib", str(lab.library), "--out", str(lab.folder)]
    for wrong in (["--fault", "lab.stagee:hang"], ["--differ", "rank=1,PSM_FAULTS=lab.stagee:hang"]):
        assert main([*command, *wrong]) == 2
        said = lab.capsys.readouterr().err
        assert "no site 'lab.stagee'; the nearest are lab.stage" in said and said.endswith("  lab.stagee:hang\n  ^\n")
        assert not lab.folder.exists()


def test_fault_that_never_fired_is_in_doubt(lab: Lab) -> None:
    status, result = lab("--ranks", "2", "--size", "4K", "--fault", "cudaMalloc:slow=1ms;cudaMalloc:error=2:nth=999")
    assert (status, states(result)) == (3, ["good", "good"])
    assert result["settings"]["idle"] == ["cudaMalloc:error=2:nth=999: no call matched it"]


def test_nodes_have_their_own_name_and_gpus(lab: Lab) -> None:
    status, result = lab("--ranks", "4", "--nodes", "2", "--size", "4K", "--iters", "1")
    assert (status, states(result)) == (0, ["good"] * 4)
    logs = [(lab.folder / "logs" / f"rank-{rank}.log").read_text() for rank in range(4)]
    assert [f"NCCL_HOSTID set by environment to psm-node-{rank // 2}." in logs[rank] for rank in range(4)] == [True] * 4
    cases = [(lab.folder / "cases" / f"rank-{rank}.txt").read_text() for rank in range(4)]
    assert ["device=1" in case for case in cases] == [False, True, False, True]


TASKS = """
0: send 1000 uint8 to=1 times=2
0: send 3 to=1
1: recv 1000 uint8 from=0 times=2
1: recv 3 from=0
end
2: send 5 to=2
2: recv 5 from=2
1: send 7 to=0
0: recv 7 from=1
"""


def test_groups_of_a_task_file_are_run_and_compared(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text(TASKS)
    status, result = lab("--ranks", "3", "--tasks", str(tmp_path / "tasks"))
    assert (status, states(result)) == (0, ["good"] * 3), [r["text"] for r in result["ranks"]]
    assert [report(result, rank)["bytes"] for rank in range(3)] == [28, 2012, 20]
    assert [report(result, rank)["groups"] for rank in range(3)] == [2, 2, 1]
    calls = (lab.folder / "cases" / "rank-0.txt").read_text().splitlines()[1:]
    bytes_, floats = "send 0 0 1 1000 1 0", "send 0 0 1 3 7 0"
    assert calls == [bytes_, bytes_, floats, "end", "recv 0 0 1 7 7 0", "end", "wait"]


def test_what_a_rank_leaves_out_of_the_last_group_hangs_its_peer(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text(TASKS)
    arguments = ("--ranks", "3", "--tasks", str(tmp_path / "tasks"), "--differ", "rank=1,skip=send")
    status, result = lab(*arguments, deadline=SHORT)
    assert (status, states(result)) == (1, ["hung", "waiting", "waiting"])
    assert [rank["stage"] for rank in result["ranks"]] == ["move"] * 3


def test_a_shorter_message_of_a_task_file_is_told(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text(TASKS)
    status, result = lab("--ranks", "3", "--tasks", str(tmp_path / "tasks"), "--differ", "rank=1,shorter=8")
    assert status == 1
    assert (report(result, 0)["wrong_from"], report(result, 0)["wrong_iter"], report(result, 0)["wrong_offset"]) == (
        1,
        0,
        20,
    )


ALL = """comm w 0-2
allreduce 1K float32 sum
end
comm a 1,2
allgather 100 bfloat16
end
reduce 300 uint32 max root=1
end
comm b 0,2 stream=1
reducescatter 64 float32 avg
end
broadcast 10 uint8 root=1
end
comm w 0-2
0-2: send 4K float32 to=+1
0-2: recv 4K float32 from=-1
end
"""


def test_collectives_and_communicators_of_a_task_file_are_run_and_compared(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text(ALL)
    status, result = lab("--tasks", str(tmp_path / "tasks"))
    assert (status, states(result)) == (0, ["good"] * 3), [r["text"] for r in result["ranks"]]
    both = 4096 + 16384
    assert [report(result, rank)["bytes"] for rank in range(3)] == [
        both + 256 + 10,
        both + 400,
        both + 400 + 1200 + 266,
    ]
    assert [report(result, rank)["groups"] for rank in range(3)] == [4, 4, 6]


def test_much_data_is_looked_at_in_pieces(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_tasks, "_MOST_OPEN", 100_000)
    (tmp_path / "tasks").write_text("0: send 64K uint8 to=1\n1: recv 64K uint8 from=0\nend\n" * 3)
    status, result = lab("--ranks", "2", "--tasks", str(tmp_path / "tasks"))
    assert (status, states(result)) == (0, ["good"] * 2), [r["text"] for r in result["ranks"]]
    assert (lab.folder / "cases" / "rank-1.txt").read_text().splitlines().count("wait") == 2
    assert report(result, 1)["bytes"] == 3 << 16


def test_messages_between_the_same_ranks_have_data_of_their_own(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text("0: send 64 to=1 times=2\n1: recv 64 from=0 times=2\n")
    status, result = lab("--ranks", "2", "--tasks", str(tmp_path / "tasks"), "--fault", "lab.data:corrupt,rank=0,nth=2")
    assert status == 1
    # the lab changes a byte in the middle of the second one
    assert (report(result, 1)["wrong"], report(result, 1)["wrong_from"], report(result, 1)["wrong_offset"]) == (
        1,
        0,
        128,
    )


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        (
            "send 4 to=+1\nrecv 4 from=-1\npoll\n",
            (),
            "'poll' in the task file: the lab plays tasks and the ends of groups",
        ),
        ("comm a 0,0\nallreduce 4\n", (), "rank 0 is there twice"),
        ("allreduce 64G float64\n", (), "need 2,048.0 GiB for their buffers"),
        ("comm a 0-1\nallreduce 4\n", ("--nonblocking-comm", "--ranks", "3"), "takes a task file of one communicator"),
        ("comm a 0-1\nallreduce 4\nend\ncomm b 0-1 stream=1\nallreduce 4\n", ("--graph", "2"), "captures one stream"),
        ("send 4 to=+1\nrecv 4 from=-1\n", ("--size", "4K"), "--size cannot be given with it"),
    ],
)
def test_a_task_file_that_cannot_be_run_is_refused(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: tuple[str, ...], words: str
) -> None:
    (tmp_path / "tasks").write_text(text)
    command = ["--lib", str(library), "--tasks", str(tmp_path / "tasks"), *more, "--out", str(tmp_path / "out")]
    assert words in " ".join(refusal(command, capsys).split())
    assert not (tmp_path / "out").exists()


def test_a_task_file_without_a_name_is_refused(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "a task file without a name" in refusal(
        ["--lib", str(library), "--tasks", "", "--out", str(tmp_path / "out")], capsys
    )


def test_cases_without_their_program_are_refused(library: Path, tmp_path: Path) -> None:
    case = nccl.NcclCase(pattern=nccl.TASKS)
    with pytest.raises(LabError, match="the cases need a program of 2 ranks"):
        nccl.start(nccl_library.find(library), [case], 2, tmp_path / "out")


def test_no_iteration_is_a_beginning_and_an_end(lab: Lab) -> None:
    status, result = lab("--ranks", "2", "--iters", "0")
    assert (status, report(result, 0)["bytes"]) == (0, 0)


def test_variables_of_one_rank(lab: Lab) -> None:
    status, _ = lab("--ranks", "2", "--size", "4K", "--differ", "rank=1,NCCL_HOSTID=other")
    assert status == 0
    assert "NCCL_HOSTID set by environment to other." in (lab.folder / "logs" / "rank-1.log").read_text()
    assert "NCCL_HOSTID" not in (lab.folder / "logs" / "rank-0.log").read_text()


def test_the_page_says_what_matters(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["lab", "nccl", "--lib", str(library), "--ranks", "2", "--size", "4K", "--out", str(out)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert text.startswith("good: 2 ranks, 1 case, 32,768 bytes checked")
    assert "NCCL 2.26.6, CUDA runtime shared 12" in text and "analysis: healthy" in text
    assert main(["lab", "report", str(out)]) == 0


# ---- what is refused ----


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["lab", "nccl", *arguments]) == 2
    return capsys.readouterr().err


@pytest.fixture
def bare(tmp_path: Path) -> Callable[[str, str, tuple[str, ...]], Path]:
    """Makes small libraries that look like a NCCL of a kind."""

    def make(cuda: str, name: str = "libnccl.so.2", more: tuple[str, ...] = ()) -> Path:
        source = tmp_path / "bare.c"
        body = f'const char v[] = "NCCL version 2.27.3+cuda{cuda}"; int ncclCommInitRank(void) {{ return v[0]; }}\n'
        source.write_text(body if cuda else "int ncclCommInitRank(void) { return 0; }\n")
        path = tmp_path / "libs" / name
        path.parent.mkdir(exist_ok=True)
        subprocess.run([COMPILER, "-shared", "-fPIC", str(source), "-o", str(path), *more], check=True)
        return path

    return make


def test_a_static_runtime_of_today_is_refused_with_the_way_that_works(bare: Callable[..., Path]) -> None:
    with pytest.raises(LabError) as error:
        nccl_library.find(bare("12.9"))
    assert "CUDARTLIB=cudart" in str(error.value) and "2.27.3" in str(error.value)
    with pytest.raises(LabError, match="statically"):
        nccl_library.find(bare("11.7"))


def test_a_static_runtime_without_self_test_is_taken(bare: Callable[..., Path]) -> None:
    found = nccl_library.find(bare("11.0").parent)
    assert (found.version, found.cudart) == ("2.27.3", "static 11.0")


def test_a_static_runtime_of_unknown_version_is_refused(bare: Callable[..., Path]) -> None:
    with pytest.raises(LabError, match="its version is unknown"):
        nccl_library.find(bare(""))


def test_a_runtime_that_is_not_emulated_is_refused(bare: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "rt.c").write_text("void cudaMalloc(void) {}\n")
    runtime = tmp_path / "libcudart.so.11.0"
    command = [
        COMPILER,
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcudart.so.11.0",
        str(tmp_path / "rt.c"),
        "-o",
        str(runtime),
    ]
    subprocess.run(command, check=True)
    with pytest.raises(LabError, match=r"linked to libcudart\.so\.11; emulated CUDA has"):
        nccl_library.find(bare("11.8", more=("-Wl,--no-as-needed", str(runtime))))


def test_what_is_no_nccl_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"no libnccl\.so in it"):
        nccl_library.find(tmp_path)
    with pytest.raises(LabError, match="it does not define ncclCommInitRank"):
        nccl_library.find(folder() / LIBRARIES["cuda"])


def test_a_run_that_cannot_be_is_refused(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--lib", str(library), "--out", str(tmp_path / "out")]
    assert "every node needs the same number of ranks" in refusal([*common, "--ranks", "3", "--nodes", "2"], capsys)
    assert "a GPU for each rank" in refusal([*common, "--ranks", "4", "--gpus", "2"], capsys)
    assert "the run has ranks 0 to 1" in refusal([*common, "--differ", "rank=2,skip=recv"], capsys)
    assert "unknown setting" in refusal([*common, "--differ", "rank=1,colour=red"], capsys)
    assert "NAME=VALUE" in refusal([*common, "--env", "NCCL_DEBUG"], capsys)
    assert not (tmp_path / "out").exists()
