"""``psmkit lab run``: real ranks, libpsm, emulated CUDA; bytes that arrive, and what is told where they do not."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import psmkit
from psmkit.cli import lab_progress
from psmkit.cli.app import main
from psmkit.lab import runner, transfer
from psmkit.lab.cuda import LabError
from psmkit.logparse.records import open_record
from psmkit.model import Verdict

RANKS = "--ranks"
DEADLINE = ("--deadline", "90")  # of runs that end by themselves
SHORT = ("--deadline", "4")  # of runs that hang


class Lab:
    """Runs the command and reads what it says and leaves."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(self, *arguments: str, deadline: tuple[str, str] = DEADLINE) -> tuple[int, dict[str, Any]]:
        status = main(["lab", "run", *arguments, *deadline, "--out", str(self.folder), "--format", "json"])
        out, self.err = self.capsys.readouterr()
        assert status != 2, self.err
        return status, json.loads(out)


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Lab:
    return Lab(tmp_path / "out", capsys)


def reports(result: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    found = result["ranks"][rank]["reports"]
    assert isinstance(found, list)
    return found


def test_bytes_arrive_and_evidence_is_kept(lab: Lab) -> None:
    status, result = lab("--ranks", "2", "--pattern", "pair", "--size", "64K", "--iters", "3")
    assert status == 0, result
    assert [r["state"] for r in result["ranks"]] == ["good", "good"]
    assert [reports(result, rank)[0]["bytes"] for rank in (0, 1)] == [3 * 65536, 3 * 65536]
    for name in ("logs/rank-0.log", "logs/rank-1.log", "cases/rank-1.txt", "result.json"):
        assert (lab.folder / name).stat().st_size > 0
    assert {open_record(str(p)).pid for p in (lab.folder / "records").glob("*.rec")} == {
        r["pid"] for r in result["ranks"]
    }
    assert "Channel 0/0 : 0[0] -> 1[1] via PSM_P2P/" in (lab.folder / "logs" / "rank-0.log").read_text()
    assert result["analysis"]["verdict"] == "healthy"


@pytest.mark.parametrize("share", transfer.SHARES[2:])
def test_every_pattern_and_size_by_each_way_of_sharing(lab: Lab, share: str) -> None:
    sizes = "0,1,4095,262145"
    options = ("--size", sizes, "--channels", "2", "--share", share, "--zero-copy", "never,registered,always")
    status, result = lab(RANKS, "3", "--pattern", "alltoall,ring,random", *options)
    assert status == 0, result
    assert all(len(reports(result, rank)) == 3 * 3 * 4 for rank in range(3))
    everything = sum(r["bytes"] for r in reports(result, 0) if "pattern=alltoall" in result["cases"][int(r["name"])])
    assert everything == 3 * 3 * 2 * (0 + 1 + 4095 + 262145)


def test_buffers_registered_at_each_group_move_on_one_device_that_all_ranks_hold(lab: Lab) -> None:
    """A mapping that was closed at the end of a group waited for the device, which the next group of its rank holds."""
    options = ("--pattern", "ring", "--share", "cuda-ipc", "--zero-copy", "always", "--size", "3M", "--iters", "8")
    status, result = lab(RANKS, "4", "--gpus", "1", *options)
    assert status == 0, result
    for rank in range(4):
        log = (lab.folder / "logs" / f"rank-{rank}.log").read_text()
        kept, closed = re.findall(r"closed: kept at 0x", log), re.findall(r"closed: unmapped at 0x", log)
        assert kept and closed


@pytest.mark.parametrize("stream", transfer.STREAMS)
def test_fifo_goes_round_many_times_under_each_kind_of_application_stream(lab: Lab, stream: str) -> None:
    options = ("--size", "1M", "--steps", "4", "--buffer-size", "8K", "--zero-copy", "never")  # 512 steps a connection
    status, result = lab(RANKS, "4", "--pattern", "alltoall", "--app-stream", stream, *options)
    assert status == 0, result


def test_setting_that_differs_is_refused_with_both_values(lab: Lab) -> None:
    status, result = lab(RANKS, "2", "--differ", "rank=1,steps=4")
    assert status == 1
    for rank, (mine, theirs) in enumerate(((8, 4), (4, 8))):
        (report,) = reports(result, rank)
        assert (report["status"], report["stage"]) == ("PSM_ERR_MISMATCH", "connect")
        assert f"{mine} at rank {rank} and {theirs} at rank {1 - rank}" in report["text"]


def test_short_send_is_told_with_both_sizes(lab: Lab) -> None:
    status, result = lab(RANKS, "2", "--size", "64K", "--differ", "rank=1,shorter=100")
    assert status == 1 and not result["expired"]
    assert {reports(result, rank)[0]["stage"] for rank in (0, 1)} == {"move"}
    assert "sends 65436 bytes, rank 0 expects 65536" in reports(result, 1)[0]["text"]


def test_missing_recv_hangs_the_sender_and_its_stacks_show_where(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_progress, "_PATIENCE", 2.0)
    status, result = lab(RANKS, "2", "--size", "8M", "--differ", "rank=1,skip=recv", deadline=SHORT)
    assert status == 1 and result["expired"]
    assert [r["state"] for r in result["ranks"]] == ["hung", "waiting"]
    assert result["ranks"][0]["stage"] == "move" and result["ranks"][1]["waits"] == "barrier moved"
    stacks = Path(result["ranks"][0]["stacks"][0]).read_text()
    assert "group_wait" in stacks or "psmGroupWait" in stacks or "no gdb" in stacks
    assert "rank 1" in result["analysis"]["reason"] and "has not posted the recv" in result["analysis"]["reason"]
    assert not result["shared_memory"] and not result["processes"]
    assert re.match(r"psmkit lab: running for \d+ s, at most 4 s \(--deadline\); ranks: ", lab.err)


def test_killed_rank_ends_the_others_with_its_number(lab: Lab) -> None:
    status, result = lab(
        RANKS, "3", "--pattern", "alltoall", "--size", "1M", "--fault", "lab.stage:kill,rank=2,op=move"
    )
    assert status == 1 and not result["expired"]
    assert [r["state"] for r in result["ranks"]] == ["failed", "failed", "died"]
    statuses = {reports(result, rank)[0]["status"] for rank in (0, 1)}
    # Who hears of it from the other survivor first reports that: by its abort, or by its end of their connection.
    assert "PSM_ERR_PEER_DEAD" in statuses
    assert statuses <= {"PSM_ERR_PEER_DEAD", "PSM_ERR_ABORTED", "PSM_ERR_PEER_CLOSED"}
    assert any("rank 2" in reports(result, rank)[0]["text"] for rank in (0, 1))
    # A failure names its cause and a rank in fields: the dead one, or the survivor that noticed first.
    causes = {(r["cause"], r["named"]) for rank in (0, 1) for r in reports(result, rank)}
    assert ("peer-died", 2) in causes
    assert causes <= {(cause, named) for cause in ("peer-died", "peer-failed") for named in (0, 1, 2)}
    (failed,) = [line for line in (lab.folder / "logs" / "lab.log").read_text().splitlines() if ": rank 0," in line]
    assert re.search(r"PSM_ERR_\w+ \(cause peer-\w+, rank [12], peer -?\d+, opId [0-9a-f]+\): ", failed)
    assert "rank 2 died" in result["analysis"]["reason"]
    assert not result["shared_memory"]


def test_rank_that_is_sent_a_fatal_signal_dies_of_it(lab: Lab) -> None:
    status, result = lab(RANKS, "2", "--fault", "lab.stage:kill=SIGSEGV,rank=1,nth=2")
    assert status == 1 and not result["expired"]
    assert result["ranks"][1]["state"] == "died" and "SIGSEGV" in json.dumps(result["ranks"][1])


def test_stopped_rank_is_told_at_the_deadline(lab: Lab) -> None:
    status, result = lab(RANKS, "2", "--fault", "lab.stage:kill=SIGSTOP,rank=1,op=move", deadline=SHORT)
    assert status == 1 and result["expired"]
    assert "stopped" in Path(result["ranks"][1]["stacks"][0]).read_text()
    assert result["ranks"][1]["process_state"] == "T"
    assert (
        "rank 1, process" in (said := (lab.folder / "logs" / "lab.log").read_text())
        and "is stopped in stage move" in said
    )
    assert result["analysis"]["verdict"] == "hung" and "rank 1 is stopped" in result["analysis"]["reason"]


def test_damaged_byte_is_found_at_its_place(lab: Lab) -> None:
    status, result = lab(RANKS, "2", "--size", "64K", "--fault", "lab.data:corrupt,rank=1,nth=2")
    assert status == 1
    (report,) = reports(result, 0)
    assert (report["wrong"], report["wrong_from"], report["wrong_iter"], report["wrong_offset"]) == (1, 1, 1, 32768)
    assert report["by"] == "data"


def test_fault_of_libpsm_is_told_by_the_rank_that_has_it(lab: Lab) -> None:
    status, result = lab(RANKS, "2", "--fault", "p2p.setup:error=ENOSPC,rank=0")
    assert status == 1
    (report,) = reports(result, 0)
    assert report["stage"] == "setup" and report["sys_errno"] == 28
    assert reports(result, 1)[0]["by"] == "lab"  # it went no further, and has nothing of its own to tell


def test_next_case_is_good_after_one_that_failed(lab: Lab) -> None:
    status, result = lab(RANKS, "2", "--size", "64K,64K,64K", "--fault", "p2p.connect:error=ENOMEM,rank=0,nth=3")
    assert status == 1
    found = [r["status"] for r in reports(result, 0)]
    assert found == ["PSM_OK", "PSM_ERR_NO_MEMORY", "PSM_OK"]


def test_variant_that_copies_the_whole_struct_is_found_by_the_analysis(lab: Lab) -> None:
    status, result = lab(RANKS, "2", "--size", "1M", "--variant", "whole-struct", deadline=("--deadline", "20"))
    assert status == 1 and result["analysis"]["verdict"] == "failed"
    assert "belongs to rank" in result["analysis"]["reason"]


def test_variant_that_loses_its_stream_hangs_behind_the_legacy_stream(lab: Lab) -> None:
    arguments = (RANKS, "2", "--size", "1M", "--variant", "whole-struct-zero", "--app-stream", "legacy")
    status, result = lab(*arguments, deadline=SHORT)
    assert status == 1 and result["expired"] and result["analysis"]["verdict"] == "hung"
    assert "legacy stream" in result["analysis"]["reason"]


def test_variant_whose_mistake_is_a_fault_gets_it(lab: Lab) -> None:
    status, result = lab(RANKS, "2", "--variant", "lost-fd-reply", "--timeout", "0.5")
    assert status == 1 and not result["expired"]
    assert any("no answer to GetFd" in r["text"] for rank in (0, 1) for r in reports(result, rank))


def test_data_that_is_right_by_luck_is_not_good(lab: Lab) -> None:
    """The variant's mistake does no harm here, and leaves streams."""
    status, result = lab(RANKS, "2", "--variant", "whole-struct-zero", "--app-stream", "nonblocking")
    assert status == 3 and [r["state"] for r in result["ranks"]] == ["good", "good"]
    assert result["analysis"]["verdict"] == "leaking" and "PSM505" in result["analysis"]["codes"]


@pytest.mark.parametrize(
    ("options", "declared"),
    [
        (("--variant", "whole-struct"), "variant whole-struct: as declared for these cases: failed PSM507"),
        (("--variant", "whole-struct", "--differ", "rank=1,skip=send"), None),  # it declares nothing of that
        (("--variant", "split"), None),
    ],
)
def test_text_names_the_findings_and_whether_a_variant_shows_what_it_declares(
    lab: Lab, options: tuple[str, ...], declared: str | None
) -> None:
    main(["lab", "run", *options, "--size", "64K", "--deadline", "20", "--out", str(lab.folder)])
    lines = lab.capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("variant ")] == ([declared] if declared else [])
    found = [line for line in lines if line.startswith("findings: ")]
    assert len(found) == int("whole-struct" in options) and all("PSM507" in line for line in found)


def test_variant_that_does_not_show_what_it_declares_is_named(lab: Lab) -> None:
    assert main(["lab", "run", *DEADLINE, "--out", str(lab.folder)]) == 0
    result = json.loads((lab.folder / "result.json").read_text())
    result["cases"] = [case.replace("variant=split", "variant=whole-struct") for case in result["cases"]]
    (lab.folder / "result.json").write_text(json.dumps(result))
    lab.capsys.readouterr()
    main(["lab", "report", str(lab.folder)])
    said = " ".join(lab.capsys.readouterr().out.split())
    assert "variant whole-struct: not as declared for these cases (failed PSM507): verdict healthy, expected" in said


def test_case_is_the_same_after_its_line_is_read() -> None:
    case = transfer.Case(pattern="ring", size=1, steps=4, share="memfd", variant="net/no-free")
    assert transfer.Case.of_line(case.line()) == case
    with pytest.raises(LabError, match="bad case 'colour=4'"):
        transfer.Case.of_line("colour=4")


def test_one_rank_is_counted_in_the_singular(lab: Lab) -> None:
    assert main(["lab", "run", RANKS, "1", *DEADLINE, "--out", str(lab.folder)]) == 0
    assert lab.capsys.readouterr().out.startswith("good: 1 rank, 1 case, ")


def test_variants_are_those_that_libpsm_has() -> None:
    found = transfer.variants()
    assert not found["split"].wrong and found["whole-struct"].wrong and found["lost-fd-reply"].faults


def test_report_says_again_what_run_said(lab: Lab) -> None:
    arguments = ["--differ", "rank=1,steps=4", *DEADLINE, "--out", str(lab.folder)]
    assert main(["lab", "run", *arguments]) == 1
    said = lab.capsys.readouterr().out
    assert main(["lab", "report", str(lab.folder)]) == 1
    assert lab.capsys.readouterr().out == said
    assert said.startswith("not good: 2 ranks, 1 case") and "8 at rank 0 and 4 at rank 1" in " ".join(said.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--size", "64X"), "bad size '64X'"),
        (("--pattern", "star"), "'star'; expected one of pair"),
        (("--variant", "nonsense"), "unknown variant 'nonsense', expected one of split, "),
        (("--differ", "steps=4"), "expected rank=N and a setting"),
        (("--differ", "rank=1,colour=4"), "unknown setting 'colour=4'"),
        (("--differ", "rank=7,steps=4"), "--differ names rank 7, but the run has ranks 0 to 1"),
    ],
)
def test_wrong_options_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert main(["lab", "run", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err


def test_folder_of_another_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old").touch()
    assert main(["lab", "run", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_interrupted_run_names_its_evidence_and_leaves_no_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "psmkit", "lab", "run", "--fault", "lab.stage:hang,rank=1,op=move"]
    command += [*DEADLINE, "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        log = folder / "logs" / "rank-1.log"
        while process.poll() is None and not (log.exists() and "PSM_FAULTS: hang" in log.read_text()):
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and not out
    kept = f"the evidence so far is in {folder}; try psmkit analyze {folder}"
    assert err.splitlines()[-1] == f"psmkit lab: interrupted; {kept}"
    assert len(children) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in children)
    # What the line recommends works, and does not say that all is well.
    main(["analyze", str(folder)])
    assert capsys.readouterr().out.startswith("inconclusive: ")


def test_terminated_run_leaves_no_rank_and_no_shared_memory(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "psmkit", "lab", "run", "--fault", "lab.stage:hang,rank=1,op=move"]
    command += [*DEADLINE, "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        log = folder / "logs" / "rank-1.log"
        while process.poll() is None and not (log.exists() and "PSM_FAULTS: hang" in log.read_text()):
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert list(Path("/dev/shm").glob(f"psm-lab-{process.pid}-*"))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert len(children) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert not list(Path("/dev/shm").glob(f"psm-lab-{process.pid}-*"))


def test_report_of_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"psmkit: {tmp_path} has no result.json: not a folder of psmkit lab run, or its run was")
    assert said.endswith(f"interrupted; try psmkit analyze {tmp_path}\n")
    (tmp_path / "result.json").write_text("{}")
    assert main(["lab", "report", str(tmp_path)]) == 2
    assert "is not a result of `psmkit lab run`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["size=-1", "size=1x", "colour=red", "pattern=star", "pattern", "steps=3", "iters=0", "x" * 5000]
)
def test_rank_program_refuses_a_case_that_it_does_not_know(tmp_path: Path, line: str) -> None:
    (tmp_path / "cases").write_text(line + "\n")
    job = runner.Job(
        1, lambda _: [str(transfer.program())], lambda _: {}, tmp_path, 60, input=lambda _: tmp_path / "cases"
    )
    (rank,) = runner.run(job).ranks
    assert rank.exit_status == 2 and "case" in rank.text, rank


def test_rank_program_alone_says_who_starts_it() -> None:
    done = subprocess.run([transfer.program()], env={}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "`psmkit lab run` starts this program" in done.stderr


def test_deadline_that_passes_while_bytes_move_says_slow_and_not_hung(lab: Lab) -> None:
    status, result = lab("--size", "1M", "--iters", "1000000", deadline=SHORT)
    slow = [rank for rank in result["ranks"] if rank["state"] == "slow"]
    assert status == 1 and slow
    assert {rank["state"]: rank["text"] for rank in result["ranks"] if rank["state"] not in ("slow", "waiting")} == {}
    for rank in slow:
        assert rank["moved"] > 0 and rank["stacks"] == []
        assert re.match(r"slow: [\d.]+ [KMG]iB moved in the last second; at work after 4 s", rank["text"])
    report = psmkit.analyze([lab.folder / "logs", lab.folder / "records"])
    assert report.verdict is Verdict.INCONCLUSIVE
    assert any("slow, not hung" in finding.title for finding in report.findings)
    assert not [finding for finding in report.findings if finding.code == "PSM402"]  # the lab ended them
