"""Cases for the rank program, and a run of them: ``psmkit lab run`` without its face."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from psmkit.lab import leftovers, runner, words
from psmkit.lab.cuda import LabError
from psmkit.lab.emulation import Emulation
from psmkit.lab.real import RealCuda
from psmkit.lab.topology import Machine

__all__ = [
    "PATTERNS",
    "SHARES",
    "STREAMS",
    "ZERO_COPIES",
    "Case",
    "LabRun",
    "Variant",
    "differ",
    "fresh",
    "program",
    "read",
    "size",
    "start",
    "variants",
]

PATTERNS = ("pair", "ring", "alltoall", "random")
STREAMS = ("legacy", "blocking", "nonblocking")
SHARES = ("auto", "same-process", "memfd", "posix", "cumem", "cuda-ipc")
ZERO_COPIES = ("never", "registered", "always")
RESULT = "result.json"
VERSION = 2
_STRUCK = re.compile(r"PSM_FAULTS: \w+ at ")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Case:
    """One case: what all ranks do. The names are the keys that psm_rank reads; None leaves a setting to libpsm.

    Args:
        name: in results; no blanks.
        pattern: who sends to whom.
        size: bytes per peer; with ``random`` up to so many.
        iters: groups, one after the other.
        channels: connections a peer; its bytes are divided among them.
        app_stream: the stream that groups are launched on.
        variant: of the transport.
        seed: of data and of ``random``.
        steps: slots of a FIFO.
        buffer_size: bytes of a FIFO, a multiple of steps.
        share: how memory is shared.
        zero_copy: ``registered``: the ranks register their buffers.
        timeout_ms: of the control plane.
        stall_report_ms: when a connection that does not move is told.
        shorter: sends have so many bytes less.
        skip: ``send`` or ``recv``: these are left out of the last group.
        shared_init: 1: each rank sends SharedInit to the next one's proxy, too.
        device: of the rank; None: the rank's number, modulo the devices there are.
    """

    name: str = "0"
    pattern: str = "pair"
    size: int = 65536
    iters: int = 2
    channels: int = 1
    app_stream: str = "nonblocking"
    variant: str = "split"
    seed: int = 1
    steps: int | None = None
    buffer_size: int | None = None
    share: str | None = None
    zero_copy: str | None = None
    timeout_ms: int | None = None
    stall_report_ms: int | None = None
    spin_us: int | None = None
    shorter: int = 0
    skip: str = "none"
    shared_init: int | None = None
    device: int | None = None

    def line(self) -> str:
        """As psm_rank reads it."""
        return " ".join(f"{f.name}={v}" for f in fields(self) if (v := getattr(self, f.name)) is not None)


_NUMBERS = {f.name for f in fields(Case) if str(f.type).startswith("int")}
_CHOICES = {
    "pattern": PATTERNS,
    "app_stream": STREAMS,
    "share": SHARES,
    "zero_copy": ZERO_COPIES,
    "skip": ("none", "send", "recv"),
}


def size(text: str) -> int:
    """Bytes: a number, with K, M or G for powers of 1024.

    Raises:
        LabError: it is none.
    """
    found = re.fullmatch(r"(\d{1,15})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise LabError(f"{text!r} is no size: bytes are meant, also as 64K, 4M or 1G")
    return int(found[1]) * _UNITS[found[2].upper()]


def differ(texts: Iterable[str]) -> dict[int, dict[str, Any]]:
    """What single ranks do otherwise, of texts such as ``rank=1,steps=4``.

    Raises:
        LabError: no rank, a key that no case has, a value that it cannot have.
    """
    out: dict[int, dict[str, Any]] = {}
    for text in texts:
        rank: int | None = None
        changes: dict[str, Any] = {}
        for part in text.split(","):
            key, equal, value = (word.strip() for word in part.partition("="))
            if not equal:
                raise LabError(f"--differ {text!r}: {part!r}; KEY=VALUE is meant")
            if key == "rank" and value.isdecimal():
                rank = int(value)
            elif key in _NUMBERS and key != "rank":
                changes[key] = size(value)
            elif (key in _CHOICES and value in _CHOICES[key]) or (
                key == "variant" and re.fullmatch(r"(net/)?[\w-]{1,60}", value)
            ):
                changes[key] = value
            else:
                known = sorted(_NUMBERS | set(_CHOICES) | {"variant"})
                raise LabError(
                    f"--differ {text!r}: {part!r} is not known; rank=N and one of {', '.join(known)} are meant"
                )
        if rank is None or not changes:
            raise LabError(f"--differ {text!r}: rank=N and what differs there are meant, such as rank=1,steps=4")
        out.setdefault(rank, {}).update(changes)
    return out


def program() -> Path:
    """The rank program. PSM_DIR points elsewhere, for other builds of libpsm.

    Raises:
        LabError: it was not built.
    """
    place = Path(os.environ.get("PSM_DIR") or Path(__file__).parents[1] / "psm").absolute() / "bin" / "psm_rank"
    if not os.access(place, os.X_OK):
        raise LabError(
            f"no rank program {place}: build it with `make setup`, or install a psmkit wheel for this system"
        )
    return place


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of the transport as libpsm has it. ``outcome``: what must be seen of a wrong one; ``faults``: those that make its mistake."""

    name: str
    summary: str
    outcome: str
    wrong: bool
    faults: str


def variants() -> dict[str, Variant]:
    """The variants that libpsm has, by name.

    Raises:
        LabError: the rank program was not built, or cannot be run.
    """
    command = [str(program()), "variants"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise LabError(f"{' '.join(command)}: {error}") from None
    found = [Variant(r["name"], r["summary"], r["outcome"], bool(r["wrong"]), r["faults"]) for r in rows]
    return {variant.name: variant for variant in found}


@dataclass(slots=True)
class LabRun:
    """A run of cases and what it left in ``folder``. ``cases`` are lines as psm_rank reads them."""

    folder: Path
    cases: list[str]
    outcome: runner.Outcome
    settings: dict[str, Any] = field(default_factory=dict)

    def evidence(self) -> list[Path]:
        """Folders that an analysis can read: those with files in them."""
        places = [self.folder / name for name in ("logs", "output", "records", "stacks", "ras")]
        return [p for p in places if p.is_dir() and any(f.stat().st_size for f in p.iterdir() if f.is_file())]

    def struck(self) -> bool:
        """Whether a fault struck: the logs say so."""
        logs = self.folder / "logs"
        return any(_STRUCK.search(path.read_text(errors="replace")) for path in logs.iterdir())

    def write(self) -> None:
        """Write result.json."""
        data = {
            "version": VERSION,
            "good": self.outcome.good,
            "settings": self.settings,
            "cases": self.cases,
            **asdict(self.outcome),
        }
        (self.folder / RESULT).write_text(json.dumps(data, indent=1) + "\n")


def read(folder: Path) -> LabRun:
    """A run of its folder.

    Raises:
        LabError: there is none.
    """
    path = folder / RESULT
    try:
        data = json.loads(path.read_text())
        if data["version"] != VERSION:
            raise LabError(f"{path} is of version {data['version']}; version {VERSION} is read here")
        ranks = [runner.RankOutcome(**rank) for rank in data["ranks"]]
        names = ("seconds", "expired", "shared_memory", "processes", "deadline", "complaint")
        outcome = runner.Outcome(ranks, **{name: data[name] for name in names})
        return LabRun(folder, data["cases"], outcome, data["settings"])
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}: no run of `psmkit lab run --out {folder}`") from None
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path} is no result of `psmkit lab run`: {error!r}") from None


def fresh(folder: Path) -> None:
    """Make a folder for a run, which does not mix with what another has left.

    Raises:
        LabError: it is not empty, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise LabError(f"{folder} is not empty: name a new folder, so that evidence of two runs does not mix")
    except OSError as error:
        raise LabError(f"{folder}: {error.strerror}") from None


def start(
    cases: Sequence[Case],
    ranks: int,
    folder: Path,
    *,
    deadline: float = 60.0,
    differs: Mapping[int, Mapping[str, Any]] | None = None,
    emulation: Emulation | RealCuda | None = None,
    machine: Machine | None = None,
    nodes: int = 1,
    debug: str = "INFO",
    subsystems: str = "ALL",
    environment: Mapping[str, str] | None = None,
    stacks: bool = True,
) -> LabRun:
    """Run cases on so many ranks, and write the result into a folder.

    Args:
        cases: one after the other, by the same processes.
        ranks: how many.
        folder: where logs, output, records, stacks and result.json go; new or empty.
        deadline: seconds for all of it.
        differs: by rank, what it does otherwise in all cases.
        emulation: how the ranks see CUDA, emulated or real; its folder is ``folder / "records"``. None: as ``Emulation`` has it.
        machine: the emulated GPUs, which the ranks take in turn; None: what ``emulation`` names, and 8 GPUs.
        nodes: how many are pretended, with as many ranks each. Between them the net transport moves data.
        debug: level of the log.
        subsystems: of the log.
        environment: further variables of the ranks.
        stacks: take stacks of the ranks that are there when the deadline passes.

    Raises:
        LabError: the run could not be begun.
    """
    changes = dict(differs or {})
    if ranks < 1 or not cases:
        raise LabError(f"{ranks} ranks with {len(cases)} cases: one of each is the least")
    if ranks % nodes:
        raise LabError(f"{ranks} ranks on {nodes} nodes: as many ranks on each node are meant")
    if beyond := [rank for rank in changes if rank >= ranks]:
        raise LabError(f"rank {beyond[0]} is to differ, and there are {ranks} ranks")
    executable = program()
    mistakes = _mistakes([case.variant for case in cases] + [c["variant"] for c in changes.values() if "variant" in c])
    fresh(folder)
    lab: Emulation | RealCuda = emulation or Emulation(folder / "records")
    faults = ";".join(text for text in (lab.faults, mistakes) if text)
    lab = replace(lab, folder=folder / "records", faults=faults)
    for name in ("cases", "logs"):
        (folder / name).mkdir()
    each = ranks // nodes
    if isinstance(lab, RealCuda):
        devices = lab.devices
    else:
        if nodes > 1:
            machine = replace(machine or Machine(8), nodes=nodes)
        devices = machine.gpus if machine else 8
    if machine and isinstance(lab, Emulation):
        lab = replace(lab, topology=folder / "topology.toml")
        (folder / "topology.toml").write_text(machine.toml())
    for rank in range(ranks):
        mine = [_of_rank(case, rank % each, devices, changes.get(rank, {})) for case in cases]
        (folder / "cases" / f"rank-{rank}.txt").write_text("".join(case.line() + "\n" for case in mine))

    # Of this run alone, so that what is left in it is the ranks'.
    shared = Path(tempfile.mkdtemp(prefix=leftovers.run_folder(), dir="/dev/shm"))

    def of_rank(rank: int) -> dict[str, str]:
        log = str((folder / "logs" / f"rank-{rank}.log").absolute())
        return (
            replace(lab, node=rank // each).environment(rank)
            | {"PSM_LOG_FILE": log, "NCCL_DEBUG_FILE": log, "PSM_DEBUG": debug, "NCCL_DEBUG": debug}
            | {"PSM_DEBUG_SUBSYS": subsystems, "NCCL_DEBUG_SUBSYS": subsystems}
            | {"PSM_SHM_DIR": str(shared)}
            | dict(environment or {})
        )

    job = runner.Job(
        ranks,
        lambda _rank: [str(executable)],
        of_rank,
        folder,
        deadline,
        input=lambda rank: folder / "cases" / f"rank-{rank}.txt",
        stacks=stacks,
        shared_memory=shared,
        reports=len(cases),
    )
    reaped: list[str] = []
    try:
        outcome = runner.run(job)
        if outcome.shared_memory:
            # What a killed rank cannot remove is the reaper's; what is there behind it was truly lost.
            reaped = _reap(executable, shared)
            outcome.shared_memory = [name for name in outcome.shared_memory if name not in reaped]
    finally:
        shutil.rmtree(shared, ignore_errors=True)
    # Beside the logs: who reads these reads that, too.
    (folder / "logs" / words.FILE).write_text("".join(line + "\n" for line in words.lines(outcome)))
    settings = {
        "ranks": ranks,
        "nodes": nodes,
        "deadline": deadline,
        "cuda": f"{lab.path}, CUDA {lab.runtime}, driver {lab.driver}" if isinstance(lab, RealCuda) else "emulated",
        "faults": lab.faults,
        "differs": {str(k): v for k, v in changes.items()},
        "reaped": reaped,
    }
    done = LabRun(folder, [case.line() for case in cases], outcome, settings)
    done.write()
    return done


def _reap(executable: Path, folder: Path) -> list[str]:
    """Names of segments in ``folder`` whose owners are dead, and which libpsm's reaper has removed."""
    done = subprocess.run(
        [str(executable), "reap"],
        env=os.environ | {"PSM_SHM_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.split()


def _mistakes(names: Iterable[str]) -> str:
    """The faults of variants; they hold for whole processes."""
    wanted = set(names)
    if wanted <= {"split", "net/split"}:
        return ""
    known = variants()
    if unknown := sorted(wanted - set(known)):
        raise LabError(f"there is no variant {unknown[0]!r}: {', '.join(known)} are there")
    faults = [known[name].faults for name in sorted(wanted) if known[name].faults]
    if faults and len(wanted) > 1:
        raise LabError(
            f"the variants {', '.join(sorted(wanted))} cannot be in one run: faults make the mistakes of one of them"
        )
    return ";".join(faults)


def _of_rank(case: Case, rank: int, devices: int, changes: Mapping[str, Any]) -> Case:
    placed = case if case.device is not None else replace(case, device=rank % devices)
    return replace(placed, **changes)
