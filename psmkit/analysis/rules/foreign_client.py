"""Clients that are no rank of the job. On NCCL's ports the wrong magic is the first eight bytes that they sent, and tells who they are; at
libpsm's proxy the kernel names their process and user."""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts import endings
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, words
from psmkit.analysis.facts.printed import number
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.known import issue_of
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Severity

__all__ = ["decode", "find"]

_HTTP = ("GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "OPTIONS ", "PATCH ", "TRACE ", "CONNECT ")
_MASK = (1 << 64) - 1


def decode(magic: int) -> tuple[str, str]:
    """The bytes of a wrong magic as text, and the protocol that they start. NCCL compares little-endian integers."""
    raw = (magic & _MASK).to_bytes(8, "little")
    shown = "".join(chr(b) if 32 <= b < 127 else "." for b in raw)
    text = raw.decode("latin-1")
    if raw == bytes(8):
        return shown, "zeros: a port scan, a health check, or a peer that closed at once"
    if text.startswith("GET /met"):
        return shown, "an HTTP request, probably of a Prometheus scraper"
    if text.startswith(("GET /hea", "GET /rea", "GET /liv")):
        return shown, "an HTTP health check"
    if text.startswith(_HTTP):
        return shown, "an HTTP request"
    if text.startswith("PRI * HT"):
        return shown, "HTTP/2 or gRPC"
    if text.startswith("SSH-"):
        return shown, "SSH"
    if raw[0] in (0x16, 0x15) and raw[1] == 3 and raw[2] <= 4:
        return shown, "a TLS handshake"
    if raw[0] & 0x80 and raw[2] == 1 and raw[3] in (0, 3):
        return shown, "an old SSL hello"
    if text.startswith(("*1\r\n", "*2\r\n", "*3\r\n", "PING", "INFO\r")):
        return shown, "Redis"
    if text.startswith(("EHLO", "HELO", "QUIT", "HELP")):
        return shown, "a mail client or a port scanner"
    if text.startswith("RFB "):
        return shown, "VNC"
    if raw[:4] == b"\x03\x00\x00" + raw[3:4] and raw[5:6] == b"\xe0":
        return shown, "a remote desktop client or a port scanner"
    if raw[:4] == b"\x00\x00\x00\x00":
        return shown, "bytes that no known protocol begins with"
    if all(32 <= b < 127 or b in (9, 10, 13) for b in raw):
        return shown, "text of an unknown protocol"
    return shown, "another NCCL job or another release, or an unknown binary protocol"


@rule(order=80)
def find(job: Job) -> list[Finding]:
    """PSM106, one finding for each process that a foreign client reached."""
    found: dict[int, list[Event]] = defaultdict(list)
    for event in job.events("socket.magic.wrong"):
        if isinstance(event.fields.get("magic"), int) and event.proc >= 0:
            found[event.proc].append(event)
    strangers: dict[int, list[Event]] = defaultdict(list)
    for event in job.events("libpsm.stranger"):
        if event.proc >= 0:
            strangers[event.proc].append(event)
    return [_finding(job, proc, events) for proc, events in sorted(found.items())] + [
        _stranger(job, proc, events) for proc, events in sorted(strangers.items())
    ]


def _stranger(job: Job, proc: int, events: list[Event]) -> Finding:
    """A process of another user at the proxy of a rank."""
    first = events[0]
    uids = sorted({uid for e in events if (uid := number(e.fields, "uid")) is not None})
    pids = sorted({pid for e in events if (pid := number(e.fields, "pid")) is not None})
    who = (
        f"process {pids[0]} of uid {uids[0]}"
        if len(pids) == len(uids) == 1
        else f"{len(pids)} processes of uid {words(map(str, uids))}"
    )
    # Version 0.1 closed the descriptors that came with it in the thread that answers.
    stopped = "what" not in first.fields and not torn_down(job, proc) and _unanswered(job, proc)
    explanation = "The proxy refused the message and continued."
    if "what" not in first.fields:
        explanation = (
            "The proxy refused the message. Version 0.1 of libpsm closes the descriptors that come with a refused message in the thread that answers the "
            "ranks, and the descriptor of a socket with SO_LINGER stops that thread."
        )
    if stopped:
        explanation += f" {name_of(job, proc)} no longer answers its proxy calls."
    return new_finding(
        job,
        "PSM106",
        run=job.run_of(proc),
        title=f"{who} reached the proxy of {name_of(job, proc)}, which runs as uid {first.fields.get('own')}"
        + (", and stopped it" if stopped else ", and was refused"),
        severity=Severity.ERROR if stopped else Severity.WARNING,
        confidence=0.85 if stopped else 0.7,
        explanation=explanation,
        next_step="Run all ranks as one user. If the process is not a rank of this job, ask its owner what it is"
        + (", and use a newer libpsm." if stopped else "."),
        refs=[e.ref for e in events[:3]],
        procs=[proc],
        # What the others say of this rank follows from it.
        stage="stopped" if stopped else None,
    )


def _unanswered(job: Job, proc: int) -> bool:
    """Whether a rank asked this process for something and has no answer in its log."""
    calls = any(c.service == proc and c.state not in ("received", "matched") for c in job.scan.calls)
    return calls or any(x.server == proc and x.done is None for x in job.scan.fds)


def _finding(job: Job, proc: int, events: list[Event]) -> Finding:
    first = events[0]
    shown, protocol = decode(int(first.fields["magic"]))
    run = job.run_of(proc)
    # the thread that accepted it may no longer serve its ranks
    after, silence = _afterwards(job, first)
    survived = torn_down(job, proc) or (run is not None and _went_on(job, proc, events[-1]))
    # a process that prints on in other threads is not shown to wait, whatever the accepting thread does
    survived = survived or (
        _printed_on(job, events[-1]) and not _unanswered(job, proc) and not endings.gave_up(job, run)
    )
    rank = job.rank_of_thread(first)
    times = len(events)
    sender = first.fields.get("addr")
    source = f" from {sender}" if isinstance(sender, str) else ""
    return new_finding(
        job,
        "PSM106",
        run=run,
        title=f'a client that is not NCCL{source} reached a port of {name_of(job, proc)}: "{shown}" is {protocol}',
        severity=Severity.WARNING if survived else Severity.ERROR,
        confidence=0.7 if survived else 0.85,
        explanation=(
            f"The first eight bytes of a new connection were {int(first.fields['magic']) & _MASK:#x}, little-endian "
            f'"{shown}"{f", {times} times" if times > 1 else ""}. NCCL closes such a connection and '
            f"accepts again. A thread that waits for the next connection may serve nobody until it comes. {after}"
        ),
        refs=[first.ref, silence, *(e.ref for e in events[1:3])],
        procs=[proc],
        culprits=[rank] if rank is not None and not survived else (),
        stage="error" if not survived else None,
        known_issue=issue_of(job, first) or "NVIDIA/nccl#1808",
    )


def _afterwards(job: Job, event: Event) -> tuple[str, Ref | None]:
    if not 0 <= event.thread < len(job.scan.threads):
        return "", None
    thread = job.scan.threads[event.thread]
    # the return codes below the warning belong to the same process
    own = [f.ref.seq for c in faults.of_proc(job, event.proc) for f in c.faults if f.event.thread == event.thread]
    if thread.last.seq > max(own, default=event.ref.seq):
        return "The thread that accepted it printed more lines later.", thread.last
    return "The thread that accepted it printed nothing more.", None


def _printed_on(job: Job, event: Event) -> bool:
    """Whether another thread of the process than the one that accepted the client printed more lines, but for the threads of RAS."""
    served = {e.thread for e in job.events("ras.")}
    return any(
        thread.proc == event.proc
        and at != event.thread
        and at not in served
        and job.device_on(at) in (None, event.device)
        and thread.last.seq > event.ref.seq
        for at, thread in enumerate(job.scan.threads)
    )


def _went_on(job: Job, proc: int, event: Event) -> bool:
    """Whether this process finished an init or called something after the client connected."""
    for instance in job.instances_of.get(proc, ()):
        done = (instance.complete, instance.end)
        if any(ref is not None and ref.seq > event.ref.seq for ref in done):
            return True
    return False
