/* Streams, events and the workers that run queued work. One lock guards all queues of the process; the work itself runs
 * without it. Streams and events are type-stable: their memory is reused only for streams and events, and the positions
 * of a stream never decrease, so a ticket stays valid after its stream is gone. */
#ifndef HC_STREAM_H
#define HC_STREAM_H

#include "core/hc.h"

/* Result of cudaDeviceGetStreamPriorityRange; other values are clamped to it. */
#define HC_PRIORITY_LEAST    0
#define HC_PRIORITY_GREATEST (-5)

/* ---- for graphs ---- */

/* A non-blocking stream without a handle, for internal work; hc_stream_put ends it (queued work still runs). */
int hc_stream_internal(int device, struct hc_stream **stream);
/* As hc_submit, but the work also waits for `deps`, and a capture of the stream is ignored. `deps` is copied. */
int hc_submit_after(struct hc_stream *stream, const struct hc_work *work, const struct hc_ticket *deps, size_t n,
                    struct hc_ticket *ticket);
bool hc_stream_idle(struct hc_stream *stream); /* cudaStreamQuery */
/* The rules of the legacy default stream add nothing to the order of the stream now. */
bool hc_stream_alone(const struct hc_stream *stream);
bool hc_stream_is_legacy(const struct hc_stream *stream);
bool hc_stream_is_blocking(const struct hc_stream *stream);
/* Access the slot of hc_stream_capture with __atomic_load_n and __atomic_store_n. */

/* ---- events ---- */

struct hc_capture_point; /* where an event was recorded while its stream was captured; owned by graph code */
int hc_event_get(CUevent handle, struct hc_event **event); /* held until hc_event_put; INVALID_HANDLE */
void hc_event_put(struct hc_event *event);
int hc_event_device(const struct hc_event *event);
/* Slot for graph code, accessed like that of streams. */
struct hc_capture_point **hc_event_capture(struct hc_event *event);
/* Records into `stream` now, captured or not; `deps` as for hc_submit_after. For event record nodes at the launch. */
int hc_event_submit(struct hc_event *event, struct hc_stream *stream, const struct hc_ticket *deps, size_t n,
                    struct hc_ticket *ticket);
/* Makes `stream` wait for the last record, captured or not. For event wait nodes at the launch. */
int hc_event_submit_wait(struct hc_event *event, struct hc_stream *stream, const struct hc_ticket *deps, size_t n,
                         struct hc_ticket *ticket);
/* Notifies the sanitizer of an object that ends without a call that names it. Before its handle ends. */
void hc_say_ended(enum hc_kind kind, uint64_t value);
/* The context of a new object of the device. */
CUcontext hc_context_now(int device);

/* ---- inside queue.c, submit.c, worker.c, stall.c, stream.c ---- */

enum hc_stream_kind { HC_LEGACY, HC_BLOCKING, HC_NON_BLOCKING };

/* A queued item. `deps` points to `few` or to memory of its own. */
struct hc_item {
    struct hc_item *next;
    uint64_t number;
    int (*run)(void *argument, int device);
    void (*end)(void *argument);
    unsigned flags;
    int fn, tid; /* the exported function and the thread that queued it; fn -1: internal work */
    size_t n_deps, next_dep;
    struct hc_ticket *deps;
    struct hc_ticket few[4];
    _Alignas(16) unsigned char argument[HC_ARGUMENT];
};

struct hc_stream_attributes {
    cudaLaunchAttributeValue window, sync, priority, map, domain;
};

/* A waiting thread, on its own stack. Under the lock of queue.c. */
struct hc_sleeper {
    struct hc_sleeper *next;
    int fn, tid; /* as in hc_item */
};

struct hc_stream {
    _Atomic uint64_t handle; /* 0: default streams, internal ones, and destroyed streams */
    atomic_int refs; /* one for the handle, one while there is work, one per holder; at 0 the memory is released */
    _Atomic uint64_t submitted, completed;
    /* Protected by the lock of queue.c. */
    struct hc_item *first, *last;
    bool active;           /* holds work that is queued or running */
    bool running;          /* a worker or an inline caller is running it */
    bool ready;            /* in the list of streams that a worker may take */
    bool in_host_function; /* an application's host function, which may never end */
    void *host_function;   /* which */
    struct {               /* stall.c */
        uint64_t completed, since;
        bool told;
    } stall;
    struct hc_stream *ready_next;   /* there */
    struct hc_stream *parked_on;    /* the first item waits for this stream */
    struct hc_stream *parked_next;  /* in its list */
    uint64_t parked_number;         /* to come so far */
    struct hc_stream *parked_first; /* streams that wait for this one */
    pthread_cond_t done;
    struct hc_sleeper *sleepers; /* in pthread_cond_wait */
    struct hc_stream *device_next, *device_previous;
    atomic_bool cancelled; /* reset: queued work ends without having run */
    atomic_bool dead;      /* reset: a default stream that was replaced */
    /* Constant while the stream lives. */
    int device;
    enum hc_stream_kind kind;
    bool internal;
    bool per_thread;
    unsigned flags;
    CUcontext context; /* in which it was created; NULL: default streams */
    uint64_t id;
    struct hc_capture *capture;
    struct hc_stream_attributes *attributes; /* kept with the memory */
};

static inline bool hc_stream_reached(const struct hc_stream *stream, uint64_t number)
{
    return atomic_load_explicit(&stream->completed, memory_order_acquire) >= number;
}
static inline bool hc_ticket_done(const struct hc_ticket *ticket)
{
    return !ticket->stream || hc_stream_reached(ticket->stream, ticket->number);
}

extern pthread_mutex_t hc_queue_lock;
extern atomic_bool hc_stopping; /* the process exits: waits of workers end */
int hc_stream_context(void);    /* 0, or why there is no current context: NO_DEVICE, INVALID_CONTEXT */
bool hc_stream_stopped(const struct hc_stream *stream);
struct hc_stream *hc_current_stream(void); /* of the work running in this thread, NULL: none */

/* Call all of these under the lock. */
void hc_stream_sleep(struct hc_stream *stream, struct hc_sleeper *self); /* before and after the wait */
void hc_stream_wake(struct hc_stream *stream, struct hc_sleeper *self);
void hc_queue_link(struct hc_stream *stream); /* registers it with its device */
struct hc_stream *hc_queue_pop_ready(void);   /* a stream whose first item may run, or NULL */
/* If host functions run one at a time and this stream's first item is one: the stream that has the turn it waits for;
 * NULL: it waits for no turn. */
struct hc_stream *hc_queue_turn(const struct hc_stream *stream);
struct hc_item *hc_queue_take(struct hc_stream *stream); /* its first item; the stream is running now */
void hc_queue_finish(struct hc_stream *stream, struct hc_item *item, uint64_t number);
void hc_queue_cancel(struct hc_stream *stream);
bool hc_queue_ready(void);
int hc_queue_ready_count(void);
struct hc_stream *hc_queue_streams(int device);
struct hc_stream *hc_queue_legacy(int device); /* NULL: not used yet; no lock needed */
void hc_queue_forget_legacy(int device);
void hc_stream_recycle(struct hc_stream *stream); /* refs reached 0 */
void hc_stream_spare(struct hc_stream *stream);   /* keeps the memory for the next stream */
struct hc_stream *hc_stream_reuse(int device);    /* NULL: there is none */
struct hc_item *hc_item_new(const struct hc_work *work, size_t n_deps);
void hc_queue_activate(struct hc_stream *stream); /* it has work */
void hc_queue_append(struct hc_stream *stream, struct hc_item *item);
/* Adds what has been submitted to a stream, unless it is done. Returns how many tickets there are; writes at most room.
 */
size_t hc_queue_ticket(struct hc_ticket *tickets, size_t n, size_t room, struct hc_stream *stream);
/* What the rules of the legacy default stream add to the order of a stream. Returns and writes like that. */
size_t hc_queue_rules(struct hc_stream *stream, struct hc_ticket *tickets, size_t room);
void hc_queue_run(struct hc_stream *stream, struct hc_item *item); /* without the lock */

void hc_workers_start(void);
void hc_workers_stop(void);
/* Under the lock: makes sure that workers come for what is ready. `self`: how many items the caller runs itself. */
void hc_workers_kick(int self);
void hc_workers_busy(int change); /* inline runners count, so that the exit waits for them */

/* stall.c, all under the lock: whether to start the thread that watches the streams, its main function, and a note that
 * it could not be started. */
bool hc_stall_wanted(void);
void *hc_stall_watch(void *workers); /* int: ends when there is none left */
void hc_stall_not_started(void);
uint64_t hc_stall_patience(void); /* nanoseconds after which a wait is reported; 0: never. Without the lock. */
/* A stream memory operation that has waited for that long: for which value, and what is there. Without the lock. */
struct hc_value_wait {
    uintptr_t address, offset; /* offset: in its allocation */
    uint64_t wanted, seen, seconds;
    unsigned condition; /* CU_STREAM_WAIT_VALUE_* */
    int bits;
};
/* values.c. wait: a line, and a row of the record; not 0. came: the end of both; `said` is what wait returned. */
uint32_t hc_say_value_wait(const struct hc_stream *stream, const struct hc_value_wait *wait);
void hc_say_value_came(const struct hc_stream *stream, const struct hc_value_wait *wait, uint32_t said);
/* Work that call `fn` of thread `tid` had queued was the first to fail on its device. Without the lock. */
void hc_say_failed_later(const struct hc_stream *stream, int fn, int tid, int code);
const char *hc_stream_kind_name(const struct hc_stream *stream); /* legacy, per-thread, blocking, non-blocking */

/* The addresses of a batch of stream memory operations (memop.c), one after the other: false after the last, or for
 * work of another kind. An operation without an address has 0. */
bool hc_batch_address(const struct hc_item *item, unsigned index, uintptr_t *address);

/* uses.c: work that is queued, not running yet, and uses these addresses. */
struct hc_use {
    int fn, tid; /* as in hc_item */
    const char *kind;
    uint64_t stream;
    int device;
};
bool hc_queued_use(uintptr_t at, size_t size, struct hc_use *use);
void hc_say_unmapped_in_use(uintptr_t at, size_t size, const struct hc_use *use);
#endif
