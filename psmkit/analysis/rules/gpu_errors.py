"""Errors of GPUs: CUDA errors that a program prints, and Xid lines of the kernel."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace

from psmkit.analysis.facts import endings, gpus, lines, outside
from psmkit.analysis.facts.device_memory import room_of
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import differing, joined, named_text, ranks_text
from psmkit.analysis.facts.ranks import ASSUMED
from psmkit.analysis.facts.tags import pid_of_tag
from psmkit.analysis.inference import faults, said
from psmkit.analysis.inference.exceptions import thrower
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.process_groups import OF_GROUP, group_rank
from psmkit.analysis.inference.together import came_before
from psmkit.analysis.inference.tracebacks import frames_above
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding, Named, Severity
from psmkit.model.late import regex

__all__ = ["find"]

_SHOWN = 2
#: A setting of DeepSpeed for the size of its buckets, and what to do about it.
_BUCKET = regex(r"\b(?:reduce|allgather)_bucket_size\b")
_SMALLER_BUCKET = "Make {0} smaller (zero_optimization in DeepSpeed's configuration): the request that failed is this bucket, and no batch size changes it. If that does not help, use less memory per device."


@rule(order=34)
def find(job: Job) -> list[Finding]:
    """PSM405 and PSM509."""
    return [finding for run in endings.runs(job) for part in (_cuda, _xids, _faults) for finding in part(job, run)]


def _cuda(job: Job, run: int | None) -> list[Finding]:
    out: list[Finding] = []
    for names, code, text in (
        (("sys.cuda.error", "torch.watchdog.cuda_error"), "PSM405", "CUDA error"),
        (("sys.cuda.oom",), "PSM509", "out of device memory"),
    ):
        by_rank: dict[int | Named | None, Event] = {}
        loose: list[Event] = []  # of no known rank
        for event in job.events(*names):
            if job.run_of_event(event) == run and not endings.went_on(
                job, event, outside.proc_of_event(job, event), run
            ):
                rank = outside.global_rank(job, event)
                known = (group_rank(event) or _place(job, event)) if rank is None else rank
                by_rank.setdefault(known, event)
                loose += [event] if known is None else []
        if not by_rank:
            continue
        ranks = sorted(r for r in by_rank if isinstance(r, int))
        members = [r for r in by_rank if isinstance(r, Named)] if not ranks else []
        suspects = _reported_gpus(job, run, by_rank) if code == "PSM405" else {}
        process = thrower(job, run, loose) if by_rank.keys() == {None} else []
        # a rank that is being torn down after a timeout fails in many ways
        after = all(e.name.startswith("sys.") and endings.timed_out(job, e) for e in by_rank.values())
        trapped = all(endings.trapped(job, e) for e in by_rank.values())
        giver, after = "a kernel of DeepEP" if trapped else "the watchdog", after or trapped
        first = min(by_rank.values(), key=lambda e: (e.stream, e.ref.seq))
        told = str(first.fields.get("error", first.fields.get("size", "")))[:120]
        who = ranks_text(ranks) if ranks else joined(named_text(m) for m in members[:_SHOWN] or process) or "a rank"
        room = room_of(first) if code == "PSM509" else None
        if lines.catalogue(job).phrase("out of memory", told) is not None:
            code = "PSM509"
        # A rank whose error came later may only see what the first one did to the memory that they share.
        culprits = (
            ranks
            if len(ranks) == 1 or code == "PSM509"
            else [rank for rank in ranks if rank in suspects] or _at_once(job, by_rank, first)
        )
        hardware = _told_by_driver(suspects) if not after else ""
        out.append(
            new_finding(
                job,
                code,
                run=run,
                title=f"{text} on {who}"
                + (f": {room.told}" if room is not None else f": {told}" if told else "")
                + (differing(str(e.fields.get("error", "")) for e in by_rank.values()) if room is None else "")
                + hardware
                + (f", after {giver} gave up: a consequence" if after else ""),
                severity=Severity.WARNING if after else None,
                confidence=0.9 if ranks else 0.7,
                explanation=(OF_GROUP if any(m.comm is not None for m in members) else None)
                or ("The driver reports an error of these GPUs or of their links." if hardware else None)
                if room is None
                else room.explained,
                next_step=_bucket(job, first) or (room.next_step if room is not None else _DRAIN if hardware else None),
                refs=[
                    first.ref,
                    *(x.ref for x in list(suspects.values())[:_SHOWN]),
                    *(e.ref for e in list(by_rank.values())[:3]),
                ],
                ranks=ranks,
                procs=[p for e in by_rank.values() if (p := outside.proc_of_event(job, e)) is not None],
                culprits=[] if after else culprits,
                named=(_blamed(members) or process[:1]) if not after else [],
                stage="error",
            )
        )
    return out


def _at_once(job: Job, by_rank: Mapping[int | Named | None, Event], first: Event) -> list[int]:
    """The ranks with the first error of which nothing shows that it came later."""
    what = first.fields.get("error")
    alike = {r: e for r, e in by_rank.items() if isinstance(r, int) and e.fields.get("error") == what}
    return sorted(r for r, e in alike.items() if not came_before(job, first, e))


def _reported_gpus(job: Job, run: int | None, by_rank: Mapping[int | Named | None, Event]) -> dict[int | None, Event]:
    """The Xid of each rank whose GPU the driver reports as faulty, by the process that the driver names beside this GPU; None: of no known rank."""
    pids: dict[str, int] = {}
    for event in job.events("sys.kernel.xid"):
        if isinstance(pid := event.fields.get("pid"), int):
            pids.setdefault(str(event.fields.get("bus", "")), pid)
    tagged = {pid: rank for rank, e in by_rank.items() if isinstance(rank, int) and (pid := pid_of_tag(e.tag))}
    out: dict[int | None, Event] = {}
    for (_, bus, number), event in _reported(job, run)[0].items():
        if number in gpus.HARD_XIDS:
            pid = event.fields.get("pid", pids.get(bus))
            rank = gpus.rank_of_bus(job, run, bus, pid, event.fields.get("host"))
            out.setdefault(tagged.get(pid) if rank is None and isinstance(pid, int) else rank, event)
    return out


def _told_by_driver(suspects: Mapping[int | None, Event]) -> str:
    """What the driver reports of the GPUs, for the title."""
    told = [
        f"Xid {e.fields['xid']} of the GPU at {e.fields.get('bus')}" + (f" (rank {rank})" if rank is not None else "")
        for rank, e in suspects.items()
    ]
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return f"; the driver reports {joined(told[:_SHOWN])}{more}" if told else ""


def _bucket(job: Job, event: Event) -> str | None:
    """What to do where DeepSpeed asked for a bucket, whose size is a setting, as the source line of the innermost frame shows; None elsewhere."""
    frames = frames_above(job, event)
    ref = lines.below(job, frames[-1].ref) if frames and "deepspeed" in str(frames[-1].fields.get("file")) else None
    found = _BUCKET.search("".join(e.text for e in job.quotes.of(ref)))
    return _SMALLER_BUCKET.format(found[0]) if found is not None else None


def _place(job: Job, event: Event) -> Named | None:
    """The process in the tag of a line, and the device that the line names, as the process numbers it."""
    device = event.fields.get("device")
    if not isinstance(device, int):
        return None
    process = outside.tagged_process(job, [event])
    return replace(process[0], device=device) if process else Named(device=device, basis=f"{ASSUMED}own devices")


def _blamed(members: list[Named]) -> list[Named]:
    """The first of several ranks, and of devices at most two: more of them fail for the same reason."""
    if members and members[0].rank is None:
        return members if len(members) <= _SHOWN else []
    return members[:1]


def _faults(job: Job, run: int | None) -> list[Finding]:
    """AMD's GPUs that used an address that is not theirs, as ROCm's runtime and the driver say."""
    by_gpu: dict[str, Event] = {}
    for event in job.events("sys.hsa.memory_fault", "sys.kernel.amdgpu.page_fault"):
        node, bus = event.fields.get("node"), str(event.fields.get("bus", "")).rstrip(":")
        if job.run_of_event(event) == run and not endings.went_on(job, event, outside.proc_of_event(job, event), run):
            by_gpu.setdefault(bus or f"node-{node}", event)
    if not by_gpu:
        return []
    first = next(iter(by_gpu.values()))
    entry, what = faults.message(job, first.name), str(first.fields.get("what", "")).rstrip(".")
    which = next(iter(by_gpu))
    wrong = (
        f"{len(by_gpu)} GPUs, {which} first, used addresses that they have no access to"
        if len(by_gpu) > 1
        else f"GPU {which} used an address that it has no access to"
    )
    known = {gpus.rank_of_bus(job, run, gpu, None, e.fields.get("host")) for gpu, e in by_gpu.items() if ":" in gpu}
    ranks = sorted(rank for rank in known if rank is not None)
    places = [
        Named(host=str(host) if (host := e.fields.get("host")) is not None else None, gpu=gpu)
        for gpu, e in by_gpu.items()
    ]
    return [
        new_finding(
            job,
            "PSM405",
            run=run,
            title=wrong + (f" ({what[0].lower()}{what[1:]})" if what and what != "Unknown" else ""),
            confidence=0.9,
            explanation=entry.meaning if entry is not None else None,
            next_step=entry.next_step if entry is not None else None,
            refs=[event.ref for event in list(by_gpu.values())[:3]],
            ranks=ranks,
            culprits=ranks if len(ranks) == 1 else [],
            named=places if not ranks and len(places) <= _SHOWN else [],
            stage="error",
        )
    ]


#: The kernel's message about a GPU that is gone, and so many lines of which it may consist.
_LOST, _PARTS = "sys.kernel.gpu_lost", 3
_MOST_DIGITS = 4
_CLEANUP = 45  # the driver ends the work of a process, after an error or because the process ended
_CAUSED = "caused by previous Xid "
_DRAIN = "Drain the node and check the GPU and its links (nvidia-smi -q, nvidia-bug-report)."


def _xids(job: Job, run: int | None) -> list[Finding]:
    out: list[Finding] = []
    reported, caused = _reported(job, run)
    for (node, bus, number), event in {**reported, **caused}.items():
        what = str(event.fields.get("what", ""))
        host, pid = event.fields.get("host"), event.fields.get("pid")
        rank = gpus.rank_of_bus(job, run, bus, pid, host)
        # the text of some names the GPU by its number; the process is then the one that asked it
        gpu = what.partition(" from GPU")[2].partition(" ")[0]
        device = int(gpu) if gpu.isdecimal() and len(gpu) <= _MOST_DIGITS else None
        place = Named(
            host=str(host) if host is not None else None,
            pid=pid if isinstance(pid, int) and device is None else None,
            device=device,
            gpu=bus if ":" in bus and device is None else None,
        )
        hard = number in gpus.HARD_XIDS
        out.append(
            new_finding(
                job,
                "PSM405",
                run=run,
                title=f"the GPU at {bus}"
                + (f" of rank {rank}" if rank is not None else "")
                + (
                    f" reported Xid {number}: {textwrap.shorten(what, 100, placeholder='…')}"
                    if (node, bus, number) in reported
                    else f" had Xid {number}: Xid {event.fields['xid']} names it as the cause"
                ),
                severity=Severity.ERROR
                if (hard or number in gpus.OWN_XIDS) and not endings.done(job, run)
                else Severity.WARNING,
                confidence=0.9 if rank is not None else 0.75 if hard else 0.6,
                explanation="The driver reports an error of this GPU or of its link. Work on this GPU fails or never ends."
                if hard
                else "The driver reports a fault of the work on this GPU. The program or a library caused it, or the GPU is defective.",
                next_step=_DRAIN
                if hard
                else "Run the rank under compute-sanitizer. If other programs show the same Xid, check the GPU.",
                refs=[event.ref],
                ranks=[rank] if rank is not None else [],
                culprits=[rank] if rank is not None else [],
                named=[place] if rank is None and place != Named() else [],
                stage="error",
            )
        )
    hard_ = any(number in gpus.HARD_XIDS for *_, number in (*reported, *caused))
    return out if hard_ else [*out, *_unreachable(job, run)]


_Xids = dict[tuple[str | None, str, int], Event]


def _reported(job: Job, run: int | None) -> tuple[_Xids, _Xids]:
    """The Xids of each GPU of each host, and those that only the clean-up after them names, with the first line of each."""
    own: _Xids = {}
    caused: _Xids = {}
    for event in job.events("sys.kernel.xid"):
        number, bus = event.fields.get("xid"), str(event.fields.get("bus", ""))
        if job.run_of_event(event) != run or not isinstance(number, int):
            continue
        node = str(host) if (host := event.fields.get("host")) is not None else None
        _, found, previous = str(event.fields.get("what", "")).partition(_CAUSED)
        digits = previous.partition(" ")[0].rstrip(".,")
        if digits.isdecimal() and len(digits) <= _MOST_DIGITS:
            caused.setdefault((node, bus, int(digits)), event)
        elif number != _CLEANUP and not found:
            own.setdefault((node, bus, number), event)
    return own, {key: event for key, event in caused.items() if key not in own and key[2] != _CLEANUP}


def _unreachable(job: Job, run: int | None) -> list[Finding]:
    """GPUs that the driver lost, or that nvidia-smi cannot reach."""
    out: list[Finding] = []
    for event in job.events(_LOST, "sys.nvidia_smi.lost", "sys.nvidia_smi.no_handle"):
        if job.run_of_event(event) != run:
            continue
        bus, error, index = event.fields.get("bus"), event.fields.get("error"), event.fields.get("index")
        if bus is None:  # a message in several lines names it above
            bus = next((e.fields["bus"] for e in job.events("sys.kernel.gpu_at") if _just_above(e, event)), None)
        rank = gpus.rank_of_bus(job, run, str(bus), None) if bus is not None else None
        gpu = f"the GPU at {bus}" if bus is not None else "a GPU"
        gpu += f" of rank {rank}" if rank is not None else ""
        entry = faults.message(job, event.name)
        out.append(
            new_finding(
                job,
                "PSM405",
                run=run,
                title=f"nvidia-smi cannot get a handle of {gpu}: {said.short(error)}"
                if error is not None
                else f"{gpu} fell off the bus, as the kernel says"
                if event.name == _LOST
                else f"{gpu} is lost, as nvidia-smi says",
                severity=Severity.WARNING if endings.went_on(job, event, None, run) else None,
                confidence=0.6 if error is not None else 0.8,
                explanation=f"{entry.meaning if entry is not None else ''} Work on a GPU that the driver cannot reach fails or never ends.",
                next_step=entry.next_step if entry is not None and error is not None else _DRAIN,
                refs=[event.ref],
                ranks=[rank] if rank is not None else [],
                culprits=[rank] if rank is not None else [],
                named=_place_of(event, bus, index) if rank is None else [],
                stage="error",
            )
        )
    return out


def _just_above(named: Event, lost: Event) -> bool:
    return named.stream == lost.stream and 0 < lost.ref.seq - named.ref.seq < _PARTS


def _place_of(event: Event, bus: object, index: object) -> list[Named]:
    """The GPU that the line names: as the process numbers it, or by its address."""
    host = event.fields.get("host")
    if isinstance(index, int):
        return [Named(device=index)]
    return [Named(host=str(host) if host is not None else None, gpu=str(bus))] if bus is not None else []
