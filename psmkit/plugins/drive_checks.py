"""The checks of ``psmkit plugin drive`` for net plugins: the text of each check, and which part of NCCL relies on it.

The checks are in csrc/plugins/drive; ``psm_net_drive --list`` names them in the order in which they run.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHECKS", "Check", "check"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    ``text`` is what a plugin must do, ``source`` what relies on it, ``needs`` a check that must pass before this one is meaningful, ``since``
    the first version of the table that has it, ``next_step`` what to do when it fails.
    """

    name: str
    text: str
    source: str
    next_step: str
    needs: str | None = "message"
    since: int = 4


_LOAD = "the plugin loader of every release"
_PROXY = "the proxy of every release: net.cc polls all connections from one thread"

CHECKS: tuple[Check, ...] = (
    Check(
        "load",
        "The library is loaded with RTLD_NOW and has the table of this version.",
        _LOAD,
        "Run `psmkit plugin check`: it reports what the library lacks.",
        None,
    ),
    Check(
        "slots",
        "No slot is NULL that NCCL calls without a check, and the table has a name.",
        _LOAD + "; NCCL_NET is compared with the name",
        "Fill the slot, or leave the table out: NCCL then takes an older one.",
        "load",
    ),
    Check(
        "init",
        "init returns success with NCCL's logger; from v10 with a profiler callback, from v11 with a context.",
        _LOAD + "; after any other answer NCCL continues without the plugin",
        "Answer ncclSuccess from init if the network can be used. Otherwise log the reason with the logger.",
        "slots",
    ),
    Check(
        "devices",
        "devices reports at least one device, and getProperties of the first can be called.",
        _LOAD + "; without a device NCCL drops the plugin",
        "Report the number of devices. If there is none, let init fail.",
        "init",
    ),
    Check(
        "properties",
        "getProperties fills in every member of its version, for each device, the same each time, and within NCCL's bounds.",
        "the topology search, and net.cc of 2.24 and later, which refuses a maxP2pBytes of 0; NCCL does not clear the records before the call",
        "Set each member. Shims that copy an older record into a newer one often forget the new members.",
        "devices",
    ),
    Check(
        "listen",
        "listen returns at once with a listenComm of its own and a handle of at most 128 bytes (v4: 64). The listenComm can be closed unused.",
        "NCCL_NET_HANDLE_MAXSIZE is 64 up to 2.11, 128 from 2.12; ranks exchange copies of the handle, and the original is freed",
        "Keep the handle small, do not write beyond it, and keep no pointer to it.",
        "devices",
    ),
    Check(
        "connect",
        "connect and accept each return a comm. NULL with success means: call again. v4 may block instead. Then regMr, deregMr, and close.",
        "transport setup of every release",
        "Return a comm once the connection is made, and NULL with success before.",
        "listen",
    ),
    Check(
        "message",
        "One message each way in a ring: isend and irecv, test until done, each byte compared.",
        _PROXY,
        "Look at the call that the finding names: all other data takes the same path.",
        "connect",
    ),
    Check(
        "connect-early",
        "connect and accept neither block nor fail when the other side has not called yet.",
        "2.12 and later: one thread of the proxy sets up all connections in turn",
        "Make connect and accept state machines that return NULL until they are done.",
        "connect",
        5,
    ),
    Check(
        "pairs",
        "All pairs of ranks are connected at the same time, and a message goes over each connection.",
        "alltoall and send/recv connect all pairs before the first waits",
        "Keep the state of each connection separate. Do not assume that connections arrive in the order of the calls.",
        "message",
        5,
    ),
    Check(
        "self",
        "A process connects to itself, with one thread for both ends, and sends itself a message.",
        "2.19 and later register user buffers over such a connection",
        "Neither connect nor accept may wait for the other.",
        "message",
        5,
    ),
    Check(
        "each-device",
        "Each further device listens, connects and moves a message, as the first does.",
        "rings and trees use all devices",
        "Leave out devices that cannot reach others.",
    ),
    Check(
        "sizes",
        "Messages from 1 byte to 4 MiB, also at odd sizes, arrive whole.",
        "buffers are 4 MiB a channel; the last part of a message has any size",
        "Look for partial sends and receives that are not continued.",
    ),
    Check(
        "zero",
        "A message of 0 bytes is a message: it completes its receive, and test reports 0.",
        "net.cc sends empty steps; if one is lost, all later receives shift",
        "Send a header for it, as for other messages.",
    ),
    Check(
        "shorter",
        "A message may be shorter than its receive; test reports the bytes that arrived.",
        "receives are posted with the size of a step; LL128 and send/recv of unequal size",
        "When done is set, write the received size of each slot to sizes, not the posted one.",
    ),
    Check(
        "order",
        "Messages of a connection arrive in the order of isend, whatever their sizes.",
        _PROXY + "; a message does not carry its step",
        "Complete receives in the order in which they were posted, also with several streams or queue pairs.",
    ),
    Check(
        "group",
        "One irecv of 1 to maxRecvs buffers: each send goes to the slot with its tag, in any order, and test reports the size of each slot.",
        "2.12 and later group receives of several channels on a shared connection",
        "Match by tag, write n sizes, and report done when all slots are done.",
        "message",
        5,
    ),
    Check(
        "first-group",
        "Tags are matched only inside the oldest posted irecv. A send for a later one waits, or gets a NULL request.",
        "2.12 and later; the built-in transports match only the head of the queue",
        "Search the first irecv that is not full. Keep or refuse a message that does not match there.",
        "message",
        5,
    ),
    Check(
        "same-tags",
        "Groups with the same tags, one after another: each send goes to the oldest with a free slot.",
        "2.12 and later: a connection has the same tags in each step",
        "Mark a slot as taken when its message is matched, and go to the next irecv only when the first is full.",
        "message",
        5,
    ),
    Check(
        "in-flight",
        "The plugin accepts NCCL_NET_MAX_REQUESTS receives at a time (8 up to v6, 32 from v7), and maxRecvs times as many sends.",
        "net.cc keeps that many in flight and allocates for them; 2.19 raised 8 to 32",
        "Provide room for 32 x maxRecvs requests per connection.",
    ),
    Check(
        "retry",
        "Success with a NULL request means that nothing happened: NCCL repeats the call, perhaps with other data.",
        _PROXY + "; it repeats the same step in a later turn",
        "Change nothing and send nothing in a call that returns NULL.",
    ),
    Check(
        "hint",
        "irecv may find (void *)1 in *request. It writes NULL or a request there, and the data arrives.",
        "2.24 and later pass NCCL_NET_OPTIONAL_RECV_COMPLETION to plugins of v9 and later for LL and LL128",
        "Write *request in each call that returns success, also when nothing was posted.",
        "message",
        9,
    ),
    Check(
        "mixed",
        "Groups, tags and sizes at random, in both directions, all posted as the plugin accepts them.",
        _PROXY,
        "The check names the message. Sizes and tags follow from the rank numbers, so the failure repeats.",
    ),
    Check(
        "longer",
        "A message longer than its receive is an error on at least one side. No byte beyond the receive is written.",
        "the contract in net.h; NCCL cannot detect mismatched calls otherwise",
        "Compare the sizes, log both, and return ncclInvalidUsage or ncclInternalError from isend or test.",
    ),
    Check(
        "consumed",
        "irecvConsumed may be NULL. Otherwise it returns success for each receive that is done. With netDeviceType UNPACK both it and getDeviceMr are required.",
        "net.cc of 2.19 and later, which calls it if it exists",
        "Leave the slot NULL if no GPU unpacks, or return success without reading a request that is done.",
        "message",
        7,
    ),
    Check(
        "vdevice",
        "makeVDevice may be NULL. Otherwise it refuses an empty list. From two devices it makes the next one; devices and getProperties report it, and it moves messages.",
        "the topology search of 2.24 and later, which merges the ports of a NIC",
        "Return the old number of devices, count one more afterwards, and fill vProps with the devices that it was made from.",
        "message",
        9,
    ),
    Check(
        "events",
        "Events for a profiler: each is started with a phandle of isend or irecv and an id with type and version, and stopped once with the handle of its start, before test reports done.",
        "profiler plugins v3 and later, to which NCCL passes these events; 2.26 and later",
        "Keep the handle of each start with its request, and stop it when the request is done. A NULL phandle is not a parent.",
        "message",
        10,
    ),
    Check(
        "collnet",
        "If there is a CollNet table of this version, it has all slots; init, devices, properties and reduceSupport work, and all ranks connect in one call.",
        "the collNet transport: there a connect without a comm is a failure, and the listener is closed at once",
        "Leave the table out if there is no CollNet, or report 0 devices.",
        "devices",
    ),
    Check(
        "collnet-reduce",
        "iallreduce of all types and operations that reduceSupport accepts, in place and not, with counts from 1 on.",
        "the collNet transport of every release",
        "Accept only what the plugin can reduce in reduceSupport.",
        "collnet",
    ),
    Check(
        "collnet-many",
        "Several iallreduce are in flight at a time, and each returns its own result.",
        "the collNet transport, which posts as many as its buffers have steps",
        "Return a NULL request when the plugin accepts no more.",
        "collnet",
    ),
    Check(
        "collnet-gather",
        "iallgather and ireducescatter of the whole and of a window: offset and bytes refer to the data of all ranks, and memory begins at the begin of the window.",
        "the collNet transport of 2.20 and later, which works through large buffers in windows",
        "Intersect the window with each rank's share. Leave both slots NULL if the plugin does not implement them.",
        "collnet",
        8,
    ),
    Check(
        "reg",
        "Registrations may overlap, begin and end anywhere, and are released in any order.",
        "buffers of channels, proxy memory, user buffers",
        "Count references of shared pages. Round to pages inside the plugin.",
    ),
    Check(
        "offset",
        "Data may lie anywhere in a registration.",
        "all protocols: one registration, a slot for each step",
        "Use the address passed to isend and irecv, not that passed to regMr.",
    ),
    Check(
        "global",
        "With regIsGlobal a registration over a connection to self serves all connections, also at an offset, and after the other is released.",
        "2.20 and later: user buffer registration",
        "Keep a reference count for each registration. Report regIsGlobal 0 if it belongs to one connection.",
        "self",
        8,
    ),
    Check(
        "cuda",
        "GPU memory is registered, sent and received; iflush of the received data completes.",
        "2.8 and later if ptrSupport has NCCL_PTR_CUDA; iflush is called only for more than 0 bytes",
        "Complete the flush request in test. NULL means that there is nothing to wait for.",
    ),
    Check(
        "dmabuf",
        "GPU memory is registered by the descriptor of its DMA-BUF, which is closed afterwards.",
        "2.13 and later if ptrSupport has NCCL_PTR_DMABUF",
        "Import the buffer or duplicate the descriptor; do not keep its number.",
        "cuda",
        6,
    ),
    Check(
        "threads",
        "One thread connects, another moves data, a third closes.",
        "proxy progress, proxy service and the application's threads",
        "Keep nothing in thread-local memory.",
    ),
    Check(
        "contexts",
        "Two communicators have a context each; the first continues when the second ends.",
        "2.28 and later: init and finalize for each communicator",
        "Keep the state of a communicator in its context, and count references of shared state.",
        "message",
        11,
    ),
    Check(
        "close",
        "closeSend, closeRecv and closeListen in any order, before or after the other side, with and without messages.",
        "transport teardown of every release; ranks do not wait for each other",
        "Let each comm own what it needs. The end of the other side is not an error in close.",
    ),
    Check(
        "close-after-send",
        "A message that test reported done arrives, even if the sender closes its comm at once.",
        "transport teardown of every release",
        "Report a send done when its data no longer needs the sender, or wait in closeSend.",
    ),
    Check(
        "leaks",
        "Closed connections leave no descriptor and no thread.",
        "jobs that make and destroy communicators all day",
        "Close what connect, accept and listen opened; join threads.",
        "close",
    ),
    Check(
        "finalize",
        "finalize returns success, and init works again afterwards.",
        "2.28 and later: the next communicator",
        "Reset what init set.",
        "connect",
        11,
    ),
    Check(
        "unload",
        "The library can be unloaded; none of its threads keeps running.",
        "2.19 and later close the library with the last communicator",
        "End threads in finalize or close, at the latest in a destructor.",
        "devices",
    ),
)

_BY_NAME = {one.name: one for one in CHECKS}


def check(name: str) -> Check:
    """The check with this name.

    Raises:
        KeyError: no check has this name.
    """
    return _BY_NAME[name]
