"""What ``psmkit plan what-if`` reads: folders of ``psmkit lab run``, logs and records of a small run."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psmkit.model.arrays.whole import np
from psmkit.model.errors import PsmkitError
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.plan import Config, Task
    from psmkit.plan.small import Setup, SmallRun

__all__ = ["read"]

_MOST_RESULT = 256 << 20  # bytes of a result.json
_PREPARE, _FINISH, _MADE, _RECLAIM, _TASK = "prepare", "finish", "made", "reclaim", "task"
_RING = "psm.plan"
_BEGIN = "comm.start"
_LINKS = {
    "transport.channel": ("src", "dst"),
    "net.channel.send": ("from_rank", "to_rank"),
}
_SIZES = {"libpsm.memory.made": "fifo", "libpsm.segment.created": "control"}


class _InputError(PsmkitError):
    pass


def read(paths: Sequence[str]) -> SmallRun:
    """Read the evidence of a small run.

    Raises:
        PsmkitError: it cannot be read, or its parts do not fit together.
    """
    from psmkit.plan.small import SmallRun

    out = SmallRun()
    runs: list[list[str]] = [[]]  # what is no folder of the lab is of one run
    for path in paths:
        if os.path.isfile(os.path.join(path, "result.json")):
            _lab(out, Path(path))
            runs.append([sub for name in ("logs", "records") if os.path.isdir(sub := os.path.join(path, name))])
        elif os.path.exists(path):
            runs[0].append(path)
        else:
            raise _InputError(f"{path}: no such file or folder")
    if any(runs):
        _logs(out, [path for mine in runs for path in mine])
    for mine in runs:
        if mine:
            _rings(out, mine)
    if out.links is None:
        _of_cases(out, [path for path in paths if os.path.isfile(os.path.join(path, "result.json"))])
    return out


# ---- result.json of the lab ----


def _lab(out: SmallRun, folder: Path) -> None:
    path = folder / "result.json"
    try:
        if path.stat().st_size > _MOST_RESULT:
            raise _InputError(f"{path}: more than {_MOST_RESULT >> 20} MiB")
        data = json.loads(path.read_text())
        settings = data["settings"]
        ranks, nodes = int(settings["ranks"]), int(settings["nodes"])
        _same(out, ranks, str(path))
        out.nodes = max(out.nodes, nodes)
        out.processors = settings.get("processors", out.processors)
        if "config" in settings:
            out.config, out.config_known = _config(settings["config"]), True
        made = list(_setups(data["ranks"]))
    except OSError as error:
        raise _InputError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, ZeroDivisionError, AttributeError) as error:
        raise _InputError(f"{path} is not a result of `psmkit lab run`: {error!r}") from None
    out.setups += made
    if made:
        out.sources.append(f"set-up times of {counted(len(made), 'rank and case', 'ranks and cases')} from {path}")
    if not data.get("good"):
        out.notes.append(f"{folder}: the run was not good; only ranks without a failure were taken")


def _config(values: dict[str, Any]) -> Config:
    from psmkit.plan import Config, Scheduler

    return Config(**(values | {"scheduler": Scheduler(values["scheduler"])}))


def _setups(ranks: list[dict[str, Any]]) -> Iterator[Setup]:
    from psmkit.plan.small import Ends, Setup

    by_case: dict[int, list[tuple[Ends, dict[str, Any]]]] = defaultdict(list)
    for rank in ranks:
        for case, report in enumerate(rank["reports"]):
            if report.get("status") == "PSM_OK" and "ends" in report:
                mine = Ends(*(int(report[name]) for name in ("peers", "ends", "far_peers", "far_ends")))
                by_case[case].append((mine, report))
    for case, reports in sorted(by_case.items()):
        if len(reports) < len(ranks):
            continue  # who failed held the others up
        whole = sum((mine for mine, _ in reports), Ends(0, 0, 0, 0))
        for mine, one in reports:
            yield Setup(case, mine, whole, len(ranks), float(one["setup_seconds"]), int(one["held"]))


def _of_cases(out: SmallRun, folders: Sequence[str]) -> None:
    """The connections that the largest case of the lab makes, where no line shows them: logs at WARN cost less time."""
    from psmkit.lab.cuda import LabError
    from psmkit.lab.transfer import Case
    from psmkit.lab.transfer import read as result

    rank, best = np.arange(out.ranks), np.zeros((out.ranks, out.ranks), dtype=np.int64)
    everyone = np.ones((out.ranks, out.ranks), dtype=np.int64) - np.eye(out.ranks, dtype=np.int64)
    for folder in folders:
        try:
            cases = [Case.of_line(line) for line in result(Path(folder)).cases if "pattern=" in line]
        except LabError as error:
            raise _InputError(str(error)) from None
        for case in cases:
            table = everyone * case.channels if case.pattern == "alltoall" else np.zeros_like(best)
            if case.pattern == "ring" and out.ranks > 1:
                table[rank, (rank + 1) % out.ranks] = case.channels
            if case.pattern == "pair":
                some = rank[rank ^ 1 < out.ranks]
                table[some, some ^ 1] = case.channels
            best = max(best, table, key=lambda one: int(one.sum()))
    if best.any():
        out.links = best
        out.sources.append("connections of the largest case of the lab")


def _same(out: SmallRun, ranks: int, what: str) -> None:
    if not 0 < ranks <= 1024:
        raise _InputError(f"{what}: {ranks} ranks, expected 1 to 1024")
    if out.ranks and out.ranks != ranks:
        raise _InputError(
            f"{what} has {counted(ranks, 'rank')}, the inputs before it have {out.ranks}: give one small run"
        )
    out.ranks = ranks


# ---- logs ----


def _logs(out: SmallRun, paths: Sequence[str]) -> None:
    """Connections, and the sizes of what they have. A process that makes several communicators, one after the other or at the same time,
    shows several sets of connections: the largest one is taken."""
    from psmkit.logparse import events

    links: dict[tuple[int, int], Counter[tuple[int, int]]] = defaultdict(
        Counter
    )  # by input, and by communicator of a process
    number: Counter[int] = Counter()
    for batch in events(list(paths), names={*_LINKS, _BEGIN, *_SIZES}):
        rows = [(int(r), -1, -1) for r in batch.select(_BEGIN)["row"]] if _BEGIN in batch.names else []
        for message, (source, target) in _LINKS.items():
            if message in batch.names:
                found = batch.select(message)
                rows += zip(found["row"].tolist(), found[source].tolist(), found[target].tolist(), strict=True)
        for row, a, b in sorted(rows):
            proc = int(batch.proc[row])
            if a < 0:
                number[proc] += 1
            else:
                links[_input(paths, batch.files[int(batch.file[row])]), number[proc]][a, b] += 1
        for message, label in _SIZES.items():
            if message in batch.names:
                found = batch.select(message)
                sizes = [int(s) for s, of in zip(found["size"], found["label"], strict=True) if of == label]
                (out.fifo if label == "fifo" else out.control).extend(sizes)
    if not links:
        return
    at = max(links, key=lambda one: (sum(links[one].values()), one))
    ranks = out.ranks or 1 + max(max(a, b) for a, b in links[at])
    _same(out, ranks, paths[0])
    table = np.zeros((ranks, ranks), dtype=np.int64)
    for (a, b), times in links[at].items():
        if a < ranks and b < ranks:
            table[a, b] += times
    out.links = table
    text = f"{counted(sum(links[at].values()), 'connection')} from lines of the logs"
    if len(links) > 1:
        text += f": the largest set of {len(links)} that the processes made"
    out.sources.append(text)


def _input(paths: Sequence[str], file: str) -> int:
    """The number of the input that a file belongs to."""
    return next((at for at, path in enumerate(paths) if file == path or file.startswith(path.rstrip("/") + "/")), -1)


# ---- the rings of plans ----


def _rings(out: SmallRun, paths: Sequence[str]) -> None:
    """Groups, plans and their times, of the first communicator of each process."""
    from psmkit.logparse.recordfiles import record_names
    from psmkit.logparse.records import open_record

    files = [name for path in paths for name in (record_names(path) if os.path.isdir(path) else [path])]
    groups: dict[int, list[int]] = {}
    for name in files:
        if not name.endswith(".rec"):
            continue
        try:
            found = open_record(name, only={_RING})
        except OSError:
            continue
        for section in found.sections:
            if len(section):
                _ring(out, section.rows, groups, name)
    if not groups:
        return
    if out.groups:
        raise _InputError(f"{paths[0]}: another run with plans: give one of them")
    _same(out, out.ranks or 1 + max(groups), paths[0])
    missing = sorted(set(range(out.ranks)) - set(groups))
    if missing:
        raise _InputError(f"no record of the plans of rank {missing[0]}: give the records of all {out.ranks} ranks")
    _tasks(out, paths, groups)


def _ring(out: SmallRun, rows: Any, groups: dict[int, list[int]], name: str) -> None:
    from psmkit.plan.small import Cycle

    rank = int(rows["f_rank"][0])
    first = rows["f_comm"] == rows["f_comm"][0]
    if not first.all():
        out.notes.append(f"{name}: more than one communicator; the first one was taken")
    mine = np.sort(rows[first], order="f_order")
    if rank in groups or mine["f_order"][0] != 0 or (np.diff(mine["f_order"].astype(np.int64)) != 1).any():
        raise _InputError(f"{name}: not the whole trace of a rank: record fewer plans, or set a larger PSM_RECORD_MAX")
    sizes: list[int] = []
    plans: list[tuple[int, int, int, int]] = []
    open_tasks, of = 0, dict[int, int]()
    starts: list[int] = []
    lives: dict[int, int] = {}
    ends: dict[int, int] = {}
    for row in mine:
        what, at = bytes(row["f_what"]).split(b"\0", 1)[0].decode("ascii", "replace"), int(row["time_ns"])
        if what == _TASK:
            open_tasks += 1
        elif what == _PREPARE:
            sizes.append(open_tasks)
            starts.append(at)
            open_tasks = 0
        elif what == _MADE:
            of[int(row["f_plan"])] = len(sizes) - 1
            plans.append((len(sizes) - 1, int(row["f_a"]) % (1 << 64), int(row["f_b"]), int(row["f_c"])))
        elif what == _FINISH and sizes:
            ends[len(sizes) - 1] = at
        elif what == _RECLAIM and int(row["f_plan"]) in of:
            lives[of[int(row["f_plan"])]] = at
    groups[rank] = sizes
    out.plans[rank] = plans
    for group, size in enumerate(sizes):
        if group in ends:
            life = (lives[group] - starts[group]) / 1e9 if group in lives else None
            out.cycles.append(Cycle(rank, size, (ends[group] - starts[group]) / 1e9, life))


def _tasks(out: SmallRun, paths: Sequence[str], groups: dict[int, list[int]]) -> None:
    """The tasks: the ring has their functions, the lines of calls have sizes and peers."""
    from psmkit.reproduce.case import NoOperationsError, extract

    try:
        case = extract(list(paths))
    except NoOperationsError as error:
        raise _InputError(
            f"the records show plans, but no log shows the calls: give the logs, too, made with NCCL_DEBUG=INFO ({error})"
        ) from None
    used = case.operations.used()
    if len(used) != 1:
        raise _InputError(f"the calls are of {counted(len(used), 'communicator')}: record a run with one")
    by_rank = case.operations.of(used[0])
    made = []
    for rank in range(out.ranks):
        calls = [_task(op) for op in by_rank[rank].tolist()] if rank in by_rank else []
        if len(calls) != sum(groups[rank]):
            raise _InputError(
                f"rank {rank}: the log has {counted(len(calls), 'call')}, the record of its plans {counted(sum(groups[rank]), 'task')}: give both of one run"
            )
        rest = iter(calls)
        made.append(tuple(tuple(next(rest) for _ in range(size)) for size in groups[rank]))
    out.groups = tuple(made)
    if out.config is None:
        out.config = case.config
        out.notes += [text for text in case.guesses if "NCCL" in text]
    out.sources.append(
        f"{counted(sum(map(sum, groups.values())), 'task')} and their plans from {counted(len(groups), 'record')}"
    )


def _task(op: tuple[Any, ...]) -> Task:
    from psmkit.plan import DataType, Func, RedOp, Task

    _, _, func, datatype, redop, _, peer, count = op
    return Task(Func(func), int(count), DataType(datatype), RedOp(redop), int(peer))
