"""Ranks that send each other data: builds a driver of tests/csrc/psm/job, and runs it on the emulated CUDA in strict mode."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from psmkit.lab import cuda
from tests.csrc.base import compiled
from tests.csrc.psm import ground

HERE = Path(__file__).parent
FOUR = ground.ROOT / "tests" / "hostcuda" / "four.toml"
DEADLINE = 240.0
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
#: What the rank that goes on may say when the other has gone.
ENDED = {"PSM_ERR_PEER_DEAD", "PSM_ERR_PEER_CLOSED", "PSM_ERR_ABORTED"}


def build(program: Path, sources: Sequence[Path], end: str, parts: Sequence[str], options: Sequence[str]) -> Path:
    """A driver over one of the two ends, "proxy" or "standin", with parts of libpsm besides those that every driver has."""
    generated = ground.generate(program.parent / "generated")
    sources = [*compiled.BASE.glob("*.c"), *sources, HERE / "job" / "job.c", HERE / "job" / f"end_{end}.c"]
    for part in ("core", "shm", "conn", "p2p", "launch", *(["proxy"] if end == "proxy" else []), *parts):
        sources += (ground.PSM / part).glob("*.c")
    options = [*compiled.WARNINGS, *ground.includes(generated), f"-I{HERE}", *options]
    return compiled.link(program, sources, options, ["-lpthread", "-ldl"])


@dataclass(frozen=True)
class Job:
    """What a run of a driver said."""

    code: int
    text: str
    log: str
    results: dict[int, str] = field(default_factory=dict)

    @property
    def modes(self) -> set[str]:
        return set(re.findall(r"^rank \d+ mode (.+)$", self.text, re.MULTILINE))

    def said(self, what: str) -> list[tuple[int, str, str, str]]:
        """Rank, status, stage and text of what a call answered."""
        found = re.findall(rf"^rank (\d+) {what} (PSM_\w+)\|([^|]*)\|(.*)$", self.text, re.MULTILINE)
        return [(int(rank), status, stage, text) for rank, status, stage, text in found]

    def said_by(self, rank: int, what: str) -> tuple[str, str, str]:
        """The same of the one call of a rank, without the rank."""
        ((_, status, stage, text),) = [said for said in self.said(what) if said[0] == rank]
        return status, stage, text

    def count(self, what: str) -> int:
        return sum(map(int, re.findall(rf"{what}=(\d+)", self.text)))

    @property
    def most_steps(self) -> int:
        return max(map(int, re.findall(r"steps=(\d+)", self.text)))


Runner = Callable[..., Job]


def runner(driver: Path, tmp_path: Path, **common: str) -> Runner:
    """Runs ranks to their end. Nothing may be left over, and nothing misused, whatever happened to them."""
    count = 0

    def one(*arguments: str, topology: Path = FOUR, **settings: str) -> Job:
        nonlocal count
        count += 1
        folder = tmp_path / f"{count}"
        (folder / "records").mkdir(parents=True)
        (folder / "shm").mkdir()
        env = cuda.environment(compiled.environment())
        env |= {
            "PSM_TOPOLOGY": str(topology),
            "PSM_HOSTCUDA_BANNER": "0",
            "PSM_HOSTCUDA_STRICT": "1",
            "PSM_HOSTCUDA_SANITIZE": "warn",
            "PSM_SANITIZE_LEAKS": "1",
            "PSM_RECORD_DIR": str(folder / "records"),
            "PSM_SHM_DIR": str(folder / "shm"),
            "PSM_BUFFER_SIZE": "64K",
            **common,
            **settings,
        }
        done = subprocess.run(
            [driver, *arguments], env=env, capture_output=True, text=True, errors="replace", timeout=DEADLINE
        )
        results = dict(re.findall(r"^rank (\d+) done (\w+)", done.stdout, re.MULTILINE))
        job = Job(done.returncode, done.stdout, done.stderr, {int(rank): status for rank, status in results.items()})
        assert "Sanitizer" not in job.log and "runtime error" not in job.log, job.log
        assert "sanitizer report" not in job.log, job.log
        assert "WRONG DATA" not in job.text, job.text
        assert "a second free was taken" not in job.text
        assert list((folder / "shm").iterdir()) == []
        left = re.findall(r"^left (\d+) descriptors, (\d+) mappings$", job.text, re.MULTILINE)
        assert left and set(left) == {("0", "0")}, job.text + job.log
        for number in re.findall(r"killed by signal (\d+)", job.text):
            assert int(number) == signal.SIGKILL, job.log
        return job

    return one


def differences(magic: int, *more: tuple[str, str, str]) -> pytest.MarkDecorator:
    """What an end tells otherwise than it does, the status of the connect that refuses it, and its text."""
    mismatch = "PSM_ERR_MISMATCH"
    rows = [
        ("magic", "PSM_ERR_PROTOCOL", rf"bad magic {magic ^ 1:#x}, expected {magic:#x}"),
        ("version", "PSM_ERR_VERSION", r"version 2, this rank has 1"),
        ("role", mismatch, r"the role \(1: send\) is 1 at rank 0 and 1 at rank 1"),
        ("steps", mismatch, r"PSM_STEPS\) is 8 at rank 0 and 16 at rank 1"),
        ("chunk", mismatch, r"is 8192 at rank 0 and 16384 at rank 1"),
        ("buffer", mismatch, r"PSM_BUFFER_SIZE\) is 65536 at rank 0 and 131072 at rank 1"),
        ("rank", mismatch, r"the peer's rank is 1 at rank 0 and 77 at rank 1"),
        *more,
    ]
    return pytest.mark.parametrize(("what", "status", "text"), rows)


def check_refusal(run: Runner, what: str, status: str, text: str, **settings: str) -> None:
    """Rank 1 tells something else than it does; rank 0 refuses to connect."""
    job = run("sizes=1", "one_way=1", f"differ=1:{what}", **settings)
    assert job.code != 0
    said, stage, why = job.said_by(0, "connect")
    assert (said, stage) == (status, "connect")
    assert re.search(text, why), why


def check_error_ends_both(run: Runner, where: str) -> None:
    """An error in the progress thread of one end, at a fault site, ends the operation of the other."""
    victim = 1 if "recv" in where else 0
    job = run("sizes=500000", "one_way=1", PSM_FAULTS=f"{where}:error=EIO,rank={victim}")
    assert job.results[victim] == "PSM_ERR_SYSTEM"
    assert job.results[1 - victim] in ENDED
    assert any(rank == victim and "EIO" in text for rank, _, _, text in job.said("group"))


def check_abort(run: Runner) -> None:
    """Rank 1 posts nothing, so rank 0 would wait for ever: its abort ends the operation."""
    job = run("sizes=200000", "lone=1", "abort=0", "iters=1")
    assert "PSM_ERR_ABORTED" in {status for rank, status, _, _ in job.said("group") if rank == 0}
