"""The undamaged logs of the bank: real runs of NCCL libraries, of the lab with each fault and variant, of version 0.1, and simulated jobs."""

from __future__ import annotations

import contextlib
import functools
import gzip
import re
import tarfile
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from examples.cases.story import Story
from tests.loggen import DIALECTS, SCENARIOS, generate, scenario_names
from tests.loggen.crowd import FAULTY, write_merged
from tests.mutilate import Files

__all__ = ["NEAR", "OF_THE_LAB", "SUBJECTS", "Subject", "Truth", "triggered"]

DATA = Path(__file__).parents[1] / "data"
# What only the lab says: that it has made a fault, and what the sanitizer saw.
OF_THE_LAB = re.compile(rb"PSM_FAULTS|NCCL (WARN|INFO) sanitizer")
#: Scenarios that make sense with any number of ranks from these on, and the numbers.
_WIDE = ("healthy_collectives", "kill_at_work", "stop_at_work", "lag_at_work", "other_operation", "kernel_fails")
_RANKS = (8, 64)


@dataclass(frozen=True)
class Truth:
    """What happened. Of ``verdicts`` and ``codes`` the first is the best. ``culprits`` None: nobody is judged; ``named``: one has to be named.

    Empty ``codes`` and ``stages`` are not judged. A stage that ends in ``*`` stands for all that begin so.
    """

    verdicts: tuple[str, ...]
    culprits: frozenset[int] | None = None
    codes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    named: bool = False

    @property
    def well(self) -> bool:
        """Whether the job may be called healthy."""
        return "healthy" in self.verdicts

    @property
    def broken(self) -> bool:
        """Whether the job failed or hung for sure."""
        return self.verdicts[0] in ("failed", "hung")


@dataclass(frozen=True)
class Subject:
    """A log before any damage. ``origin`` is "real" or "generated"; ``vouched``: the lab's own log, which no cut takes, says how each rank ended.
    ``beside`` are files that are no logs, which no damage takes."""

    name: str
    origin: str
    truth: Truth
    load: Callable[[], Files]
    vouched: bool = False
    beside: Callable[[], dict[str, Path]] = dict


#: What happens to a crowd: its truth. The rank that fails is the same in all.
_CROWDS = {
    "healthy": Truth(("healthy",), frozenset()),
    "healthy-proxy": Truth(("healthy",), frozenset()),
    "abort": Truth(("failed",), frozenset({FAULTY}), ("PSM405", "PSM401"), (), True),
    "errors": Truth(("failed",), frozenset({FAULTY}), ("PSM403", "PSM402"), (), True),
    "watchdog": Truth(("hung",), frozenset({FAULTY}), ("PSM302", "PSM305"), (), True),
    "unanswered": Truth(("hung",), frozenset({FAULTY}), ("PSM407", "PSM101"), (), True),
}


def _unpacked(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _folder(path: Path, logs: bool = False) -> Files:
    """The files of a run by name; ``logs``: those of its ranks alone, without what only the lab says."""
    files: Files = {}
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        data = _unpacked(file)
        if logs and not file.name.startswith("rank-"):
            continue
        if logs:
            data = b"\n".join(line for line in data.split(b"\n") if not OF_THE_LAB.search(line))
        files[file.name.removesuffix(".gz")] = data
    return files


def _truth(entry: dict[str, Any], prefix: str = "") -> Truth:
    verdicts = tuple(entry.get(f"{prefix}verdicts") or (entry["verdict"],))
    culprits = entry.get("culprits")
    if culprits is None and verdicts[0] == "healthy":
        culprits = []
    named = bool(entry.get("named", entry.get(f"{prefix}culprits"))) and "inconclusive" not in verdicts
    return Truth(
        verdicts,
        None if culprits is None else frozenset(culprits),
        tuple(entry.get(f"{prefix}codes") or entry.get("codes", ())),
        tuple(entry.get("stages", ())),
        named,
    )


def _nccl() -> Iterator[Subject]:
    runs = DATA / "nccl"
    for name, entry in tomllib.loads((runs / "truth.toml").read_text()).items():
        yield Subject(f"nccl/{name}", "real", _truth(entry), functools.partial(_folder, runs / name), True)
        logs = _truth(entry, "logs_")
        if logs.well:
            # Without the lab's own lines nobody says what is left behind.
            logs = replace(logs, codes=())
        yield Subject(f"nccl-logs/{name}", "real", logs, functools.partial(_folder, runs / name, logs=True))


def _logs() -> Iterator[Subject]:
    logs = DATA / "logs"
    for name, entry in tomllib.loads((logs / "truth.toml").read_text()).items():
        yield Subject(f"logs/{name}", "real", _truth(entry), functools.partial(_folder, logs / name))


@functools.cache
def _archive(kind: str) -> Path:
    """The runs of 0.1 or of the lab, unpacked: the records of 0.1 are sparse, and gigabytes as bytes. Kept in the build folder for the next time."""
    packed = DATA / kind / "runs.tar.xz"
    folder = DATA.parents[1] / "build" / f"{kind}-{zlib.crc32(packed.read_bytes()):08x}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made, tarfile.open(packed) as archive:
            # Debian 12's Python 3.11.2 has no filters; the archive is ours.
            archive.extractall(made, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            with contextlib.suppress(OSError):  # another process was first
                Path(made).replace(folder)
            Path(made).mkdir(exist_ok=True)
    return folder


def _run(kind: str, name: str, *parts: str) -> dict[str, Path]:
    """The files of a run in some of its folders."""
    folder = _archive(kind) / name
    return {str(file.relative_to(folder)): file for part in parts for file in sorted((folder / part).glob("*"))}


def _run_logs(kind: str, name: str, *parts: str) -> Files:
    return {file: path.read_bytes() for file, path in _run(kind, name, *parts).items()}


def _lab() -> Iterator[Subject]:
    """Each run with all that the lab prints, and the logs of its ranks alone, which seldom prove a hang."""
    for name, entry in tomllib.loads((DATA / "lab" / "truth.toml").read_text()).items():
        truth = _truth({"named": False, "codes": [], **entry})
        load = functools.partial(_run_logs, "lab", name, "logs", "output")
        yield Subject(f"lab/{name}", "real", truth, load, True)
        if truth.verdicts[0] == "leaking":
            # Only the sanitizer sees what a rank leaves behind.
            truth = Truth(("healthy", "leaking"), None)
        elif truth.broken:
            site, _, struck = name.partition("/")
            if "PSM402" in truth.codes:
                # Only the lab says that a rank was killed. To its peers a rank is lost.
                truth = replace(truth, codes=(*truth.codes, "PSM403"))
            if site.startswith("net.") and struck.startswith(("close", "drop")):
                # A socket that closes looks the same from both ends, and neither rank prints what it did to it.
                truth = replace(truth, culprits=None)
            # Where a rank stands still, its peers' waits end at their deadline: their logs show a failure.
            also = ("failed", "inconclusive") if truth.verdicts == ("hung",) else ("inconclusive",)
            truth = replace(truth, verdicts=(*truth.verdicts, *also), named=False)
        yield Subject(f"lab-logs/{name}", "real", truth, functools.partial(_ranks_alone, name))


def _ranks_alone(name: str) -> Files:
    """The logs of the ranks of a run, without what only the lab says."""
    files = _run_logs("lab", name, "logs")
    return {
        file: b"\n".join(line for line in data.split(b"\n") if not OF_THE_LAB.search(line))
        for file, data in files.items()
        if not file.endswith("lab.log")
    }


def _v01() -> Iterator[Subject]:
    for name, entry in tomllib.loads((DATA / "v01" / "truth.toml").read_text()).items():
        yield Subject(
            f"v01/{name}",
            "real",
            _truth(entry),
            functools.partial(_run_logs, "v01", name, "logs"),
            True,
            functools.partial(_run, "v01", name, "records"),
        )


def _generated(name: str, dialect: str, merged: bool, ranks: int | None) -> Files:
    scenario = SCENARIOS[name]
    plan = replace(scenario.plan, ranks=ranks, hosts=max(1, ranks // 8)) if ranks else None
    log = generate(name, dialect, seed=1 if merged else 2, plan=plan)
    return {"job.log": log.merged().encode()} if merged else {n: text.encode() for n, text in log.files().items()}


def _simulated() -> Iterator[Subject]:
    for name, dialect in scenario_names(scored=True):
        for merged in (True, False):
            # Files have no common clock: what one log proves by its order, many may leave open.
            said = SCENARIOS[name].truth_in(DIALECTS[dialect], merged)
            told = Truth(said.verdicts, said.culprits, said.codes, (), said.named and bool(said.culprits))
            shape = "merged" if merged else "files"
            yield Subject(
                f"{name}/{dialect}/{shape}",
                "generated",
                told,
                functools.partial(_generated, name, dialect, merged, None),
            )


def _wide() -> Iterator[Subject]:
    """Jobs of more ranks: simulated up to 64, scripted above."""
    for name in _WIDE:
        for dialect in ("2.21", "2.27", "2.30"):
            if SCENARIOS[name].covers(DIALECTS[dialect]):
                for ranks in _RANKS:
                    said = SCENARIOS[name].truth
                    truth = Truth(
                        said.verdicts, said.culprits, tuple(said.codes), (), said.named and bool(said.culprits)
                    )
                    load = functools.partial(_generated, name, dialect, True, ranks)
                    yield Subject(f"{name}/{dialect}/{ranks} ranks", "generated", truth, load)
    for kind, truth in _CROWDS.items():
        yield Subject(f"crowd/{kind}", "generated", truth, functools.partial(_crowd, kind))


def _crowd(kind: str) -> Files:
    with tempfile.TemporaryDirectory(prefix="psmkit-bank-") as folder:
        path = Path(folder) / "job.log"
        write_merged(path, kind, 1024)
        return {"job.log": path.read_bytes()}


#: What a job of :data:`NEAR` does around its story.
_BEFORE = """
ranks 4
all starts
all begins
all rings
all proxies Init
all proxies Setup
all completes
all calls AllReduce 1024 x3
"""
_AFTER = """
all calls AllReduce 1024 x2
all ends
"""
#: Rule -> the healthy job that nearly triggers it: ``why``, and ``story`` or ``log``; ``trigger`` and ``code``: the job that does.
NEAR: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("near.toml").read_text())


def _story(text: str) -> Files:
    return {"job.log": Story().tell(_BEFORE + text + _AFTER).encode()}


def triggered(name: str) -> bytes:
    """The log of an entry of :data:`NEAR` without what makes it healthy."""
    return Story().tell(_BEFORE + NEAR[name]["trigger"]).encode()


def _near() -> Iterator[Subject]:
    for name, entry in NEAR.items():
        if "story" in entry:
            yield Subject(
                f"near/{name}", "generated", Truth(("healthy",), frozenset()), functools.partial(_story, entry["story"])
            )


SUBJECTS: tuple[Subject, ...] = (*_near(), *_nccl(), *_logs(), *_v01(), *_lab(), *_simulated(), *_wide())
