/* The lint of groups: what all ranks launch (lint_cut.c), and a run of it (lint_run.c). */
#ifndef PSM_PLAN_LINT_H
#define PSM_PLAN_LINT_H

#include "plan/schedule.h"

struct lint_entry { /* a piece of a task on a channel */
    uint32_t link;  /* p2p: index of its connection; collective: which it is of its rank */
    uint32_t steps; /* p2p: that a connection buffers of it at most */
    uint32_t task, peer;
    uint8_t func;
    bool begins; /* of a batch */
};
struct lint_range { /* entries of a channel in a plan */
    uint32_t channel, from, to;
};
struct lint_plan {
    uint32_t from, to; /* ranges */
    bool closes;       /* the last one of its group */
    bool captured;
};
struct lint_connection {
    uint32_t sender, receiver, channel;
    /* of a run: steps up to the end of what has begun on each side, and whether it has ended */
    uint64_t end[2];
    bool open[2];
};
enum { TO = 0, FROM = 1 }; /* sides of a connection: the sender's, the receiver's */

struct lint_channel { /* of a rank, in a run */
    uint32_t at, to;  /* entries: the batch that runs, the end of the plan's */
    uint32_t end;     /* of that batch */
    uint32_t waits;   /* entries of it that have not ended */
    bool queued;
};
struct lint_rank {
    uint32_t *order, norder; /* plans in the order of their launches: a graph's may come again */
    size_t room;
    uint32_t colls;
    /* a run */
    uint32_t launched, at, open; /* of order; channels of the plan at `at` that have not ended */
    uint32_t sent, given, recorded;
    uint32_t *gives; /* by launch: where its end moves `given` to; NOWHERE: it does not */
    struct lint_channel channels[MAXCHANNELS];
};
struct lint_arrivals { /* ranks that have reached a collective on a channel */
    uint32_t n;
};

struct psmPlanLint {
    struct psmPlanConfig config;
    const struct psmPlanRelease *release;
    struct lint_rank *ranks;
    struct psmPlanLintPlan *infos;
    struct lint_plan *plans;
    size_t nplans, infos_room, plans_room;
    struct lint_range *ranges;
    size_t nranges, ranges_room;
    struct lint_entry *entries;
    size_t nentries, entries_room;
    struct lint_connection *connections;
    size_t nconnections, connections_room;
    uint32_t *table; /* of connections: open addressing, index + 1 */
    size_t table_room;
    uint32_t colls; /* the most of a rank */
    /* a run */
    uint32_t steps;
    uint32_t *queue; /* channels of ranks whose batch has ended */
    size_t nqueue;
    struct lint_arrivals *arrivals; /* by collective and channel */
    struct psmPlanLintWait *waits;
    size_t nwaits, waits_room;
};

/* Room for one more. */
bool psm_lint_room(void **list, size_t n, size_t *room, size_t size);
psm_status psm_lint_no_memory(void);
/* The index of a connection; UINT32_MAX: no memory. */
uint32_t psm_lint_connection(struct psmPlanLint *lint, uint32_t sender, uint32_t receiver, uint32_t channel);

static inline bool lint_p2p(const struct lint_entry *entry)
{
    return psm_plan_is_p2p(entry->func);
}
static inline int lint_side(const struct lint_entry *entry)
{
    return entry->func == PSM_PLAN_SEND ? TO : FROM;
}

#endif
