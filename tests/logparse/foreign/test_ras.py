"""Answers of ncclras."""

from __future__ import annotations

import json

from psmkit.logparse.foreign.ras_json import parse_ras_json
from psmkit.logparse.foreign.ras_text import parse_ras_text
from tests import ras

HEAD = (
    "NCCL version 2.27.5 compiled with CUDA 12.9\nCUDA runtime version 12090, driver version 12090\n\n"
    + ras.head(
        "    0         1         2       3-4         8         8   RUNNING  INCOMPLETE\n"
        "    1         4         2         1         2         8   RUNNING      OK\n",
        nodes=2,
        took="2.05",
    )
    + "\nErrors\n======\n\n"
)
ERRORS = """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process 4103 on node 10.0.0.2 managing GPU 1

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 5

"""
WARNINGS = """\
Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 665
  Rank 2 has launched up to operation 664 -- GPU 2 (NVML 6) managed by process 77 on node 10.0.0.1
  Communicator ranks have different Broadcast operation counts
  7 ranks have launched up to operation 9
  Rank 3 has not launched any operations -- [process information not found]

"""


def test_a_text_answer_is_read() -> None:
    (report,) = parse_ras_text(HEAD + ERRORS + WARNINGS)
    assert (report.version, report.processes, report.timeouts, report.complete) == ("2.27.5", 8, 2, True)
    assert [(c.size, c.comms, c.status, c.errors) for c in report.comms] == [
        (8, 1, "RUNNING", "INCOMPLETE"),
        (2, 4, "RUNNING", "OK"),
    ]
    assert [(p.pid, p.host, p.gpus) for p in report.missing] == [(4103, "10.0.0.2", "1")]
    incomplete, reduce, broadcast = report.issues
    assert (incomplete.kind, incomplete.hash, incomplete.missing) == ("INCOMPLETE", 0xCF264AF53EDBE986, (5,))
    assert (reduce.operation, [(v.value, v.count) for v in reduce.values]) == ("AllReduce", [("665", 6), ("664", 1)])
    lag = reduce.values[1].ranks[0]
    assert (lag.rank, lag.gpu, lag.pid, lag.host) == (2, "2 (NVML 6)", 77, "10.0.0.1")
    assert (broadcast.operation, broadcast.values[1].value, broadcast.values[1].ranks[0].rank) == ("Broadcast", "0", 3)


def test_a_dead_process_and_a_status_mismatch_are_read() -> None:
    text = (
        HEAD
        + "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
        + "  Process 9 on node fe80::1 managing GPUs 0,1\n\nWarnings\n========\n\n"
        + "#0-0 (00000000000000ff) MISMATCH\n  Communicator ranks have different status\n"
        + "  26 ranks have status NOCOMM\n  2 ranks have status FINALIZE\n"
        + "  Rank 4 -- GPU 4 managed by process 50 on node a\n  Rank 20 -- GPU 4 managed by process 51 on node b\n"
    )
    (report,) = parse_ras_text(text)
    assert [(p.pid, p.host, p.gpus) for p in report.dead] == [(9, "fe80::1", "0,1")]
    values = report.issues[0].values
    assert [(v.value, v.count, [r.rank for r in v.ranks]) for v in values] == [
        ("NOCOMM", 26, []),
        ("FINALIZE", 2, [4, 20]),
    ]


def test_a_cut_text_answer_says_so() -> None:
    (report,) = parse_ras_text(HEAD)
    assert not report.complete


def test_two_answers_in_one_file_are_two() -> None:
    reports = parse_ras_text(HEAD + WARNINGS + HEAD + ERRORS + WARNINGS)
    assert [len(r.issues) for r in reports] == [2, 3]


def test_monitoring_mode_in_text() -> None:
    (report,) = parse_ras_text(
        "RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...\n====\n"
        "[2026-02-03 13:07:07] PEER_DEAD: Process 1524 on node 172.16.64.245 managing GPU 1 \n"
    )
    (event,) = report.events
    assert (event.event, event.process and event.process.pid) == ("PEER_DEAD", 1524)


def rank(n: int, **counts: int) -> dict[str, object]:
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "rank": n,
        "host": "10.0.0.1",
        "pid": 100 + n,
        "cuda_dev": n,
        "nvml_dev": n,
        "status": status,
        "collective_counts": counts,
    }


ANSWER = {
    "nccl_version": "2.29.1",
    "timestamp": "2026-01-02 03:04:05",
    "communicators_count": 1,
    "communicators": [
        {
            "hash": "0xae94423cfbb2ef4a",
            "size": 3,
            "ranks": [rank(0, AllReduce=5), rank(1, AllReduce=4)],
            "missing_ranks": [
                {
                    "rank": 2,
                    "host": "h",
                    "pid": 9,
                    "cuda_dev": 2,
                    "status": {"unresponsive": True, "considered_dead": True},
                }
            ],
        }
    ],
    "ras": {"collection_time_sec": 0.1, "timeouts_count": 3},
}


def test_a_json_answer_is_read() -> None:
    (report,) = parse_ras_json(json.dumps(ANSWER))
    (comm,) = report.comms
    assert (comm.hash, comm.size, report.timeouts) == (0xAE94423CFBB2EF4A, 3, 3)
    assert [(r.rank, dict(r.counts), r.missing, r.dead) for r in comm.ranks] == [
        (0, {"AllReduce": 5}, False, False),
        (1, {"AllReduce": 4}, False, False),
        (2, {}, True, True),
    ]


def test_a_cut_json_answer_keeps_its_whole_ranks() -> None:
    text = json.dumps(ANSWER)
    (report,) = parse_ras_json(text[: text.index('"missing_ranks"')])
    assert not report.complete
    assert [r.rank for r in report.comms[0].ranks] == [0, 1]


def test_monitoring_mode_in_json() -> None:
    one = {
        "timestamp": "t",
        "group": "LIFECYCLE",
        "event": "PEER_DEAD",
        "peer": {"host": "h", "pid": 7, "cuda_devs": [1]},
        "details": "",
    }
    (report,) = parse_ras_json(json.dumps(one, indent=2) + "\n" + json.dumps(one))
    assert [e.process and e.process.pid for e in report.events] == [7, 7]


def test_an_uneven_job_and_ranks_out_of_freed_memory() -> None:
    text = (
        "Job summary\n===========\n\n  Nodes  Processes         GPUs\n          per node  per process\n      1          8            1\n"
        "      1          2            1\n\n  Nodes  Processes         GPUs\n(total)    (total)      (total)\n      2         10           10\n\n"
        "Communicators... (0.00s)\n=============\n\n    2         4         0         0         0         0    NOCOMM  INCOMPLETE,MISMATCH\n\n"
        "#2-0 (93d7000200000001) INCOMPLETE\n  Missing communicator data from 2 ranks\n"
        "  Rank 1057455228 -- [process information not found]\n  Rank 3 -- GPU 3 managed by process 77 on node 10.0.0.1\n"
    )
    (report,) = parse_ras_text(text)
    assert report.processes == 10
    assert report.comms[0].errors == "INCOMPLETE,MISMATCH"
    assert report.issues[0].missing == (3,)
