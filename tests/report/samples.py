"""Reports made by hand, one of each verdict, for the tests of the renderers."""

from __future__ import annotations

from psmkit.model import (
    Communicator,
    Coverage,
    Culprit,
    Evidence,
    Finding,
    MatchCount,
    Matching,
    RankRow,
    Report,
    Run,
    Severity,
    Shape,
    Verdict,
)

COMM = "0x711d198325ff8aa9"
NASTY = "\x1b[31mred\x1b]0;title\x07 [bold]x[/bold] <b>&amp;</b> ``` | \u202eabc\x9b1m *_`@all\x00\r"


def evidence(rank: int, line: int, body: str) -> Evidence:
    """A line of a rank's own log."""
    return Evidence(
        f"logs/nccl.rank{rank}.log", line, f"node-a:{20400 + rank}:{20450 + rank} [{rank}] NCCL INFO {body}"
    )


def row(rank: int, state: str = "done", stage: str = "teardown", run: int = 0, host: str = "node-a") -> RankRow:
    return RankRow(
        run=run,
        rank=rank,
        host=host,
        pid=20400 + rank,
        device=rank % 8,
        stage=stage,
        state=state,
        lines=200 + rank,
        last=f"logs/nccl.rank{rank}.log:{200 + rank}",
        communicators=(COMM,),
    )


def hung() -> Report:
    """Eight ranks, rank 3 never answers Setup."""
    culprit = Culprit(
        run=0,
        why="its proxy service took the Setup request of rank 1 and never answered it",
        comm=COMM,
        rank=3,
        global_rank=3,
        host="node-a",
        pid=20403,
        device=3,
        stage="Setup",
    )
    unanswered = Finding(
        code="PSM101",
        title="rank 3 never answered Setup from rank 1 (opId 0x7f2a5c001b70)",
        severity=Severity.ERROR,
        confidence=0.95,
        explanation="Rank 1 asked the proxy service of rank 3 for Setup. The service took the request and printed nothing "
        "about it afterwards, while 36 other calls were answered.",
        next_step="Attach gdb to the proxy service thread of node-a:20403.",
        evidence=(
            evidence(3, 141, "New proxy send connection 3 from local rank 1, transport 0"),
            evidence(1, 160, "ncclProxyCallAsync opId 0x7f2a5c001b70 type 3 " + "respSize 240 " * 12),
        ),
        run=0,
        comm=COMM,
        ranks=(1, 3),
        processes=("node-a:20401", "node-a:20403"),
        stage="Setup",
        known_issue="NVIDIA/nccl#2379",
        culprits=(3,),
    )
    versions_differ = Finding(
        code="PSM602",
        title="ranks run NCCL 2.26.2 and 2.26.6",
        severity=Severity.WARNING,
        confidence=0.9,
        explanation="Rank 7 loaded another library.",
        next_step="Load the same library on every rank.",
        evidence=(evidence(7, 5, "NCCL version 2.26.6+cuda12.8"),),
        run=0,
        comm=COMM,
        ranks=(7,),
        processes=("node-a:20407",),
        culprits=(7,),
    )
    harmless = tuple(
        Finding(
            code="PSM801",
            title=f"rank {rank}: libibverbs is missing, the socket network is used",
            severity=Severity.INFO,
            confidence=0.99,
            explanation="",
            next_step="Nothing.",
            evidence=(evidence(rank, 12, "Failed to open libibverbs.so[.1]"),),
            run=0,
            ranks=(rank,),
            processes=(f"node-a:{20400 + rank}",),
        )
        for rank in range(8)
    )
    reason = "rank 3 never answered Setup from rank 1, and 6 ranks wait behind them"
    return Report(
        verdict=Verdict.HUNG,
        reason=reason,
        confidence=0.93,
        culprits=(culprit,),
        findings=(*harmless, versions_differ, unanswered),
        matching=Matching(proxy_calls=MatchCount(36, 1, 0), fd_exchanges=MatchCount(7, 0, 0)),
        runs=(Run(0, Verdict.HUNG, reason, 0.93, 8, tuple(range(8)), ("node-a",), (culprit,)),),
        communicators=(Communicator(0, COMM, 8, tuple(range(8)), 8, 0, 0),),
        ranks=tuple(row(r, "silent" if r == 3 else "waiting", "Setup" if r in (1, 3) else "connect") for r in range(8)),
        coverage=Coverage(
            files=8,
            bytes=1_234_567,
            lines=1_628,
            matched=1_590,
            unmatched=38,
            torn=2,
            other=11,
            shapes=(
                Shape("NCCL INFO Something new # at 0x#", 30, "logs/nccl.rank0.log", 44),
                Shape("NCCL INFO Other thing #", 8, "logs/nccl.rank2.log", 51),
            ),
            missing_subsystems=("P2P", "NET"),
            rerun_with={
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,PROXY,P2P,SHM,NET",
                "NCCL_DEBUG_FILE": "nccl.%h.%p.log",
            },
        ),
        versions=("NCCL 2.26.2+cuda12.8", "NCCL 2.26.6+cuda12.8"),
    )


def failed() -> Report:
    """Two runs: the first is healthy, in the second a rank fails; its log tries to write to the terminal."""
    origin = Finding(
        code="PSM508",
        title=f"rank 1 could not import memory of rank 0 {NASTY}",
        severity=Severity.ERROR,
        confidence=0.9,
        explanation=f"The import failed with out of memory. {NASTY}",
        next_step="Free memory on device 1.",
        evidence=(
            Evidence("logs/a b#1.log", 7, f"node-b:31001:31002 [1] p2p.cc:275 NCCL WARN Cuda failure 2 {NASTY}"),
        ),
        run=1,
        comm="comm#1",
        ranks=(1, 0),
        processes=("node-b:31001",),
        stage="connect",
        culprits=(1,),
    )
    culprit = Culprit(1, "its import failed first", "comm#1", 1, 1, "node-b", 31001, 1, "connect")
    reason = "rank 1 could not import memory of rank 0: out of memory"
    return Report(
        verdict=Verdict.FAILED,
        reason=reason,
        confidence=0.9,
        culprits=(culprit,),
        findings=(origin,),
        runs=(
            Run(0, Verdict.HEALTHY, "teardown is complete on 2 ranks", 0.9, 2, (0, 1), ("node-b",)),
            Run(1, Verdict.FAILED, reason, 0.9, 2, (0, 1), ("node-b",), (culprit,)),
        ),
        ranks=(
            row(0, run=0, host="node-b"),
            row(1, run=0, host="node-b"),
            row(0, "waiting", "connect", run=1, host="node-b"),
            row(1, "failed", "connect", run=1, host="node-b"),
        ),
        coverage=Coverage(files=1, bytes=900, lines=9, matched=9),
    )


def healthy() -> Report:
    """Sixty-four ranks on eight hosts, all done; one of them has printed more."""
    ranks = tuple(row(r, host=f"node-{r // 8}") for r in range(64))
    reason = "64 of 64 ranks destroyed their communicators and nothing is pending"
    return Report(
        verdict=Verdict.HEALTHY,
        reason=reason,
        confidence=0.97,
        matching=Matching(proxy_calls=MatchCount(1200, 0, 0), collectives=MatchCount(5000, 0, 0)),
        runs=(Run(0, Verdict.HEALTHY, reason, 0.97, 64, tuple(range(64)), tuple(f"node-{n}" for n in range(8))),),
        communicators=(Communicator(0, COMM, 64, tuple(range(64)), 64, 64, 64),),
        ranks=ranks,
        coverage=Coverage(files=64, bytes=12_000_000, lines=90_000, matched=90_000),
        versions=("NCCL 2.30.7+cuda13.0",),
    )


def inconclusive() -> Report:
    """The control plane is clean, and the log of rank 5 is missing."""
    ends = Finding(
        code="PSM703",
        title="the data plane is not observed",
        severity=Severity.INFO,
        confidence=0.8,
        explanation="All 37 proxy calls and 7 fd exchanges are complete; the data path prints nothing.",
        next_step="Use stacks of the proxy progress threads, a proxy dump or RAS.",
        run=0,
    )
    reason = "the control plane is clean and the data plane is not in the log"
    return Report(
        verdict=Verdict.INCONCLUSIVE,
        reason=reason,
        confidence=0.8,
        findings=(ends,),
        matching=Matching(proxy_calls=MatchCount(37, 0, 0), fd_exchanges=MatchCount(7, 0, 0)),
        runs=(Run(0, Verdict.INCONCLUSIVE, reason, 0.8, 8, (0, 1, 2, 3, 4, 6, 7), ("h",)),),
        ranks=(RankRow(0, None, None, None, None, "started", "running", 12, None),),
        coverage=Coverage(files=1, bytes=22_472, lines=160, matched=150, unmatched=1, missing_ranks=(5,)),
    )


def many() -> Report:
    """Sixty-four ranks, of which 9 and 40 are culprits, with twelve findings of one kind."""
    culprits = tuple(
        Culprit(0, "it is silent", COMM, r, r, f"node-{r // 8}", 20400 + r, r % 8, "Setup") for r in (9, 40)
    )
    findings = tuple(
        Finding(
            code="PSM101",
            title=f"rank {40 if r % 2 else 9} never answered Setup from rank {r}",
            severity=Severity.ERROR,
            confidence=0.5 + r / 100,
            explanation="The service is silent.",
            next_step="Attach gdb.",
            evidence=(evidence(r, 100 + r, "asked"),),
            run=0,
            ranks=(r,),
            processes=(f"node-{r // 8}:{20400 + r}",),
            culprits=(40 if r % 2 else 9,),
        )
        for r in range(20, 32)
    )
    reason = "ranks 9 and 40 never answered Setup"
    states = ["silent" if r in (9, 40) else "waiting" if r < 60 else "done" if r < 62 else "died" for r in range(64)]
    ranks = tuple(
        row(r, state, "connect" if state == "died" else "Setup", host=f"node-{r // 8}")
        for r, state in enumerate(states)
    )
    return Report(
        verdict=Verdict.HUNG,
        reason=reason,
        confidence=0.7,
        culprits=culprits,
        findings=findings,
        runs=(Run(0, Verdict.HUNG, reason, 0.7, 64, tuple(range(64)), ("node-0",), culprits),),
        ranks=ranks,
        coverage=Coverage(files=64, bytes=5_000_000, lines=40_000, matched=39_999, unmatched=1),
    )


ALL = {"hung": hung, "failed": failed, "healthy": healthy, "inconclusive": inconclusive, "many": many}
