/* The contract between NCCL and a profiler, as a checker that is told of each call and says which side broke it.
 *
 * Calls that reach the profiler are told before it is called (what NCCL does) and after (what the profiler answers), so
 * that a breach of NCCL's is said even where the profiler dies of it. All functions may be called by any thread. */
#ifndef PSM_PROFILER_CONTRACT_H
#define PSM_PROFILER_CONTRACT_H

#include "event.h"

enum contract_rule {
    /* NCCL's part */
    RULE_STOP_TWICE,
    RULE_STATE_AFTER_STOP,
    RULE_UNKNOWN_HANDLE,
    RULE_NULL_HANDLE, /* NCCL itself does so: profilers take it */
    RULE_NEVER_STOPPED,
    RULE_UNKNOWN_PARENT,
    RULE_PARENT_KIND,
    RULE_PARENT_CONTEXT,
    RULE_STATE_KIND,
    RULE_STATE_SIDE,
    RULE_STATE_ORDER,
    RULE_ARGUMENTS,
    RULE_KIND,
    RULE_NOT_ASKED,
    RULE_CONTEXT,
    RULE_FINALIZE,
    /* the profiler's part */
    RULE_RESULT,
    RULE_HANDLE_TWICE,
    RULE_HANDLE_AGAIN,
    RULE_HANDLE_ON_ERROR,
    RULE_DESCRIPTOR,
    RULE_MASK,
    RULE_NO_CONTEXT,
    RULES
};

struct contract_breach {
    enum contract_rule rule;
    const char *name, *call; /* "stop-twice", "stopEvent" */
    bool by_plugin, note;    /* note: allowed, and worth a line */
    bool first;              /* of this rule and kind of event */
    int version, kind;       /* kind -1: of no event */
    uint64_t comm;           /* hash; 0 before v4 */
    int rank;
    char text[200];
    char ancestry[240]; /* the event, then what it is part of, up to the communicator */
};
/* Not called with a lock held: it may log. */
typedef void contract_report(void *context, const struct contract_breach *breach);

struct contract *contract_new(int version, contract_report *report, void *context);
void contract_free(struct contract *c);
const char *contract_rule_name(enum contract_rule rule);
bool contract_rule_of_plugin(enum contract_rule rule);
uint64_t contract_count(struct contract *c, enum contract_rule rule);
uint64_t contract_total(struct contract *c);
uint64_t contract_open(struct contract *c);   /* events that are not stopped */
uint64_t contract_events(struct contract *c); /* that were started */

/* After init: mask is NCCL's int, which is looked at in each later call, too. */
void contract_init(struct contract *c, ncclResult_t result, void *context, const int *mask, uint64_t comm, int rank);
/* Around startEvent. */
struct contract_start {
    struct entry *parent;
    struct member *member;
    int kind;
    bool foreign;
};
struct contract_start contract_starting(struct contract *c, void *context, const struct event *e);
/* changed: the profiler wrote into the descriptor. before: *eHandle as it was. Gives the event a number, from 1. */
uint64_t contract_started(struct contract *c, struct contract_start *s, const struct event *e, ncclResult_t result,
                          void *before, void *handle, bool changed);
/* The number of the event that has this handle, or had it last; 0: none is known. */
uint64_t contract_id(struct contract *c, const void *handle);
void contract_stopping(struct contract *c, void *handle);
void contract_stating(struct contract *c, void *handle, int state, const struct event_args *args);
/* call: stopEvent, recordEventState or finalize. */
void contract_result(struct contract *c, const char *call, ncclResult_t result);
void contract_finalizing(struct contract *c, void *context);

#endif
