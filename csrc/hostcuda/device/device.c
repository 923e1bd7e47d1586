/* Device queries of the runtime. */
#define _GNU_SOURCE
#include "device/hc_context.h"

#include <stdio.h>
#include <string.h>

/* Index of the device; INVALID_DEVICE if there is none. */
static int checked(int device)
{
    return hc_device_valid(device) ? 0 : PSM_CUDA_INVALID_DEVICE;
}

/* The context that holds the settings of the current device; NULL: no devices. */
static struct hc_context *settings(void)
{
    return hc_topology.devices ? hc_context_primary(hc_current_device()) : NULL;
}

cudaError_t hc_cudaGetDeviceCount(int *count)
{
    if (!count) return PSM_CUDA_INVALID_VALUE;
    *count = hc_topology.devices;
    return hc_topology.devices ? 0 : PSM_CUDA_NO_DEVICE;
}

cudaError_t hc_cudaGetDevice(int *device)
{
    if (!device) return PSM_CUDA_INVALID_VALUE;
    if (!hc_topology.devices) return PSM_CUDA_NO_DEVICE;
    *device = hc_current_device();
    return 0;
}

cudaError_t hc_cudaSetDevice(int device)
{
    return hc_set_current_device(device);
}

cudaError_t hc_cudaInitDevice(int device, unsigned int deviceFlags, unsigned int flags)
{
    enum { FLAGS_ARE_VALID = 1 };
    int rc = checked(device);
    if (rc) return rc;
    if (flags & ~(unsigned)FLAGS_ARE_VALID) return PSM_CUDA_INVALID_VALUE;
    if (flags && !hc_context_flags_valid(deviceFlags)) return PSM_CUDA_INVALID_VALUE;
    if (flags) atomic_store(&hc_context_primary(device)->flags, deviceFlags);
    (void)hc_primary_context(device); /* the current device stays as it is */
    return 0;
}

cudaError_t hc_cudaDeviceSynchronize(void)
{
    int rc = hc_topology.devices ? hc_capture_forbids_device(hc_current_device()) : PSM_CUDA_NO_DEVICE;
    return rc ? rc : hc_device_drain(hc_current_device());
}

cudaError_t hc_cudaDeviceReset(void)
{
    if (!hc_topology.devices) return PSM_CUDA_NO_DEVICE;
    hc_device_reset(hc_current_device());
    return 0;
}

cudaError_t hc_cudaSetDeviceFlags(unsigned int flags)
{
    struct hc_context *context = settings();
    if (!hc_context_flags_valid(flags)) return PSM_CUDA_INVALID_VALUE;
    if (!context) return PSM_CUDA_NO_DEVICE;
    atomic_store(&context->flags, flags);
    return 0;
}

cudaError_t hc_cudaGetDeviceFlags(unsigned int *flags)
{
    struct hc_context *context = settings();
    if (!flags) return PSM_CUDA_INVALID_VALUE;
    if (!context) return PSM_CUDA_NO_DEVICE;
    *flags = atomic_load(&context->flags) | 8; /* host memory can always be mapped */
    return 0;
}

cudaError_t hc_cudaDeviceGetLimit(size_t *pValue, enum cudaLimit limit)
{
    struct hc_context *context = settings();
    return context ? hc_context_limit_get(context, (int)limit, pValue) : PSM_CUDA_NO_DEVICE;
}

cudaError_t hc_cudaDeviceSetLimit(enum cudaLimit limit, size_t value)
{
    struct hc_context *context = settings();
    return context ? hc_context_limit_set(context, (int)limit, value) : PSM_CUDA_NO_DEVICE;
}

cudaError_t hc_cudaDeviceGetCacheConfig(enum cudaFuncCache *pCacheConfig)
{
    struct hc_context *context = settings();
    if (!pCacheConfig) return PSM_CUDA_INVALID_VALUE;
    if (!context) return PSM_CUDA_NO_DEVICE;
    *pCacheConfig = (enum cudaFuncCache)atomic_load(&context->cache);
    return 0;
}

cudaError_t hc_cudaDeviceSetCacheConfig(enum cudaFuncCache cacheConfig)
{
    struct hc_context *context = settings();
    if ((unsigned)cacheConfig > 3) return PSM_CUDA_INVALID_VALUE;
    if (!context) return PSM_CUDA_NO_DEVICE;
    atomic_store(&context->cache, (int)cacheConfig);
    return 0;
}

cudaError_t hc_cudaDeviceGetSharedMemConfig(enum cudaSharedMemConfig *pConfig)
{
    struct hc_context *context = settings();
    if (!pConfig) return PSM_CUDA_INVALID_VALUE;
    if (!context) return PSM_CUDA_NO_DEVICE;
    *pConfig = (enum cudaSharedMemConfig)atomic_load(&context->bank);
    return 0;
}

/* Current devices support only one bank width; setting another one succeeds and has no effect. */
cudaError_t hc_cudaDeviceSetSharedMemConfig(enum cudaSharedMemConfig config)
{
    return (unsigned)config <= 2 ? 0 : PSM_CUDA_INVALID_VALUE;
}

cudaError_t hc_cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    if (!hc_topology.devices) return PSM_CUDA_NO_DEVICE;
    if (leastPriority) *leastPriority = HC_PRIORITY_LEAST;
    if (greatestPriority) *greatestPriority = HC_PRIORITY_GREATEST;
    return 0;
}

cudaError_t hc_cudaCtxResetPersistingL2Cache(void)
{
    return hc_topology.devices ? 0 : PSM_CUDA_NO_DEVICE;
}

/* ---- versions ---- */

cudaError_t hc_cudaDriverGetVersion(int *driverVersion)
{
    if (!driverVersion) return PSM_CUDA_INVALID_VALUE;
    *driverVersion = hc_topology.cuda;
    return 0;
}

int hc_runtime_version(void)
{
    const struct hc_call *call = hc_current_call();
    return call && call->api == HC_API_CUDART12 ? 12090 : 13050;
}

cudaError_t hc_cudaRuntimeGetVersion(int *runtimeVersion)
{
    if (!runtimeVersion) return PSM_CUDA_INVALID_VALUE;
    *runtimeVersion = hc_runtime_version();
    return 0;
}

/* ---- what a device is ---- */

cudaError_t hc_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    int rc = checked(device);
    if (!value) return PSM_CUDA_INVALID_VALUE;
    return rc ? rc : hc_gpu_attribute(hc_gpu_of(device), (int)attr, value);
}

cudaError_t hc_cudaMemGetInfo(size_t *free, size_t *total)
{
    if (!free || !total) return PSM_CUDA_INVALID_VALUE;
    if (!hc_topology.devices) return PSM_CUDA_NO_DEVICE;
    int device = hc_current_device();
    *total = hc_device_total_memory(device);
    *free = *total - hc_device_memory_in_use(device);
    return 0;
}

int hc_pci_id_text(char *text, int size, int device)
{
    char id[24];
    int rc = checked(device);
    if (!text || size <= 0) return PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    const struct hc_gpu *gpu = hc_gpu_of(device);
    int n = snprintf(id, sizeof id, "%04X:%02X:%02X.0", gpu->domain, gpu->bus, gpu->slot);
    if (n >= size) return PSM_CUDA_INVALID_VALUE;
    strcpy(text, id);
    return 0;
}

int hc_pci_id_find(const char *text, int *device)
{
    unsigned domain, bus, slot;
    if (!text || !device || !hc_parse_pci(text, &domain, &bus, &slot)) return PSM_CUDA_INVALID_VALUE;
    for (int i = 0; i < hc_topology.devices; i++) {
        const struct hc_gpu *gpu = hc_gpu_of(i);
        if (gpu->domain == domain && gpu->bus == bus && gpu->slot == slot) {
            *device = i;
            return 0;
        }
    }
    return PSM_CUDA_INVALID_DEVICE;
}

cudaError_t hc_cudaDeviceGetPCIBusId(char *pciBusId, int len, int device)
{
    return hc_pci_id_text(pciBusId, len, device);
}

cudaError_t hc_cudaDeviceGetByPCIBusId(int *device, const char *pciBusId)
{
    return hc_pci_id_find(pciBusId, device);
}

/* The fields that both layouts of cudaDeviceProp have. */
#define FILL(p, device)                                                                                                \
    do {                                                                                                               \
        const struct hc_gpu *gpu = hc_gpu_of(device);                                                                  \
        memset((p), 0, sizeof *(p));                                                                                   \
        snprintf((p)->name, sizeof(p)->name, "%s", gpu->name);                                                         \
        memcpy((p)->uuid.bytes, gpu->uuid, sizeof gpu->uuid);                                                          \
        (p)->totalGlobalMem = gpu->memory;                                                                             \
        (p)->sharedMemPerBlock = (size_t)hc_attribute(device, cudaDevAttrMaxSharedMemoryPerBlock);                     \
        (p)->regsPerBlock = hc_attribute(device, cudaDevAttrMaxRegistersPerBlock);                                     \
        (p)->warpSize = hc_attribute(device, cudaDevAttrWarpSize);                                                     \
        (p)->memPitch = (size_t)hc_attribute(device, cudaDevAttrMaxPitch);                                             \
        (p)->maxThreadsPerBlock = hc_attribute(device, cudaDevAttrMaxThreadsPerBlock);                                 \
        for (int axis = 0; axis < 3; axis++) {                                                                         \
            (p)->maxThreadsDim[axis] = hc_attribute(device, (int)cudaDevAttrMaxBlockDimX + axis);                      \
            (p)->maxGridSize[axis] = hc_attribute(device, (int)cudaDevAttrMaxGridDimX + axis);                         \
            (p)->maxTexture3D[axis] = hc_attribute(device, (int)cudaDevAttrMaxTexture3DWidth + axis);                  \
            (p)->maxTexture3DAlt[axis] = hc_attribute(device, (int)cudaDevAttrMaxTexture3DWidthAlt + axis);            \
            (p)->maxSurface3D[axis] = hc_attribute(device, (int)cudaDevAttrMaxSurface3DWidth + axis);                  \
            (p)->maxTexture2DLinear[axis] = hc_attribute(device, (int)cudaDevAttrMaxTexture2DLinearWidth + axis);      \
            (p)->maxTexture2DLayered[axis] = hc_attribute(device, (int)cudaDevAttrMaxTexture2DLayeredWidth + axis);    \
            (p)->maxSurface2DLayered[axis] = hc_attribute(device, (int)cudaDevAttrMaxSurface2DLayeredWidth + axis);    \
        }                                                                                                              \
        for (int axis = 0; axis < 2; axis++) {                                                                         \
            (p)->maxTexture2D[axis] = hc_attribute(device, (int)cudaDevAttrMaxTexture2DWidth + axis);                  \
            (p)->maxTexture2DMipmap[axis] = hc_attribute(device, (int)cudaDevAttrMaxTexture2DMipmappedWidth + axis);   \
            (p)->maxTexture2DGather[axis] = hc_attribute(device, (int)cudaDevAttrMaxTexture2DGatherWidth + axis);      \
            (p)->maxTexture1DLayered[axis] = hc_attribute(device, (int)cudaDevAttrMaxTexture1DLayeredWidth + axis);    \
            (p)->maxTextureCubemapLayered[axis] =                                                                      \
                hc_attribute(device, (int)cudaDevAttrMaxTextureCubemapLayeredWidth + axis);                            \
            (p)->maxSurface2D[axis] = hc_attribute(device, (int)cudaDevAttrMaxSurface2DWidth + axis);                  \
            (p)->maxSurface1DLayered[axis] = hc_attribute(device, (int)cudaDevAttrMaxSurface1DLayeredWidth + axis);    \
            (p)->maxSurfaceCubemapLayered[axis] =                                                                      \
                hc_attribute(device, (int)cudaDevAttrMaxSurfaceCubemapLayeredWidth + axis);                            \
        }                                                                                                              \
        (p)->totalConstMem = (size_t)hc_attribute(device, cudaDevAttrTotalConstantMemory);                             \
        (p)->major = gpu->major;                                                                                       \
        (p)->minor = gpu->minor;                                                                                       \
        (p)->textureAlignment = (size_t)hc_attribute(device, cudaDevAttrTextureAlignment);                             \
        (p)->texturePitchAlignment = (size_t)hc_attribute(device, cudaDevAttrTexturePitchAlignment);                   \
        (p)->multiProcessorCount = hc_attribute(device, cudaDevAttrMultiProcessorCount);                               \
        (p)->canMapHostMemory = hc_attribute(device, cudaDevAttrCanMapHostMemory);                                     \
        (p)->maxTexture1D = hc_attribute(device, cudaDevAttrMaxTexture1DWidth);                                        \
        (p)->maxTexture1DMipmap = hc_attribute(device, cudaDevAttrMaxTexture1DMipmappedWidth);                         \
        (p)->maxTextureCubemap = hc_attribute(device, cudaDevAttrMaxTextureCubemapWidth);                              \
        (p)->maxSurface1D = hc_attribute(device, cudaDevAttrMaxSurface1DWidth);                                        \
        (p)->maxSurfaceCubemap = hc_attribute(device, cudaDevAttrMaxSurfaceCubemapWidth);                              \
        (p)->surfaceAlignment = (size_t)hc_attribute(device, cudaDevAttrSurfaceAlignment);                             \
        (p)->concurrentKernels = hc_attribute(device, cudaDevAttrConcurrentKernels);                                   \
        (p)->ECCEnabled = hc_attribute(device, cudaDevAttrEccEnabled);                                                 \
        (p)->pciBusID = (int)gpu->bus;                                                                                 \
        (p)->pciDeviceID = (int)gpu->slot;                                                                             \
        (p)->pciDomainID = (int)gpu->domain;                                                                           \
        (p)->asyncEngineCount = hc_attribute(device, cudaDevAttrAsyncEngineCount);                                     \
        (p)->unifiedAddressing = hc_attribute(device, cudaDevAttrUnifiedAddressing);                                   \
        (p)->memoryBusWidth = hc_attribute(device, cudaDevAttrGlobalMemoryBusWidth);                                   \
        (p)->l2CacheSize = hc_attribute(device, cudaDevAttrL2CacheSize);                                               \
        (p)->persistingL2CacheMaxSize = hc_attribute(device, cudaDevAttrMaxPersistingL2CacheSize);                     \
        (p)->maxThreadsPerMultiProcessor = hc_attribute(device, cudaDevAttrMaxThreadsPerMultiProcessor);               \
        (p)->streamPrioritiesSupported = hc_attribute(device, cudaDevAttrStreamPrioritiesSupported);                   \
        (p)->globalL1CacheSupported = hc_attribute(device, cudaDevAttrGlobalL1CacheSupported);                         \
        (p)->localL1CacheSupported = hc_attribute(device, cudaDevAttrLocalL1CacheSupported);                           \
        (p)->sharedMemPerMultiprocessor = (size_t)hc_attribute(device, cudaDevAttrMaxSharedMemoryPerMultiprocessor);   \
        (p)->regsPerMultiprocessor = hc_attribute(device, cudaDevAttrMaxRegistersPerMultiprocessor);                   \
        (p)->managedMemory = hc_attribute(device, cudaDevAttrManagedMemory);                                           \
        (p)->concurrentManagedAccess = hc_attribute(device, cudaDevAttrConcurrentManagedAccess);                       \
        (p)->computePreemptionSupported = hc_attribute(device, cudaDevAttrComputePreemptionSupported);                 \
        (p)->canUseHostPointerForRegisteredMem = hc_attribute(device, cudaDevAttrCanUseHostPointerForRegisteredMem);   \
        (p)->cooperativeLaunch = hc_attribute(device, cudaDevAttrCooperativeLaunch);                                   \
        (p)->sharedMemPerBlockOptin = (size_t)hc_attribute(device, cudaDevAttrMaxSharedMemoryPerBlockOptin);           \
        (p)->maxBlocksPerMultiProcessor = hc_attribute(device, cudaDevAttrMaxBlocksPerMultiprocessor);                 \
        (p)->accessPolicyMaxWindowSize = hc_attribute(device, cudaDevAttrMaxAccessPolicyWindowSize);                   \
        (p)->reservedSharedMemPerBlock = (size_t)hc_attribute(device, cudaDevAttrReservedSharedMemoryPerBlock);        \
        (p)->hostRegisterSupported = hc_attribute(device, cudaDevAttrHostRegisterSupported);                           \
        (p)->hostRegisterReadOnlySupported = hc_attribute(device, cudaDevAttrHostRegisterReadOnlySupported);           \
        (p)->memoryPoolsSupported = hc_attribute(device, cudaDevAttrMemoryPoolsSupported);                             \
        (p)->memoryPoolSupportedHandleTypes =                                                                          \
            (unsigned)hc_attribute(device, cudaDevAttrMemoryPoolSupportedHandleTypes);                                 \
        (p)->ipcEventSupported = hc_attribute(device, cudaDevAttrIpcEventSupport);                                     \
        (p)->clusterLaunch = hc_attribute(device, cudaDevAttrClusterLaunch);                                           \
    } while (0)

/* For programs that were built with CUDA 11, or that ask for this name: its struct is the start of CUDA 12's, which was
 * no longer until it got a name of its own. */
cudaError_t hc_cudaGetDeviceProperties__12(struct cudaDeviceProp_v12 *prop, int device)
{
    struct cudaDeviceProp_v12 whole;
    if (!prop) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_cudaGetDeviceProperties_v2(&whole, device);
    if (!rc) memcpy(prop, &whole, offsetof(struct cudaDeviceProp_v12, hostRegisterSupported));
    return rc;
}

cudaError_t hc_cudaGetDeviceProperties__13(struct cudaDeviceProp *prop, int device)
{
    int rc = checked(device);
    if (!prop) return PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    FILL(prop, device);
    prop->deviceNumaId = -1;
    prop->hostNumaId = hc_attribute(device, cudaDevAttrHostNumaId);
    prop->gpuPciDeviceID = (unsigned)hc_attribute(device, cudaDevAttrGpuPciDeviceId);
    prop->gpuPciSubsystemID = (unsigned)hc_attribute(device, cudaDevAttrGpuPciSubsystemId);
    return 0;
}

cudaError_t hc_cudaGetDeviceProperties_v2(struct cudaDeviceProp_v12 *prop, int device)
{
    int rc = checked(device);
    if (!prop) return PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    FILL(prop, device);
    prop->clockRate = hc_attribute(device, cudaDevAttrClockRate);
    prop->memoryClockRate = hc_attribute(device, cudaDevAttrMemoryClockRate);
    prop->deviceOverlap = hc_attribute(device, cudaDevAttrGpuOverlap);
    prop->maxTexture1DLinear = hc_attribute(device, cudaDevAttrMaxTexture1DLinearWidth);
    prop->singleToDoublePrecisionPerfRatio = hc_attribute(device, cudaDevAttrSingleToDoublePrecisionPerfRatio);
    return 0;
}

/* The device that has most of the requested properties; the first of equals. */
static int choose(int *device, const char *name, int major, int minor, size_t memory, int processors)
{
    int best = -1;
    if (!hc_topology.devices) return PSM_CUDA_NO_DEVICE;
    for (int i = 0; i < hc_topology.devices; i++) {
        const struct hc_gpu *gpu = hc_gpu_of(i);
        int score = (*name && strcmp(name, gpu->name) == 0) * 8;
        score += (gpu->major > major || (gpu->major == major && gpu->minor >= minor)) * 4;
        score += (gpu->memory >= memory) * 2 + (hc_attribute(i, cudaDevAttrMultiProcessorCount) >= processors);
        if (score > best) best = score, *device = i;
    }
    return 0;
}

cudaError_t hc_cudaChooseDevice__12(int *device, const struct cudaDeviceProp_v12 *prop)
{
    if (!device || !prop) return PSM_CUDA_INVALID_VALUE;
    return choose(device, prop->name, prop->major, prop->minor, prop->totalGlobalMem, prop->multiProcessorCount);
}

cudaError_t hc_cudaChooseDevice__13(int *device, const struct cudaDeviceProp *prop)
{
    if (!device || !prop) return PSM_CUDA_INVALID_VALUE;
    return choose(device, prop->name, prop->major, prop->minor, prop->totalGlobalMem, prop->multiProcessorCount);
}

/* ---- peers ---- */

cudaError_t hc_cudaDeviceCanAccessPeer(int *canAccessPeer, int device, int peerDevice)
{
    if (!canAccessPeer) return PSM_CUDA_INVALID_VALUE;
    if (checked(device) || checked(peerDevice)) return PSM_CUDA_INVALID_DEVICE;
    *canAccessPeer = hc_peer_possible(device, peerDevice);
    return 0;
}

cudaError_t hc_cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags)
{
    return hc_topology.devices ? hc_peer_enable(hc_current_device(), peerDevice, flags) : PSM_CUDA_NO_DEVICE;
}

cudaError_t hc_cudaDeviceDisablePeerAccess(int peerDevice)
{
    return hc_topology.devices ? hc_peer_disable(hc_current_device(), peerDevice) : PSM_CUDA_NO_DEVICE;
}

int hc_peer_attribute(int *value, int which, int from, int to)
{
    if (!value) return PSM_CUDA_INVALID_VALUE;
    if (checked(from) || checked(to) || from == to) return PSM_CUDA_INVALID_DEVICE;
    const struct hc_link *link = hc_link_of(from, to);
    switch (which) {
    case cudaDevP2PAttrPerformanceRank: /* the smaller the faster */
        return *value = link->kind == HC_LINK_PCIE, 0;
    case cudaDevP2PAttrAccessSupported:
    case cudaDevP2PAttrCudaArrayAccessSupported:
        return *value = link->peer, 0;
    case cudaDevP2PAttrNativeAtomicSupported:
        return *value = link->peer && link->kind != HC_LINK_PCIE, 0;
    case cudaDevP2PAttrOnlyPartialNativeAtomicSupported:
        return *value = 0, 0;
    default:
        return PSM_CUDA_INVALID_VALUE;
    }
}

cudaError_t hc_cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attr, int srcDevice, int dstDevice)
{
    return hc_peer_attribute(value, (int)attr, srcDevice, dstDevice);
}

/* ---- profilers: there is none to start ---- */

cudaError_t hc_cudaProfilerStart(void)
{
    return 0;
}

cudaError_t hc_cudaProfilerStop(void)
{
    return 0;
}
