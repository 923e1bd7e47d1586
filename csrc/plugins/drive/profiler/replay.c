/* Replays a recorded stream: the lines in their order, each on the thread that it names. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "profiler_drive.h"
#include "stream.h"

enum { STREAM_COMMS = 4096 };

static struct {
    FILE *file;
    pthread_mutex_t lock;
    pthread_cond_t turned;
    struct stream_line line;
    bool loaded, ended; /* loaded: line waits for its thread */
    uint64_t number, nevents;
    void **handles; /* by the number of the event */
    struct comm comms[STREAM_COMMS];
    bool failed_init[STREAM_COMMS];
} s = {.lock = PTHREAD_MUTEX_INITIALIZER, .turned = PTHREAD_COND_INITIALIZER};

static void **handle_of(uint64_t id)
{
    if (id >= UINT64_C(1) << 32)
        failed("stream", "line %" PRIu64 ": event %" PRIu64 " exceeds the limit of a stream", s.number, id);
    if (id >= s.nevents) {
        uint64_t n = s.nevents ? s.nevents : 1024;
        while (n <= id) n *= 2;
        s.handles = realloc(s.handles, n * sizeof *s.handles);
        if (!s.handles) failed("stream", "no memory for %" PRIu64 " events", n);
        memset(s.handles + s.nevents, 0, (n - s.nevents) * sizeof *s.handles);
        s.nevents = n;
    }
    return &s.handles[id];
}

static void start(struct stream_line *l)
{
    struct comm *c = l->comm && l->comm <= STREAM_COMMS ? &s.comms[l->comm - 1] : NULL;
    int kind = event_kind(l->e.type);
    void *handle = NULL;
    /* Events that this version lacks, or that this profiler has not enabled: NCCL would not start them. */
    if ((c && s.failed_init[l->comm - 1]) || !asked((uint32_t)d.mask, kind)) return;
    l->e.pid = l->foreign ? getpid() + 1 : getpid();
    l->e.parent = l->foreign ? foreign_parent((unsigned)l->id) : l->parent ? *handle_of(l->parent) : NULL;
    l->e.group = l->group ? *handle_of(l->group) : NULL;
    /* v5 moved the group; in older streams it is the parent. */
    if (d.version <= 4 && l->e.group) l->e.parent = l->e.group;
    if (d.version <= 4) l->e.group = NULL;
    p_start(c && c->context ? c->context : foreign_context(), &handle, &l->e);
    *handle_of(l->id) = handle;
}

static void play(struct stream_line *l)
{
    switch (l->what) {
    case STREAM_INIT: {
        if (!l->comm || l->comm > STREAM_COMMS) failed("stream", "line %" PRIu64 ": communicator 1 to 4096", s.number);
        struct comm *c = &s.comms[l->comm - 1];
        *c = (struct comm){
            .hash = l->hash, .rank = l->rank, .ranks = l->ranks, .nodes = l->nodes, .unnamed = !l->name[0]};
        memcpy(c->name, l->name, sizeof c->name);
        s.failed_init[l->comm - 1] = !p_init(c);
        break;
    }
    case STREAM_START:
        start(l);
        break;
    case STREAM_STATE: {
        void *handle = *handle_of(l->id);
        /* The adapter drops states that this version lacks. */
        for (int kind = 0; handle && kind < EVENT_TYPES; kind++)
            if (event_has_state(d.version, kind, l->state)) {
                bool none = l->args.none && event_args_optional(d.version, l->state);
                p_state(handle, l->state, none ? NULL : &l->args);
            }
        break;
    }
    case STREAM_STOP:
        /* Including a second stop: it is in the stream because NCCL did so. */
        if (l->id && *handle_of(l->id)) p_stop(*handle_of(l->id));
        break;
    case STREAM_FINALIZE:
        if (l->comm && l->comm <= STREAM_COMMS && !s.failed_init[l->comm - 1]) p_finalize(&s.comms[l->comm - 1]);
        break;
    }
}

/* With the lock held: the next line, or the end. */
static void next(void)
{
    char text[STREAM_LINE];
    s.loaded = fgets(text, sizeof text, s.file) != NULL;
    s.ended = !s.loaded;
    if (s.ended) return;
    s.number++;
    const char *wrong = stream_get(text, &s.line);
    if (wrong) failed("stream", "line %" PRIu64 " of %s: %s", s.number, d.stream, wrong);
}

static void one(void *argument)
{
    int thread = (int)(intptr_t)argument;
    pthread_mutex_lock(&s.lock);
    for (;;) {
        /* Threads beyond the last share its player. */
        while (!s.ended && s.line.thread % (MAX_THREADS / 4) != thread) pthread_cond_wait(&s.turned, &s.lock);
        if (s.ended) break;
        play(&s.line);
        next();
        pthread_cond_broadcast(&s.turned);
    }
    pthread_mutex_unlock(&s.lock);
}

void play_stream(void)
{
    if (!d.stream) skipped("no stream was given (--stream FILE)");
    s.file = fopen(d.stream, "re");
    char head[64];
    if (!s.file) failed("stream", "%s: %s", d.stream, strerror(errno));
    if (!fgets(head, sizeof head, s.file) || strncmp(head, STREAM_HEAD, strlen(STREAM_HEAD)) != 0)
        failed("stream", "%s does not start with \"" STREAM_HEAD "\": libnccl-profiler-check.so writes such files",
               d.stream);
    s.number = 1;
    d.foreign_calls = true;
    d.trap = true;
    next();
    for (int i = 0; i < MAX_THREADS / 4; i++) in_thread(one, (void *)(intptr_t)i);
    join_all();
    uint64_t theirs = 0;
    for (int i = 0; i < RULES; i++)
        if (!contract_rule_of_plugin((enum contract_rule)i))
            theirs += contract_count(d.contract, (enum contract_rule)i);
    fclose(s.file);
    free(s.handles);
    if (theirs)
        note("%" PRIu64 " lines; breaches of the contract by NCCL: %" PRIu64, s.number, theirs);
    else
        note("%" PRIu64 " lines", s.number);
}
