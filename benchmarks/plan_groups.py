"""Compare the plans of NCCL with those of libpsm's model, work by work: random groups of sends and recvs, one table for all releases.

    python benchmarks/plan_groups.py NAME=LIBRARY,KERNELS [...] [--groups 200] [--seed 1] [--results FILE] [--output FILE] [--keep FOLDER]

LIBRARY is a libnccl linked to the shared CUDA runtime, KERNELS is the libpsm_nccl_kernels.so that was built against its tree
(docs/kernels.md). The kernels record what each launch gives them (PSM_KERNELS_WORKS). The model gets the same groups, and the channels, the
chunk and the work FIFO that NCCL's log names. A group agrees if on every rank all plans, their storage, channels, batches and works are the
same: the place of each work, the ranks of its round, direction, peer and bytes on the channel. Groups are below the limit of the FIFO, and
end in a run of the model; NCCL runs each, and every byte is compared. A difference ends this program with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from psmkit.cli import plan_lint_inputs  # noqa: E402
from psmkit.lab import nccl, nccl_library, works  # noqa: E402
from psmkit.lab.cuda import LabError  # noqa: E402
from psmkit.lab.emulation import Emulation  # noqa: E402
from psmkit.plan import Config, DataType, Func, Plan, Scheduler, Step, StepKind, Task, simulate  # noqa: E402
from psmkit.plan.lint import Answer, lint  # noqa: E402
from psmkit.plan.releases import number as number_of  # noqa: E402
from psmkit.plan.releases import release_of, releases, scheduler_name  # noqa: E402

OF_JOB = 20  # groups of one set of processes
MOST_BYTES = 8 << 20  # of all messages of a group
TRIES = 40  # for a group that ends
RANKS, FIFOS, CHANNELS = (2, 3, 4, 5, 6, 7, 8), (8192, 16384, 32768, 65536), (1, 2, 4, 8, 16, 32)
CHUNKS, THRESHOLDS = (None, 65536, 8192), (16384, 0)
DEADLINE = 900.0

#: A work: place, ranks of the round, and (peer, bytes on the channel) of its send and of its recv.
Half = tuple[int, int] | None
Piece = tuple[int, tuple[int, int], Half, Half]
#: Batches of a channel: whether one extends the one before, and its works.
Batches = tuple[tuple[bool, tuple[Piece, ...]], ...]


@dataclass(frozen=True, slots=True)
class Launched:
    """A plan, as both sides are compared: where its works are, channels with their batches, and the number of messages that begin in it."""

    storage: str
    begin: int  # in the work FIFO
    channels: tuple[tuple[int, Batches], ...]
    messages: int


# ---- groups ----


@dataclass(frozen=True, slots=True)
class Job:
    """What one set of processes runs: the settings of all its groups."""

    ranks: int
    fifo: int
    channels: int
    chunk: int | None
    threshold: int

    def environment(self) -> dict[str, str]:
        out = {
            "NCCL_WORK_FIFO_BYTES": str(self.fifo),
            "NCCL_MIN_P2P_NCHANNELS": str(self.channels),
            "NCCL_MAX_P2P_NCHANNELS": str(self.channels),
            "NCCL_P2P_LL_THRESHOLD": str(self.threshold),
            "NCCL_LOCAL_REGISTER": "0",
            "NCCL_GRAPH_REGISTER": "0",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_RAS_ENABLE": "0",
            "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,ENV",
        }
        return out | ({} if self.chunk is None else {"NCCL_P2P_NVL_CHUNKSIZE": str(self.chunk)})

    def config(self, library: nccl_library.Library) -> Config:
        """The communicator that one expects of the settings."""
        return Config(
            ranks=self.ranks,
            scheduler=Scheduler.PLANNER,
            pass_sm=False,
            release=number_of(library.version) or 0,
            p2p_channels=self.channels,
            p2p_channels_per_peer=self.channels,
            p2p_chunk_bytes=self.chunk or 524288,
            work_fifo_bytes=self.fifo,
            ll_threshold=self.threshold,
        )


def jobs(seed: int) -> Iterator[Job]:
    """The settings of each job; all numbers of ranks come in turn."""
    chance = random.Random(seed)
    while True:
        for ranks in chance.sample(RANKS, len(RANKS)):
            yield Job(
                ranks, chance.choice(FIFOS), chance.choice(CHANNELS), chance.choice(CHUNKS), chance.choice(THRESHOLDS)
            )


def group(chance: random.Random, ranks: int, fifo: int) -> list[Step]:
    """A random group: some pairs of ranks have many messages, most few or none."""
    most = fifo // 48  # works that fill the FIFO
    pairs = [(a, b) for a in range(ranks) for b in range(ranks)]
    chosen = chance.sample(pairs, chance.randint(1, len(pairs)))
    weights = [chance.expovariate(1) ** 2 for _ in chosen]
    total = chance.randint(1, max(2, most * chance.randint(1, ranks)))
    small = chance.random() < 0.5
    left, queues = MOST_BYTES, dict[tuple[int, int], list[int]]()
    for pair in chance.choices(chosen, weights, k=total):
        n = chance.choice((1, 16, 1000, 4096) if small else (1, 1000, 8192, 8193, 40000, 150000, 600000))
        if n > left:
            n = 1
        left -= n
        queues.setdefault(pair, []).append(n)
    steps: list[Step] = []
    for rank in range(ranks):
        mine = [(func, a, b) for (a, b), n in queues.items() for func in _sides(a, b, rank) for _ in n]
        chance.shuffle(mine)
        at = Counter[tuple[Func, int, int]]()
        for one in mine:
            func, a, b = one
            task = Task(func, queues[a, b][at[one]], DataType.UINT8, peer=b if func is Func.SEND else a)
            at[one] += 1
            steps.append(Step(StepKind.TASK, task, rank))
    return [*steps, Step(StepKind.GROUP_END)]


def _sides(a: int, b: int, rank: int) -> list[Func]:
    return [Func.SEND] * (a == rank) + [Func.RECV] * (b == rank)


def random_group(chance: random.Random, config: Config, rejected: Counter[str]) -> list[Step]:
    """One that is below the limit of the FIFO, and ends in a run of the model."""
    for _ in range(TRIES):
        steps = group(chance, config.ranks, config.work_fifo_bytes)
        answer = lint(config, steps, search=False).answer
        if answer is Answer.SAFE:
            return steps
        rejected[answer.value] += 1
    raise SystemExit(f"none of {TRIES} groups of {config.ranks} ranks is safe")


# ---- the two sides ----


def of_model(plans: Sequence[Plan], fifo: int) -> Iterator[Launched]:
    """All plans of a communicator in the model."""
    begin = 0
    for plan in plans:
        in_fifo = plan.storage == "fifo"
        yield Launched(plan.storage, begin if in_fifo else 0, _channels(plan), plan.p2ps)
        begin = (begin + plan.work_bytes * in_fifo) % fifo


def _channels(plan: Plan) -> tuple[tuple[int, Batches], ...]:
    channels = []
    for channel, mine in groupby(plan.works, lambda work: work.channel):
        batches: list[tuple[bool, list[Piece]]] = []
        for _, halves in groupby(mine, lambda work: work.place):
            both = list(halves)
            first = both[0]
            if first.first:
                batches.append((first.extends, []))
            sides = {work.func: (work.peer, work.nbytes) for work in both}
            piece = first.place, (first.round_to, first.round_from), sides.get(Func.SEND), sides.get(Func.RECV)
            batches[-1][1].append(piece)
        channels.append((channel, _frozen(batches)))
    return tuple(channels)


def of_nccl(launch: works.Launch, fifo: int) -> Launched:
    """A launch of NCCL."""
    begin = min(work.offset for work in launch.works)
    channels, messages = [], 0
    for channel, mine in groupby(launch.works, lambda work: work.channel):
        batches: list[tuple[bool, list[Piece]]] = []
        for _, of_batch in groupby(mine, lambda work: work.batch):
            members = list(of_batch)
            batches.append((members[0].extends, []))
            for work in members:
                if work.function != "SendRecv":
                    raise SystemExit(f"a launch has {work.function}, expected sends and recvs only")
                send, recv = (None if m is None else (m.peer, m.nbytes) for m in (work.send, work.recv))
                messages += (work.part == 0) * ((send is not None) + (recv is not None))
                batches[-1][1].append((work.offset - begin, (work.round_to, work.round_from), send, recv))
        channels.append((channel, _frozen(batches)))
    return Launched(launch.storage, begin % fifo if launch.storage == "fifo" else 0, tuple(channels), messages)


def _frozen(batches: list[tuple[bool, list[Piece]]]) -> Batches:
    return tuple((extends, tuple(pieces)) for extends, pieces in batches)


def by_group(plans: Sequence[Launched], counts: Sequence[int]) -> list[list[Launched]] | None:
    """The plans of each group, whose numbers of messages are known; None: a plan has messages of two groups, or of none."""
    out, left = [], list(plans)
    for count in counts:
        mine: list[Launched] = []
        while count > 0 and left:
            mine.append(left.pop(0))
            count -= mine[-1].messages
        if count:
            return None
        out.append(mine)
    return None if left else out


def difference(real: Sequence[Launched], model: Sequence[Launched]) -> str | None:
    """Where the plans of a group differ first."""
    for number, (mine, theirs) in enumerate(zip_longest(real, model), 1):
        if mine == theirs:
            continue
        if mine is None or theirs is None:
            return f"NCCL has {len(real)} plans, the model {len(model)}"
        if (mine.storage, mine.begin) != (theirs.storage, theirs.begin):
            return (
                f"plan {number}: in {mine.storage} at {mine.begin}, in the model in {theirs.storage} at {theirs.begin}"
            )
        for one, other in zip_longest(mine.channels, theirs.channels):
            if one == other:
                continue
            if one is None or other is None or one[0] != other[0]:
                return f"plan {number}: channels {[c for c, _ in mine.channels]}, in the model {[c for c, _ in theirs.channels]}"
            for batch, (a, b) in enumerate(zip_longest(one[1], other[1])):
                if a != b:
                    return f"plan {number}, channel {one[0]}, batch {batch}: {a}, in the model {b}"
    return None


# ---- a job ----


@dataclass(slots=True)
class Result:
    """What became of the groups of a job."""

    groups: int = 0
    agree: int = 0
    cut: int = 0  # groups with more than one plan on some rank
    apart: int = 0  # groups whose ranks have different numbers of plans
    plans: int = 0
    works: int = 0
    storages: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    by_model: Counter[str] = field(
        default_factory=Counter
    )  # groups that agree with each scheduler, where FIFOs begin apart
    log: list[str] = field(default_factory=list)


def run(
    library: nccl_library.Library,
    kernels: Path,
    job: Job,
    cases: Sequence[nccl.NcclCase],
    groups: nccl.Groups,
    rows: int,
    folder: Path,
) -> list[str]:
    """Run cases; what went wrong, in sentences."""
    done = nccl.start(
        library,
        cases,
        job.ranks,
        folder,
        deadline=DEADLINE,
        emulation=Emulation(folder / "records"),
        environment=job.environment()
        | {
            "PSM_HOSTCUDA_KERNELS": str(kernels.absolute()),
            "PSM_KERNELS_WORKS": str(rows),
            "PSM_RECORD_KEEP": "1",
            "PSM_RECORD_MAX": str((16 << 20) + 256 * rows),
        },
        groups=groups,
        stacks=False,
    )
    return [
        f"rank {rank.rank} {rank.state}: {rank.text or [r['text'] for r in rank.reports]}"
        for rank in done.outcome.ranks
        if rank.state != "good"
    ]


def told(folder: Path, config: Config) -> Config:
    """The communicator that NCCL made of a job's settings, as its log names it."""
    found = plan_lint_inputs.read([str(folder / "logs")], config.ranks, None).told
    names = ("release", "p2p_channels", "p2p_channels_per_peer", "p2p_chunk_bytes", "work_fifo_bytes")
    if missing := set(names) - set(found) - {"work_fifo_bytes"}:
        raise SystemExit(f"the log does not tell {', '.join(sorted(missing))}")
    return replace(config, **{name: found[name] for name in names if name in found})  # type: ignore[arg-type]


def go(library: nccl_library.Library, kernels: Path, job: Job, count: int, seed: int, folder: Path) -> Result:
    """Run the groups of a job on NCCL and on the model, and compare them."""
    config = job.config(library)
    for _ in range(2):
        shutil.rmtree(folder, ignore_errors=True)
        result, judge = once(library, kernels, job, config, count, seed, folder)
        if (known := told(folder, config)) == config:
            break
        config = known  # another number of channels than expected: groups for these
    else:
        raise SystemExit(f"{job}: the log names another communicator each time: {config}")
    judge()
    return result


def once(
    library: nccl_library.Library, kernels: Path, job: Job, config: Config, count: int, seed: int, folder: Path
) -> tuple[Result, Callable[[], None]]:
    """Run the groups; also a function that compares them."""
    row = release_of(config.release)
    assert row is not None
    result = Result(count)
    chance = random.Random(seed)
    lists = [random_group(chance, config, result.rejected) for _ in range(count)]
    # Up to 2.26 a FIFO has room for what a communicator is given in all.
    parts = [[steps for mine in lists for steps in mine]] if row.event_room else lists
    sides = [simulate(config, steps) for steps in parts]
    model = [[p for side in sides for p in of_model(side.plans[rank], job.fifo)] for rank in range(job.ranks)]
    calls = [[_calls(steps, rank) for steps in lists] for rank in range(job.ranks)]
    pieces = max(sum(len(plan.works) for side in sides for plan in side.plans[rank]) for rank in range(job.ranks))
    each = count // len(parts)
    cases = [nccl.NcclCase(str(i), nccl.TASKS, iters=each, seed=seed + i) for i in range(len(parts))]
    where = f"{job}, seed {seed}"
    if any(side.stuck for side in sides):
        result.log.append(f"{where}: the model stands still")
    result.log += [f"{where}: {text}" for text in run(library, kernels, job, cases, calls, 2 * pieces + 64, folder)]

    def judge() -> None:
        try:
            launches = works.read(folder / "records")
        except LabError as error:
            result.log.append(f"{where}: {error}")
            return
        real: list[list[Launched]] = [[] for _ in range(job.ranks)]
        for launch in launches:
            real[launch.rank].append(of_nccl(launch, job.fifo))
        compare(result, where, real, model, [[len(g) for g in mine] for mine in calls])
        try_all(result, config, lists, real)

    return result, judge


def _calls(steps: Sequence[Step], rank: int) -> list[nccl.Call]:
    return [nccl.Call(s.task.func is Func.SEND, s.task.peer, s.task.count) for s in steps if s.task and s.rank == rank]


def compare(
    result: Result,
    where: str,
    real: Sequence[Sequence[Launched]],
    model: Sequence[Sequence[Launched]],
    counts: Sequence[Sequence[int]],
) -> None:
    """Compare the plans of all ranks, group by group; ``counts``: the messages of each rank's groups."""
    mine = [by_group(plans, n) for plans, n in zip(real, counts, strict=True)]
    theirs = [by_group(plans, n) for plans, n in zip(model, counts, strict=True)]
    for name, lists in (("NCCL", mine), ("the model", theirs)):
        if None in lists:
            result.log.append(
                f"{where}: rank {lists.index(None)}: the plans of {name} do not have the messages of the groups"
            )
            return
    for number in range(result.groups):
        plans = [(a[number], b[number]) for a, b in zip(mine, theirs, strict=True) if a is not None and b is not None]
        found = [(rank, text) for rank, (a, b) in enumerate(plans) if (text := difference(a, b)) is not None]
        if found:
            result.log.append(f"{where}: group {number}, rank {found[0][0]}: {found[0][1]}")
        result.agree += not found
        result.cut += any(len(a) > 1 for a, _ in plans)
        result.apart += len({len(a) for a, _ in plans if a}) > 1
        for plan in (plan for a, _ in plans for plan in a):
            result.plans += 1
            result.storages[plan.storage] += 1
            result.works += sum(len(pieces) for _, batches in plan.channels for _, pieces in batches)


def try_all(
    result: Result, config: Config, lists: Sequence[Sequence[Step]], real: Sequence[Sequence[Launched]]
) -> None:
    """Ask the models of all releases: groups that all of them cut alike would show nothing."""
    counts = [
        [sum(s.task is not None and s.rank == rank for s in steps) for steps in lists] for rank in range(config.ranks)
    ]
    mine = [by_group([replace(p, begin=0) for p in plans], n) for plans, n in zip(real, counts, strict=True)]
    for row in releases():
        for number, steps in enumerate(lists):
            other = simulate(replace(config, release=row.since), steps)
            plans = [[replace(p, begin=0) for p in of_model(own, config.work_fifo_bytes)] for own in other.plans]
            result.by_model[row.name] += all(a is not None and a[number] == b for a, b in zip(mine, plans, strict=True))


# ---- the page ----


def render(rows: Sequence[dict[str, Any]]) -> str:
    """The page of all releases."""
    out = [
        "# The plans of random groups: NCCL and the model",
        "",
        "Made by `benchmarks/plan_groups.py`. Each group is random: 2 to 8 ranks, which pairs of them have messages, how many, of which sizes, in "
        "which order of the calls. The work FIFO has 8 to 64 KiB; there are 1 to 32 p2p channels, chunks of 8, 64 or 512 KiB, and sends and recvs with "
        "and without protocol LL. NCCL runs on emulated GPUs, and its kernels record what each launch gives them. The model of "
        "[plan lint](../docs/plan_lint.md) cuts the same group. They agree if on all ranks all plans have the same storage, channels, batches and "
        "works: place, ranks of the round, peers, directions and bytes of each work. Every byte of each message was compared, too.",
        "",
        "Groups are below the limit of the FIFO and end in a run of the model; others are left out, and counted. A plan of NCCL 2.26 may find the FIFO "
        "full for ever once a communicator has filled it, so there each group has its own communicator.",
        "",
        "| NCCL | scheduler | groups | agree | cut into several plans | ranks with different numbers of plans | plans | in arguments | in the FIFO | works on channels | left out |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        left = ", ".join(f"{n} {name}" for name, n in sorted(row["rejected"].items())) or "none"
        out.append(
            f"| {row['version']} | `{row['scheduler']}` | {row['groups']} | {row['agree']} | {row['cut']} | {row['apart']} | {row['plans']:,} "
            f"| {row['storages'].get('arguments', 0):,} | {row['storages'].get('fifo', 0):,} | {row['works']:,} | {left} |"
        )
    out += [
        "",
        "With which models the same groups agree (the place in the FIFO where a plan begins apart). Rows of the table of releases that differ only in "
        "what a group cannot show, such as where room in the FIFO comes from, agree with the same groups.",
        "",
        "| NCCL | " + " | ".join(f"`{one.name}`" for one in releases()) + " |",
        "|---|" + "---:|" * len(releases()),
        *(
            f"| {row['version']} | " + " | ".join(str(row["by_model"].get(one.name, 0)) for one in releases()) + " |"
            for row in rows
        ),
    ]
    for row in rows:
        if row["log"]:
            out += ["", f"## {row['version']}: what differs", "", *(f"- {line}" for line in row["log"])]
    return "\n".join(out) + "\n"


def whole(
    name: str, library: nccl_library.Library, kernels: Path, chosen: argparse.Namespace, before: dict[str, Any] | None
) -> Iterator[dict[str, Any]]:
    """The row of a release after each of its jobs; ``before``: of those that have been run."""
    total = Result()
    for key in ("groups", "agree", "cut", "apart", "plans", "works", "log") if before else ():
        setattr(total, key, before[key])  # type: ignore[index]
    for key in ("storages", "rejected", "by_model") if before else ():
        setattr(total, key, Counter(before[key]))  # type: ignore[index]
    done = total.groups
    for number, job in enumerate(jobs(chosen.seed)):
        if number * OF_JOB < done:
            continue
        if total.groups >= chosen.groups:
            break
        begun = time.monotonic()
        count = min(OF_JOB, chosen.groups - total.groups)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "out"
            found = go(library, kernels, job, count, chosen.seed * 1000 + number, folder)
            if found.log and chosen.keep:
                shutil.copytree(folder, chosen.keep / f"{name}-{number}", dirs_exist_ok=True)
        for key in ("groups", "agree", "cut", "apart", "plans", "works"):
            setattr(total, key, getattr(total, key) + getattr(found, key))
        total.storages += found.storages
        total.rejected += found.rejected
        total.by_model += found.by_model
        total.log += found.log
        took = time.monotonic() - begun
        print(f"{name}: {total.agree} of {total.groups} agree; {job}: {took:.0f} s", file=sys.stderr, flush=True)
        for line in found.log:
            print(f"    {line}", file=sys.stderr, flush=True)
        release = number_of(library.version) or 0
        yield {
            "name": name,
            "version": library.version,
            "seed": chosen.seed,
            "scheduler": scheduler_name(Config(ranks=2, scheduler=Scheduler.PLANNER, release=release)),
            **{f.name: deepcopy(getattr(total, f.name)) for f in fields(total)},
        }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", nargs="*", help="NAME=LIBRARY,KERNELS")
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, help="lines of JSON, a release each; one with fewer groups goes on")
    parser.add_argument("--output", type=Path, help="the page of all results")
    parser.add_argument("--keep", type=Path, help="keep the evidence of jobs that differ in this folder")
    chosen = parser.parse_args(argv)
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        del os.environ[name]
    rows: dict[str, dict[str, Any]] = {}
    if chosen.results and chosen.results.exists():
        rows = {row["version"]: row for row in map(json.loads, chosen.results.read_text().splitlines())}
    for release in chosen.release:
        name, _, places = release.partition("=")
        place, _, kernels = places.partition(",")
        library = nccl_library.find(Path(place))
        row = rows.get(library.version)
        before = row if row and row.get("seed") == chosen.seed and row["groups"] % OF_JOB == 0 else None
        for made in whole(name, library, Path(kernels), chosen, before):
            rows[library.version] = made
            if chosen.results:
                chosen.results.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    page = render(sorted(rows.values(), key=lambda row: number_of(row["version"]) or 0))
    if chosen.output:
        chosen.output.write_text(page)
    else:
        print(page)
    return 1 if any(row["agree"] != row["groups"] or row["log"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
