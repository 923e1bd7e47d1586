/* Submission of work, and waiting for it. */
#define _GNU_SOURCE
#include "stream/hc_stream.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base.h"

/* ---- submission ---- */

/* Everything submitted to the stream so far is done when these tickets are (the last position of the stream itself, and
 * what the rules of the legacy stream add). Returns how many there are; writes at most `room`. */
static size_t frontier(struct hc_stream *stream, struct hc_ticket *tickets, size_t room)
{
    pthread_mutex_lock(&hc_queue_lock);
    size_t n = hc_queue_ticket(tickets, 0, room, stream);
    size_t used = n < room ? n : room;
    n += hc_queue_rules(stream, tickets + used, room - used);
    pthread_mutex_unlock(&hc_queue_lock);
    return n;
}

static bool all_done(const struct hc_ticket *deps, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!hc_ticket_done(&deps[i])) return false;
    return true;
}

/* Call it under the lock; runs the work in this thread and returns without the lock. */
static void run_here(struct hc_stream *stream, const struct hc_work *work, uint64_t number)
{
    stream->running = true; /* work submitted by others meanwhile is queued after it */
    hc_workers_busy(1);
    pthread_mutex_unlock(&hc_queue_lock);
    int code = hc_device_sticky(stream->device) ? 0 : work->run((void *)work->argument, stream->device);
    if (code && hc_device_fail(stream->device, code)) {
        const struct hc_call *call = hc_current_call();
        hc_say_failed_later(stream, call ? call->fn : -1, psm_tid(), code);
    }
    if (work->end) work->end((void *)work->argument);
    pthread_mutex_lock(&hc_queue_lock);
    hc_workers_busy(-1);
    hc_queue_finish(stream, NULL, number);
    if (hc_queue_ready()) hc_workers_kick(0);
    pthread_mutex_unlock(&hc_queue_lock);
}

int hc_submit_after(struct hc_stream *stream, const struct hc_work *work, const struct hc_ticket *deps, size_t n,
                    struct hc_ticket *ticket)
{
    if (work->size > HC_ARGUMENT) return PSM_CUDA_INVALID_VALUE;
    pthread_mutex_lock(&hc_queue_lock);
    uint64_t number = atomic_load_explicit(&stream->submitted, memory_order_relaxed) + 1;
    size_t rules = hc_queue_rules(stream, NULL, 0);
    bool here = work->flags & HC_WORK_QUICK && hc_options.inline_work && !stream->active && !rules && all_done(deps, n);
    struct hc_item *item = NULL;
    if (!here) {
        item = hc_item_new(work, rules + n);
        if (!item) {
            pthread_mutex_unlock(&hc_queue_lock);
            return PSM_CUDA_OUT_OF_MEMORY;
        }
        item->number = number;
        hc_queue_rules(stream, item->deps, rules);
        if (n) memcpy(item->deps + rules, deps, n * sizeof *deps);
        item->n_deps = rules + n;
    }
    atomic_store_explicit(&stream->submitted, number, memory_order_release);
    hc_queue_activate(stream);
    if (ticket) *ticket = (struct hc_ticket){stream, number};
    if (here) {
        run_here(stream, work, number);
        return 0;
    }
    hc_queue_append(stream, item);
    if (stream->ready) hc_workers_kick(0);
    pthread_mutex_unlock(&hc_queue_lock);
    return 0;
}

int hc_submit(struct hc_stream *stream, const struct hc_work *work, struct hc_ticket *ticket)
{
    if (__atomic_load_n(&stream->capture, __ATOMIC_ACQUIRE)) {
        int rc = hc_captures->work(stream, work);
        if (ticket) *ticket = (struct hc_ticket){NULL, 0};
        if (rc != HC_NOT_CAPTURED) return rc;
    }
    if (stream->kind == HC_LEGACY) {
        int rc = hc_capture_forbids(true);
        if (rc) return rc;
    }
    return hc_submit_after(stream, work, NULL, 0, ticket);
}

/* ---- waiting ---- */

void hc_stream_sleep(struct hc_stream *stream, struct hc_sleeper *self)
{
    const struct hc_call *call = hc_current_call();
    *self = (struct hc_sleeper){.next = stream->sleepers, .fn = call ? call->fn : -1, .tid = psm_tid()};
    stream->sleepers = self;
}

void hc_stream_wake(struct hc_stream *stream, struct hc_sleeper *self)
{
    struct hc_sleeper **link = &stream->sleepers;
    while (*link != self) link = &(*link)->next;
    *link = self->next;
}

int hc_ticket_wait(const struct hc_ticket *ticket)
{
    struct hc_stream *stream = ticket->stream;
    if (!stream) return 0;
    if (!hc_stream_reached(stream, ticket->number)) {
        struct hc_sleeper self;
        pthread_mutex_lock(&hc_queue_lock);
        hc_stream_sleep(stream, &self);
        while (!hc_stream_reached(stream, ticket->number)) {
            struct timespec until;
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_sec++;
            /* If the system refused to create a thread, somebody must try again. */
            if (pthread_cond_timedwait(&stream->done, &hc_queue_lock, &until) && hc_queue_ready()) hc_workers_kick(0);
        }
        hc_stream_wake(stream, &self);
        pthread_mutex_unlock(&hc_queue_lock);
    }
    return hc_device_sticky(stream->device);
}

static int wait_all(struct hc_ticket *tickets, size_t n, int device)
{
    for (size_t i = 0; i < n; i++) hc_ticket_wait(&tickets[i]);
    return hc_device_sticky(device);
}

int hc_stream_drain(struct hc_stream *stream)
{
    if (hc_stream_idle(stream)) return hc_device_sticky(stream->device);
    struct hc_ticket few[8], *tickets = few;
    size_t room = sizeof few / sizeof *few, n;
    while ((n = frontier(stream, tickets, room)) > room) {
        if (tickets != few) free(tickets);
        room = n + 8;
        tickets = malloc(room * sizeof *tickets);
        if (!tickets) return PSM_CUDA_OUT_OF_MEMORY;
    }
    int rc = wait_all(tickets, n, stream->device);
    if (tickets != few) free(tickets);
    return rc;
}

int hc_device_drain(int device)
{
    if (device < 0 || device >= HC_MAX_DEVICES) return PSM_CUDA_INVALID_DEVICE;
    struct hc_ticket few[8], *tickets = few;
    size_t room = sizeof few / sizeof *few, n;
    for (;;) {
        n = 0;
        pthread_mutex_lock(&hc_queue_lock);
        for (struct hc_stream *stream = hc_queue_streams(device); stream; stream = stream->device_next)
            n = hc_queue_ticket(tickets, n, room, stream);
        pthread_mutex_unlock(&hc_queue_lock);
        if (n <= room) break;
        if (tickets != few) free(tickets);
        room = n + 8;
        tickets = malloc(room * sizeof *tickets);
        if (!tickets) return PSM_CUDA_OUT_OF_MEMORY;
    }
    int rc = wait_all(tickets, n, device);
    if (tickets != few) free(tickets);
    return rc;
}
