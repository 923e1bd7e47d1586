"""What ``psmkit plugin drive`` checks of a net plugin: the text of each check, and which part of NCCL relies on it.

The checks are in csrc/plugins/drive; ``psm_net_drive --list`` names them in the order in which they run.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHECKS", "Check", "check"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    ``text`` is what a plugin must do, ``source`` who relies on it, ``needs`` a check without which this one says nothing, ``since`` the
    first version of the table that has it, ``next_step`` what to do when it fails.
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
        "`psmkit plugin check` says what the library lacks.",
        None,
    ),
    Check(
        "slots",
        "No slot is NULL that NCCL calls without a look, and the table has a name.",
        _LOAD + "; NCCL_NET is compared with the name",
        "Fill the slot, or leave the table out: an older one is taken then.",
        "load",
    ),
    Check(
        "init",
        "init answers success, with NCCL's logger; from v10 with a profiler callback, from v11 with a context.",
        _LOAD + "; another answer and NCCL goes on without the plugin",
        "Make init answer ncclSuccess where the network can be used; the reason why not belongs into the log, by the logger.",
        "slots",
    ),
    Check(
        "devices",
        "devices says at least one, and getProperties of the first can be called.",
        _LOAD + "; with none NCCL drops the plugin",
        "Answer how many devices there are; where there is none, let init fail.",
        "init",
    ),
    Check(
        "properties",
        "getProperties fills in every member of its version, for each device, the same each time, and within NCCL's bounds.",
        "the topology search, and net.cc of 2.24 and later, which refuses a maxP2pBytes that is 0; records are not cleared before the call",
        "Set each member; shims that copy an older record into a newer one are where they are forgotten.",
        "devices",
    ),
    Check(
        "listen",
        "listen comes back at once with a listenComm of its own and a handle of no more than 128 bytes (v4: 64), and can be closed unused.",
        "NCCL_NET_HANDLE_MAXSIZE is 64 up to 2.11, 128 from 2.12; ranks exchange copies of the handle, and the original is gone",
        "Keep the handle small, write nothing beyond it, and keep no pointer to it.",
        "devices",
    ),
    Check(
        "connect",
        "connect and accept end with a comm each; NULL and success mean: call again. v4 may block instead. Then regMr, deregMr, and close.",
        "transport setup of every release",
        "Answer a comm once the connection stands, and NULL with success before.",
        "listen",
    ),
    Check(
        "message",
        "One message each way of a ring: isend and irecv, test until done, each byte compared.",
        _PROXY,
        "Look at the call that is named first: all other data goes the same way.",
        "connect",
    ),
    Check(
        "connect-early",
        "connect and accept do not block, and do not fail, when the other side has not called yet.",
        "2.12 and later: one thread of the proxy sets up all connections in turn",
        "Make connect and accept machines of states that answer NULL until they are through.",
        "connect",
        5,
    ),
    Check(
        "pairs",
        "All pairs of ranks are connected at the same time, and a message goes over each connection.",
        "alltoall and send/recv connect all pairs before the first waits",
        "Keep the state of each connection apart; do not take connections in the order in which they were asked for.",
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
        "Look for partial sends and receives that are not gone on with.",
    ),
    Check(
        "zero",
        "A message of 0 bytes is a message: it takes its receive, and test says 0.",
        "net.cc sends empty steps; later receives shift if one is swallowed",
        "Send a header for it as for all others.",
    ),
    Check(
        "shorter",
        "A message may be shorter than its receive; test says how many bytes came, and nothing else.",
        "receives are posted with the room of a step; LL128 and send/recv of unequal size",
        "Write the received size of each slot to sizes when done is set, not the posted one.",
    ),
    Check(
        "order",
        "Messages of a connection arrive in the order of isend, whatever their sizes.",
        _PROXY + "; nothing in a message says which step it is",
        "Complete receives in the order in which they were posted, also where several streams or queue pairs carry them.",
    ),
    Check(
        "group",
        "One irecv of 1 to maxRecvs buffers: each send goes to the slot of its tag, in any order, and test gives each slot its size.",
        "2.12 and later group receives of several channels on a shared connection",
        "Match by tag, write n sizes, and call it done when all slots are.",
        "message",
        5,
    ),
    Check(
        "first-group",
        "Tags are matched inside the oldest irecv that is posted; a send for a later one waits, or is refused with NULL.",
        "2.12 and later; the built-in transports match the head of the queue alone",
        "Look in the first irecv that is not full; keep or refuse what does not match there.",
        "message",
        5,
    ),
    Check(
        "same-tags",
        "Groups with the same tags one after another: each send goes to the oldest whose slot is free.",
        "2.12 and later: a connection has the same tags in each step",
        "Mark a slot as taken when its message is matched, and go to the next irecv only when the first is full.",
        "message",
        5,
    ),
    Check(
        "in-flight",
        "NCCL_NET_MAX_REQUESTS receives (8 up to v6, 32 from v7) are taken at a time, and that times maxRecvs sends.",
        "net.cc keeps as many in flight and allocates for them; 2.19 raised 8 to 32",
        "Have room for 32 x maxRecvs requests a connection.",
    ),
    Check(
        "retry",
        "Success with a NULL request means that nothing has happened: the call comes again, perhaps with other data.",
        _PROXY + "; it comes back with the same step in a later turn",
        "Change nothing, and send nothing, in a call that answers NULL.",
    ),
    Check(
        "hint",
        "irecv may find (void *)1 in *request: it answers NULL or a request there, and the data arrives.",
        "2.24 and later pass NCCL_NET_OPTIONAL_RECV_COMPLETION to plugins of v9 and later for LL and LL128",
        "Write *request in every call that answers success, also when nothing was posted.",
        "message",
        9,
    ),
    Check(
        "mixed",
        "Groups, tags and sizes drawn at random, in both directions, all posted as they are taken.",
        _PROXY,
        "The check names the message; sizes and tags follow from the numbers of the ranks, so that it comes again.",
    ),
    Check(
        "longer",
        "A message longer than its receive is an error on one side at least; no byte beyond the receive is written.",
        "the contract in net.h; NCCL has no other way to see calls that do not fit each other",
        "Compare the sizes, log both, and answer ncclInvalidUsage or ncclInternalError from isend or test.",
    ),
    Check(
        "consumed",
        "irecvConsumed may be NULL; where it is there it answers success for each receive that is done. With netDeviceType UNPACK it and getDeviceMr must be there.",
        "net.cc of 2.19 and later, which calls it wherever it is there",
        "Leave the slot NULL where no GPU unpacks, or let it answer success without looking at a request that is gone.",
        "message",
        7,
    ),
    Check(
        "vdevice",
        "makeVDevice may be NULL. It refuses no devices; of two it makes the next one, which devices and getProperties know, and which moves messages.",
        "the topology search of 2.24 and later, which merges the ports of a NIC",
        "Answer the number of devices before, count one more after, and fill in vProps with what it was made of.",
        "message",
        9,
    ),
    Check(
        "events",
        "Events for a profiler: each is started with a phandle of isend or irecv, an id with type and version, and stopped once by the handle of its start, before test says done.",
        "profiler plugins v3 and later, which NCCL hands these events; 2.26 and later",
        "Keep the handle of each start with its request, and stop it when the request is done; NULL phandles are no parents.",
        "message",
        10,
    ),
    Check(
        "collnet",
        "The CollNet table of this version, if there is one, has all slots; init, devices, properties and reduceSupport answer, and all ranks connect in one call.",
        "the collNet transport: connect that ends without a comm is a failure there, and the listener is closed at once",
        "Leave the table out where there is no CollNet, or say 0 devices.",
        "devices",
    ),
    Check(
        "collnet-reduce",
        "iallreduce of all types and operations that reduceSupport names, in place and not, with counts from 1 on.",
        "the collNet transport of every release",
        "Name only what is reduced in reduceSupport.",
        "collnet",
    ),
    Check(
        "collnet-many",
        "Several iallreduce are in flight at a time, and each gives its own result.",
        "the collNet transport, which posts as many as its buffers have steps",
        "Answer a NULL request where no more are taken.",
        "collnet",
    ),
    Check(
        "collnet-gather",
        "iallgather and ireducescatter of the whole and of a window: offset and bytes count in what all ranks have, and memory begins where the window begins.",
        "the collNet transport of 2.20 and later, which works through large buffers in windows",
        "Intersect the window with each rank's share; leave both slots NULL where they are not done.",
        "collnet",
        8,
    ),
    Check(
        "reg",
        "Registrations may overlap, begin and end anywhere, and are given back in any order.",
        "buffers of channels, proxy memory, user buffers",
        "Count what shares pages; round to pages inside the plugin.",
    ),
    Check(
        "offset",
        "Data may lie anywhere in a registration.",
        "all protocols: one registration, a slot for each step",
        "Use the address that isend and irecv get, not that of regMr.",
    ),
    Check(
        "global",
        "With regIsGlobal a registration over a connection to itself serves all connections, also at an offset, and after the other is given back.",
        "2.20 and later: user buffer registration",
        "Keep a count for each registration; say regIsGlobal 0 where it belongs to one connection.",
        "self",
        8,
    ),
    Check(
        "cuda",
        "Memory of a GPU is registered, sent and received; iflush of what came ends.",
        "2.8 and later where ptrSupport has NCCL_PTR_CUDA; iflush is called for more than 0 bytes only",
        "Let test end the flush request; NULL means that there is nothing to wait for.",
    ),
    Check(
        "dmabuf",
        "Memory of a GPU is registered by the descriptor of its DMA-BUF, which is closed after that.",
        "2.13 and later where ptrSupport has NCCL_PTR_DMABUF",
        "Keep what is needed of the descriptor, not its number.",
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
        "Two communicators have a context each; the first goes on when the second ends.",
        "2.28 and later: init and finalize for each communicator",
        "Keep the state of a communicator in its context, and count what they share.",
        "message",
        11,
    ),
    Check(
        "close",
        "closeSend, closeRecv and closeListen in any order, before or after the other side, with and without messages.",
        "transport teardown of every release; ranks do not wait for each other",
        "A comm owns what it needs; the end of the other side is no error in close.",
    ),
    Check(
        "close-after-send",
        "What test has called done arrives, although the sender closes its comm at once.",
        "transport teardown of every release",
        "Call a send done when its data needs the sender no more, or wait in closeSend.",
    ),
    Check(
        "leaks",
        "Connections that are closed leave no descriptor and no thread.",
        "jobs that make and destroy communicators all day",
        "Close what connect, accept and listen opened; join threads.",
        "close",
    ),
    Check(
        "finalize",
        "finalize answers success, and init works again after it.",
        "2.28 and later: the next communicator",
        "Put back what init set.",
        "connect",
        11,
    ),
    Check(
        "unload",
        "The library can be unloaded; no thread of it runs on.",
        "2.19 and later close the library with the last communicator",
        "End threads in finalize or close, at the latest in a destructor.",
        "devices",
    ),
)

_BY_NAME = {one.name: one for one in CHECKS}


def check(name: str) -> Check:
    """The check of that name.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]
