"""Ranks that drive a real NCCL library over emulated CUDA: ``psmkit lab nccl`` without its face."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from psmkit.lab import faults, nccl_ras, programs, runner, transfer
from psmkit.lab.cuda import LabError
from psmkit.lab.emulation import Emulation
from psmkit.lab.nccl_library import Library
from psmkit.lab.nccl_memory import NcclMemory
from psmkit.lab.nccl_symbols import Symbols, crash
from psmkit.lab.topology import Machine
from psmkit.model.wording import counted

__all__ = [
    "COLLECTIVES",
    "KEYS",
    "MEMORIES",
    "OPS",
    "PATTERNS",
    "TYPES",
    "NcclCase",
    "differ",
    "program",
    "start",
]

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
PATTERNS = ("pair", "ring", "alltoall", "random", *COLLECTIVES)
TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2",
)  # fmt: skip
OPS = ("sum", "prod", "max", "min", "avg")
MEMORIES = ("cuda", "nccl")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*\Z")
_RAS_FILE = "ras.txt"
_NAMES = 4  # functions of a crash in one line


@dataclass(frozen=True, slots=True)
class NcclCase:
    """One case: what all ranks do with a new communicator. The fields are the keys that psm_nccl_rank reads.

    Args:
        name: in results; no blanks.
        pattern: who sends to whom, or which collective.
        size: bytes per peer; of a rank's part of a collective; with ``random`` the most.
        iters: groups or collectives, in sequence. The first one sets up the connections; 0: the communicator is only created and destroyed.
        type: of the elements.
        op: of a reduction.
        root: of a broadcast or reduce.
        app_stream: the stream of the calls: ``legacy``, ``blocking``, ``nonblocking``.
        memory: where buffers are from: ``cuda`` (cudaMalloc), ``nccl`` (ncclMemAlloc).
        registered: 1: buffers are registered with the communicator.
        blocking: 0: the communicator does not block; the rank polls its state.
        seed: of data and of ``random``.
        shorter: number of bytes by which sends, or the part of a collective, are shorter.
        skip: ``send`` or ``recv``: these, or the collective, are left out in the last iteration.
        device: of the rank; None: its number on its node.
        keep: 1: the communicator stays for the next case, which says the same of device and blocking.
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

    def line(self) -> str:
        """As psm_nccl_rank reads it."""
        return " ".join(f"{f.name}={v}" for f in fields(self) if (v := getattr(self, f.name)) is not None)


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


def program() -> Path:
    """The rank program of ``psmkit lab nccl``. PSM_DIR names another build.

    Raises:
        LabError: it was not built.
    """
    return programs.find("psm_nccl_rank")


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
        debug: level of the logs.
        stacks: collect the stacks of the ranks that have not ended when the deadline passes.
        watch: is called with the rank and the stage that it enters, or ``ended``.

    Raises:
        LabError: the run could not start.
    """
    changes = dict(differs or {})
    transfer.check_size(len(cases), ranks, nodes, changes)
    each = ranks // nodes
    host = machine or Machine(gpus or each, nodes)
    if each > host.gpus:
        raise LabError(
            f"{counted(each, 'rank')} on a node with {counted(host.gpus, 'GPU')}: NCCL needs a GPU for each rank"
        )
    executable = program()
    chosen = dict(environment or {})
    asked = _asked(chosen, changes, emulation, library, ranks)
    transfer.fresh(folder)
    (folder / "topology.toml").write_text(host.toml())
    (folder / "topology.xml").write_text(host.xml())
    lab = replace(
        emulation or Emulation(folder / "records"),
        folder=folder / "records",
        topology=(folder / "topology.toml").absolute(),
    )
    for rank in range(ranks):
        mine = [_of_rank(case, rank % each, changes.get(rank, {})) for case in cases]
        transfer.write_cases(folder, rank, mine)
    port = nccl_ras.free_port()
    given = {k: v for k, v in os.environ.items() if k.startswith("NCCL_")}
    common = _machine_variables(folder, port) | given

    def of_rank(rank: int) -> dict[str, str]:
        env = replace(lab, node=rank // each).environment(rank) | common
        if nodes > 1:
            env["NCCL_HOSTID"] = f"psm-node-{rank // each}"
        env |= {"NCCL_DEBUG": debug} | chosen
        env |= {k: v for k, v in changes.get(rank, {}).items() if _VARIABLE.match(k)}
        return env | {"NCCL_DEBUG_FILE": str((folder / "logs" / f"rank-{rank}.log").absolute()), "PSM_DEBUG": debug}

    memory = NcclMemory()

    def look(pids: list[int]) -> None:
        memory.look(pids)
        if text := nccl_ras.ask(port):
            (folder / "ras").mkdir(exist_ok=True)
            (folder / "ras" / _RAS_FILE).write_text(text)

    # Leftovers in the run's own folder are exact; NCCL's own files are checked separately.
    shared = Path(tempfile.mkdtemp(prefix="psm-lab-", dir="/dev/shm"))
    job = runner.Job(
        ranks,
        lambda _rank: [str(executable), str(library.path)],
        lambda rank: of_rank(rank) | {"PSM_SHM_DIR": str(shared)},
        folder,
        deadline,
        input=lambda rank: transfer.cases_file(folder, rank),
        stacks=stacks,
        shared_memory=shared,
        reports=len(cases),
        look=look,
    )
    try:
        outcome = runner.run(job, watch)
    finally:
        shutil.rmtree(shared, ignore_errors=True)
        reaped, unknown = memory.reap((folder / "logs").iterdir())
    if all(rank.state == "good" for rank in outcome.ranks):
        outcome.shared_memory += reaped  # nobody died: NCCL has forgotten them
    _crashes(folder, outcome, library)
    settings: dict[str, Any] = {
        "kind": "nccl",
        "library": str(library.path),
        "version": library.version,
        "cudart": library.cudart,
        "ranks": ranks,
        "nodes": nodes,
        "gpus": host.gpus,
        "deadline": deadline,
        "environment": given | chosen,
        "faults": lab.faults,
        "differs": {str(k): dict(v) for k, v in changes.items()},
        "reaped": reaped,
        "idle": faults.idle(asked, folder),
        "unknown": unknown if debug == "WARN" else [],  # from INFO on logs name all that is the run's
    }
    return transfer.finish(transfer.LabRun(folder, [case.line() for case in cases], outcome, settings))


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


def _asked(
    chosen: Mapping[str, str],
    changes: Mapping[int, Mapping[str, str]],
    emulation: Emulation | None,
    library: Library,
    ranks: int,
) -> list[faults.Fault]:
    """The faults of a run, which exist: of all ranks, then of single ones that have PSM_FAULTS of their own."""
    common = chosen.get("PSM_FAULTS", emulation.faults if emulation else "")
    texts = {common, *(own["PSM_FAULTS"] for own in changes.values() if "PSM_FAULTS" in own)} - {""}
    if not texts:
        return []
    values = [v for k, v in (os.environ | chosen).items() if k.startswith("NCCL_") and k.endswith("_PLUGIN")]
    known = faults.sites(library.path, *(Path(value) for value in values))
    return [fault for text in sorted(texts) for fault in faults.check(text, known, ranks)]


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
