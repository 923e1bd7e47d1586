/* Communicators and the calls on them; comms.c finds the members, seq.c compares their calls. */
#ifndef LOGSCAN_COMMS_H
#define LOGSCAN_COMMS_H

#include "scanner.h"

struct ls_call_sig {
    uint32_t coll;
    int32_t datatype, redop, root;
    int64_t opcount, count;
};

/* A position in the order of a group's collectives: what the first member called there, and how many called the same.
 */
struct ls_place {
    struct ls_call_sig sig;
    ls_ref ref;
    uint32_t instance, count;
};

struct ls_group_state {
    ls_group out;
    uint64_t ordinal; /* of a guessed group: how many communicators of this size its members had before */
    uint32_t twin;    /* guessed groups that differ in nothing else are numbered */
    bool ambiguous;   /* there are twins: the members are unknown */
    bool unaligned;   /* a member's log starts in the middle */
    LS_VEC(uint32_t) members;
    struct ls_place *places; /* ring */
    uint32_t place_cap, head, n;
    uint64_t base;       /* index of the first place */
    uint64_t divergence; /* index */
    bool retyped;        /* members moved the same bytes as different types; the first two such calls: */
    ls_divergent as[2];
};

struct ls_instance_state {
    uint64_t collectives;
    bool by_op; /* known only from a call; its creation was not seen */
};

/* A member that a line names whose creation was not seen (yet). */
struct ls_named {
    int32_t proc;
    uint64_t comm;
    int64_t rank, nranks, dev;
    bool known; /* its creation or a call was seen later */
};

struct ls_waiting {
    ls_ref ref;
    uint64_t bytes;
    int32_t datatype;
};

struct ls_queue {
    ls_pair out;
    struct ls_waiting *ring;
    uint32_t cap, head, n;
    uint64_t beyond; /* waiting ones that were only counted */
    bool recvs;      /* which side waits */
};

struct ls_comms {
    LS_VEC(ls_instance) instances;
    LS_VEC(struct ls_instance_state) states;
    struct ls_index index; /* (process, comm pointer) to the live instance */
    LS_VEC(struct ls_named) named;
    struct ls_index named_index; /* (process, comm pointer) */
    LS_VEC(struct ls_group_state) groups;
    struct ls_index by_id, by_guess;
    LS_VEC(uint64_t) colls; /* names */
    LS_VEC(ls_divergent) divergents;
    LS_VEC(struct ls_queue) queues;
    struct ls_index queue_index;
    uint64_t places_held, waiting_held;
    LS_VEC(ls_group) out_groups;
    LS_VEC(ls_pair) out_pairs;
    LS_VEC(ls_ref) pair_refs;
};

void ls_seq_call(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m, uint32_t instance);
void ls_seq_finish(struct ls_scan *scan);

#endif
