"""What a case was taken from: sources, settings, and each guess, for the README and case.toml."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from psmkit.analysis.facts import foreign
from psmkit.analysis.facts.job import Job

__all__ = ["DEFAULTS", "Told", "settings"]

#: What is assumed of a communicator where no input tells it: NCCL's defaults.
DEFAULTS = {
    "nodes": 1,
    "p2p_channels": 32,
    "p2p_channels_per_peer": 2,
    "work_fifo_bytes": 1 << 20,
    "p2p_chunk_bytes": 1 << 17,
}
_FIELDS = (
    ("p2p_channels", "p2p", "init.channels", "numbers of p2p channels:"),
    ("p2p_channels_per_peer", "p2p_peer", "init.channels", "numbers of p2p channels per peer:"),
    ("work_fifo_bytes", "bytes", "init.work_fifo", "work FIFOs of bytes"),
    ("p2p_chunk_bytes", "chunk", "init.p2p_chunk", "chunks of bytes"),
    ("nodes", "nodes", "comm.shape", "numbers of nodes:"),
    ("ranks", "nranks", "comm.shape", "communicators of ranks"),
)


@dataclass(slots=True)
class Told:
    """What inputs tell of the planner's configuration.

    Attributes:
        values: fields of a ``Config``.
        several: fields of which the inputs show several values, with a sentence about them.
        sources: where a value is from that no line shows, a sentence each.
    """

    values: dict[str, int] = field(default_factory=dict)
    several: dict[str, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)

    def tell(self, name: str, what: str, values: Iterable[int | None], source: str = "the log shows") -> None:
        """Take a value of a field; of several, none."""
        found = sorted({value for value in values if value is not None})
        if len(found) == 1:
            self.values[name] = found[0]
        elif found:
            self.several[name] = f"{source} {what} {', '.join(map(str, found[:8]))}"


def settings(job: Job) -> Told:
    """The release, the channels and the work FIFO that logs show; the release of dumps where no line shows one."""
    from psmkit.plan.releases import number, version

    out = Told()
    versions = {number(str(text)) for _, _, text in job.values("version", "init.version", "init.version_line")}
    out.tell("release", "releases of NCCL with the codes", versions)
    if not versions - {None}:
        dumped = {number(dump.nccl) for item in foreign.inputs(job) for dump in item.flights if dump.nccl} - {None}
        out.tell("release", "releases of NCCL with the codes", dumped, source="the dumps show")
        if "release" in out.values:
            text = version(out.values["release"])
            out.sources.append(
                f"the release of NCCL, {text}, from nccl_version or comm_lib_version of flight recorder dumps"
            )
    for name, of_line, message, what in _FIELDS:
        found = {int(value) for _, _, value in job.values(of_line, message) if isinstance(value, int) and value > 0}
        out.tell(name, what, found)
    if "ranks" not in out.values and "ranks" not in out.several:
        sizes = {instance.nranks for members in job.members.values() for instance in members if instance.nranks > 0}
        out.tell("ranks", "communicators of ranks", sizes)
    return out
