"""``psmkit record``: what a user sees of the command, and what is in the archive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

import psmkit
from psmkit.logparse import discover
from psmkit.model import Verdict
from tests.live.recorded import PSMKIT, RANK, Archive, environment, run, start, until

# 3,000 lines and some bytes that are no text, on both streams.
LOUD = """
import os, sys
for n in range(3000):
    os.write(1, b"line %d \\x00\\xff\\r\\n" % n)
    os.write(2, b"error %d\\n" % n)
os.write(1, b"no line end")
sys.exit(7)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_output_and_status_of_the_command_pass_through_unchanged(tmp_path: Path) -> None:
    plain = subprocess.run([sys.executable, "-c", LOUD], capture_output=True, check=False)
    status, out, err = run(tmp_path, "-q", "-o", "a", "--", sys.executable, "-c", LOUD)
    assert (status, out, err) == (7, plain.stdout, plain.stderr)
    archive = Archive(tmp_path / "a.psmkit.tar.zst")
    copy = archive.members[archive.under("output")[0]]
    assert sorted(copy.splitlines()) == sorted(plain.stdout.splitlines() + plain.stderr.splitlines())
    assert archive.manifest["ended"]["status"] == 7


def test_order_is_kept_where_both_streams_are_one(tmp_path: Path) -> None:
    plain = subprocess.run([sys.executable, "-c", LOUD], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    status, out, _ = run(tmp_path, "-q", "-o", "a", "--", sys.executable, "-c", LOUD, stderr=subprocess.STDOUT)
    assert (status, out) == (7, plain.stdout)
    archive = Archive(tmp_path / "a.psmkit.tar.zst")
    assert archive.members[archive.under("output")[0]] == plain.stdout


def test_standard_input_reaches_the_command(tmp_path: Path) -> None:
    process = start(tmp_path, "-q", "-o", "a", "--", "cat", stdin=subprocess.PIPE)
    out, _ = process.communicate(b"one\ntwo", timeout=60)
    assert out == b"one\ntwo"


def test_reader_that_leaves_ends_the_command(tmp_path: Path) -> None:
    with start(tmp_path, "-q", "-o", "a", "--", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait(60) == -signal.SIGPIPE


def test_agent_ends_by_the_signal_that_ended_the_command(tmp_path: Path) -> None:
    status, _, _ = run(tmp_path, "-q", "-o", "a", "--", "sh", "-c", "kill -USR1 $$")
    assert status == -signal.SIGUSR1


@pytest.mark.parametrize(("command", "status"), [("/nowhere/program", 127), ("/etc/passwd", 126)])
def test_command_that_cannot_run_ends_as_in_a_shell_and_leaves_nothing(
    tmp_path: Path, command: str, status: int
) -> None:
    found, out, err = run(tmp_path, "-o", "a", "--", command)
    assert (found, out) == (status, b"")
    assert err.startswith(f"psmkit: cannot run {command}: ".encode())
    assert not list(tmp_path.iterdir())


def test_folder_that_cannot_be_written_is_refused_before_the_command_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, out, err = run(tmp_path, "-o", "file/a", "--", "echo", "ran")
    assert (status, out) == (2, b"")
    assert b"cannot record into" in err
    assert b"-o NAME" in err


def test_existing_archive_is_never_overwritten(tmp_path: Path) -> None:
    assert run(tmp_path, "-q", "-o", "a", "--", "true")[0] == 0
    before = (tmp_path / "a.psmkit.tar.zst").read_bytes()
    status, _, err = run(tmp_path, "-o", "a", "--", "true")
    assert status == 2
    assert b"exists already" in err
    assert (tmp_path / "a.psmkit.tar.zst").read_bytes() == before


def test_user_settings_stay_and_are_named(tmp_path: Path) -> None:
    status, out, err = run(
        tmp_path,
        "-v",
        "-o",
        "a",
        "--",
        "sh",
        "-c",
        "echo $NCCL_DEBUG $NCCL_DEBUG_TIMESTAMP_LEVELS",
        env={"NCCL_DEBUG": "WARN"},
    )
    assert (status, out) == (0, b"WARN INFO,WARN,TRACE\n")
    assert b"NCCL_DEBUG=WARN is your setting and stays; psmkit would set INFO" in err
    assert b"set TORCH_FR_BUFFER_SIZE=2000" in err
    assert b"set PSM_RECORD_KEEP=1" in err


def test_secrets_are_masked_in_the_archive(tmp_path: Path) -> None:
    run(
        tmp_path, "-q", "-o", "a", "--", *RANK, "--api-key", "pass-the-word", "token=pass-the-word",
        env={"HF_TOKEN": "pass-the-word", "PROXY": "http://me:pass-the-word@proxy:80"},
    )  # fmt: skip
    archive = Archive(tmp_path / "a.psmkit.tar.zst")
    assert not [name for name, data in archive.members.items() if b"pass-the-word" in data]
    assert '"HF_TOKEN": "(masked)"' in archive["facts/environment.json"]
    assert archive.manifest["command"][-3:] == ["--api-key", "(masked)", "token=(masked)"]


def test_analysis_reads_the_logs_of_an_archive_and_none_of_its_facts(tmp_path: Path) -> None:
    run(tmp_path, "-q", "-o", "a", "--", *RANK, "steps=3")
    found = {item.path.partition(":a/")[2] for item in discover([tmp_path / "a.psmkit.tar.zst"])}
    assert {name.partition("/")[0] for name in found} == {"logs", "output", "record.log"}


def test_death_of_a_rank_takes_the_stacks_of_the_others(tmp_path: Path) -> None:
    # the rank lives until the agent has seen it: one that dies before the first look is unknown
    ranks = " & ".join(
        f"RANK={rank} {' '.join(RANK)} steps=10 only=1 sleep=4 die=SIGSEGV only=0 sleep=60" for rank in (0, 1)
    )
    process = start(tmp_path, "-o", "a", "--", "sh", "-c", f"({ranks} & wait)")
    assert process.stderr is not None
    assert b"taking evidence of the others" in process.stderr.readline()
    until(lambda: list(tmp_path.glob("a.psmkit/stacks/1/*")), "stacks")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    archive = Archive(tmp_path / "a.psmkit.tar.zst")
    assert archive.kinds[:2] == ["start", "death"]
    assert len(archive.under("stacks")) == 1
    report = psmkit.analyze([tmp_path / "a.psmkit.tar.zst"])
    dead = [p for p in archive.manifest["processes"] if p["signal"] == signal.SIGSEGV]
    if dead:  # else its shell was faster, and took the status
        assert report.verdict is Verdict.FAILED
        assert [c.rank for c in report.culprits] == [1]


def test_interrupt_takes_evidence_first_and_then_reaches_the_command(tmp_path: Path) -> None:
    process = start(tmp_path, "-o", "a", "--", *RANK, "steps=2", "sleep=600")
    until(lambda: list(tmp_path.glob("a.psmkit/logs/*")), "a log")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode in (1, 130, -signal.SIGINT)  # as Python ends at an interrupt
    archive = Archive(tmp_path / "a.psmkit.tar.zst")
    assert archive.kinds == ["start", "interrupt", "interrupt", "end"]
    assert len(archive.under("stacks")) == 1
    assert "Ctrl-C: the user ended the job, after its evidence was taken" in archive["record.log"]
    assert b"a second Ctrl-C ends it now" in err
    assert psmkit.analyze([tmp_path / "a.psmkit.tar.zst"]).verdict is Verdict.INCONCLUSIVE


def test_further_interrupts_end_a_command_that_ignores_them(tmp_path: Path) -> None:
    deaf = "import signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
    with start(tmp_path, "-q", "-o", "a", "--", sys.executable, "-c", deaf) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"deaf\n"
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert process.wait(60) == -signal.SIGKILL
        assert (tmp_path / "a.psmkit.tar.zst").exists()


def test_stall_writes_an_archive_while_the_job_goes_on(tmp_path: Path) -> None:
    with start(tmp_path, "-o", "a", "--stall", "2", "--", *RANK, "steps=3", "sleep=15", "steps=5") as process:
        target = tmp_path / "a.psmkit.tar.zst"
        until(target.exists, "the archive of the stall")
        first = Archive(target)
        assert process.poll() is None
        assert "hang" in first.kinds
        assert first.under("stacks")
        assert process.wait(120) == 0
        last = Archive(target)
        assert last.kinds[0] == "start"
        assert last.kinds[-1] == "end"
        assert "stood still" not in last["record.log"]
        assert not (tmp_path / "a.psmkit").exists()


def test_job_that_stands_still_is_ended_on_request_and_says_so(tmp_path: Path) -> None:
    status, _, _ = run(tmp_path, "-q", "-o", "a", "--stall", "2", "--end", "--", *RANK, "steps=3", "sleep=600")
    assert status == -signal.SIGTERM
    archive = Archive(tmp_path / "a.psmkit.tar.zst")
    assert "stood still for" in archive["record.log"]
    assert "the job was ended because it hung (--end)" in archive["record.log"]


def test_killed_agent_loses_nothing_and_its_job_ends(tmp_path: Path) -> None:
    with start(tmp_path, "-o", "a", "--", *RANK, "steps=3", "sleep=600") as process:
        log = until(lambda: list(tmp_path.glob("a.psmkit/logs/*.log")), "a log")[0]
        until(lambda: (tmp_path / "a.psmkit/manifest.json").exists(), "the manifest")
        refused = subprocess.run(
            [*PSMKIT, "record", "--salvage", "a.psmkit"], cwd=tmp_path, capture_output=True, check=False
        )
        assert refused.returncode == 2
        assert b"is in use" in refused.stderr
        process.kill()
        process.wait()
        pid = int(log.name.split(".")[2])
        until(lambda: not alive(pid), "the end of the job")
        written = log.read_bytes()
        assert subprocess.run([*PSMKIT, "record", "--salvage", "a.psmkit"], cwd=tmp_path, check=False).returncode == 0
        archive = Archive(tmp_path / "a.psmkit.tar.zst")
        assert archive.members[f"logs/{log.name}"] == written
        assert archive.manifest["ended"] is None
        assert archive.manifest["agent_lost"] > archive.manifest["started"]
        assert not (tmp_path / "a.psmkit").exists()


def test_logs_that_the_user_sends_elsewhere_are_salvaged(tmp_path: Path) -> None:
    env = {"NCCL_DEBUG_FILE": str(tmp_path / "own.log")}
    with start(tmp_path, "-o", "a", "--", *RANK, "steps=3", "sleep=600", env=env) as process:
        manifest = tmp_path / "a.psmkit/manifest.json"
        until(lambda: manifest.exists() and "own.log" in manifest.read_text().partition('"elsewhere"')[2], "its path")
        process.kill()
        process.wait()
    assert subprocess.run([*PSMKIT, "record", "--salvage", "a.psmkit"], cwd=tmp_path, check=False).returncode == 0
    archive = Archive(tmp_path / "a.psmkit.tar.zst")
    assert archive.members["copied/own.log"] == (tmp_path / "own.log").read_bytes()
    assert "the agent was killed; how the command ended is unknown" in archive["record.log"]


def test_command_without_a_line_of_nccl_gives_an_archive_with_a_verdict(tmp_path: Path) -> None:
    assert run(tmp_path, "-q", "-o", "a", "--", "sh", "-c", "exit 3")[0] == 3
    report = psmkit.analyze([tmp_path / "a.psmkit.tar.zst"])
    assert report.verdict is Verdict.FAILED
    assert report.reason == "the command exited with status 3 and printed nothing of NCCL"


def test_salvage_refuses_other_folders(tmp_path: Path) -> None:
    done = subprocess.run([*PSMKIT, "record", "--salvage", str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"is no folder of a recording" in done.stderr


def test_record_within_record_only_runs_its_command(tmp_path: Path) -> None:
    status, out, _ = run(tmp_path, "-q", "-o", "a", "--", *PSMKIT, "record", "-o", "b", "--", "echo", "in")
    assert (status, out) == (0, b"in\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.psmkit.tar.zst"]


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    run(tmp_path, "-q", "-o", "a", "--", *RANK, "steps=2")
    assert [path.name for path in tmp_path.iterdir()] == ["a.psmkit.tar.zst"]
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "record" in name}
    mine = str(tmp_path).encode()
    assert not [
        p for p in Path("/proc").glob("[0-9]*/cmdline") if p.parent.name != str(os.getpid()) and mine in read(p)
    ]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_terminal_stays_one_with_its_size_and_keys(tmp_path: Path) -> None:
    program = "import sys, os; print([os.isatty(n) for n in (0, 1, 2)], os.get_terminal_size()); print('got', input())"
    child = pexpect.spawn(
        PSMKIT[0], [*PSMKIT[1:], "record", "-q", "-o", "a", "--", sys.executable, "-c", program],
        cwd=str(tmp_path), env=environment(), dimensions=(31, 97), timeout=60,
    )  # fmt: skip
    child.expect_exact("[True, True, True] os.terminal_size(columns=97, lines=31)\r\n")
    child.sendline("a line")
    child.expect_exact("got a line\r\n")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    copy = Archive(tmp_path / "a.psmkit.tar.zst")
    assert copy[copy.under("output")[0]].endswith("got a line\n")


def test_interrupt_key_of_a_terminal_reaches_the_command_after_the_evidence(tmp_path: Path) -> None:
    child = pexpect.spawn(
        PSMKIT[0], [*PSMKIT[1:], "record", "-o", "a", "--", *RANK, "steps=1", "sleep=600"],
        cwd=str(tmp_path), env=environment(), timeout=60,
    )  # fmt: skip
    child.expect_exact("rank 0 runs")
    until(lambda: list(tmp_path.glob("a.psmkit/logs/*")), "a log")
    child.sendcontrol("c")
    child.expect_exact("taking evidence, then Ctrl-C reaches the command")
    child.expect_exact("KeyboardInterrupt")
    child.expect(pexpect.EOF)
    child.close()
    assert Archive(tmp_path / "a.psmkit.tar.zst").kinds == ["start", "interrupt", "interrupt", "end"]


def test_old_kernels_without_pidfds_are_enough(tmp_path: Path) -> None:
    code = (
        "from psmkit.live import procfs\n"
        "procfs.pidfd = lambda pid: -1\n"
        "from psmkit.live.recording import agent\n"
        "code = agent.record(['sh', '-c', 'echo out; exit 4'], agent.Options(name='a', quiet=True))\n"
        "agent.leave(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (4, b"out\n"), done.stderr
    assert (tmp_path / "a.psmkit.tar.zst").exists()


def test_ignored_hangup_stays_ignored(tmp_path: Path) -> None:
    with start(tmp_path, "-q", "-o", "a", "--", *RANK, "sleep=3", preexec_fn=ignore_hangup) as process:
        until(lambda: list(tmp_path.glob("a.psmkit/logs/*")), "a log")
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0


def ignore_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@pytest.mark.slow
def test_lab_job_that_a_fault_stops_is_hung_with_its_culprit(tmp_path: Path) -> None:
    status, _, err = run(
        tmp_path, "-o", "a", "--stall", "3", "--end", "--ignore-output", "--", *PSMKIT, "lab", "run",
        "--ranks", "2", "--fault", "p2p.connect:hang,rank=1", "--deadline", "170", "--out", "lab",
    )  # fmt: skip
    assert status == -signal.SIGTERM, err
    archive = Archive(tmp_path / "a.psmkit.tar.zst")
    assert archive["record.log"].count("stood still") == 2
    report = psmkit.analyze([tmp_path / "a.psmkit.tar.zst"])
    assert report.verdict is Verdict.HUNG
    assert [c.rank for c in report.culprits] == [1]
    # The logs alone do not show where rank 1 stands. Rank 0, which did all its steps, is not to blame.
    (tmp_path / "logs").mkdir()
    for name in ("record.log", *archive.under("copied")):
        kept = "".join(line for line in archive[name].splitlines(keepends=True) if "PSM_FAULTS" not in line)
        (tmp_path / "logs" / name.rpartition("/")[2]).write_text(kept)
    assert 0 not in [c.rank for c in psmkit.analyze([tmp_path / "logs"]).culprits]


def test_agent_starts_without_what_only_evidence_needs() -> None:
    """The agent's start is its main cost; numpy and the readers of stacks were two thirds of it."""
    code = "import sys, psmkit.live.recording.agent; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "psmkit.logparse", "psmkit.live.inspect"}.intersection(loaded)
