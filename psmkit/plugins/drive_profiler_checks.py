"""What ``psmkit plugin drive`` checks of a profiler: the text of each check, and which part of NCCL relies on it.

The checks are in csrc/plugins/drive/profiler; ``psm_profiler_drive --list`` names them in the order in which they run.
"""

from __future__ import annotations

from psmkit.plugins.drive_checks import Check

__all__ = ["PROFILER_CHECKS"]

_LOAD = "the plugin loader of 2.23 and later"
_PROXY = "the proxy thread, which calls the profiler for each step of each transfer"
_RESULT = "NCCL does not look at what startEvent, stopEvent and recordEventState answer"

PROFILER_CHECKS: tuple[Check, ...] = (
    Check(
        "load",
        "The library is loaded with RTLD_NOW and has the table of this version.",
        _LOAD + "; the newest version whose symbol is there is taken, and no other is tried after it",
        "`psmkit plugin check` says what the library lacks.",
        None,
        1,
    ),
    Check(
        "slots",
        "No slot is NULL, and the table has a name.",
        _LOAD + "; each slot is called without a look",
        "Fill the slot, with a function that does nothing where nothing is to be done.",
        "load",
        1,
    ),
    Check(
        "init",
        "init answers success for one rank, for 8, and for 1024 on 128 nodes, with a context, and finalize ends each.",
        _LOAD
        + "; with another answer NCCL goes on without the profiler, and without a context 2.28 never calls finalize",
        "Answer ncclSuccess wherever the profiler can work, and store something in *context that is not NULL.",
        "slots",
        1,
    ),
    Check(
        "mask",
        "init sets the activation mask, with bits that stand for events of this version only.",
        "all events: NCCL starts those that are asked for, and what is above them",
        "Leave out bits that this version does not have; take what is asked for from a setting whose default is not 0.",
        "init",
        1,
    ),
    Check(
        "collective",
        "A collective, from the group to the steps of its proxy operations: each event gets a handle of its own, or NULL.",
        f"plan launch and proxy; {_RESULT}",
        "The finding names the rule; a handle has to stay that of one event until it is stopped.",
        "init",
        1,
    ),
    Check(
        "p2p",
        "Sends and receives, from the group to the steps of their proxy operations.",
        f"plan launch and proxy; {_RESULT}",
        "The finding names the rule; a handle has to stay that of one event until it is stopped.",
        "init",
        1,
    ),
    Check(
        "group",
        "64 collectives and 96 sends and receives in one group call, with all proxy operations at the same time.",
        "ncclGroupEnd launches what was called; pipeline and expert parallelism have hundreds of operations in a group",
        "Answer NULL where there is no room: NCCL goes on, and what is below gets NULL as its parent.",
        "init",
        1,
    ),
    Check(
        "adapter",
        "The same as NCCL 2.30 calls a table of v1 to v5: no states of proxy operations in v1 to v3, arguments with all states, no communicator's name.",
        "adapters of newer releases, which call the newest table that the library has",
        "Take states and members that a release leaves out as not told.",
        "collective",
        1,
    ),
    Check(
        "order",
        "Proxy operations of older collectives start after newer ones have come and gone; their parents are stopped by then.",
        "the events of operations are stopped when these are enqueued, those of the proxy start when there is data",
        "Keep what a child needs of an event after stopEvent, and give its handle to no other event while children may come.",
        "collective",
        1,
    ),
    Check(
        "graph",
        "Operations of a captured graph run again and again, below the same API events, which were stopped at the capture.",
        "CUDA graphs: a launch starts the events of the plan from a host callback, each time",
        "Let a parent have any number of children, at any time.",
        "collective",
        1,
    ),
    Check(
        "null-parent",
        "Events of each kind have NULL as their parent.",
        "where the profiler gave NULL for the parent; from v5 where no call of the API is behind an operation",
        "Look at parentObj before it is followed.",
        "init",
        1,
    ),
    Check(
        "null-handle",
        "stopEvent and recordEventState with NULL do nothing.",
        "2.26 and later stop events of net plugins without a look at the handle; 2.23 to 2.25 those of operations",
        "Begin both with: if the handle is NULL, return success.",
        "init",
        1,
    ),
    Check(
        "descriptor",
        "Descriptors and the arguments of states are gone when the call returns, and are never written to.",
        "both are on NCCL's stack",
        "Copy what is needed.",
        "init",
        1,
    ),
    Check(
        "strings",
        "The strings of descriptors are not read after the call (a warning only).",
        "nobody so far: NCCL's are constants, which its contract does not promise",
        "Copy the strings, or compare them in startEvent and keep a number.",
        "init",
        1,
    ),
    Check(
        "pxn",
        "Of an operation of another process (proxyOp.pid) neither parentObj nor the context are touched, nor the context for its steps, which have NULL as their parent if it was not taken.",
        "PXN: the proxy of one process serves another; both pointers are addresses there (NVIDIA/nccl#1586)",
        "Compare proxyOp.pid with getpid() before anything of the call is followed; find the operation of a step by its parent.",
        "init",
        1,
    ),
    Check(
        "mask-off",
        "The mask changes between the call of an operation and its launch, and while operations run.",
        "the mask is read when an operation is called, and goes with it to the proxy",
        "Take events also of a kind that is not asked for any more, and do without those above them.",
        "init",
        1,
    ),
    Check(
        "communicators",
        "Four communicators at the same time; the first ends, the others go on, its hash comes again.",
        "each communicator has a context; stopEvent and recordEventState have none",
        "Keep nothing of a communicator outside of its context; a finalize must leave the other contexts alone.",
        "collective",
        1,
    ),
    Check(
        "threads",
        "Eight threads: communicators each in its own, and proxy threads that start what the application's thread has just given.",
        "each communicator has a proxy thread; applications call from any",
        "Share nothing between threads without atomics; ThreadSanitizer finds the place.",
        "communicators",
        1,
    ),
    Check(
        "pool",
        "30000 open events: each gets a handle of its own, or NULL.",
        f"no limit to what runs at the same time; {_RESULT}",
        "Answer NULL when the pool is empty, and say once how many were dropped.",
        "collective",
        1,
    ),
    Check(
        "open-end",
        "finalize with events that were never stopped comes back, and the next communicator works.",
        "ncclCommAbort: nothing is stopped then",
        "Do not wait in finalize for events to end.",
        "collective",
        1,
    ),
    Check(
        "leaks",
        "Communicators that come and go leave no memory, no descriptor and no thread, also while another one lives.",
        "jobs that make and destroy communicators all day",
        "Give back in finalize all that is of the context.",
        "collective",
        1,
    ),
    Check(
        "growth",
        "Group calls of one communicator leave no memory that grows with each.",
        "a job of weeks",
        "Bound what is kept: a ring, a pool, a file.",
        "collective",
        1,
    ),
    Check(
        "unload",
        "The library can be unloaded when no communicator is left, and loaded again; no thread of it runs on.",
        "NCCL closes the library with the last communicator, and opens it for the next",
        "Stop and join threads in the last finalize.",
        "init",
        1,
    ),
    Check(
        "latency",
        "startEvent and stopEvent of a step take no more than 50 µs (a warning only; what they take is shown).",
        _PROXY,
        "No lock, no allocation, no output there.",
        "collective",
        1,
    ),
    Check(
        "stream",
        "The calls of a recorded stream (--stream FILE), each by its thread.",
        "what NCCL did in a job",
        "The finding names the call; the stream has it on a line of its own.",
        "init",
        1,
    ),
)
