/* The rules for each kind of event and each state, by version, as NCCL calls profilers since 2.23. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "event.h"

enum {
    GROUP = ncclProfileGroup,
    COLL = ncclProfileColl,
    P2P = ncclProfileP2p,
    OP = ncclProfileProxyOp,
    STEP = ncclProfileProxyStep,
    KERNEL = ncclProfileKernelCh,
    NET = ncclProfileNetPlugin,
    CE = ncclProfileCeColl | ncclProfileCeSync | ncclProfileCeBatch
};

/* asked: NCCL also starts an event if only events below it are enabled. parents: by version. */
struct kind {
    const char *name;
    int since;
    uint64_t asked, parents[PROFILER_VERSIONS + 1];
};
/* place 0: it may occur at any time, repeatedly. */
struct state {
    const char *name;
    uint64_t kind;
    int since, last, place, side;
};
#define EVENT_RULES
#include "psm_abi_events.h"

static const struct state *state_of(int state)
{
    return state >= 0 && state < EVENT_STATES ? &states[state] : NULL;
}

int event_kind(uint64_t type)
{
    if (type == 0 || (type & (type - 1)) != 0) return -1;
    int place = __builtin_ctzll(type);
    return place < EVENT_TYPES ? place : -1;
}

const char *event_kind_name(int kind)
{
    return kind >= 0 && kind < EVENT_TYPES ? kinds[kind].name : "?";
}

const char *event_state_name(int state)
{
    return state_of(state) ? states[state].name : "?";
}

uint64_t event_known(int version)
{
    uint64_t known = 0;
    for (int i = 0; i < EVENT_TYPES; i++)
        if (kinds[i].since <= version) known |= UINT64_C(1) << i;
    return known;
}

uint64_t event_asked_by(int version, int kind)
{
    /* 2.23 to 2.25 make one check for the tasks of both kinds. */
    uint64_t more = version <= 2 && kinds[kind].parents[version] == GROUP ? COLL | P2P : 0;
    /* Adapters pass on what a newer NCCL starts for a bit that the version does not have. */
    return kinds[kind].asked | more;
}

uint64_t event_parents(int version, int kind)
{
    return kinds[kind].parents[version];
}

bool event_has_state(int version, int kind, int state)
{
    const struct state *s = state_of(state);
    return s && kind >= 0 && s->kind == UINT64_C(1) << kind && s->since <= version && version <= s->last;
}

bool event_args_optional(int version, int state)
{
    const struct state *s = state_of(state);
    if (!s) return false;
    /* Up to 2.26 states of steps have no arguments; from 2.28 on those of groups have some. */
    if (version <= 3) return s->kind == STEP;
    return s->kind == ncclProfileGroupApi || (s->kind & CE) != 0;
}

int event_state_place(int state)
{
    return state_of(state) ? states[state].place : 0;
}

bool event_repeats(int state)
{
    /* isend returned NULL: NCCL tries again. */
    return state == ncclProfilerProxyStepSendPeerWait_v4;
}

int event_state_side(int state)
{
    return state_of(state) ? states[state].side : -1;
}

__attribute__((format(printf, 4, 5))) static size_t put(char *out, size_t size, size_t at, const char *format, ...)
{
    if (at >= size) return at;
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(out + at, size - at, format, arguments);
    va_end(arguments);
    return n < 0 ? at : at + (size_t)n;
}

void event_text(const struct event *e, char *out, size_t size)
{
    int kind = event_kind(e->type);
    size_t at =
        kind >= 0 ? put(out, size, 0, "%s", kinds[kind].name) : put(out, size, 0, "event of type 0x%" PRIx64, e->type);
    const uint64_t named = COLL | P2P | ncclProfileCollApi | ncclProfileP2pApi | ncclProfileCeColl;
    if (e->func[0] && e->type & named) at = put(out, size, at, " %s", e->func);
    switch (e->type) {
    case ncclProfileColl:
    case ncclProfileCeColl:
        at = put(out, size, at, " seq %" PRIu64, e->seq);
        break;
    case ncclProfileP2p:
        at = put(out, size, at, " peer %d", e->peer);
        break;
    case ncclProfileProxyOp:
        put(out, size, at, " %s channel %d peer %d", e->is_send ? "send" : "recv", e->channel, e->peer);
        break;
    case ncclProfileProxyStep:
        put(out, size, at, " step %d", e->step);
        break;
    case ncclProfileKernelCh:
        put(out, size, at, " channel %d", e->channel);
        break;
    case ncclProfileKernelPhase:
        if (e->algo[0])
            put(out, size, at, " %s of channel %d", e->algo, e->channel);
        else
            put(out, size, at, " %d of channel %d", e->step, e->channel);
        break;
    case ncclProfileNetPlugin:
        put(out, size, at, " id 0x%" PRIx64, (uint64_t)e->net_id);
        break;
    case ncclProfileCeBatch:
        put(out, size, at, " of %d ops", e->ops);
        break;
    default:
        break;
    }
    if (e->tag && e->type & named) put(out, size, at, " tag %" PRIu64, e->tag & INT64_MAX);
}
