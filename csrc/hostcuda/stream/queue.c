/* The queues: order within a stream, order between streams, and which streams wait for which. */
#define _GNU_SOURCE
#include "stream/hc_stream.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base.h"
#include "log.h"

enum { SPARE_ITEMS = 128 };

pthread_mutex_t hc_queue_lock = PTHREAD_MUTEX_INITIALIZER;
atomic_bool hc_stopping;

static struct hc_stream *streams_of[HC_MAX_DEVICES];        /* all that live or have work */
static struct hc_stream *_Atomic legacy_of[HC_MAX_DEVICES]; /* the legacy stream, once used */
static atomic_int busy_blocking[HC_MAX_DEVICES];            /* blocking streams that have work */
static struct hc_stream *ready_first, *ready_last;
static int ready_count;
static struct hc_stream *host_first, *host_last; /* serial host functions: streams that wait for their turn */
static struct hc_stream *host_turn;              /* whose turn it is */
static struct hc_item *spare;
static int spares;

static _Thread_local struct hc_stream *current_stream;
static _Thread_local bool in_host_function;

bool hc_in_host_function(void)
{
    return in_host_function;
}

struct hc_stream *hc_current_stream(void)
{
    return current_stream;
}

bool hc_stream_stopped(const struct hc_stream *stream)
{
    return atomic_load_explicit(&hc_stopping, memory_order_relaxed) ||
           atomic_load_explicit(&stream->cancelled, memory_order_relaxed);
}

static bool reached(const struct hc_stream *stream, uint64_t number)
{
    return atomic_load_explicit(&stream->completed, memory_order_acquire) >= number;
}

bool hc_ticket_done(const struct hc_ticket *ticket)
{
    return !ticket->stream || reached(ticket->stream, ticket->number);
}

static bool idle(const struct hc_stream *stream)
{
    return reached(stream, atomic_load_explicit(&stream->submitted, memory_order_acquire));
}

/* ---- what a device knows ---- */

void hc_queue_link(struct hc_stream *stream)
{
    struct hc_stream **head = &streams_of[stream->device];
    stream->device_next = *head;
    stream->device_previous = NULL;
    if (*head) (*head)->device_previous = stream;
    *head = stream;
    if (stream->kind == HC_LEGACY) atomic_store(&legacy_of[stream->device], stream);
}

void hc_queue_unlink(struct hc_stream *stream)
{
    if (stream->device_next) stream->device_next->device_previous = stream->device_previous;
    if (stream->device_previous)
        stream->device_previous->device_next = stream->device_next;
    else
        streams_of[stream->device] = stream->device_next;
    struct hc_stream *self = stream;
    atomic_compare_exchange_strong(&legacy_of[stream->device], &self, NULL);
}

struct hc_stream *hc_queue_streams(int device)
{
    return streams_of[device];
}

struct hc_stream *hc_queue_legacy(int device)
{
    return atomic_load(&legacy_of[device]);
}

void hc_queue_forget_legacy(int device)
{
    atomic_store(&legacy_of[device], NULL);
}

/* ---- items ---- */

static struct hc_item *item_new(const struct hc_work *work, size_t n_deps)
{
    struct hc_item *item = spare;
    if (item)
        spare = item->next, spares--;
    else
        item = malloc(sizeof *item);
    if (!item) return NULL;
    item->deps = item->few;
    if (n_deps > sizeof item->few / sizeof *item->few) {
        item->deps = malloc(n_deps * sizeof *item->deps);
        if (!item->deps) {
            free(item);
            return NULL;
        }
    }
    item->next = NULL;
    item->run = work->run;
    item->end = work->end;
    item->flags = work->flags;
    const struct hc_call *call = hc_current_call();
    item->fn = call ? call->fn : -1;
    item->tid = psm_tid();
    item->n_deps = item->next_dep = 0;
    if (work->size) memcpy(item->argument, work->argument, work->size);
    return item;
}

static void item_free(struct hc_item *item)
{
    if (item->deps != item->few) free(item->deps);
    if (spares < SPARE_ITEMS) {
        item->next = spare;
        spare = item;
        spares++;
    } else {
        free(item);
    }
}

/* ---- who may run ---- */

static void push(struct hc_stream **first, struct hc_stream **last, struct hc_stream *stream)
{
    stream->ready = true;
    stream->ready_next = NULL;
    if (*first)
        (*last)->ready_next = stream;
    else
        *first = stream;
    *last = stream;
}

static struct hc_stream *pop(struct hc_stream **first)
{
    struct hc_stream *stream = *first;
    if (stream) {
        *first = stream->ready_next;
        stream->ready = false;
    }
    return stream;
}

static void push_ready(struct hc_stream *stream)
{
    push(&ready_first, &ready_last, stream);
    ready_count++;
}

static void unpark(struct hc_stream *stream)
{
    struct hc_stream **link = &stream->parked_on->parked_first;
    while (*link != stream) link = &(*link)->parked_next;
    *link = stream->parked_next;
    stream->parked_on = NULL;
}

/* Puts a stream where its first item belongs: among the ready ones, or among those that wait for another stream. */
static void advance(struct hc_stream *stream)
{
    struct hc_item *item = stream->first;
    if (!item || stream->running || stream->ready || stream->parked_on) return;
    if (!atomic_load_explicit(&stream->cancelled, memory_order_relaxed)) {
        for (; item->next_dep < item->n_deps; item->next_dep++) {
            const struct hc_ticket *dep = &item->deps[item->next_dep];
            if (hc_ticket_done(dep)) continue;
            stream->parked_on = dep->stream;
            stream->parked_number = dep->number;
            stream->parked_next = dep->stream->parked_first;
            dep->stream->parked_first = stream;
            return;
        }
    }
    push_ready(stream);
}

int hc_queue_ready_count(void)
{
    return ready_count;
}

bool hc_queue_ready(void)
{
    return ready_count > 0;
}

struct hc_stream *hc_queue_pop_ready(void)
{
    struct hc_stream *stream;
    while ((stream = pop(&ready_first))) {
        ready_count--;
        bool host = stream->first->flags & HC_WORK_HOST_FUNCTION && hc_options.serial_host_functions;
        if (!host || atomic_load_explicit(&stream->cancelled, memory_order_relaxed)) return stream;
        if (!host_turn) {
            host_turn = stream;
            return stream;
        }
        push(&host_first, &host_last, stream);
    }
    return NULL;
}

struct hc_stream *hc_queue_turn(const struct hc_stream *stream)
{
    bool host = stream->ready && stream->first->flags & HC_WORK_HOST_FUNCTION;
    return host && host_turn != stream ? host_turn : NULL;
}

struct hc_item *hc_queue_take(struct hc_stream *stream)
{
    struct hc_item *item = stream->first;
    stream->first = item->next;
    if (!stream->first) stream->last = NULL;
    stream->running = true;
    return item;
}

static void activate(struct hc_stream *stream)
{
    if (stream->active) return;
    stream->active = true;
    atomic_fetch_add(&stream->refs, 1);
    if (stream->kind == HC_BLOCKING) atomic_fetch_add(&busy_blocking[stream->device], 1);
}

/* Runs an item, or skips it after an error or a reset. Host functions of cudaStreamAddCallback are always called, with
 * the error. */
void hc_queue_run(struct hc_stream *stream, struct hc_item *item)
{
    bool skip = atomic_load_explicit(&stream->cancelled, memory_order_relaxed) ||
                (hc_device_sticky(stream->device) && !(item->flags & HC_WORK_AFTER_ERROR));
    if (!skip) {
        struct hc_stream *outer = current_stream;
        current_stream = stream;
        psm_log_set_device(stream->device);
        in_host_function = item->flags & HC_WORK_HOST_FUNCTION;
        int code = item->run(item->argument, stream->device);
        in_host_function = false;
        current_stream = outer;
        if (code && hc_device_fail(stream->device, code)) hc_say_failed_later(stream, item->fn, item->tid, code);
    }
    if (item->end) item->end(item->argument);
}

/* Marks a number as done, wakes its waiters and prepares the next item. item is NULL for inline work. */
void hc_queue_finish(struct hc_stream *stream, struct hc_item *item, uint64_t number)
{
    stream->running = false;
    atomic_store_explicit(&stream->completed, number, memory_order_release);
    if (item) {
        if (host_turn == stream) {
            struct hc_stream *next = pop(&host_first);
            host_turn = NULL;
            if (next) push_ready(next);
        }
        item_free(item);
    }
    if (stream->sleepers) pthread_cond_broadcast(&stream->done);
    struct hc_stream *freed = NULL, **link = &stream->parked_first;
    while (*link) {
        struct hc_stream *waiter = *link;
        if (waiter->parked_number <= number) {
            *link = waiter->parked_next;
            waiter->parked_next = freed;
            freed = waiter;
        } else {
            link = &waiter->parked_next;
        }
    }
    while (freed) {
        struct hc_stream *waiter = freed;
        freed = waiter->parked_next;
        waiter->parked_on = NULL;
        advance(waiter);
    }
    if (stream->first) {
        advance(stream);
    } else {
        stream->active = false;
        if (stream->kind == HC_BLOCKING) atomic_fetch_sub(&busy_blocking[stream->device], 1);
        if (atomic_fetch_sub(&stream->refs, 1) == 1) hc_stream_recycle(stream);
    }
}

/* Queued work ends without having run. */
void hc_queue_cancel(struct hc_stream *stream)
{
    atomic_store(&stream->cancelled, true);
    if (stream->parked_on) {
        unpark(stream);
        advance(stream);
    }
    struct hc_stream *waiter;
    while ((waiter = pop(&host_first))) /* it may be among those; the others are put back */
        push_ready(waiter);
}

/* ---- submission ---- */

static size_t add_ticket(struct hc_ticket *tickets, size_t n, size_t room, struct hc_stream *stream)
{
    uint64_t number = atomic_load_explicit(&stream->submitted, memory_order_relaxed);
    if (reached(stream, number)) return n;
    if (n < room) tickets[n] = (struct hc_ticket){stream, number};
    return n + 1;
}

/* Adds the rules of the legacy default stream to the order of a stream. Under the lock. */
static size_t implicit_deps(struct hc_stream *stream, struct hc_ticket *tickets, size_t room)
{
    size_t n = 0;
    if (stream->kind == HC_BLOCKING) {
        struct hc_stream *legacy = atomic_load_explicit(&legacy_of[stream->device], memory_order_relaxed);
        if (legacy) n = add_ticket(tickets, n, room, legacy);
    } else if (stream->kind == HC_LEGACY && atomic_load(&busy_blocking[stream->device])) {
        for (struct hc_stream *other = streams_of[stream->device]; other; other = other->device_next)
            if (other->kind == HC_BLOCKING) n = add_ticket(tickets, n, room, other);
    }
    return n;
}

size_t hc_stream_frontier(struct hc_stream *stream, struct hc_ticket *tickets, size_t room)
{
    pthread_mutex_lock(&hc_queue_lock);
    size_t n = add_ticket(tickets, 0, room, stream);
    size_t used = n < room ? n : room;
    n += implicit_deps(stream, tickets + used, room - used);
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
    size_t rules = implicit_deps(stream, NULL, 0);
    bool here = work->flags & HC_WORK_QUICK && hc_options.inline_work && !stream->active && !rules && all_done(deps, n);
    struct hc_item *item = NULL;
    if (!here) {
        item = item_new(work, rules + n);
        if (!item) {
            pthread_mutex_unlock(&hc_queue_lock);
            return PSM_CUDA_OUT_OF_MEMORY;
        }
        item->number = number;
        implicit_deps(stream, item->deps, rules);
        if (n) memcpy(item->deps + rules, deps, n * sizeof *deps);
        item->n_deps = rules + n;
    }
    atomic_store_explicit(&stream->submitted, number, memory_order_release);
    activate(stream);
    if (ticket) *ticket = (struct hc_ticket){stream, number};
    if (here) {
        run_here(stream, work, number);
        return 0;
    }
    if (stream->last)
        stream->last->next = item;
    else
        stream->first = item;
    stream->last = item;
    advance(stream);
    if (stream->ready) hc_workers_kick(0);
    pthread_mutex_unlock(&hc_queue_lock);
    return 0;
}

int hc_submit(struct hc_stream *stream, const struct hc_work *work, struct hc_ticket *ticket)
{
    if (__atomic_load_n(&stream->capture, __ATOMIC_ACQUIRE)) {
        int rc = hc_capture_work(stream, work);
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

bool hc_stream_idle(struct hc_stream *stream)
{
    if (!idle(stream)) return false;
    if (stream->kind == HC_LEGACY) return !atomic_load(&busy_blocking[stream->device]);
    if (stream->kind != HC_BLOCKING) return true;
    struct hc_stream *legacy = atomic_load(&legacy_of[stream->device]);
    return !legacy || idle(legacy);
}

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
    if (!reached(stream, ticket->number)) {
        struct hc_sleeper self;
        pthread_mutex_lock(&hc_queue_lock);
        hc_stream_sleep(stream, &self);
        while (!reached(stream, ticket->number)) {
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
    while ((n = hc_stream_frontier(stream, tickets, room)) > room) {
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
        for (struct hc_stream *stream = streams_of[device]; stream; stream = stream->device_next)
            n = add_ticket(tickets, n, room, stream);
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
