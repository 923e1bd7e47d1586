"""What ``psmkit analyze`` says of the net plugin's records: which fault gives which finding, and that good runs give none."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from psmkit.analysis.pipeline import analyze
from psmkit.cli.app import main
from psmkit.model import Finding
from psmkit.model.errors import InputError, NothingToAnalyse
from tests.csrc.base import compiled
from tests.csrc.plugins.net.built import Built

SHM = {"PSM_NET": "shm", "PSM_NET_SHM_SLOTS": "2"}
GROUPED = {"PSM_NET_MAX_RECVS": "8"}


def told(folder: Path) -> list[Finding]:
    """The findings about connections in the records of a folder."""
    try:
        report = analyze([folder])
    except (InputError, NothingToAnalyse):  # no record yet, or none of a connection
        return []
    return [finding for finding in report.findings if finding.code.startswith("PSM95")]


def after(net: Built, folder: Path, scenario: str, **env: str) -> list[Finding]:
    """What the records of a run tell that came to its end."""
    net.run(scenario, PSM_RECORD_DIR=str(folder), PSM_RECORD_KEEP="1", **env)
    return told(folder)


@contextmanager
def running(net: Built, folder: Path, **env: str) -> Iterator[None]:
    """The ten messages of the driver, until the end of the block."""
    more = {"PSM_RECORD_DIR": str(folder), "NCCL_SOCKET_IFNAME": "=lo", "DRIVER_WAIT": "100", **env}
    process = subprocess.Popen(
        [net.driver, net.library, "12", "faults"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=compiled.environment(**more),
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for records."""
    place = tmp_path / "records"
    place.mkdir(mode=0o700)
    return place


@pytest.mark.parametrize(
    "settings", [{}, SHM, GROUPED, {**SHM, **GROUPED}], ids=["socket", "shm", "grouped", "shm-grouped"]
)
def test_good_runs_are_no_finding(net: Built, folder: Path, settings: dict[str, str]) -> None:
    for scenario in ("data", "many", "ahead", *(["groups"] if "PSM_NET_MAX_RECVS" in settings else [])):
        assert after(net, folder, scenario, **settings) == []


@pytest.mark.parametrize(
    ("fault", "settings", "code", "culprit", "said"),
    [
        ("net.isend:drop:nth=3", {}, "PSM952", 0, "rank 0 reported request 2 (64 bytes, tag 0) as sent"),
        ("net.irecv:drop:nth=3", SHM, "PSM952", 1, "rank 1's receive 2 never reached the network"),
        (
            "net.isend:error=ncclRemoteError:nth=4",
            SHM,
            "PSM956",
            0,
            "rank 0 failed first with ncclRemoteError in isend",
        ),
        ("net.irecv:error=ncclSystemError:nth=4", {}, "PSM956", 1, "rank 1 failed first with ncclSystemError in irecv"),
        ("net.test:error=3:rank=1:nth=4", {}, "PSM956", 1, "rank 1 failed first with ncclInternalError in test"),
        (
            "net.connection:drop:rank=0:nth=4",
            {},
            "PSM956",
            0,
            "rank 0 failed first with ncclRemoteError of the connection",
        ),
        (
            "net.connection:drop:rank=1:nth=4",
            SHM,
            "PSM956",
            1,
            "rank 1 failed first with ncclRemoteError of the connection",
        ),
        ("net.test:drop:rank=1:nth=1+", SHM, "PSM957", 1, "rank 1 stopped"),
        ("net.isend:close:comm=0:nth=4", SHM, "PSM956", 0, "rank 0 failed first with ncclRemoteError in isend"),
        ("net.test:stall:rank=1:nth=1", {}, "PSM957", 1, "rank 1 stopped"),
        ("net.test:drop:rank=0:nth=1+", {}, "PSM955", 0, "rank 0 has not tested its send since"),
    ],
)
def test_fault_is_named(
    net: Built, folder: Path, fault: str, settings: dict[str, str], code: str, culprit: int, said: str
) -> None:
    (found,) = after(net, folder, "faults", PSM_FAULTS=fault, **settings)
    assert (found.code, found.culprits) == (code, (culprit,)), found
    assert said in found.title


def test_what_passes_is_no_finding(net: Built, folder: Path) -> None:
    """A stall that ends, a delay, and a fault of a communicator that there is not."""
    faults = "net.connection:stall=20ms:nth=3;net.isend:delay=5ms:nth=5;net.isend:drop:comm=1"
    assert after(net, folder, "faults", PSM_FAULTS=faults) == []


def test_requests_are_shown_side_by_side(net: Built, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    after(net, folder, "faults", PSM_FAULTS="net.isend:drop:nth=3")
    main(["recorder", "show", str(folder)])
    shown = capsys.readouterr().out.split("connections of the net plugin\n")[1]
    lines = [line.split() for line in shown.splitlines()]
    assert shown.startswith("socket connection ") and "rank 0 -> rank 1, maxRecvs 1\n" in shown
    assert [line[0] for line in lines[4:]] == ["0", "1", "lost", *map(str, range(2, 10))]
    assert [line[2:4] for line in lines[4:6]] == [["done", "64"]] * 2 and lines[4].count("done") == 2
    assert lines[-1][2:4] == ["open", "64"] and "asked in vain at" in shown


@pytest.mark.parametrize("settings", [{}, GROUPED], ids=["plain", "grouped"])
def test_message_that_is_too_large_is_named(net: Built, folder: Path, settings: dict[str, str]) -> None:
    (found,) = after(net, folder, "too_large", **settings)
    assert found.code == "PSM954"


@pytest.mark.parametrize(("scenario", "dead"), [("sender_dies", 0), ("receiver_dies", 1)])
def test_rank_that_died_is_named(net: Built, folder: Path, scenario: str, dead: int) -> None:
    (found,) = after(net, folder, scenario)
    assert (found.code, found.culprits) == ("PSM956", (dead,))


@pytest.mark.parametrize(
    ("fault", "code", "said", "settings"),
    [
        (
            "net.irecv:hang:nth=4",
            "PSM951",
            "rank 0 sent message 3 (64 bytes, tag 0), but rank 1 has posted no receive",
            SHM,
        ),
        (
            "net.irecv:hang:nth=4",
            "PSM951",
            "rank 0 sends 64 bytes with tag 0, but rank 1 has posted no receive",
            GROUPED,
        ),
        (
            "net.isend:hang:nth=4",
            "PSM952",
            "rank 1 waits for message 3 (64 bytes, tag 0), but rank 0 has not sent it",
            {},
        ),
        (
            "net.isend:stall:nth=4",
            "PSM952",
            "rank 1 waits for message 3 (64 bytes, tag 0), but rank 0 has not sent it",
            SHM,
        ),
        ("net.test:hang:rank=1:nth=1", "PSM957", "rank 1 stopped: message 0 (64 bytes, tag 0) is sent", SHM),
    ],
    ids=["irecv", "irecv-grouped", "isend", "isend-stalls", "test"],
)
def test_rank_that_hangs_is_named_while_it_does(
    net: Built, folder: Path, fault: str, code: str, said: str, settings: dict[str, str]
) -> None:
    """A rank that is only slow to come to its fault gives another finding first, so the first one does not count."""
    with running(net, folder, PSM_FAULTS=fault, **settings):
        until = time.monotonic() + 60
        while not ((found := told(folder)) and found[0].code == code) and time.monotonic() < until:
            time.sleep(0.2)
    assert [finding.code for finding in found] == [code]
    assert said in found[0].title
