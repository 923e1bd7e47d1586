"""The files of a case: case.tasks, case.toml and README.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from psmkit.model.arrays.whole import np
from psmkit.model.wording import counted
from psmkit.plan.releases import release_of, version
from psmkit.plan.types import Config, DataType, Func, RedOp, short_count
from psmkit.reproduce.case import Case
from psmkit.reproduce.operations import Array, Operations
from psmkit.reproduce.symptom import NO_SYMPTOM

__all__ = ["SCHEMA", "SETTINGS", "case_toml", "readme", "tasks", "write"]

_FUNCS = {int(func): func for func in Func}


def write(made: Path, case: Case, results: Sequence[str] = (), deadline: float = 20.0) -> None:
    """Write the files of a case.

    Args:
        made: the folder.
        case: the case.
        results: what runs of it showed, for the README.
        deadline: seconds of a run, for its commands.
    """
    with open(made / "case.tasks", "w") as file:
        for text in tasks(case.operations):
            file.write(text)
    (made / "case.toml").write_text(case_toml(case))
    (made / "README.md").write_text(readme(case, results, deadline))


# ---- case.tasks ----


def tasks(operations: Operations) -> Iterator[str]:
    """The task file, piece by piece: group after group of all ranks, those of ranks that do the same in one line."""
    used = operations.used()
    if len(used) == 1:
        comm = operations.comms[used[0]]
        cursors = {
            rank: _Cursor(ops) for rank, ops in operations.of(used[0]).items() if len(ops)
        }  # by rank in the communicator
        yield from _groups(cursors, len(comm.ranks))
        return
    yield from _several(operations)


class _Cursor:
    """The groups of a rank, in order, each as its lines."""

    def __init__(self, ops: Array) -> None:
        self.ops = ops
        self.ends = np.flatnonzero(ops["last"]) + 1
        if len(ops) and (len(self.ends) == 0 or self.ends[-1] != len(ops)):
            self.ends = np.append(self.ends, len(ops))
        self.at = 0

    def __bool__(self) -> bool:
        return self.at < len(self.ends)

    @property
    def comm(self) -> int:
        """The communicator of the next group."""
        return int(self.ops["comm"][self.ends[self.at] - 1])

    def next(self) -> tuple[str, ...]:
        """The lines of the next group."""
        begin = 0 if self.at == 0 else int(self.ends[self.at - 1])
        group = self.ops[begin : int(self.ends[self.at])]
        self.at += 1
        return lines(group)


def lines(group: Array) -> tuple[str, ...]:
    """The lines of a group of one rank, without the rank; equal neighbours become one."""
    if len(group) == 1:
        return (_line(group[0]),)
    same = np.ones(len(group), dtype=bool)
    for name in ("func", "datatype", "redop", "peer", "count"):
        same[1:] &= group[name][1:] == group[name][:-1]
    begins = np.flatnonzero(~same | (np.arange(len(group)) == 0))
    out = []
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(group)], strict=True):
        times = f" times={end - begin}" if end - begin > 1 else ""
        out.append(_line(group[begin]) + times)
    return tuple(out)


def _line(op: np.void) -> str:
    func, count = _FUNCS[int(op["func"])], int(op["count"])
    words = [func.label, short_count(count), DataType(int(op["datatype"])).label]
    if func.reduces:
        words.append(RedOp(int(op["redop"])).label)
    if func.rooted:
        words.append(f"root={int(op['peer'])}")
    if func.p2p:
        words.append(f"{'to' if func is Func.SEND else 'from'}={int(op['peer'])}")
    return " ".join(words)


def _groups(cursors: Mapping[int, _Cursor], ranks: int) -> Iterator[str]:
    """The groups of ranks, one of each at a time."""
    while live := [rank for rank, cursor in cursors.items() if cursor]:
        yield _together({rank: cursors[rank].next() for rank in live}, ranks)


def _together(groups: Mapping[int, tuple[str, ...]], ranks: int) -> str:
    """The lines of one group of each rank. Ranks with the same lines share them; an end behind a rank that has none is nothing."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, texts in groups.items():
        alike.setdefault(texts, []).append(rank)
    out = []
    for texts, ours in alike.items():
        who = "" if len(ours) == ranks else f"{_ranks(ours)}: "
        out += [f"{who}{text}\n" for text in texts]
    return "".join([*out, "end\n"])


def _ranks(ranks: Sequence[int]) -> str:
    out: list[list[int]] = []
    for rank in ranks:
        if out and rank == out[-1][1] + 1:
            out[-1][1] = rank
        else:
            out.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def _several(operations: Operations) -> Iterator[str]:
    """The groups of several communicators, in an order that is the one of each rank."""
    cursors = {rank: _Cursor(ours) for rank, ours in operations.by_rank.items() if len(ours)}
    now, streams = -1, operations.streams()
    while live := [rank for rank, cursor in cursors.items() if cursor]:
        # the communicator that most ranks are at; stay with the last one if it is as good
        at: dict[int, list[int]] = {}
        for rank in live:
            at.setdefault(cursors[rank].comm, []).append(rank)
        best = max(at, key=lambda comm: (len(at[comm]) / len(operations.comms[comm].ranks), comm == now, -comm))
        comm = operations.comms[best]
        if best != now:
            stream = f" stream={streams[best]}" if streams[best] else ""
            yield f"comm {_name(comm.name)} {_ranks(comm.ranks)}{stream}\n"
        now = best
        number = {rank: i for i, rank in enumerate(comm.ranks)}
        yield _together({number[rank]: cursors[rank].next() for rank in at[best]}, len(comm.ranks))


def _name(text: str) -> str:
    """A name as a task file takes it: one word, without the sign of a comment."""
    return "".join("-" if c.isspace() or c == "#" else c for c in text)[:80]


# ---- case.toml ----


def case_toml(case: Case) -> str:
    """Ranks, nodes, settings, release and faults as TOML."""
    config = case.config
    row = release_of(config.release)
    out = [f'schema = "{SCHEMA}"', "", "[job]", f"ranks = {case.operations.ranks}", f"nodes = {config.nodes}"]
    out += [f"operations = {len(case.operations)}", f"source = {_text('flight recorder' if case.flight else 'logs')}"]
    out += ["", "[nccl]", f"version = {_text(version(config.release))}"]
    if row is not None:
        out.append(f"scheduler = {_text(row.name)}")
    out += [f"{name} = {getattr(config, name)}" for name in SETTINGS]
    out.append(f"assumed = {_list(case.assumed)}")
    streams = case.operations.streams()
    for number in case.operations.used():
        comm = case.operations.comms[number]
        out += ["", "[[communicator]]", f"name = {_text(comm.name)}", f"ranks = [{', '.join(map(str, comm.ranks))}]"]
        out.append(f"stream = {streams[number]}")
    if case.symptom is not None:
        s = case.symptom
        out += [
            "",
            "[symptom]",
            f"verdict = {_text(s.verdict)}",
            f"code = {_text(s.code)}",
            f"stage = {_text(s.stage)}",
        ]
        out += [f"culprits = [{', '.join(map(str, s.culprits))}]", f"finding = {_text(s.title)}"]
    out += ["", "[seen]", f"faults = {_list(case.faults)}", f"guesses = {_list(case.guesses)}"]
    return "\n".join(out) + "\n"


#: The schema of case.toml.
SCHEMA = "psmkit.case/1"
#: The settings of the planner in it.
SETTINGS = ("channels", "p2p_channels", "p2p_channels_per_peer", "work_fifo_bytes", "p2p_chunk_bytes")


def _text(text: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _list(texts: Sequence[str]) -> str:
    if not texts:
        return "[]"
    return "[\n" + "".join(f"  {_text(text)},\n" for text in texts) + "]"


# ---- README.md ----


def readme(case: Case, results: Sequence[str] = (), deadline: float = 20.0) -> str:
    """What the case is, what was taken from where, and what is a guess."""
    operations, config = case.operations, case.config
    used = operations.used()
    out = ["# A case made by `psmkit reproduce`", ""]
    out.append(
        f"{counted(len(operations), 'operation')} of {counted(operations.ranks, 'rank')} in {counted(len(used), 'communicator')}, "
        f"NCCL {version(config.release)}."
    )
    out += ["", "## The symptom", ""]
    symptom = case.symptom
    if symptom is not None and symptom.healthy:
        out.append(f"None: {NO_SYMPTOM}.")
    elif symptom is None or not symptom.code:
        out.append(f"The analysis of the original finds nothing (verdict: {symptom.verdict if symptom else 'none'}).")
    else:
        who = (
            f"it blames {', '.join(f'rank {r}' for r in symptom.culprits)}" if symptom.culprits else "it blames nobody"
        )
        out.append(f"{symptom.verdict}: {symptom.code}, stage {symptom.stage or '-'}: {symptom.title}")
        out += ["", f"The sentence has the ranks of the job; in those of the case, {who}."]
    if results:
        out += ["", "## Where it returns", "", *(f"- {text}" for text in results)]
    out += ["", "## Taken from the input", "", *(f"- {text}" for text in case.taken)]
    out += ["", "## Guesses", "", *([f"- {text}" for text in case.guesses] or ["None."])]
    out += ["", "## Run it", "", *(f"    {text}" for text in commands(operations, config, deadline))]
    return "\n".join(out) + "\n"


def commands(operations: Operations, config: Config, deadline: float) -> list[str]:
    """The commands that run a case, in its folder."""
    used = operations.used()
    out = []
    if len(used) == 1:
        ranks = len(operations.comms[used[0]].ranks)
        out.append(
            f"psmkit plan lint case.tasks --ranks {ranks} --nccl {version(config.release)} --p2p-channels {config.p2p_channels} "
            f"--p2p-channels-per-peer {config.p2p_channels_per_peer} --fifo-bytes {config.work_fifo_bytes}"
        )
        of = f"--tasks case.tasks --ranks {ranks}"
    else:
        of = "--tasks case.tasks"
    until = f"--deadline {deadline:g}"
    return [
        *out,
        f"psmkit lab run {of} {until} --out run1",
        f"psmkit lab nccl --lib LIB --kernels LIB {of} {until} --out run2    # a real NCCL",
        f"psmkit reproduce . -o ../again {until} --nccl LIB --kernels LIB    # all of them, and whether the symptom returns",
    ]
