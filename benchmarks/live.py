"""What `psmkit inspect` names of jobs that stand still, and what looking costs. It writes benchmarks/live.md.

    python benchmarks/live.py steps [--nccl LIB --kernels LIB]...   each case stops a job of the lab at a step; does inspect name step and peer?
    python benchmarks/live.py cost [--ranks 2,4,8]    time, memory and stop for a number of ranks

A part that is not run keeps its table. --nccl names libraries of real NCCL, over emulated CUDA.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import clean, load, processor

from psmkit.live import procfs

HERE = Path(__file__).parent
PAGE = HERE / "live.md"
PSMKIT = Path(sys.executable).parent / "psmkit"
STRUCK = re.compile(rb"PSM_FAULTS: (?:hang|kill|drop)")
SETTLE = 4.0  # seconds after the fault, for the others to come to where they wait; longer under load


@dataclass(frozen=True)
class Case:
    """A job that stops. ``expected``: the step and the peer of ranks; peer None: no rank can be named, because all are waited for."""

    name: str
    arguments: tuple[str, ...]
    expected: dict[int, tuple[str, int | None]]
    ranks: int = 2


def fault(text: str, *more: str) -> tuple[str, ...]:
    return ("--fault", text, *more)


LIBPSM = (
    Case("Init", fault("proxy.init:hang,rank=1"), {1: ("Init", 1)}),
    Case("Setup, in the proxy", fault("proxy.setup:hang,rank=1"), {0: ("bootstrap", None), 1: ("Setup", 1)}),
    Case("Setup, in the caller", fault("p2p.setup:hang,rank=1"), {1: ("Setup", 0)}),
    Case("Connect, in the proxy", fault("proxy.connect:hang,rank=1"), {0: ("Init", 1), 1: ("Connect", 1)}),
    Case("Connect, in the caller", fault("p2p.connect:hang,rank=1"), {1: ("Connect", 0)}),
    Case("GetFd", fault("proxy.getfd:hang,rank=1", "--share", "cumem"), {0: ("GetFd", 1)}),
    Case("GetFd, answer lost", fault("uds.reply:drop,rank=1,nth=1+", "--share", "cumem"), {0: ("GetFd", 1)}),
    Case("map", fault("p2p.memory.map:hang,rank=1"), {1: ("Connect", 1)}),
    Case("Register", fault("proxy.register:hang,rank=1", "--zero-copy", "registered"), {0: ("Register", 1)}),
    Case("data: sender", fault("p2p.send.step:hang,rank=1,nth=3"), {0: ("data", 1), 1: ("data", 0)}),
    Case("data: receiver", fault("p2p.recv.step:hang,rank=1,nth=3"), {0: ("data", 1), 1: ("data", 0)}),
    Case("data: lost word", fault("p2p.send.publish:drop,rank=1,nth=3+"), {0: ("data", 1), 1: ("data", 0)}),
    Case("data: no receive", ("--differ", "rank=1,skip=recv"), {0: ("data", 1)}),
    Case("Close", fault("proxy.close:hang,rank=1"), {0: ("Close", 1), 1: ("Connect", 1)}),
    Case(
        "stopped by a signal",
        fault("lab.stage:kill=SIGSTOP,rank=1,op=connect"),
        {0: ("Init", 1), 1: ("stopped", None)},
    ),
)
STOPPED = {1: ("stopped", None)}


NODES = ("--nodes", "2")
#: Ten places at which a real NCCL is stopped, some of them in several ways. What is expected follows from NCCL's sources; it was written before inspect
#: was run on any of these jobs. Faults strike in functions of the driver: which a build calls depends on whether it shares memory by cuMem or by IPC.
EITHER = (
    Case("init: a rank never joins", fault("cudaSetDevice:hang,rank=1"), {0: ("bootstrap", 1), 2: ("bootstrap", 1)}, 3),
    Case(
        "bootstrap: stopped before its group",
        fault("lab.stage:kill=SIGSTOP,rank=1,op=setup"),
        {0: ("bootstrap", 1), **STOPPED},
    ),
    Case(
        "data path: network, no recv",  # through one connection: Linux buffers up to 36 MiB of each here
        ("--differ", "rank=1,skip=recv", "--size", "64M", "--env", "NCCL_MAX_P2P_NCHANNELS=1", *NODES),
        {0: ("data", 1)},
    ),
    Case("data path: network, no send", ("--differ", "rank=1,skip=send", *NODES), {0: ("data", 1)}),
    Case("data path: p2p, stopped", fault("lab.iteration:kill=SIGSTOP,rank=1,nth=2"), {0: ("data", 1), **STOPPED}),
    Case("data path: p2p, no send", ("--differ", "rank=1,skip=send"), {0: ("data", 1), 2: ("data", 1)}, 3),
)
#: 2.21.5 shares memory by IPC. Then no rank is connected to the proxy of another, and a rank ends its communicator without its peers, unless an operation
#: of its proxy is left: the socket transport does not end a send that its peer has posted no receive for, once TCP's buffers are full, and
#: ncclProxyProgressDestroy waits for it. The kernel of rank 0 is done when it has filled seven of eight slots of 8 MiB.
LEFT = ("--pattern", "pair", "--size", "56M", "--differ", "rank=1,skip=recv", "--env", "NCCL_MAX_P2P_NCHANNELS=1")
LEFT += ("--env", "NCCL_BUFFSIZE=67108864", "--env", "NCCL_P2P_NET_CHUNKSIZE=8388608", *NODES)
NCCL_IPC = (
    Case("init: a rank allocates", fault("cuIpcGetMemHandle:hang,rank=1"), {0: ("bootstrap", 1), 1: ("init", None)}),
    Case("Setup, in the proxy", fault("cuStreamDestroy*:hang,rank=1"), {0: ("bootstrap", 1), 1: ("Setup", 1)}),
    Case("Connect", fault("cuIpcOpenMemHandle*:hang,rank=1"), {0: ("bootstrap", 1), 1: ("Connect", 0)}),
    *EITHER,
    Case(
        "destroy: a send is left",
        fault("lab.stage:kill=SIGSTOP,rank=1,op=end", *LEFT),
        {0: ("destroy", 1), **STOPPED},
    ),
)
NCCL_CUMEM = (
    Case("init: a rank allocates", fault("cuMemCreate:hang,rank=1"), {0: ("bootstrap", 1), 1: ("init", None)}),
    Case(
        "bootstrap: stopped in init",
        fault("cuMemCreate:kill=SIGSTOP,rank=1"),
        {0: ("bootstrap", 1), 2: ("bootstrap", 1), **STOPPED},
        3,
    ),
    Case("Setup, in the proxy", fault("cudaStreamDestroy:hang,rank=1"), {0: ("bootstrap", 1), 1: ("Setup", 1)}),
    Case("Connect", fault("cuMemImportFromShareableHandle:hang,rank=1"), {0: ("bootstrap", 1), 1: ("Connect", 0)}),
    Case("Connect, in the proxy, network", fault("cudaHostAlloc:hang,rank=1,nth=5", *NODES), {1: ("Connect", 1)}),
    # Rank 1 stops in sendProxyConnect where it allocates, and has connected before. TCP connects and carries the greeting without the peer's accept: no
    # Connect of rank 0 waits for more. It goes on to the exchange with which ncclTransportP2pSetup ends.
    Case(
        "Connect, peer stopped, network",
        fault("cudaHostAlloc:kill=SIGSTOP,rank=1,nth=5", *NODES),
        {0: ("bootstrap", 1), **STOPPED},
    ),
    Case("GetFd", fault("cuMemExportToShareableHandle:hang,rank=1"), {0: ("GetFd", 1), 1: ("bootstrap", 0)}),
    Case("GetFd: stopped", fault("cuMemExportToShareableHandle:kill=SIGSTOP,rank=1"), {0: ("GetFd", 1), **STOPPED}),
    Case(
        "registration",
        fault(
            "cuMemImportFromShareableHandle:hang,rank=1,nth=65",
            *("--memory", "nccl", "--register", "--differ", "rank=1,NCCL_LOCAL_REGISTER=0"),
        ),
        {0: ("Register", 1)},
    ),
    Case(
        "full work FIFO",  # a group of four plans, and room for two
        ("--env", "NCCL_WORK_FIFO_BYTES=128", "--env", "NCCL_WORK_ARGS_BYTES=80", "--env", "NCCL_MAX_P2P_NCHANNELS=1"),
        {0: ("work FIFO", None), 1: ("work FIFO", None)},
        4,
    ),
    Case(
        "abort",
        fault("cudaStreamQuery:error=999,rank=1;cudaMemPoolDestroy:hang,rank=1"),
        {0: ("data", 1), 1: ("abort", None)},
    ),
    Case("destroy: a rank frees", fault("cudaMemPoolDestroy:hang,rank=1"), {1: ("destroy", None)}),
    *EITHER,
    Case("destroy: peer stopped", fault("lab.stage:kill=SIGSTOP,rank=1,op=end"), {0: ("destroy", 1), **STOPPED}),
)


@contextlib.contextmanager
def job(
    kind: tuple[str, ...], arguments: tuple[str, ...], folder: Path, ranks: int = 2
) -> Iterator[subprocess.Popen[bytes]]:
    command = [str(PSMKIT), "lab", *kind, "--ranks", str(ranks), "--deadline", "300", "--out", str(folder), *arguments]
    # In the background of a shell SIGINT is ignored, and a child inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean())
    try:
        yield child
    finally:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def ranks_of(runner: int) -> list[int]:
    return sorted(
        p for p, parent in procfs.parents().items() if parent == runner and procfs.program_of(p).startswith("psm_")
    )


def struck(folder: Path) -> bool:
    return any(STRUCK.search(path.read_bytes()) for part in ("logs", "output") for path in (folder / part).glob("*"))


def stopped(child: subprocess.Popen[bytes], folder: Path, case: Case) -> bool:
    """Wait until the job stands still; False: it has ended."""
    settle = SETTLE * min(max(1.0, os.getloadavg()[0] / 2 / (os.cpu_count() or 1)), 3.0)
    end = time.monotonic() + (8 if "--fault" in case.arguments else 5) * settle
    while time.monotonic() < end and child.poll() is None and not struck(folder):
        time.sleep(0.1)  # a rank that NCCL has not yet told where to log says nothing of its fault
    time.sleep(settle)
    return child.poll() is None


def look(pids: list[int], *more: str) -> list[dict[str, Any]]:
    command = [str(PSMKIT), "inspect", *map(str, pids), "--format", "json", *more]
    done = subprocess.run(command, capture_output=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr.decode())
    found = json.loads(done.stdout)
    return found if isinstance(found, list) else [found]


def steps(libraries: list[Path], kernels: list[Path], only: str, keep: Path | None) -> str:
    old = [
        line
        for line in (PAGE.read_text() if PAGE.exists() else "").splitlines()
        if line.endswith((" yes |", " NO |", "there | |"))
    ]
    suites = [("libpsm", ("run", "--size", "4M", "--pattern", "alltoall"), LIBPSM)]
    for library, interpreter in zip(libraries, kernels, strict=True):
        kind = ("nccl", "--lib", str(library), "--kernels", str(interpreter), "--size", "4M")
        suites.append((f"NCCL {version(library)}", kind, NCCL_CUMEM if cumem(library) else NCCL_IPC))
    rows = []
    for name, kind, cases in suites:
        for case in cases:
            if re.search(only, f"{name} {case.name}"):
                rows += rows_of(name, kind, case, keep)
            else:
                rows += [line for line in old if line.startswith(f"| {name} | {case.name} |")]
    rows += [line for line in old if line.split(" | ")[0].removeprefix("| ") not in {name for name, _, _ in suites}]
    right, total = sum(row.endswith(" yes |") for row in rows), len(rows)
    lines = ["| job | stopped at | rank | expected | named | |", "|---|---|---|---|---|---|", *rows]
    return f"{right} of {total} steps and peers are named ({100 * right / max(total, 1):.0f} %).\n\n" + "\n".join(lines)


def rows_of(name: str, kind: tuple[str, ...], case: Case, keep: Path | None) -> list[str]:
    """The rows of one case: it is started, looked at and ended."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        with job(kind, case.arguments, folder, case.ranks) as child:
            pids = ranks_of(child.pid) if stopped(child, folder, case) else []
            if not pids:
                print(missed := f"| {name} | {case.name} | | | the job did not stop there | |", flush=True)
                return [missed]
            found = {one["rank"]: one for one in look(pids)}
    if keep is not None:
        (keep / f"{name} {case.name}.json").write_text(json.dumps(found))
    rows = []
    for rank, (stage, peer) in case.expected.items():
        standing = found[rank]["standing"] if rank in found else []
        good = [s for s in standing if s["stage"] == stage and (peer is None or s["peer"] == peer)]
        want = stage if peer is None else f"{stage}, rank {peer}"
        text = (good or standing or [{"text": "nothing"}])[0]["text"]
        rows.append(f"| {name} | {case.name} | {rank} | {want} | {text} | {'yes' if good else 'NO'} |")
        print(rows[-1], flush=True)
    return rows


def cumem(library: Path) -> bool:
    """Whether a release shares memory by cuMem by default."""
    return tuple(map(int, version(library).split(".")[:2])) >= (2, 24)


def version(library: Path) -> str:
    from psmkit.lab import nccl_library

    return nccl_library.find(library).version


def cost(counts: list[int]) -> str:
    lines = [
        "| ranks | threads | time of all | memory at most | stop of a rank: median | longest |",
        "|---|---|---|---|---|---|",
    ]
    for count in counts:
        case = Case("", ("--differ", "rank=1,skip=recv"), {})
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            with job(("run", "--size", "64K", "--pattern", "ring"), case.arguments, folder, count) as child:
                while len(ranks_of(child.pid)) < count and child.poll() is None:
                    time.sleep(0.1)
                time.sleep(SETTLE + count / 4)
                begun = time.monotonic()
                pids = ranks_of(child.pid)
                done = subprocess.Popen(
                    [str(PSMKIT), "inspect", *map(str, pids), "--format", "json", "--deadline", "600"],
                    stdout=subprocess.PIPE,
                )
                peak = Peak(done.pid)
                assert done.stdout is not None
                found = json.loads(peak.watch(done))
                seconds = time.monotonic() - begun
                found = found if isinstance(found, list) else [found]
        stops = sorted(one["stopped"] for one in found if one["stopped"] is not None)
        threads = sum(len(one["threads"]) for one in found)
        lines.append(
            f"| {count} | {threads} | {seconds:.1f} s | {peak.most / 1024:.0f} MiB | {1000 * stops[len(stops) // 2]:.0f} ms | {1000 * stops[-1]:.0f} ms |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines)


class Peak:
    """The most memory (KiB, proportional set size) of a process and its descendants while it runs."""

    def __init__(self, pid: int) -> None:
        self.pid, self.most = pid, 0

    def watch(self, child: subprocess.Popen[bytes]) -> bytes:
        import threading

        out: list[bytes] = []
        reader = threading.Thread(target=lambda: out.append(child.stdout.read() if child.stdout else b""))
        reader.start()
        while child.poll() is None:
            self.most = max(self.most, self.now())
            time.sleep(0.05)
        reader.join()
        return out[0]

    def now(self) -> int:
        parents = procfs.parents()
        family, grown = {self.pid}, True
        while grown:
            more = {pid for pid, parent in parents.items() if parent in family} - family
            family |= more
            grown = bool(more)
        return sum(map(memory, family))


def memory(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    match = re.search(r"^Pss: +(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("steps", "cost"))
    parser.add_argument("--nccl", type=Path, action="append", default=[])
    parser.add_argument("--kernels", type=Path, action="append", default=[], help="of each --nccl: docs/kernels.md")
    parser.add_argument("--only", default="", help="a pattern of `JOB CASE`: the others keep their rows")
    parser.add_argument("--keep", type=Path, help="a folder for what inspect found")
    parser.add_argument("--ranks", default="2,4,8,16,32,64")
    given = parser.parse_args()
    text = PAGE.read_text() if PAGE.exists() else "# What `psmkit inspect` names, and what it costs\n"
    made = (
        steps(given.nccl, given.kernels, given.only, given.keep)
        if given.part == "steps"
        else cost([int(n) for n in given.ranks.split(",")])
    )
    title = {"steps": "## Steps and peers", "cost": "## Time, memory, stop"}[given.part]
    about = f"`python benchmarks/live.py {given.part}` on {os.cpu_count()} cores, {processor()}, load {load()}."
    section = f"{title}\n\n{about}\n\n{made}\n"
    pattern = re.compile(rf"^{re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    text = pattern.sub(lambda _: section + "\n", text) if pattern.search(text) else f"{text.rstrip()}\n\n{section}"
    PAGE.write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
