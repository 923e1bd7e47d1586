"""A job as a timeline: a row for each rank and each of its threads, every line as a mark, calls as spans, hand-overs as arrows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.outside import global_rank
from psmkit.analysis.facts.progress import STAGES, stage_of_message
from psmkit.analysis.inference.waits import Wait, waits
from psmkit.analysis.views.lines import Lines
from psmkit.analysis.views.ordering import Before, logical, offset
from psmkit.catalogue import Message
from psmkit.logparse.types import Call, FdExchange, Ref
from psmkit.model import RankRow
from psmkit.model.arrays.whole import np, npt
from psmkit.model.draft import Draft
from psmkit.model.timeline import Axis, Clock, Level, Marks, Timeline, Unit

__all__ = ["FIELDS", "timeline"]

_Floats = npt.NDArray[np.float64]
_WORK = "coll.call"
#: What a thread is, by a message that only such a thread prints.
_THREADS = (
    ("ras.thread", "RAS"),
    ("proxy.fd.service_start", "proxy UDS"),
    ("proxy.fd.received", "proxy UDS"),
    ("proxy.thread.progress", "proxy progress"),
    ("proxy.conn.new", "proxy service"),
    ("proxy.call.begun", "proxy service"),
)
#: Stages that lines of these roles prove, beside those of :func:`stage_of_message`.
_STAGE_OF_ROLE = {"comm.start": "init", "comm.complete": "ready", "seq.op": "working", "comm.end": "teardown"}
_CONNECT = STAGES.index("connect")
#: Rows of ranks without a line; the table of ranks has all of them.
_ABSENT = 64
#: A share of lines with time stamps from which on times can be the axis.
_STAMPED = 0.9
_DAY = 86400.0
#: Threads print late by less than so many seconds; more is another clock or another time zone.
_BACK = 60.0
#: Messages of who makes memory and who maps it, and the field that has the same value in both.
_HANDED = (
    ("libpsm.segment.created", "libpsm.segment.attached", "id"),
    ("libpsm.memory.made", "libpsm.memory.imported", "id"),
    ("memory.shm.mmap.allocated", "memory.shm.mmap.imported", "name"),
)
#: The fields of lines that a timeline needs.
FIELDS = {_WORK: ("coll", "comm", "root")} | {name: (key,) for *pair, key in _HANDED for name in pair}


def timeline(
    job: Job,
    lines: Lines,
    messages: Iterable[Message],
    ranks: Sequence[RankRow] = (),
    records: AbstractSet[int] = frozenset(),
) -> Timeline:
    """Draw a job that was scanned with ``keep_calls=True``.

    ``lines`` are those of the same inputs, ``messages`` its catalogue, ``ranks`` the table of its report, ``records`` the files that are psmkit's records.
    """
    return _Builder(job, lines, messages, ranks, records).timeline()


class _Builder:
    def __init__(
        self, job: Job, lines: Lines, messages: Iterable[Message], ranks: Sequence[RankRow], records: AbstractSet[int]
    ) -> None:
        self.job, self.lines, self.ranks, self.records = job, lines, ranks, records
        self.messages = {message.name: message for message in messages}
        self.of_rank: dict[tuple[int, int | None], int] = {}  # process and rank -> its row
        self.where: dict[Ref, int] = {}
        self.waiting: set[int] = set()

    def timeline(self) -> Timeline:
        lines, job = self.lines, self.job
        self.where = self._where()
        sends, handed = self._sends(), self._handed()
        demands = [*self._demands(), *(([maker], [user]) for maker, user in handed)]
        axis, self.at = _axis(job, lines, self.records, demands)
        self.draft = Draft(axis)
        self.last = float(self.at.max()) if len(self.at) else 0.0
        self._tracks()
        marks = self._marks()
        self._stages()
        self._inits()
        for call in job.scan.calls:
            self._call(call)
        for fd in job.scan.fds:
            self._fd(fd)
        for wait in waits(job):
            self._wait(wait)
        self._waiting()
        for send, recv in sends:
            self._arrow(send, recv, self.kind("send to recv", "send and its recv", "sendrecv"))
        for maker, user in handed:
            self._arrow(maker, user, self.kind("memory", "memory, made and mapped", "memory"))
        return self.draft.timeline([file.path for file in job.scan.files], marks, lines.dropped)

    def kind(self, name: str, label: str, group: str, level: Level = Level.PLAIN, meaning: str = "") -> int:
        """The index of a kind."""
        return self.draft.kind(name, label, group, level, meaning)

    def _where(self) -> dict[Ref, int]:
        scan = self.job.scan
        refs = [
            ref
            for refs in (
                *((c.begun, c.served, c.received, c.matched) for c in scan.calls),
                *((f.asked, f.received, f.answered, f.done) for f in scan.fds),
                *((i.start, i.complete, i.end) for i in scan.instances),
                *(w.refs for w in waits(self.job)),
            )
            for ref in refs
            if ref is not None
        ]
        return {ref: at for ref, at in zip(refs, self.lines.find(refs), strict=True) if at >= 0}

    def _demands(self) -> list[Before]:
        """What comes before what: an answer is sent before it is read, and no rank completes an init that another has not started."""
        out: list[Before] = []

        def before(one: Ref | None, other: Ref | None) -> None:
            if one is not None and other is not None and one in self.where and other in self.where:
                out.append(([self.where[one]], [self.where[other]]))

        for call in self.job.scan.calls:
            before(call.begun, call.received or call.matched)
            before(call.served, call.received or call.matched)
        for fd in self.job.scan.fds:
            before(fd.asked, fd.received)
            before(fd.answered or fd.received, fd.done)
        for members in self.job.members.values():
            starts = [self.where[i.start] for i in members if i.start in self.where]
            ends = [self.where[i.complete] for i in members if i.complete in self.where]
            out.append((starts, ends))
        return out

    def _sends(self) -> list[tuple[int, int]]:
        """Sends with their recvs, in the order of the calls."""
        rows, columns = self.lines.values.get(_WORK, (np.zeros(0, np.int64), {}))
        if not len(rows):
            return []
        member = {(i.proc, i.comm): i for i in self.job.scan.instances}
        queues: dict[tuple[int, int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for at in np.argsort(rows, kind="stable").tolist():
            coll = columns["coll"][at]
            if coll not in ("Send", "Recv"):
                continue
            line = int(rows[at])
            own = member.get((int(self.lines.proc[line]), int(columns["comm"][at])))
            if own is None:
                continue
            peer = int(columns["root"][at])
            key = (own.group, own.rank, peer) if coll == "Send" else (own.group, peer, own.rank)
            queues[key][coll == "Recv"].append(line)
        return [pair for sends, recvs in queues.values() for pair in zip(sends, recvs, strict=False)]

    def _handed(self) -> list[tuple[int, int]]:
        """Lines that make memory, each with those of other processes that map it."""
        out: list[tuple[int, int]] = []
        for made, mapped, key in _HANDED:
            makers: dict[int | str, int] = {}
            for name in (made, mapped):
                rows, columns = self.lines.values.get(name, (np.zeros(0, np.int64), {}))
                for line, own in zip(rows.tolist(), columns.get(key, ()), strict=True):
                    if name == made:
                        makers[own] = line
                    elif (maker := makers.get(own)) is not None and self.lines.proc[maker] != self.lines.proc[line]:
                        out.append((maker, line))
        return out

    def _tracks(self) -> None:
        """A row for each rank, and below it one for each of its threads and one for what other programs print of it; then the rest."""
        lines, job = self.lines, self.job
        self.rows = np.zeros(len(lines), dtype=np.int32)
        threads: dict[tuple[int, int | None], list[int]] = defaultdict(list)
        found, back = np.unique(np.stack([lines.proc, lines.thread]), axis=1, return_inverse=True)
        number = {(int(proc), int(thread)): at for at, (proc, thread) in enumerate(found.T.tolist())}
        row_of = np.zeros(len(number), dtype=np.int32)
        for proc, thread in number:
            if proc >= 0:
                threads[proc, job.rank_on(proc, thread)].append(thread)
        printed = self._printed_of_ranks()
        # a rank that only other programs name has a row, too
        known = {(job.run_of(proc) or 0, rank) for proc, rank in threads}
        owners: list[tuple[int, tuple[int, int | None]]] = [(-1, key) for key in printed if key not in known]
        owners += [(proc, (job.run_of(proc) or 0, rank)) for proc, rank in threads]
        absent = [
            row for row in self.ranks if row.pid is None and (row.run, row.rank) not in {key for _, key in owners}
        ]
        owners += [(-1, (row.run, row.rank)) for row in absent[:_ABSENT]]

        roles = self._thread_names()
        of_line: dict[tuple[int, int], int] = {}
        for proc, (run, rank) in sorted(owners, key=lambda o: (o[1][0], o[1][1] is None, o[1][1] or 0, o[0])):
            process = job.process(proc) if proc >= 0 else None
            names = ([] if rank is None else [f"rank {rank}"]) + ([] if process is None else [process.name])
            name = " ".join(names[:1] + [f"({name})" for name in names[1:]])
            if proc < 0 and (run, rank) not in printed:
                name = f"{name} (no line of it)"
            top = self.of_rank[proc, rank] = self.draft.track(name, "rank", -1, rank, run)
            main = [t for t in threads[proc, rank] if process and job.scan.threads.tid[t] == process.pid]
            for thread in sorted(threads[proc, rank], key=lambda t: (t not in main, t)):
                role = "main" if thread in main else roles.get(thread, "thread")
                name = f"{role} ({int(job.scan.threads.tid[thread])})"
                row_of[number[proc, thread]] = self.draft.track(name, "thread", top, rank, run)
            if (own := printed.pop((run, rank), None)) is not None:
                self.rows[own] = self.draft.track("other programs", "other", top, rank, run)
                of_line |= {self.place(line): int(self.rows[line]) for line in own}
        ours = lines.proc >= 0
        self.rows[ours] = row_of[back.reshape(-1)][ours]
        rest = (self.rows == 0) & ~ours
        for again in np.flatnonzero(rest).tolist():  # a line that says two things
            self.rows[again] = of_line.get(self.place(again), 0)
        rest = (self.rows == 0) & ~ours
        streams, place = np.unique(lines.stream[rest], return_inverse=True)
        tracks = [self.draft.track("lines of other programs", "other") for _ in streams]
        self.rows[rest] = np.array(tracks, dtype=np.int32)[place]

    def _printed_of_ranks(self) -> dict[tuple[int, int | None], list[int]]:
        """Lines of other programs by the run and the rank that they are of, where they tell."""
        events = self.job.scan.events
        outside = events.make(np.flatnonzero(events.proc < 0))
        out: dict[tuple[int, int | None], list[int]] = defaultdict(list)
        for event, line in zip(outside, self.lines.find([event.ref for event in outside]), strict=True):
            rank = global_rank(self.job, event)
            if rank is not None and line >= 0:
                out[self.job.run_of_event(event) or 0, rank].append(line)
        return out

    def _thread_names(self) -> dict[int, str]:
        out: dict[int, str] = {}
        for name, role in reversed(_THREADS):
            for thread in np.unique(self.lines.thread[self.lines.of(name)]).tolist():
                out[thread] = role
        return out

    def track(self, line: int) -> int:
        """The row of a line."""
        return int(self.rows[line])

    def _marks(self) -> Marks:
        lines = self.lines
        used, numbers = np.unique(lines.message, return_inverse=True)
        kinds = np.array([self._message_kind(lines.names[m]) for m in used.tolist()], dtype=np.int32)
        order = np.lexsort((self.at, self.rows))
        kind, file, line = ((c[order]).astype(np.int32) for c in (kinds[numbers], lines.file, lines.line))
        return Marks(self.rows[order], self.at[order], kind, file, line)

    def _message_kind(self, name: str) -> int:
        message = self.messages.get(name)
        return self.kind(
            name, name, message.subsystem if message else "", _level(message), message.meaning if message else ""
        )

    def _stages(self) -> None:
        """The stages of each rank: each from the first line that proves it to the first of the next."""
        lines = self.lines
        stage = np.zeros(len(lines.names), dtype=np.int64)
        for at, name in enumerate(lines.names):
            role = self.messages[name].role if name in self.messages else None
            stage[at] = max(stage_of_message(name), STAGES.index(_STAGE_OF_ROLE[role]) if role in _STAGE_OF_ROLE else 0)
        group: dict[int, list[int]] = defaultdict(list)
        starts, order = self._by_process()
        for begin, end in zip(starts, [*starts[1:], len(order)], strict=False):
            rows = order[begin:end]
            proc = int(lines.proc[rows[0]])
            if proc < 0:
                continue
            for line in rows.tolist():
                group[self.draft.tracks[self.track(line)].parent].append(line)
            for owner, own in group.items():
                self._stages_of(owner, np.array(own), stage)
            group.clear()

    def _by_process(self) -> tuple[list[int], npt.NDArray[np.int64]]:
        order = np.lexsort((self.at, self.lines.proc))
        return np.flatnonzero(np.diff(self.lines.proc[order], prepend=-9)).tolist(), order

    def _stages_of(self, track: int, rows: npt.NDArray[np.int64], stage: npt.NDArray[np.int64]) -> None:
        now = 0
        reached = []
        for found in stage[self.lines.message[rows]].tolist():
            # connections are made for work that was called, too: the later line says what a rank does now
            now = found if found > now or found >= _CONNECT else now
            reached.append(now)
        changes = [at for at, (one, other) in enumerate(pairwise([0, *reached])) if one != other]
        for first, last in pairwise([*changes, len(rows) - 1]):
            name = STAGES[reached[first]]
            self._span(int(rows[first]), int(rows[last]), self.kind(f"stage.{name}", name, "stage"), name, track)

    def place(self, line: int | None) -> tuple[int, int]:
        """The file and the number of a line."""
        return (0, 0) if line is None else (int(self.lines.file[line]), int(self.lines.line[line]))

    def _inits(self) -> None:
        for instance in self.job.scan.instances:
            if instance.start not in self.where:
                continue
            begin = self.where[instance.start]
            end = self.where.get(instance.complete) if instance.complete is not None else None
            label = f"init of communicator {instance.comm:#x}, rank {instance.rank} of {instance.nranks}"
            self._span(begin, end, self.kind("init", "init of a communicator", "init"), label)

    def _span(self, begin: int, end: int | None, kind: int, label: str, track: int | None = None) -> None:
        """What lasts from one line to another, or to the end of the log if no line ends it; in the row of its first line unless told."""
        stop = self.last if end is None else float(self.at[end])
        row = self.track(begin) if track is None else track
        self.draft.span(
            row, float(self.at[begin]), stop, kind, label, open=end is None, first=self.place(begin), last=self.place(end)
        )  # fmt: skip

    def _call(self, call: Call) -> None:
        begun, served, received, matched = (
            self._found(r) for r in (call.begun, call.served, call.received, call.matched)
        )
        label = f"{call.stage or 'call'} {call.op:#x}" + (f" #{call.generation}" if call.generation > 1 else "")
        read = received if received is not None else matched
        if begun is not None:
            kind = self.kind("service", "proxy call in the service", "proxy")
            # an answer that was read ends a call whose last line is lost
            self._span(begun, served if served is not None else read, kind, label)
        if received is not None and matched is not None:
            kind = self.kind("call", "proxy call: answer read", "proxy")
            self._span(received, matched, kind, label)
        if served is not None and read is not None:
            self._arrow(served, read, self.kind("response", "answer of a proxy call", "proxy"))

    def _fd(self, fd: FdExchange) -> None:
        asked, received, answered, done = (self._found(r) for r in (fd.asked, fd.received, fd.answered, fd.done))
        label = f"GetFd {fd.op:#x}"
        if asked is not None:
            self._span(asked, done, self.kind("fd", "fd exchange, client", "fd"), label)
        if received is not None and (answered is not None or done is None):
            kind = self.kind("fd.service", "fd exchange, server", "fd")
            self._span(received, answered, kind, label)
        if asked is not None and received is not None:
            self._arrow(asked, received, self.kind("fd request", "request for an fd", "fd"))
        sent = received if answered is None else answered
        if sent is not None and done is not None:
            self._arrow(sent, done, self.kind("fd answer", "an fd, handed over", "fd"))

    def _found(self, ref: Ref | None) -> int | None:
        """The index of a line, None if it is not known."""
        return None if ref is None else self.where.get(ref)

    def _wait(self, wait: Wait) -> None:
        """A wait lasts to the end of the log. It is drawn in the row of its waiter; one of nobody, or of a process for itself, is a debt of its target."""
        if not wait.refs or wait.refs[-1] not in self.where:
            return
        owed = wait.waiter is None or wait.waiter == wait.target
        proc, rank = (wait.target, wait.target_rank) if owed else (wait.waiter, wait.rank)
        if proc is None:
            return
        track = self.of_rank.get((proc, rank), self.of_rank.get((proc, self.job.rank_of(proc))))
        if track is None:
            return
        target = f"rank {wait.target_rank}" if wait.target_rank is not None else "an unknown process"
        if wait.target_rank is None and wait.target is not None:
            target = self.job.process(wait.target).name
        label = f"does not go on: {wait.stage}" if owed else f"waits for {target}: {wait.stage}"
        self.waiting.add(track)
        kind = (
            self.kind("wait.proven", "wait that lasted", "wait", Level.ERROR)
            if wait.proven and wait.target is not None
            else self.kind("wait", "wait that the log does not end", "wait", Level.WARNING)
        )
        line = self.where[wait.refs[-1]]
        self._span(line, None, kind, label, track)

    def _waiting(self) -> None:
        """The waits of ranks that the report calls waiting, from their last lines on, if no line of theirs shows for what."""
        number = {file.path: at for at, file in enumerate(self.job.scan.files)}
        found: list[tuple[int, Ref]] = []
        for row in self.ranks:
            name, _, line = (row.last or "").rpartition(":")
            proc = self.job.proc_of(row.run, row.rank) if row.rank is not None else None
            track = self.of_rank.get((-1 if proc is None else proc, row.rank))
            if row.state == "waiting" and track is not None and track not in self.waiting and name in number:
                found.append((track, Ref(number[name], int(line), 0)))
        kind = self.kind("wait", "wait that the log does not end", "wait", Level.WARNING) if found else 0
        for (track, _), at in zip(found, self.lines.find([ref for _, ref in found]), strict=True):
            if at >= 0:
                self._span(at, None, kind, "waits", track)

    def _arrow(self, tail: int, head: int, kind: int) -> None:
        ends = (self.track(tail), float(self.at[tail]), self.track(head), float(self.at[head]))
        self.draft.arrow(*ends, kind, self.place(tail), self.place(head))


def _level(message: Message | None) -> Level:
    if message is None:
        return Level.PLAIN
    if message.severity == "error":
        return Level.ERROR
    return Level.WARNING if message.complaint else Level.PLAIN


def _axis(job: Job, lines: Lines, records: AbstractSet[int], demands: Sequence[Before]) -> tuple[Axis, _Floats]:
    """The axis, and the place of each line on it: its time where nearly all lines have one, else its place in the order."""
    ours = lines.proc >= 0
    stamped = ours & ~np.isnan(lines.time)
    why = "the logs have no time stamps"
    if stamped.any():
        why = f"only {stamped.sum():,} of {ours.sum():,} lines have a time stamp"
        if stamped.sum() >= _STAMPED * ours.sum():
            time = _times(lines)
            if time is not None:
                return _timed(job, lines, time, demands)
            why = "the time stamps contradict the order of the lines"
    if len(job.scan.files) == 1 or len(set(lines.stream.tolist())) <= 1:
        about = f"Places are lines of the log, not times: {why}. Distances say nothing about time."
        return Axis(Unit.ORDER, about), lines.line.astype(np.float64)
    about = (
        f"Places are an order, not times: {why}. A line is right of the line before it in its file, and right of what must come before it in "
        "another one."
    )
    # A process with two files has two orders, and no line shows how they fit. A record is the state at the end.
    recorded = np.isin(lines.file, sorted(records))
    _, own = np.unique(np.stack([lines.proc, lines.stream, recorded]), axis=1, return_inverse=True)
    ends: list[Before] = []
    if (recorded & ours).any():
        about += " Lines of records are right of the log of their process."
        logged, kept = np.flatnonzero(ours & ~recorded), np.flatnonzero(ours & recorded)
        last = dict(zip(lines.proc[logged].tolist(), logged.tolist(), strict=True))
        _, first = np.unique(np.stack([lines.proc[kept], lines.stream[kept]]), axis=1, return_index=True)
        ends = [([last[proc]], [at]) for at in kept[first].tolist() if (proc := int(lines.proc[at])) in last]
    return Axis(Unit.ORDER, about), 1 + logical(own.reshape(-1), [*demands, *ends])


def _times(lines: Lines) -> _Floats | None:
    """The time of each line; one without a stamp has that of the line before it. None if a process goes back in time."""
    time = lines.time.copy()
    last, process = np.nan, -9
    for at in np.lexsort((lines.seq, lines.stream, lines.proc)).tolist():
        if lines.proc[at] != process:
            last, process = np.nan, int(lines.proc[at])
        if np.isnan(time[at]):
            time[at] = last
            continue
        if not lines.dated and time[at] < last - _DAY / 2:  # past midnight
            time[at] += _DAY * np.ceil((last - time[at] - _DAY / 2) / _DAY)
        if process >= 0 and time[at] < last - _BACK:
            return None
        last = time[at]
    first = float(np.nanmin(time))
    return np.where(np.isnan(time), first, time)


def _timed(job: Job, lines: Lines, time: _Floats, demands: Sequence[Before]) -> tuple[Axis, _Floats]:
    clocks = _clocks(job, lines, time, demands)
    hosts = {clock.host: clock.offset for clock in clocks}
    shift = {p.index: hosts.get(p.host, 0.0) for p in job.scan.processes}
    time += np.array([shift.get(proc, 0.0) for proc in lines.proc.tolist()])
    first = float(time.min())
    about = "Places are seconds since the first line."
    if len(clocks) > 1:
        about += " The clocks of the hosts are aligned by exchanges between them."
    return Axis(Unit.SECONDS, about, first if lines.dated else None, tuple(clocks)), time - first


def _clocks(job: Job, lines: Lines, time: _Floats, demands: Sequence[Before]) -> list[Clock]:
    """The clock of each host against that of the first one, by what must come before what."""
    host_of = [p.host for p in job.scan.processes]
    hosts = list(dict.fromkeys(host_of))
    if len(hosts) < 2:
        return [Clock(host) for host in hosts]
    base = hosts[0]
    least: dict[str, list[float]] = defaultdict(list)
    most: dict[str, list[float]] = defaultdict(list)
    for tails, heads in demands:
        latest: dict[str, float] = {}  # of each host, the last of the tails and the first of the heads bind
        earliest: dict[str, float] = {}
        for line in tails:
            host = host_of[int(lines.proc[line])]
            latest[host] = max(float(time[line]), latest.get(host, -np.inf))
        for line in heads:
            host = host_of[int(lines.proc[line])]
            earliest[host] = min(float(time[line]), earliest.get(host, np.inf))
        for host, at in earliest.items():
            if host != base and base in latest:
                least[host].append(latest[base] - at)
        for host, at in latest.items():
            if host != base and base in earliest:
                most[host].append(earliest[base] - at)
    out = [Clock(base, 0.0, 0.0)]
    for host in hosts[1:]:
        out.append(Clock(host, *offset(least[host], most[host])))
    return out
