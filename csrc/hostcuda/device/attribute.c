/* Capabilities of a GPU by compute capability: cudaDeviceGetAttribute and cuDeviceGetAttribute share their numbers. */
#define _GNU_SOURCE
#include "device/hc_device.h"

struct model {
    int capability; /* 90 = 9.0 */
    int processors, threads, blocks;
    int shared, shared_block; /* bytes per multiprocessor, and per block with opt-in */
    int l2, bus, clock, memory_clock, ratio;
    unsigned pci;
};

/* From a common product of each capability. */
static const struct model models[] = {
    {50, 16, 2048, 32, 65536, 49152, 2 << 20, 128, 1150000, 2505000, 32, 0x139210de},
    {60, 56, 2048, 32, 65536, 49152, 4 << 20, 4096, 1480500, 715000, 2, 0x15f810de},
    {70, 80, 2048, 32, 98304, 98304, 6 << 20, 4096, 1530000, 877000, 2, 0x1db510de},
    {75, 40, 1024, 16, 65536, 65536, 4 << 20, 256, 1590000, 5001000, 32, 0x1eb810de},
    {80, 108, 2048, 32, 167936, 166912, 40 << 20, 5120, 1410000, 1593000, 2, 0x20b210de},
    {86, 84, 1536, 16, 102400, 101376, 6 << 20, 384, 1695000, 9751000, 32, 0x223510de},
    {89, 142, 1536, 24, 102400, 101376, 96 << 20, 384, 2520000, 9001000, 64, 0x26b910de},
    {90, 132, 2048, 32, 233472, 232448, 50 << 20, 5120, 1980000, 2619000, 2, 0x233010de},
    {100, 148, 2048, 32, 233472, 232448, 126 << 20, 8192, 1965000, 3996000, 2, 0x290110de},
    {120, 188, 1536, 24, 102400, 101376, 128 << 20, 512, 2617000, 14001000, 64, 0x2bb510de},
};

static const struct model *model_of(const struct hc_gpu *gpu)
{
    int capability = gpu->major * 10 + gpu->minor;
    const struct model *best = models;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (models[i].capability <= capability) best = &models[i];
    return best;
}

unsigned hc_gpu_pci_id(const struct hc_gpu *gpu)
{
    return model_of(gpu)->pci;
}

/* The same on every GPU: what CUDA documents for these generations, and what hostcuda itself can do. */
static const struct {
    short attribute;
    int value;
} fixed[] = {
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 0x7fffffff},
    {cudaDevAttrMaxPitch, 0x7fffffff},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
    {cudaDevAttrTotalConstantMemory, 65536},
    {cudaDevAttrMaxRegistersPerBlock, 65536},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrTexturePitchAlignment, 32},
    {cudaDevAttrTextureAlignment, 512},
    {cudaDevAttrSurfaceAlignment, 512},
    {cudaDevAttrAsyncEngineCount, 3},
    {cudaDevAttrGpuPciSubsystemId, HC_PCI_SUBSYSTEM},
    {cudaDevAttrNumaId, -1},
    {cudaDevAttrLocalityDomainCount, 1},
    {cudaDevAttrMemoryPoolSupportedHandleTypes, 1}, /* POSIX file descriptors */
    {cudaDevAttrGpuOverlap, 1},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrEccEnabled, 1},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrGlobalL1CacheSupported, 1},
    {cudaDevAttrLocalL1CacheSupported, 1},
    {cudaDevAttrManagedMemory, 1},
    {cudaDevAttrConcurrentManagedAccess, 1},
    {cudaDevAttrComputePreemptionSupported, 1},
    {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
    {cudaDevAttrCooperativeLaunch, 1},
    {cudaDevAttrHostRegisterSupported, 1},
    {cudaDevAttrHostRegisterReadOnlySupported, 1},
    {cudaDevAttrMemoryPoolsSupported, 1},
    {cudaDevAttrIpcEventSupport, 1},
    {cudaDevAttrCanFlushRemoteWrites, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER, 1},
    {122, 1}, /* 64-bit stream memory operations */
    {123, 1}, /* stream waits by NOR */
    {cudaDevAttrMaxTexture1DWidth, 131072},
    {cudaDevAttrMaxTexture2DWidth, 131072},
    {cudaDevAttrMaxTexture2DLinearWidth, 131072},
    {cudaDevAttrMaxSurface2DWidth, 131072},
    {cudaDevAttrMaxTexture2DHeight, 65536},
    {cudaDevAttrMaxTexture2DLinearHeight, 65536},
    {cudaDevAttrMaxSurface2DHeight, 65536},
    {cudaDevAttrMaxTexture2DLinearPitch, 2097120},
    {cudaDevAttrMaxTexture1DLinearWidth, 1 << 28},
    {cudaDevAttrMaxTexture3DWidth, 16384},
    {cudaDevAttrMaxTexture3DHeight, 16384},
    {cudaDevAttrMaxTexture3DDepth, 16384},
    {cudaDevAttrMaxSurface3DWidth, 16384},
    {cudaDevAttrMaxSurface3DHeight, 16384},
    {cudaDevAttrMaxSurface3DDepth, 16384},
    {cudaDevAttrMaxTexture3DWidthAlt, 8192},
    {cudaDevAttrMaxTexture3DHeightAlt, 8192},
    {cudaDevAttrMaxTexture1DLayeredWidth, 32768},
    {cudaDevAttrMaxTexture2DLayeredWidth, 32768},
    {cudaDevAttrMaxTexture2DLayeredHeight, 32768},
    {cudaDevAttrMaxTexture2DGatherWidth, 32768},
    {cudaDevAttrMaxTexture2DGatherHeight, 32768},
    {cudaDevAttrMaxTexture3DDepthAlt, 32768},
    {cudaDevAttrMaxTextureCubemapWidth, 32768},
    {cudaDevAttrMaxTextureCubemapLayeredWidth, 32768},
    {cudaDevAttrMaxSurface1DWidth, 32768},
    {cudaDevAttrMaxSurface1DLayeredWidth, 32768},
    {cudaDevAttrMaxSurface2DLayeredWidth, 32768},
    {cudaDevAttrMaxSurface2DLayeredHeight, 32768},
    {cudaDevAttrMaxSurfaceCubemapWidth, 32768},
    {cudaDevAttrMaxSurfaceCubemapLayeredWidth, 32768},
    {cudaDevAttrMaxTexture2DMipmappedWidth, 32768},
    {cudaDevAttrMaxTexture2DMipmappedHeight, 32768},
    {cudaDevAttrMaxTexture1DMipmappedWidth, 32768},
    {cudaDevAttrMaxTexture1DLayeredLayers, 2048},
    {cudaDevAttrMaxTexture2DLayeredLayers, 2048},
    {cudaDevAttrMaxSurface1DLayeredLayers, 2048},
    {cudaDevAttrMaxSurface2DLayeredLayers, 2048},
    {cudaDevAttrMaxTextureCubemapLayeredLayers, 2046},
    {cudaDevAttrMaxSurfaceCubemapLayeredLayers, 2046},
};

/* As the model has it. */
static const struct {
    short attribute;
    size_t member;
} of_model[] = {
    {cudaDevAttrClockRate, offsetof(struct model, clock)},
    {cudaDevAttrMemoryClockRate, offsetof(struct model, memory_clock)},
    {cudaDevAttrGlobalMemoryBusWidth, offsetof(struct model, bus)},
    {cudaDevAttrMultiProcessorCount, offsetof(struct model, processors)},
    {cudaDevAttrL2CacheSize, offsetof(struct model, l2)},
    {cudaDevAttrMaxThreadsPerMultiProcessor, offsetof(struct model, threads)},
    {cudaDevAttrMaxBlocksPerMultiprocessor, offsetof(struct model, blocks)},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, offsetof(struct model, shared)},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, offsetof(struct model, shared_block)},
    {cudaDevAttrOversizedSharedMemoryPerBlock, offsetof(struct model, shared_block)},
    {cudaDevAttrSingleToDoublePrecisionPerfRatio, offsetof(struct model, ratio)},
    {cudaDevAttrLocalityDomainMultiprocessorCount, offsetof(struct model, processors)},
};

/* What depends on the compute capability, or is the GPU's own. False: neither. */
static bool of_gpu(const struct hc_gpu *gpu, const struct model *m, int attribute, int *value)
{
    const bool ampere = gpu->major >= 8, hopper = gpu->major >= 9;
    switch (attribute) {
    case cudaDevAttrMaxPersistingL2CacheSize:
        *value = ampere ? m->l2 / 8 * 5 : 0;
        return true;
    case cudaDevAttrMaxAccessPolicyWindowSize:
        *value = ampere ? 128 << 20 : 0;
        return true;
    case cudaDevAttrReservedSharedMemoryPerBlock:
        *value = ampere ? 1024 : 0;
        return true;
    case cudaDevAttrComputeCapabilityMajor:
        *value = gpu->major;
        return true;
    case cudaDevAttrComputeCapabilityMinor:
        *value = gpu->minor;
        return true;
    case cudaDevAttrPciBusId:
        *value = (int)gpu->bus;
        return true;
    case cudaDevAttrPciDeviceId:
        *value = (int)gpu->slot;
        return true;
    case cudaDevAttrPciDomainId:
        *value = (int)gpu->domain;
        return true;
    case cudaDevAttrGpuPciDeviceId:
        *value = (int)m->pci;
        return true;
    case cudaDevAttrHostNumaId:
        *value = gpu->numa;
        return true;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case cudaDevAttrGPUDirectRDMASupported:
        *value = gpu->rdma;
        return true;
    case cudaDevAttrMemSyncDomainCount:
        *value = hopper ? 4 : 1;
        return true;
    case cudaDevAttrClusterLaunch:
    case 127: /* tensor maps */
        *value = hopper;
        return true;
    default:
        return false;
    }
}

/* Known attributes that neither a GPU of this kind nor hostcuda supports are 0. */
int hc_gpu_attribute(const struct hc_gpu *gpu, int attribute, int *value)
{
    const struct model *m = model_of(gpu);
    if (attribute < 1 || attribute > HC_ATTRIBUTE_LAST) return PSM_CUDA_INVALID_VALUE;
    *value = 0;
    if (of_gpu(gpu, m, attribute, value)) return 0;
    for (size_t i = 0; i < sizeof of_model / sizeof *of_model; i++)
        if (of_model[i].attribute == attribute) *value = *(const int *)((const char *)m + of_model[i].member);
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (fixed[i].attribute == attribute) *value = fixed[i].value;
    return 0;
}

int hc_attribute(int device, int attribute)
{
    int value = 0;
    (void)hc_gpu_attribute(hc_gpu_of(device), attribute, &value);
    return value;
}
