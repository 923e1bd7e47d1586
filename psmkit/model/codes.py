"""The registry of finding codes. A code, once published, keeps its meaning.

PSM1xx control plane (proxy calls, fd exchanges, connections), PSM2xx start-up, PSM3xx collectives and send/recv, PSM4xx errors
and deaths, PSM5xx memory and handles, PSM6xx settings and environment, PSM7xx limits of the evidence, PSM8xx harmless, PSM9xx plugins.
"""

from __future__ import annotations

from dataclasses import dataclass

from psmkit.model.codes_plugins import PLUGIN_CODES
from psmkit.model.findings import Severity

__all__ = ["CODES", "Code", "code"]


@dataclass(frozen=True, slots=True)
class Code:
    """A kind of finding: its title, usual severity, what it means and what to do next."""

    code: str
    title: str
    severity: Severity
    meaning: str
    next_step: str


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

_TABLE: tuple[tuple[str, str, Severity, str, str], ...] = (
    (
        "PSM101",
        "proxy call never answered",
        _E,
        "A rank asked a proxy service for something (Init, SharedInit, Setup, Connect, Register, Deregister) and no answer came back.",
        "Look at the proxy service thread of the process that should have answered: attach gdb there, or re-run with NCCL_DEBUG_SUBSYS=INIT,PROXY,P2P,SHM,NET.",
    ),
    (
        "PSM102",
        "fd exchange stuck",
        _E,
        "A file descriptor was asked for over the Unix domain socket and the four stages asked, received, answered, done were not all reached.",
        "The side named in the finding lost it. NCCL_CUMEM_ENABLE=0 avoids the exchange; compare with NVIDIA/nccl#2379.",
    ),
    (
        "PSM103",
        "connection stuck on an owed message",
        _E,
        "A connection got its Init but not the next message its transport and role owe, and somebody is shown to wait for it.",
        "Look at the thread that owes the message: what was its last line, and what does it wait for?",
    ),
    (
        "PSM104",
        "response for no request",
        _E,
        "A proxy response arrived whose opId nobody waits for.",
        "An answer was sent twice or after its request was given up. Check that the service answers each request once.",
    ),
    (
        "PSM105",
        "sizes differ between the two sides",
        _E,
        "The two ends of an exchange disagree about the size of a message, a buffer or a response.",
        "Compare the library builds and the settings of the two ranks.",
    ),
    (
        "PSM106",
        "foreign client on a NCCL port",
        _E,
        "Something that is not NCCL connected to a NCCL socket; the wrong magic is decoded to name the protocol.",
        "Keep scanners and metric scrapers away from NCCL's ports (NCCL_SOCKET_IFNAME, firewall).",
    ),
    (
        "PSM107",
        "proxy request failed",
        _E,
        "A proxy service handled a request and the handler returned an error.",
        "Look for the first warning on the service thread of that process, before this line.",
    ),
    (
        "PSM108",
        "connection to a peer was closed",
        _W,
        "A proxy, bootstrap or RAS peer closed its connection while it was still needed; the closing side is the one to look at.",
        "Look at the log of the peer that closed: it died or gave up first.",
    ),
    (
        "PSM201",
        "rank never started",
        _E,
        "The communicator has more ranks than were seen to start.",
        "Check that this rank's process was launched and reached ncclCommInitRank; look at its launcher output.",
    ),
    (
        "PSM202",
        "rank never finished init",
        _E,
        "Init START was printed and Init COMPLETE was not.",
        "See at which stage the rank stands and who it waits for.",
    ),
    (
        "PSM203",
        "bootstrap refused or closed",
        _E,
        "The bootstrap network could not connect, or a peer closed it.",
        "Check NCCL_SOCKET_IFNAME, routing and firewalls between the two hosts, and whether the peer still lives.",
    ),
    (
        "PSM204",
        "no transport between two ranks",
        _E,
        "NCCL found no transport for a pair of ranks.",
        "Check P2P, SHM and network availability for this pair; NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P,NET shows why each was refused.",
    ),
    (
        "PSM301",
        "collective mismatch",
        _E,
        "Ranks of one communicator called different collectives, or the same with another count, type, op or root, at the same place of their order.",
        "Compare the code paths of the ranks at this call; data-dependent branches are the usual cause.",
    ),
    (
        "PSM302",
        "rank lags behind in collectives",
        _E,
        "A rank has called fewer collectives than its peers, which wait for it.",
        "See what this rank does instead: its stack (py-spy dump, gdb) and its last lines.",
    ),
    (
        "PSM303",
        "send and recv do not pair",
        _E,
        "A send has no recv on the other side, or the other way round, or their byte counts differ.",
        "Compare the p2p calls of the two ranks; put all sends and recvs of one exchange between ncclGroupStart and ncclGroupEnd.",
    ),
    (
        "PSM304",
        "rank stopped while its peers went on",
        _E,
        "A rank's logical progress ends earlier than that of its peers.",
        "Look at this rank first: its stack, its host (Xid, OOM), whether it was stopped.",
    ),
    (
        "PSM305",
        "watchdog timeout",
        _E,
        "A framework watchdog (PyTorch ProcessGroupNCCL) saw a collective that did not finish in time.",
        "The rank that never joined the collective is the one to look at, not the one that reports the timeout.",
    ),
    (
        "PSM306",
        "plan reclaimed or cut out of order",
        _E,
        "Lines of plans show channels or ops that differ between ranks, or a plan reclaimed before its proxy ops are done.",
        "Run the plan checker on this log.",
    ),
    (
        "PSM307",
        "connection stands still between two ranks",
        _E,
        "A send and its recv have not moved for longer than a stall takes to be reported. What both ends recorded says which of them has to act; it is an error only where the two records prove it.",
        "Look at the progress thread of the rank that is named: its stack, the stream that its copies are on, whether its process runs at all.",
    ),
    (
        "PSM308",
        "plan freed twice, or used after it was freed",
        _E,
        "A kernel plan, or the sync condition of its launch, was given back while something still had it: its reclaimer was enqueued twice, or a thread or a replayed graph met what was freed.",
        "One place enqueues a reclaimer, once: hostStreamPlanTask, LaunchKernelAfter (not persistent, no proxy ops) or the graph's destructor. What a callback uses is freed with its plan, never by the callback.",
    ),
    (
        "PSM309",
        "sync condition that does not come to 0",
        _E,
        "The count of a plan's sync condition is not that of the ops that count it off: its host function waits for ever, or comes back while data moves.",
        "Count the ops whose progress decrements, and no other: not those of collectives in the same group.",
    ),
    (
        "PSM310",
        "host function of a plan that never ran",
        _E,
        "A plan was put on a stream and its callback did not run: proxy ops that wait for it never move, and nobody takes the plan back.",
        "A plan without a kernel is launched too: its host function goes on the launch stream, after the copies to self.",
    ),
    (
        "PSM311",
        "plan that is never reclaimed",
        _W,
        "A communicator was destroyed and plans, their ops or references of graphs were not given back.",
        "See which plan was made and not reclaimed, and who should have enqueued its reclaimer; a plan that is taken out early must be launched as well.",
    ),
    (
        "PSM312",
        "launch of a plan out of its order",
        _W,
        "CUDA was called between the intra-process barrier and the launch, or launch finish left frames on the scoped memory stack.",
        "Call CUDA before the barrier or behind the launch; pop the scoped stack in launch finish and in a prepare that fails.",
    ),
    (
        "PSM401",
        "error with its origin",
        _E,
        "A rank reported an error; this is the first cause across all ranks, the other errors follow from it.",
        "Start at the line of the origin.",
    ),
    (
        "PSM402",
        "rank crashed",
        _E,
        "A process died by a signal or an uncaught exception.",
        "Take the core dump or the printed backtrace of that process.",
    ),
    (
        "PSM403",
        "peer blamed by others but silent",
        _E,
        "Other ranks report that this peer closed, refused or does not answer, and its own log says nothing.",
        "The process was killed, stopped or lost its host: look at dmesg, the launcher and the scheduler there.",
    ),
    (
        "PSM404",
        "error swallowed in a progress thread",
        _E,
        "A progress or service thread returned an error and nothing aborted the communicator: peers will wait for ever.",
        "Treat it as the cause of the hang; see NVIDIA/nccl#1822.",
    ),
    (
        "PSM405",
        "CUDA error",
        _E,
        "A CUDA call failed.",
        "Look the error up; an asynchronous one was caused by earlier work on that device.",
    ),
    (
        "PSM406",
        "network error",
        _E,
        "The network reported a failed operation (a completion with an error, a timeout, an unreachable peer).",
        "Check links and counters of the device that is named, on both hosts.",
    ),
    (
        "PSM407",
        "peer unresponsive on the RAS network",
        _W,
        "NCCL's RAS threads lost contact with a process; the socket address is joined with the RAS peer lines to name the rank.",
        "Look at the process that is named: it is stopped, overloaded or dead.",
    ),
    (
        "PSM408",
        "job ended by its launcher",
        _W,
        "The launcher or scheduler ended the job (torchrun, mpirun, srun, OOM killer).",
        "The rank it names first is the one to look at.",
    ),
    (
        "PSM501",
        "attach to a shared memory segment nobody created",
        _E,
        "A rank could not attach to a segment: no rank created that name, or its creator has removed it.",
        "Compare which ranks use cuMem host memory and which /dev/shm; NCCL_CUMEM_HOST_ENABLE=0 makes them equal (NVIDIA/nccl#2190).",
    ),
    (
        "PSM502",
        "shared memory mode split",
        _E,
        "Some ranks share host memory by cuMem, others by files in /dev/shm: a descriptor is read as the wrong kind.",
        "Set NCCL_CUMEM_HOST_ENABLE to the same value (0) on all ranks (NVIDIA/nccl#2190).",
    ),
    (
        "PSM503",
        "/dev/shm is full",
        _E,
        "A shared memory segment could not be made or grown.",
        "Give the container more shared memory (--shm-size, an emptyDir of medium Memory) and remove leftovers of dead processes.",
    ),
    (
        "PSM504",
        "file descriptors run out",
        _E,
        "The process cannot open more files, or the descriptors it got keep growing.",
        "Raise ulimit -n; see whether descriptors are closed after each communicator.",
    ),
    (
        "PSM505",
        "never freed at teardown",
        _W,
        "A buffer or segment was made and not freed although the communicator was torn down.",
        "Look at the teardown of the transport that made it.",
    ),
    (
        "PSM506",
        "registration never released",
        _W,
        "A buffer was registered and never deregistered although the communicator was torn down.",
        "Pair every ncclCommRegister with ncclCommDeregister before the communicator is destroyed.",
    ),
    (
        "PSM507",
        "handle of one process used by another",
        _E,
        "A process used a stream, event, memory handle or pointer that belongs to another process.",
        "Keep shareable and process-local info in different types; the struct that crossed is named in the evidence.",
    ),
    (
        "PSM508",
        "memory import failed",
        _E,
        "A rank could not import, map or open memory that a peer shared.",
        "Compare the exporter's lines; check permissions, container isolation and free memory on the importing device.",
    ),
    (
        "PSM509",
        "out of memory",
        _E,
        "An allocation failed on the device or the host.",
        "Free memory on that device, or lower NCCL_BUFFSIZE and the number of channels.",
    ),
    (
        "PSM510",
        "handle used that is destroyed or was never created",
        _E,
        "A CUDA call was given a stream, event or memory handle that no longer exists in its process, or never did.",
        "Compare the stacks: who destroyed it, and who still holds it? A handle that came by a message or shared memory is not this process's own.",
    ),
    (
        "PSM511",
        "device memory touched out of bounds, after its free, or by the host",
        _E,
        "A copy or fill left its allocation, or went into freed memory, or host code followed a device pointer.",
        "The stacks name the access, the allocation and the free. Compare the length of the copy with the size that was allocated.",
    ),
    (
        "PSM512",
        "freed twice, or not what was allocated",
        _W,
        "Memory or a handle was given back a second time, or an address was freed that is not the begin of an allocation.",
        "The stacks name both ends: one of the two owners must let go.",
    ),
    (
        "PSM513",
        "event asked for before it was recorded",
        _W,
        "An event was queried or waited for that nothing was recorded in: CUDA answers that it is complete, whatever the work does. The time between events it refuses with invalid handle.",
        "Record the event before others may ask for it; a progress loop may else take unfinished work as done.",
    ),
    (
        "PSM514",
        "memory of a dead process in use",
        _W,
        "Imported memory or an event is still used although the process that it belongs to is gone.",
        "Find out why the owner died; on an abort close imports before the peers go.",
    ),
    (
        "PSM515",
        "a stream stands still behind work that has not ended",
        _W,
        "Queued work, or a thread that synchronises, is by CUDA's order behind a host function that has not returned, or behind a wait for a memory value. If that waits for this work or this thread, both wait for ever; if it waits for a peer, the peer is the one to look at.",
        "See what the host function, or the wait, waits for. Copies of a proxy thread belong on a non-blocking stream that the proxy made itself, never on stream 0.",
    ),
    (
        "PSM601",
        "settings that must be equal differ",
        _E,
        "Ranks run with different values of a setting that both ends of a connection assume to be equal.",
        "Set it to the same value on every rank.",
    ),
    (
        "PSM602",
        "library versions differ",
        _W,
        "Ranks run different NCCL releases.",
        "Load the same library on every rank; print it with NCCL_DEBUG=VERSION.",
    ),
    (
        "PSM603",
        "plugin or network differs between ranks",
        _W,
        "Ranks chose another network or found another plugin than their peers.",
        "Make the plugin visible on every node (NCCL_NET_PLUGIN, LD_LIBRARY_PATH).",
    ),
    (
        "PSM604",
        "diagnostic that does not tell",
        _I,
        "A dump or a RAS answer is empty or healthy because of a limit of the tool, not because nothing waits.",
        "Do not take it for idleness; read the states of all communicators.",
    ),
    (
        "PSM605",
        "fault injected on purpose",
        _W,
        "PSM_FAULTS was set, and a call of this process met the fault that it asks for. What the process and its peers did afterwards may be nothing else than the consequence.",
        "Run again without PSM_FAULTS before anything else is blamed; docs/faults.md says what each action does.",
    ),
    (
        "PSM701",
        "evidence ends",
        _I,
        "The log stops before the work or the teardown is complete, and nothing in it shows who waits for what.",
        "Re-run with the environment that the report prints.",
    ),
    (
        "PSM702",
        "ranks missing from the evidence",
        _W,
        "The communicator has ranks whose log was not given.",
        "Give the logs of all ranks: NCCL_DEBUG_FILE=nccl.%h.%p.log.",
    ),
    (
        "PSM703",
        "data plane not observed",
        _I,
        "Every control-plane exchange in the log is complete; the data path, where a hang may be, prints nothing.",
        "Use stacks of the proxy progress threads, a proxy dump, RAS or the step recorder.",
    ),
    (
        "PSM704",
        "response size hints at a whole private struct",
        _I,
        "Setup answers of one role are as large as a transport's private struct. Healthy builds show it too: only the types or a trace can prove a leaked handle.",
        "Check the type that is copied into the response buffer for streams, events and pointers.",
    ),
    (
        "PSM705",
        "torn or damaged lines",
        _I,
        "Lines were cut, glued or overwritten; what they said is not known.",
        "Let every rank write its own file: NCCL_DEBUG_FILE=nccl.%h.%p.log.",
    ),
    (
        "PSM801",
        "harmless warning",
        _I,
        "A warning that does not matter by itself.",
        "Nothing.",
    ),
    *PLUGIN_CODES,
)

CODES: dict[str, Code] = {row[0]: Code(*row) for row in _TABLE}


def code(name: str) -> Code:
    """The :class:`Code` of ``name``, in any case of letters.

    Raises:
        KeyError: there is no such code.
    """
    return CODES[name.upper()]
