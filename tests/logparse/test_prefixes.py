"""What may stand before a message."""

from __future__ import annotations

import pytest

from tests.logparse.conftest import Scan

BODY = "NCCL INFO Using network IB\n"


@pytest.mark.parametrize(
    ("line", "tag"),
    [
        ("node1:17:23 [3] ", None),
        ("[2026-11-21 01:35:22] node1:17:23 [3] ", None),
        ("2026-11-21T01:35:22.123Z node1:17:23 [3] ", None),
        ("2026-11-21 01:35:22,123 node1:17:23 [3] ", None),
        ("Nov 21 01:35:22 myhost kubelet[77]: node1:17:23 [3] ", None),
        ("[1,12]<stdout>:node1:17:23 [3] ", "[1,12]"),
        ("[1,12]<stderr>: node1:17:23 [3] ", "[1,12]"),
        ("[rank2]:node1:17:23 [3] ", "[rank2]"),
        ("[default2]:node1:17:23 [3] ", "[default2]"),
        ("[2]:node1:17:23 [3] ", "[2]"),
        ("12: node1:17:23 [3] ", "12"),
        (" 2: node1:17:23 [3] ", "2"),
        ("(Worker pid=99, ip=10.0.0.1) node1:17:23 [3] ", "(Worker pid=99, ip=10.0.0.1)"),
        ("[pod/job-worker-0/main] node1:17:23 [3] ", "[pod/job-worker-0/main]"),
        ("trainer-1  | node1:17:23 [3] ", "trainer-1"),
        ("job-worker-1: node1:17:23 [3] ", "job-worker-1"),
        ("> node1:17:23 [3] ", None),
        ("> > \tnode1:17:23 [3] ", None),
        ("\x1b[36mnode1:17:23\x1b[0m [3] ", None),
        ("ESC[36mnode1:17:23 [3] ", None),
        ("^[[0mnode1:17:23 [3] ", None),
        ("\\x1b[32mnode1:17:23 [3] ", None),
        ("\x00\x00node1:17:23 [3] ", None),
        ("node9:1:7121node1:17:23 [3] ", None),
        ("\xff\xfe node1:17:23 [3] ", None),
        ("epoch 3: 40%|####      |\rnode1:17:23 [3] ", None),
    ],
)
def test_noise_before_the_host_does_not_hide_it(scan_text: Scan, line: str, tag: str | None) -> None:
    result = scan_text((line + BODY).encode("latin-1"))
    (process,) = result.processes
    (event,) = result.events
    assert (process.host, process.pid, process.tag) == ("node1", 17, tag)
    assert (result.threads[0].tid, event.device, event.name, event.tag) == (23, 3, "net", tag)


@pytest.mark.parametrize(
    ("line", "host"),
    [(":17:23 [3] ", ""), ("<cluster_name>:17:23 [3] ", "<cluster_name>"), ("a-b.c_d:17:23 [3] ", "a-b.c_d")],
)
def test_hosts_of_any_form(scan_text: Scan, line: str, host: str) -> None:
    result = scan_text(line + BODY)
    assert [(p.host, p.pid) for p in result.processes] == [(host, 17)]


def test_time_stamps_are_kept_as_printed(scan_text: Scan) -> None:
    result = scan_text("[2026-11-21 01:35:22] n:1:2 [0] " + BODY)
    assert result.events[0].time == "2026-11-21 01:35:22"


def test_a_time_is_not_taken_for_a_host(scan_text: Scan) -> None:
    result = scan_text("01:35:22 " + BODY)
    assert not result.processes
    assert [e.name for e in result.events] == ["net"]


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("n:1:2 [0] transport/p2p.cc:590 NCCL WARN ", "transport/p2p.cc:590"),
        ("n:1:2 [0] misc/socket.cc:59 (socketProgress) NCCL WARN ", "misc/socket.cc:59"),
        ("[2026-11-21 01:35:22] n:1:2 [0] include/shm.h:48 NCCL WARN ", "include/shm.h:48"),
    ],
)
def test_a_warning_names_its_place(scan_text: Scan, line: str, where: str) -> None:
    result = scan_text("\n" + line + "Call to socket failed : refused\n")
    (event,) = result.events
    assert (event.name, event.level, event.where, event.device, event.ref.line) == ("warn.call", "WARN", where, 0, 2)
    assert event.fields == {"call": "socket", "reason": "refused"}


def test_calls_and_traces(scan_text: Scan) -> None:
    result = scan_text("n:1:2 NCCL CALL Using network A\nn:1:2 [0] 12.345678 initNet:77 NCCL TRACE Using network B\n")
    assert [(e.level, e.device, e.fields["name"], e.where) for e in result.events] == [
        ("CALL", None, "A", None),
        ("TRACE", 0, "B", "initNet:77"),
    ]


@pytest.mark.parametrize("tag", ["NCCL", "RCCL", "VCCL", "FLAGCX"])
def test_tags_of_forks(scan_text: Scan, tag: str) -> None:
    result = scan_text(f"n:1:2 [0] {tag} INFO Using network IB\n")
    assert [e.name for e in result.events] == ["net"]


def test_the_same_rank_under_two_streams_of_mpirun_is_one_process(scan_text: Scan) -> None:
    result = scan_text(f"[1,0]<stdout>:n:1:2 [0] {BODY}[1,0]<stderr>:n:1:2 [0] {BODY}[1,1]<stdout>:n:1:2 [0] {BODY}")
    assert [(p.tag, p.lines) for p in result.processes] == [("[1,0]", 2), ("[1,1]", 1)]


def test_a_version_line_has_no_prefix(scan_text: Scan) -> None:
    result = scan_text("NCCL version 2.18.3+cuda12.1\n")
    (event,) = result.events
    assert (event.name, event.proc, event.thread, event.fields) == ("version", -1, -1, {"version": "2.18.3+cuda12.1"})


@pytest.mark.parametrize("cut", ["Conne", "parent 0x55cd375", "Connected "])
def test_the_rest_of_a_cut_word_is_no_part_of_a_host(cut: str, scan_text: Scan) -> None:
    text = f"g183:1161264:17 [7] {BODY}g183:1161264:17 [7] NCCL INFO [Service thread] {cut}g183:1161262:19 [5] {BODY}"
    assert {p.host for p in scan_text(text).processes} == {"g183"}


def test_a_host_whose_name_ends_with_another_name_is_a_host(scan_text: Scan) -> None:
    text = (
        f"worker-0:1161264:17 [7] {BODY}worker-0:1161264:17 [7] NCCL INFO Connected pod-worker-0:1161262:19 [5] {BODY}"
    )
    assert {p.host for p in scan_text(text).processes} == {"worker-0", "pod-worker-0"}
