/* Internals of the rules. */
#ifndef PSM_PLANRULES_RULE_TABLE_H
#define PSM_PLANRULES_RULE_TABLE_H

#include <stdbool.h>

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
    STREAM_BEFORE,
    STREAM_AFTER,
    LAUNCH_ATTRIBUTES,
    WORK_HEADER,
    STUCK,
    PLAN_RULES
};
extern const struct psmPlanRule plan_rule_table[PLAN_RULES];

/* ---- the checker of a trace: rules.c, launches.c ---- */

enum { KEPT = 64, CHANNELS = 64, START = 32, STREAMS = 64 };

struct state { /* state of a plan that is not reclaimed */
    uint64_t id;
    uint64_t reclaimer; /* position of its reclaimer, from 1; 0: not enqueued */
    int64_t holds;
    int64_t open, callbacks;    /* ops posted and not ended; running host functions */
    uint64_t posted;            /* ops, of all launches */
    uint64_t hostTasks, called; /* launches so far; host functions started */
    uint32_t reclaimers;        /* number of times it was enqueued */
    uint8_t launched;           /* as in the event: 1: kernel, 2: host function */
    bool persistent, cancelled, syncFreed, after;
    bool overtakesHost, onHost; /* its launch does not wait for the host stream; its host task ran there */
};
struct last { /* of the ops of a channel */
    int64_t opCount;
    uint64_t plan, launch;
};

struct plan_rules {
    int32_t rank;
    bool barrier, prepared;
    uint64_t firstMade, lastMade;
    struct state *states; /* by id: open addressing */
    size_t room, nstates;
    int64_t depth; /* of the scoped stack, before prepare */
    int64_t graph, refs;
    uint64_t p2pPlan; /* of the group: the first with p2p */
    uint64_t reclaimers, reclaimed;
    struct last last[2][CHANNELS];
    /* Streams of the group, one bit each by enum psm_plan_place: those that each comes behind, all of them (0: not
     * known), and those that come behind the last launch. */
    uint64_t behind[STREAMS], streams, behindLaunch;
    uint64_t lastPlan[PLAN_RULES]; /* the plan that last broke the rule */
    struct psmPlanBreach breaches[KEPT];
    size_t nbreaches;
};

/* A breach; a plan breaks each rule at most once. */
__attribute__((format(printf, 4, 5))) void plan_rules_broken(struct plan_rules *rules, enum plan_rule rule,
                                                             const struct psmPlanEvent *event, const char *format, ...);
void plan_rules_group_begins(struct plan_rules *rules);
void plan_rules_group_has(struct plan_rules *rules, int64_t n);
void plan_rules_group_ends(struct plan_rules *rules, const struct psmPlanEvent *e);
void plan_rules_ordered(struct plan_rules *rules, const struct psmPlanEvent *e);
void plan_rules_launched(struct plan_rules *rules, struct state *s, const struct psmPlanEvent *e);
void plan_rules_host_stream(struct plan_rules *rules, const struct state *s, const struct psmPlanEvent *e);
void plan_rules_uploaded(struct plan_rules *rules, const struct psmPlanEvent *e);

#endif
