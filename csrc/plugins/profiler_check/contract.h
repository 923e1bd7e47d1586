/* The contract between NCCL and a profiler: a checker that is informed of each call and reports which side broke it.
 *
 * For calls that reach the profiler it is informed before the call (what NCCL does) and after it (what the profiler
 * returns), so that a breach of NCCL's is reported even if the profiler dies of it. Any thread may call these
 * functions. */
#ifndef PSM_PROFILER_CONTRACT_H
#define PSM_PROFILER_CONTRACT_H

#include "event.h"

enum contract_rule {
    /* rules for NCCL */
    RULE_STOP_TWICE,
    RULE_STATE_AFTER_STOP,
    RULE_UNKNOWN_HANDLE,
    RULE_NULL_HANDLE, /* NCCL itself does so: profilers must accept it */
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
    /* rules for the profiler */
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
    bool by_plugin, note;    /* note: allowed, but worth a line */
    bool first;              /* of this rule and kind of event */
    int version, kind;       /* kind -1: of no event */
    uint64_t comm;           /* hash; 0 before v4 */
    int rank;
    char text[200];
    char ancestry[240]; /* the event, then what it is part of, up to the communicator */
};
/* Called without a lock held: it may log. */
typedef void contract_report(void *context, const struct contract_breach *breach);

struct contract *contract_new(int version, contract_report *report, void *context);
const char *contract_rule_name(enum contract_rule rule);
bool contract_rule_of_plugin(enum contract_rule rule);
uint64_t contract_count(struct contract *c, enum contract_rule rule);
uint64_t contract_total(struct contract *c);
uint64_t contract_open(struct contract *c);   /* events that were not stopped */
uint64_t contract_events(struct contract *c); /* events that were started */

/* After init: mask is NCCL's int, which is also checked in each later call. */
void contract_init(struct contract *c, ncclResult_t result, void *context, const int *mask, uint64_t comm, int rank);
/* Before and after startEvent. */
struct contract_start {
    struct entry *parent;
    struct member *member;
    int kind;
    bool foreign;
};
struct contract_start contract_starting(struct contract *c, void *context, const struct event *e);
/* changed: the profiler wrote to the descriptor. before: *eHandle before the call. Assigns a number to the event,
 * from 1. */
uint64_t contract_started(struct contract *c, struct contract_start *s, const struct event *e, ncclResult_t result,
                          void *before, void *handle, bool changed);
/* The number of the event that has this handle, or had it last; 0: unknown. */
uint64_t contract_id(struct contract *c, const void *handle);
void contract_stopping(struct contract *c, void *handle);
void contract_stating(struct contract *c, void *handle, int state, const struct event_args *args);
/* call: stopEvent, recordEventState or finalize. */
void contract_result(struct contract *c, const char *call, ncclResult_t result);
void contract_finalizing(struct contract *c, void *context);

#endif
