"""Torn, glued, coloured and damaged lines."""

from __future__ import annotations

import pytest

from psmkit.catalogue import load
from psmkit.logparse.types import Ref
from tests.logparse.conftest import Scan

P = "node201:1:2 [0] NCCL INFO "
Q = "node201:1:3 [1] NCCL INFO "


def test_two_records_on_one_line_are_two_records(scan_text: Scan) -> None:
    result = scan_text(f"{P}Using network A\n{P}Received and initiated operation=Init res=0{Q}Using network B\n")
    assert result.totals.glued == 1
    assert {(c.name, c.count) for c in result.counts} == {("net", 2), ("begun", 1)}
    assert [(e.fields["name"], result.threads[e.thread].tid) for e in result.events] == [("A", 2), ("B", 3)]


def test_prose_between_glued_records_belongs_to_neither(scan_text: Scan) -> None:
    result = scan_text(f"{P}Received and initiated operation=Init res=0 some words 有的 {Q}Using network B\n")
    assert {c.name for c in result.counts} == {"net", "begun"}


def test_a_torn_record_is_counted_and_not_invented(scan_text: Scan) -> None:
    result = scan_text(f"{P}Using network A\n{P}ncclPollProxyResponse Recei{Q}Using network B\n{P}Allocated buff\n")
    assert (result.totals.torn, result.totals.unmatched) == (2, 0)
    assert [e.fields["name"] for e in result.events] == ["A", "B"]


def test_a_prefix_without_a_message_is_torn(scan_text: Scan) -> None:
    assert scan_text(f"{P}\nnode201:1:2 [0] NCCL INFO").totals.torn == 2


def test_a_number_cut_by_the_end_of_the_file_is_not_believed(scan_text: Scan) -> None:
    result = scan_text(f"{P}ncclPollProxyResponse Received new opId=0x7f")
    assert (result.totals.torn, result.totals.matched) == (1, 0)
    assert not result.files[0].complete_end


def test_a_whole_last_line_without_its_end_is_read(scan_text: Scan) -> None:
    result = scan_text(f"{P}proxyProgressAsync opId=0x1 op.type=1 op.reqBuff=(nil) op.respSize=16 done")
    assert result.totals.matched == 1


@pytest.mark.parametrize("end", ["\r", "  ", "\x1b[0m", "^[[0m", "\t\r", "\x00"])
def test_ends_of_lines_do_not_matter(scan_text: Scan, end: str) -> None:
    result = scan_text(f"{P}Using network IB{end}\n")
    assert [e.fields for e in result.events] == [{"name": "IB"}]


@pytest.mark.parametrize("colour", ["\x1b[1;31m", "ESC[31m", "\\033[31m", "\\u001b[31m"])
def test_colours_inside_a_message_are_dropped(scan_text: Scan, colour: str) -> None:
    result = scan_text(f"{P}Using {colour}network IB\n")
    assert [e.fields for e in result.events] == [{"name": "IB"}]


def test_rays_repetitions_are_counted(scan_text: Scan) -> None:
    result = scan_text(f"(W pid=1, ip=::1) {P}Using network IB [repeated 7x across cluster]\n")
    assert [(e.count, e.fields) for e in result.events] == [(7, {"name": "IB"})]


def test_unknown_lines_are_counted_by_shape(scan_text: Scan) -> None:
    result = scan_text(f"{P}frobnicated 12 of 0x7f00aa\n{P}frobnicated 7 of 0x1\n{P}another thing\n")
    assert [(s.shape, s.count, s.first.line) for s in result.shapes] == [
        ("frobnicated N of X", 2, 1),
        ("another thing", 1, 3),
    ]
    assert result.totals.unmatched == 3


def test_an_unknown_warning_is_an_event(scan_text: Scan) -> None:
    result = scan_text("n:1:2 [0] init.cc:12 NCCL WARN strange thing 12\n")
    (event,) = result.events
    assert (event.name, event.fields, event.where) == ("unmatched.warn", {"text": "strange thing 12"}, "init.cc:12")


def test_lines_of_others_are_not_nccls(scan_text: Scan) -> None:
    result = scan_text("step 1 loss 3.2\n\nabout the NCCL library\nNCCL\n")
    assert (result.totals.other, result.totals.matched, result.totals.unmatched, result.totals.lines) == (3, 0, 0, 4)


def test_a_line_of_the_framework_glued_before_a_record_is_found(scan_text: Scan) -> None:
    text = "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, x) "
    result = scan_text(text + P + "Using network IB\n" + text + "\n")
    assert sorted(e.name for e in result.events) == ["net", "watchdog", "watchdog"]
    assert [e.tag for e in result.events if e.name == "watchdog" and e.ref.line == 2] == ["[rank1]"]


def test_very_long_lines_are_cut_and_told(scan_text: Scan) -> None:
    result = scan_text(f"{P}Using network A\n" + "x" * (3 << 20) + f"\n{P}Using network B\n")
    assert [e.fields["name"] for e in result.events] == ["A", "B"]
    assert [e.ref.line for e in result.events] == [1, 3]
    assert any("1 MiB" in note for note in result.notes)


def test_broken_bytes_break_nothing(scan_text: Scan) -> None:
    result = scan_text(b"\x00\xff\xfe\x80" * 9 + b"\n" + P.encode() + b"Using network \xff\xfe\x00z\n")
    assert result.events[0].fields["name"] == "\ufffd\ufffd\x00z"
    assert result.text(result.events[0].ref).endswith("\ufffd\x00z")


def test_a_message_that_quotes_a_tag_stays_one_record(scan_text: Scan) -> None:
    result = scan_text(f"{P}NCCL_DEBUG set by environment to NCCL INFO please\n")
    assert result.totals.glued == 0
    assert result.events[0].fields == {"name": "NCCL_DEBUG", "value": "NCCL INFO please"}


def _lines(*prefixes: str) -> str:
    return "".join(f"{p} NCCL INFO Using network IB{i}\n" for i, p in enumerate(prefixes))


def test_text_glued_to_a_host_makes_no_second_host(scan_text: Scan) -> None:
    result = scan_text(_lines("ew0:65704:65711 [1]", "0mew0:65704:65711 [1]", "12.5ew0:65704:65720 [1]"))
    (process,) = result.processes
    assert (process.host, process.pid, process.lines, process.damaged) == ("ew0", 65704, 3, 2)
    assert result.totals.glued == 2
    assert [e.proc for e in result.events] == [0, 0, 0]


def test_process_whose_first_line_is_glued_gets_its_name_from_the_next(scan_text: Scan) -> None:
    result = scan_text(_lines("0mew0:65704:65711 [1]", "ew0:65704:65711 [1]", "0mew0:65704:65711 [1]"))
    assert [(p.host, p.lines) for p in result.processes] == [("ew0", 3)]


def test_host_without_its_head_is_the_host_that_printed_much_before(scan_text: Scan) -> None:
    usual = ["vm:31279:31279 [1]"] * 20
    result = scan_text(_lines(*usual, "fm:31279:31279 [1]", "m:31279:31279 [1]", *["m:31279:31290 [1]"] * 4))
    assert [(p.host, p.lines, bool(p.damaged)) for p in result.processes] == [("vm", 25, True), ("fm", 1, False)]


def test_host_without_a_head_stays_one_of_its_own_where_nothing_else_agrees(scan_text: Scan) -> None:
    usual = ["vm:31279:31279 [1]", "my-worker-0:31279:31279 [1]", "node1:7:7 [1]"] * 20
    result = scan_text(_lines(*usual, "m:31280:31280 [1]", "worker-0:31279:31279 [1]", "ode1:7:9 [1]"))
    assert [p.lines for p in result.processes] == [20, 20, 20, 1, 1, 1]
    assert not any(p.damaged for p in result.processes)


def test_hosts_whose_names_end_alike_stay_apart(scan_text: Scan) -> None:
    result = scan_text(
        _lines(
            "worker-0:7001:7001 [0]",
            "my-worker-0:7001:7001 [0]",
            "node1:1:1 [0]",
            "anode1:1:9 [0]",
            "n2:801:1 [0]",
            "bn2:803:1 [0]",
        )
    )
    assert [p.host for p in result.processes] == ["worker-0", "my-worker-0", "node1", "anode1", "n2", "bn2"]
    assert not result.totals.glued and not any(p.damaged for p in result.processes)


def test_damaged_lines_are_counted_for_their_process(scan_text: Scan) -> None:
    result = scan_text("a:7:7 [0] NCCL INFO\n" + _lines("a:7:7 [0]", "b:8:8 [0]"))
    assert [(p.host, p.damaged) for p in result.processes] == [("a", 1), ("b", 0)]


def test_links_that_an_issue_tracker_made_of_addresses_are_read_as_their_texts(scan_text: Scan) -> None:
    where, peer = "[net_ib.cc:1909](http://net_ib.cc:1909/)", "[10.0.0.2](https://10.0.0.2)"
    text = "n0:17:23 [3] transport/{} NCCL WARN NET/IB : Got completion from peer {}<33057> with status=12 opcode=0 len=0 vendor err 129 (Send)\n"
    linked = scan_text("first\n" + text.format(where, peer) + f"{P}Using network IB\n", catalogue=load())
    ((event, _), quote) = linked.events, linked.evidence(linked.events[0].ref)
    plain = scan_text(
        "first\n" + text.format("net_ib.cc:1909", "10.0.0.2") + f"{P}Using network IB\n", catalogue=load()
    )
    ((same, _), other) = plain.events, plain.evidence(plain.events[0].ref)
    assert (event.name, event.fields) == ("ib.completion.retry_exceeded", same.fields)
    assert event.fields["peer"] == "10.0.0.2<33057>"
    assert quote.text == other.text
    assert linked.totals.matched == plain.totals.matched == 2


def test_a_link_is_seen_wherever_it_stands_in_the_text(scan_text: Scan) -> None:
    lines = [f"{'x' * at}\nn0:1:2 [0] NCCL INFO Using network [a.b:{at}](http://a.b:{at}/)\n" for at in range(300)]
    result = scan_text("".join(lines) + "\n" * 1000)
    assert [e.fields["name"] for e in result.events] == [f"a.b:{at}" for at in range(300)]


@pytest.mark.parametrize(
    "words", ["[see](http://10.0.0.2/x)", "[a](http", "[](http://)", "[10.0.0.2](http://10.0.0.2/x)", "[a](http://a"]
)
def test_a_link_of_an_author_stays(words: str, scan_text: Scan) -> None:
    result = scan_text(f"{P}some unknown words {words}\n")
    assert result.evidence(Ref(0, 1, 0)).text == f"{P}some unknown words {words}"
