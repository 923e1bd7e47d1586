"""``psmkit plan lint``: its answers, its inputs, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Result

Cli = Callable[..., Result]
RING = "send 16 to=+1 times={n}\nrecv 16 from=-1 times={n}\n"
LOG = """\
node1:100:100 [0] NCCL INFO NCCL version 2.30.7+cuda13.0
node1:100:101 [0] NCCL INFO comm 0x55f0ee791ec0 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
node1:100:101 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 4 p2p channels per peer
node1:100:101 [0] NCCL INFO CC Off, workFifoBytes 524288
node1:100:101 [0] NCCL INFO P2P Chunksize set to 524288
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "batch.tasks") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def lint(cli: Cli, *arguments: object) -> dict[str, Any]:
    done = cli("plan", "lint", *arguments, "--format", "json")
    assert done.err == "", done.err
    value: dict[str, Any] = json.loads(done.out)
    assert done.status == {"safe": 0, "not decided": 3}.get(value["answer"], 1)
    return value


def test_what_was_measured_on_2_30_7(psmkit_cli: Cli, tasks: Callable[..., Path]) -> None:
    """A ring of two ranks, messages of 64 bytes: 20,000 in a group pass, 28,000 hang, and pass with a FIFO of 8 MiB."""
    few, many = tasks(RING.format(n=20_000), "few.tasks"), tasks(RING.format(n=28_000), "many.tasks")
    common = ("--ranks", 2, "--nccl", "2.30.7")
    passed = lint(psmkit_cli, few, *common)
    assert passed["answer"] != "hangs" and passed["ranks"][0]["fifo_bytes"] <= 1 << 20
    hung = lint(psmkit_cli, many, *common)
    assert (hung["answer"], hung["proof"]) == ("hangs", "arithmetic")
    assert hung["ranks"][0]["fifo_bytes"] > 1 << 20
    assert {wait["kind"] for wait in hung["waits"]} == {"fifo"}
    assert lint(psmkit_cli, many, *common, "--fifo-bytes", 8 << 20)["answer"] == "safe"


def test_the_page_names_the_limit_and_what_makes_it_safe(psmkit_cli: Cli, tasks: Callable[..., Path]) -> None:
    done = psmkit_cli("plan", "lint", tasks(RING.format(n=28_000)), "--ranks", 2, "--nccl", "2.30.7")
    assert done.status == 1 and done.out.startswith("hangs: rank 0 needs 1,34")
    assert "32 p2p channels, 2 for each peer (assumed)" in done.out
    assert "21,845 of them" in done.out and "19,114 behind any other groups" in done.out.replace("\n  ", " ")
    assert "set NCCL_WORK_FIFO_BYTES=2097152 on all ranks" in done.out
    assert "1. split it: end the group after every 19,1" in done.out


def test_up_to_2_26_a_group_that_is_too_large_overwrites(psmkit_cli: Cli, tasks: Callable[..., Path]) -> None:
    found = lint(psmkit_cli, tasks(RING.format(n=28_000)), "--ranks", 2, "--nccl", "2.26.6")
    assert (found["answer"], found["proof"]) == ("overwrites", "arithmetic")
    assert lint(psmkit_cli, tasks(RING.format(n=20_000)), "--ranks", 2, "--nccl", "2.26.6")["answer"] == "safe"


def test_behind_other_groups_an_eighth_of_the_fifo_may_be_missing(psmkit_cli: Cli, tasks: Callable[..., Path]) -> None:
    found = lint(psmkit_cli, tasks(RING.format(n=20_000)), "--ranks", 2, "--nccl", "2.30.7")
    assert (found["answer"], found["proof"]) == ("not decided", "both")
    assert found["why"].startswith(
        "as the first group of a communicator it ends; rank 0 hangs if earlier groups left more than "
    )
    assert lint(psmkit_cli, tasks(RING.format(n=19_000)), "--ranks", 2, "--nccl", "2.30.7")["answer"] == "safe"


def test_a_log_gives_release_ranks_channels_and_fifo(psmkit_cli: Cli, tasks: Callable[..., Path]) -> None:
    found = lint(psmkit_cli, tasks(RING.format(n=11_000)), tasks(LOG, "job.log"))
    config = found["config"]
    assert (config["release"], config["ranks"], config["nodes"], config["assumed"]) == ("2.30.7", 2, 1, [])
    assert (config["p2p_channels"], config["p2p_channels_per_peer"]) == (32, 4)
    assert (config["work_fifo_bytes"], config["p2p_chunk_bytes"]) == (524288, 524288)
    assert found["answer"] == "hangs"
    other = lint(psmkit_cli, tasks(RING.format(n=11_000)), tasks(LOG, "job.log"), "--fifo-bytes", 1 << 20)
    assert other["answer"] == "safe"


def test_a_log_that_shows_two_communicators_asks_which(psmkit_cli: Cli, tasks: Callable[..., Path]) -> None:
    log = tasks(LOG + LOG.splitlines()[2].replace("32 p2p channels", "16 p2p channels") + "\n", "job.log")
    done = psmkit_cli("plan", "lint", tasks(RING.format(n=2)), log)
    assert done.status == 2 and "numbers of p2p channels: 16, 32: give --p2p-channels" in done.err
    assert psmkit_cli("plan", "lint", tasks(RING.format(n=2)), log, "--p2p-channels", 16).status == 0


def dump(tmp_path: Path, rank: int, entries: list[tuple[str, int, int]], name: str = "nccl_trace_rank_{}.json") -> Path:
    """A dump with (operation, number, bytes) of one rank."""
    path = tmp_path / name.format(rank)
    made = [
        {
            "profiling_name": f"nccl:{op}", "p2p_seq_id": seq, "collective_seq_id": 0, "is_p2p": True, "state": "scheduled",
            "process_group": ["0", "default_pg"], "input_sizes": [[size]], "output_sizes": [[size]],
            "input_dtypes": ["Byte"], "output_dtypes": ["Byte"], "time_created_ns": 1, "frames": [],
        }
        for op, seq, size in entries
    ]  # fmt: skip
    path.write_text(
        json.dumps(
            {
                "version": "2.4",
                "entries": made,
                "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
            }
        )
    )
    return path


def test_dumps_of_the_flight_recorder_are_groups(psmkit_cli: Cli, tmp_path: Path) -> None:
    n = 22_000
    one = dump(tmp_path, 0, [("send 0->1", 1, 64)] * 10 + [("send 0->1", 2, 64)] * n)
    two = dump(tmp_path, 1, [("recv 1<-0", 1, 64)] * 10 + [("recv 1<-0", 2, 64)] * n)
    found = lint(psmkit_cli, one, two, "--nccl", "2.30.4")
    assert found["answer"] == "hangs" and found["config"]["ranks"] == 2
    assert [(row["group"], row["operations"]) for row in found["ranks"]] == [(1, n), (1, n)]
    alone = lint(psmkit_cli, one, "--nccl", "2.30.4")
    assert alone["answer"] == "hangs" and "No dump of 1 rank: 1." in alone["notes"]  # the FIFO is a matter of one rank
    few = dump(tmp_path, 0, [("send 0->1", 1, 64)] * 10)
    assert lint(psmkit_cli, few, "--nccl", "2.30.4")["answer"] == "not decided"


def test_messages_without_their_other_end_are_named(psmkit_cli: Cli, tasks: Callable[..., Path]) -> None:
    path = tasks("0: send 16 to=1 times=3\n1: recv 16 from=0 times=2\n")
    found = lint(psmkit_cli, path, "--ranks", 2, "--nccl", "2.30.7")
    assert found["answer"] == "not decided"
    assert found["notes"][0] == "Rank 0 sends 3 messages to rank 1, which receives 2 of them."
    path = tasks("0: send 16 to=1\n1: recv 17 from=0\n")
    found = lint(psmkit_cli, path, "--ranks", 2, "--nccl", "2.30.7")
    assert found["notes"][0] == "Message 0 from rank 0 to rank 1 has 64 bytes as a send and 68 as a recv."


@pytest.mark.parametrize(
    ("more", "note"),
    [
        (("--nodes", 2), "Between nodes the proxies of the network group messages"),
        (("--nccl", "2.31.1"), "The sources of 2.31.1 were not read"),
        (("--nccl", "2.28.5"), "The sources of 2.28.5 were not read"),
    ],
)
def test_what_the_model_does_not_cover_is_not_decided(
    psmkit_cli: Cli, tasks: Callable[..., Path], more: tuple[object, ...], note: str
) -> None:
    path = tasks(RING.format(n=4))
    release = () if "--nccl" in more else ("--nccl", "2.30.7")
    found = lint(psmkit_cli, path, "--ranks", 4, *release, *more)
    assert found["answer"] == "not decided" and any(text.startswith(note) for text in found["notes"])
    mixed = tasks("allreduce 1M\n" + RING.format(n=4))
    assert lint(psmkit_cli, mixed, "--ranks", 4, "--nccl", "2.30.7")["answer"] == "not decided"
    large = tasks(RING.format(n=28_000))
    assert lint(psmkit_cli, large, "--ranks", 4, *release, *more)["answer"] == "hangs"  # the FIFO decides alone


def test_an_answer_that_depends_on_channels_that_nobody_gave_is_none(psmkit_cli: Cli) -> None:
    path = Path(__file__).parents[2] / "examples" / "plans" / "cut-in-two-places.tasks"
    common = (path, "--ranks", 8, "--nccl", "2.27.5")
    found = lint(psmkit_cli, *common)
    assert found["answer"] == "not decided"
    assert found["why"].startswith(
        "it depends on the p2p channels and those of each peer: hangs with 32 and 2, safe with 2 and 2;"
    )
    hung = lint(psmkit_cli, *common, "--p2p-channels", 32, "--p2p-channels-per-peer", 2)
    assert hung["answer"] == "hangs" and len(hung["cycle"]) == 2
    assert lint(psmkit_cli, *common, "--p2p-channels", 2, "--p2p-channels-per-peer", 2)["answer"] == "safe"
    assert lint(psmkit_cli, path, "--ranks", 8, "--nccl", "2.29.7")["answer"] == "safe"  # by no channels


def test_a_picture_shows_who_waits_for_whom(psmkit_cli: Cli, tasks: Callable[..., Path]) -> None:
    path = Path(__file__).parents[2] / "examples" / "plans" / "cut-in-two-places.tasks"
    common = ("--ranks", 8, "--p2p-channels", 32, "--p2p-channels-per-peer", 2, "--no-search", "--format", "svg")
    done = psmkit_cli("plan", "lint", path, "--nccl", "2.27.5", *common)
    assert done.status == 1 and done.out.startswith("<svg")
    assert all(f">{text}<" in done.out for text in ("rank 1", "rank 6", "plans 1-3", "plan 5"))
    fifo = psmkit_cli("plan", "lint", tasks(RING.format(n=28_000)), "--nccl", "2.30.7", *common)
    assert fifo.status == 1 and "no room in the work FIFO" in fifo.out
    safe = psmkit_cli("plan", "lint", path, "--nccl", "2.30.7", *common)
    assert (safe.status, safe.out) == (2, "") and "no rank waits, so there is no picture" in safe.err


def test_standard_input_is_a_task_file(psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(RING.format(n=2)))
    assert psmkit_cli("plan", "lint", "-", "--ranks", 2, "--nccl", "2.30.7").out.startswith(
        "safe: each group is one plan"
    )


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("", (), "no tasks in the file"),
        ("# nothing\n", (), "no tasks in the file"),
        ("send 16 to=9\n", (), "1: bad rank 9, expected 0 to 1"),
        ("send 16 to=1 times=0\n", (), "bad 'times=0', expected a number up to 9999999"),
        ("send 16 to=1 times=9999999\n", (), "1: more than 4,000,000 steps"),
        (RING.format(n=1), ("--nccl", "x"), "'x', expected a release such as 2.29.7"),
        (RING.format(n=1), ("--nccl", "2.21.5"), "plans of NCCL 2.22.3 and later can be checked"),
        (RING.format(n=1), ("--fifo-bytes", 5000), "a work FIFO of 5000 bytes; expected a power of two"),
        (RING.format(n=1), ("--p2p-channels", 3), "3 p2p channels; expected a power of two"),
        ("0: send 16 to=0\n", (), "but the group has no matching recv"),
        ("send 16 to=+1\nabort\n", (), "an abort ends every wait: remove it"),
    ],
)
def test_bad_input(
    psmkit_cli: Cli, tasks: Callable[..., Path], text: str, arguments: tuple[object, ...], said: str
) -> None:
    release = () if "--nccl" in arguments else ("--nccl", "2.30.7")
    done = psmkit_cli("plan", "lint", tasks(text), "--ranks", 2, *release, *arguments)
    assert (done.status, done.out) == (2, "") and said in done.err, done.err


def test_what_is_missing_is_asked_for(psmkit_cli: Cli, tasks: Callable[..., Path]) -> None:
    path = tasks(RING.format(n=1))
    for arguments, said in (
        ((path,), "give --ranks N"),
        ((path, "--ranks", 2), "which release? give --nccl VERSION"),
        ((tasks(LOG, "job.log"),), "no groups in the input"),
        ((path, path, "--ranks", 2), "2 task files: give one"),
        ((path.parent / "none",), "none"),
    ):
        done = psmkit_cli("plan", "lint", *arguments)
        assert (done.status, done.out) == (2, "") and said in done.err, (arguments, done.err)
