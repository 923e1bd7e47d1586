/* Contexts: one primary context per device, which the runtime uses, others created by cuCtxCreate, and the stack of
 * each thread. */
#define _GNU_SOURCE
#include "kernel/hc_kernel.h"
#include "stream/hc_stream.h"

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

static void replace_top(CUcontext handle)
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
    if (!mine.depth && hc_device_valid(mine.chosen) && !only_asks(fn)) replace_top(use_primary(mine.chosen));
}

int hc_set_current_device(int device)
{
    if (!hc_topology.devices) return PSM_CUDA_NO_DEVICE;
    if (!hc_device_valid(device)) return PSM_CUDA_INVALID_DEVICE;
    mine.chosen = device;
    replace_top(use_primary(device));
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

void hc_device_reset(int device)
{
    struct hc_context *context = hc_context_primary(device);
    (void)hc_device_drain(device);
    hc_streams_reset(device);
    hc_memory_reset(device);
    hc_modules_reset(device);
    for (int other = 0; other < HC_MAX_DEVICES; other++) atomic_store(&peers[device][other], false);
    atomic_store(&context->flags, 0);
    atomic_store(&context->active, false);
    atomic_store(&context->runtime, false);
    atomic_store(&context->cache, 0);
    for (int i = 0; i < HC_LIMITS; i++) atomic_store(&context->limits[i], usual_limits[i]);
    hc_device_clear(device);
}

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

static int create(CUcontext *out, unsigned flags, int device)
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

CUresult hc_cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return create(pctx, flags, dev);
}

CUresult hc_cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return create(pctx, flags, dev);
}

/* Affinity and CIG parameters need hardware that is not emulated. */
CUresult hc_cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
                           CUdevice dev)
{
    if (paramsArray || numParams) return PSM_CUDA_NOT_SUPPORTED;
    return create(pctx, flags, dev);
}

CUresult hc_cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
{
    if (ctxCreateParams) return PSM_CUDA_NOT_SUPPORTED;
    return create(pctx, flags, dev);
}

/* Keep the object: another thread may be reading it through its stack. It is small, and contexts are few. */
static int destroy(CUcontext handle)
{
    struct hc_context *context = handle ? hc_context_get(handle) : NULL;
    if (!context || context->primary) return PSM_CUDA_INVALID_CONTEXT;
    (void)hc_device_drain(context->device);
    if (!hc_handle_end(HC_CONTEXT, AS_NUMBER(handle))) return PSM_CUDA_INVALID_CONTEXT;
    hc_events_context_gone(handle);
    hc_streams_context_gone(handle);
    if (mine.depth && mine.stack[mine.depth - 1] == handle) mine.depth--;
    look_at_top();
    return 0;
}

CUresult hc_cuCtxDestroy(CUcontext ctx)
{
    return destroy(ctx);
}

CUresult hc_cuCtxDestroy_v2(CUcontext ctx)
{
    return destroy(ctx);
}

CUresult hc_cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    struct hc_context *context = hc_context_get(NULL);
    if (!pctx || flags) return PSM_CUDA_INVALID_VALUE;
    if (!context || context->primary) return PSM_CUDA_INVALID_CONTEXT;
    atomic_fetch_add(&context->references, 1);
    *pctx = context->handle;
    return 0;
}

CUresult hc_cuCtxDetach(CUcontext ctx)
{
    struct hc_context *context = ctx ? hc_context_get(ctx) : NULL;
    if (!context || context->primary || context != hc_context_get(NULL)) return PSM_CUDA_INVALID_CONTEXT;
    return atomic_fetch_sub(&context->references, 1) == 1 ? destroy(ctx) : 0;
}

static int push(CUcontext handle)
{
    if (!handle || !hc_context_get(handle)) return PSM_CUDA_INVALID_CONTEXT;
    if (mine.depth == DEPTH) return PSM_CUDA_OUT_OF_MEMORY;
    mine.stack[mine.depth++] = handle;
    look_at_top();
    return 0;
}

CUresult hc_cuCtxPushCurrent(CUcontext ctx)
{
    return push(ctx);
}

CUresult hc_cuCtxPushCurrent_v2(CUcontext ctx)
{
    return push(ctx);
}

static int pop(CUcontext *out)
{
    if (!mine.depth) return PSM_CUDA_INVALID_CONTEXT;
    mine.depth--;
    if (out) *out = mine.stack[mine.depth];
    look_at_top();
    return 0;
}

CUresult hc_cuCtxPopCurrent(CUcontext *pctx)
{
    return pop(pctx);
}

CUresult hc_cuCtxPopCurrent_v2(CUcontext *pctx)
{
    return pop(pctx);
}

CUresult hc_cuCtxSetCurrent(CUcontext ctx)
{
    if (!ctx) {
        if (mine.depth) mine.depth--;
        look_at_top();
        return 0;
    }
    if (!hc_context_get(ctx)) return PSM_CUDA_INVALID_CONTEXT;
    replace_top(ctx);
    return 0;
}

CUresult hc_cuCtxGetCurrent(CUcontext *pctx)
{
    if (!pctx) return PSM_CUDA_INVALID_VALUE;
    *pctx = hc_context_current();
    return 0;
}

/* ---- questions ---- */

/* NULL: *rc says why. */
static struct hc_context *known(CUcontext handle, bool asked, int *rc)
{
    struct hc_context *context = hc_context_get(handle);
    *rc = !asked ? PSM_CUDA_INVALID_VALUE : context ? 0 : PSM_CUDA_INVALID_CONTEXT;
    if (!context && !handle && asked) *rc = hc_context_require();
    return *rc ? NULL : context;
}

CUresult hc_cuCtxGetDevice(CUdevice *device)
{
    int rc;
    struct hc_context *context = known(NULL, device, &rc);
    if (context) *device = context->device;
    return rc;
}

CUresult hc_cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    int rc;
    struct hc_context *context = known(ctx, device, &rc);
    if (context) *device = context->device;
    return rc;
}

CUresult hc_cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    int rc;
    struct hc_context *context = known(ctx, version, &rc);
    if (context) *version = context->version;
    return rc;
}

CUresult hc_cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    int rc;
    struct hc_context *context = known(ctx, ctxId, &rc);
    if (context) *ctxId = context->id;
    return rc;
}

CUresult hc_cuCtxGetFlags(unsigned int *flags)
{
    int rc;
    struct hc_context *context = known(NULL, flags, &rc);
    if (context) *flags = atomic_load(&context->flags) | 8; /* host memory can always be mapped */
    return rc;
}

CUresult hc_cuCtxSetFlags(unsigned int flags)
{
    int rc;
    struct hc_context *context = known(NULL, hc_context_flags_valid(flags), &rc);
    if (context) atomic_store(&context->flags, flags);
    return rc;
}

CUresult hc_cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
    int rc;
    struct hc_context *context = known(NULL, pconfig, &rc);
    if (context) *pconfig = (CUfunc_cache)atomic_load(&context->cache);
    return rc;
}

CUresult hc_cuCtxSetCacheConfig(CUfunc_cache config)
{
    int rc;
    struct hc_context *context = known(NULL, (unsigned)config <= 3, &rc);
    if (context) atomic_store(&context->cache, (int)config);
    return rc;
}

CUresult hc_cuCtxGetSharedMemConfig(CUsharedconfig *pConfig)
{
    int rc;
    struct hc_context *context = known(NULL, pConfig, &rc);
    if (context) *pConfig = (CUsharedconfig)atomic_load(&context->bank);
    return rc;
}

/* Current devices support only one bank width; setting another one succeeds and has no effect. */
CUresult hc_cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    int rc;
    (void)known(NULL, (unsigned)config <= 2, &rc);
    return rc;
}

CUresult hc_cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
    int rc;
    struct hc_context *context = known(NULL, pvalue, &rc);
    return context ? hc_context_limit_get(context, (int)limit, pvalue) : rc;
}

CUresult hc_cuCtxSetLimit(CUlimit limit, size_t value)
{
    int rc;
    struct hc_context *context = known(NULL, true, &rc);
    return context ? hc_context_limit_set(context, (int)limit, value) : rc;
}

CUresult hc_cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    int rc = hc_context_require();
    if (!rc && leastPriority) *leastPriority = HC_PRIORITY_LEAST;
    if (!rc && greatestPriority) *greatestPriority = HC_PRIORITY_GREATEST;
    return rc;
}

CUresult hc_cuCtxResetPersistingL2Cache(void)
{
    return hc_context_require();
}

CUresult hc_cuCtxSynchronize(void)
{
    int rc;
    struct hc_context *context = known(NULL, true, &rc);
    if (context) rc = hc_capture_forbids_device(context->device);
    return rc ? rc : hc_device_drain(context->device);
}

CUresult hc_cuCtxSynchronize_v2(CUcontext ctx)
{
    int rc;
    struct hc_context *context = known(ctx, true, &rc);
    if (context) rc = hc_capture_forbids_device(context->device);
    return rc ? rc : hc_device_drain(context->device);
}

CUresult hc_cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    int rc;
    struct hc_context *context = known(NULL, true, &rc);
    if (!context) return rc;
    int peer = hc_context_device(peerContext);
    if (peer < 0 || hc_context_get(peerContext) == context) return PSM_CUDA_INVALID_CONTEXT;
    rc = hc_peer_enable(context->device, peer, Flags);
    return rc == PSM_CUDA_INVALID_DEVICE ? PSM_CUDA_INVALID_CONTEXT : rc;
}

CUresult hc_cuCtxDisablePeerAccess(CUcontext peerContext)
{
    int rc;
    struct hc_context *context = known(NULL, true, &rc);
    if (!context) return rc;
    int peer = hc_context_device(peerContext);
    if (peer < 0) return PSM_CUDA_INVALID_CONTEXT;
    rc = hc_peer_disable(context->device, peer);
    return rc == PSM_CUDA_INVALID_DEVICE ? PSM_CUDA_INVALID_CONTEXT : rc;
}

/* ---- primary contexts ---- */

CUresult hc_cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    if (!pctx) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(dev)) return PSM_CUDA_INVALID_DEVICE;
    struct hc_context *context = hc_context_primary(dev);
    atomic_fetch_add(&context->references, 1);
    atomic_store(&context->active, true);
    *pctx = context->handle;
    return 0;
}

static int release(int device)
{
    if (!hc_device_valid(device)) return PSM_CUDA_INVALID_DEVICE;
    struct hc_context *context = hc_context_primary(device);
    int now = atomic_load(&context->references);
    do {
        if (!now) return PSM_CUDA_INVALID_CONTEXT;
    } while (!atomic_compare_exchange_weak(&context->references, &now, now - 1));
    if (now == 1 && !atomic_load(&context->runtime)) hc_device_reset(device);
    return 0;
}

CUresult hc_cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return release(dev);
}

CUresult hc_cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    return release(dev);
}

static int reset(int device)
{
    if (!hc_device_valid(device)) return PSM_CUDA_INVALID_DEVICE;
    hc_device_reset(device);
    return 0;
}

CUresult hc_cuDevicePrimaryCtxReset(CUdevice dev)
{
    return reset(dev);
}

CUresult hc_cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    return reset(dev);
}

static int set_flags(int device, unsigned flags)
{
    if (!hc_device_valid(device)) return PSM_CUDA_INVALID_DEVICE;
    if (!hc_context_flags_valid(flags)) return PSM_CUDA_INVALID_VALUE;
    atomic_store(&hc_context_primary(device)->flags, flags);
    return 0;
}

CUresult hc_cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    return set_flags(dev, flags);
}

CUresult hc_cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    return set_flags(dev, flags);
}

CUresult hc_cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    if (!flags || !active) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(dev)) return PSM_CUDA_INVALID_DEVICE;
    struct hc_context *context = hc_context_primary(dev);
    *flags = atomic_load(&context->flags);
    *active = atomic_load(&context->active);
    return 0;
}
