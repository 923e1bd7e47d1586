/* The calls of a scan, for the files that follow them: rpc.c reads their lines, pairs.c joins their ends across
 * processes. */
#ifndef LOGSCAN_RPC_H
#define LOGSCAN_RPC_H

#include "scanner.h"

enum { FREE = 1, SERVED = 2, RECEIVED = 4, MATCHED = 8, QUEUED = 16, SUPERSEDED = 32, LATER_DONE = 64 };

/* Calls whose lines may be a repetition: see logscan.cdef.h. */
enum { LS_AGAIN_NEXT = 1, LS_AGAIN_UNREAD = 2 };

/* Types of calls, of which those from LEARNED on have other names in some releases. */
enum { LEARNED = 7, TYPES = 32 };

/* Uses of an opId by a process are counted in a table of the process: what is said of it does not depend on others. */
enum { FEW_GENERATIONS = 32, MOST_GENERATIONS = 256, COUNTED_AT_ONCE = 256 };

struct call {
    uint64_t op;
    uint32_t hash;
    int32_t key_proc;
    uint32_t flags, generation;
    uint32_t uncounted; /* its index in ls_rpc.uncounted + 1, 0: generation is known */
    int32_t type, peer_local_rank;
    int64_t resp_size;
    int32_t service, caller, service_thread, caller_thread;
    uint64_t expected;
    uint32_t again;
    int64_t began, ended;
    ls_ref begun, served, received, matched;
};

struct begun {
    int32_t proc, thread;
    uint64_t operation;
    int64_t stamp;
    ls_ref ref;
    bool open, again;
};

/* Operations of a service that are in progress, in the order of their lines. */
struct underway {
    LS_VEC(struct begun) at;
};

/* What a service knows of a type: what one line needs lies together. */
struct of_type {
    uint64_t name;  /* of a type from LEARNED on, a text; 0: none so far */
    uint32_t tally; /* + 1, 0: it was not served yet */
    uint32_t more;  /* served calls that are not in the tally so far */
};

struct service {
    struct underway begun;
    uint32_t consumed;  /* begun entry that the last served line closed, LS_NONE */
    int64_t fresh_type; /* type of the served line just before, -1, and its name as that of a struct of_type */
    uint64_t fresh_name;
    int64_t conn_rank; /* of the connection that waits for its Init, -1 */
    uint64_t lines;    /* how many its process had printed when it began its newest operation */
    struct of_type type[TYPES];
};

/* The newest answer that a process took, and how many lines it had printed then. */
struct taken {
    uint64_t op;
    uint64_t lines;
};

struct generation {
    uint64_t key;
    uint32_t count;
};

/* How often a process used an opId, the newest for each slot: the slots are a hash of the opId. */
struct used {
    uint32_t hash, count;
};
struct uses {
    struct used *at;
    uint32_t n, filled; /* a power of two, 0: none yet */
};

struct uncounted {
    uint32_t proc, hash, call;
};

struct ls_rpc {
    LS_VEC(struct call) calls;
    LS_VEC(uint32_t) unused;
    struct ls_index index;
    uint32_t most_calls;              /* the most that were open at a time, or a little more */
    uint32_t orphans;                 /* answers without a service, since the last pairing */
    uint32_t underway, most_underway; /* operations of all services */
    LS_VEC(uint32_t) answered;        /* by host: answers without a service, since the last pairing */
    LS_VEC(uint32_t) service_of;      /* by thread: index + 1 */
    LS_VEC(ls_service) services;
    LS_VEC(struct service) states;
    LS_VEC(ls_tally) tallies;
    struct ls_index tally_index;
    uint64_t learned[TYPES];    /* the newest names of types, texts, for calls in the result */
    uint32_t learned_in[TYPES]; /* the turn in which a type was learned */
    LS_VEC(struct uses) uses;   /* by process */
    struct uncounted uncounted[COUNTED_AT_ONCE];
    uint32_t nuncounted;
    LS_VEC(struct generation) all;
    struct ls_index all_index;
    LS_VEC(struct taken) taken; /* by process */
    LS_VEC(ls_call) out;
};

/* rpc.c */
void ls_call_drop(struct ls_rpc *r, struct call *c);
void ls_call_complete(struct ls_scan *scan, struct call *c);
uint32_t ls_call_stream(const struct ls_scan *scan, const ls_ref *ref);

/* generations.c */
void ls_rpc_count_generations(struct ls_rpc *r);
/* Numbers the use of the call's opId, at once if calls are kept, else with others. */
void ls_rpc_set_generation(struct ls_scan *scan, struct call *c);

/* pairs.c */
void ls_rpc_pair(struct ls_scan *scan, bool last);

#endif
