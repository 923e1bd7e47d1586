"""One-sided operations in software: every version of the table, 1 to 5 processes, each byte and each signal compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.csrc.base import compiled
from tests.csrc.plugins import sanitized
from tests.csrc.plugins.net.built import Built

VERSIONS = (13, 14, 15, 16)  # those that releases of NCCL look for
_UNUSED = (
    "-Wno-unused-function",
    "-Wno-unused-variable",
)  # what the driver of the net tables has and this does not use


@pytest.fixture(scope="session")
def ranks_of(net: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program rma.c, under ASan and UBSan as the plugin is."""
    program = tmp_path_factory.mktemp("rma") / "rma"
    return net.link("rma.c", program, *sanitized.options("address,undefined"), *_UNUSED)


def run(net: Built, program: Path, scenario: str, ranks: int = 2, version: int = 14, **env: str) -> str:
    """The log of a scenario, whose checks are its own."""
    settings = {"PSM_RECORD_DIR": str(net.records), "NCCL_SOCKET_IFNAME": "=lo", "PSM_NET_RMA": "1"}
    words = (str(net.library), str(version), str(ranks), scenario)
    done = compiled.run(program, *words, env=compiled.environment(**{**settings, **env}))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    return done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_the_table_works(net: Built, ranks_of: Path, version: int) -> None:
    log = run(net, ranks_of, "all", version=version)
    assert re.search(r"RMA rank 1 of 2 in communicator 0x7 on device 0 is connected to all peers", log)
    assert re.search(
        r"RMA rank 0 of 2 in communicator 0x7, region 4: 72 bytes of host memory at 0x\w+, writes in strict order", log
    )
    assert "WARN" not in log


@pytest.mark.parametrize("ranks", [1, 5])
@pytest.mark.parametrize("backend", ["socket", "shm"])
def test_several_ranks_and_one_alone(net: Built, ranks_of: Path, ranks: int, backend: str) -> None:
    assert "WARN" not in run(net, ranks_of, "all", ranks, PSM_NET=backend)


def test_a_thread_makes_progress_while_another_registers_and_puts(
    net_threads: Built, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program = tmp_path_factory.mktemp("rma-threads") / "rma"
    net_threads.link("rma.c", program, *sanitized.options("thread"), *_UNUSED)
    assert "WARN" not in run(net_threads, program, "threads", 3)


def test_a_put_outside_the_memory_of_a_peer_is_refused_at_the_call(net: Built, ranks_of: Path) -> None:
    log = run(net, ranks_of, "outside")
    assert re.search(
        r"RMA rank 0: iput of 64 bytes at \d+ of region 2 of rank 1, which has 8388608 bytes$", log, re.M
    ), log
    assert re.search(
        r"RMA rank 0: iputSignal of 8 bytes at 72 of region 4 of rank 1, which has 72 bytes$", log, re.M
    ), log


def test_a_peer_that_leaves_ends_puts_to_it_and_is_named(net: Built, ranks_of: Path) -> None:
    log = run(net, ranks_of, "leaves", 3)
    assert re.search(r"WARN NET/PSM : RMA rank 0: peer rank 1 is gone; \d one-sided operations to it are open", log), (
        log
    )
    assert "peer rank -1" not in log, "the connections below say nothing"


def test_a_rank_that_does_not_register_is_named(net: Built, ranks_of: Path) -> None:
    log = run(net, ranks_of, "alone", 3, PSM_TIMEOUT="1")
    assert re.search(r"WARN NET/PSM : RMA rank 2: these ranks have not registered region 5: 1$", log, re.M), log


def test_what_was_never_given_is_refused_and_not_followed(net: Built, ranks_of: Path) -> None:
    log = run(net, ranks_of, "wrong")
    assert "iput: there is no such rank" in log
    assert "test: this is not a request of the comm, or it was already reported as done" in log


def test_it_is_off_unless_asked_for(net: Built, ranks_of: Path) -> None:
    assert "WARN" not in run(net, ranks_of, "off", PSM_NET_RMA="")


def test_a_setting_that_cannot_be_read_is_an_error(net: Built, ranks_of: Path) -> None:
    with pytest.raises(AssertionError, match='PSM_NET_RMA is "yes"; expected 0 or 1'):
        run(net, ranks_of, "off", PSM_NET_RMA="yes")
