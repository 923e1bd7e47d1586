/* Read by cffi as it stands, behind psm_plan_events.h: declarations only and no preprocessor lines. */

size_t plan_rules_table(const struct psmPlanRule **rules);

/* Of one communicator's trace. scheduler: enum psm_plan_scheduler, -1: not known. A trace may begin in the middle (its
 * first order is not 0): what is told of plans that were made before is not judged. NULL: no memory. */
struct plan_rules;
struct plan_rules *plan_rules_new(int scheduler);
void plan_rules_free(struct plan_rules *rules);
/* The next event, by `order`. Returns how many rules it broke. */
size_t plan_rules_feed(struct plan_rules *rules, const struct psmPlanEvent *event);
/* The communicator is gone: nothing more will come. Returns how many rules that broke. */
size_t plan_rules_end(struct plan_rules *rules);
/* How many there were, and the first of them (at most 64). A plan breaks a rule once. */
size_t plan_rules_breaches(const struct plan_rules *rules, const struct psmPlanBreach **breaches, size_t *kept);

/* Between ranks: what is known of the plans of one communicator, in the order in which they were made. */
struct plan_rules_coll {
    uint64_t coll;     /* which of the communicator's collectives, from 0, in the order of enqueueing */
    uint64_t channels; /* mask */
    uint64_t opCount;  /* in the history; UINT64_MAX: not known, or it has no proxy op */
};
struct plan_rules_plan {
    uint64_t plan;        /* its id */
    uint64_t group;       /* serial number of its group, from 1; 0: not known */
    uint64_t channelMask; /* of all that is in it */
    uint64_t ncolls, np2ps;
    const struct plan_rules_coll *colls; /* ncolls of them; NULL: not known */
    uint64_t p2pFirst;                   /* 1: on a channel of it p2p stands before a collective */
    uint64_t p2pTask, collTask;          /* then: their tasks */
};
struct plan_rules_rank {
    int32_t rank;
    const struct plan_rules_plan *plans;
    size_t nplans;
};
/* cut.differs, channel.differs (each rank against the first) and p2p.first: the first of each rank, at most capacity of
 * them are written. Returns how many there are. */
size_t plan_rules_compare(const struct plan_rules_rank *ranks, size_t nranks, struct psmPlanBreach *out,
                          size_t capacity);
