/* Kinds of events that nccl.c does not play by name: those of newer versions, as the facts describe them. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "profiler_drive.h"

/* nccl.c plays all kinds up to this version. */
enum { PLAYED = 7 };

uint64_t others_known(void)
{
    return event_known(d.version) & ~event_known(PLAYED);
}

/* A value of its own for each member, so that the checker and a recorded stream show what was passed. Pointers are
 * NULL: nothing says what they point to. */
#define FILL(type, field) .field = (type)(_Generic((type)0, void *: 0, default: 1)),

struct event others_event(int kind, int rank)
{
    struct event e = {PSM_ABI_PROFILER_FIELDS(FILL).type = UINT64_C(1) << kind};
    e.rank = rank;
    e.pid = getpid();
    e.hash = 0;
#define NAME(field) snprintf(e.field, EVENT_WORD, "%s", #field);
    PSM_ABI_PROFILER_WORDS(NAME)
#undef NAME
    memset(e.name, 0, EVENT_WORD); /* of the communicator */
    return e;
}

/* The states of an event in their order. Of several for one place one call plays the first, the next call the second.
 */
static void states(int kind, void *handle)
{
    static _Atomic unsigned turn;
    const unsigned now = turn++;
    const struct event_args args = {PSM_ABI_PROFILER_ARGS(FILL).none = false};
    for (int place = 0; place <= EVENT_STATES; place++) {
        int found[EVENT_STATES], n = 0;
        for (int state = 0; state < EVENT_STATES; state++)
            if (event_has_state(d.version, kind, state) && event_state_place(state) == place &&
                event_state_side(state) != 0)
                found[n++] = state;
        /* Those without a place may all occur. */
        for (int i = 0; i < n; i++)
            if (!place || i == (int)(now % (unsigned)n)) p_state(handle, found[i], &args);
    }
}

void others_play(void *context, int rank, uint64_t mask, uint64_t above, void *parent)
{
    for (int kind = 0; kind < EVENT_TYPES; kind++) {
        const uint64_t type = UINT64_C(1) << kind, parents = event_parents(d.version, kind);
        if (!(others_known() & type) || !asked(mask, kind) || above == type) continue;
        if (above ? !(parents & above) : parents != 0) continue;
        struct event e = others_event(kind, rank);
        void *handle = NULL;
        e.parent = parent;
        p_start(context, &handle, &e);
        if (!handle) continue;
        others_play(context, rank, mask, type, handle);
        states(kind, handle);
        p_stop(handle);
    }
}
