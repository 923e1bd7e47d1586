"""Processes of many hosts are inspected beside each other; one that fails is named, and holds up no other."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from psmkit.live import hosts
from psmkit.live.hosts import Target
from psmkit.live.inspect import Options
from psmkit.model.errors import PsmkitError
from psmkit.model.inspection import InspectedThread, Inspection, to_json
from tests.live.processes import process

#: A host that answers, one that prints an error, one that hangs, one that prints nonsense, one that prints nothing.
ANSWERS = """
import json, sys, time
host, pid = sys.argv[1], int(sys.argv[2])
if host == "good":
    document = json.load(open(sys.argv[3]))
    print(json.dumps(document | {"host": host, "pid": pid}))
elif host == "refuses":
    sys.exit("ssh: connect to host refuses port 22: Connection refused")
elif host == "hangs":
    time.sleep(600)
elif host == "nonsense":
    print("motd: welcome")
"""


@pytest.fixture
def via(tmp_path: Path) -> str:
    script, document = tmp_path / "answer.py", tmp_path / "document.json"
    script.write_text(ANSWERS)
    thread = InspectedThread(1, "a", "thread", "elsewhere", "sleeps", "S")
    document.write_text(json.dumps(to_json(Inspection(1, "x", ("a",), 1.0, threads=(thread,)))))
    return shlex.join([sys.executable, str(script), "{host}", "{pid}", str(document)])


def ask(targets: list[Target], via: str | None, deadline: float = 60.0) -> list[Inspection]:
    return hosts.inspect_all(targets, Options(tool="none"), via=via, deadline=deadline, parallel=8)


def test_answers_come_in_order_and_failures_are_named(via: str) -> None:
    targets = [
        Target("refuses", 1),
        Target("good", 2),
        Target("nonsense", 3, 7),
        Target("nothing", 4),
        Target("good", 5),
    ]
    found = ask(targets, via)
    assert [(one.host, one.pid, bool(one.threads)) for one in found] == [
        ("refuses", 1, False),
        ("good", 2, True),
        ("nonsense", 3, False),
        ("nothing", 4, False),
        ("good", 5, True),
    ]
    assert "Connection refused" in found[0].notes[0].what and "refuses 1" in found[0].notes[0].remedy
    assert found[2].rank == 7 and found[2].notes
    assert "printed nothing" in found[3].notes[0].what


def test_host_that_hangs_holds_up_no_other(via: str) -> None:
    found = ask([Target("hangs", 1), Target("good", 2)], via, deadline=5.0)
    assert "no answer within" in found[0].notes[0].what and found[1].threads


def test_command_that_is_not_there_is_named() -> None:
    (found,) = ask([Target("a", 1)], "/nonexistent/ssh {host} {pid}")
    assert "cannot run /nonexistent/ssh" in found.notes[0].what


def test_other_host_needs_a_command() -> None:
    (found,) = ask([Target("elsewhere.example", 1)], None)
    assert "on another host" in found.notes[0].what and "--via" in found.notes[0].remedy


def test_process_of_this_host_needs_none() -> None:
    with process("input(print('up', flush=True) or '')") as child:
        found = ask([Target("localhost", child.pid), Target("localhost", 4_194_303_9)], None)
    assert found[0].threads and not found[1].threads and "no such process" in found[1].notes[0].what


def test_file_of_ranks_is_read_with_its_comments(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    path.write_text("# host pid rank\nnode1 11 0\n\nnode2 12   # the other\n")
    assert hosts.read_targets(str(path)) == [Target("node1", 11, 0), Target("node2", 12, None)]


@pytest.mark.parametrize("line", ["node1", "node1 x", "node1 1 2 3", "-oProxyCommand=x 1", "node1 -1"])
def test_wrong_line_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "ranks"
    path.write_text(f"node0 1\n{line}\n")
    with pytest.raises(PsmkitError, match="line 2: expected `host pid"):
        hosts.read_targets(str(path))


def test_empty_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    for name in ("empty", "missing"):
        with pytest.raises(PsmkitError):
            hosts.read_targets(str(tmp_path / name))


@pytest.mark.parametrize(
    "template", ["ssh {host} psmkit inspect", "ssh {host} {user} {pid}", "ssh 'x {pid}", "ssh {host} {pid"]
)
def test_command_that_cannot_name_the_process_is_refused(template: str) -> None:
    with pytest.raises(PsmkitError, match="--via"):
        hosts.check_template(template)


def test_shell_does_not_read_what_the_file_names(tmp_path: Path) -> None:
    """A word of the file stays one word of the command."""
    made = tmp_path / "made"
    (found,) = ask([Target(f"$(touch${{IFS}}{made})", 1)], f"{sys.executable} -c 0 {{host}} {{pid}}")
    assert not made.exists() and not found.threads


def test_looks_of_a_process_have_names_of_their_own() -> None:
    one = Inspection(7, "a/b", ("a",), 1.0)
    assert [hosts.file_name(one, look) for look in (1, 2)] == ["a_b-7.inspect.json", "a_b-7.2.inspect.json"]
