"""Settings, releases and networks that differ between ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.facts.settings import SHARED, shared
from psmkit.analysis.pipeline import analyse_job, analyze
from psmkit.model import Report, Severity, Verdict
from psmkit.report import render
from tests.analysis.test_aborts import cuda_failure
from tests.analysis.test_errors import out_of_memory
from tests.analysis.texts import Rank, find, job_of, of, ranks, report_of, watchdog
from tests.loggen import Plan
from tests.losses import stalled


def with_setting(name: str, values: dict[int, str], before: str = "") -> list[Rank]:
    """Ranks that print a setting at the same place of their start; a rank without a value prints nothing."""
    logs = []
    for rank in range(4):
        log = Rank(rank).born()
        if rank in values:
            log.line(f"{name} set by environment to {values[rank]}")
        log.line(f"{log._member()} - Init START").line(
            "24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer"
        )
        logs.append(log.complete())
    return logs


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_PASS_SM",
        "NCCL_PSM_BUFFER_SIZE",
        "NCCL_PSM_P2P_NCHANNELS",
        "NCCL_PSM_FORCE_ZEROCOPY",
        "NCCL_PSM_P2P_NET_CHUNKSIZE",
    ],
)
def test_setting_of_the_transport_that_differs_where_a_connection_fails_is_an_error(name: str, tmp_path: Path) -> None:
    logs = with_setting(name, {0: "1.", 1: "1.", 2: "0.", 3: "1."})
    cuda_failure(logs[0])
    found = of(find("settings", tmp_path, logs), "PSM601")
    assert [(f.severity, f.culprits) for f in found] == [(Severity.ERROR, (2,))]
    assert name in found[0].title and "0 on rank 2" in found[0].title


def test_setting_that_differs_is_not_why_memory_ran_out(tmp_path: Path) -> None:
    logs = with_setting("NCCL_PASS_SM", {0: "1.", 1: "1.", 2: "0.", 3: "1."})
    out_of_memory(logs[0])
    assert [(f.severity, f.culprits) for f in of(find("settings", tmp_path, logs), "PSM601")] == [
        (Severity.WARNING, ())
    ]


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("NCCL_ALGO", Severity.ERROR),
        ("NCCL_BUFFSIZE", Severity.ERROR),
        ("NCCL_CUMEM_ENABLE", Severity.WARNING),
        ("NCCL_IB_DISABLE", Severity.WARNING),
        ("NCCL_DMABUF_ENABLE", Severity.WARNING),
    ],
)
def test_setting_that_differs_is_an_error_only_for_the_exchange_that_is_open(
    name: str, severity: Severity, tmp_path: Path
) -> None:
    logs = [log.work(3) for log in with_setting(name, {0: "1", 1: "1", 2: "0", 3: "1"})]
    found = report_of(tmp_path, logs, watchdog(0, 1, 2, 3))
    assert [f.severity for f in of(found.findings, "PSM601")] == [severity]


def hanging(odd: int, tmp_path: Path) -> Report:
    """The report on a job in which rank 2 answers no request for a descriptor, and all ranks give up; one rank has another size of buffers."""
    plan = Plan(work="both", environment={"NCCL_BUFFSIZE": "4194304"}, overrides={odd: {"NCCL_BUFFSIZE": "1048576"}})
    files, job = stalled("2.30", plan, "uds", 2, 1)
    assert job.processes[2].stopped
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "job.out").write_text(watchdog(0, 1, 2, 3, seq=1))
    return analyze([tmp_path])


@pytest.mark.parametrize(("odd", "explains"), [(2, True), (1, True), (0, False)])
def test_setting_heads_the_report_only_if_the_ends_of_the_open_exchange_differ_in_it(
    odd: int, explains: bool, tmp_path: Path
) -> None:
    report = hanging(odd, tmp_path)
    (setting,) = of(report.findings, "PSM601")
    head = report.causes[0]
    follows = {report.findings[n].code for n in head.follows}
    assert report.verdict is Verdict.HUNG
    assert setting.severity is (Severity.ERROR if explains else Severity.WARNING), render(report, "text")
    assert (report.findings[head.finding] is setting) == explains
    assert not explains or "PSM102" in follows
    assert {c.rank for c in report.culprits} == {odd if explains else 2}


def test_setting_of_another_rank_does_not_explain_a_rank_that_is_late(tmp_path: Path) -> None:
    logs = with_setting("NCCL_ALGO", {0: "Ring", 1: "Tree", 2: "Ring", 3: "Ring"})
    for log in logs:
        log.work(2 if log.rank == 2 else 3)
    report = report_of(tmp_path, logs, watchdog(0, 1, 3))
    assert {c.rank for c in report.culprits} == {2}, render(report, "text")
    assert report.findings[report.causes[0].finding].code != "PSM601"


def test_every_setting_has_one_entry() -> None:
    for entry in SHARED:
        for name in entry.names:
            assert shared(name.replace("*", "ANY")) is entry, name


@pytest.mark.parametrize("name", ["NCCL_ALGO", "NCCL_PROTO"])
def test_algorithm_that_differs_is_a_warning_while_nothing_fails(name: str, tmp_path: Path) -> None:
    logs = with_setting(name, {0: "Ring", 1: "Tree", 2: "Ring", 3: "Ring"})
    assert [(f.severity, f.culprits) for f in find("settings", tmp_path, logs)] == [(Severity.WARNING, ())]


def test_setting_that_is_equal_is_nothing(tmp_path: Path) -> None:
    assert not find("settings", tmp_path, with_setting("NCCL_PASS_SM", dict.fromkeys(range(4), "1.")))


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_HOSTID",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "NCCL_TOPO_FILE",
        "NCCL_GRAPH_FILE",
        "NCCL_DEBUG_FILE",
        "NCCL_DEBUG_SUBSYS",
    ],
)
def test_setting_that_may_differ_between_nodes_is_nothing(name: str, tmp_path: Path) -> None:
    logs = with_setting(name, {0: "a", 1: "a", 2: "b", 3: "b"})
    assert not find("settings", tmp_path, logs)


def test_rank_that_passed_the_place_without_the_setting_differs(tmp_path: Path) -> None:
    logs = with_setting("NCCL_PASS_SM", {0: "1.", 1: "1.", 2: "1."})
    found = of(find("settings", tmp_path, logs), "PSM601")
    assert [f.severity for f in found] == [Severity.WARNING]
    assert "not set on rank 3" in found[0].title


def test_missing_setting_is_an_error_where_messages_have_the_wrong_size(tmp_path: Path) -> None:
    logs = with_setting("NCCL_PASS_SM", {0: "1.", 1: "1.", 2: "1."})
    logs[0].warn("bootstrap.cc:212", "Message truncated : received 1024 bytes instead of 512", "async").fail(3)
    assert [(f.severity, f.culprits) for f in find("settings", tmp_path, logs)] == [(Severity.ERROR, (3,))]


def test_lost_line_of_a_setting_is_no_second_culprit_beside_a_rank_that_printed_another_value(tmp_path: Path) -> None:
    logs = with_setting("NCCL_PASS_SM", {0: "1.", 1: "0.", 2: "1."})
    for log in (logs[0], logs[2], logs[3]):
        log.warn("bootstrap.cc:212", "Message truncated : received 1024 bytes instead of 512", "async").fail(3)
    report = report_of(tmp_path, logs)
    assert {c.global_rank for c in report.culprits} == {1}
    assert [f.culprits for f in of(report.findings, "PSM601")] == [(1,)]


def test_missing_setting_is_not_the_cause_of_any_error(tmp_path: Path) -> None:
    logs = with_setting("NCCL_PASS_SM", {0: "1.", 1: "1.", 2: "1."})
    out_of_memory(logs[0])
    assert [(f.severity, f.culprits) for f in find("settings", tmp_path, logs)] == [(Severity.WARNING, ())]


def test_rank_that_never_came_to_the_place_proves_nothing(tmp_path: Path) -> None:
    logs = with_setting("NCCL_PASS_SM", {0: "1.", 1: "1.", 2: "1."})
    logs[3].lines = logs[3].lines[:3]
    assert not find("settings", tmp_path, logs)


def test_log_that_begins_behind_the_place_of_a_setting_proves_nothing(tmp_path: Path) -> None:
    logs = with_setting("NCCL_BUFFSIZE", {0: "1048576.", 1: "1048576.", 2: "1048576.", 3: "1048576."})
    place = next(at for at, line in enumerate(logs[2].lines) if "NCCL_BUFFSIZE" in line)
    del logs[2].lines[: place + 1]
    assert of(find("settings", tmp_path, logs), "PSM601") == []


def test_half_and_half_names_no_culprit(tmp_path: Path) -> None:
    logs = with_setting("NCCL_PASS_SM", {0: "1.", 1: "1.", 2: "0.", 3: "0."})
    cuda_failure(logs[0])
    assert [f.culprits for f in find("settings", tmp_path, logs)] == [()]


def test_two_releases_are_told_apart(tmp_path: Path) -> None:
    logs = ranks()
    for log in logs:
        log.line("NCCL version 2.26.2+cuda12.8" if log.rank != 1 else "NCCL version 2.27.3+cuda12.8")
    found = of(find("settings", tmp_path, logs), "PSM602")
    assert len(found) == 1
    assert "2.26.2 and 2.27.3" in found[0].title


def test_releases_that_nccl_refuses_head_the_report_and_a_difference_alone_does_not(tmp_path: Path) -> None:
    for refused in (True, False):
        logs = [Rank(rank).start() for rank in range(4)]
        for log in logs:
            log.line("NCCL version 2.26.2+cuda12.8" if log.rank != 1 else "NCCL version 2.27.3+cuda12.8")
            if refused and log.rank != 1:
                said = f"Mismatched NCCL version detected : rank 1 version 22703 rank {log.rank} version 22602"
                log.warn("init.cc:1020", said, "async").fail(5)
        folder = tmp_path / str(refused)
        folder.mkdir()
        report = report_of(folder, logs)
        assert report.verdict is (Verdict.FAILED if refused else Verdict.INCONCLUSIVE)
        head = report.findings[report.causes[0].finding]
        assert head.code == "PSM602" and (head.title == report.reason) is refused
        assert [c.rank for c in report.culprits] == ([1] if refused else [])
        assert "same library on every rank" in head.next_step


def test_one_release_is_nothing(tmp_path: Path) -> None:
    assert not find("settings", tmp_path, [log.line("NCCL version 2.26.2+cuda12.8") for log in ranks()])


def test_ranks_with_another_network_are_named(tmp_path: Path) -> None:
    logs = ranks()
    for log in logs:
        log.line("Using network IB" if log.rank < 3 else "Using network Socket")
    found = of(find("settings", tmp_path, logs), "PSM603")
    assert [f.severity for f in found] == [Severity.WARNING]
    assert "Socket on rank 3" in found[0].title
    assert found[0].known_issue == "NVIDIA/nccl#1634"


def test_inconclusive_verdict_names_a_network_that_differs(tmp_path: Path) -> None:
    logs = ranks()
    for log in logs:
        log.line("Using network IB" if log.rank < 3 else "Using network Socket")
    found = analyse_job(job_of(tmp_path, logs))
    assert found.verdict is Verdict.INCONCLUSIVE and "look first at this: ranks use different networks" in found.reason


def test_plugin_that_one_node_lacks_is_named(tmp_path: Path) -> None:
    logs = ranks()
    for log in logs[:3]:
        log.line("NET/Plugin: Loaded net plugin AWS Libfabric (v10)")
    logs[3].line("NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.")
    found = of(find("settings", tmp_path, logs), "PSM603")
    assert len(found) == 1
    assert "rank 3 (node0:7301) does not find" in found[0].title


def test_one_network_without_plugins_is_nothing(tmp_path: Path) -> None:
    logs = [
        log.line("NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.").line("Using network Socket")
        for log in ranks()
    ]
    assert not find("settings", tmp_path, logs)
