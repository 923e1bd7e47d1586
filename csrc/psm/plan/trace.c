/* The trace of a communicator: events are numbered, checked as they happen, and kept: the last ones here, more of them
 * in the record of the process. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "plan/launch.h"
#include "planrules.h"
#include "psm_lib_messages.h"
#include "record.h"

enum { KEPT = 1024, RECORDED = 8192 };

/* An event as stored in the file. */
struct row {
    uint64_t comm, order, plan;
    int64_t a, b, c;
    int32_t rank, code, scheduler;
    char what[20];
};
static const struct psm_field fields[] = {
    PSM_FIELDS(struct row, PSM_HEX64, comm),  PSM_FIELDS(struct row, PSM_U64, order, plan),
    PSM_FIELDS(struct row, PSM_I64, a, b, c), PSM_FIELDS(struct row, PSM_I32, rank, code, scheduler),
    PSM_FIELDS(struct row, PSM_STR, what),
};
static const struct psm_record_message messages[] = {PSM_MESSAGE_LIBPSM_PLAN_EVENT};
static const struct psm_schema schema = PSM_SCHEMA("psm.plan", struct row, fields, messages);

static const char names[][20] = {"?",         "task",    "prepare",     "made",       "prepared",      "prepare-failed",
                                 "armed",     "barrier", "cuda",        "launched",   "kernel-done",   "host-task",
                                 "op-posted", "op-done", "counted-off", "callback",   "callback-over", "reclaimer",
                                 "reclaim",   "touched", "replay",      "destructor", "refs",          "abort",
                                 "finish",    "destroy", "stuck",       "cancelled",  "registered",    "deregistered",
                                 "ordered",   "uploaded"};

struct plan_trace {
    pthread_mutex_t lock, history;
    uint64_t comm, order;
    struct plan_rules *rules; /* NULL: PSM_PLAN_CHECK=0 */
    psm_section *section;
    const struct plan_watch *watch;
    struct psmPlanEvent last[]; /* the last KEPT events; none if an observer is set */
};

psm_status psm_plan_trace_open(psmPlanComm *comm, const struct plan_watch *watch)
{
    struct plan_trace *trace = calloc(1, sizeof *trace + (watch ? 0 : KEPT) * sizeof *trace->last);
    const char *check = getenv("PSM_PLAN_CHECK");
    bool checked = watch || !check || strcmp(check, "0") != 0;
    if (trace && checked) trace->rules = plan_rules_new(comm->config.scheduler);
    if (!trace || (checked && !trace->rules)) {
        free(trace);
        return psm_fail(PSM_ERR_NO_MEMORY, "plan", comm->config.rank, -1, 0,
                        "no memory for the trace of a communicator");
    }
    pthread_mutex_init(&trace->lock, NULL);
    pthread_mutex_init(&trace->history, NULL);
    trace->watch = watch;
    if (!watch) {
        trace->comm = psm_random64();
        trace->section = psm_record_section(psm_record_self(), &schema, PSM_RING, RECORDED);
    }
    comm->trace = trace;
    return PSM_OK;
}

void psm_plan_trace_close(psmPlanComm *comm)
{
    struct plan_trace *trace = comm->trace;
    if (!trace) return;
    pthread_mutex_destroy(&trace->lock);
    pthread_mutex_destroy(&trace->history);
    plan_rules_free(trace->rules);
    free(trace);
    comm->trace = NULL;
}

bool psm_plan_trace_quiet(const psmPlanComm *comm)
{
    return comm->trace->watch != NULL;
}

void psm_plan_trace_lock(psmPlanComm *comm)
{
    pthread_mutex_lock(&comm->trace->lock);
}
void psm_plan_trace_unlock(psmPlanComm *comm)
{
    pthread_mutex_unlock(&comm->trace->lock);
}
void psm_plan_history_lock(psmPlanComm *comm)
{
    pthread_mutex_lock(&comm->trace->history);
}
void psm_plan_history_unlock(psmPlanComm *comm)
{
    pthread_mutex_unlock(&comm->trace->history);
}

/* ---- events ---- */

static void record(const struct plan_trace *trace, const psmPlanComm *comm, const struct psmPlanEvent *e)
{
    uint64_t ticket;
    struct row *row = psm_ring_begin(trace->section, &ticket);
    if (!row) return;
    *row = (struct row){.comm = trace->comm,
                        .order = e->order,
                        .plan = e->plan,
                        .a = e->a,
                        .b = e->b,
                        .c = e->c,
                        .rank = e->rank,
                        .code = e->what,
                        .scheduler = comm->config.scheduler};
    size_t known = (size_t)e->what < sizeof names / sizeof *names ? (size_t)e->what : 0;
    memcpy(row->what, names[known], sizeof row->what);
    psm_ring_commit(trace->section, ticket);
}

/* The last `broken` of the checker's breaches. */
static void tell(const struct plan_trace *trace, size_t broken)
{
    const struct psmPlanBreach *breaches;
    size_t kept, n = plan_rules_breaches(trace->rules, &breaches, &kept);
    if (trace->watch || n > kept) return;
    for (size_t i = n - broken; i < n; i++)
        psm_msg_libpsm_plan_broken(breaches[i].rule, breaches[i].rank, breaches[i].plan, breaches[i].text);
}

void psm_plan_event_locked(psmPlanComm *comm, enum psm_plan_what what, const psmPlan *plan, int64_t a, int64_t b,
                           int64_t c)
{
    struct plan_trace *trace = comm->trace;
    struct psmPlanEvent event = {.order = trace->order++,
                                 .plan = plan ? plan->id : 0,
                                 .a = a,
                                 .b = b,
                                 .c = c,
                                 .what = (int32_t)what,
                                 .rank = comm->config.rank};
    if (trace->watch)
        trace->watch->event(trace->watch->self, &event);
    else {
        trace->last[event.order % KEPT] = event;
        record(trace, comm, &event);
    }
    if (!trace->rules) return;
    size_t broken = plan_rules_feed(trace->rules, &event);
    if (__builtin_expect(broken != 0, 0)) tell(trace, broken);
}

void psm_plan_event(psmPlanComm *comm, enum psm_plan_what what, const psmPlan *plan, int64_t a, int64_t b, int64_t c)
{
    psm_plan_trace_lock(comm);
    psm_plan_event_locked(comm, what, plan, a, b, c);
    psm_plan_trace_unlock(comm);
}

void psm_plan_trace_made(psmPlan *plan)
{
    const struct plan_watch *watch = plan->comm->trace->watch;
    if (watch) watch->made(watch->self, plan);
    psm_plan_event(plan->comm, PSM_PLAN_MADE, plan, (int64_t)plan->channelMask, plan->ncolls, plan->np2ps);
    if (!watch)
        psm_msg_libpsm_plan_made(plan->id, plan->comm->config.rank, (uint64_t)plan->ncolls, (uint64_t)plan->np2ps,
                                 plan->channelMask, plan->nops, plan->graph);
}

void psm_plan_trace_touched(const psmPlan *plan, enum psm_plan_toucher who)
{
    psm_plan_event(plan->comm, PSM_PLAN_TOUCHED, plan, who, 0, 0);
}

void psm_plan_trace_end(psmPlanComm *comm)
{
    psm_plan_trace_lock(comm);
    if (comm->trace->rules) {
        size_t broken = plan_rules_end(comm->trace->rules);
        if (broken) tell(comm->trace, broken);
    }
    psm_plan_trace_unlock(comm);
}

/* ---- public functions ---- */

size_t psmPlanRules(const struct psmPlanRule **rules)
{
    return plan_rules_table(rules);
}

static size_t give(const struct plan_rules *rules, struct psmPlanBreach *out, size_t capacity)
{
    const struct psmPlanBreach *breaches;
    size_t kept, n = plan_rules_breaches(rules, &breaches, &kept);
    if (kept > capacity) kept = capacity;
    if (kept) memcpy(out, breaches, kept * sizeof *out);
    return n;
}

size_t psmPlanBreaches(const psmPlanComm *comm, struct psmPlanBreach *out, size_t capacity)
{
    if (!comm || !comm->trace->rules) return 0;
    pthread_mutex_lock(&comm->trace->lock);
    size_t n = give(comm->trace->rules, out, out ? capacity : 0);
    pthread_mutex_unlock(&comm->trace->lock);
    return n;
}

size_t psmPlanTrace(const psmPlanComm *comm, struct psmPlanEvent *out, size_t capacity)
{
    if (!comm || !out || comm->trace->watch) return 0;
    struct plan_trace *trace = comm->trace;
    pthread_mutex_lock(&trace->lock);
    uint64_t n = trace->order < KEPT ? trace->order : KEPT;
    if (n > capacity) n = capacity;
    for (uint64_t i = 0; i < n; i++) out[i] = trace->last[(trace->order - n + i) % KEPT];
    pthread_mutex_unlock(&trace->lock);
    return n;
}

size_t psmPlanCheckTrace(const struct psmPlanEvent *events, size_t nevents, int scheduler, int ended,
                         struct psmPlanBreach *out, size_t capacity)
{
    struct plan_rules *rules = events || nevents == 0 ? plan_rules_new(scheduler) : NULL;
    if (!rules) return 0;
    for (size_t i = 0; i < nevents; i++) plan_rules_feed(rules, &events[i]);
    if (ended) plan_rules_end(rules);
    size_t n = give(rules, out, out ? capacity : 0);
    plan_rules_free(rules);
    return n;
}
