"""The checks of ``psmkit plugin drive`` for net plugins: the text of each check, and which part of NCCL relies on it.

The checks are in csrc/plugins/drive; ``psm_net_drive --list`` names them in the order in which they run.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from psmkit.model import Severity

__all__ = ["CHECKS", "HOST", "LATE", "Check", "Grade", "check", "classes"]

#: For ``but`` of a check: the plugin moves host memory only. Else it has kinds of failures.
HOST = "host"
LATE = "late"
CONTRACT = "contract"


class Grade(enum.Enum):
    """What a failed check means for a job: the text, and the severity of its finding, which decides the exit status."""

    BREAKS = ("NCCL breaks", Severity.ERROR)  # the job dies, hangs or gets wrong data, or NCCL drops the plugin
    LUCK = ("NCCL works by luck", Severity.WARNING)  # it depends on timing, on the size of the job, or on the release
    ADVICE = ("advice", Severity.INFO)  # NCCL never does that, or never reads it

    def __init__(self, text: str, severity: Severity) -> None:
        self.text, self.severity = text, severity

    @property
    def note(self) -> bool:
        """Whether a failure is no reason to call the plugin wrong."""
        return not self.severity.weight


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    ``text`` is what a plugin must do, ``source`` what NCCL does there: the function, and a release that has it; ``needs`` a check without which
    this one can try nothing, ``since`` the first version of the table that has it, ``next_step`` what to do when it fails. ``grade`` is what a
    failure means for a job; ``but`` has other grades, for a plugin without GPU memory (``HOST``) and for kinds of failures.
    """

    name: str
    text: str
    source: str
    next_step: str
    needs: str | None = "message"
    since: int = 4
    grade: Grade = Grade.BREAKS
    but: Mapping[str, Grade] = field(default_factory=dict)

    def grade_of(self, kind: str, host: bool = False) -> Grade:
        """What a failure of this kind means; host: of a plugin that moves host memory only."""
        grades = [self.but.get(kind, self.grade), *([self.but[HOST]] if host and HOST in self.but else [])]
        return min(grades, key=lambda grade: grade.severity.weight)


CHECKS: tuple[Check, ...] = (
    Check(
        "load",
        "The library is loaded with RTLD_NOW and has the table of this version, with a name and init.",
        "ncclNetPluginLoad (2.30.7 plugin/net.cc) opens the library and takes the newest table; ncclNetInit compares the name with NCCL_NET before init",
        "Run `psmkit plugin check`: it reports what the library lacks.",
        None,
    ),
    Check(
        "init",
        "init returns success with NCCL's logger; from v10 with a profiler callback, from v11 with a context.",
        "ncclNetPluginInit (2.30.7 plugin/net.cc); after any other answer NCCL continues without the plugin",
        "Answer ncclSuccess from init if the network can be used. Otherwise log the reason with the logger.",
        "load",
    ),
    Check(
        "slots",
        "After init no slot is NULL that NCCL calls without a check. init may fill the table.",
        "ncclNet_init (2.30.7 plugin/net/net_v10.cc) copies the functions after the plugin's init; a table of the newest version is read at each call. No function is checked",
        "Fill the slot, or leave the table out: NCCL then takes an older one.",
        "init",
    ),
    Check(
        "devices",
        "devices reports at least one device, and getProperties of the first can be called.",
        "ncclNetPluginInit (2.30.7 plugin/net.cc) drops a plugin without a device; ncclNetCheckDeviceVersion reads the properties of device 0",
        "Report the number of devices. If there is none, let init fail.",
        "slots",
    ),
    Check(
        "properties",
        "getProperties fills in every member of its version, for each device, the same each time, and within NCCL's bounds.",
        "ncclTopoPopulateNics (2.30.7 graph/topo.cc) and sendProxySetup (transport/net.cc), which refuses a maxP2pBytes of 0; neither clears the record before the call",
        "Set each member. Shims that copy an older record into a newer one often forget the new members.",
        "devices",
    ),
    Check(
        "listen",
        "listen returns at once with a listenComm of its own and a handle of at most 128 bytes (v4: 64). The listenComm can be closed unused.",
        "recvProxySetup (2.30.7 transport/net.cc): the handle goes to the sender in a record with room for NCCL_NET_HANDLE_MAXSIZE bytes, 64 up to 2.11, 128 from 2.12; the original is freed",
        "Keep the handle small, do not write beyond it, and keep no pointer to it.",
        "devices",
    ),
    Check(
        "connect",
        "connect and accept each return a comm. NULL with success means: call again. v4 may block instead. Then regMr, deregMr, and close.",
        "sendProxyConnect and recvProxyConnect (2.30.7 transport/net.cc), which the proxy calls again until there is a comm",
        "Return a comm once the connection is made, and NULL with success before.",
        "listen",
    ),
    Check(
        "message",
        "One message each way in a ring: isend and irecv, test until done, each byte compared.",
        "sendProxyProgress and recvProxyProgress (2.30.7 transport/net.cc): one thread posts and tests for all connections of a rank",
        "Look at the call that the finding names: all other data takes the same path.",
        "connect",
    ),
    Check(
        "connect-early",
        "connect and accept neither block nor fail when the other side has not called yet.",
        "proxyProgressAsync (2.30.7 proxy.cc): from 2.12 on one thread of the proxy sets up all connections in turn. Two ranks that wait for each other stop; see pairs",
        "Make connect and accept state machines that return NULL until they are done.",
        "connect",
        5,
        grade=Grade.LUCK,
    ),
    Check(
        "pairs",
        "All pairs of ranks are connected at the same time, and a message goes over each connection.",
        "proxyProgressAsync (2.30.7 proxy.cc): alltoall and send/recv connect all pairs before the first waits",
        "Keep the state of each connection separate. Do not assume that connections arrive in the order of the calls.",
        "message",
        5,
    ),
    Check(
        "self",
        "A process connects to itself, with one thread for both ends, and sends itself a message.",
        "ncclGpuGdrSupport (2.30.7 plugin/net.cc) does it if ptrSupport has NCCL_PTR_CUDA, with one thread; no release does it for host memory",
        "Neither connect nor accept may wait for the other.",
        "message",
        5,
        but={HOST: Grade.ADVICE},
    ),
    Check(
        "each-device",
        "Each further device listens, connects and moves a message, as the first does.",
        "ncclTopoComputePaths and ncclTopoGetNetDev (2.30.7 graph): rings and trees use all devices",
        "Leave out devices that cannot reach others.",
    ),
    Check(
        "sizes",
        "Messages from 1 byte to 4 MiB, also at odd sizes, arrive whole.",
        "sendProxyProgress (2.30.7 transport/net.cc): buffers are 4 MiB a channel, and the last part of a message has any size",
        "Look for partial sends and receives that are not continued.",
    ),
    Check(
        "zero",
        "A message of 0 bytes is a message: it completes its receive.",
        "sendProxyProgress (2.30.7 transport/net.cc) sends steps of 0 bytes; if one is lost, all later receives shift",
        "Send a header for it, as for other messages.",
    ),
    Check(
        "shorter",
        "A message may be shorter than its receive; test reports the bytes that arrived, for each slot of a group.",
        "recvProxyProgress (2.30.7 transport/net.cc) clears the sizes before test, flushes GPU memory if their sum is not 0, and passes them to a profiler. 2.20 to 2.23 continue a registered receive by them. Host memory is neither flushed nor registered",
        "When done is set, write the received size of each slot to sizes, not the posted one.",
        but={HOST: Grade.ADVICE},
    ),
    Check(
        "order",
        "Messages of a connection arrive in the order of isend, whatever their sizes.",
        "sendProxyProgress and recvProxyProgress (2.30.7 transport/net.cc); a message does not carry its step",
        "Complete receives in the order in which they were posted, also with several streams or queue pairs.",
    ),
    Check(
        "group",
        "One irecv of 1 to maxRecvs buffers: each send goes to the slot with its tag, in any order.",
        "recvProxyProgress (2.30.7 transport/net.cc): from 2.12 on one irecv serves the channels that share a connection",
        "Match by tag, write n sizes, and report done when all slots are done.",
        "message",
        5,
    ),
    Check(
        "first-group",
        "Tags are matched only inside the oldest posted irecv. A send for a later one waits, or gets a NULL request.",
        "recvProxyProgress (2.30.7 transport/net.cc); ncclIbMultiSend (transport/net_ib) matches only the head of the queue, too",
        "Search the first irecv that is not full. Keep or refuse a message that does not match there.",
        "message",
        5,
    ),
    Check(
        "same-tags",
        "Groups with the same tags, one after another: each send goes to the oldest with a free slot.",
        "sendProxyProgress (2.30.7 transport/net.cc): a connection has the same tags in each step",
        "Mark a slot as taken when its message is matched, and go to the next irecv only when the first is full.",
        "message",
        5,
    ),
    Check(
        "test-order",
        "With maxRecvs 1, test answers for any open request of a connection, not only for the oldest one.",
        "recvProxyProgress and sendProxyProgress (2.30.7 transport/net.cc) test the oldest request of a channel. Channels share a connection only if maxRecvs is more than 1 (recvProxyConnect): then all other checks test in any order",
        "Look the request up, or answer 0 in done and success: net.h does not limit which request is tested.",
        grade=Grade.ADVICE,
    ),
    Check(
        "in-flight",
        "The plugin accepts NCCL_NET_MAX_REQUESTS receives at a time (8 up to v6, 32 from v7), and maxRecvs times as many sends.",
        "recvProxyProgress and sendProxyProgress (2.30.7 transport/net.cc) keep NCCL_STEPS requests a channel in flight and call again after NULL; 2.19 raised NCCL_NET_MAX_REQUESTS from 8 to 32",
        "Provide room for 32 x maxRecvs requests per connection.",
        but={LATE: Grade.LUCK},
    ),
    Check(
        "retry",
        "Success with a NULL request means that nothing happened: NCCL repeats the call, perhaps with other data.",
        "sendProxyProgress (2.30.7 transport/net.cc) repeats the step in a later turn when the request is NULL",
        "Change nothing and send nothing in a call that returns NULL.",
    ),
    Check(
        "hint",
        "irecv may find (void *)1 in *request. It writes NULL or a request there, and the data arrives.",
        "recvProxyProgress (2.24.3 transport/net.cc and later) passes NCCL_NET_OPTIONAL_RECV_COMPLETION to plugins of v9 and later for LL and LL128, and tests what it then finds there",
        "Write *request in each call that returns success, also when nothing was posted.",
        "message",
        9,
    ),
    Check(
        "mixed",
        "Groups, tags and sizes at random, in both directions, all posted as the plugin accepts them.",
        "sendProxyProgress and recvProxyProgress (2.30.7 transport/net.cc)",
        "The check names the message. Sizes and tags follow from the rank numbers, so the failure repeats.",
    ),
    Check(
        "longer",
        "A message longer than its receive is an error on at least one side. No byte beyond the receive is written.",
        "net.h of all releases. NCCL itself posts enough room: only calls of the application that do not match send more",
        "Compare the sizes, log both, and return ncclInvalidUsage or ncclInternalError from isend or test.",
        grade=Grade.LUCK,
    ),
    Check(
        "consumed",
        "irecvConsumed may be NULL. Otherwise it returns success for each receive that is done. With netDeviceType UNPACK both it and getDeviceMr are required.",
        "recvProxyProgress (2.19.3 transport/net.cc and later), which calls it if it exists",
        "Leave the slot NULL if no GPU unpacks, or return success without reading a request that is done.",
        "message",
        7,
    ),
    Check(
        "vdevice",
        "makeVDevice may be NULL. Otherwise it refuses an empty list. From two devices it makes the next one; devices and getProperties report it, and it moves messages.",
        "ncclTopoMakeVnic (2.24.3 graph/topo.cc and later), which merges the ports of a NIC",
        "Return the old number of devices, count one more afterwards, and fill vProps with the devices that it was made from.",
        "message",
        9,
    ),
    Check(
        "events",
        "Events for a profiler: each is started with a phandle of isend or irecv and an id with type and version, and stopped once with the handle of its start, before test reports done.",
        "ncclProfilerCallback (2.30.7 plugin/profiler.cc; 2.26 and later) passes the events to a profiler",
        "Keep the handle of each start with its request, and stop it when the request is done. A NULL phandle is not a parent.",
        "message",
        10,
        grade=Grade.LUCK,
    ),
    Check(
        "collnet",
        "If there is a CollNet table of this version, it has all slots; init, devices, properties and reduceSupport work, and all ranks connect in one call.",
        "sharedConnect (2.30.7 transport/coll_net.cc): there a connect without a comm is a failure, and the listener is closed at once. The table is read after CollNet's init (plugin/net/net_v10.cc)",
        "Leave the table out if there is no CollNet, or report 0 devices.",
        "devices",
    ),
    Check(
        "collnet-reduce",
        "iallreduce of all types and operations that reduceSupport accepts, in place and not, with counts from 1 on.",
        "sendProxyProgress (2.30.7 transport/coll_net.cc)",
        "Accept only what the plugin can reduce in reduceSupport.",
        "collnet",
    ),
    Check(
        "collnet-many",
        "Several iallreduce are in flight at a time, and each returns its own result.",
        "sendProxyProgress (2.30.7 transport/coll_net.cc), which posts as many as its buffers have steps",
        "Return a NULL request when the plugin accepts no more.",
        "collnet",
    ),
    Check(
        "collnet-gather",
        "iallgather and ireducescatter of the whole and of a window: offset and bytes refer to the data of all ranks, and memory begins at the begin of the window.",
        "sendProxyProgress (2.20.3 transport/coll_net.cc and later), which works through large buffers in windows",
        "Intersect the window with each rank's share. Leave both slots NULL if the plugin does not implement them.",
        "collnet",
        8,
    ),
    Check(
        "reg",
        "Registrations may overlap, begin and end anywhere, and are released in any order.",
        "sendProxyConnect and recvProxyConnect (2.30.7 transport/net.cc) register buffers of channels, sendProxyRegBuffer those of users",
        "Count references of shared pages. Round to pages inside the plugin.",
        grade=Grade.LUCK,
    ),
    Check(
        "offset",
        "Data may lie anywhere in a registration.",
        "recvProxyProgress (2.30.7 transport/net.cc): one registration for all protocols, a slot for each step",
        "Use the address passed to isend and irecv, not that passed to regMr.",
    ),
    Check(
        "global",
        "With regIsGlobal a registration over a connection to self serves all connections, also at an offset, and after the other is released.",
        "ncclNetRegister (2.20.3 to 2.23.4 register.cc) if regIsGlobal is 1; later releases do not read it",
        "Keep a reference count for each registration. Report regIsGlobal 0 if it belongs to one connection.",
        "self",
        8,
    ),
    Check(
        "cuda",
        "GPU memory is registered, sent and received; iflush of the received data completes.",
        "recvProxyConnect and recvProxyProgress (2.8 and later) if ptrSupport has NCCL_PTR_CUDA; iflush is called only for more than 0 bytes",
        "Complete the flush request in test. NULL means that there is nothing to wait for.",
    ),
    Check(
        "dmabuf",
        "GPU memory is registered by the descriptor of its DMA-BUF, which is closed afterwards.",
        "sendProxyConnect and recvProxyConnect (2.13 and later) if ptrSupport has NCCL_PTR_DMABUF",
        "Import the buffer or duplicate the descriptor; do not keep its number.",
        "message",
        6,
    ),
    Check(
        "threads",
        "One thread connects, another moves data, a third closes.",
        "ncclProxyService and ncclProxyProgress (2.30.7 proxy.cc) are two threads of a rank; ncclCommDestroy is called by a third",
        "Keep nothing in thread-local memory.",
    ),
    Check(
        "contexts",
        "Two communicators have a context each; the first continues when the second ends.",
        "ncclNetPluginInit and ncclNetFinalize (2.28.3 plugin/net.cc and later) for each communicator",
        "Keep the state of a communicator in its context, and count references of shared state.",
        "message",
        11,
    ),
    Check(
        "close",
        "closeSend, closeRecv and closeListen in any order, before or after the other side, with and without messages.",
        "sendProxyFree and recvProxyFree (2.30.7 transport/net.cc); ranks do not wait for each other",
        "Let each comm own what it needs. The end of the other side is not an error in close.",
        but={LATE: Grade.LUCK, CONTRACT: Grade.LUCK},
    ),
    Check(
        "close-after-send",
        "A message that test reported done arrives, even if the sender closes its comm at once.",
        "sendProxyFree (2.30.7 transport/net.cc) after the last test of the sender",
        "Report a send done when its data no longer needs the sender, or wait in closeSend.",
        but={LATE: Grade.LUCK, CONTRACT: Grade.LUCK},
    ),
    Check(
        "leaks",
        "Closed connections leave no descriptor and no thread.",
        "sendProxyFree and recvProxyFree (2.30.7 transport/net.cc). NCCL does not notice; jobs that make and destroy communicators all day do",
        "Close what connect, accept and listen opened; join threads.",
        "connect",
        grade=Grade.LUCK,
    ),
    Check(
        "finalize",
        "finalize returns success, and init works again afterwards.",
        "ncclNetFinalize (2.28.3 plugin/net.cc and later), then init for the next communicator",
        "Reset what init set.",
        "connect",
        11,
    ),
    Check(
        "unload",
        "The library can be unloaded; none of its threads keeps running.",
        "ncclNetPluginUnload (2.30.7 plugin/net.cc): 2.19 and later close the library with the last communicator",
        "End threads in finalize or close, at the latest in a destructor.",
        "devices",
    ),
)

_BUT = {
    HOST: "for host memory alone",
    LATE: "if it is late",
    CONTRACT: "for an error",
    # of a tuner
    "name": "without a name",
    "end": "for an error of finalize",
    "number": "for a constant that is no number",
    "clamped": "for channels that NCCL lowers",
    "unchosen": "for a pair that was not offered and is not the cheapest",
    "adapter": "for such a pair with v2",
    "skipped": "for a cost that NCCL skips",
}


def classes(check: Check) -> str:
    """The class of a check, in words, and the exceptions."""
    return "; ".join(
        [check.grade.text, *(f"{_BUT.get(what, f'if it is {what}')}: {g.text}" for what, g in check.but.items())]
    )


_BY_NAME = {one.name: one for one in CHECKS}


def check(name: str) -> Check:
    """The check with this name.

    Raises:
        KeyError: no check has this name.
    """
    return _BY_NAME[name]
