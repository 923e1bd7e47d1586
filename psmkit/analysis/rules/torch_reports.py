"""What torch itself reports about ranks that differ or never came: desync reports, barriers, fingerprints, analyses of flight recorders.

torch compares with one rank, its own or the first of the group, and calls the others culprits. Here the majority decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from psmkit.analysis.facts import outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import joined, ranks_text
from psmkit.analysis.facts.tags import ranks_in
from psmkit.analysis.inference import afterwards, store_waits
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.process_groups import reporter
from psmkit.analysis.inference.suspects import alone
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Value
from psmkit.model import CODES, Finding, Named, Severity
from psmkit.model.late import dataclass, regex
from psmkit.model.wording import RAISED, plural

__all__ = ["find"]

#: A part of an analysis stands at most this many lines below its head.
_PART_LINES = 40
#: States differ in a job that goes on, too: no call of the program differs.
_STATE = "COLLECTIVE_STATE_MISMATCH"
_WHAT = {
    "COLLECTIVE_TYPE_MISMATCH": "another collective",
    "SIZE_OR_SYNTAX_MISMATCH": "other sizes",
    "COLLECTIVE_DTYPE_MISMATCH": "another data type",
}
_SHOWN = 4
#: The begin of a fingerprint in each of its forms: with and without a number and a tensor. A line may be cut behind it.
_CALL = regex(
    r"(?:SequenceNumber=(\d+)(?:, )?)?OpType=(\w+)(?:, TensorShape=\[([^\]]*)\](?:, TensorDtypes=([\w ,]+?)(?=, Tensor|\)|$))?)?"
)
_PAIR = " Two calls do not show which of the ranks is right."
_TOO_LATE = "A monitored barrier gives up after its time limit and names the ranks that did not come."
_WAITED = "Rank 0 collects the answers of all ranks: it is elsewhere in its program, it ended, or it waits for another rank. Its log shows which."
#: The original exception stands at most this many lines below.
_NEAR = 8
_RANK_0 = "Rank 0 collects the answers: it ended, or it gave up because another rank did not arrive. In that case its log names this rank."


@rule(order=62)
def find(job: Job) -> list[Finding]:
    """PSM301 and PSM302 for ranks that torch's own reports or summaries of them name, PSM201 for its store, PSM604 for dumps that it lacks."""
    out = [*_desync(job), *_barriers(job), *_fingerprints(job), *_analyses(job), *_undecided(job)]
    out.extend([*_running(job), *_works(job)])
    out.extend(store_waits.findings(job))
    out.extend(_store_lost(job))
    return out


def _desync(job: Job) -> Iterator[Finding]:
    for run, events in outside.runs_of(job, "torch.desync.").items():
        behind: dict[int, Event] = {}
        waiting = {e.fields["seq"] for e in events if e.name == "torch.desync.at"}
        never = False
        for event in events:
            seq = event.fields.get("seq")
            lags = "missing" in event.fields or (event.name == "torch.desync.lagging" and "ranks" in event.fields)
            # a rank that still waits in an earlier collective than the rank that reports lags, too
            early = event.name == "torch.desync.joined" and isinstance(seq, int)
            early = early and any(isinstance(at, int) and at > seq for at in waiting if isinstance(seq, int))
            if lags or early:
                never = never or event.name == "torch.desync.lagging"
                for rank in ranks_in(event.fields.get("ranks")):
                    behind.setdefault(rank, event)
        if not behind:
            continue
        ranks = sorted(behind)
        what, doubt = "joined no collective" if never else "did not join the collective in which the others wait", None
        if not never:
            what, doubt = _apart(events, behind.values()) or (what, None)
            doubt = _completed(job, run, events, behind.values()) or doubt
        yield new_finding(
            job,
            "PSM302",
            run=run,
            title=f"torch's desync report names {ranks_text(ranks)}: {'it' if len(ranks) == 1 else 'they'} {what}",
            confidence=0.6 if doubt else 0.9,
            explanation=f"{CODES['PSM302'].meaning} {doubt}" if doubt else None,
            next_step=afterwards.step(
                job, run, f"Find out what {ranks_text(ranks)} did instead.", _timeout(job, run), several=len(ranks) > 1
            ),
            refs=list(dict.fromkeys(e.ref for e in behind.values()))[:_SHOWN],
            ranks=ranks,
            procs=job.procs_of(run, ranks),
            culprits=ranks,
        )


def _works(job: Job) -> Iterator[Finding]:
    """A few ranks that called less than the others, by a table that somebody made of the status lines of their watchdogs."""
    for run, events in outside.runs_of(job, "torch.works_told").items():
        at: dict[int, tuple[int, Event]] = {}
        for event in events:
            number = event.fields.get("enqueued")
            for rank in ranks_in(str(event.fields.get("ranks", "")).replace("/", ",")):
                if isinstance(number, int):
                    at[rank] = number, event
        most = max((number for number, _ in at.values()), default=0)
        behind = sorted(rank for rank, (number, _) in at.items() if number < most)
        if not behind or 2 * len(behind) >= len(at):
            continue
        numbers = joined(sorted({f"#{at[rank][0]}" for rank in behind}))
        yield new_finding(
            job,
            "PSM302",
            run=run,
            title=f"{ranks_text(behind)} did not call work #{most} of the other ranks: the last one called is {numbers}",
            confidence=0.8,
            explanation=f"{CODES['PSM302'].meaning} The numbers count within a process group: these lines do not show that they are of the same one.",
            next_step=afterwards.step(
                job,
                run,
                f"Find out what {ranks_text(behind)} did instead.",
                _timeout(job, run),
                several=len(behind) > 1,
            ),
            refs=list(dict.fromkeys(at[rank][1].ref for rank in (*behind, *(r for r in at if r not in behind))))[
                :_SHOWN
            ],
            ranks=behind,
            procs=job.procs_of(run, behind),
            culprits=behind,
        )


def _apart(events: Iterable[Event], behind: Iterable[Event]) -> tuple[str, str] | None:
    """What the ranks did that lag, and what is in doubt, if the others do not wait in the one collective that these ranks did not join."""
    missing = {seq for e in behind if isinstance(seq := e.fields.get("missing"), int)}
    started = {seq for e in events if e.name == "torch.desync.started" and isinstance(seq := e.fields.get("seq"), int)}
    if started <= missing or len(missing) > 1:
        return None
    lag = f"did not join collective #{min(missing)}" if missing else "lagged"
    where = joined(f"#{seq}" for seq in sorted(started)[:_SHOWN])
    return (
        f"{lag}, and the others wait in {where}",
        "The others do not wait in this collective: torch's numbers may count the calls of several process groups.",
    )


def _completed(job: Job, run: int | None, events: Iterable[Event], behind: Iterable[Event]) -> str | None:
    """What speaks against a desync report: a rank completed the collective that another one did not join, by its own status."""
    missing = [seq for e in behind if isinstance(seq := e.fields.get("missing"), int)]
    at = {e.fields["seq"] for e in events if e.name == "torch.desync.at"}
    for event in job.events("torch.watchdog.status", run=run):
        completed, rank = event.fields.get("completed"), reporter(job, event)
        if event.fields.get("enqueued") in at and missing and isinstance(completed, int) and completed >= min(missing):
            who = f"rank {rank}" if rank is not None else "a rank"
            return f"But {who} completed work {completed} by its own status, so torch's numbers may count the calls of several process groups."
    return None


def _timeout(job: Job, run: int | None) -> Event | None:
    """The first line of a watchdog's timeout in a run."""
    return next((e for e in job.events("torch.watchdog.timeout") if job.run_of_event(e) == run), None)


def _barriers(job: Job) -> Iterator[Finding]:
    """Rank 0 asks the others, and only rank 0 knows who is missing: the others lose rank 0 when it gives up."""
    for run, events in outside.runs_of(job, "torch.barrier.").items():
        late: dict[int, Event] = {}
        lost: dict[int, Event] = {}
        for event in events:
            rank = event.fields.get("rank")
            named = [rank] if isinstance(rank, int) else ranks_in(event.fields.get("ranks"))
            for rank in named:
                (lost if event.name == "torch.barrier.reached" else late).setdefault(rank, event)
        ranks = sorted(late or lost)
        if not ranks:
            continue
        what = "did not reach a monitored barrier in time"
        # an exchange between the ranks failed: each of the two ends may be the one that broke it
        ends: list[int] = []
        if not late:
            what = "reached a monitored barrier and got an error in its exchange with rank 0"
            ends = [0, *ranks] if len(ranks) == 1 else [0]
        if waited := not late and _timed_out(job, lost.values()):
            what = "waited for rank 0 at a monitored barrier until the time was over"
        yield new_finding(
            job,
            "PSM302",
            run=run,
            title=f"{ranks_text(ranks)} {what}",
            confidence=0.9 if late else 0.6,
            stage=None if late or waited else RAISED,
            explanation=_TOO_LATE if late else _WAITED if waited else _RANK_0,
            next_step=None if late else "Read the log of rank 0.",
            named=[Named(rank=0)]
            if waited
            else [Named(rank=r, either=True, peer_unnamed=len(ends) == 1) for r in ends],
            refs=list(dict.fromkeys(e.ref for e in (late or lost).values()))[:_SHOWN],
            ranks=ranks,
            procs=job.procs_of(run, ranks),
            culprits=sorted(late),
        )


def _timed_out(job: Job, events: Iterable[Event]) -> bool:
    """Whether a time limit ended the exchange, by the original exception below each of these lines."""
    ends = [(e.stream, e.ref.seq) for e in job.events("gloo.timeout")]
    return all(any(s == e.stream and 0 < at - e.ref.seq <= _NEAR for s, at in ends) for e in events)


@dataclass(frozen=True, slots=True)
class _Print:
    """The fingerprint of a collective, as far as a line shows it."""

    seq: int | None
    op: str
    shape: str | None
    dtypes: str | None

    @property
    def call(self) -> str:
        return self.op + (f" #{self.seq}" if self.seq is not None else "")

    def sizes(self, others: Iterable[_Print]) -> str:
        """The shape and the types, as far as they differ from those of the others."""
        shape = f"shape [{self.shape}]" if len({o.shape for o in others}) > 1 and self.shape is not None else ""
        kinds = f"{self.dtypes}" if len({o.dtypes for o in others}) > 1 and self.dtypes is not None else ""
        return joined(filter(None, (shape, kinds))) or "no shape"


def _print(fields: Mapping[str, Value], which: str) -> _Print | None:
    op, seq = fields.get(which + "op"), fields.get(which + "seq")
    if op is None:
        # the two ranks of a line may print their calls in different forms
        call = _CALL.search(str(fields.get("theirs" if which else "mine", "")))
        return call and _Print(int(call[1]) if call[1] else None, call[2], call[3], call[4])
    shape, dtypes = (fields.get(which + name) for name in ("shape", "dtypes"))
    return _Print(
        seq if isinstance(seq, int) else None,
        str(op),
        None if shape is None else str(shape),
        None if dtypes is None else str(dtypes),
    )


def _fingerprints(job: Job) -> Iterator[Finding]:
    """Each rank compares with the others and reports the first one that differs: two ranks and their collectives a line."""
    for run, events in outside.runs_of(job, "torch.fingerprint.mismatch").items():
        prints: dict[int, set[_Print]] = defaultdict(set)
        named: set[int] = set()
        global_: dict[int, int] = {}
        for event in events:
            own = event.fields.get("rank")
            reporter = outside.global_rank(job, event)
            if isinstance(own, int) and reporter is not None:
                global_[own] = reporter
            for key, which in (("rank", ""), ("other", "other_")):
                rank, what = event.fields.get(key), _print(event.fields, which)
                if isinstance(rank, int):
                    named.add(rank)
                    if what is not None:
                        prints[rank].add(what)
        yield _mismatch(job, run, events, named, prints, global_)


def _mismatch(
    job: Job,
    run: int | None,
    events: Sequence[Event],
    named: set[int],
    prints: Mapping[int, set[_Print]],
    global_: Mapping[int, int],
) -> Finding:
    kinds: dict[_Print, list[int]] = defaultdict(list)
    clear = all(len(own) == 1 for own in prints.values())  # else several groups or calls are in view
    for rank, own in sorted(prints.items()):
        for what in own:
            kinds[what].append(rank)
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    # the ranks of a smaller process group have other numbers than those of the job
    whole = all(own == rank for own, rank in global_.items())
    known = job.runs[run].nranks if whole and run is not None and run < len(job.runs) else None
    size = max(known or 0, *(r + 1 for r in named)) if named else 0
    odd = sorted(r for _, ranks in ordered[1:] for r in ranks)
    decided = clear and len(ordered) > 1 and 2 * len(ordered[0][1]) > size
    culprits = [] if not decided else odd if whole else [global_[r] for r in odd if r in global_]
    same = len(ordered) > 1 and len({(what.op, what.seq) for what, _ in ordered}) == 1
    parts = [
        f"{ranks_text(ranks)} {plural(len(ranks), 'has', 'have')} {what.sizes(kinds)}"
        if same
        else f"{ranks_text(ranks)} {plural(len(ranks), 'runs', 'run')} {what.call}"
        for what, ranks in ordered
    ]
    at = f" at {ordered[0][0].call}" if same and clear else ""
    if not clear or len(ordered) < 2:
        first = events[0].fields
        mine = first.get("mine", "one collective")
        if (call := _CALL.search(str(mine))) is not None and "theirs" not in first:
            mine = f"{call[2]} #{call[1]}" if call[1] else call[2]
        parts = [f"{mine} against {first.get('theirs', 'another one')}"]
        if clear or not prints:
            parts = [f"{ranks_text(named)}: {parts[0]}"]
    group = "" if whole else " (numbers within their process group)"
    # of two that differ from each other, the lines do not show which one is wrong
    pair = sorted(named) if clear and len(ordered) == len(named) <= 2 and not culprits else []
    doubt = _PAIR if len(pair) == 2 else ""
    return new_finding(
        job,
        "PSM301",
        run=run,
        title=f"collective mismatch{at}{group}: {joined(parts[:_SHOWN])}",
        confidence=0.95 if decided else 0.9,
        explanation="torch compared the collectives of the ranks before it ran them, and they differ."
        + (
            f" {ranks_text(odd).capitalize()} differ{'s' if len(odd) == 1 else ''} from most ranks."
            if decided
            else doubt
        ),
        refs=[e.ref for e in events[:_SHOWN]],
        ranks=sorted(named) if whole else sorted(global_.values()),
        procs=job.procs_of(run, named if whole else global_.values()),
        culprits=culprits,
        named=[
            Named(rank, comm=None if whole else "its process group", either=True, peer_unnamed=len(pair) == 1)
            for rank in pair
        ],
        stage=RAISED,
    )


def _running(job: Job) -> Iterator[Finding]:
    """The last collective of each rank. A job that goes on looks the same, so it is no more than a hint."""
    for run, events in outside.runs_of(job, "torch.fingerprint.running").items():
        last: dict[int, tuple[int, Event]] = {}
        for event in events:
            rank, seq = event.fields.get("rank"), event.fields.get("seq")
            if isinstance(rank, int) and isinstance(seq, int):
                last[rank] = max(last.get(rank, (seq, event)), (seq, event), key=lambda item: item[0])
        most = max((seq for seq, _ in last.values()), default=0)
        behind = sorted(rank for rank, (seq, _) in last.items() if seq < most)
        if not behind or 2 * len(behind) >= len(last):
            continue
        numbers = joined(f"#{seq}" for seq in sorted({last[r][0] for r in behind}))
        yield new_finding(
            job,
            "PSM302",
            run=run,
            severity=Severity.INFO,
            title=f"the last collective of {ranks_text(behind)} in this log is {numbers}, that of the others is #{most}",
            confidence=0.5,
            explanation="torch prints each collective before it runs it. The log does not show that time passed after these lines, so the job may go on.",
            next_step=f"If the job hangs, look at {ranks_text(behind)} first: py-spy dump of that process, its last lines.",
            refs=[last[r][1].last or last[r][1].ref for r in behind[:_SHOWN]],
            ranks=behind,
            procs=job.procs_of(run, behind),
        )


@dataclass(slots=True)
class _Analysis:
    """One collective in the output of torchfrtrace."""

    head: Event
    fields: dict[str, Value]
    refs: list[Event] = field(default_factory=list)

    @property
    def what(self) -> str:
        op = str(self.fields.get("op", "collective")).strip()
        number = f" number {self.fields['seq']}" if "seq" in self.fields else ""
        group = str(self.fields.get("group", "")).strip()
        return f"{op}{number}" + (f" of process group {group}" if group else "")

    @property
    def expected(self) -> list[int]:
        return ranks_in(self.fields.get("expected"))

    @property
    def size(self) -> int | None:
        """The number of ranks of the group; older releases print it in place of the ranks."""
        size = self.fields.get("size")
        return len(self.expected) or (size if isinstance(size, int) else None)

    def errors(self) -> dict[int, str]:
        """What torch says of each rank that differs from the first one."""
        out: dict[int, str] = {}
        for part in str(self.fields.get("errors", "")).split(", Culprit rank "):
            rank, _, text = part.partition("; Error type: ")
            if rank.isascii() and rank.isdigit() and len(rank) < 10 and text:
                out[int(rank)] = text
        return out


def _analyses(job: Job) -> list[Finding]:
    found: list[_Analysis] = []
    for event in job.events("torch.analysis.differ", "torch.analysis.missing", "torch.analysis.detail"):
        if event.name != "torch.analysis.detail":
            found.append(_Analysis(event, dict(event.fields), [event]))
        elif found and found[-1].head.stream == event.stream and event.ref.seq - found[-1].head.ref.seq < _PART_LINES:
            found[-1].fields.update(event.fields)
            found[-1].refs.append(event)
    out: list[Finding] = []
    seen = set()
    for one in found:
        # after the first mismatch of a group, torch pairs the wrong collectives
        place = (job.run_of_event(one.head), one.fields.get("pg"), one.fields.get("group"))
        if place in seen:
            continue
        seen.add(place)
        finding = _absent(job, one) if one.head.name == "torch.analysis.missing" else _differ(job, one)
        if finding is not None:
            out.append(finding)
    return out


def _absent(job: Job, one: _Analysis) -> Finding:
    run = job.run_of_event(one.head)
    ranks = sorted({*ranks_in(one.fields.get("missing")), *ranks_in(one.fields.get("ranks"))})
    who = ranks_text(ranks) if ranks else "some ranks"
    most = one.size is not None and 2 * len(ranks) > one.size
    unclear = one.size is not None and alone(len(ranks), one.size)
    other = " Most ranks are missing, so the others may have called one collective too many." if most else ""
    proof = sorted(one.refs, key=lambda e: e is not one.head and "missing" not in e.fields)
    return new_finding(
        job,
        "PSM302",
        run=run,
        title=f"{who} did not join {one.what}",
        confidence=0.75 if most else 0.9,
        explanation=f"torch's analysis of the flight recorder dumps found this collective on the other ranks and not on these.{other}",
        next_step=afterwards.step(job, run, f"Find out what {who} did instead.", _timeout(job, run)),
        refs=[e.ref for e in proof[:_SHOWN]],
        ranks=ranks,
        procs=job.procs_of(run, ranks),
        culprits=[] if unclear else ranks,
    )


def _undecided(job: Job) -> Iterator[Finding]:
    """Ranks whose dumps torch's analysis lacks."""
    for run, events in outside.runs_of(job, "torch.analysis.undecided").items():
        ranks = sorted({r for e in events for r in ranks_in(e.fields.get("ranks"))})
        yield new_finding(
            job,
            "PSM604",
            run=run,
            title=f"torch's analysis has no flight recorder dump of {ranks_text(ranks) if ranks else 'some ranks'}, so it decides nothing about their collectives",
            explanation="A rank that died, or that hangs outside torch, leaves no dump.",
            next_step="Give torchfrtrace the dumps of all ranks. Look at the ranks without a dump first: do they live, and what do their stacks show?",
            refs=[e.ref for e in events[:_SHOWN]],
            ranks=ranks,
            procs=job.procs_of(run, ranks),
        )


def _differ(job: Job, one: _Analysis) -> Finding | None:
    run, errors = job.run_of_event(one.head), one.errors()
    kinds = {rank: text.partition(",")[0].strip() for rank, text in errors.items()}
    states = sorted(r for r, kind in kinds.items() if kind == _STATE)
    calls = {r: text for r, text in errors.items() if kinds[r] != _STATE}
    refs = [e.ref for e in one.refs if e is one.head or "errors" in e.fields][:_SHOWN]
    if states and not calls:
        return new_finding(
            job,
            "PSM305",
            run=run,
            severity=Severity.WARNING,
            title=f"the states of {one.what} differ: {ranks_text(states)} differ{'s' if len(states) == 1 else ''} from the first rank",
            confidence=0.6,
            explanation="torch's analysis compares the flight recorder dumps. All ranks called this collective alike; the dumps of a job that goes on look the same.",
            refs=refs,
            ranks=states,
            procs=job.procs_of(run, states),
        )
    named, expected = sorted(calls), one.expected
    others = sorted(set(expected) - set(named))
    odd = named
    if expected and 2 * len(named) >= len(expected):
        # torch compared with a rank that differs itself
        odd = others if len(set(calls.values())) == 1 and 2 * len(others) < len(expected) else []
    elif not expected:
        odd = []
    what = joined(sorted({_WHAT.get(kinds[r], "other arguments") for r in named})) or "different sizes"
    shown = odd or named
    title = f"collective mismatch at {one.what}"
    if shown:
        title += f": {ranks_text(shown)} called {what}" + (" than the others" if odd else " than the first rank")
    example = next(iter(calls.values()), "")
    return new_finding(
        job,
        "PSM301",
        run=run,
        title=title,
        confidence=0.93,
        explanation="torch's analysis of the flight recorder dumps found ranks that called this collective differently."
        + (f" It says: {example}." if example else ""),
        refs=refs,
        ranks=shown,
        procs=job.procs_of(run, shown),
        culprits=odd,
    )


def _store_lost(job: Job) -> Iterator[Finding]:
    """Ranks whose connection to torch's store broke. They lose it at the end of a good job, too, so it is only a note."""
    for run, events in outside.runs_of(job, "torch.store.send_failed").items():
        hosts = {str(e.fields["remote"]).strip("[]").removeprefix("::ffff:") for e in events if "remote" in e.fields}
        ports = {e.fields["port"] for e in events if "port" in e.fields}
        if len(hosts) != 1:
            continue
        (host,) = hosts
        told = sorted([*events, *job.events("torch.store.gone", run=run)], key=lambda e: e.ref.seq)
        ranks = sorted({r for e in told if (r := outside.global_rank(job, e)) is not None})
        yield new_finding(
            job,
            "PSM403",
            run=run,
            severity=Severity.INFO,
            title=f"{ranks_text(ranks) if ranks else 'a process'} lost the connection to torch's store on {host}"
            + (f", port {ports.pop()}" if len(ports) == 1 else ""),
            confidence=0.5,
            explanation="Rank 0 or the launcher hosts the store. This is usual at the end of a job; before it, that process ended first or the network to it failed.",
            next_step=f"Read the end of the output of the process that hosts the store, at {host} (rank 0 or the launcher): it may have ended first.",
            refs=[e.ref for e in events[:_SHOWN]],
            ranks=ranks,
            named=[Named(host=host)],
            stage="lost",
        )
