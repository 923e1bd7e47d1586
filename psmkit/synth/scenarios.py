"""Jobs that end well and jobs that do not, each with what an analysis has to say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from psmkit.synth.dialects import DIALECTS, Dialect
from psmkit.synth.job import Job, Plan
from psmkit.synth.sim import Fault, Line, Process
from psmkit.synth.surroundings import heartbeat, mpirun_signal, torchrun_failure, watchdog

__all__ = ["SCENARIOS", "Log", "Scenario", "Truth", "generate", "scenario_names"]


@dataclass(frozen=True)
class Truth:
    """``verdicts`` are acceptable, the first is the best. ``culprits`` are the only ranks that may be blamed; one of them must be when the
    verdict is the best one and ``named`` is set. One of ``codes``, the best first, must then be among the findings."""

    verdicts: tuple[str, ...]
    culprits: frozenset[int] = frozenset()
    codes: tuple[str, ...] = ()
    named: bool = True
    stages: tuple[str, ...] = ()  # of the culprit; none: not judged


@dataclass(frozen=True)
class Log:
    """Lines of a job and their truth."""

    name: str
    dialect: str
    lines: tuple[Line, ...]
    truth: Truth

    def merged(self) -> str:
        """As one terminal shows it: every rank, and what launchers print."""
        return "".join(line.text + "\n" for line in self.lines)

    def files(self) -> dict[str, str]:
        """As NCCL_DEBUG_FILE writes it: one file a rank, the rest in the launcher's own log."""
        found: dict[str, list[str]] = {}
        for line in self.lines:
            name = f"nccl.rank{line.rank}.log" if line.nccl else "job.out"
            found.setdefault(name, []).append(line.text + "\n")
        return {name: "".join(texts) for name, texts in sorted(found.items())}


@dataclass(frozen=True)
class Scenario:
    """``at_end`` runs when nothing moves any more: timeouts, RAS, launchers; it gets the rank of the (first) fault. ``dialects`` None: all."""

    name: str
    truth: Truth
    plan: Plan
    faults: tuple[Fault, ...] = ()
    at_end: tuple[Callable[[Job, int], None], ...] = ()
    dialects: tuple[str, ...] | None = None
    observer: Callable[[Job, str, Process], None] | None = None

    @property
    def late(self) -> bool:
        """Whether it can strike one rank of any job, after any amount of work."""
        whose = {fault.rank for fault in self.faults}
        return (
            self.plan.hosts == 1
            and not (self.plan.split or self.plan.missing or self.plan.overrides or self.observer)
            and len(whose) < 2
            and self.truth.culprits == whose
            and not any(
                f.site == "bootstrap" or f.action == "swap" for f in self.faults
            )  # the begin, two clients at once
            # without transfers all connections are made at the begin
            and (self.plan.work != "coll" or all(f.site in ("collective", "deregister") for f in self.faults))
        )

    def truth_in(self, dialect: Dialect, merged: bool = True) -> Truth:
        """What there is to find in the log of a release. ``merged``: it is one log, whose lines have an order."""
        truth = self.truth
        well = truth.verdicts[0] == "healthy"
        open_ = (dialect.silent and not well) or (well and not dialect.ends) or not (merged or well)
        if open_ and "inconclusive" not in truth.verdicts:
            truth = replace(truth, verdicts=(*truth.verdicts, "inconclusive"))
        if not dialect.silent:
            return truth
        # what a release does not print leaves nobody to name, and of its proxies some print nothing
        quiet = "opId" in dialect.silent and any(fault.site.startswith("service.") for fault in self.faults)
        return replace(truth, named=False, codes=() if quiet else truth.codes)

    def moved(self, rank: int) -> Scenario:
        """The same in a job of any size: work before it, the fault in ``rank``, transfers between neighbours only.

        Only of one that is :attr:`late`.
        """
        collective = self.plan.work == "coll"
        work, steps, ahead = ("coll", 8, 4) if collective else ("both", 2, 2)
        plan = replace(self.plan, work=work, steps=steps, ahead=ahead, channels=1, reach=1)
        # a rank connects to one neighbour only
        faults = tuple(replace(f, rank=rank, nth=min(f.nth, 3) if f.site == "collective" else 1) for f in self.faults)
        # a reply that is printed as sent may be lost by either side
        culprits = {f.rank for f in faults} | {f.rank - 1 for f in faults if f.action == "lose reply"}
        # after the wait in a call of NCCL PyTorch says in each process that it lasts
        waits = not collective and self.truth.verdicts[0] == "hung" and not self.name.endswith("_silent")
        told = replace(self.truth, culprits=frozenset(culprits))
        if waits:
            told = replace(told, verdicts=("hung",))
        at_end = self.at_end + ((_heartbeat,) if waits else ())
        return replace(self, plan=plan, faults=faults, at_end=at_end, truth=told)

    def covers(self, dialect: Dialect) -> bool:
        if self.plan.work != "coll" and not dialect.transfers:
            return False
        return self.dialects is None or dialect.name in self.dialects


RAS = ("2.27", "2.30", "passsm")
UDS = ("2.21", "2.27", "2.30", "passsm")
PSM = ("passsm",)

COLL = Plan(work="coll", steps=24, ahead=3)
LONG = Plan(work="coll", steps=60, ahead=40)
P2P = Plan(work="p2p", steps=3)
P2P_8 = Plan(ranks=8, work="p2p")
PSM_SETTINGS = {"NCCL_PASS_SM": "1", "NCCL_PSM_BUFFER_SIZE": "1048576", "NCCL_BUFFSIZE": "1048576"}


def _truth(
    verdicts: str, culprits: tuple[int, ...] = (), codes: str = "", named: bool = True, stages: str = ""
) -> Truth:
    """Words of texts; those of ``stages`` have commas between them."""
    return Truth(
        tuple(verdicts.split()),
        frozenset(culprits),
        tuple(codes.split()),
        named,
        tuple(filter(None, stages.split(","))),
    )


HEALTHY = _truth("healthy")


def _stall(job: Job, rank: int) -> None:
    job.ras_stall(job.processes[rank])


def _watchdog(job: Job, _rank: int) -> None:
    watchdog(job)


def _heartbeat(job: Job, _rank: int) -> None:
    heartbeat(job)


def _sigkill(job: Job, rank: int) -> None:
    torchrun_failure(job, rank, -9, "SIGKILL")


def _sigsegv(job: Job, rank: int) -> None:
    torchrun_failure(job, rank, -11, "SIGSEGV")


def _mpirun(job: Job, rank: int) -> None:
    mpirun_signal(job, rank, 9, "Killed")


def _segfault(job: Job, rank: int) -> None:
    p = job.processes[rank]
    job.stderr(rank, f"[{p.host}:{p.pid}] *** Process received signal ***")
    job.stderr(rank, f"[{p.host}:{p.pid}] Signal: Segmentation fault (11)")
    job.stderr(rank, f"[{p.host}:{p.pid}] Signal code: Address not mapped (1)")
    job.stderr(rank, f"[{p.host}:{p.pid}] Failing at address: 0x8")
    job.kill(p)


def _shm_full(job: Job, rank: int) -> None:
    """One rank finds /dev/shm full when its proxy starts."""
    p = job.processes[rank]
    name = "/dev/shm/nccl-WU88OE"
    job.warn(
        p,
        "service",
        "misc/shmutils.cc:87",
        f"Error: failed to extend {name} to 37749124 bytes, error: No space left on device (28)",
        "ncclShmOpen",
    )
    job.chain(p, "service", 2, "misc/shmutils.cc:113 ncclShmOpen")
    job.warn(
        p,
        "service",
        "misc/shmutils.cc:128",
        f"Error while creating shared memory segment {name} (size 37748992), error: No space left on device (28)",
        "ncclShmOpen",
    )
    job.chain(p, "service", 2, "proxy.cc:1066 ncclProxyProgressCreate", "proxy.cc:1389 proxyConnInit")
    job.warn(
        p,
        "service",
        "proxy.cc:1665",
        "[Service thread] Error encountered progressing operation=Init, res=2, closing connection",
        "ncclProxyService",
    )
    job.kill(p)


def _mode_split(job: Job, rank: int) -> None:
    """Rank 3 takes files in /dev/shm, its peer reads the descriptor as one of cuMem."""
    p = job.processes[rank]
    broken = "/dev/shm/nccl-\u040c"
    job.warn(
        p,
        "async",
        "misc/shmutils.cc:128",
        f"Error while attaching to shared memory segment {broken} (size 0), error: No such file or directory (2)",
        "ncclShmOpen",
    )
    job.chain(
        p,
        "async",
        2,
        "transport/shm.cc:600 ncclShmImportShareableBuffer",
        "transport/psm_p2p.cc:556 psmRecvConnect",
        "transport.cc:228 ncclTransportP2pSetup",
        "group.cc:133 ncclP2PPreconnectFunc",
    )
    job.chain(p, "async", 2, "group.cc:75 ncclAsyncJobMain", end=" [Async thread]")
    job.chain(p, "main", 2, "group.cc:422", "group.cc:581", "group.cc:106 ncclGroupEnd")
    job.exit(p)


def _truncated(job: Job, rank: int) -> None:
    """Another NCCL_PASS_SM: the ranks exchange other connect infos."""
    p = job.processes[rank]
    job.warn(p, "async", "bootstrap.cc:212", "Message truncated : received 1024 bytes instead of 512", "bootstrapRecv")
    job.chain(
        p,
        "async",
        3,
        "bootstrap.cc:1057 bootstrapRecv",
        "transport.cc:176 ncclTransportP2pSetup",
        "group.cc:133 ncclP2PPreconnectFunc",
    )
    job.chain(p, "async", 3, "group.cc:75 ncclAsyncJobMain", end=" [Async thread]")
    job.chain(p, "main", 3, "group.cc:422", "group.cc:581", "group.cc:106 ncclGroupEnd")
    job.exit(p)


def _harmless(job: Job, site: str, p: Process) -> None:
    """What healthy jobs complain about."""
    if site == "bootstrap":
        job.warn(p, "main", "misc/ibvwrap.cc:185", "lib wrapper not initialized.", "wrap_ibv_alloc_pd")
        job.chain(p, "main", 3, "transport/net_ib/gdr.cc:55 ibDmaBufSupportInitOnce")
        job.info(p, "main", "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.")
        job.info(p, "main", "Failed to initialize NET plugin IB")
    if site == "topology":
        job.info(p, "main", "TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin.")
        job.info(p, "main", "Could not get speed from /sys/class/net/eth0/speed. Defaulting to 10 Gbps.")


def _refused(job: Job, rank: int) -> None:
    """A rank cannot reach the bootstrap root."""
    p = job.processes[rank]
    where = f"{job.processes[0].ip}<41234>"
    for i in range(1, 4):
        job.info(
            p,
            "main",
            f"socketPollConnect: connect to {where} returned Connection refused, retrying ({i}/34) after sleep for {100 * i} msec",
        )
    job.warn(
        p,
        "main",
        "misc/socket.cc:578",
        f"socketPollConnect: connect to {where} returned Connection refused, exceeded error retry count after 35 attempts",
        "socketConnectCheck",
    )
    job.chain(
        p,
        "main",
        6,
        "misc/socket.cc:655 ncclSocketPollConnect",
        "misc/socket.cc:719 ncclSocketReady",
        "misc/socket.cc:731 ncclSocketConnect",
        "bootstrap.cc:636 socketConnect",
    )
    job.chain(
        p,
        "main",
        6,
        "bootstrap.cc:701 bootstrapInit",
        "init.cc:1443 ncclCommInitRankFunc",
        "group.cc:75 ncclAsyncJobMain",
    )
    job.exit(p)


def _scraped(job: Job, site: str, p: Process) -> None:
    """A metrics scraper knocks at the port of a proxy service, which then waits for it."""
    if site == "service.Setup" and p.rank == 1 and job.visits.get((site, 1), 0) == 1:
        job.warn(
            p,
            "service",
            "misc/socket.cc:481",
            "socketFinalizeAccept: wrong magic 74656d2f20544547 != 7970663b906d70b9",
            "socketFinalizeAccept",
        )


def _completion_error(job: Job, rank: int) -> None:
    """A link goes down: the sender's queue pair runs out of retries."""
    p, peer = job.processes[rank], job.processes[3]
    job.warn(
        p,
        "progress",
        "transport/net_ib.cc:1909",
        f"NET/IB : Got completion from peer {peer.ip}<37290> with status=12 opcode=129 len=0 vendor err 129 (Send) localGid ::ffff:{p.ip} remoteGids ::ffff:{peer.ip}",
    )
    job.chain(p, "progress", 6, "transport/net.cc:1134", "proxy.cc:694")
    job.chain(p, "progress", 6, "proxy.cc:878", end=" [Progress Thread]")


def _time_limit(job: Job, _rank: int) -> None:
    job.stderr(None, "slurmstepd: error: *** JOB 4711 ON node0 CANCELLED AT 2026-11-21T02:35:22 DUE TO TIME LIMIT ***")


def _exchange(name: str, truth: Truth, action: str, nth: int) -> Scenario:
    """Rank 1's nth exchange of a descriptor goes wrong."""
    return Scenario(name, truth, P2P_8, (Fault("uds", action, 1, nth),), dialects=UDS)


_LIST = (
    # -- jobs that end well
    Scenario("healthy_sendrecv", HEALTHY, P2P),
    Scenario("healthy_collectives", HEALTHY, COLL),
    Scenario("healthy_both", HEALTHY, Plan(work="both", steps=4)),
    Scenario("healthy_two_ranks", HEALTHY, Plan(ranks=2, work="both", steps=4)),
    Scenario("healthy_eight_ranks", HEALTHY, Plan(ranks=8, work="both", steps=6)),
    Scenario("healthy_split", HEALTHY, Plan(ranks=8, work="coll", steps=20, split=2)),
    Scenario("healthy_two_hosts", HEALTHY, Plan(ranks=4, hosts=2, work="coll", steps=12)),
    Scenario("healthy_registrations", HEALTHY, Plan(work="coll", steps=8, register=True), dialects=("2.27", "2.30")),
    Scenario(
        "healthy_with_complaints", HEALTHY, Plan(work="both", steps=4), dialects=("2.27", "2.30"), observer=_harmless
    ),
    # Torn down, but something is left.
    Scenario(
        "registration_kept",
        _truth("leaking", (1,), "PSM505 PSM506", named=False, stages="teardown,done"),
        Plan(work="coll", steps=8, register=True),
        (Fault("deregister", "forget", 1, 2),),
        dialects=("2.27", "2.30"),
    ),
    # The same jobs without their end: nothing is wrong, nothing proves that all is well.
    Scenario("no_teardown", _truth("inconclusive healthy"), replace(P2P, teardown=False)),
    # -- a rank dies
    Scenario(
        "kill_in_setup",
        _truth("failed", (1,), "PSM402 PSM403 PSM408 PSM108 PSM401", stages="killed"),
        P2P,
        (Fault("setup send", "kill", 1, 3),),
        (_sigkill,),
    ),
    Scenario(
        "kill_in_setup_silent",
        _truth(
            "failed hung inconclusive",
            (1,),
            "PSM402 PSM403 PSM108 PSM401 PSM304 PSM407",
            named=False,
            stages="killed,lost,connect,setup",
        ),
        P2P,
        (Fault("setup send", "kill", 1, 3),),
    ),
    Scenario(
        "kill_at_work",
        _truth("failed", (2,), "PSM402 PSM403 PSM408", stages="killed"),
        COLL,
        (Fault("collective", "kill", 2, 7),),
        (_sigkill,),
    ),
    Scenario(
        "kill_at_work_mpirun",
        _truth("failed", (2,), "PSM402 PSM403 PSM408", stages="killed"),
        COLL,
        (Fault("collective", "kill", 2, 7),),
        (_mpirun,),
    ),
    Scenario(
        "segfault_at_work",
        _truth("failed", (2,), "PSM402", stages="killed"),
        COLL,
        (Fault("collective", "never", 2, 9),),
        (_segfault, _sigsegv),
    ),
    # -- a rank stops
    Scenario(
        "stop_in_setup",
        _truth("hung", (1,), "PSM407 PSM304 PSM403 PSM103 PSM202 PSM101", stages="connect,setup"),
        P2P,
        (Fault("setup send", "stop", 1, 2),),
        (_stall,),
        RAS,
    ),
    Scenario(
        "stop_in_setup_silent",
        _truth("hung inconclusive", (1,), stages="connect,setup"),
        P2P,
        (Fault("setup send", "stop", 1, 2),),
        dialects=("2.18", "2.21"),
    ),
    Scenario(
        "stop_in_init",
        _truth("hung", (3,), "PSM407 PSM202 PSM304 PSM403 PSM103"),
        COLL,
        (Fault("setup recv", "stop", 3, 1),),
        (_stall,),
        RAS,
    ),
    Scenario(
        "stop_at_work",
        _truth("hung", (2,), "PSM407 PSM302 PSM304 PSM403", stages="AllReduce,AllGather"),
        LONG,
        (Fault("collective", "stop", 2, 9),),
        (_stall,),
        RAS,
    ),
    Scenario(
        "lag_at_work",
        _truth("hung", (2,), "PSM302 PSM304 PSM305", stages="AllReduce,AllGather"),
        LONG,
        (Fault("collective", "never", 2, 9),),
        (_watchdog,),
    ),
    Scenario(
        "lag_without_watchdog",
        _truth("hung inconclusive", (2,), "PSM302 PSM304", stages="AllReduce,AllGather"),
        LONG,
        (Fault("collective", "never", 2, 9),),
    ),
    # -- a rank is missing
    Scenario(
        "rank_never_started",
        _truth("hung inconclusive", (3,), "PSM201 PSM202 PSM702"),
        Plan(ranks=4, work="coll", missing=frozenset({3})),
    ),
    Scenario(
        "rank_never_started_time_limit",
        _truth("hung inconclusive failed", (3,), "PSM201 PSM202 PSM702 PSM408"),
        Plan(ranks=4, work="coll", missing=frozenset({3})),
        (),
        (_time_limit,),
    ),
    # -- wrong calls
    Scenario(
        "other_operation",
        _truth("hung", (1,), "PSM301", stages="AllReduce,ReduceScatter"),
        replace(LONG, ahead=20),
        (Fault("collective", "other operation", 1, 12),),
        (_watchdog,),
    ),
    Scenario(
        "other_count",
        _truth("hung", (3,), "PSM301", stages="AllReduce"),
        replace(LONG, ahead=20),
        (Fault("collective", "other count", 3, 12),),
        (_watchdog,),
    ),
    Scenario(
        "recv_forgotten",
        _truth("hung inconclusive", (0, 1, 2, 3), "PSM303", named=False),
        Plan(work="p2p", steps=6, ahead=3),
        (Fault("recv", "forget", 1, 11),),
    ),
    Scenario(
        "send_short",
        _truth("hung failed", (2, 0, 1, 3), "PSM303", named=False),
        Plan(work="p2p", steps=6, ahead=3),
        (Fault("send", "short", 2, 10),),
    ),
    # -- the fd exchange loses a message
    _exchange("fd_request_lost", _truth("hung inconclusive", (1,), "PSM102", stages="fd*"), "lose request", 3),
    _exchange("fd_answer_lost", _truth("hung inconclusive", (1,), "PSM102", stages="fd*"), "lose answer", 3),
    _exchange(
        "fd_reply_lost", _truth("hung inconclusive", (1,), "PSM102 PSM304", named=False, stages="fd*"), "lose reply", 3
    ),
    _exchange("fd_handles_swapped", _truth("failed", (1,), "PSM109"), "swap", 2),
    # -- the proxy does not answer
    Scenario(
        "setup_swallowed",
        _truth("hung inconclusive", (1,), "PSM101 PSM103 PSM304 PSM202", stages="proxy Setup,Setup,connect"),
        P2P_8,
        (Fault("service.Setup", "swallow", 1, 2),),
    ),
    Scenario(
        "answer_lost",
        _truth("hung inconclusive", (1,), "PSM101 PSM304", stages="Setup,proxy Setup,connect"),
        P2P_8,
        (Fault("service.Setup", "mute", 1, 2),),
    ),
    Scenario(
        "connect_begun",
        _truth("hung inconclusive", (1,), "PSM101", stages="Connect,proxy Connect,connect"),
        P2P_8,
        (Fault("service.Connect", "begin", 1, 2),),
        dialects=PSM,
    ),
    Scenario(
        "scraper_on_proxy_port",
        _truth("hung failed", (1,), "PSM106", named=False),
        P2P_8,
        (Fault("service.Setup", "swallow", 1, 2),),
        dialects=("2.27", "2.30"),
        observer=_scraped,
    ),
    # -- errors
    Scenario(
        "bootstrap_refused",
        _truth("failed", (0, 2), "PSM203 PSM401", named=False),
        Plan(work="coll"),
        (Fault("bootstrap", "wait", 2, 1),),
        (_refused,),
        dialects=("2.27", "2.30"),
    ),
    Scenario(
        "link_down",
        _truth("failed hung", (0, 3), "PSM406 PSM404", named=False),
        Plan(work="coll", hosts=2, steps=60, ahead=30),
        (Fault("collective", "device stuck", 0, 9),),
        (_completion_error,),
        dialects=("2.21",),
    ),
    Scenario(
        "import_fails",
        _truth("failed", (1,), "PSM401 PSM508 PSM509 PSM405", stages="error"),
        P2P,
        (Fault("import", "fail", 1, 2),),
    ),
    Scenario(
        "setup_fails",
        _truth("failed", (2,), "PSM107 PSM401 PSM405 PSM509", stages="error"),
        P2P,
        (Fault("service.Setup", "error", 2, 2),),
    ),
    Scenario(
        "kernel_fails",
        _truth("failed", (2,), "PSM401 PSM405", stages="error"),
        COLL,
        (Fault("collective", "async error", 2, 8),),
    ),
    Scenario(
        "shm_full",
        _truth("failed", (1,), "PSM503", stages="shared memory,error"),
        P2P,
        (Fault("service.Setup", "swallow", 1, 1),),
        (_shm_full,),
    ),
    Scenario(
        "mode_split",
        _truth("failed hung", (2, 3, 0, 1), "PSM502 PSM501", named=False),
        Plan(work="p2p", overrides={3: {"NCCL_CUMEM_HOST_ENABLE": "0"}}),
        (Fault("import", "wait", 2, 1),),
        (_mode_split,),
        PSM,
    ),
    Scenario(
        "pass_sm_differs",
        _truth("failed hung", (3,), "PSM601", named=False),
        Plan(work="p2p", environment=PSM_SETTINGS, overrides={3: {"NCCL_PASS_SM": "0"}}),
        (Fault("import", "wait", 0, 1),),
        (_truncated,),
        PSM,
    ),
)

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _LIST}


def scenario_names(scored: bool = False) -> list[tuple[str, str]]:
    """Every (scenario, dialect) that the tests take; ``scored``: with the dialects for the score."""
    return [(s.name, d.name) for s in _LIST for d in DIALECTS.values() if s.covers(d) and (scored or not d.scored)]


def generate(name: str, dialect: str, seed: int = 1, plan: Plan | None = None) -> Log:
    """The log of a scenario. ``plan`` replaces the scenario's own."""
    scenario = SCENARIOS[name]
    own = plan or scenario.plan
    if dialect == "passsm" and not own.environment:
        own = replace(own, environment=PSM_SETTINGS)
    job = Job(DIALECTS[dialect], own, seed, scenario.faults)
    struck = scenario.faults[0].rank if scenario.faults else 0
    for step in scenario.at_end:
        job.timers.append(partial(step, job, struck))
    watch = scenario.observer
    if watch:
        job.observer = lambda site, process: watch(job, site, process)
    job.run()
    return Log(name, dialect, tuple(job.lines), scenario.truth)
