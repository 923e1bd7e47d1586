"""``psmkit reproduce``: from evidence to a case, and where its symptom returns."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.lab.cuda import LIBRARIES
from psmkit.lab.cuda import folder as hostcuda
from tests.lab.test_nccl import compile_library
from tests.reproduce.jobs import dumps, entry, logs

ROOT = Path(__file__).parents[2]
LOG = ROOT / "examples/reproduce/forgotten-recv.log"
#: What `docs/reproduce.md` shows, without the run on the lab.
PAGE = ROOT / "docs/reproduce.md"


def test_the_example_of_the_docs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert (
        main(
            ["reproduce", "examples/reproduce/forgotten-recv.log", "-o", str(tmp_path / "case"), "--shrink", "--no-lab"]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "simulator: it returns: hung, PSM303, stage send/recv, blames rank 1" in said
    shown = PAGE.read_text()
    assert "$ cat case/case.tasks\n" + (tmp_path / "case/case.tasks").read_text() in shown
    assert next(line for line in said.splitlines() if "shrunk in" in line) in shown


def test_the_folder_says_what_was_taken_and_what_is_a_guess(tmp_path: Path) -> None:
    assert main(["reproduce", str(LOG), "-o", str(tmp_path / "case"), "--no-lab"]) == 0
    about = tomllib.loads((tmp_path / "case/case.toml").read_text())
    assert about["job"] == {"ranks": 4, "nodes": 1, "operations": 35, "source": "logs"}
    assert about["nccl"]["version"] == "2.30.7" and about["nccl"]["assumed"] == [
        "nodes",
        "work_fifo_bytes",
        "p2p_chunk_bytes",
    ]
    assert about["symptom"]["code"] == "PSM303" and about["symptom"]["culprits"] == [2]
    readme = (tmp_path / "case/README.md").read_text()
    assert "35 operations from 1 log" in readme and "NCCL's defaults were taken" in readme
    assert [p.name for p in tmp_path.iterdir()] == ["case"]


def test_it_returns_on_the_lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = logs(tmp_path / "logs", "allreduce 8 float32 sum\nend\n1: allgather 8 float32\nend\n", 2)
    assert main(["reproduce", str(folder), "-o", str(tmp_path / "case"), "--deadline", "3"]) == 0
    said = capsys.readouterr().out
    assert "simulator: it returns: hung, PSM302" in said and "lab: it returns: hung, PSM302" in said


def test_it_returns_on_a_library_with_the_calls_of_nccl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_library(tmp_path / "libnccl.so.2", "12.8", str(hostcuda() / LIBRARIES["cudart12"]))
    folder = logs(tmp_path / "logs", "allreduce 8 float32 sum\nend\n1: recv 8 float32 from=0\nend\n", 2)
    command = ["reproduce", str(folder), "-o", str(tmp_path / "case"), "--no-lab", "--nccl", str(tmp_path)]
    assert main([*command, "--deadline", "8"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "NCCL 2.26.6: it returns: hung, PSM303, stage send/recv, blames rank 0" in said
    assert "NCCL 2.26.6: it returns" in (tmp_path / "case" / "README.md").read_text()


def test_a_case_is_played_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", str(LOG), "-o", str(tmp_path / "case"), "--no-lab", "--shrink"]) == 0
    assert main(["reproduce", str(tmp_path / "case"), "-o", str(tmp_path / "case2"), "--no-lab"]) == 0
    assert "simulator: it returns: hung, PSM303, stage send/recv, blames rank 1" in capsys.readouterr().out
    assert (tmp_path / "case/case.tasks").read_text() == (tmp_path / "case2/case.tasks").read_text()


def test_a_dump_in_which_a_rank_is_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ahead = [entry("all_reduce", 1), entry("all_reduce", 2, "started")]
    paths = dumps(tmp_path, {0: ahead, 1: ahead, 2: [entry("all_reduce", 1)]}, 3)
    assert main(["reproduce", *map(str, paths), "-o", str(tmp_path / "case"), "--no-lab"]) == 0
    assert "simulator: it returns: hung, PSM302" in " ".join(capsys.readouterr().out.split())


def test_a_healthy_job_has_no_symptom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = logs(tmp_path / "logs", "allreduce 8 float32 sum\nend\n", 2)
    for rank, path in enumerate(sorted(folder.iterdir())):
        with path.open("a") as log:
            log.write(
                f"case:{1000 + rank}:{1000 + rank} [{rank}] NCCL INFO comm 0x7f3000000000 rank {rank} nranks 2 "
                f"cudaDev {rank} busId {rank + 1}000 - Destroy COMPLETE\n"
            )
    assert main(["reproduce", str(folder), "-o", str(tmp_path / "case"), "--no-lab"]) == 3
    assert (tmp_path / "case/case.tasks").read_text() == "allreduce 8 float32 sum\nend\n"
    said = " ".join(capsys.readouterr().out.split())
    assert "symptom: none: the input is healthy, there is no symptom to reproduce" in said
    assert "the case comes to its end; the input is healthy" in said and "finding" not in said
    assert "None: the input is healthy" in (tmp_path / "case/README.md").read_text()


def test_the_dump_of_the_docs_is_read(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0.json").write_text(PAGE.read_text().partition("```json\n")[2].partition("```")[0])
    case = ["reproduce", str(tmp_path / "nccl_trace_rank_0.json"), "-o", str(tmp_path / "case"), "--no-lab"]
    assert main([*case, "--deadline", "7"]) in (0, 3)
    assert "0: send 8M bfloat16 to=1\n" in (tmp_path / "case/case.tasks").read_text()
    assert tomllib.loads((tmp_path / "case/case.toml").read_text())["nccl"]["version"] == "2.27.3"
    readme = (tmp_path / "case/README.md").read_text()
    assert "the release of NCCL, 2.27.3, from nccl_version or comm_lib_version" in readme
    commands = [line for line in readme.splitlines() if line.startswith(("    psmkit lab", "    psmkit reproduce"))]
    assert len(commands) == 3 and all("--deadline 7 " in line for line in commands)


def test_stages_that_differ_are_both_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ahead = [entry("all_reduce", 1), entry("all_reduce", 2, "started")]
    paths = dumps(tmp_path, {0: ahead, 1: ahead, 2: [entry("all_reduce", 1)]}, 3)
    assert main(["reproduce", *map(str, paths), "-o", str(tmp_path / "case"), "--no-lab"]) == 0
    assert "stage AllReduce (of the input: dumped), blames rank 2" in " ".join(capsys.readouterr().out.split())


def test_a_run_without_an_explanation_does_not_deny_the_finding_above_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "0: send 8M float32 to=1\n1: send 8M float32 to=0\nend\n0: recv 8M float32 from=1\n1: recv 8M float32 from=0\nend\n"
    folder = logs(tmp_path / "logs", text, 2)
    assert main(["reproduce", str(folder), "-o", str(tmp_path / "case"), "--no-lab"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "simulator: it stands still" in said and "no finding about the input says that calls are the reason" in said


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (["missing.log"], "missing.log"),
        (["empty.log"], "empty"),
        (["-"], "standard input can be read only once"),
        ([""], "PATH is an empty name"),
        ([str(LOG), "--nccl", "missing.so"], "missing.so"),
        ([str(LOG), "--nccl", "."], "libnccl"),
        ([str(LOG), "--kernels", str(LOG)], "--kernels needs --nccl"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, paths: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.log").write_text("")
    assert main(["reproduce", *paths, "-o", "case"]) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["empty.log"]


def test_a_folder_that_exists_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "case").mkdir()
    assert main(["reproduce", str(LOG), "-o", str(tmp_path / "case")]) == 2
    assert "it exists" in capsys.readouterr().err
