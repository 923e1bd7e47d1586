/* Events: an event stores a position in the order of a stream, so that one comparison tells whether it is done. */
#define _GNU_SOURCE
#include "core/hc_life.h"
#include "fault.h"
#include "stream/hc_event.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCKING_SYNC = 1, DISABLE_TIMING = 2, INTERPROCESS = 4, ALL_FLAGS = 7, EXTERNAL = 1 };

struct hc_event {
    _Atomic uint64_t handle;
    atomic_int refs; /* one for the handle, one for each unfinished record */
    pthread_mutex_t lock;
    /* Protected by the lock. */
    struct hc_ticket ticket; /* of the last record */
    uint64_t records;        /* number of records; 0: never */
    uint64_t last;           /* the record that the ticket belongs to */
    uint64_t timed;          /* the record that the time belongs to */
    int64_t time;            /* in ns of the monotonic clock */
    uint64_t stamp;          /* of the last record, in the page that processes share */
    struct hc_event *next;   /* in the list of memory to be reused */
    /* Constant while the event lives. */
    int device;
    unsigned flags;
    CUcontext context;              /* in which it was made */
    struct hc_shared_event *shared; /* interprocess events */
    struct hc_capture_point *capture;
};

static pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hc_event *free_events;

/* ---- life ---- */

static struct hc_event *event_new(int device, unsigned flags)
{
    pthread_mutex_lock(&free_lock);
    struct hc_event *event = free_events;
    if (event) free_events = event->next;
    pthread_mutex_unlock(&free_lock);
    if (!event) {
        event = calloc(1, sizeof *event);
        if (!event) return NULL;
        pthread_mutex_init(&event->lock, NULL);
    }
    pthread_mutex_lock(&event->lock);
    event->ticket = (struct hc_ticket){NULL, 0};
    event->records = event->last = event->timed = event->stamp = 0;
    event->device = device;
    event->flags = flags;
    event->context = hc_context_now(device);
    event->shared = NULL;
    pthread_mutex_unlock(&event->lock);
    __atomic_store_n(&event->capture, NULL, __ATOMIC_RELEASE);
    return event;
}

/* From now on the event can be found. */
static int event_begin(struct hc_event *event, CUevent *out)
{
    atomic_store(&event->refs, 1);
    uint64_t handle = hc_handle_new(HC_EVENT, event);
    atomic_store(&event->handle, handle);
    if (!handle) {
        hc_event_put(event);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    *out = (CUevent)(uintptr_t)handle; // NOLINT: a number, never followed
    return 0;
}

static void hold(struct hc_event *event)
{
    atomic_fetch_add(&event->refs, 1);
}

void hc_event_put(struct hc_event *event)
{
    if (atomic_fetch_sub(&event->refs, 1) != 1) return;
    if (__atomic_load_n(&event->capture, __ATOMIC_ACQUIRE)) hc_captures->event_ends(event);
    if (event->shared) hc_shared_event_end(event->shared);
    pthread_mutex_lock(&free_lock);
    event->next = free_events;
    free_events = event;
    pthread_mutex_unlock(&free_lock);
}

int hc_event_get(CUevent handle, struct hc_event **out)
{
    uint64_t value = (uint64_t)(uintptr_t)handle;
    struct hc_event *event = hc_handle_get(HC_EVENT, value);
    if (!event) return PSM_CUDA_INVALID_HANDLE;
    int refs = atomic_load(&event->refs);
    do {
        if (refs <= 0) return PSM_CUDA_INVALID_HANDLE;
    } while (!atomic_compare_exchange_weak(&event->refs, &refs, refs + 1));
    if (atomic_load(&event->handle) != value) { /* it was destroyed, and the memory is another event now */
        hc_event_put(event);
        return PSM_CUDA_INVALID_HANDLE;
    }
    *out = event;
    return 0;
}

int hc_event_device(const struct hc_event *event)
{
    return event->device;
}

struct hc_capture_point **hc_event_capture(struct hc_event *event)
{
    return &event->capture;
}

static int create(CUevent *out, unsigned flags)
{
    if (!out || flags & ~(unsigned)ALL_FLAGS) return PSM_CUDA_INVALID_VALUE;
    if (flags & INTERPROCESS && !(flags & DISABLE_TIMING)) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_stream_context();
    if (rc) return rc;
    int device = hc_current_device();
    struct hc_event *event = event_new(device, flags);
    if (!event) return PSM_CUDA_OUT_OF_MEMORY;
    if (flags & INTERPROCESS) {
        rc = hc_shared_event_new(device, &event->shared);
        if (rc) {
            atomic_store(&event->refs, 1);
            hc_event_put(event);
            return rc;
        }
    }
    return event_begin(event, out);
}

/* The handle ends at once; recorded work still completes, and waits for it continue. */
static int destroy(CUevent handle)
{
    struct hc_event *event = hc_handle_end(HC_EVENT, (uint64_t)(uintptr_t)handle);
    if (!event) return PSM_CUDA_INVALID_HANDLE;
    atomic_store(&event->handle, 0);
    hc_event_put(event);
    return 0;
}

static void end_event(uint64_t value, void *object, void *context)
{
    struct hc_event *event = object;
    if (event->device == *(int *)context) destroy((CUevent)(uintptr_t)value); // NOLINT: a number, never followed
}

static void reset(int device)
{
    hc_handle_each(HC_EVENT, end_event, &device);
}

static void end_event_of_context(uint64_t value, void *object, void *context)
{
    struct hc_event *event = object;
    if (event->context != *(CUcontext *)context) return;
    hc_say_ended(HC_EVENT, value);
    destroy((CUevent)(uintptr_t)value); // NOLINT: a number, never followed
}

static void context_ends(CUcontext context)
{
    hc_handle_each(HC_EVENT, end_event_of_context, &context);
}

HC_LIFE(HC_MODULE_EVENTS, .reset = reset, .context_ends = context_ends)

/* ---- record ---- */

struct marker {
    struct hc_event *event;
    uint64_t record, stamp;
};

static int reach_marker(void *argument, int device)
{
    (void)device;
    struct marker *marker = argument;
    struct hc_event *event = marker->event;
    if (!(event->flags & DISABLE_TIMING)) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        pthread_mutex_lock(&event->lock);
        if (marker->record >= event->timed) { /* an earlier record that ends late does not count */
            event->timed = marker->record;
            event->time = now.tv_sec * 1000000000ll + now.tv_nsec;
        }
        pthread_mutex_unlock(&event->lock);
    }
    return 0;
}

static void end_marker(void *argument)
{
    struct marker *marker = argument;
    if (marker->stamp) hc_shared_event_done(marker->event->shared, marker->stamp);
    hc_event_put(marker->event);
}

/* What was submitted so far is all that the event waits for. */
static void record_position(struct hc_event *event, struct hc_stream *stream)
{
    pthread_mutex_lock(&event->lock);
    event->last = ++event->records;
    event->ticket = (struct hc_ticket){stream, atomic_load_explicit(&stream->submitted, memory_order_acquire)};
    pthread_mutex_unlock(&event->lock);
}

int hc_event_submit(struct hc_event *event, struct hc_stream *stream, const struct hc_ticket *deps, size_t n,
                    struct hc_ticket *ticket)
{
    struct hc_ticket place;
    struct marker marker = {event, 0, 0};
    pthread_mutex_lock(&event->lock);
    marker.record = ++event->records;
    pthread_mutex_unlock(&event->lock);
    if (event->shared) marker.stamp = hc_shared_event_record(event->shared);
    struct hc_work work = {
        .run = reach_marker, .end = end_marker, .size = sizeof marker, .argument = &marker, .flags = HC_WORK_QUICK};
    hold(event);
    int rc = hc_submit_after(stream, &work, deps, n, &place);
    if (rc) {
        if (marker.stamp) hc_shared_event_done(event->shared, marker.stamp);
        hc_event_put(event);
        return rc;
    }
    pthread_mutex_lock(&event->lock);
    if (marker.record > event->last) {
        event->last = marker.record;
        event->ticket = place;
        event->stamp = marker.stamp;
    }
    pthread_mutex_unlock(&event->lock);
    if (ticket) *ticket = place;
    return 0;
}

static bool captured(struct hc_stream *stream, struct hc_event *event)
{
    return hc_is_captured(stream) || __atomic_load_n(&event->capture, __ATOMIC_ACQUIRE);
}

/* Gets the event and the stream of a call; both are put by the caller. */
static int get_both(CUevent handle, cudaStream_t of, unsigned flags, struct hc_event **event, struct hc_stream **stream)
{
    if (flags & ~(unsigned)EXTERNAL) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_event_get(handle, event);
    if (rc) return rc;
    rc = hc_stream_get(of, stream);
    if (rc) hc_event_put(*event);
    return rc;
}

static int record(CUevent handle, cudaStream_t to, unsigned flags)
{
    struct hc_event *event;
    struct hc_stream *stream;
    int rc = get_both(handle, to, flags, &event, &stream);
    if (rc) return rc;
    rc = HC_NOT_CAPTURED;
    if (hc_stream_device(stream) != event->device)
        rc = PSM_CUDA_INVALID_HANDLE;
    else if (captured(stream, event))
        rc = hc_captures->record(stream, handle, flags);
    if (rc == HC_NOT_CAPTURED) {
        rc = flags & EXTERNAL ? PSM_CUDA_INVALID_VALUE : 0; /* means something in captures only */
        if (!rc && hc_stream_is_legacy(stream)) rc = hc_capture_forbids(true);
        bool told = !(event->flags & DISABLE_TIMING) || event->shared; /* somebody needs to know when it is reached */
        if (!rc && !told && hc_stream_alone(stream))
            record_position(event, stream);
        else if (!rc)
            rc = hc_event_submit(event, stream, NULL, 0, NULL);
    }
    hc_stream_put(stream);
    hc_event_put(event);
    return rc;
}

/* ---- wait and ask ---- */

/* What the event currently refers to: a position in a stream of this process, or a record of another process (`stamp`).
 */
struct state {
    bool recorded;
    struct hc_ticket ticket;
    uint64_t stamp;
};

static struct state state_of(struct hc_event *event)
{
    struct state state = {false, {NULL, 0}, 0};
    pthread_mutex_lock(&event->lock);
    if (event->last) {
        state.recorded = true;
        state.ticket = event->ticket;
    }
    if (event->shared) {
        uint64_t stamp = hc_shared_event_last(event->shared);
        if (stamp && stamp != event->stamp) { /* another process recorded it after us */
            state.recorded = true;
            state.stamp = stamp;
        }
    }
    pthread_mutex_unlock(&event->lock);
    return state;
}

struct foreign_wait {
    struct hc_event *event;
    uint64_t stamp;
};

static int wait_foreign(void *argument, int device)
{
    (void)device;
    struct foreign_wait *wait = argument;
    return hc_shared_event_wait(wait->event->shared, wait->stamp, hc_current_stream());
}

static void end_foreign_wait(void *argument)
{
    hc_event_put(((struct foreign_wait *)argument)->event);
}

static int nothing(void *argument, int device)
{
    (void)argument, (void)device;
    return 0;
}

int hc_event_submit_wait(struct hc_event *event, struct hc_stream *stream, const struct hc_ticket *deps, size_t n,
                         struct hc_ticket *ticket)
{
    struct state state = state_of(event);
    if (state.stamp && hc_shared_event_query(event->shared, state.stamp) == PSM_CUDA_NOT_READY) {
        struct foreign_wait wait = {event, state.stamp};
        struct hc_work work = {.run = wait_foreign,
                               .end = end_foreign_wait,
                               .size = sizeof wait,
                               .argument = &wait,
                               .flags = HC_WORK_BLOCKS};
        hold(event);
        int rc = hc_submit_after(stream, &work, deps, n, ticket);
        if (rc) hc_event_put(event);
        return rc;
    }
    struct hc_work work = {.run = nothing, .flags = HC_WORK_QUICK};
    bool pending = state.recorded && !state.stamp && !hc_ticket_done(&state.ticket);
    /* Nothing to wait for. In the legacy stream even this is an action that all blocking streams wait for. */
    if (!pending && !n && !ticket && !hc_stream_is_legacy(stream)) return 0;
    if (!pending) return hc_submit_after(stream, &work, deps, n, ticket);
    struct hc_ticket few[8], *all = few;
    if (n + 1 > sizeof few / sizeof *few) {
        all = malloc((n + 1) * sizeof *all);
        if (!all) return PSM_CUDA_OUT_OF_MEMORY;
    }
    if (n) memcpy(all, deps, n * sizeof *deps);
    all[n] = state.ticket;
    int rc = hc_submit_after(stream, &work, all, n + 1, ticket);
    if (all != few) free(all);
    return rc;
}

static int stream_wait(cudaStream_t who, CUevent handle, unsigned flags)
{
    struct hc_event *event;
    struct hc_stream *stream;
    int rc = get_both(handle, who, flags, &event, &stream);
    if (rc) return rc;
    rc = HC_NOT_CAPTURED;
    if (captured(stream, event)) rc = hc_captures->wait(stream, handle, flags);
    if (rc == HC_NOT_CAPTURED) {
        rc = flags & EXTERNAL ? PSM_CUDA_INVALID_VALUE : 0;
        if (!rc && hc_stream_is_legacy(stream)) rc = hc_capture_forbids(true);
        if (!rc) rc = hc_event_submit_wait(event, stream, NULL, 0, NULL);
    }
    hc_stream_put(stream);
    hc_event_put(event);
    return rc;
}

/* An event that was never recorded is done. */
static int is_done(struct hc_event *event, bool wait)
{
    struct state state = state_of(event);
    if (!state.recorded) return 0;
    if (state.stamp) {
        if (wait) return hc_shared_event_wait(event->shared, state.stamp, NULL);
        return hc_shared_event_query(event->shared, state.stamp);
    }
    if (wait) return hc_ticket_wait(&state.ticket);
    int stuck = hc_device_sticky(event->device);
    return stuck ? stuck : hc_ticket_done(&state.ticket) ? 0 : PSM_CUDA_NOT_READY;
}

/* The answer for an event that was recorded in this process only, outside of captures; false: it is another one. Under
 * its lock the event need not be held: its memory remains an event's, and its handle says which one. */
static bool query_position(CUevent handle, int *rc)
{
    uint64_t value = (uint64_t)(uintptr_t)handle;
    struct hc_event *event = hc_handle_get(HC_EVENT, value);
    if (!event) return false;
    pthread_mutex_lock(&event->lock);
    bool plain =
        atomic_load(&event->handle) == value && !event->shared && !__atomic_load_n(&event->capture, __ATOMIC_ACQUIRE);
    struct hc_ticket ticket = event->last ? event->ticket : (struct hc_ticket){NULL, 0};
    int stuck = event->last ? hc_device_sticky(event->device) : 0;
    pthread_mutex_unlock(&event->lock);
    if (plain) *rc = stuck ? stuck : hc_ticket_done(&ticket) ? 0 : PSM_CUDA_NOT_READY;
    return plain;
}

static int query(CUevent handle, bool wait)
{
    struct hc_event *event;
    int rc;
    if (!wait && query_position(handle, &rc)) return rc;
    rc = hc_event_get(handle, &event);
    if (rc) return rc;
    if (__atomic_load_n(&event->capture, __ATOMIC_ACQUIRE)) rc = hc_captures->forbids_event(handle);
    if (!rc) rc = is_done(event, wait);
    hc_event_put(event);
    return rc;
}

/* 0: done and timed. */
static int time_of(struct hc_event *event, CUevent handle, int64_t *time)
{
    if (event->flags & DISABLE_TIMING) return PSM_CUDA_INVALID_HANDLE;
    if (__atomic_load_n(&event->capture, __ATOMIC_ACQUIRE)) {
        int rc = hc_captures->forbids_event(handle);
        if (rc) return rc;
    }
    if (!state_of(event).recorded) return PSM_CUDA_INVALID_HANDLE;
    int rc = is_done(event, false);
    if (rc) return rc;
    pthread_mutex_lock(&event->lock);
    rc = event->timed == event->last ? 0 : PSM_CUDA_NOT_READY; /* recorded again just now */
    *time = event->time;
    pthread_mutex_unlock(&event->lock);
    return rc;
}

static int elapsed(float *ms, CUevent start, CUevent end)
{
    struct hc_event *first, *second;
    if (!ms) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_event_get(start, &first);
    if (rc) return rc;
    rc = hc_event_get(end, &second);
    if (rc) {
        hc_event_put(first);
        return rc;
    }
    int64_t from = 0, to = 0;
    int one = time_of(first, start, &from), two = time_of(second, end, &to);
    /* Check first what can never be answered, then what cannot be answered yet. */
    rc = one && one != PSM_CUDA_NOT_READY ? one : two && two != PSM_CUDA_NOT_READY ? two : one ? one : two;
    if (first->device != second->device) rc = PSM_CUDA_INVALID_HANDLE;
    if (!rc) *ms = (float)((double)(to - from) / 1e6);
    hc_event_put(second);
    hc_event_put(first);
    return rc;
}

/* ---- between processes ---- */

static int export_event(CUevent handle, void *out)
{
    struct hc_event *event;
    if (!out) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_event_get(handle, &event);
    if (rc) return rc;
    rc = event->shared ? hc_shared_event_name(event->shared, out) : PSM_CUDA_INVALID_HANDLE;
    hc_event_put(event);
    return rc;
}

static int import_event(CUevent *out, const void *name)
{
    if (!out) return PSM_CUDA_INVALID_VALUE;
    struct hc_shared_event *shared;
    int rc = hc_stream_context();
    if (!rc) rc = hc_shared_event_open(name, &shared);
    if (rc) return rc;
    struct hc_event *event = event_new(hc_current_device(), DISABLE_TIMING | INTERPROCESS);
    if (!event) {
        hc_shared_event_end(shared);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    event->shared = shared;
    return event_begin(event, out);
}

/* ---- exported ---- */

cudaError_t hc_cudaEventCreate(cudaEvent_t *event)
{
    return create(event, 0);
}

cudaError_t hc_cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    if (event && hc_fault_asks(PSM_FAULT_DROP, NULL)) {
        *event = NULL;
        return 0;
    }
    int rc = create(event, flags);
    if (rc == 0 && hc_fault_asks(PSM_FAULT_CORRUPT, NULL)) rc = destroy(*event); /* what the caller has is stale */
    return rc;
}

cudaError_t hc_cudaEventDestroy(cudaEvent_t event)
{
    return destroy(event);
}

cudaError_t hc_cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return record(event, stream, 0);
}

cudaError_t hc_cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    return record(event, stream, flags);
}

cudaError_t hc_cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    return stream_wait(stream, event, flags);
}

cudaError_t hc_cudaEventQuery(cudaEvent_t event)
{
    return query(event, false);
}

cudaError_t hc_cudaEventSynchronize(cudaEvent_t event)
{
    return query(event, true);
}

cudaError_t hc_cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    return elapsed(ms, start, end);
}

cudaError_t hc_cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event)
{
    return export_event(event, handle);
}

cudaError_t hc_cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
    return import_event(event, &handle);
}
