/* The checker: finds which side broke which rule. */
#define _GNU_SOURCE
#include "contract.h"
#include "known.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct contract {
    pthread_mutex_t lock;
    int version, pid;
    contract_report *report;
    void *report_context;
    struct known known;
    const int *mask;
    uint64_t asked; /* all bits that the mask ever had */
    uint64_t counts[RULES], open, events, serial;
    uint32_t told[RULES]; /* by kind: bit 31 for "no event" */
};

static const struct {
    const char *name;
    bool plugin, note;
} rules[RULES] = {
    [RULE_STOP_TWICE] = {"stop-twice", false, false},
    [RULE_STATE_AFTER_STOP] = {"state-after-stop", false, false},
    [RULE_UNKNOWN_HANDLE] = {"unknown-handle", false, false},
    [RULE_NULL_HANDLE] = {"null-handle", false, true},
    [RULE_NEVER_STOPPED] = {"never-stopped", false, false},
    [RULE_UNKNOWN_PARENT] = {"unknown-parent", false, false},
    [RULE_PARENT_KIND] = {"parent-kind", false, false},
    [RULE_PARENT_CONTEXT] = {"parent-context", false, false},
    [RULE_STATE_KIND] = {"state-kind", false, false},
    [RULE_STATE_SIDE] = {"state-side", false, false},
    [RULE_STATE_ORDER] = {"state-order", false, false},
    [RULE_ARGUMENTS] = {"arguments", false, false},
    [RULE_KIND] = {"kind", false, false},
    [RULE_NOT_ASKED] = {"not-asked", false, false},
    [RULE_CONTEXT] = {"context", false, false},
    [RULE_FINALIZE] = {"finalize", false, false},
    [RULE_RESULT] = {"result", true, false},
    [RULE_HANDLE_TWICE] = {"handle-twice", true, false},
    [RULE_HANDLE_AGAIN] = {"handle-again", true, false},
    [RULE_HANDLE_ON_ERROR] = {"handle-on-error", true, false},
    [RULE_DESCRIPTOR] = {"descriptor", true, false},
    [RULE_MASK] = {"mask", true, true},
    [RULE_NO_CONTEXT] = {"no-context", true, true},
};

const char *contract_rule_name(enum contract_rule rule)
{
    return rules[rule].name;
}

bool contract_rule_of_plugin(enum contract_rule rule)
{
    return rules[rule].plugin;
}

struct contract *contract_new(int version, contract_report *report, void *context)
{
    struct contract *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->version = version;
    c->pid = getpid();
    c->report = report;
    c->report_context = context;
    return c;
}

/* ---- breaches ---- */

static size_t put(char *out, size_t size, size_t at, const char *text)
{
    size_t n = strlen(text);
    if (at + n >= size) n = at < size ? size - at - 1 : 0;
    memcpy(out + at, text, n);
    out[at + n] = 0;
    return at + n;
}

static void ancestry_of(const struct event *self, const struct entry *parent, const struct member *m, int pid,
                        char *out, size_t size)
{
    char one[80];
    size_t at = 0;
    out[0] = 0;
    if (self) {
        event_text(self, one, sizeof one);
        at = put(out, size, at, one);
        /* A parent in another process has no entry here. */
        if (self->type == ncclProfileProxyOp && self->pid != pid) {
            snprintf(one, sizeof one, " of process %d", self->pid);
            at = put(out, size, at, one);
        }
    }
    for (int depth = 0; parent && depth < 8; parent = parent->parent, depth++) {
        event_text(&parent->e, one, sizeof one);
        if (at) at = put(out, size, at, " < ");
        at = put(out, size, at, one);
    }
    if (m) {
        if (at) at = put(out, size, at, " < ");
        if (m->comm)
            snprintf(one, sizeof one, "communicator %" PRIx64 " rank %d", m->comm, m->rank);
        else
            snprintf(one, sizeof one, "communicator of context %p", m->context);
        at = put(out, size, at, one);
    }
    if (!at) put(out, size, at, "no event");
}

/* Breaches of one call; reported after the lock is released. */
struct found {
    int n;
    struct contract_breach all[4];
};

/* Of an event with an entry (entry), or of one that is being started (self, below parent). */
__attribute__((format(printf, 9, 10))) static void broke(struct contract *c, struct found *f, enum contract_rule rule,
                                                         const char *call, const struct entry *entry,
                                                         const struct event *self, const struct entry *parent,
                                                         const struct member *m, const char *format, ...)
{
    if (entry) {
        self = &entry->e;
        parent = entry->parent;
        m = entry->member;
    }
    int kind = self ? event_kind(self->type) : -1;
    uint32_t bit = UINT32_C(1) << (kind < 0 ? 31 : kind);
    c->counts[rule]++;
    if (f->n == 4) return;
    struct contract_breach *b = &f->all[f->n++];
    *b = (struct contract_breach){.rule = rule,
                                  .name = rules[rule].name,
                                  .call = call,
                                  .by_plugin = rules[rule].plugin,
                                  .note = rules[rule].note,
                                  .first = (c->told[rule] & bit) == 0,
                                  .version = c->version,
                                  .kind = kind,
                                  .comm = m ? m->comm : 0,
                                  .rank = m ? m->rank : -1};
    c->told[rule] |= bit;
    if (!b->first) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(b->text, sizeof b->text, format, arguments);
    va_end(arguments);
    ancestry_of(self, parent, m, c->pid, b->ancestry, sizeof b->ancestry);
}

static void leave(struct contract *c, const struct found *f)
{
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < f->n; i++) c->report(c->report_context, &f->all[i]);
}

static void look_at_mask(struct contract *c, struct found *f, const char *call)
{
    if (!c->mask) return;
    uint64_t now = (uint32_t)__atomic_load_n(c->mask, __ATOMIC_RELAXED);
    uint64_t strange = now & ~event_known(PROFILER_VERSIONS) & ~c->asked;
    if (strange)
        broke(c, f, RULE_MASK, call, NULL, NULL, NULL, NULL,
              "the mask 0x%" PRIx64 " has bits of no known kind of event: 0x%" PRIx64, now, strange);
    c->asked |= now;
}

/* ---- communicators ---- */

void contract_init(struct contract *c, ncclResult_t result, void *context, const int *mask, uint64_t comm, int rank)
{
    struct found f = {.n = 0};
    pthread_mutex_lock(&c->lock);
    if (result == ncclSuccess) {
        struct member *m = calloc(1, sizeof *m);
        if (m) {
            *m = (struct member){.next = c->known.members, .context = context, .comm = comm, .rank = rank};
            c->known.members = m;
        }
        if (!context)
            broke(c, &f, RULE_NO_CONTEXT, "init", NULL, NULL, NULL, m,
                  "init returned no context: from 2.28 on, finalize is then never called");
        c->mask = mask;
    }
    look_at_mask(c, &f, "init");
    leave(c, &f);
}

void contract_finalizing(struct contract *c, void *context)
{
    struct found f = {.n = 0};
    pthread_mutex_lock(&c->lock);
    look_at_mask(c, &f, "finalize");
    struct member *m = known_member(c->known.members, context);
    if (!m) {
        m = known_member(c->known.ended, context);
        /* Up to 2.27 finalize is called even if init failed, with whatever the context was. */
        if (m || context)
            broke(c, &f, RULE_FINALIZE, "finalize", NULL, NULL, NULL, m, "finalize of context %p, which %s", context,
                  m ? "was already finalized" : "was never returned by init");
        leave(c, &f);
        return;
    }
    known_end(&c->known, m);
    /* Another communicator with the same context may own the events. */
    if (!known_member(c->known.members, context)) {
        uint64_t open = 0;
        const struct entry *one = NULL;
        for (size_t i = 0; i < BUCKETS; i++)
            for (const struct entry *e = c->known.buckets[i]; e; e = e->next)
                if (e->open && e->member == m) {
                    open += e->holders;
                    /* The deepest one says most. */
                    if (!one || (e->parent && e->parent == one)) one = e;
                }
        if (one) {
            broke(c, &f, RULE_NEVER_STOPPED, "finalize", one, NULL, NULL, NULL,
                  "%" PRIu64 " events were not stopped before finalize, for example this one", open);
            c->counts[RULE_NEVER_STOPPED] += open - 1;
        }
        /* From here on the handles belong to the profiler again. */
        for (size_t i = 0; i < BUCKETS && open; i++)
            for (struct entry *e = c->known.buckets[i], *following; e; e = following) {
                following = e->next;
                if (!e->open || e->member != m) continue;
                e->open = false;
                c->open -= e->holders;
                open -= e->holders;
                e->holders = 0;
                known_keep(&c->known, e);
            }
    }
    leave(c, &f);
}

/* ---- startEvent ---- */

static void look_at_parent(struct contract *c, struct found *f, const struct event *e, void *named, uint64_t allowed,
                           struct contract_start *s, bool is_group)
{
    const char *which = is_group ? "parentGroup" : "parentObj";
    if (!named) return;
    if (!allowed) {
        broke(c, f, RULE_PARENT_KIND, "startEvent", NULL, e, NULL, s->member,
              "%s is %p, but this kind of event has none", which, named);
        return;
    }
    struct entry *p = known_find(&c->known, named);
    if (!p) {
        /* It may have been stopped long ago: then nothing is known about it. */
        if (!c->known.forgotten)
            broke(c, f, RULE_UNKNOWN_PARENT, "startEvent", NULL, e, NULL, s->member,
                  "%s is %p, a handle that the profiler never returned", which, named);
        return;
    }
    uint64_t kind = p->shared ? allowed : UINT64_C(1) << p->kind;
    if (!(kind & allowed)) {
        if (p->past & allowed)
            broke(c, f, RULE_HANDLE_AGAIN, "startEvent", NULL, e, p, s->member,
                  "%s is %p, but the profiler has since given this handle to an event of kind %s: later children of "
                  "the earlier event cannot be assigned",
                  which, named, event_kind_name(p->kind));
        else
            broke(c, f, RULE_PARENT_KIND, "startEvent", NULL, e, p, s->member, "%s is of kind %s", which,
                  event_kind_name(p->kind));
        return;
    }
    /* A group of the API contains the operations of several communicators. */
    if (!p->shared && p->member != s->member && p->kind != event_kind(ncclProfileGroupApi) && !p->foreign &&
        s->member && p->member && p->member->context != s->member->context)
        broke(c, f, RULE_PARENT_CONTEXT, "startEvent", NULL, e, p, s->member,
              "%s is an event of another communicator, %" PRIx64 " rank %d", which, p->member->comm, p->member->rank);
    if (!is_group) {
        s->parent = p;
        p->refs++;
    }
}

struct contract_start contract_starting(struct contract *c, void *context, const struct event *e)
{
    struct contract_start s = {.kind = event_kind(e->type)};
    struct found f = {.n = 0};
    pthread_mutex_lock(&c->lock);
    look_at_mask(c, &f, "startEvent");
    s.member = known_member(c->known.members, context);
    if (s.kind < 0 || !(event_known(c->version) & e->type)) {
        broke(c, &f, RULE_KIND, "startEvent", NULL, e, NULL, s.member, "v%d has no event type 0x%" PRIx64, c->version,
              e->type);
        s.kind = -1;
        if (s.member) s.member->refs++;
        leave(c, &f);
        return s;
    }
    if (!(c->asked & event_asked_by(c->version, s.kind)))
        broke(c, &f, RULE_NOT_ASKED, "startEvent", NULL, e, NULL, s.member,
              "the mask never enabled %s, nor anything below it: it was at most 0x%" PRIx64, event_kind_name(s.kind),
              c->asked);
    /* With PXN an operation comes from another process: its parent and its context are addresses there. */
    s.foreign = e->type == ncclProfileProxyOp && e->pid != c->pid;
    if (!s.foreign) {
        look_at_parent(c, &f, e, e->parent, event_parents(c->version, s.kind), &s, false);
        look_at_parent(c, &f, e, e->group, ncclProfileGroup, &s, true);
        /* If the profiler did not accept such an operation, its steps come without a parent and with that context,
         * from 2.28 on. */
        const uint64_t below = ncclProfileProxyStep | ncclProfileNetPlugin;
        s.foreign = s.parent ? s.parent->foreign : !e->parent && !s.member && (e->type & below);
    }
    if (s.foreign)
        s.member = NULL;
    else if (!s.member)
        broke(c, &f, RULE_CONTEXT, "startEvent", NULL, e, s.parent, NULL,
              "context %p belongs to no initialised communicator", context);
    if (s.member) s.member->refs++;
    leave(c, &f);
    return s;
}

/* An event that is not tracked releases its references. */
static void drop(struct contract *c, const struct contract_start *s)
{
    known_release(&c->known, s->parent);
    if (s->member) s->member->refs--;
}

/* Tracks an event that has begun; without memory it is not tracked. */
static void track(struct contract *c, const struct contract_start *s, const struct event *e, uint64_t id, void *handle,
                  uint64_t past)
{
    struct entry *entry = c->known.spare;
    if (entry)
        c->known.spare = entry->next;
    else
        entry = malloc(sizeof *entry);
    if (!entry) {
        drop(c, s);
        return;
    }
    struct entry **at = known_bucket(&c->known, handle);
    *entry = (struct entry){.next = *at,
                            .parent = s->parent,
                            .member = s->member,
                            .handle = handle,
                            .e = *e,
                            .id = id,
                            .past = past,
                            .refs = 1,
                            .holders = 1,
                            .kind = s->kind,
                            .open = true,
                            .foreign = s->foreign};
    *at = entry;
}

uint64_t contract_started(struct contract *c, struct contract_start *s, const struct event *e, ncclResult_t result,
                          void *before, void *handle, bool changed)
{
    struct found f = {.n = 0};
    pthread_mutex_lock(&c->lock);
    uint64_t id = ++c->serial;
    if (changed)
        broke(c, &f, RULE_DESCRIPTOR, "startEvent", NULL, e, s->parent, s->member,
              "the profiler wrote to the descriptor, which belongs to the caller");
    if (result != ncclSuccess && handle && handle != before)
        broke(c, &f, RULE_HANDLE_ON_ERROR, "startEvent", NULL, e, s->parent, s->member,
              "startEvent returned %d and handle %p, which is taken for that of an event", (int)result, handle);
    if (result != ncclSuccess)
        broke(c, &f, RULE_RESULT, "startEvent", NULL, e, s->parent, s->member,
              "startEvent returned %d, which is ignored", (int)result);
    struct entry *old = handle && s->kind >= 0 ? known_find(&c->known, handle) : NULL;
    if (!handle || s->kind < 0) {
        drop(c, s);
        leave(c, &f);
        return id;
    }
    c->events++;
    c->open++;
    uint64_t past = 0;
    if (old && old->open) {
        broke(c, &f, RULE_HANDLE_TWICE, "startEvent", NULL, e, s->parent, s->member,
              "handle %p is also that of an open event: %s; stopEvent identifies an event only by its handle", handle,
              event_kind_name(old->kind));
        old->holders++;
        old->shared = true; /* nothing can be said about them any more */
        drop(c, s);
        leave(c, &f);
        return id;
    }
    if (old) {
        past = old->past | UINT64_C(1) << old->kind;
        known_forget(&c->known, old);
    }
    track(c, s, e, id, handle, past);
    leave(c, &f);
    return id;
}

/* ---- stopEvent and recordEventState ---- */

/* The open event of this handle; otherwise the breach is recorded. */
static struct entry *open_event(struct contract *c, struct found *f, void *handle, const char *call,
                                enum contract_rule after, const char *what)
{
    struct entry *e = handle ? known_find(&c->known, handle) : NULL;
    if (!handle)
        broke(c, f, RULE_NULL_HANDLE, call, NULL, NULL, NULL, NULL,
              "the handle is NULL: some releases do this for events of net plugins that were not accepted");
    else if (!e)
        broke(c, f, RULE_UNKNOWN_HANDLE, call, NULL, NULL, NULL, NULL, "handle %p was never returned%s", handle,
              c->known.forgotten ? ", or was stopped long ago" : "");
    else if (!e->open)
        broke(c, f, after, call, e, NULL, NULL, NULL, "%s, but was already stopped%s", what,
              e->holders ? "" : ", or ended with its communicator");
    return e && e->open ? e : NULL;
}

void contract_stopping(struct contract *c, void *handle)
{
    struct found f = {.n = 0};
    pthread_mutex_lock(&c->lock);
    look_at_mask(c, &f, "stopEvent");
    struct entry *e = open_event(c, &f, handle, "stopEvent", RULE_STOP_TWICE, "the event is stopped");
    if (e) {
        c->open--;
        /* Before the profiler is called: it may return the handle to another thread at once. */
        if (e->holders > 1) {
            e->holders--;
        } else {
            e->open = false;
            known_keep(&c->known, e);
        }
    }
    leave(c, &f);
}

void contract_stating(struct contract *c, void *handle, int state, const struct event_args *args)
{
    static const char call[] = "recordEventState";
    struct found f = {.n = 0};
    pthread_mutex_lock(&c->lock);
    look_at_mask(c, &f, call);
    char what[80];
    snprintf(what, sizeof what, "the event gets state %s", event_state_name(state));
    struct entry *e = open_event(c, &f, handle, call, RULE_STATE_AFTER_STOP, what);
    if (e && !event_has_state(c->version, e->kind, state)) {
        if (!e->shared)
            broke(c, &f, RULE_STATE_KIND, call, e, NULL, NULL, NULL, "v%d has no state %s (%d) for %s", c->version,
                  event_state_name(state), state, event_kind_name(e->kind));
    } else if (e && !e->shared) {
        const struct event *op = e->kind == event_kind(ncclProfileProxyOp)                  ? &e->e
                                 : e->kind == event_kind(ncclProfileProxyStep) && e->parent ? &e->parent->e
                                                                                            : NULL;
        int side = event_state_side(state), place = event_state_place(state);
        if (op && side >= 0 && op->is_send != (side == 1))
            broke(c, &f, RULE_STATE_SIDE, call, e, NULL, NULL, NULL, "state %s belongs to the %s side",
                  event_state_name(state), side ? "sending" : "receiving");
        else if (place && (place < e->place || (place == e->place && !event_repeats(state))))
            broke(c, &f, RULE_STATE_ORDER, call, e, NULL, NULL, NULL, "state %s arrives %s", event_state_name(state),
                  place < e->place ? "after a later one" : "twice, or together with one that excludes it");
        else if (place)
            e->place = place;
        if (args->none && !event_args_optional(c->version, state))
            broke(c, &f, RULE_ARGUMENTS, call, e, NULL, NULL, NULL, "state %s arrives without its arguments",
                  event_state_name(state));
    }
    leave(c, &f);
}

void contract_result(struct contract *c, const char *call, ncclResult_t result)
{
    if (result == ncclSuccess) return;
    struct found f = {.n = 0};
    pthread_mutex_lock(&c->lock);
    broke(c, &f, RULE_RESULT, call, NULL, NULL, NULL, NULL, "%s returned %d, which is ignored", call, (int)result);
    leave(c, &f);
}

/* ---- counts ---- */

#define READ(type, name, what)                                                                                         \
    type name                                                                                                          \
    {                                                                                                                  \
        pthread_mutex_lock(&c->lock);                                                                                  \
        uint64_t n = what;                                                                                             \
        pthread_mutex_unlock(&c->lock);                                                                                \
        return n;                                                                                                      \
    }
READ(uint64_t, contract_count(struct contract *c, enum contract_rule rule), c->counts[rule])
uint64_t contract_id(struct contract *c, const void *handle)
{
    pthread_mutex_lock(&c->lock);
    const struct entry *e = handle ? known_find(&c->known, handle) : NULL;
    uint64_t id = e ? e->id : 0;
    pthread_mutex_unlock(&c->lock);
    return id;
}

READ(uint64_t, contract_open(struct contract *c), c->open)
READ(uint64_t, contract_events(struct contract *c), c->events)

uint64_t contract_total(struct contract *c)
{
    uint64_t n = 0;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < RULES; i++)
        if (!rules[i].note) n += c->counts[i];
    pthread_mutex_unlock(&c->lock);
    return n;
}
