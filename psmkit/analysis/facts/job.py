"""A job: a scan with identity resolved, and the questions that the rules ask it."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from psmkit.analysis.facts.identity import RunInfo, resolve
from psmkit.logparse.types import CommInstance, Event, Process, Ref, ScanData, SeqGroup, Value
from psmkit.model import CODES, Evidence, Finding, Severity

__all__ = ["STAGES", "Job", "RunInfo", "collectives", "number", "words"]

# The stages of a process in the order in which it passes them.
STAGES = ("started", "bootstrap", "init", "topology", "connect", "ready", "working", "teardown", "done")

# Which stage a message shows to be reached, by the begin of its name. Names of messages that a process may print at
# any time (settings, RAS, memory) are not here.
_STAGE_OF_NAME = (
    ("bootstrap.", "bootstrap"),
    ("topo.", "topology"),
    ("graph.", "topology"),
    ("tuning.", "topology"),
    ("proxy.", "connect"),
    ("transport.", "connect"),
    ("p2p.", "connect"),
    ("psm.", "connect"),
    ("shm.", "connect"),
)


class Job:
    """Identity resolved over a scan: runs, ranks, communicators, and how far each process came.

    ``scan`` is a :class:`psmkit.logparse.ScanResult`; ``fetch`` replaces its ``evidence`` in tests.
    """

    def __init__(self, scan: ScanData, fetch: Callable[[Ref], Evidence] | None = None) -> None:
        self.scan = scan
        self._fetch = fetch if fetch is not None else getattr(scan, "evidence", None)
        self.identity = resolve(scan)
        self.runs: list[RunInfo] = list(self.identity.runs)
        if not self.runs and (scan.events or getattr(scan, "foreign", ())):
            # What frameworks, launchers, dumps and stacks tell is a run too, of which no NCCL line was given.
            self.runs.append(RunInfo(0, frozenset(), frozenset(), None, None))
        self._by_name: dict[str, list[Event]] = defaultdict(list)
        for event in scan.events:
            self._by_name[event.name].append(event)
        self._names = sorted(self._by_name)
        if any(self._lab_run(event) is None for event in self.events("lab.")):
            # The lab speaks of processes that are in no log: they are a run that is not in view.
            self.runs.append(RunInfo(len(self.runs), frozenset(), frozenset(), None, None))
        self._cache: dict[Ref, Evidence] = {}
        # A compressed input is read from its begin for every step back: its lines are quoted in the end, in one go.
        self._late = any(source.kind != "log" for source in getattr(scan, "inputs", ()))
        self._cited: dict[tuple[str, int], Ref] = {}

    # --- identity ---------------------------------------------------------------------------------------------

    def run_of(self, proc: int) -> int | None:
        """The run of a process."""
        return self.identity.run_of.get(proc)

    def rank_of(self, proc: int) -> int | None:
        """The global rank of a process: its rank in the run's largest communicator, None when unknown."""
        return self.identity.rank_of.get(proc)

    def proc_of(self, run: int, rank: int) -> int | None:
        """The process that holds a global rank of a run, None when its log was not seen."""
        return self._proc_of_rank.get((run, rank))

    def proc_of_rank(self, rank: int, run: int, comm: str | None = None) -> int | None:
        """The process of a rank as a finding names it: of communicator ``comm`` where that is given, else a global rank."""
        if comm is not None:
            for group in sorted(self.runs[run].groups):
                if self.comm_name(group) == comm:
                    found = self.proc_in(group, rank)
                    if found is not None:
                        return found
        return self.proc_of(run, rank)

    def device_of(self, proc: int) -> int | None:
        """The CUDA device of a process as its communicator lines say, None when unknown or when it drives several."""
        devices = {i.dev for i in self.instances_of.get(proc, []) if i.dev is not None}
        return next(iter(devices)) if len(devices) == 1 else None

    def release(self, proc: int) -> tuple[int, int] | None:
        """The release (major, minor) of the library that a process loaded, None when the log does not say."""
        return self._releases.get(proc)

    @cached_property
    def _releases(self) -> dict[int, tuple[int, int]]:
        out: dict[int, tuple[int, int]] = {}
        by_run: dict[int, tuple[int, int]] = {}
        for event in self.events("init.version", "init.version_line"):
            parts = str(event.fields.get("version", "")).split("+")[0].split(".")
            if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
                continue
            release, run = (int(parts[0]), int(parts[1])), self.run_of_event(event)
            if event.proc >= 0:
                out[event.proc] = release
            if run is not None:
                by_run.setdefault(run, release)
        # old releases print the version on rank 0 only
        for proc, run in self.identity.run_of.items():
            if proc not in out and run in by_run:
                out[proc] = by_run[run]
        return out

    def proc_in(self, group: int, rank: int) -> int | None:
        """The process that holds a rank of a communicator."""
        return self._proc_in_group.get((group, rank))

    def who(self, proc: int) -> str:
        """``rank 3 (host:pid)``, or ``host:pid`` where the rank is not known."""
        if not 0 <= proc < len(self.scan.processes):
            return "an unknown process"
        process, rank = self.scan.processes[proc], self.rank_of(proc)
        return process.name if rank is None else f"rank {rank} ({process.name})"

    def whos(self, procs: Iterable[int], most: int = 4) -> str:
        """Several processes in words: ``ranks 1, 2 and 5``."""
        procs = sorted(set(procs), key=lambda p: (self.rank_of(p) is None, self.rank_of(p) or 0, p))
        if len(procs) == 1:
            return self.who(procs[0])
        ranks = [self.rank_of(p) for p in procs]
        if any(rank is None for rank in ranks):
            return words([self.who(p) for p in procs], most)
        return "ranks " + words([str(rank) for rank in ranks], 2 * most)

    def comm_name(self, group: int) -> str:
        """A communicator's commId in hex, or ``comm#N`` where the log has none."""
        info = self.groups.get(group)
        return f"0x{info.commid:x}" if info is not None and info.commid is not None else f"comm#{group}"

    @cached_property
    def groups(self) -> dict[int, SeqGroup]:
        """Communicators by index."""
        return {group.group: group for group in self.scan.groups}

    @cached_property
    def members(self) -> dict[int, list[CommInstance]]:
        """The instances of each communicator."""
        out: dict[int, list[CommInstance]] = defaultdict(list)
        for instance in self.scan.instances:
            out[instance.group].append(instance)
        return out

    @cached_property
    def instances_of(self) -> dict[int, list[CommInstance]]:
        """The communicator memberships of each process."""
        out: dict[int, list[CommInstance]] = defaultdict(list)
        for instance in self.scan.instances:
            out[instance.proc].append(instance)
        return out

    @cached_property
    def _proc_of_rank(self) -> dict[tuple[int, int], int]:
        out: dict[tuple[int, int], int] = {}
        for proc, rank in self.identity.rank_of.items():
            out.setdefault((self.identity.run_of[proc], rank), proc)
        for run in self.runs:
            for instance in self.members.get(run.world, []) if run.world is not None else []:
                out.setdefault((run.index, instance.rank), instance.proc)
        return out

    @cached_property
    def _proc_in_group(self) -> dict[tuple[int, int], int]:
        return {(i.group, i.rank): i.proc for i in self.scan.instances}

    def process(self, proc: int) -> Process:
        """The process with this index."""
        return self.scan.processes[proc]

    def missing_ranks(self, run: int) -> tuple[int, ...]:
        """Global ranks of which not a line was seen."""
        nranks = self.runs[run].nranks
        return tuple(r for r in range(nranks or 0) if self.proc_of(run, r) is None)

    def by_local_rank(self, proc: int, local_rank: int) -> int | None:
        """The process with a local rank on the host of ``proc``, in the same run."""
        run = self.run_of(proc)
        if run is None:
            return None
        host = self.process(proc).host
        here = [p for p in self.runs[run].procs if self.process(p).host == host and self.rank_of(p) is not None]
        for other in here:
            if self._local_ranks.get(other) == local_rank:
                return other
        if self.single_node(run):
            found = self.proc_of(run, local_rank)
            return found if found in here else None
        # local ranks follow the global ones on a host, which places them only when all of them were seen
        if self.runs[run].nranks is not None and not self.missing_ranks(run) and local_rank < len(here):
            return sorted(here, key=lambda p: self.rank_of(p) or 0)[local_rank]
        return None

    @cached_property
    def _local_ranks(self) -> dict[int, int]:
        out: dict[int, int] = {}
        for event in self.scan.events:
            local = event.fields.get("local_rank")
            nranks = event.fields.get("nranks")
            if event.proc < 0 or not isinstance(local, int) or not isinstance(nranks, int):
                continue
            run = self.run_of(event.proc)
            if run is not None and nranks == self.runs[run].nranks:
                out[event.proc] = local
        return out

    @cached_property
    def _single_nodes(self) -> dict[int, bool]:
        out: dict[int, bool] = {}
        for event in self.scan.events:
            nodes, run = event.fields.get("nodes"), self.run_of(event.proc)
            if run is not None and isinstance(nodes, int) and event.fields.get("nranks") == self.runs[run].nranks:
                out[run] = nodes == 1
        return out

    def single_node(self, run: int) -> bool:
        """Whether the whole run is known to be on one host."""
        if run in self._single_nodes:
            return self._single_nodes[run]
        return not self.missing_ranks(run) and len(self.hosts(run)) == 1

    def hosts(self, run: int) -> tuple[str, ...]:
        """Host names of a run."""
        return tuple(sorted({self.process(p).host for p in self.runs[run].procs}))

    def by_socket(self, addr: str, run: int) -> int | None:
        """The process behind a socket address of the RAS network, None when no line joins the two."""
        return self._sockets.get((run, addr))

    def missing_at(self, addr: str, run: int) -> int | None:
        """The rank without a log that has this address on the RAS network, where one alone can have it."""
        missing = self.missing_ranks(run)
        if not missing or self.by_socket(addr, run) is not None:
            return None
        lines = [e.fields for e in self.events("ras.peer", run=run) if e.fields.get("addr") == addr]
        if not lines:
            return None
        if len(missing) == 1:
            return missing[0]
        dev = lines[0].get("dev")
        plain = all(i.dev == i.rank for i in self.scan.instances if i.group == self.runs[run].world)
        return dev if plain and isinstance(dev, int) and dev in missing and self.single_node(run) else None

    @cached_property
    def _sockets(self) -> dict[tuple[int, str], int]:
        out: dict[tuple[int, str], int] = {}
        for event in self.events("ras."):
            run = self.run_of(event.proc)
            if run is None:
                continue
            addrs = [str(v) for v in event.fields.values() if isinstance(v, str) and v.endswith(">") and "<" in v]
            if "listen" in event.name and "client" not in event.name and len(addrs) == 1:
                out[(run, addrs[0])] = event.proc
        for event in self.events("ras."):
            run, pid = self.run_of(event.proc), event.fields.get("pid")
            if run is None or not isinstance(pid, int):
                continue
            addrs = [str(v) for v in event.fields.values() if isinstance(v, str) and v.endswith(">") and "<" in v]
            found = [p for p in self.runs[run].procs if self.process(p).pid == pid]
            if len(addrs) == 1 and len(found) == 1:
                out.setdefault((run, addrs[0]), found[0])
        return out

    # --- lines ------------------------------------------------------------------------------------------------

    def events(self, *names: str, run: int | None = None) -> list[Event]:
        """Events by exact name, or by the begin of the name where it ends with a dot, in order of reading."""
        found: list[Event] = []
        for name in names:
            if name.endswith("."):
                at = bisect.bisect_left(self._names, name)
                while at < len(self._names) and self._names[at].startswith(name):
                    found.extend(self._by_name[self._names[at]])
                    at += 1
            else:
                found.extend(self._by_name.get(name, ()))
        if run is not None:
            found = [event for event in found if self.run_of_event(event) == run]
        if len(names) > 1 or (names and names[0].endswith(".")):
            found.sort(key=lambda e: (e.stream, e.ref.seq, e.ref))
        return found

    def run_of_event(self, event: Event) -> int | None:
        """The run of an event; a line outside NCCL's belongs to the run that its stream was in when it was read."""
        if event.proc >= 0:
            return self.run_of(event.proc)
        if event.name.startswith("lab."):
            run = self._lab_run(event)
            return len(self.runs) - 1 if run is None else run
        if len(self.runs) <= 1:
            return 0 if self.runs else None
        best: tuple[int, int] | None = None
        for process in self.scan.processes:
            run = self.run_of(process.index)
            if process.stream != event.stream or run is None:
                continue
            distance = max(process.first.seq - event.ref.seq, event.ref.seq - process.last.seq, 0)
            if best is None or (distance, run) < best:
                best = (distance, run)
        if best is not None:
            return best[1]
        # a stream of its own, a launcher's for example: it tells of the one run that has communicators
        likely = [run.index for run in self.runs if run.groups] or [run.index for run in self.runs if run.procs]
        return likely[0] if len(likely) == 1 else None

    def named_by(self, event: Event) -> int | None:
        """The process that a line names by host and pid, or by pid and rank; None where no log of it is in view.

        Raises:
            KeyError: the line names no pid.
        """
        host, rank = event.fields.get("host"), event.fields.get("rank")
        for process in self._by_pid.get(event.fields["pid"], ()):
            # a pid alone recurs on other hosts, and in every container
            if process.host == host or (host is None and self.rank_of(process.index) in (None, rank)):
                return process.index
        return None

    @cached_property
    def _by_pid(self) -> dict[Value, list[Process]]:
        out: dict[Value, list[Process]] = defaultdict(list)
        for process in self.scan.processes:
            out[process.pid].append(process)
        return out

    def _lab_run(self, event: Event) -> int | None:
        """The run that a line of the lab is about, None where none of the processes that its stream names is in view."""
        if not self.scan.processes:
            return 0 if self.runs else None
        proc = self.named_by(event) if "pid" in event.fields else None
        return self.run_of(proc) if proc is not None else self._lab_streams.get(event.stream)

    @cached_property
    def _lab_streams(self) -> dict[int, int]:
        """The run that the lab's lines of a stream name most processes of: the others there died before they wrote a log."""
        votes: dict[int, Counter[int]] = defaultdict(Counter)
        for event in self.events("lab.rank."):
            proc = self.named_by(event)
            run = self.run_of(proc) if proc is not None else None
            if run is not None:
                votes[event.stream][run] += 1
        return {stream: runs.most_common(1)[0][0] for stream, runs in votes.items()}

    def unaccounted(self, run: int) -> bool:
        """Whether no communicator line names the processes of a run, while other runs of the job have theirs."""
        return not self.runs[run].groups and any(other.groups for other in self.runs)

    def count(self, proc: int, *names: str) -> int:
        """How often a process printed these messages (exact names, or begins that end with a dot)."""
        total = 0
        for name, number in self._counts.get(proc, {}).items():
            if any(name == want or (want.endswith(".") and name.startswith(want)) for want in names):
                total += number
        return total

    @cached_property
    def _counts(self) -> dict[int, Counter[str]]:
        out: dict[int, Counter[str]] = defaultdict(Counter)
        for count in self.scan.counts:
            out[count.proc][count.name] += count.count
        for event in self.scan.events:
            # a message may be kept and counted: the larger figure holds
            if event.name not in out[event.proc]:
                out[event.proc][event.name] = 0
        kept: dict[tuple[int, str], int] = Counter()
        for event in self.scan.events:
            kept[(event.proc, event.name)] += event.count
        for (proc, name), number in kept.items():
            out[proc][name] = max(out[proc][name], number)
        return out

    def evidence(self, *refs: Ref | None) -> tuple[Evidence, ...]:
        """The lines behind references; None and repeated ones are left out."""
        out: list[Evidence] = []
        seen: set[tuple[int, int]] = set()
        for ref in refs:
            if ref is None or (ref.file, ref.line) in seen:
                continue
            seen.add((ref.file, ref.line))
            if ref not in self._cache:
                if self._fetch is not None:
                    self._cache[ref] = self._fetch(ref)
                else:
                    self._cache[ref] = Evidence(self.scan.files[ref.file].path, ref.line, "")
            out.append(self._cache[ref])
        return tuple(out)

    def _cite(self, *refs: Ref | None) -> tuple[Evidence, ...]:
        """Evidence for a finding. Where fetching is slow its text stays empty until :meth:`quoted`."""
        if not self._late:
            return self.evidence(*refs)
        places = {(self.scan.files[ref.file].path, ref.line): ref for ref in refs if ref is not None}
        self._cited.update(places)
        return tuple(Evidence(path, line, "") for path, line in places)

    def quoted(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings with the text of their evidence."""
        if not self._late:
            return list(findings)
        texts = {(e.file, e.line): e for ref in sorted(set(self._cited.values())) for e in self.evidence(ref)}
        return [replace(f, evidence=tuple(texts.get((e.file, e.line), e) for e in f.evidence)) for f in findings]

    def finding(
        self,
        code: str,
        *,
        run: int | None,
        title: str | None = None,
        severity: Severity | None = None,
        confidence: float = 0.9,
        explanation: str | None = None,
        next_step: str | None = None,
        refs: Iterable[Ref | None] = (),
        comm: str | None = None,
        ranks: Iterable[int] = (),
        procs: Iterable[int] = (),
        culprits: Iterable[int] = (),
        stage: str | None = None,
        known_issue: str | None = None,
    ) -> Finding:
        """A finding with the defaults of its code. ``procs`` are process indices; without ``ranks`` theirs are taken."""
        info = CODES[code]
        places = list(dict.fromkeys(p for p in procs if 0 <= p < len(self.scan.processes)))
        numbers = list(dict.fromkeys(ranks))
        if not numbers:
            numbers = sorted({rank for p in places if (rank := self.rank_of(p)) is not None})
        return Finding(
            code=code,
            title=title or info.title,
            severity=severity or info.severity,
            confidence=confidence,
            explanation=explanation or info.meaning,
            next_step=next_step or info.next_step,
            evidence=self._cite(*refs),
            run=run,
            comm=comm,
            ranks=tuple(numbers),
            processes=tuple(self.process(p).name for p in places),
            stage=stage,
            known_issue=known_issue,
            culprits=tuple(dict.fromkeys(culprits)),
        )

    # --- progress ---------------------------------------------------------------------------------------------

    def base_stage_of(self, proc: int) -> str:
        """The furthest of :data:`STAGES` that a process reached."""
        return STAGES[self._stages.get(proc, 0)]

    @cached_property
    def _stages(self) -> dict[int, int]:
        out: dict[int, int] = defaultdict(int)

        def reach(proc: int, stage: str) -> None:
            out[proc] = max(out[proc], STAGES.index(stage))

        for proc, counts in self._counts.items():
            for name in counts:
                for begin, stage in _STAGE_OF_NAME:
                    if name.startswith(begin):
                        reach(proc, stage)
        for instance in self.scan.instances:
            if instance.start is not None:
                reach(instance.proc, "init")
            if instance.complete is not None:
                reach(instance.proc, "ready")
            if instance.ops or instance.sends or instance.recvs:
                reach(instance.proc, "working")
            # the lines of a teardown do not tell which communicator it is: they count where there is one only
            alone = len(self.instances_of.get(instance.proc, [])) == 1
            if instance.end is not None or (alone and self.count(instance.proc, "proxy.uds.exit")):
                reach(instance.proc, "teardown")
        for proc in range(len(self.scan.processes)):
            if self.torn_down(proc):
                reach(proc, "done")
        return out

    def progress_of(self, proc: int) -> tuple[int, ...]:
        """Comparable logical progress: stage, collectives, sends and recvs. Never lines or time."""
        ours = self.instances_of.get(proc, [])
        return (
            self._stages.get(proc, 0),
            sum(collectives(i) for i in ours),
            sum(i.sends + i.recvs for i in ours),
            sum(1 for i in ours if i.end is not None),
        )

    def torn_down(self, proc: int) -> bool:
        """Whether every communicator of a process was destroyed, or its proxy service was stopped."""
        ours = self.instances_of.get(proc, [])
        if ours:
            return all(i.end is not None for i in ours)
        return False

    def worked(self, proc: int) -> bool:
        """Whether a process was seen to call a collective, a send or a recv."""
        return any(i.ops or i.sends or i.recvs for i in self.instances_of.get(proc, []))


def collectives(instance: CommInstance) -> int:
    """How many collectives a member called; its ``ops`` count sends and recvs too."""
    return max(instance.ops - instance.sends - instance.recvs, 0)


def words(items: Iterable[str], most: int = 6) -> str:
    """``a, b and c``; the tail of a long list is only counted."""
    names = list(items)
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    if len(names) < 2:
        return "".join(names)
    return ", ".join(names[:-1]) + " and " + names[-1]


def number(fields: Mapping[str, Value] | None, name: str) -> int | None:
    """An integer field, None when it is missing or of another type."""
    value = fields.get(name) if fields is not None else None
    return value if isinstance(value, int) else None
