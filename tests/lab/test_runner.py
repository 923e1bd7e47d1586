"""Ranks that behave, hang, die, stop, leave early, talk nonsense, and leave things behind: what the runner makes of them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from pathlib import Path

import pytest

from psmkit.lab import leftovers
from psmkit.lab.cuda import LabError
from psmkit.lab.runner import Outcome
from psmkit.live import procfs
from tests.lab.standin import play

SHORT = 2.0  # for runs that are meant to expire


def states(outcome: Outcome) -> list[str]:
    return [rank.state for rank in outcome.ranks]


def gone(outcome: Outcome) -> bool:
    """No process of the run is left, not even as a zombie."""
    return not any(Path(f"/proc/{rank.pid}").exists() for rank in outcome.ranks)


def descriptors() -> set[str]:
    links = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return links


def test_ranks_meet_and_exchange_and_report(tmp_path: Path) -> None:
    code = """
rank.stage('talk')
assert rank.gather(bytes([me]) * 3) == [bytes([r]) * 3 for r in range(3)]
assert rank.exchange({(me + 1) % 3: b'from %d' % me}) == {(me - 1) % 3: b'from %d' % ((me - 1) % 3)}
rank.barrier('end')
rank.report({'status': 'PSM_OK', 'square': me * me})
print('said by', me)
"""
    outcome = play(tmp_path, code, ranks=3, reports=1)
    assert outcome.good and not outcome.expired
    assert [rank.reports[0]["square"] for rank in outcome.ranks] == [0, 1, 4]
    assert {rank.stage for rank in outcome.ranks} == {"talk"}
    assert Path(outcome.ranks[2].output).read_text() == "said by 2\n"
    assert gone(outcome)


def test_exchange_of_more_than_a_socket_holds(tmp_path: Path) -> None:
    outcome = play(tmp_path, "assert [len(b) for b in rank.gather(bytes(3_000_000))] == [3_000_000] * 2")
    assert outcome.good, outcome


def test_runs_leave_no_descriptor_open(tmp_path: Path) -> None:
    before = descriptors()
    play(tmp_path / "good", "rank.barrier()")
    play(tmp_path / "bad", "if me: os.kill(os.getpid(), 9)\nrank.barrier()")
    assert descriptors() == before


def test_deadline_tells_who_hung_and_who_waited(tmp_path: Path) -> None:
    code = """
stacks_when_asked()
rank.barrier('begun')
if me == 1:
    rank.stage('lost')
    hang()
rank.barrier('end')
"""
    outcome = play(tmp_path, code, deadline=SHORT, stack_signal=signal.SIGUSR1)
    assert outcome.expired and states(outcome) == ["waiting", "hung"]
    assert outcome.ranks[0].waits == "barrier end" and outcome.ranks[1].stage == "lost"
    texts = [Path(path).read_text() for path in outcome.ranks[1].stacks]
    assert "stage lost" in texts[0] and "thread" in texts[0]  # of gdb, and of /proc where there is none
    assert "in hang" in texts[1]  # its own
    assert gone(outcome)


def test_rank_that_refuses_to_end_is_killed(tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrank.stage('deaf')\nhang()"
    outcome = play(tmp_path, code, deadline=SHORT, grace=0.2)
    assert states(outcome) == ["hung", "hung"] and gone(outcome)
    assert {rank.signal for rank in outcome.ranks} == {signal.SIGKILL}


def test_stopped_rank_is_found_and_ended(tmp_path: Path) -> None:
    code = "if me == 0: os.kill(os.getpid(), signal.SIGSTOP)\nrank.barrier('end')"
    outcome = play(tmp_path, code, deadline=SHORT)
    assert states(outcome) == ["hung", "waiting"] and gone(outcome)
    assert "stopped" in Path(outcome.ranks[0].stacks[0]).read_text()


def test_what_had_failed_before_a_hang_is_told(tmp_path: Path) -> None:
    outcome = play(tmp_path, "rank.trouble('no such file')\nhang()", deadline=SHORT)
    assert "it had said: no such file" in outcome.ranks[0].text
    assert outcome.ranks[0].trouble_at is not None and outcome.ranks[0].trouble_at <= outcome.seconds


def test_killed_rank_is_noticed_at_once_by_who_waits_for_it(tmp_path: Path) -> None:
    code = """
rank.barrier('begun')
if me == 1:
    rank.stage('fatal')
    os.kill(os.getpid(), signal.SIGKILL)
try:
    rank.barrier('end')
except OthersFailedError as error:
    rank.report({'status': 'PSM_OK', 'count': error.count})
"""
    outcome = play(tmp_path, code, ranks=3)
    assert not outcome.expired and states(outcome) == ["good", "died", "good"]
    assert outcome.ranks[1].signal == signal.SIGKILL and "SIGKILL in stage fatal" in outcome.ranks[1].text
    assert [outcome.ranks[r].reports[0]["count"] for r in (0, 2)] == [1, 1]
    assert not outcome.good


def test_what_a_rank_said_before_it_died_is_kept(tmp_path: Path) -> None:
    outcome = play(tmp_path, "rank.report({'status': 'PSM_OK', 'last': me})\nos.kill(os.getpid(), 9)")
    assert states(outcome) == ["died", "died"]
    assert [rank.reports[0]["last"] for rank in outcome.ranks] == [0, 1]


def test_rank_that_exits_early_is_a_failure_although_its_status_is_0(tmp_path: Path) -> None:
    code = "if me == 0: sys.exit(0)\ntry: rank.barrier('end')\nexcept OthersFailedError: pass\nrank.report({'status': 'PSM_OK'})"
    outcome = play(tmp_path, code, reports=1)
    assert states(outcome) == ["failed", "good"] and outcome.ranks[0].text == "ended after 0 of 1 case"


def test_exit_status_comes_with_the_last_line_of_output(tmp_path: Path) -> None:
    outcome = play(tmp_path, "print('the reason', flush=True)\nsys.exit(3)")
    assert {(r.state, r.exit_status, r.text) for r in outcome.ranks} == {("failed", 3, "exit status 3: the reason")}


@pytest.mark.parametrize(
    "garbage",
    [
        r"b'\x00\xff\xfe\n'",
        r"b'report {\n'",
        r"b'report [1]\n'",
        r"b'barrier x\n'",
        r"b'exchange x 7:00\n'",
        r"b'exchange x 0:0\n'",
        r"b'hello 5 1\n'",
        r"b'stage two words\n'",
        r"b'barrier a 0\nbarrier b 0\n'",
    ],
)
def test_garbage_turns_a_rank_away_and_the_others_go_on(tmp_path: Path, garbage: str) -> None:
    code = f"""
if me == 0:
    rank._socket.sendall({garbage})
    try: rank._receive('go', 'x')
    except RunnerGoneError: sys.exit(0)
try: rank.barrier('end')
except OthersFailedError: rank.report({{'status': 'PSM_OK'}})
"""
    outcome = play(tmp_path, code)
    assert not outcome.expired and states(outcome) == ["failed", "good"]
    assert outcome.ranks[0].text.startswith("turned away by the runner: ")
    assert outcome.ranks[1].reports


def test_ranks_that_wait_for_different_things_are_told_at_once(tmp_path: Path) -> None:
    outcome = play(tmp_path, "rank.barrier('left' if me else 'right')")
    assert not outcome.expired and states(outcome) == ["waiting", "waiting"]
    assert "rank 0 waits in barrier right; rank 1 waits in barrier left" in outcome.ranks[0].text
    assert gone(outcome)


def test_process_that_a_rank_leaves_behind_is_told_and_ended(tmp_path: Path) -> None:
    code = "if me: print(subprocess.Popen(['sleep', '1000']).pid, flush=True)"
    outcome = play(tmp_path, code)
    pid = int(Path(outcome.ranks[1].output).read_text())
    assert outcome.processes == [f"{pid} (sleep) of rank 1"] and not outcome.good
    assert states(outcome) == ["good", "good"]
    assert not procfs.in_sessions([outcome.ranks[1].pid])


def test_shared_memory_that_a_rank_leaves_behind_is_told(tmp_path: Path) -> None:
    name = f"psmkit-test-{secrets.token_hex(8)}"
    try:
        outcome = play(tmp_path, f"if me: open('/dev/shm/{name}', 'w').close()")
        assert name in outcome.shared_memory and not outcome.good
    finally:
        os.unlink(f"/dev/shm/{name}")


def test_shared_memory_in_use_by_others_is_not_taken_for_left_behind(tmp_path: Path) -> None:
    memory = leftovers.Memory(tmp_path)
    with open(tmp_path / "used", "w"):
        (tmp_path / "unused").touch()
        assert memory.left() == ["unused"]
    assert memory.left() == ["unused", "used"]


def test_program_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(LabError, match="rank 0 cannot be started"):
        play(tmp_path, "", command=["/nonexistent/program"])
    assert descriptors() == before


def test_program_that_never_speaks_is_a_rank_too(tmp_path: Path) -> None:
    assert play(tmp_path, "", command=["true"]).good
    assert states(play(tmp_path, "", command=["false"])) == ["failed", "failed"]
