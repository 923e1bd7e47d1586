"""Losses with a known truth, for tests: the tail of one rank, the end of each file, a rank that stops and everybody who then waits."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from psmkit.synth.scenarios import PSM_SETTINGS
from tests.loggen import DIALECTS, Fault, Job, Plan
from tests.mutilate import Files

__all__ = ["SITES", "boundaries", "cut_each", "lose_tail", "merged_tail", "stalled"]

#: Lines after which a rank has done another step of the protocol, by kind.
_STEP = re.compile(
    rb"(Init START|Init COMPLETE|Destroy COMPLETE|Bootstrap timings|Trees|Connected all|New proxy \w+ connection|operation=\w+|Connected to proxy|Connection to proxy"
    rb"|matches expected|ProxyCall UDS(?=.* - DONE)|ProxyCall UDS|ClientGetFd|ncclProxyMsgGetFd|proxyGetFd received|Imported shareable|imported shareable"
    rb"|All(?:Reduce|Gather): opCount|Send: opCount|Recv: opCount|addP2pToPlan|keep-alive)"
)
#: Where a rank can stop, as the simulator names the places.
SITES = (
    "bootstrap",
    "address",
    "ring",
    "topology",
    "setup recv",
    "setup send",
    "service.Init",
    "service.Setup",
    "service.Connect",
    "uds",
    "ask fd",
    "import",
    "connected",
    "collective",
)


def boundaries(data: bytes, every: bool = False) -> Iterator[int]:
    """Numbers of lines to keep: after the first, the middle and the last line of each kind of step, or after every line."""
    lines = data.split(b"\n")[:-1]
    if every:
        yield from range(1, len(lines))
        return
    kinds: dict[bytes, list[int]] = {}
    for number, line in enumerate(lines, 1):
        match = _STEP.search(line)
        if match is not None:
            kinds.setdefault(match[1], []).append(number)
    chosen = {at for places in kinds.values() for at in (places[0], places[len(places) // 2], places[-1])}
    yield from sorted(chosen - {len(lines)})


def lose_tail(files: Files, name: str, keep: int) -> Files:
    """The files, of one of them only the first lines."""
    return {**files, name: b"".join(line + b"\n" for line in files[name].split(b"\n")[:keep])}


def cut_each(files: Files, rng: random.Random) -> Files:
    """Each file cut after a line of its own."""
    cut: Files = {}
    for name, data in files.items():
        places = list(boundaries(data, every=True))
        cut[name] = lose_tail(files, name, rng.choice(places))[name] if places else data
    return cut


def merged_tail(data: bytes, process: bytes, keep: int) -> bytes:
    """A log of several processes without the lines of one of them after its first ``keep``."""
    kept, seen = [], 0
    for line in data.split(b"\n"):
        ours = process in line
        seen += ours
        if not ours or seen <= keep:
            kept.append(line)
    return b"\n".join(kept)


def stalled(
    dialect: str,
    plan: Plan,
    site: str,
    rank: int,
    nth: int,
    *,
    proof: Callable[[Job], None] | None = None,
    seed: int = 5,
) -> tuple[Files, Job]:
    """The logs of a job whose ``rank`` stops at a site. The others run until none can move; ``proof`` then lets time pass."""
    if dialect == "passsm" and not plan.environment:
        plan = replace(plan, environment=PSM_SETTINGS)
    job = Job(DIALECTS[dialect], plan, seed, (Fault(site, "stop", rank, nth),))
    if proof is not None:
        job.timers.append(lambda: proof(job))
    job.run()
    files: dict[str, list[str]] = {}
    for line in job.lines:
        files.setdefault(f"nccl.rank{line.rank}.log" if line.nccl else "job.out", []).append(line.text + "\n")
    return {name: "".join(texts).encode() for name, texts in sorted(files.items())}, job
