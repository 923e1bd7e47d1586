/* cffi reads this file as it is, after psm_plan_events.h: declarations only, no preprocessor lines. */

size_t plan_rules_table(const struct psmPlanRule **rules);

/* Checker of one communicator's trace. scheduler: enum psm_plan_scheduler, -1: unknown. A trace may start in the middle
 * (its first order is not 0): events of plans made before are not judged. NULL: no memory. */
struct plan_rules;
struct plan_rules *plan_rules_new(int scheduler);
void plan_rules_free(struct plan_rules *rules);
/* The next event, by `order`. Returns the number of rules it broke. */
size_t plan_rules_feed(struct plan_rules *rules, const struct psmPlanEvent *event);
/* The communicator is destroyed: no more events follow. Returns the number of rules that this broke. */
size_t plan_rules_end(struct plan_rules *rules);
/* Total number, and the first of them (at most 64). A plan breaks each rule at most once. */
size_t plan_rules_breaches(const struct plan_rules *rules, const struct psmPlanBreach **breaches, size_t *kept);

/* Comparison of ranks: what is known of the plans of one communicator, in the order in which they were made. */
struct plan_rules_coll {
    uint64_t coll;     /* index of the collective within the communicator, from 0, in the order of enqueueing */
    uint64_t channels; /* mask */
    uint64_t opCount;  /* in the history; UINT64_MAX: unknown, or it has no proxy op */
};
struct plan_rules_plan {
    uint64_t plan;        /* its id */
    uint64_t group;       /* serial number of its group, from 1; 0: unknown */
    uint64_t channelMask; /* of everything in it */
    uint64_t ncolls, np2ps;
    const struct plan_rules_coll *colls; /* ncolls of them; NULL: unknown */
    uint64_t p2pFirst;                   /* 1: on one of its channels p2p comes before a collective */
    uint64_t p2pTask, collTask;          /* if so: their tasks */
};
struct plan_rules_rank {
    int32_t rank;
    const struct plan_rules_plan *plans;
    size_t nplans;
};
/* cut.differs, channel.differs (each rank against the first) and p2p.first: writes the first breach of each rank, at
 * most capacity of them. Returns their total number. */
size_t plan_rules_compare(const struct plan_rules_rank *ranks, size_t nranks, struct psmPlanBreach *out,
                          size_t capacity);
