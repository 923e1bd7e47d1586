"""torch's store, at which the processes of a job meet: where it is, and what to do when a process cannot use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from psmkit.analysis.facts import endings, lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import ranks_text, short
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.exceptions import Raised
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.tracebacks import frames_above
from psmkit.logparse.types import Event
from psmkit.model import Finding, Named
from psmkit.model.late import dataclass, regex
from psmkit.model.wording import RAISED

__all__ = ["SILENT", "UNREACHED", "Lost", "advice", "finding", "host", "lost_in", "never_opened", "tried"]

_SHOWN, _LONGEST = 4, 60
#: torch's exceptions for the sockets of the store, and its line about a connection that broke.
_TYPES = frozenset({"DistNetworkError", "DistStoreError"})
_SENT = "torch.store.send_failed"
#: A process cannot open the store, and what torch raises where a process without a group uses one.
_CANNOT_LISTEN, _NO_GROUP = "torch.store.cannot_listen", "Default process group has not been initialized"

UNREACHED = "The processes meet at torch's store before they make a communicator. This process ran and gave up: the store did not listen at that address, the network to it failed, or another process did not come."
LOST = "The processes meet at torch's store before they make a communicator. This process had reached it: the process that holds the store ended, or the network to it failed."
SILENT = "The first rank of a group puts the id of its communicator into torch's store at its first operation, and the others wait for it there. The process that asked had reached the store: within its limit that rank did not come so far, or it had ended."
#: Where torch's Python code uses the store and no communicator yet.
_FILES = ("torch/distributed/rendezvous.py", "torch/distributed/distributed_c10d.py")
_CALLS = frozenset(
    "init_process_group _set_sequence_number_for_group _store_based_barrier _tcp_rendezvous_handler _env_rendezvous_handler _create_c10d_store".split()
)
#: What people write in the place of a host.
_PLACEHOLDERS = frozenset("host hostname addr address ip master_addr master_ip xxx xxxx".split())
#: The address of the store as a program gives it to init_process_group().
_URL = regex(r"\btcp://(\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):(\d{1,5})\b")


@dataclass(frozen=True, slots=True)
class Lost:
    """A process that could not reach the store, or lost it; ``address`` is that of the store, if the traceback shows it."""

    address: str | None
    reached: bool

    @property
    def what(self) -> str:
        """What happened, after the name of the process."""
        at = f" at {self.address}" if self.address is not None else ""
        return f"lost torch's store{at}" if self.reached else f"could not reach torch's store{at}"


def finding(job: Job, run: int | None, items: Sequence[Raised], ranks: Sequence[int], lost: Lost) -> Finding:
    """Processes that lost the store, or could not reach it. Either end of the connection can be at fault."""
    there = [Named(host=host(lost.address), either=True)] if lost.address is not None else []
    ours = [Named(rank, either=True) for rank in ranks] if len(ranks) == 1 and there else []
    return new_finding(
        job,
        "PSM201",
        run=run,
        title=f"{ranks_text(ranks) if ranks else 'a process'} {lost.what}: {short(items[0].text, _LONGEST)}",
        confidence=0.7,
        explanation=LOST if lost.reached else UNREACHED,
        next_step=advice(lost.address),
        refs=[i.event.ref for i in items[:_SHOWN]],
        ranks=ranks,
        named=[*ours, *(there if ours else (replace(n, peer_unnamed=True) for n in there))],
        stage=RAISED,
    )


def lost_in(job: Job, run: int | None, event: Event, text: str) -> Lost | None:
    """What an exception says of the store: a bare error of a socket, below torch's functions that use nothing else."""
    kind = text.partition(":")[0].rpartition(".")[2]
    if kind in _TYPES:
        remote = {
            (str(e.fields["remote"]), e.fields.get("port")) for e in job.events(_SENT, run=run) if "remote" in e.fields
        }
        address = "{}:{}".format(*remote.pop()) if len(remote) == 1 else None
        return Lost(address, reached="connect" not in text)
    broke = faults.phrase(job, "a connection broke", text) is not None
    if not broke and "timed out" not in text.lower():
        return None
    frames = frames_above(job, event)
    if not any(str(f.fields.get("file", "")).endswith(_FILES) and f.fields.get("fn") in _CALLS for f in frames):
        return None
    found = {m for f in frames if (m := _URL.search(_source(job, f))) is not None}
    addresses = {f"{m[1]}:{m[2]}" for m in found}
    return Lost(addresses.pop() if len(addresses) == 1 else None, reached=broke and "refused" not in text.lower())


def _source(job: Job, frame: Event) -> str:
    """The line below a frame: its source code."""
    ref = lines.below(job, frame.ref)
    return "".join(e.text for e in job.quotes.of(ref)) if ref is not None else ""


def host(address: object) -> str:
    """The host of the address that a process connects to; empty if the line has none, or only a word that stands for one."""
    found = str(address or "").strip("[(. ").split(",")[0].strip("'\" ]")
    if found.rpartition(":")[2].isdigit() and found.count(":") == 1:
        found = found.rpartition(":")[0].strip("[]")
    return "" if found.strip("<>$").lower() in _PLACEHOLDERS else found


def tried(job: Job, run: int | None, address: object) -> str:
    """The host of the store. A name of digits only is none: it stands for the one address that torch tried at that port."""
    name = host(address)
    if not name.isdigit():
        return name
    addresses = {
        str(e.fields.get("host", "")).removeprefix("::ffff:")
        for e in job.events("torch.store.connect_failed", run=run)
        if str(e.fields.get("port")) in str(address).split(", ")[1:]
    }
    return addresses.pop() if len(addresses) == 1 else name


def advice(address: object) -> str:
    """What to do about a store that a process cannot reach, by its address."""
    name = host(address)
    if name in ("localhost", "::1") or name.startswith("127."):
        return "The address is that of the host itself: check that rank 0 runs on the same host and listens there (ss -ltnp). For a job of several hosts, set MASTER_ADDR to the host of rank 0."
    at = f" at {address}" if address is not None else ""
    return f"Check that the process that hosts the store{at} (rank 0 or the launcher) runs and listens there, that MASTER_ADDR and MASTER_PORT are the same on all ranks, and that no firewall or proxy is between them."


def never_opened(job: Job, run: int | None) -> list[Event]:
    """The lines of a process that could not open the store and went on without a process group: what its peers print below follows from it.

    A process that finds the store of another one in its place goes on with a group.
    """
    failed = job.events(_CANNOT_LISTEN, run=run)
    first = min((e.ref.seq for e in endings.gave_up(job, run)), default=-1)
    alone = [
        e
        for e in job.events("sys.python.exception", run=run)
        if _NO_GROUP in str(e.fields.get("what")) and (not failed or e.ref.seq > failed[0].ref.seq)
    ]
    return failed if failed and alone and failed[0].ref.seq < alone[0].ref.seq < first else []
