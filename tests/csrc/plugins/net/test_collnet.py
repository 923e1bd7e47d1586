"""CollNet in software: every version of the table, 2 to 5 processes, data compared with numpy's."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tests.csrc.base import compiled
from tests.csrc.plugins import sanitized
from tests.csrc.plugins.net.built import VERSIONS, Built

TYPES = (np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64, None)
BFLOAT16 = 9
OPS = (np.add, np.multiply, np.maximum, np.minimum)


@pytest.fixture(scope="session")
def ranks_of(net: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program collnet.c, under ASan and UBSan as the plugin is."""
    program = tmp_path_factory.mktemp("collnet") / "collnet"
    # What the driver of the net tables has and this does not use.
    unused = ["-Wno-unused-function", "-Wno-unused-variable"]
    return net.link("collnet.c", program, *sanitized.options("address,undefined"), *unused)


def shown(values: np.ndarray, kind: int) -> bytes:
    """As they lie in memory."""
    if kind != BFLOAT16:
        return values.astype(TYPES[kind]).tobytes()
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()


@dataclass
class Job:
    """What the ranks do: lines of the program, bytes that each has, and those that each must get."""

    ranks: int
    lines: list[str] = field(default_factory=list)
    given: list[bytes] = field(default_factory=list)
    meant: list[bytes] = field(default_factory=list)
    seed: int = 1

    def __post_init__(self) -> None:
        self.given = [b""] * self.ranks
        self.meant = [b""] * self.ranks
        self.random = np.random.default_rng(self.seed)

    def _values(self, n: int, op: int) -> list[np.ndarray]:
        # Small integers: sums and products are exact in every type and order.
        low, high = (1, 3) if op == 1 else (0, 12)
        return [self.random.integers(low, high, n) for _ in range(self.ranks)]

    def allreduce(self, kind: int, op: int, count: int, in_place: int = 0) -> None:
        self.lines.append(f"allreduce {kind} {op} {count} {in_place}")
        values = self._values(count, op)
        total = OPS[op].reduce(values)
        for rank in range(self.ranks):
            self.given[rank] += shown(values[rank], kind)
            self.meant[rank] += shown(total, kind)

    def _own(self, rank: int, share: int, offset: int, size: int) -> slice:
        low, high = max(rank * share, offset) - offset, min((rank + 1) * share, offset + size) - offset
        return slice(low, max(low, high))

    def allgather(self, share: int, offset: int, size: int, parts: int = 1) -> None:
        self.lines.append(f"allgather {share} {offset} {size} {parts}")
        window = self.random.integers(0, 256, size, dtype=np.uint8)
        for rank in range(self.ranks):
            self.given[rank] += window[self._own(rank, share, offset, size)].tobytes()
            self.meant[rank] += window.tobytes()

    def reducescatter(self, kind: int, op: int, share: int, offset: int, size: int, parts: int = 1) -> None:
        element = len(shown(np.zeros(1), kind))
        text = " ".join(str(n * element) for n in (share, offset, size))
        self.lines.append(f"reducescatter {kind} {op} {text} {parts}")
        values = self._values(size, op)
        total = OPS[op].reduce(values)
        for rank in range(self.ranks):
            self.given[rank] += shown(values[rank], kind)
            self.meant[rank] += shown(total[self._own(rank, share, offset, size)], kind)

    def run(
        self, net: Built, program: Path, folder: Path, version: int = 12, in_flight: int = 1, **env: str
    ) -> tuple[str, str]:
        (folder / "program").write_text("\n".join(self.lines) + "\n")
        for rank in range(self.ranks):
            (folder / f"in.{rank}").write_bytes(self.given[rank])
        settings = {"PSM_RECORD_DIR": str(net.records), "NCCL_SOCKET_IFNAME": "=lo", "PSM_NET_COLLNET": "1"}
        words = (str(net.library), str(version), str(self.ranks), str(in_flight), str(folder))
        done = compiled.run(program, *words, env=compiled.environment(**{**settings, **env}))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, done.stderr

    def check(self, folder: Path) -> None:
        for rank in range(self.ranks):
            got = (folder / f"out.{rank}").read_bytes()
            assert len(got) == len(self.meant[rank])
            assert got == self.meant[rank], f"rank {rank} differs"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_the_table_works(net: Built, ranks_of: Path, tmp_path: Path, version: int) -> None:
    job = Job(2)
    job.allreduce(7, 0, 1000)
    job.allreduce(2, 2, 777, in_place=1)
    if version >= 8:
        job.allgather(1000, 0, 2000)
        job.reducescatter(7, 0, 500, 0, 1000)
    job.lines.append("flush")
    job.run(net, ranks_of, tmp_path, version)
    job.check(tmp_path)


@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_all_types_and_operations_on_several_ranks(net: Built, ranks_of: Path, tmp_path: Path, ranks: int) -> None:
    job = Job(ranks, seed=ranks)
    for kind in range(10):
        for op in range(4):
            job.allreduce(kind, op, 203 + kind, in_place=op % 2)
    job.allreduce(7, 0, 1)  # fewer elements than ranks
    job.allreduce(7, 0, 0)
    job.allreduce(8, 0, 100001)
    job.run(net, ranks_of, tmp_path)
    job.check(tmp_path)


@pytest.mark.parametrize("ranks", [2, 4, 5])
@pytest.mark.parametrize("backend", ["socket", "shm"])
def test_windows_and_parts(net: Built, ranks_of: Path, tmp_path: Path, ranks: int, backend: str) -> None:
    job = Job(ranks, seed=ranks)
    whole = ranks * 1000
    for offset, size, parts in ((0, whole, 1), (0, whole, 3), (300, 900, 2), (999, 2, 1), (whole - 1500, 1500, 4)):
        job.allgather(1000, offset, size, parts)
        job.reducescatter(7, 0, 1000, offset, size, parts)
        job.reducescatter(6, 3, 1000, offset, size, parts)
    job.run(net, ranks_of, tmp_path, PSM_NET=backend)
    job.check(tmp_path)


def test_many_are_in_flight(net: Built, ranks_of: Path, tmp_path: Path) -> None:
    job = Job(4)
    for n in range(60):
        job.allreduce(7, n % 4, 100 + n * 37, in_place=n % 2)
    job.run(net, ranks_of, tmp_path, in_flight=40, PSM_NET="shm")  # more than are taken at a time
    job.check(tmp_path)


def test_one_rank_alone(net: Built, ranks_of: Path, tmp_path: Path) -> None:
    job = Job(1)
    job.allreduce(7, 0, 1000)
    job.allgather(1000, 10, 500, 2)
    job.reducescatter(2, 0, 1000, 10, 500, 2)
    job.run(net, ranks_of, tmp_path)
    job.check(tmp_path)


def test_sums_of_floats_are_the_same_bits_on_all_ranks(net: Built, ranks_of: Path, tmp_path: Path) -> None:
    job = Job(5)
    values = [job.random.normal(size=999).astype(np.float32) for _ in range(5)]
    halves = [value.astype(np.float16) for value in values]
    job.lines = ["allreduce 7 0 999 0", "allreduce 6 0 999 0"]
    job.given = [a.tobytes() + b.tobytes() for a, b in zip(values, halves, strict=True)]
    job.run(net, ranks_of, tmp_path)
    outputs = [(tmp_path / f"out.{rank}").read_bytes() for rank in range(5)]
    assert set(outputs) == {outputs[0]}
    np.testing.assert_allclose(np.frombuffer(outputs[0][: 999 * 4], np.float32), np.sum(values, axis=0), atol=1e-5)
    # Halves are rounded at each step, in the order of the ring: that of rank 0's block ends at its neighbour.
    block = np.frombuffer(outputs[0][999 * 4 :], np.float16)[:200]
    meant = halves[0][:200]
    for rank in range(1, 5):
        meant = meant + halves[rank][:200]
    assert block.tobytes() == meant.tobytes()


def test_collectives_that_differ_are_named(net: Built, ranks_of: Path, tmp_path: Path) -> None:
    job = Job(2)
    job.allreduce(7, 0, 100)
    (tmp_path / "program.1").write_text("allreduce 7 0 100 0\nallgather 100 0 200 1\n")
    job.lines.append("allreduce 7 0 50 0")
    job.given = [given + bytes(400) for given in job.given]
    out, log = job.run(net, ranks_of, tmp_path)
    assert "result 5" in out
    assert re.search(
        r"collective 1 of a CollNet communicator is not the same on its ranks: rank \d has iall(gather|reduce) of \d+ elements",
        log,
    ), log


def test_a_rank_that_is_gone_ends_the_collective(net: Built, ranks_of: Path, tmp_path: Path) -> None:
    job = Job(4)
    job.allreduce(7, 0, 100)
    job.allreduce(7, 0, 100000)
    out, log = job.run(net, ranks_of, tmp_path, COLLNET_LEAVES="2")
    ends = dict(re.findall(r"rank (\d): result (\d)", out))
    assert ends.pop("2") == "0"
    assert set(ends.values()) == {"6"}, out
    assert "closed the connection" in log


def test_without_the_setting_there_is_no_device(net: Built, ranks_of: Path, tmp_path: Path) -> None:
    for setting, says in (("0", "0 devices"), ("yes", 'PSM_NET_COLLNET is "yes"; expected 0 or 1')):
        with pytest.raises(AssertionError, match=re.escape(says)):
            Job(1).run(net, ranks_of, tmp_path, PSM_NET_COLLNET=setting)
