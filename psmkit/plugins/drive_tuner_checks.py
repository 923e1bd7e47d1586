"""The checks of ``psmkit plugin drive`` for tuners: the text of each check, and which part of NCCL relies on it.

The checks are in csrc/plugins/tuner/tools/drive.c, which also says of what kind a failure is.
"""

from __future__ import annotations

from psmkit.plugins.drive_checks import Check, Grade

__all__ = ["TUNER_CHECKS"]

# After an error of destroy or finalize NCCL keeps the communicator's memory, and the program gets success.
_END = {"end": Grade.LUCK}
#: What NCCL lowers, skips, or takes only if everything else costs more; "adapter": 2.21 uses it, later releases ignore it.
_ANSWER = {**_END, "clamped": Grade.LUCK, "unchosen": Grade.LUCK, "adapter": Grade.LUCK, "skipped": Grade.ADVICE}

TUNER_CHECKS: tuple[Check, ...] = (
    Check(
        "load",
        "The library is loaded with RTLD_NOW and has the table of this version.",
        "ncclTunerPluginLoad (2.30.7 plugin/tuner.cc; from 2.26 with RTLD_NOW) takes the newest table that the library has; without one NCCL continues without the tuner",
        "Run `psmkit plugin check`: it reports what the library lacks.",
        None,
        1,
    ),
    Check(
        "slots",
        "After init no slot is NULL that NCCL calls without a check, and the table has a name.",
        "ncclGetAlgoInfo and commCleanup (2.30.7 enqueue.cc, init.cc) call getCollInfo and finalize without a check, calcCollChunking calls getChunkSize if it exists. The name is only logged",
        "Fill the slot, or leave the table out: NCCL then takes an older one.",
        "load",
        1,
        but={"name": Grade.LUCK},
    ),
    Check(
        "init",
        "init returns success for shapes from one rank to 1000 on 125 nodes, and destroy or finalize ends each.",
        "initTransportsRank (2.19.1 to 2.30.7 init.cc) fails the communicator after any other result of init. commCleanup stops after one of destroy or finalize, and ncclCommDestroy returns success",
        "Return ncclSuccess also if there is nothing to tune: leave the cost table and the channels as they are.",
        "slots",
        1,
        but=_END,
    ),
    Check(
        "constants",
        "From v5: init leaves finite constants, and writes nothing beyond their 1152 bytes.",
        "ncclTopoTuneModel (2.28.3 graph/tuning.cc and later) computes costs from them after init, and a cost that is no number never wins. They are a member of the communicator",
        "Change single members of the record that init gets, and leave the rest.",
        "init",
        5,
        but={**_END, "number": Grade.LUCK},
    ),
    Check(
        "answers",
        "getCollInfo returns success, does not choose what NCCL does not offer, and writes only to its outputs.",
        "ncclGetAlgoInfo (2.30.7 enqueue.cc) fails the collective after an error, and runs the first pair of the lowest cost from 0 on, whether or not it was offered. scheduleCollTasksToPlan (2.22.3 and later) keeps the channels in a signed byte and lowers them to those of the communicator, but not for CollNet. ncclTuner_getCollInfo (2.22.3 and later, v2) drops a pair that was not offered; topoGetAlgoInfo of 2.19 to 2.21 runs it",
        "Lower the cost of a pair only if it is not -1. Leave the channels 0 if NCCL is to decide.",
        "init",
        1,
        but=_ANSWER,
    ),
    Check(
        "stable",
        "The same question has the same answer whatever other communicators the process has.",
        "ncclGetAlgoInfo (2.30.7 enqueue.cc) does not compare the answers of ranks. Ranks whose other communicators differ, as with pipeline parallelism, would hang",
        "Keep the state of a communicator in its context.",
        "answers",
        1,
        but={**_END, "contract": Grade.LUCK},
    ),
    Check(
        "strange",
        "Rare sizes, groups of up to 100000 operations and a table with a single pair do no harm.",
        "updateCollCostTable (2.30.7 enqueue.cc) leaves one pair with NCCL_ALGO and NCCL_PROTO; ncclPrepareTasks passes the size and the number of operations as they are",
        "Compare sizes as size_t, and check that an index stays within its table.",
        "answers",
        1,
        but=_ANSWER,
    ),
    Check(
        "unknown",
        "Functions that are no collective of a tuner today, and sizes that no memory has, do no harm.",
        "ncclGetAlgoInfo (2.30.7 enqueue.cc) asks for the functions 0 to 4 only, though ncclFunc_t has 15; taskAppend (2.22.3 and later) drops a collective of 0 bytes",
        "Return ncclSuccess and change nothing if you do not know the function.",
        "answers",
        1,
        grade=Grade.ADVICE,
    ),
    Check(
        "chunk",
        "From v6: getChunkSize returns success and a chunk that does not round to 0: 16 bytes with LL, 1920 with LL128, 512 with Simple.",
        "calcCollChunking (2.30.3 enqueue.cc and later) rounds the chunk down to these and divides by it; it lowers a chunk that is larger than the buffer",
        "Leave the chunk as it is if you have no better one.",
        "init",
        6,
        but=_END,
    ),
    Check(
        "threads",
        "Threads may call at the same time, each for its communicator.",
        "ncclGetAlgoInfo (2.30.7 enqueue.cc) is called by the thread that ends a group, without a lock. A process with one GPU and one such thread never calls twice at a time",
        "Do not write to static memory in getCollInfo.",
        "answers",
        1,
        grade=Grade.LUCK,
        but={"skipped": Grade.ADVICE},
    ),
    Check(
        "memory",
        "Neither calls nor ended communicators leave memory behind.",
        "ncclGetAlgoInfo (2.30.7 enqueue.cc) for each collective, commCleanup (init.cc) for each communicator. NCCL does not notice; a job of weeks does",
        "Free in finalize what init allocated, and allocate nothing in getCollInfo.",
        "answers",
        1,
        grade=Grade.LUCK,
    ),
    Check(
        "latency",
        "getCollInfo takes no longer than the limit.",
        "ncclGetAlgoInfo (2.30.7 enqueue.cc) calls it in the thread of the program, for each collective or once for several of a group",
        "Look the answer up in a table that init made, without locks, files or logs.",
        "answers",
        1,
        grade=Grade.LUCK,
    ),
    Check(
        "ranks",
        "All processes get the same answers.",
        "ncclGetAlgoInfo (2.30.7 enqueue.cc) uses them without comparing ranks: other algorithms, protocols, channels or chunks hang or corrupt data",
        "Decide only by what all ranks share: the function, the size, the number of ranks and nodes, the communicator's id.",
        "slots",
        1,
    ),
)
