/* Internals of the rules. */
#ifndef PSM_PLANRULES_RULE_TABLE_H
#define PSM_PLANRULES_RULE_TABLE_H

#include "planrules.h"

enum plan_rule {
    RECLAIM_EARLY,
    RECLAIM_TWICE,
    RECLAIM_NEVER,
    RECLAIM_ENQUEUER,
    COUNT_MISMATCH,
    COUNT_LEFT,
    COUNT_BELOW,
    CALLBACK_LOST,
    FREED_TOUCHED,
    FIFO_ORDER,
    OP_ORDER,
    BARRIER_CUDA,
    SCOPE_KEPT,
    REFS_UNBALANCED,
    POOL_LOST,
    CUT_DIFFERS,
    CHANNEL_DIFFERS,
    P2P_FIRST,
    HOLD_LOST,
    STUCK,
    PLAN_RULES
};
extern const struct psmPlanRule plan_rule_table[PLAN_RULES];

#endif
