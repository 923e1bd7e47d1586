/* The table of the rules: the only place with their names and texts. */
#include "rule_table.h"

#define LEGACY 1
#define BOTH   3

const struct psmPlanRule plan_rule_table[PLAN_RULES] = {
    [RECLAIM_EARLY] = {"reclaim.early",
                       "A plan is reclaimed after its kernel, its host function and its last proxy op have ended.",
                       BOTH},
    [RECLAIM_TWICE] = {"reclaim.twice", "The reclaimer of a plan is enqueued once and runs once.", BOTH},
    [RECLAIM_NEVER] = {"reclaim.never", "Every plan is reclaimed before its communicator is gone.", BOTH},
    [RECLAIM_ENQUEUER] = {"reclaim.enqueuer",
                          "A reclaimer is enqueued by the graph's destructor when the plan is persistent, else by "
                          "LaunchKernelAfter when the host stream is used and the plan has no proxy ops, else by "
                          "hostStreamPlanTask.",
                          BOTH},
    [COUNT_MISMATCH] = {"count.mismatch",
                        "A sync condition is armed with the number of the ops that count it off, and no other.", BOTH},
    [COUNT_LEFT] = {"count.left", "A host function comes back when the count of its sync condition is 0, or by abort.",
                    BOTH},
    [COUNT_BELOW] = {"count.below", "The count of a sync condition never goes below 0.", BOTH},
    [CALLBACK_LOST] = {"callback.lost",
                       "What was put on a stream for a plan runs: its host function and its host task.", BOTH},
    [FREED_TOUCHED] = {"freed.touched",
                       "No thread uses a plan, or its sync condition, after it was freed; a replayed graph neither.",
                       BOTH},
    [FIFO_ORDER] = {"fifo.order",
                    "Plans of a communicator are reclaimed in the order in which their reclaimers were "
                    "enqueued.",
                    BOTH},
    [OP_ORDER] = {"op.order",
                  "On a channel, the opCounts of collectives grow from plan to plan, and so do those of p2p; within a "
                  "plan they do not fall.",
                  BOTH},
    [BARRIER_CUDA] = {"barrier.cuda",
                      "Between the intra-process barrier and the launch no CUDA call is made that is not captured.",
                      BOTH},
    [SCOPE_KEPT] = {"scope.kept", "Launch finish and a failed prepare leave the scoped stack as prepare found it.",
                    BOTH},
    [REFS_UNBALANCED] = {"refs.unbalanced",
                         "persistentRefs is never below 0, and 0 when the communicator is destroyed.", BOTH},
    [POOL_LOST] = {"pool.lost", "When the communicator is destroyed its pools have all plans, ops and tasks back.",
                   BOTH},
    [CUT_DIFFERS] = {"cut.differs", "All ranks put the same collectives into their k-th plan with collectives.", BOTH},
    [CHANNEL_DIFFERS] = {"channel.differs",
                         "All ranks give a collective the same channels, and its ops the same opCount.", BOTH},
    [P2P_FIRST] = {"p2p.first", "In a group, no p2p is planned before the last collective is.", BOTH},
    [HOLD_LOST] =
        {"hold.lost",
         "A plan releases each registration that it holds for its launches (IPC, NVLS, CollNet) exactly once, before "
         "it is freed.",
         BOTH},
    [STREAM_BEFORE] = {"stream.before",
                       "Before a launch the launch stream waits, directly or not, for the device stream, for the other "
                       "user streams of the group, and for the host stream if it runs the plan's host task.",
                       BOTH},
    [STREAM_AFTER] = {"stream.after",
                      "At the end of a launch the device stream and the other user streams of the group wait, directly "
                      "or not, for the launch stream.",
                      BOTH},
    [LAUNCH_ATTRIBUTES] = {"launch.attributes",
                           "From compute capability 9.0 on, and only there, a kernel is in the remote domain of memory "
                           "synchronisation and may have clusters: spread, of up to 8 blocks, a divisor of the grid.",
                           BOTH},
    [WORK_HEADER] = {"work.header",
                     "On each channel of a kernel workNext leads through all slots to the last one, which has isLast, "
                     "doneAcks, and inFifo if the plan is in the work FIFO, and only then.",
                     LEGACY},
    [STUCK] = {"stuck", "Some thread, stream or proxy can always go on until all plans have ended.", BOTH},
};

size_t plan_rules_table(const struct psmPlanRule **rules)
{
    *rules = plan_rule_table;
    return PLAN_RULES;
}
