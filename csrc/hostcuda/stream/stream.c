/* Streams as seen by the application: handles, the default streams, queries and settings. */
#define _GNU_SOURCE
#include "core/hc_life.h"
#include "fault.h"
#include "stream/hc_stream.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_condattr_t monotonic;
static pthread_key_t thread_key;
static _Atomic uint64_t last_id;
static pid_t owner;

/* The per-thread default streams of a thread, by device. */
struct thread_streams {
    struct hc_stream *of[HC_MAX_DEVICES];
};
static _Thread_local struct thread_streams *mine;

/* ---- life ---- */

/* NULL: out of memory. */
static struct hc_stream *stream_new(int device, enum hc_stream_kind kind, unsigned flags, int priority)
{
    pthread_mutex_lock(&hc_queue_lock);
    struct hc_stream *stream = hc_stream_reuse(device);
    pthread_mutex_unlock(&hc_queue_lock);
    if (!stream) {
        stream = calloc(1, sizeof *stream);
        if (!stream) return NULL;
        stream->attributes = calloc(1, sizeof *stream->attributes);
        if (!stream->attributes) {
            free(stream);
            return NULL;
        }
        stream->device = device;
        pthread_cond_init(&stream->done, &monotonic);
    }
    memset(stream->attributes, 0, sizeof *stream->attributes);
    stream->attributes->sync.syncPolicy = 1;
    stream->attributes->map.memSyncDomainMap.remote = 1;
    stream->attributes->priority.priority = priority;
    stream->kind = kind;
    stream->flags = flags;
    stream->context = NULL;
    stream->internal = stream->per_thread = stream->in_host_function = false;
    stream->id = atomic_fetch_add(&last_id, 1) + 1;
    atomic_store(&stream->cancelled, false);
    atomic_store(&stream->dead, false);
    __atomic_store_n(&stream->capture, NULL, __ATOMIC_RELEASE);
    return stream;
}

static void stream_begin(struct hc_stream *stream)
{
    pthread_mutex_lock(&hc_queue_lock);
    hc_queue_link(stream);
    atomic_store(&stream->refs, 1);
    pthread_mutex_unlock(&hc_queue_lock);
}

/* Whether the memory still is a stream. The caller then checks which one. */
static bool hold(struct hc_stream *stream)
{
    int refs = atomic_load(&stream->refs);
    while (refs > 0)
        if (atomic_compare_exchange_weak(&stream->refs, &refs, refs + 1)) return true;
    return false;
}

void hc_stream_put(struct hc_stream *stream)
{
    if (atomic_fetch_sub(&stream->refs, 1) != 1) return;
    pthread_mutex_lock(&hc_queue_lock);
    hc_stream_recycle(stream);
    pthread_mutex_unlock(&hc_queue_lock);
}

static int get_legacy(int device, struct hc_stream **out)
{
    struct hc_stream *stream = hc_queue_legacy(device);
    if (stream && hold(stream)) {
        if (hc_queue_legacy(device) == stream) {
            *out = stream;
            return 0;
        }
        hc_stream_put(stream);
    }
    struct hc_stream *fresh = stream_new(device, HC_LEGACY, 0, 0);
    if (!fresh) return PSM_CUDA_OUT_OF_MEMORY;
    pthread_mutex_lock(&hc_queue_lock);
    stream = hc_queue_legacy(device);
    if (!stream) {
        stream = fresh;
        fresh = NULL;
        atomic_store(&stream->refs, 1);
        hc_queue_link(stream);
    }
    atomic_fetch_add(&stream->refs, 1);
    if (fresh) hc_stream_spare(fresh); /* another thread was first */
    pthread_mutex_unlock(&hc_queue_lock);
    *out = stream;
    return 0;
}

static void thread_ends(void *streams)
{
    struct thread_streams *ended = streams;
    mine = NULL;
    if (getpid() == owner)
        for (int device = 0; device < HC_MAX_DEVICES; device++)
            if (ended->of[device]) hc_stream_put(ended->of[device]);
    free(ended);
}

static int get_per_thread(int device, struct hc_stream **out)
{
    if (!mine) {
        struct thread_streams *fresh = calloc(1, sizeof *fresh);
        if (!fresh || pthread_setspecific(thread_key, fresh)) {
            free(fresh);
            return PSM_CUDA_OUT_OF_MEMORY;
        }
        mine = fresh;
    }
    struct hc_stream *stream = mine->of[device];
    if (stream && atomic_load(&stream->dead)) {
        mine->of[device] = NULL;
        hc_stream_put(stream);
        stream = NULL;
    }
    if (!stream) {
        stream = stream_new(device, HC_BLOCKING, 0, 0);
        if (!stream) return PSM_CUDA_OUT_OF_MEMORY;
        stream->per_thread = true;
        stream_begin(stream);
        mine->of[device] = stream;
    }
    atomic_fetch_add(&stream->refs, 1);
    *out = stream;
    return 0;
}

/* Default streams and new objects belong to the current context: the runtime creates one, the driver requires one. */
int hc_stream_context(void)
{
    if (hc_device_count() == 0) return PSM_CUDA_NO_DEVICE;
    const struct hc_call *call = hc_current_call();
    return call && call->api == HC_API_CUDA ? hc_context_require() : 0;
}

int hc_stream_get(cudaStream_t handle, struct hc_stream **stream)
{
    uint64_t value = (uint64_t)(uintptr_t)handle;
    if (value <= PSM_CUDA_STREAM_PER_THREAD) {
        int rc = hc_stream_context();
        if (rc) return rc;
    }
    if (value == PSM_CUDA_STREAM_DEFAULT) {
        const struct hc_call *call = hc_current_call();
        value = call && call->per_thread_default ? PSM_CUDA_STREAM_PER_THREAD : PSM_CUDA_STREAM_LEGACY;
    }
    if (value == PSM_CUDA_STREAM_LEGACY) return get_legacy(hc_current_device(), stream);
    if (value == PSM_CUDA_STREAM_PER_THREAD) return get_per_thread(hc_current_device(), stream);
    struct hc_stream *found = hc_handle_get(HC_STREAM, value);
    if (!found || !hold(found)) return PSM_CUDA_INVALID_HANDLE;
    if (atomic_load(&found->handle) != value) {
        hc_stream_put(found);
        return PSM_CUDA_INVALID_HANDLE;
    }
    *stream = found;
    return 0;
}

int hc_stream_internal(int device, struct hc_stream **out)
{
    struct hc_stream *stream = stream_new(device, HC_NON_BLOCKING, 1, 0);
    if (!stream) return PSM_CUDA_OUT_OF_MEMORY;
    stream->internal = true;
    stream_begin(stream);
    *out = stream;
    return 0;
}

int hc_stream_device(const struct hc_stream *stream)
{
    return stream->device;
}

static cudaStream_t handle_of(const struct hc_stream *stream)
{
    return (cudaStream_t)(uintptr_t)atomic_load(&stream->handle); // NOLINT: a number, never followed
}

bool hc_stream_is_legacy(const struct hc_stream *stream)
{
    return stream->kind == HC_LEGACY;
}

bool hc_stream_is_blocking(const struct hc_stream *stream)
{
    return stream->kind == HC_BLOCKING;
}

struct hc_capture **hc_stream_capture(struct hc_stream *stream)
{
    return &stream->capture;
}

bool hc_is_captured(struct hc_stream *stream)
{
    return __atomic_load_n(&stream->capture, __ATOMIC_ACQUIRE) != NULL;
}

/* ---- start, stop, reset ---- */

static int start(void)
{
    owner = getpid();
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    if (pthread_key_create(&thread_key, thread_ends)) return PSM_CUDA_OPERATING_SYSTEM;
    hc_workers_start();
    return 0;
}

static void end_stream(uint64_t value, void *object, void *context)
{
    struct hc_stream *stream = object;
    if (stream->device != *(int *)context || !hc_handle_end(HC_STREAM, value)) return;
    if (__atomic_load_n(&stream->capture, __ATOMIC_ACQUIRE)) hc_captures->stream_ends(stream);
    atomic_store(&stream->handle, 0);
    hc_stream_put(stream);
}

/* Drops queued work and waits for running work, except for host functions, which may never end. */
static void drop_work(int device)
{
    pthread_mutex_lock(&hc_queue_lock);
    for (struct hc_stream *stream = hc_queue_streams(device); stream; stream = stream->device_next)
        hc_queue_cancel(stream);
    hc_workers_kick(0);
again:
    for (struct hc_stream *stream = hc_queue_streams(device); stream; stream = stream->device_next) {
        if (!stream->active || stream->in_host_function) continue;
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        struct hc_sleeper self;
        hc_stream_sleep(stream, &self);
        pthread_cond_timedwait(&stream->done, &hc_queue_lock, &until);
        hc_stream_wake(stream, &self);
        goto again; /* the list may have changed */
    }
    for (struct hc_stream *stream = hc_queue_streams(device); stream; stream = stream->device_next) {
        if (!stream->active) {
            atomic_store(&stream->cancelled, false);
        } else { /* a host function still runs in it: the device gets new default streams */
            atomic_store(&stream->dead, true);
        }
    }
    struct hc_stream *legacy = hc_queue_legacy(device);
    if (legacy && atomic_load(&legacy->dead)) {
        hc_queue_forget_legacy(device);
        if (atomic_fetch_sub(&legacy->refs, 1) == 1) hc_stream_recycle(legacy);
    }
    pthread_mutex_unlock(&hc_queue_lock);
}

static void reset(int device)
{
    drop_work(device);
    hc_handle_each(HC_STREAM, end_stream, &device);
}

static void end_stream_of_context(uint64_t value, void *object, void *context)
{
    struct hc_stream *stream = object;
    if (stream->context != *(CUcontext *)context) return;
    hc_say_ended(HC_STREAM, value);
    end_stream(value, object, &stream->device);
}

static void context_ends(CUcontext context)
{
    hc_handle_each(HC_STREAM, end_stream_of_context, &context);
}

HC_LIFE(HC_MODULE_STREAMS, .start = start, .reset = reset, .context_ends = context_ends, .stop = hc_workers_stop)

/* ---- create and destroy ---- */

/* Default streams belong to whichever context is current. */
CUcontext hc_context_now(int device)
{
    CUcontext context = hc_context_current();
    return context && hc_context_device(context) == device ? context : hc_primary_context(device);
}

static int create(cudaStream_t *out, unsigned flags, int priority)
{
    if (!out || flags > 1) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_stream_context();
    if (rc) return rc;
    if (priority > HC_PRIORITY_LEAST) priority = HC_PRIORITY_LEAST;
    if (priority < HC_PRIORITY_GREATEST) priority = HC_PRIORITY_GREATEST;
    struct hc_stream *stream =
        stream_new(hc_current_device(), flags & 1 ? HC_NON_BLOCKING : HC_BLOCKING, flags, priority);
    if (!stream) return PSM_CUDA_OUT_OF_MEMORY;
    stream->context = hc_context_now(stream->device);
    stream_begin(stream);
    uint64_t handle = hc_handle_new(HC_STREAM, stream);
    atomic_store(&stream->handle, handle);
    if (!handle) {
        hc_stream_put(stream);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    *out = handle_of(stream);
    return 0;
}

cudaError_t hc_cudaStreamCreate(cudaStream_t *pStream)
{
    return create(pStream, 0, 0);
}

cudaError_t hc_cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags)
{
    if (pStream && hc_fault_asks(PSM_FAULT_DROP, NULL)) {
        *pStream = NULL;
        return 0;
    }
    int rc = create(pStream, flags, 0);
    if (rc == 0 && hc_fault_asks(PSM_FAULT_CORRUPT, NULL))
        rc = hc_cudaStreamDestroy(*pStream); /* what the caller has is stale */
    return rc;
}

cudaError_t hc_cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags, int priority)
{
    return create(pStream, flags, priority);
}

/* The handle ends at once, the stream when its work is done. Default streams have no handle and cannot be destroyed. */
static int destroy(cudaStream_t handle)
{
    struct hc_stream *stream = hc_handle_end(HC_STREAM, (uint64_t)(uintptr_t)handle);
    if (!stream) return PSM_CUDA_INVALID_HANDLE;
    if (__atomic_load_n(&stream->capture, __ATOMIC_ACQUIRE)) hc_captures->stream_ends(stream);
    atomic_store(&stream->handle, 0);
    hc_stream_put(stream);
    return 0;
}

cudaError_t hc_cudaStreamDestroy(cudaStream_t stream)
{
    return destroy(stream);
}

/* ---- wait and ask ---- */

/* A captured stream has nothing to wait for: querying it is an error that ends its capture. */
static int refuse_captured(struct hc_stream *stream)
{
    if (__atomic_load_n(&stream->capture, __ATOMIC_ACQUIRE)) return hc_captures->forbids_stream(stream);
    return stream->kind == HC_LEGACY ? hc_capture_forbids(true) : 0;
}

static int synchronize(cudaStream_t handle)
{
    struct hc_stream *stream;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    rc = refuse_captured(stream);
    if (!rc) rc = hc_stream_drain(stream);
    hc_stream_put(stream);
    return rc;
}

cudaError_t hc_cudaStreamSynchronize(cudaStream_t stream)
{
    return synchronize(stream);
}

static int query(cudaStream_t handle)
{
    struct hc_stream *stream;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    rc = refuse_captured(stream);
    if (!rc && !hc_stream_idle(stream)) rc = PSM_CUDA_NOT_READY;
    int stuck = hc_device_sticky(stream->device);
    hc_stream_put(stream);
    return stuck ? stuck : rc;
}

cudaError_t hc_cudaStreamQuery(cudaStream_t stream)
{
    return query(stream);
}

enum question { FLAGS, PRIORITY, ID, DEVICE, CONTEXT };

static int ask(cudaStream_t handle, enum question question, void *out)
{
    struct hc_stream *stream;
    if (!out) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    switch (question) {
    case FLAGS:
        *(unsigned *)out = stream->flags;
        break;
    case PRIORITY:
        pthread_mutex_lock(&hc_queue_lock);
        *(int *)out = stream->attributes->priority.priority;
        pthread_mutex_unlock(&hc_queue_lock);
        break;
    case ID:
        *(unsigned long long *)out = stream->id;
        break;
    case DEVICE:
        *(int *)out = stream->device;
        break;
    case CONTEXT:
        *(CUcontext *)out = stream->context ? stream->context : hc_context_now(stream->device);
        break;
    }
    hc_stream_put(stream);
    return 0;
}

cudaError_t hc_cudaStreamGetFlags(cudaStream_t hStream, unsigned int *flags)
{
    return ask(hStream, FLAGS, flags);
}

cudaError_t hc_cudaStreamGetPriority(cudaStream_t hStream, int *priority)
{
    return ask(hStream, PRIORITY, priority);
}

cudaError_t hc_cudaStreamGetId(cudaStream_t hStream, unsigned long long *streamId)
{
    return ask(hStream, ID, streamId);
}

cudaError_t hc_cudaStreamGetDevice(cudaStream_t hStream, int *device)
{
    return ask(hStream, DEVICE, device);
}

CUresult hc_cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    return ask(hStream, CONTEXT, pctx);
}
