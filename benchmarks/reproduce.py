"""How small cases get: plants faults in jobs of 2 to 32 ranks, makes the logs of each, and lets `psmkit reproduce --shrink` work on them.

.venv/bin/python benchmarks/reproduce.py                  30 faults, and evidence of 10,000,000 calls; writes benchmarks/reproduce.md
.venv/bin/python benchmarks/reproduce.py --nccl LIB       the smallest cases on a real NCCL
.venv/bin/python benchmarks/reproduce.py --stream dumps   evidence of 10,000,000 calls only: the time and the memory that reading takes
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from psmkit.lab import nccl_library
from psmkit.plan.types import Config, DataType, Func, Scheduler
from psmkit.reproduce import simulator
from psmkit.reproduce.case import Case, extract
from psmkit.reproduce.operations import OP, Comm, Operations
from psmkit.reproduce.runs import on_nccl
from psmkit.reproduce.shrink import shrink

PAGE = Path(__file__).with_suffix(".md")
KINDS = ("behind", "other collective", "other count", "recv forgotten", "send forgotten", "sizes differ", "overflow")
CONFIG = Config(
    ranks=2, scheduler=Scheduler.PLANNER, release=23007, channels=16, p2p_channels=16, p2p_channels_per_peer=2,
    work_fifo_bytes=1 << 20, pass_sm=False, ll_threshold=16 << 10,
)  # fmt: skip
Row = tuple[int, ...]


@dataclass(frozen=True)
class Planted:
    """A job with a fault: its operations, and the rank that has it."""

    kind: str
    operations: Operations
    rank: int


def plant(seed: int) -> Planted:
    """The job of a seed: collectives and exchanges in groups, the same on all ranks but for the fault."""
    chance = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    ranks = chance.choice((2, 4, 8)) if kind == "overflow" else chance.choice((4, 8, 16, 32))
    if kind == "overflow":
        count = 24_000
        groups: list[list[list[Row]]] = [[_ring(rank, ranks, 16, count) for rank in range(ranks)]]
        return Planted(kind, _made(ranks, groups), -1)
    groups = []
    for _ in range(chance.randrange(400, 1200) * 8 // ranks):
        if chance.random() < 0.5:
            func = chance.choice((Func.ALLREDUCE, Func.ALLGATHER, Func.REDUCESCATTER))
            size = chance.choice((1 << 8, 1 << 12, 1 << 20))
            groups.append([[_row(func, size)] for _ in range(ranks)])
        else:
            groups.append([_ring(rank, ranks, chance.choice((1 << 10, 1 << 22)), 1) for rank in range(ranks)])
            size = int(groups[-1][0][0][-1])
            groups[-1] = [_ring(rank, ranks, size, 1) for rank in range(ranks)]
    odd = chance.randrange(ranks)
    wants_coll = kind in ("other collective", "other count")
    at = next(
        i for i in range(len(groups) * 3 // 4, len(groups))
        if kind == "behind" or (len(groups[i][0]) == 1) == wants_coll
    )  # fmt: skip
    mine = groups[at][odd]
    if kind == "behind":
        for later in groups[at:]:
            later[odd] = []
    elif kind == "other collective":
        mine[0] = (*mine[0][:2], int(Func.ALLREDUCE if mine[0][2] != Func.ALLREDUCE else Func.ALLGATHER), *mine[0][3:])
    elif kind == "other count":
        mine[0] = (*mine[0][:-1], mine[0][-1] + 64)
    elif kind == "sizes differ":
        mine[0] = (*mine[0][:-1], mine[0][-1] // 2)
    else:
        wanted = Func.RECV if kind == "recv forgotten" else Func.SEND
        groups[at][odd] = [row for row in mine if row[2] != int(wanted)]
    if kind != "behind":
        for rank in range(ranks):  # a few more groups, and then all wait
            del rank
        del groups[at + 4 :]
    return Planted(kind, _made(ranks, groups), odd)


def _row(func: Func, count: int, peer: int = 0) -> Row:
    return (0, 0, int(func), int(DataType.FLOAT32), 0, 0, peer, count)


def _ring(rank: int, ranks: int, count: int, times: int) -> list[Row]:
    pair = [_row(Func.SEND, count, (rank + 1) % ranks), _row(Func.RECV, count, (rank - 1) % ranks)]
    return pair * times


def _made(ranks: int, groups: list[list[list[Row]]]) -> Operations:
    out = Operations(ranks, (Comm("world", tuple(range(ranks))),))
    for rank in range(ranks):
        rows = []
        for group in groups:
            mine = group[rank]
            rows += [*mine[:-1], (*mine[-1][:5], 1, *mine[-1][6:])] if mine else []
        out.by_rank[rank] = np.array(rows, dtype=OP)
    return out


@dataclass(frozen=True)
class Outcome:
    """What became of a planted fault."""

    planted: Planted
    code: str
    ranks: int
    operations: int
    trials: int
    seconds: float
    why: str = ""
    case: Case | None = None  # the smallest

    @property
    def small(self) -> bool:
        """Whether it is as small as the goal asks for."""
        most = 2 if self.planted.kind == "overflow" else 4
        return not self.why and self.ranks <= most and (self.planted.kind == "overflow" or self.operations <= 10)


def measure(planted: Planted) -> Outcome:
    """Make the logs, take the case from them, shrink it, and look whether the symptom is still there."""
    config = replace(CONFIG, ranks=planted.operations.ranks)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        simulator.write_logs(Path(name), planted.operations, config, simulator.run(planted.operations, config))
        case = extract([name])
    code = case.symptom.code if case.symptom else ""
    shrunk = shrink(case, seed=1)
    spent = time.monotonic() - begun
    if shrunk is None:
        stands = simulator.run(case.operations, case.config)
        return Outcome(planted, code, 0, 0, 0, spent, f"not shrunk ({len(stands)} stand, {case.symptom})")
    made = shrunk.case
    return Outcome(planted, code, made.operations.ranks, len(made.operations), shrunk.trials, spent, case=made)


def page(outcomes: list[Outcome], streams: list[str]) -> Iterator[str]:
    """The page of the results."""
    good = sum(o.small for o in outcomes)
    yield "# How small cases get\n\n"
    yield (
        f"`python benchmarks/reproduce.py`: of {len(outcomes)} faults in jobs of 2 to 32 ranks, {good} shrink to at most 4 ranks and 10 operations "
        "(overflows of the work FIFO: to 2 ranks), and the analysis of the small case says the same finding, stage and culprit. Each job's logs are "
        "written, read by `psmkit reproduce`, and shrunk.\n\n"
    )
    yield "| fault | ranks | operations | finding | ranks left | operations left | runs | seconds | |\n|---|---|---|---|---|---|---|---|---|\n"
    for o in outcomes:
        yield (
            f"| {o.planted.kind} | {o.planted.operations.ranks} | {len(o.planted.operations):,} | {o.code} | {o.ranks or '-'} | {o.operations or '-':} | "
            f"{o.trials} | {o.seconds:.1f} | {'small' if o.small else o.why or 'too large'} |\n"
        )
    yield "\n## Much evidence\n\nA job in which many ranks call much, from files to the case: the time, and the most memory of the process.\n\n"
    yield "| evidence | calls | MiB | seconds | MiB of memory | exit status |\n|---|---|---|---|---|---|\n"
    yield from streams


# ---- a real NCCL ----

_NCCL = "\n## On a real NCCL\n"


def judged(library: Path, kernels: str | None) -> list[str]:
    """The smallest case of each kind of fault on a real NCCL over emulated CUDA: a row for each."""
    found = nccl_library.find(library)
    rows = []
    for seed in range(len(KINDS)):
        # the first one whose kernels a small build of NCCL has: AllReduce, sends and receives
        cases = [measure(plant(seed + turn * len(KINDS))).case for turn in range(1 if KINDS[seed] == "overflow" else 6)]
        case = next((c for c in cases if c is not None and _plain(c)), cases[0])
        assert case is not None
        text = on_nccl(case, found, kernels, 25).text
        rows.append(f"| {KINDS[seed]} | {found.version} | {text.partition(': ')[2]} |\n")
        print(rows[-1], end="", flush=True)
    return rows


def _plain(case: Case) -> bool:
    funcs = {int(f) for ours in case.operations.by_rank.values() for f in ours["func"]}
    return funcs <= {int(Func.ALLREDUCE), int(Func.SEND), int(Func.RECV)}


def with_nccl(rows: list[str]) -> None:
    """Put rows of a release into the page, in place of those that it had."""
    before, _, section = PAGE.read_text().partition(_NCCL)
    release = rows[0].split(" | ")[1]
    old = [
        line + "\n"
        for line in section.splitlines()
        if line.startswith("| ") and f"| {release} |" not in line and "---" not in line
    ]
    head = "\nThe smallest case of a fault of each kind, by `--nccl LIB --kernels LIB`, on NCCL without device code over emulated CUDA.\n\n"
    PAGE.write_text(
        f"{before}{_NCCL}{head}| fault | NCCL | what it shows |\n|---|---|---|\n" + "".join([*old[1:], *rows])
    )


# ---- memory ----

_CALL = "host0:{pid}:{pid} [{dev}] NCCL INFO {coll}: opCount {n:x} sendbuff 0x7f0000000000 recvbuff 0x7f0000001000 count 1048576 datatype 7 op 0 root {root} comm 0x7f3000000000 [nranks={ranks}] stream 0x7f2000000000\n"
_INIT = "host0:{pid}:{pid} [{dev}] NCCL INFO ncclCommInitRank comm 0x7f3000000000 rank {rank} nranks {ranks} cudaDev {dev} nvmlDev {dev} busId {dev}000 commId 0xc0de - Init {end}\n"


_ENTRY = '{{"record_id": {n}, "process_group": ["0", "default_pg"], "collective_seq_id": {n}, "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce", "time_created_ns": {n}, "input_sizes": [[1048576]], "output_sizes": [[1048576]], "input_dtypes": ["Float"], "state": "{state}", "is_p2p": false}}'


def logs(folder: Path, calls: int) -> None:
    """Logs of 8 ranks with so many calls, together."""
    ranks = 8
    for rank in range(ranks):
        about = {"pid": 1000 + rank, "dev": rank, "rank": rank, "ranks": ranks}
        with open(folder / f"nccl.rank{rank}.log", "w") as file:
            file.write(f"host0:{1000 + rank}:{1000 + rank} [{rank}] NCCL INFO NCCL version 2.30.7+cuda12.9\n")
            file.writelines(_INIT.format(end=end, **about) for end in ("START", "COMPLETE"))
            for n in range(calls // ranks):
                file.write(_CALL.format(coll="AllReduce", n=n, root=0, **about))


def dumps(folder: Path, calls: int) -> None:
    """Dumps of 64 ranks with so many entries, together; rank 5 lacks the last."""
    ranks = 64
    members = list(range(ranks))
    for rank in members:
        most = calls // ranks - (rank == 5)
        with open(folder / f"nccl_trace_rank_{rank}.json", "w") as file:
            file.write(
                f'{{"version": "2.5", "pg_config": {{"0": {{"desc": "default_pg", "ranks": "{members}"}}}}, "entries": [\n'
            )
            for n in range(1, most + 1):
                state = "completed" if n < calls // ranks else "started"
                file.write(_ENTRY.format(n=n, state=state) + (",\n" if n < most else "\n"))
            file.write("]}")


def stream(calls: int, what: str) -> str:
    """Read evidence of so many calls in a process of its own: the time and the memory that it takes, as a row of the page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "job"
        folder.mkdir()
        (logs if what == "logs" else dumps)(folder, calls)
        size = sum(path.stat().st_size for path in folder.iterdir())
        begun = time.monotonic()
        done = subprocess.Popen(
            [sys.executable, "-m", "psmkit", "reproduce", str(folder), "-o", str(Path(name) / "case"), "--no-lab"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert done.stdout is not None
        said = done.stdout.read()
        _, status, used = os.wait4(done.pid, 0)  # of this child alone
        done.returncode = os.waitstatus_to_exitcode(status)
        print(said[:600])
        row = f"| {what} | {calls:,} | {size >> 20:,} | {time.monotonic() - begun:.0f} | {used.ru_maxrss >> 10:,} | {done.returncode} |\n"
        print(row, end="")
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--stream", choices=("logs", "dumps"), help="read much evidence, and nothing else")
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--dry", action="store_true", help="write no page")
    parser.add_argument(
        "--nccl", type=Path, metavar="LIB", help="run the smallest cases on this NCCL, and write its part of the page"
    )
    parser.add_argument("--kernels", metavar="LIB")
    options = parser.parse_args()
    if options.nccl:
        with_nccl(judged(options.nccl, options.kernels))
        return
    if options.stream:
        stream(options.calls, options.stream)
        return
    outcomes = []
    for seed in range(options.first, options.first + options.faults):
        outcomes.append(measure(plant(seed)))
        o = outcomes[-1]
        print(
            f"{seed} {o.planted.kind}: {o.planted.operations.ranks} ranks, {len(o.planted.operations):,} operations, {o.code} -> {o.ranks} ranks, "
            f"{o.operations} operations, {o.trials} runs, {o.seconds:.1f} s {'' if o.small else 'NOT SMALL ' + o.why}",
            flush=True,
        )
    if not options.dry:
        _, title, section = PAGE.read_text().partition(_NCCL)
        PAGE.write_text(
            "".join(page(outcomes, [stream(options.calls, what) for what in ("logs", "dumps")])) + title + section
        )
    print(f"{sum(o.small for o in outcomes)} of {len(outcomes)}")


if __name__ == "__main__":
    main()
