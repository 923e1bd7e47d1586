/* Streams that do not move. CUDA is silent when work is queued, or a thread waits, behind a host function that itself
 * waits for that work or thread. Here the order of the streams is known, so a line says who waits for whom: once after
 * the stall has lasted for a while, and once more if it goes on. */
#define _GNU_SOURCE
#include "stream/hc_stream.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base.h"
#include "psm_messages.h"

enum { DEFAULT_SECONDS = 10, MOST = 16 };

static pthread_cond_t tick;
static bool watching; /* under hc_queue_lock */
static uint64_t patience;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* PSM_STALL_REPORT: seconds, may have a fraction; 0: never. */
static void prepare(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&tick, &monotonic);
    pthread_condattr_destroy(&monotonic);
    const char *text = getenv("PSM_STALL_REPORT");
    char *end = NULL;
    double seconds = text && *text ? strtod(text, &end) : DEFAULT_SECONDS;
    if (end && (*end || !(seconds >= 0 && seconds <= 1e6))) {
        psm_msg_hostcuda_option("PSM_STALL_REPORT", "seconds, 0 for never", text, "10");
        seconds = DEFAULT_SECONDS;
    }
    patience = (uint64_t)(seconds * 1e9);
}

/* The facts of a stall, copied under the lock and printed without it. */
struct told {
    bool over, host, turn; /* turn: host functions run one at a time */
    const char *kind, *other_kind, *call;
    uint64_t stream, other, seconds;
    uint32_t queued; /* 0: a thread waits, and nothing is queued */
    int device, tid;
    void *function;
};

/* The stream at the end of the chain of waits. Chains end: nothing waits for work submitted later, and the stream that
 * has the turn runs. */
static struct hc_stream *root_of(struct hc_stream *stream, bool *turn)
{
    while (stream->parked_on) stream = stream->parked_on;
    struct hc_stream *first = hc_queue_turn(stream);
    *turn = first != NULL;
    return first ? first : stream;
}

static bool look_at(struct hc_stream *stream, uint64_t now, struct told *told)
{
    uint64_t completed = atomic_load_explicit(&stream->completed, memory_order_relaxed);
    bool wanted = stream->first || (stream->running && stream->sleepers);
    bool moved = !stream->stall.since || completed != stream->stall.completed || !wanted;
    memset(told, 0, sizeof *told);
    told->kind = hc_stream_kind_name(stream);
    told->stream = atomic_load_explicit(&stream->handle, memory_order_relaxed);
    told->device = stream->device;
    told->seconds = (now - stream->stall.since) / 1000000000u;
    if (moved) {
        bool was = stream->stall.told;
        stream->stall.completed = completed;
        stream->stall.since = now;
        stream->stall.told = false;
        told->over = true;
        return was;
    }
    if (stream->stall.told || now - stream->stall.since < patience) return false;
    struct hc_stream *root = root_of(stream, &told->turn);
    if (root == stream && !stream->running) return false; /* ready: workers are busy, or about to start */
    stream->stall.told = true;
    for (const struct hc_item *item = stream->first; item; item = item->next) told->queued++;
    int fn = stream->first ? stream->first->fn : stream->sleepers->fn;
    told->call = fn >= 0 ? hc_functions[fn].name : "work";
    told->tid = stream->first ? stream->first->tid : stream->sleepers->tid;
    told->other_kind = hc_stream_kind_name(root);
    told->other = atomic_load_explicit(&root->handle, memory_order_relaxed);
    told->host = root->in_host_function;
    told->function = root->host_function;
    return true;
}

static void name_function(void *function, char *name, size_t size)
{
    Dl_info info;
    if (!dladdr(function, &info) || !info.dli_fname)
        snprintf(name, size, "%p", function);
    else if (info.dli_sname && info.dli_saddr == function)
        snprintf(name, size, "%s", info.dli_sname);
    else {
        const char *file = strrchr(info.dli_fname, '/');
        snprintf(name, size, "%s+0x%zx", file ? file + 1 : info.dli_fname,
                 (size_t)((char *)function - (char *)info.dli_fbase));
    }
}

static void tell(const struct told *told)
{
    char name[160];
    psm_log_set_device(told->device);
    if (told->over) {
        psm_msg_hostcuda_stall_over(told->kind, told->stream, told->device, told->seconds);
    } else if (told->host) {
        name_function(told->function, name, sizeof name);
        if (!told->queued)
            psm_msg_hostcuda_stall_thread(told->seconds, told->tid, told->call, told->kind, told->stream, told->device,
                                          name);
        else if (told->turn)
            psm_msg_hostcuda_stall_host_function_2(told->seconds, told->queued, told->kind, told->stream, told->device,
                                                   told->call, told->tid, told->other_kind, told->other, name);
        else
            psm_msg_hostcuda_stall_host_function(told->seconds, told->queued, told->kind, told->stream, told->device,
                                                 told->call, told->tid, told->other_kind, told->other, name);
    } else if (!told->queued) {
        psm_msg_hostcuda_stall_thread_2(told->seconds, told->tid, told->call, told->kind, told->stream, told->device);
    } else {
        psm_msg_hostcuda_stall(told->seconds, told->queued, told->kind, told->stream, told->device, told->call,
                               told->tid, told->other_kind, told->other);
    }
}

void *hc_stall_watch(void *workers)
{
    const int *count = workers;
    struct told told[MOST];
    pthread_mutex_lock(&hc_queue_lock);
    while (!atomic_load_explicit(&hc_stopping, memory_order_relaxed) && *count > 0) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        uint64_t step = patience / 2 + 1000000;
        uint64_t ns = (uint64_t)until.tv_nsec + step % 1000000000u;
        until.tv_sec += (time_t)(step / 1000000000u + ns / 1000000000u);
        until.tv_nsec = (long)(ns % 1000000000u);
        pthread_cond_timedwait(&tick, &hc_queue_lock, &until);
        uint64_t now = psm_clock_ns();
        int n = 0;
        for (int device = 0; device < HC_MAX_DEVICES; device++)
            for (struct hc_stream *s = hc_queue_streams(device); s && n < MOST; s = s->device_next)
                if (look_at(s, now, &told[n])) n++;
        pthread_mutex_unlock(&hc_queue_lock);
        for (int i = 0; i < n; i++) tell(&told[i]);
        pthread_mutex_lock(&hc_queue_lock);
    }
    watching = false;
    pthread_mutex_unlock(&hc_queue_lock);
    return NULL;
}

uint64_t hc_stall_patience(void)
{
    pthread_once(&once, prepare);
    return patience;
}

bool hc_stall_wanted(void)
{
    pthread_once(&once, prepare);
    if (watching || !patience) return false;
    watching = true;
    return true;
}

void hc_stall_not_started(void)
{
    watching = false;
}
