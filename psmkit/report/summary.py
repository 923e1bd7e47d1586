"""Texts that several formats share: the sentence of the verdict, the order and folding of findings, counts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise

from psmkit.model import (
    CODES,
    Cause,
    Culprit,
    Finding,
    MatchCount,
    Matching,
    Report,
    Run,
    Severity,
    Suspect,
    Verdict,
)
from psmkit.model.late import dataclass, regex
from psmkit.model.wording import LACKS, protocol_stage
from psmkit.report.language import ENGLISH, Words
from psmkit.report.layout import ranges

__all__ = [
    "FOLD_FINDINGS",
    "Fold",
    "FoldedCauses",
    "about",
    "advice",
    "behind",
    "by_weight",
    "common_folder",
    "culprit_name",
    "culprit_ranks",
    "culprit_why",
    "file_of",
    "fold",
    "fold_causes",
    "listed",
    "matching_rows",
    "next_step",
    "original",
    "percent",
    "rerun_line",
    "run_number",
    "sentence",
    "size",
    "suspect_name",
    "verdict_line",
]

FOLD_FINDINGS = 5
_SHOWN_OF_FOLD = 2
_FOLD_CAUSES = 2
_EXCHANGES = (
    ("proxy calls", "proxy_calls"),
    ("fd exchanges", "fd_exchanges"),
    ("connections", "connections"),
    ("shared memory segments", "shm_segments"),
    ("IPC buffers", "ipc_buffers"),
    ("collectives", "collectives"),
    ("sends and recvs", "sendrecv"),
)


#: When the rank of a culprit is right that no line names.
_CONDITIONS = {
    "assumed: device": "if ranks follow devices",
    "assumed: host offset": "if ranks follow devices as elsewhere on this host",
    "assumed: local rank": "if the job has one host",
    "assumed: number of a worker": "if its launcher counts ranks",
    "assumed: only rank": "if no other rank printed to this log",
    "assumed: element of NVSHMEM": "if the elements of NVSHMEM are the ranks",
    "assumed: own devices": "as its process counts",
    "assumed: number in brackets": "if NCCL printed the number; Intel MPI prints a rank in this form",
}


#: What tells an address from the name of a host, pod or container.
_ADDRESS = regex(r"^[\d.]+$|:")

#: ``rank 3 (n0:70) failed at net.cc:7``: the verb that the verdict says already.
_REPEATED = regex(r"^(ranks? \d[\d, and]*?(?: \([^()]*\))?|[^\s:]+:\d+) failed(:| at )")


def sentence(part: Report | Run, words: Words = ENGLISH) -> str:
    """``hung: rank 3 never answered Setup from rank 1``: the verdict of a report or of a run."""
    return "".join(verdict_line(part, words))


def verdict_line(part: Report | Run, words: Words = ENGLISH) -> tuple[str, str]:
    """The verdict of a report or of a run, and why.

    Where a language has no words for the reason, it names the finding behind it by the title of its code; :func:`original` has the reason itself.
    """
    if words is not ENGLISH:
        reason = part.reason.strip()
        verdict = words.verdict(part.verdict.value)
        if not reason.startswith(f"{part.verdict.value}:") and words.knows(reason):
            return verdict, words.say(": ") + words.sentence(reason)
        found = behind(part) if isinstance(part, Report) else None
        if found is not None:
            return verdict, words.say(": ") + f"{words.code(found.code, 'title')} [{found.code}]"
        return verdict, words.say(": ") + (words.sentence(reason) if reason else words.say("no reason is known"))
    text = _english(part)
    return text[: len(part.verdict.value)], text[len(part.verdict.value) :]


def original(report: Report, words: Words) -> str:
    """The reason of the verdict in English, where :func:`verdict_line` does not say it in another language; else empty."""
    reason = report.reason.strip()
    return "" if words is ENGLISH or words.knows(reason) or behind(report) is None else reason


def _english(part: Report | Run) -> str:
    verdict = part.verdict.value
    reason = part.reason.strip()
    if verdict == "failed":
        reason = _REPEATED.sub(r"\1\2", reason, count=1)
    return reason if reason.startswith(f"{verdict}:") else f"{verdict}: {reason or 'no reason is known'}"


def listed(names: Sequence[str], words: Words = ENGLISH) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return words.say(" and ").join((words.say(", ").join(names[:-1]), names[-1]))


def percent(confidence: float) -> str:
    """A confidence of 0..1 as a percentage."""
    return f"{round(confidence * 100)}%"


def size(count: int) -> str:
    """A number of bytes with a unit."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def culprit_name(culprit: Culprit, words: Words = ENGLISH) -> str:
    """``rank 3 (host:pid, device 3)``, as far as known. A rank that is only assumed is named with its condition."""
    rank = culprit.rank if culprit.global_rank is None else culprit.global_rank
    condition = _CONDITIONS.get(culprit.rank_basis or "")
    condition = None if condition is None else words.say(condition)
    details = []
    if culprit.host is not None:
        details.append(culprit.host if culprit.pid is None else f"{culprit.host}:{culprit.pid}")
    elif culprit.pid is not None:
        details.append(words.say("pid {pid}", pid=culprit.pid))
    if rank is None and culprit.gpu is not None:
        where = words.say(" of {host}", host=culprit.host) if culprit.host is not None else ""
        process = words.say(" (process {pid})", pid=culprit.pid) if culprit.pid is not None else ""
        return words.say("the GPU at {gpu}{where}", gpu=culprit.gpu, where=where) + process
    if rank is None and condition is not None and culprit.device is not None:
        return f"device {culprit.device} ({condition})"
    if culprit.global_rank is None and condition is not None and culprit.device is not None:
        name = f"device {culprit.device} (rank {rank} {condition})"
        return words.say("{name}, process {process}", name=name, process=details[0]) if details else name
    if rank is None and culprit.pid is None and culprit.device is None and culprit.host is not None:
        if not _ADDRESS.search(culprit.host):
            return culprit.host
        where = "the process at {host}" if ":" in culprit.host else "the host at {host}"
        return words.say(where, host=culprit.host)
    if rank is None and culprit.pid is None and culprit.device is not None and condition is None:
        of_host = words.say(" of {host}", host=culprit.host) if culprit.host is not None else ""
        return f"device {culprit.device}{of_host}"
    name = words.say("a process of unknown rank") if rank is None else f"rank {rank}"
    if culprit.global_rank is None and culprit.comm is not None and rank is not None:
        name = words.say("{rank} of {comm}", rank=name, comm=culprit.comm)
    if rank is None and details:
        name, details = details[0], [words.say("rank unknown")]
    if culprit.device is not None:
        details.append(f"device {culprit.device}")
    if culprit.rank is not None and rank != culprit.rank and culprit.comm:
        details.append(words.say("{rank} of {comm}", rank=f"rank {culprit.rank}", comm=culprit.comm))
    if condition is not None:
        details.append(condition if (culprit.rank_basis or "").endswith("only rank") else f"{name} {condition}")
        kind = (culprit.rank_basis or "").removeprefix("assumed: ") if culprit.global_rank is None else ""
        name = f"local {name}" if kind == "local rank" else f"worker {rank}" if kind == "number of a worker" else name
    return f"{name} ({', '.join(details)})" if details else name


def suspect_name(suspect: Suspect, words: Words = ENGLISH) -> str:
    """``rank 3 (host:pid, device 3)``, as far as known."""
    known = Culprit(
        suspect.run,
        "",
        rank=suspect.rank,
        host=suspect.host,
        pid=suspect.pid,
        device=suspect.device,
        global_rank=suspect.rank,
    )
    return culprit_name(known, words)


def culprit_ranks(report: Report) -> set[tuple[int, int]]:
    """(run, global rank) of all culprits whose rank is known."""
    found: set[tuple[int, int]] = set()
    for culprit in (*report.culprits, *(c for run in report.runs for c in run.culprits)):
        rank = culprit.rank if culprit.global_rank is None else culprit.global_rank
        assumed = culprit.global_rank is None and (culprit.rank_basis in _CONDITIONS or culprit.comm is not None)
        if rank is not None and not assumed:
            found.add((culprit.run, rank))
    return found


def by_weight(report: Report) -> list[Finding]:
    """Findings by weight: errors first, among them those that a verdict rests on, then by confidence.

    Findings of equal weight keep the order of the analysis.
    """
    reasons = {report.reason, *(run.reason for run in report.runs)}
    return sorted(report.findings, key=lambda f: (-f.severity.weight, f.title not in reasons, -f.confidence))


def behind(report: Report) -> Finding | None:
    """The finding that the verdict of the report rests on; None where it rests on none."""
    worst = max(report.runs, key=lambda run: (run.verdict.badness, run.confidence), default=None)
    reasons = {report.reason.strip(), *([worst.reason.strip()] if worst else [])}
    told = [f for f in by_weight(report) if f.severity is not Severity.INFO]
    if (found := next((f for f in told if f.title.strip() in reasons), None)) is not None:
        return found
    if report.verdict is Verdict.INCONCLUSIVE:
        # beside what the input lacks, the reason names the finding to look at first; a note can be the reason, too
        named = (f for f in told if any(f.title.strip() in reason for reason in reasons))
        notes = (f for f in report.findings if f.title.strip() in reasons and CODES[f.code].breaks)
        return next(named, next(notes, None))
    broken = report.verdict in (Verdict.FAILED, Verdict.HUNG)
    return next((f for f in told if f.severity is Severity.ERROR), None) if broken else None


def advice(finding: Finding, words: Words = ENGLISH) -> str:
    """The next step of a finding. What another language has no words for stays English: the step of its code may not fit."""
    if finding.next_step == CODES[finding.code].next_step:
        return words.code(finding.code, "next_step")
    return words.sentence(finding.next_step)


def next_step(report: Report, words: Words = ENGLISH) -> str:
    """The next step for the verdict; empty if none is known. An inconclusive report without a finding asks for what its input lacks."""
    if (found := behind(report)) is not None:
        return advice(found, words) if found.next_step else ""
    if report.verdict is not Verdict.INCONCLUSIVE:
        return ""
    lacks = next((note.removeprefix(LACKS) for note in report.coverage.notes if note.startswith(LACKS)), "")
    if not lacks and (missing := report.coverage.missing_ranks):
        logs = "Give the log of rank {ranks}, too." if len(missing) == 1 else "Give the logs of ranks {ranks}, too."
        return words.say(logs, ranks=ranges(missing))
    verb = (
        "Take {lacks}."
        if lacks.startswith("the stacks")
        else "Find out {lacks}."
        if lacks.startswith("whether")
        else "Find {lacks}."
    )
    return words.say(verb, lacks=words.sentence(lacks)) if lacks else ""


def common_folder(report: Report) -> str:
    """The folder, with its slash, of all files that the findings and the table of ranks name; empty if there is none."""
    names = {item.file for finding in report.findings for item in finding.evidence}
    names |= {row.last.rpartition(":")[0] for row in report.ranks if row.last}
    folders = {os.path.dirname(name) for name in names}
    if not folders or "" in folders or len({folder.startswith("/") for folder in folders}) > 1:
        return ""
    folder = os.path.commonpath(folders)
    return f"{folder}/" if folder and folder != "/" else ""


def culprit_why(culprit: Culprit, report: Report) -> str:
    """What a culprit did; empty if the verdict of the report or of its run already says so."""
    reasons = {report.reason.strip(), *(run.reason.strip() for run in report.runs)}
    why = culprit.why.strip()
    rank = culprit.rank if culprit.global_rank is None else culprit.global_rank
    # a sentence about another rank does not say what this one did
    words = why.replace(",", " ").replace(":", " ").split()
    named = {number for word, number in pairwise(words) if word == "rank"}
    other = words[:1] == ["rank"] and str(rank) not in named
    return "" if why in reasons or other else why


def file_of(run: Run) -> str:
    """The file of a run that has one of its own, behind the number of the run."""
    return f" ({os.path.basename(run.files[0])})" if len(run.files) == 1 else ""


def run_number(index: int) -> int:
    """The number of a run for readers, who count from 1; the index in the data counts from 0."""
    return index + 1


@dataclass(frozen=True, slots=True)
class Fold:
    """Findings of one code and severity: those to show, and those only counted."""

    shown: tuple[Finding, ...]
    hidden: tuple[Finding, ...]

    def rest(self, words: Words = ENGLISH) -> str:
        """``and 10 more like this, about ranks 9, 40``; empty when nothing is hidden."""
        if not self.hidden:
            return ""
        parts = [words.say("and {count} more like this", count=len(self.hidden))]
        runs = {run_number(finding.run) for finding in self.hidden if finding.run is not None}
        if len(runs) > 1:
            parts.append(words.say("in runs {runs}", runs=ranges(runs)))
        else:
            ranks = {rank for finding in self.hidden for rank in (finding.culprits or finding.ranks)}
            if ranks:
                about_them = "about rank {ranks}" if len(ranks) == 1 else "about ranks {ranks}"
                parts.append(words.say(about_them, ranks=ranges(ranks)))
        return words.say(", ").join(parts)


def fold(report: Report, *, everything: bool = False) -> list[Fold]:
    """Findings by weight; if there are more than five of a kind, the first two stand for all of them."""
    kinds: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in by_weight(report):
        kinds.setdefault((finding.severity, finding.code), []).append(finding)
    folds = []
    for members in kinds.values():
        cut = len(members) if everything or len(members) <= FOLD_FINDINGS else _SHOWN_OF_FOLD
        folds.append(Fold(tuple(members[:cut]), tuple(members[cut:])))
    return folds


@dataclass(frozen=True, slots=True)
class FoldedCauses:
    """Groups of findings whose first has the same code and severity: those to show, and those only counted."""

    shown: tuple[Cause, ...]
    hidden: tuple[Cause, ...]


def fold_causes(report: Report, *, everything: bool = False) -> list[FoldedCauses]:
    """The groups of a report, that of the verdict first; if there are more than two of a kind, the first stands for all of them."""
    causes = list(report.causes)
    grouped = {n for cause in causes for n in (cause.finding, *cause.same, *cause.follows)}
    numbers = {id(finding): n for n, finding in enumerate(report.findings)}
    causes += [
        Cause(n) for f in by_weight(report) if (n := numbers[id(f)]) not in grouped and f.severity is not Severity.INFO
    ]
    primary = behind(report)
    order = {id(finding): n for n, finding in enumerate(by_weight(report))}
    causes.sort(key=lambda c: (report.findings[c.finding] is not primary, order[id(report.findings[c.finding])]))
    kinds: dict[tuple[Severity, str], list[Cause]] = {}
    for cause in causes:
        head = report.findings[cause.finding]
        kinds.setdefault((head.severity, head.code), []).append(cause)
    folds = []
    for members in kinds.values():
        cut = len(members) if everything or len(members) <= _FOLD_CAUSES else 1
        folds.append(FoldedCauses(tuple(members[:cut]), tuple(members[cut:])))
    return folds


def about(finding: Finding, *, runs: int, stage: bool = False, words: Words = ENGLISH) -> str:
    """Run, communicator and, if ``stage``, the stage of a finding; empty if there is nothing to say."""
    parts = []
    if runs > 1 and finding.run is not None:
        parts.append(words.say("run {run}", run=run_number(finding.run)))
    if finding.comm:
        parts.append(f"communicator {finding.comm}")
    if stage and (known := protocol_stage(finding.stage)):
        parts.append(words.say("stage {stage}", stage=known))
    return words.say(", ").join(parts)


def matching_rows(matching: Matching, words: Words = ENGLISH) -> list[tuple[str, MatchCount]]:
    """The kinds of exchange that occur, each with a readable name."""
    counts = [(words.say(name), getattr(matching, key)) for name, key in _EXCHANGES]
    return [(name, count) for name, count in counts if count.matched or count.pending or count.orphan]


def rerun_line(environment: dict[str, str]) -> str:
    """The environment as an assignment prefix, ready to paste before a command."""
    import shlex

    return " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
