/* Contexts: one primary context per device, which the runtime uses, others created by cuCtxCreate, and the stack of
 * each thread. */
#define _GNU_SOURCE
#include "core/hc_life.h"
#include "device/hc_context.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH = 32, VERSION = 3020 };
#define AS_NUMBER(handle)  ((uint64_t)(uintptr_t)(handle))
#define AS_CONTEXT(number) ((CUcontext)(uintptr_t)(number))

static _Thread_local struct {
    int chosen;  /* cudaSetDevice */
    int current; /* device of the top context, or `chosen` */
    int depth;
    CUcontext stack[DEPTH];
} mine;

static struct hc_context primaries[HC_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t next_id = 1;

static const size_t usual_limits[HC_LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0};

static void set_up(struct hc_context *context, int device, bool primary)
{
    context->device = device;
    context->primary = primary;
    context->version = VERSION;
    context->id = atomic_fetch_add(&next_id, 1);
    atomic_store(&context->cache, 0);
    atomic_store(&context->bank, 1);
    for (int i = 0; i < HC_LIMITS; i++) atomic_store(&context->limits[i], usual_limits[i]);
}

struct hc_context *hc_context_primary(int device)
{
    struct hc_context *context = &primaries[device];
    pthread_mutex_lock(&lock);
    if (!context->handle) {
        set_up(context, device, true);
        context->handle = AS_CONTEXT(hc_handle_new(HC_CONTEXT, context));
    }
    pthread_mutex_unlock(&lock);
    return context;
}

struct hc_context *hc_context_get(CUcontext handle)
{
    if (!handle) {
        if (!mine.depth) return NULL;
        handle = mine.stack[mine.depth - 1];
    }
    return hc_handle_get(HC_CONTEXT, AS_NUMBER(handle));
}

static CUcontext use_primary(int device)
{
    struct hc_context *context = hc_context_primary(device);
    if (!atomic_load_explicit(&context->active, memory_order_relaxed)) atomic_store(&context->active, true);
    if (!atomic_load_explicit(&context->runtime, memory_order_relaxed)) atomic_store(&context->runtime, true);
    return context->handle;
}

CUcontext hc_primary_context(int device)
{
    return hc_device_valid(device) ? use_primary(device) : NULL;
}

int hc_context_device(CUcontext handle)
{
    struct hc_context *context = handle ? hc_context_get(handle) : NULL;
    return context ? context->device : -1;
}

CUcontext hc_context_current(void)
{
    return mine.depth ? mine.stack[mine.depth - 1] : NULL;
}

int hc_context_require(void)
{
    if (!mine.depth) return PSM_CUDA_INVALID_CONTEXT;
    return hc_context_get(NULL) ? 0 : PSM_CUDA_CONTEXT_IS_DESTROYED;
}

int hc_current_device(void)
{
    return mine.current;
}

/* Call it after each change of the stack. */
static void look_at_top(void)
{
    struct hc_context *context = hc_context_get(NULL);
    mine.current = context ? context->device : mine.chosen;
}

void hc_context_replace(CUcontext handle)
{
    if (!mine.depth) mine.depth = 1;
    mine.stack[mine.depth - 1] = handle;
    look_at_top();
}

/* The runtime's result without a context. */
static bool only_asks(int fn)
{
    switch (fn) {
    case HC_FN_cudaGetDevice:
    case HC_FN_cudaGetDeviceCount:
    case HC_FN_cudaSetDevice:
    case HC_FN_cudaInitDevice:
    case HC_FN_cudaGetDeviceProperties__12:
    case HC_FN_cudaGetDeviceProperties__13:
    case HC_FN_cudaGetDeviceProperties_v2:
    case HC_FN_cudaDeviceGetAttribute:
    case HC_FN_cudaDeviceGetPCIBusId:
    case HC_FN_cudaDeviceGetByPCIBusId:
    case HC_FN_cudaDeviceGetP2PAttribute:
    case HC_FN_cudaDeviceCanAccessPeer:
    case HC_FN_cudaDeviceReset:
    case HC_FN_cudaChooseDevice__12:
    case HC_FN_cudaChooseDevice__13:
    case HC_FN_cudaSetDeviceFlags:
    case HC_FN_cudaGetDeviceFlags:
    case HC_FN_cudaGetLastError:
    case HC_FN_cudaPeekAtLastError:
    case HC_FN_cudaDriverGetVersion:
    case HC_FN_cudaRuntimeGetVersion:
    case HC_FN_cudaGetDriverEntryPoint:
    case HC_FN_cudaGetDriverEntryPointByVersion:
    case HC_FN_cudaThreadExchangeStreamCaptureMode:
    case HC_FN_cudaGetExportTable:
        return true;
    default:
        return false;
    }
}

void hc_context_bind(int fn)
{
    if (!mine.depth && hc_device_valid(mine.chosen) && !only_asks(fn)) hc_context_replace(use_primary(mine.chosen));
}

int hc_set_current_device(int device)
{
    if (!hc_topology.devices) return PSM_CUDA_NO_DEVICE;
    if (!hc_device_valid(device)) return PSM_CUDA_INVALID_DEVICE;
    mine.chosen = device;
    hc_context_replace(use_primary(device));
    return 0;
}

/* ---- peer access ---- */

static atomic_bool peers[HC_MAX_DEVICES][HC_MAX_DEVICES];

bool hc_peer_enabled(int from, int to)
{
    return hc_device_valid(from) && hc_device_valid(to) && atomic_load_explicit(&peers[from][to], memory_order_relaxed);
}

int hc_peer_enable(int device, int peer, unsigned flags)
{
    if (!hc_device_valid(peer) || peer == device) return PSM_CUDA_INVALID_DEVICE;
    if (flags) return PSM_CUDA_INVALID_VALUE;
    if (!hc_peer_possible(device, peer)) return PSM_CUDA_PEER_ACCESS_UNSUPPORTED;
    return atomic_exchange(&peers[device][peer], true) ? PSM_CUDA_PEER_ACCESS_ALREADY_ENABLED : 0;
}

int hc_peer_disable(int device, int peer)
{
    if (!hc_device_valid(peer) || peer == device) return PSM_CUDA_INVALID_DEVICE;
    return atomic_exchange(&peers[device][peer], false) ? 0 : PSM_CUDA_PEER_ACCESS_NOT_ENABLED;
}

/* ---- life ---- */

static void reset(int device)
{
    struct hc_context *context = hc_context_primary(device);
    for (int other = 0; other < HC_MAX_DEVICES; other++) atomic_store(&peers[device][other], false);
    atomic_store(&context->flags, 0);
    atomic_store(&context->active, false);
    atomic_store(&context->runtime, false);
    atomic_store(&context->cache, 0);
    for (int i = 0; i < HC_LIMITS; i++) atomic_store(&context->limits[i], usual_limits[i]);
}

HC_LIFE(HC_MODULE_CONTEXTS, .reset = reset)

bool hc_context_flags_valid(unsigned flags)
{
    unsigned schedule = flags & 7;
    return !(flags & ~0xffu) && (!schedule || schedule == 1 || schedule == 2 || schedule == 4);
}

int hc_context_limit_get(struct hc_context *context, int limit, size_t *value)
{
    if (!value) return PSM_CUDA_INVALID_VALUE;
    if (limit < 0 || limit >= HC_LIMITS) return PSM_CUDA_UNSUPPORTED_LIMIT;
    *value = atomic_load(&context->limits[limit]);
    return 0;
}

int hc_context_limit_set(struct hc_context *context, int limit, size_t value)
{
    if (limit < 0 || limit >= HC_LIMITS) return PSM_CUDA_UNSUPPORTED_LIMIT;
    if (limit == 5 && value > 128) return PSM_CUDA_INVALID_VALUE; /* L2 fetch granularity: a hint from 0 to 128 */
    if (limit == 3 && value > 24) return PSM_CUDA_INVALID_VALUE;  /* depth of device-side synchronisation */
    atomic_store(&context->limits[limit], value);
    return 0;
}

int hc_context_create(CUcontext *out, unsigned flags, int device)
{
    if (!out || !hc_context_flags_valid(flags)) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(device)) return PSM_CUDA_INVALID_DEVICE;
    if (mine.depth == DEPTH) return PSM_CUDA_OUT_OF_MEMORY;
    struct hc_context *context = calloc(1, sizeof *context);
    if (!context) return PSM_CUDA_OUT_OF_MEMORY;
    set_up(context, device, false);
    atomic_store(&context->references, 1);
    atomic_store(&context->active, true);
    atomic_store(&context->flags, flags);
    context->handle = AS_CONTEXT(hc_handle_new(HC_CONTEXT, context));
    if (!context->handle) {
        free(context);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    mine.stack[mine.depth++] = *out = context->handle;
    look_at_top();
    return 0;
}

int hc_context_push(CUcontext handle)
{
    if (!handle || !hc_context_get(handle)) return PSM_CUDA_INVALID_CONTEXT;
    if (mine.depth == DEPTH) return PSM_CUDA_OUT_OF_MEMORY;
    mine.stack[mine.depth++] = handle;
    look_at_top();
    return 0;
}

int hc_context_pop(CUcontext *out)
{
    if (!mine.depth) return PSM_CUDA_INVALID_CONTEXT;
    mine.depth--;
    if (out) *out = mine.stack[mine.depth];
    look_at_top();
    return 0;
}

void hc_context_forget(CUcontext handle)
{
    if (mine.depth && mine.stack[mine.depth - 1] == handle) mine.depth--;
    look_at_top();
}
