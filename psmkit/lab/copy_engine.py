"""Whether NCCL's copy engines did the calls of a run that asked for them, by NCCL's own lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psmkit import logparse
from psmkit.lab import transfer
from psmkit.lab.emulation import Emulation
from psmkit.model.errors import PsmkitError
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.lab.nccl import NcclCase

__all__ = ["CALLS", "seen"]

#: The collectives that copy engines can do, by their patterns.
CALLS = {"allgather": "AllGather", "alltoall-coll": "AlltoAll", "gather": "Gather", "scatter": "Scatter"}
_ONE_SIDED = "put-signal"
#: Rank 0 prints one of the first two for each call, from 2.29 on. Each rank prints the others once for each communicator that needs them.
_CALL, _OVER_NODES, _SET_UP = "ce.local", "ce.coll", "ce.init"
#: Of one-sided calls: within a node, and between nodes.
_ONE_SIDED_SET_UP, _PROXY_SET_UP = "rma.copy_engine", "rma.setup"
_NAMES = {_CALL, _OVER_NODES, _SET_UP, _ONE_SIDED_SET_UP, _PROXY_SET_UP}
_KERNELS = frozenset({"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"})


def seen(cases: Sequence[NcclCase], ranks: int, folder: Path, nodes: int = 1) -> dict[str, Any]:
    """What a run shows of its copy engines: ``{"engine": ...}`` with the number of calls that asked for them (``asked``) and went by them
    (``shown``), those of them that also went over nodes by an RMA plugin (``hierarchical``), those that did not as texts (``missing``), and the
    number of launched kernels. Empty if no call asked for them.

    A call asks for copy engines if its buffers are windows, and the policy of its communicator is ``zero``, or if it is one-sided. A captured call counts
    once, however often its graph is launched.
    """
    collective = [case for case in cases if case.windows and case.cta_policy == "zero" and case.pattern in CALLS]
    one_sided = [case for case in cases if case.pattern == _ONE_SIDED and ranks > 1]
    wanted = Counter[tuple[str, int]]()
    for case in collective:
        wanted[CALLS[case.pattern], case.size] += case.iters
    for case in one_sided:
        wanted[_ONE_SIDED, case.size] += case.iters
    if not wanted.total():
        return {}
    lines = [_lines(folder, rank) for rank in range(ranks)]
    printed, hierarchical = (
        Counter((str(fields["op"]), int(fields["size"])) for name, fields in lines[0] if name in names)
        for names in ((_CALL, _OVER_NODES), (_OVER_NODES,))
    )
    # what prints no line for a call, 2.28 and one-sided calls, says only that it set its engines up for the first one
    done = Counter(printed)
    # one-sided calls need what reaches their peers: copy engines on a node, a proxy to others
    peers = [_ONE_SIDED_SET_UP] * (ranks > nodes) + [_PROXY_SET_UP] * (nodes > 1)
    for own, names in ((collective, [_SET_UP]), (one_sided, peers)):
        fewest = min(sum(name == one for one, _ in mine) for mine in lines for name in names)
        ready = fewest >= _communicators(cases, own)
        for case in own if ready and not (own is collective and printed) else ():
            key = CALLS.get(case.pattern, _ONE_SIDED), case.size
            done[key] = wanted[key]
    missing = [
        f"{op} of {counted(size, 'byte')}: {number - done[op, size]} of {counted(number, 'call')}"
        for (op, size), number in sorted(wanted.items())
        if done[op, size] < number
    ]
    return {
        "engine": {
            "asked": wanted.total(),
            "shown": (wanted & done).total(),
            "hierarchical": (wanted & hierarchical).total(),
            "missing": missing,
            "lines": bool(printed),
            "kernels": sum(c.calls for c in Emulation(folder / "records").calls() if c.function in _KERNELS),
        }
    }


def _communicators(cases: Sequence[NcclCase], own: Sequence[NcclCase]) -> int:
    """How many communicators some of the cases have: a case that keeps its communicator leaves it to the next one."""
    numbers, now = set(), 0
    for case in cases:
        if case in own and case.iters:
            numbers.add(now)
        now += not case.keep
    return len(numbers)


def _lines(folder: Path, rank: int) -> list[tuple[str, dict[str, Any]]]:
    path = transfer.log_file(folder, rank)
    if not path.is_file() or not path.stat().st_size:
        return []
    try:
        batches: Iterable[Any] = logparse.events([str(path)], names=_NAMES)
        return [(event.name, dict(event.fields)) for batch in batches for event in batch]
    except PsmkitError:  # nothing that is a log
        return []
