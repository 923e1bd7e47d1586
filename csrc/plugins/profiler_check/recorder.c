/* PSM_PROFILER_STREAM: records the calls of this process as a stream (stream.h), for psmkit plugin drive --stream. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

enum { COMMUNICATORS = 4096 };

static struct {
    pthread_mutex_t lock;
    FILE *file;
    const void *contexts[COMMUNICATORS]; /* of communicator i + 1; NULL when it is finalized */
    bool used[COMMUNICATORS];
    unsigned n;
} stream = {.lock = PTHREAD_MUTEX_INITIALIZER};
static _Atomic int on = -1;
static _Atomic int threads;
static _Thread_local int thread = -1;

/* Each process needs its own file: %p is its pid. */
static FILE *open_file(const char *pattern)
{
    char path[4200];
    size_t n = 0;
    for (const char *c = pattern; *c && n < sizeof path - 24; c++) {
        if (c[0] == '%' && c[1] == 'p') {
            n += (size_t)snprintf(path + n, 24, "%d", (int)getpid());
            c++;
        } else {
            path[n++] = *c;
        }
    }
    path[n] = 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        char why[200];
        snprintf(why, sizeof why, "%s%s", strerror(errno),
                 errno == EEXIST ? "; put %p, which becomes the process id, into the name" : "");
        check_say_no_stream(path, why);
        return NULL;
    }
    return fdopen(fd, "w");
}

bool check_streams(void)
{
    if (on >= 0) return on == 1;
    pthread_mutex_lock(&stream.lock);
    if (on < 0) {
        const char *pattern = getenv("PSM_PROFILER_STREAM");
        stream.file = pattern && *pattern ? open_file(pattern) : NULL;
        on = stream.file != NULL;
    }
    pthread_mutex_unlock(&stream.lock);
    return on == 1;
}

/* Call it with the lock held. */
static void put(struct stream_line *line)
{
    char text[STREAM_LINE];
    if (thread < 0) thread = threads++ % 256;
    line->thread = thread;
    fwrite(text, 1, stream_put(line, text, sizeof text), stream.file);
}

static uint64_t number_of(const void *context)
{
    for (unsigned i = stream.n; i-- > 0;)
        if (stream.used[i] && stream.contexts[i] == context) return i + 1;
    return 0;
}

void check_stream_init(int version, const void *context, const struct stream_line *line)
{
    struct stream_line mine = *line;
    pthread_mutex_lock(&stream.lock);
    if (stream.n == 0) fprintf(stream.file, STREAM_HEAD "%d\n", version);
    if (stream.n < COMMUNICATORS) {
        stream.contexts[stream.n] = context;
        stream.used[stream.n++] = true;
        mine.comm = stream.n;
        put(&mine);
    }
    pthread_mutex_unlock(&stream.lock);
}

void check_stream_finalize(const void *context)
{
    pthread_mutex_lock(&stream.lock);
    struct stream_line line = {.what = STREAM_FINALIZE, .comm = number_of(context)};
    if (line.comm) {
        put(&line);
        stream.used[line.comm - 1] = false;
    }
    fflush(stream.file);
    pthread_mutex_unlock(&stream.lock);
}

void check_stream_start(uint64_t id, const void *context, const struct event *e, uint64_t parent, uint64_t group)
{
    struct stream_line line = {.what = STREAM_START, .id = id, .e = *e, .parent = parent, .group = group};
    if (event_kind(e->type) < 0) return;
    line.foreign = e->type == ncclProfileProxyOp && e->pid != getpid();
    if (line.foreign) line.parent = 0;
    pthread_mutex_lock(&stream.lock);
    line.comm = number_of(context);
    put(&line);
    pthread_mutex_unlock(&stream.lock);
}

void check_stream_state(uint64_t id, int state, const struct event_args *args)
{
    struct stream_line line = {.what = STREAM_STATE, .id = id, .state = state, .args = *args};
    if (state < 0 || state >= EVENT_STATES) return;
    pthread_mutex_lock(&stream.lock);
    put(&line);
    pthread_mutex_unlock(&stream.lock);
}

void check_stream_stop(uint64_t id)
{
    struct stream_line line = {.what = STREAM_STOP, .id = id};
    pthread_mutex_lock(&stream.lock);
    put(&line);
    pthread_mutex_unlock(&stream.lock);
}
