/* The queues: order within a stream, order between streams, and which streams wait for which. */
#define _GNU_SOURCE
#include "stream/hc_stream.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "log.h"

enum { SPARE_ITEMS = 128 };

pthread_mutex_t hc_queue_lock = PTHREAD_MUTEX_INITIALIZER;
atomic_bool hc_stopping;
const struct hc_captures *hc_captures;
atomic_int hc_captures_running;

static struct hc_stream *streams_of[HC_MAX_DEVICES];        /* all that live or have work */
static struct hc_stream *_Atomic legacy_of[HC_MAX_DEVICES]; /* the legacy stream, once used */
static atomic_int busy_blocking[HC_MAX_DEVICES];            /* blocking streams that have work */
static struct hc_stream *ready_first, *ready_last;
static int ready_count;
static struct hc_stream *host_first, *host_last; /* serial host functions: streams that wait for their turn */
static struct hc_stream *host_turn;              /* whose turn it is */
/* Memory to be reused, linked by device_next. A stream's device never changes, so a ticket of a destroyed stream can
 * still ask for it. */
static struct hc_stream *free_streams[HC_MAX_DEVICES];
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

static bool idle(const struct hc_stream *stream)
{
    return hc_stream_reached(stream, atomic_load_explicit(&stream->submitted, memory_order_acquire));
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

static void unlink_stream(struct hc_stream *stream)
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

void hc_stream_recycle(struct hc_stream *stream)
{
    unlink_stream(stream);
    hc_stream_spare(stream);
}

void hc_stream_spare(struct hc_stream *stream)
{
    stream->device_next = free_streams[stream->device];
    free_streams[stream->device] = stream;
}

struct hc_stream *hc_stream_reuse(int device)
{
    struct hc_stream *stream = free_streams[device];
    if (stream) free_streams[device] = stream->device_next;
    return stream;
}

/* ---- items ---- */

struct hc_item *hc_item_new(const struct hc_work *work, size_t n_deps)
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

/* ---- what submissions need ---- */

void hc_queue_activate(struct hc_stream *stream)
{
    if (stream->active) return;
    stream->active = true;
    atomic_fetch_add(&stream->refs, 1);
    if (stream->kind == HC_BLOCKING) atomic_fetch_add(&busy_blocking[stream->device], 1);
}

void hc_queue_append(struct hc_stream *stream, struct hc_item *item)
{
    if (stream->last)
        stream->last->next = item;
    else
        stream->first = item;
    stream->last = item;
    advance(stream);
}

size_t hc_queue_ticket(struct hc_ticket *tickets, size_t n, size_t room, struct hc_stream *stream)
{
    uint64_t number = atomic_load_explicit(&stream->submitted, memory_order_relaxed);
    if (hc_stream_reached(stream, number)) return n;
    if (n < room) tickets[n] = (struct hc_ticket){stream, number};
    return n + 1;
}

size_t hc_queue_rules(struct hc_stream *stream, struct hc_ticket *tickets, size_t room)
{
    size_t n = 0;
    if (stream->kind == HC_BLOCKING) {
        struct hc_stream *legacy = atomic_load_explicit(&legacy_of[stream->device], memory_order_relaxed);
        if (legacy) n = hc_queue_ticket(tickets, n, room, legacy);
    } else if (stream->kind == HC_LEGACY && atomic_load(&busy_blocking[stream->device])) {
        for (struct hc_stream *other = streams_of[stream->device]; other; other = other->device_next)
            if (other->kind == HC_BLOCKING) n = hc_queue_ticket(tickets, n, room, other);
    }
    return n;
}

bool hc_stream_alone(const struct hc_stream *stream)
{
    if (stream->kind == HC_LEGACY) return !atomic_load(&busy_blocking[stream->device]);
    if (stream->kind != HC_BLOCKING) return true;
    struct hc_stream *legacy = atomic_load(&legacy_of[stream->device]);
    return !legacy || idle(legacy);
}

bool hc_stream_idle(struct hc_stream *stream)
{
    return idle(stream) && hc_stream_alone(stream);
}
