"""Ranks that drive a real NCCL library over emulated CUDA: ``psmkit lab nccl`` without its face."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from psmkit.lab import copy_engine, faults, nccl_tasks, programs, runner, tasks, transfer
from psmkit.lab.cuda import LabError
from psmkit.lab.emulation import Emulation
from psmkit.lab.nccl_library import Library
from psmkit.lab.nccl_memory import NcclMemory
from psmkit.lab.nccl_symbols import Symbols, crash
from psmkit.lab.topology import Machine
from psmkit.live import ras
from psmkit.model.wording import counted
from psmkit.plan.programs import Program

__all__ = [
    "COLLECTIVES",
    "KEYS",
    "MEMORIES",
    "OPS",
    "PATTERNS",
    "POLICIES",
    "TASKS",
    "TYPES",
    "NcclCase",
    "differ",
    "rank_program",
    "rma_environment",
    "start",
]

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall-coll", "gather", "scatter")
PATTERNS = ("pair", "ring", "alltoall", "random", "put-signal", *COLLECTIVES)
#: The pattern of a program that the caller gives.
TASKS = "tasks"
TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2",
)  # fmt: skip
OPS = ("sum", "prod", "max", "min", "avg")
MEMORIES = ("cuda", "nccl")
POLICIES = ("default", "efficiency", "zero")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*\Z")
_RAS_FILE = "ras.txt"
_FIRST_RMA = (2, 30, 3)
_NET_PLUGIN = "libnccl-net-psm.so"
_NAMES = 4  # functions of a crash in one line


@dataclass(frozen=True, slots=True)
class NcclCase(transfer.Keys):
    """One case: what all ranks do with a new communicator. The fields are the keys that psm_nccl_rank reads.

    Args:
        name: in results; no blanks.
        pattern: who sends to whom, or which collective; ``tasks``: the program that ``start`` is given, whole, whatever ``iters`` says.
        size: bytes per peer; of a rank's part of a collective; with ``random`` the most.
        iters: groups or collectives, in sequence. The first one sets up the connections; 0: the communicator is only created and destroyed.
        type: of the elements.
        op: of a reduction.
        root: of a broadcast, reduce, gather or scatter.
        app_stream: the stream of the calls: ``legacy``, ``blocking``, ``nonblocking``.
        memory: where buffers are from: ``cuda`` (cudaMalloc), ``nccl`` (ncclMemAlloc).
        registered: 1: buffers are registered with the communicator.
        blocking: 0: the communicator does not block; the rank polls its state.
        seed: of data and of ``random``.
        shorter: number of bytes by which sends, or the part of a collective, are shorter.
        skip: ``send`` or ``recv``: these, or the collective, are left out in the last iteration.
        device: of the rank; None: its number on its node.
        keep: 1: the communicator stays for the next case, which says the same of device, blocking and cta_policy.
        windows: 1: both buffers are symmetric windows, which needs the memory ``nccl``.
        cta_policy: of the communicator: ``zero`` asks for copy engines.
        graph: each iteration is captured, and launched this many times with other data; 0: it is not captured.
    """

    name: str = "0"
    pattern: str = "alltoall"
    size: int = 65536
    iters: int = 2
    type: str = "uint8"
    op: str = "sum"
    root: int = 0
    app_stream: str = "nonblocking"
    memory: str = "cuda"
    registered: int = 0
    blocking: int = 1
    seed: int = 1
    shorter: int = 0
    skip: str = "none"
    device: int | None = None
    keep: int = 0
    windows: int = 0
    cta_policy: str = "default"
    graph: int = 0


KEYS: dict[str, tuple[str, ...] | None] = {  # None: a number
    "pattern": PATTERNS,
    "size": None,
    "iters": None,
    "type": TYPES,
    "op": OPS,
    "root": None,
    "app_stream": transfer.STREAMS,
    "memory": MEMORIES,
    "registered": ("0", "1"),
    "blocking": ("0", "1"),
    "seed": None,
    "shorter": None,
    "skip": ("none", "send", "recv"),
    "device": None,
    "keep": ("0", "1"),
    "windows": ("0", "1"),
    "cta_policy": POLICIES,
    "graph": None,
}


def differ(texts: Iterable[str]) -> dict[int, dict[str, str]]:
    """The settings of single ranks, from texts such as ``rank=1,skip=recv`` or ``rank=1,NCCL_BUFFSIZE=65536``.

    Names in capitals are environment variables, others are keys of a case.

    Raises:
        LabError: no rank, a key that no case has, a value that it cannot have.
    """
    return transfer.differing(
        texts, _setting, f"an environment variable or one of {', '.join(KEYS)}", "rank=1,skip=recv"
    )


def _setting(key: str, value: str) -> str | None:
    if _VARIABLE.match(key):
        return value
    if key in KEYS and KEYS[key] is None:
        return str(transfer.size(value))
    return value if value in (KEYS.get(key) or ()) else None


def rank_program() -> Path:
    """The rank program of ``psmkit lab nccl``. PSM_DIR names another build.

    Raises:
        LabError: it was not built.
    """
    return programs.find("psm_nccl_rank")


def rma_environment(library: Library, nodes: int) -> dict[str, str]:
    """The variables with which ranks put into windows of other nodes: psmkit's net plugin, and RMA in it.

    Raises:
        LabError: one node needs no plugin, the release has no RMA plugins, or psmkit's plugin was not built.
    """
    if nodes < 2:
        raise LabError(
            "--rma needs --nodes 2 or more: the ranks of one node reach each other's memory without a plugin"
        )
    numbers = tuple(int(number) for number in re.findall(r"\d+", library.version)[:3])
    if numbers and numbers < _FIRST_RMA:
        raise LabError(f"--rma: NCCL {library.version} has no RMA plugins, 2.30.3 is the first release with them")
    plugin = next((path for path in programs.libraries() if path.name == _NET_PLUGIN), None)
    if plugin is None:
        raise LabError(f"no {_NET_PLUGIN}: build it with `make setup`, or install a psmkit wheel for this system")
    return {"NCCL_NET_PLUGIN": str(plugin), "PSM_NET_RMA": "1"}


def start(
    library: Library,
    cases: Sequence[NcclCase],
    ranks: int,
    folder: Path,
    *,
    gpus: int | None = None,
    nodes: int = 1,
    machine: Machine | None = None,
    deadline: float = 60.0,
    differs: Mapping[int, Mapping[str, str]] | None = None,
    emulation: Emulation | None = None,
    environment: Mapping[str, str] | None = None,
    program: Program | None = None,
    debug: str = "INFO",
    stacks: bool = True,
    watch: Callable[[int, str], None] | None = None,
) -> transfer.LabRun:
    """Run cases on ranks of a NCCL library, and write the result into a folder, as ``transfer.start`` does.

    Args:
        library: as ``nccl_library.find`` gives it.
        cases: one after the other, by the same processes.
        ranks: number of ranks, the same on each node.
        folder: where logs, output, records, stacks, the RAS answer and result.json go; new or empty.
        gpus: GPUs of a node; None: one for each of its ranks.
        nodes: number of emulated nodes (NCCL_HOSTID).
        machine: the GPUs; None: ``gpus`` behind an NVSwitch.
        deadline: seconds for the whole run.
        differs: by rank, keys of the case and environment variables that differ on it.
        emulation: how the ranks see CUDA; this function sets folder, topology and node.
        environment: variables of the ranks, before ``differs``.
        program: of cases whose pattern is ``tasks``.
        debug: level of the logs.
        stacks: collect the stacks of the ranks that have not ended when the deadline passes.
        watch: is called with the rank and the stage that it enters, or ``ended``.

    Raises:
        LabError: the run could not start.
    """
    changes = dict(differs or {})
    transfer.check_size(len(cases), ranks, nodes, changes)
    host = machine or Machine(gpus or ranks // nodes, nodes)
    lab = emulation or Emulation(folder / "records")
    if any(case.pattern == TASKS for case in cases):
        if program is None or program.ranks != ranks:
            raise LabError(f"the cases need a program of {counted(ranks, 'rank')}")
        tasks.check(program)
    run = _Run(library, cases, ranks, folder, nodes, host, changes, lab, dict(environment or {}), program, debug)
    return run.start(deadline, stacks, watch)


@dataclass(slots=True)
class _Run:
    """A run of NCCL's ranks; of ``emulation`` it uses what is not the run's own."""

    library: Library
    cases: Sequence[NcclCase]
    ranks: int
    folder: Path
    nodes: int
    host: Machine
    changes: Mapping[int, Mapping[str, str]]
    emulation: Emulation
    chosen: dict[str, str]
    program: Program | None
    debug: str
    given: dict[str, str] = field(
        default_factory=lambda: {k: v for k, v in os.environ.items() if k.startswith("NCCL_")}
    )

    def start(self, deadline: float, stacks: bool, watch: Callable[[int, str], None] | None) -> transfer.LabRun:
        """Run the ranks, and write the result."""
        folder = self.folder
        if self.each > self.host.gpus:
            raise LabError(
                f"{counted(self.each, 'rank')} on a node with {counted(self.host.gpus, 'GPU')}: NCCL needs a GPU for each rank"
            )
        command = [str(rank_program()), str(self.library.path)]
        asked = self._asked()
        self._write()
        port = ras.free_port()
        memory = NcclMemory()

        def look(pids: list[int]) -> None:
            memory.look(pids)
            if text := ras.ask(port):
                (folder / "ras").mkdir(exist_ok=True)
                (folder / "ras" / _RAS_FILE).write_text(text)

        try:
            # Leftovers in the run's own folder are exact; NCCL's own files are checked separately.
            with transfer.own_memory() as shared:
                variables = {"PSM_SHM_DIR": str(shared)}
                job = transfer.job(
                    folder,
                    self.ranks,
                    command,
                    lambda rank: self.variables(rank, port) | variables,
                    shared,
                    len(self.cases),
                    deadline,
                    stacks,
                    look,
                )
                outcome = runner.run(job, watch)
        finally:
            reaped, unknown = memory.reap((folder / "logs").iterdir())
        if all(rank.state == "good" for rank in outcome.ranks):
            outcome.shared_memory += reaped  # nobody died: NCCL has forgotten them
        _crashes(folder, outcome, self.library)
        settings = self._settings(deadline) | {"reaped": reaped, "idle": faults.idle(asked, folder)}
        settings["unknown"] = unknown if self.debug == "WARN" else []  # from INFO on logs name all that is the run's
        settings |= copy_engine.seen(self.cases, self.ranks, folder, self.nodes)
        return transfer.finish(transfer.LabRun(folder, [case.line() for case in self.cases], outcome, settings))

    @property
    def each(self) -> int:
        """The ranks of a node."""
        return self.ranks // self.nodes

    def variables(self, rank: int, port: int) -> dict[str, str]:
        """The environment of a rank; NCCL's RAS answers at a port."""
        folder, node = self.folder, rank // self.each
        topology = (folder / "topology.toml").absolute()
        lab = replace(self.emulation, folder=folder / "records", topology=topology, node=node)
        env = lab.environment(rank) | _machine_variables(folder, port) | self.given
        if self.nodes > 1:
            env["NCCL_HOSTID"] = f"psm-node-{node}"
        env |= {"NCCL_DEBUG": self.debug} | self.chosen
        env |= {k: v for k, v in self.changes.get(rank, {}).items() if _VARIABLE.match(k)}
        return env | {"NCCL_DEBUG_FILE": str(transfer.log_file(folder, rank)), "PSM_DEBUG": self.debug}

    def _asked(self) -> list[faults.Fault]:
        """The faults of the run, which exist: of all ranks, then of single ones that have PSM_FAULTS of their own."""
        common = self.chosen.get("PSM_FAULTS", self.emulation.faults)
        texts = {common, *(own["PSM_FAULTS"] for own in self.changes.values() if "PSM_FAULTS" in own)} - {""}
        if not texts:
            return []
        env = os.environ | self.chosen
        plugins = [Path(v) for k, v in env.items() if k.startswith("NCCL_") and k.endswith("_PLUGIN")]
        known = faults.sites(self.library.path, *plugins)
        return [fault for text in sorted(texts) for fault in faults.check(text, known, self.ranks)]

    def _write(self) -> None:
        """Write what the ranks read: the GPUs and their cases."""
        transfer.fresh(self.folder)
        (self.folder / "topology.toml").write_text(self.host.toml())
        (self.folder / "topology.xml").write_text(self.host.xml())
        for rank in range(self.ranks):
            transfer.write_cases(self.folder, rank, [self._lines(case, rank) for case in self.cases])

    def _lines(self, case: NcclCase, rank: int) -> str:
        """The line of a case, and behind it what the program has for this rank."""
        calls = nccl_tasks.lines(self.program, rank) if case.pattern == TASKS and self.program is not None else []
        if calls:
            case = replace(case, iters=calls.count("wait"))
        line = _of_rank(case, rank % self.each, self.changes.get(rank, {}))
        return "\n".join([f"{line} tasks={len(calls)}" if calls else line, *calls])

    def _settings(self, deadline: float) -> dict[str, Any]:
        return {
            "kind": "nccl",
            "library": str(self.library.path),
            "version": self.library.version,
            "cudart": self.library.cudart,
            "ranks": self.ranks,
            "nodes": self.nodes,
            "gpus": self.host.gpus,
            "deadline": deadline,
            "environment": self.given | self.chosen,
            "faults": self.emulation.faults,
            "differs": {str(k): dict(v) for k, v in self.changes.items()},
        }


def _machine_variables(folder: Path, port: int) -> dict[str, str]:
    """The emulated GPUs, and none of the hardware of this machine."""
    return {
        "NCCL_TOPO_FILE": str((folder / "topology.xml").absolute()),
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_RAS_ADDR": f"localhost:{port}",
        "NCCL_DEBUG_SUBSYS": "ALL",
    }


def _crashes(folder: Path, outcome: runner.Outcome, library: Library) -> None:
    """Turn the stacks that crashed ranks wrote into the format of gdb."""
    symbols: Symbols | None = None
    for rank in outcome.ranks:
        own = folder / "stacks" / f"rank-{rank.rank}.own.txt"
        if rank.state != "died" or not own.exists():
            continue
        symbols = symbols or Symbols(library.path)
        written = folder / "stacks" / f"rank-{rank.rank}.crash.txt"
        title = f"rank {rank.rank}, process {rank.pid}, stage {rank.stage or 'unknown'}: {rank.text}"
        stack = crash(own.read_text(errors="replace"), symbols, library.path, rank.pid)
        written.write_text(f"{title}\n\n{stack}")
        names = [name for name in re.findall(r" in (\w+) \(\)", stack) if name != "??"]
        if names:
            rank.text += f": {' < '.join(names[:_NAMES])}"
        own.unlink()
        rank.stacks.append(str(written))
    with contextlib.suppress(OSError):
        (folder / "stacks").rmdir()  # if it is empty


def _of_rank(case: NcclCase, device: int, changes: Mapping[str, str]) -> str:
    placed = case if case.device is not None else replace(case, device=device)
    keys = dict(word.split("=", 1) for word in placed.line().split(" "))
    keys |= {k: v for k, v in changes.items() if not _VARIABLE.match(k)}
    return " ".join(f"{k}={v}" for k, v in keys.items())
