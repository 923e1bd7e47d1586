"""Cases for the rank program, and a run of them: ``psmkit lab run`` without its face."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from psmkit.lab import faults, leftovers, runner, words
from psmkit.lab.cuda import LabError
from psmkit.lab.emulation import Emulation
from psmkit.lab.moved import Meter
from psmkit.lab.real import RealCuda
from psmkit.lab.strangers import Stranger
from psmkit.lab.topology import Machine
from psmkit.lab.variants import Variant, program, variants
from psmkit.model.wording import counted

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
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Keys:
    """Fields of a dataclass that a rank program reads."""

    __slots__ = ()

    def line(self) -> str:
        """As the rank program reads them; it has a default for what is None."""
        names = (f.name for f in fields(self))  # type: ignore[arg-type]
        return " ".join(f"{name}={v}" for name in names if (v := getattr(self, name)) is not None)


@dataclass(frozen=True, slots=True)
class Case(Keys):
    """One case: what all ranks do. The fields are the keys that psm_rank reads; None is the default of libpsm.

    Args:
        name: in results; no blanks.
        pattern: who sends to whom.
        size: bytes per peer; with ``random`` the maximum.
        iters: groups, in sequence.
        channels: connections of a peer; they share its bytes.
        app_stream: the stream that groups are launched on.
        variant: of the transport.
        seed: of data and of ``random``.
        steps: slots of a FIFO.
        buffer_size: bytes of a FIFO, a multiple of steps.
        share: how memory is shared.
        zero_copy: ``registered``: the ranks register their buffers.
        timeout_ms: of the control plane.
        stall_report_ms: time after which a stalled connection is reported.
        shorter: number of bytes by which sends are shorter.
        skip: ``send`` or ``recv``: these are left out of the last group.
        via: 1: ranks whose devices do not reach each other use the memory of a third one's.
        shared_init: 1: each rank also sends SharedInit to the proxy of the next one.
        device: of the rank; None: the rank modulo the number of devices.
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
    via: int | None = None
    shared_init: int | None = None
    device: int | None = None

    @classmethod
    def of_line(cls, line: str) -> Case:
        """The case of a line that ``line`` wrote.

        Raises:
            LabError: it is none, such as one of another release.
        """
        try:
            pairs = dict(word.split("=", 1) for word in line.split())
            return cls(**{key: int(value) if key in _NUMBERS else value for key, value in pairs.items()})  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise LabError(f"bad case {line!r}: {error}") from None


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
        raise LabError(f"bad size {text!r}, expected a number of bytes such as 4096, 64K, 4M or 1G")
    return int(found[1]) * _UNITS[found[2].upper()]


def differ(texts: Iterable[str]) -> dict[int, dict[str, Any]]:
    """The settings of single ranks, from texts such as ``rank=1,steps=4``.

    Raises:
        LabError: no rank, a key that no case has, a value that it cannot have.
    """
    known = f"one of {', '.join(sorted(_NUMBERS | set(_CHOICES) | {'variant'}))}"
    return differing(texts, _setting, known, "rank=1,steps=4")


def _setting(key: str, value: str) -> object:
    if key in _NUMBERS and key != "rank":
        return size(value)
    allowed = value in _CHOICES.get(key, ()) or (key == "variant" and re.fullmatch(r"(net/)?[\w-]{1,60}", value))
    return value if allowed else None


def differing(
    texts: Iterable[str], setting: Callable[[str, str], object], known: str, example: str
) -> dict[int, dict[str, Any]]:
    """The settings of single ranks, from texts of ``--differ``.

    Args:
        texts: each with a rank and settings.
        setting: the value that a key gets, or None if there is no such key, or it cannot have this value.
        known: the settings in words, for errors.
        example: a text, for errors.

    Raises:
        LabError: a text is wrong.
    """
    out: dict[int, dict[str, Any]] = {}
    for text in texts:
        rank: int | None = None
        changes: dict[str, Any] = {}
        for part in text.split(","):
            key, equal, value = (word.strip() for word in part.partition("="))
            if not equal:
                raise LabError(f"--differ {text!r}: bad {part!r}, expected KEY=VALUE")
            if key == "rank" and value.isdecimal():
                rank = int(value)
            elif (found := setting(key, value)) is not None:
                changes[key] = found
            else:
                raise LabError(f"--differ {text!r}: unknown setting {part!r}, expected rank=N and {known}")
        if rank is None or not changes:
            raise LabError(f"--differ {text!r}: expected rank=N and a setting, such as {example}")
        out.setdefault(rank, {}).update(changes)
    return out


@dataclass(slots=True)
class LabRun:
    """A run of cases and its ``folder``. ``cases`` are lines in the format of psm_rank."""

    folder: Path
    cases: list[str]
    outcome: runner.Outcome
    settings: dict[str, Any] = field(default_factory=dict)

    def evidence(self) -> list[Path]:
        """Folders that an analysis can read: those with files in them."""
        places = [self.folder / name for name in ("logs", "output", "records", "stacks", "ras")]
        return [p for p in places if p.is_dir() and any(f.stat().st_size for f in p.iterdir() if f.is_file())]

    def struck(self) -> bool:
        """Whether a fault fired in a rank, by the logs."""
        return faults.fired(self.folder)

    @property
    def idle(self) -> list[str]:
        """The faults that never fired, and why; empty for runs of psmkit 0.1, which did not look."""
        return list(self.settings.get("idle", []))

    @property
    def fell_back(self) -> list[str]:
        """The calls that asked for copy engines, and of which no line shows that they went by them."""
        return list(self.settings.get("engine", {}).get("missing", []))

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
    """The run that wrote a folder.

    Raises:
        LabError: the folder has no result.
    """
    path = folder / RESULT
    try:
        data = json.loads(path.read_text())
        if data["version"] != VERSION:
            raise LabError(f"{path}: bad version {data['version']}, expected {VERSION}")
        ranks = [runner.RankOutcome(**rank) for rank in data["ranks"]]
        names = ("seconds", "expired", "shared_memory", "processes", "deadline", "complaint")
        outcome = runner.Outcome(ranks, **{name: data[name] for name in names})
        return LabRun(folder, data["cases"], outcome, data["settings"])
    except FileNotFoundError:
        raise LabError(
            f"{folder} has no {RESULT}: not a folder of psmkit lab run, or its run was interrupted; try psmkit analyze {folder}"
        ) from None
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path} is not a result of `psmkit lab run`: {error!r}") from None


def fresh(folder: Path) -> None:
    """Create a folder for a run with its first subfolders, or take an empty one.

    Raises:
        LabError: it is not empty, or cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise LabError(f"{folder} is not empty: name a new folder, to keep the evidence of two runs apart")
        for name in ("cases", "logs"):
            (folder / name).mkdir()
    except OSError as error:
        raise LabError(f"{folder}: {error.strerror}") from None


def check_size(cases: int, ranks: int, nodes: int, differs: Iterable[int]) -> None:
    """Whether there are ranks, on each node as many, and cases.

    Args:
        differs: the ranks that have settings of their own.

    Raises:
        LabError: a number is wrong.
    """
    if ranks < 1 or not cases:
        raise LabError(f"{counted(ranks, 'rank')} with {counted(cases, 'case')}: a run needs at least one of each")
    if ranks % nodes:
        raise LabError(
            f"{counted(ranks, 'rank')} on {counted(nodes, 'node')}: every node needs the same number of ranks"
        )
    if beyond := [rank for rank in differs if rank >= ranks]:
        raise LabError(f"--differ names rank {beyond[0]}, but the run has ranks 0 to {ranks - 1}")


def write_cases(folder: Path, rank: int, lines: Iterable[str]) -> None:
    """Write the cases that a rank reads from its standard input."""
    cases_file(folder, rank).write_text("".join(line + "\n" for line in lines))


def cases_file(folder: Path, rank: int) -> Path:
    """The file of a rank's cases."""
    return folder / "cases" / f"rank-{rank}.txt"


def log_file(folder: Path, rank: int) -> Path:
    """The log of a rank."""
    return (folder / "logs" / f"rank-{rank}.log").absolute()


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
    stranger: Stranger | None = None,
    debug: str = "INFO",
    subsystems: str = "ALL",
    environment: Mapping[str, str] | None = None,
    stacks: bool = True,
    watch: Callable[[int, str], None] | None = None,
) -> LabRun:
    """Run cases on ranks, and write the result into a folder.

    Args:
        cases: run in order, by the same processes.
        ranks: number of ranks.
        folder: where logs, output, records, stacks and result.json go; new or empty.
        deadline: seconds for the whole run.
        differs: by rank, the settings that differ in all cases.
        emulation: how the ranks see CUDA, emulated or real; its folder is ``folder / "records"``. None: as ``Emulation`` has it.
        machine: the emulated GPUs, which the ranks use in turn; None: that of ``emulation``, with 8 GPUs.
        nodes: number of emulated nodes, with the same number of ranks each. The net transport moves data between them.
        stranger: a variant from outside psmkit, which cases may name.
        debug: level of the log.
        subsystems: of the log.
        environment: further variables of the ranks.
        stacks: collect the stacks of the ranks that have not ended when the deadline passes.
        watch: is called with the rank and the stage that it enters, or ``ended``.

    Raises:
        LabError: the run could not start.
    """
    changes, extra = dict(differs or {}), dict(environment or {})
    check_size(len(cases), ranks, nodes, changes)
    executable, command = program(), [str(program())]
    if stranger is not None:
        command, extra = stranger.command(), stranger.environment() | extra
    names = [case.variant for case in cases] + [c["variant"] for c in changes.values() if "variant" in c]
    lab = _struck(emulation, names, folder, stranger.variant if stranger else None)
    _check_used(names, ranks, nodes, os.environ | extra)
    asked = _asked(extra.get("PSM_FAULTS", lab.faults), extra, ranks)
    fresh(folder)
    lab, devices = _placed(lab, machine, nodes, folder)
    each = ranks // nodes
    for rank in range(ranks):
        write_cases(folder, rank, [_of_rank(c, rank % each, devices, changes.get(rank, {})).line() for c in cases])
    log = {"PSM_DEBUG": debug, "NCCL_DEBUG": debug, "PSM_DEBUG_SUBSYS": subsystems, "NCCL_DEBUG_SUBSYS": subsystems}
    with own_memory() as shared:
        log |= {"PSM_SHM_DIR": str(shared)}

        def of_rank(rank: int) -> dict[str, str]:
            return replace(lab, node=rank // each).environment(rank) | _log_files(folder, rank) | log | extra

        made = job(folder, ranks, command, of_rank, shared, len(cases), deadline, stacks)
        if stranger is not None and stranger.python:  # a debugger sees the interpreter, and not what it interprets
            made = replace(made, stack_signal=signal.SIGUSR1)
        outcome = runner.run(made, watch)
        reaped = reap(executable, shared, outcome)
    settings = _settings(ranks, nodes, deadline, lab, changes) | {"reaped": reaped, "idle": faults.idle(asked, folder)}
    if stranger is not None:
        settings["stranger"] = {"text": stranger.text, "declares": dict(stranger.variant.row)}
    return finish(LabRun(folder, [case.line() for case in cases], outcome, settings))


@contextlib.contextmanager
def own_memory() -> Iterator[Path]:
    """A folder for the named shared memory of one run: whatever remains in it comes from its ranks. SIGTERM removes it, too; after a SIGKILL the next run does."""
    leftovers.remove_dead_runs()
    with leftovers.cleaned_at_sigterm():
        shared = Path(tempfile.mkdtemp(prefix=leftovers.run_folder(), dir="/dev/shm"))
        try:
            yield shared
        finally:
            shutil.rmtree(shared, ignore_errors=True)


def job(
    folder: Path,
    ranks: int,
    command: Sequence[str],
    environment: Callable[[int], Mapping[str, str]],
    shared: Path,
    cases: int,
    deadline: float,
    stacks: bool,
    look: Callable[[list[int]], None] | None = None,
) -> runner.Job:
    """The job of ranks that read the cases in ``folder``, and have ``shared`` for their named shared memory."""
    return runner.Job(
        ranks,
        lambda _rank: command,
        environment,
        folder,
        deadline,
        input=lambda rank: cases_file(folder, rank),
        stacks=stacks,
        shared_memory=shared,
        reports=cases,
        look=look,
        moved=Meter(folder / "records"),
    )


def finish(done: LabRun) -> LabRun:
    """Write what a run leaves in its folder, and return it."""
    # Beside the logs: an analysis of these reads it.
    (done.folder / "logs" / words.FILE).write_text("".join(line + "\n" for line in words.lines(done.outcome)))
    done.write()
    return done


def _asked(text: str, environment: Mapping[str, str], ranks: int) -> list[faults.Fault]:
    """The faults of a run, which exist."""
    if not text:
        return []
    plugin = Path(environment.get("PSM_NET_PLUGIN") or os.environ.get("PSM_NET_PLUGIN") or "psm")
    return faults.check(text, faults.sites(plugin), ranks)


def reap(executable: Path, folder: Path, outcome: runner.Outcome) -> list[str]:
    """Remove the segments of dead owners from ``folder`` by libpsm's reaper, and return their names. What remains is a leak."""
    if not outcome.shared_memory:
        return []
    done = subprocess.run(
        [str(executable), "reap"],
        env=os.environ | {"PSM_SHM_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    reaped = done.stdout.split()
    outcome.shared_memory = [name for name in outcome.shared_memory if name not in reaped]
    return reaped


def _struck(
    emulation: Emulation | RealCuda | None, names: Iterable[str], folder: Path, stranger: Variant | None
) -> Emulation | RealCuda:
    """How the ranks of a run see CUDA, with the faults that make the mistakes of its variants."""
    lab: Emulation | RealCuda = emulation or Emulation(folder / "records")
    texts = (lab.faults, _mistakes(names, stranger))
    return replace(lab, folder=folder / "records", faults=";".join(text for text in texts if text))


def _placed(
    lab: Emulation | RealCuda, machine: Machine | None, nodes: int, folder: Path
) -> tuple[Emulation | RealCuda, int]:
    """The GPUs of a node, and how many there are; those of a machine are described in the folder of the run."""
    if isinstance(lab, RealCuda):
        return lab, lab.devices
    if nodes > 1:
        machine = replace(machine or Machine(8), nodes=nodes)
    if machine is None:
        return lab, 8
    (folder / "topology.toml").write_text(machine.toml())
    return replace(lab, topology=folder / "topology.toml"), machine.gpus


def _settings(
    ranks: int, nodes: int, deadline: float, lab: Emulation | RealCuda, changes: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """What result.json keeps of the arguments of a run."""
    return {
        "ranks": ranks,
        "nodes": nodes,
        "processors": len(os.sched_getaffinity(0)),
        "deadline": deadline,
        "cuda": f"{lab.path}, CUDA {lab.runtime}, driver {lab.driver}" if isinstance(lab, RealCuda) else "emulated",
        "faults": lab.faults,
        "differs": {str(k): v for k, v in changes.items()},
    }


def _log_files(folder: Path, rank: int) -> dict[str, str]:
    return dict.fromkeys(("PSM_LOG_FILE", "NCCL_DEBUG_FILE"), str(log_file(folder, rank)))


def _mistakes(names: Iterable[str], stranger: Variant | None) -> str:
    """The faults of variants; they apply to whole processes."""
    wanted = set(names)
    if wanted <= {"split", "net/split"}:
        return ""
    known = variants() | ({stranger.name: stranger} if stranger else {})
    if unknown := sorted(wanted - set(known)):
        raise LabError(f"unknown variant {unknown[0]!r}, expected one of {', '.join(known)}")
    texts = [known[name].faults for name in sorted(wanted) if known[name].faults]
    if texts and len(wanted) > 1:
        raise LabError(
            f"the variants {', '.join(sorted(wanted))} cannot be in one run: one of them works by faults, which apply to all ranks"
        )
    return ";".join(texts)


def _check_used(names: Iterable[str], ranks: int, nodes: int, environment: Mapping[str, str]) -> None:
    """Refuse a variant of a transport that no connection of the run uses: the run would be good without it."""
    p2p = environment.get("PSM_P2P_DISABLE") != "1"
    for name in names:
        if name.startswith("net/") and p2p and nodes == 1:
            raise LabError(f"variant {name} needs --nodes 2 or more: the ranks of one node use p2p")
        if name != "split" and not name.startswith("net/") and (not p2p or ranks == nodes > 1):
            why = "the ranks of different nodes use the network" if p2p else "PSM_P2P_DISABLE=1 is set"
            raise LabError(f"variant {name} needs ranks that use p2p: {why}")


def _of_rank(case: Case, rank: int, devices: int, changes: Mapping[str, Any]) -> Case:
    placed = case if case.device is not None else replace(case, device=rank % devices)
    return replace(placed, **changes)
