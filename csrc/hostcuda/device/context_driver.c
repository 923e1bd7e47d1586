/* Contexts of the driver API. */
#include "core/hc_life.h"
#include "device/hc_context.h"

void hc_device_reset(int device)
{
    (void)hc_device_drain(device);
    hc_life_reset(device);
}

CUresult hc_cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return hc_context_create(pctx, flags, dev);
}

/* Affinity and CIG parameters need hardware that is not emulated. */
CUresult hc_cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
                           CUdevice dev)
{
    if (paramsArray || numParams) return PSM_CUDA_NOT_SUPPORTED;
    return hc_context_create(pctx, flags, dev);
}

CUresult hc_cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
{
    if (ctxCreateParams) return PSM_CUDA_NOT_SUPPORTED;
    return hc_context_create(pctx, flags, dev);
}

/* Keep the object: another thread may be reading it through its stack. It is small, and contexts are few. */
static int destroy(CUcontext handle)
{
    struct hc_context *context = handle ? hc_context_get(handle) : NULL;
    if (!context || context->primary) return PSM_CUDA_INVALID_CONTEXT;
    (void)hc_device_drain(context->device);
    if (!hc_handle_end(HC_CONTEXT, (uint64_t)(uintptr_t)handle)) return PSM_CUDA_INVALID_CONTEXT;
    hc_life_context_ends(handle);
    hc_context_forget(handle);
    return 0;
}

CUresult hc_cuCtxDestroy(CUcontext ctx)
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

CUresult hc_cuCtxPushCurrent(CUcontext ctx)
{
    return hc_context_push(ctx);
}

CUresult hc_cuCtxPopCurrent(CUcontext *pctx)
{
    return hc_context_pop(pctx);
}

CUresult hc_cuCtxSetCurrent(CUcontext ctx)
{
    if (!ctx) {
        (void)hc_context_pop(NULL); /* nothing is left to pop: fine */
        return 0;
    }
    if (!hc_context_get(ctx)) return PSM_CUDA_INVALID_CONTEXT;
    hc_context_replace(ctx);
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

CUresult hc_cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    if (!flags || !active) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(dev)) return PSM_CUDA_INVALID_DEVICE;
    struct hc_context *context = hc_context_primary(dev);
    *flags = atomic_load(&context->flags);
    *active = atomic_load(&context->active);
    return 0;
}
