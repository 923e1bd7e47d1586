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

int hc_gpu_attribute(const struct hc_gpu *gpu, int attribute, int *value)
{
    const struct model *m = model_of(gpu);
    bool hopper = gpu->major >= 9;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
        return *value = 1024, 0;
    case cudaDevAttrMaxBlockDimZ:
        return *value = 64, 0;
    case cudaDevAttrMaxGridDimX:
    case cudaDevAttrMaxPitch:
        return *value = 0x7fffffff, 0;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
        return *value = 65535, 0;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        return *value = 49152, 0;
    case cudaDevAttrTotalConstantMemory:
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
        return *value = 65536, 0;
    case cudaDevAttrWarpSize:
    case cudaDevAttrTexturePitchAlignment:
        return *value = 32, 0;
    case cudaDevAttrClockRate:
        return *value = m->clock, 0;
    case cudaDevAttrMemoryClockRate:
        return *value = m->memory_clock, 0;
    case cudaDevAttrGlobalMemoryBusWidth:
        return *value = m->bus, 0;
    case cudaDevAttrTextureAlignment:
    case cudaDevAttrSurfaceAlignment:
        return *value = 512, 0;
    case cudaDevAttrMultiProcessorCount:
        return *value = m->processors, 0;
    case cudaDevAttrL2CacheSize:
        return *value = m->l2, 0;
    case cudaDevAttrMaxPersistingL2CacheSize:
        return *value = gpu->major >= 8 ? m->l2 / 8 * 5 : 0, 0;
    case cudaDevAttrMaxAccessPolicyWindowSize:
        return *value = gpu->major >= 8 ? 128 << 20 : 0, 0;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        return *value = m->threads, 0;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
        return *value = m->blocks, 0;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        return *value = m->shared, 0;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    case cudaDevAttrOversizedSharedMemoryPerBlock:
        return *value = m->shared_block, 0;
    case cudaDevAttrReservedSharedMemoryPerBlock:
        return *value = gpu->major >= 8 ? 1024 : 0, 0;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio:
        return *value = m->ratio, 0;
    case cudaDevAttrAsyncEngineCount:
        return *value = 3, 0;
    case cudaDevAttrComputeCapabilityMajor:
        return *value = gpu->major, 0;
    case cudaDevAttrComputeCapabilityMinor:
        return *value = gpu->minor, 0;
    case cudaDevAttrPciBusId:
        return *value = (int)gpu->bus, 0;
    case cudaDevAttrPciDeviceId:
        return *value = (int)gpu->slot, 0;
    case cudaDevAttrPciDomainId:
        return *value = (int)gpu->domain, 0;
    case cudaDevAttrGpuPciDeviceId:
        return *value = (int)m->pci, 0;
    case cudaDevAttrGpuPciSubsystemId:
        return *value = HC_PCI_SUBSYSTEM, 0;
    case cudaDevAttrHostNumaId:
        return *value = gpu->numa, 0;
    case cudaDevAttrNumaId:
        return *value = -1, 0;
    case cudaDevAttrMemSyncDomainCount:
        return *value = hopper ? 4 : 1, 0;
    case cudaDevAttrLocalityDomainCount:
        return *value = 1, 0;
    case cudaDevAttrLocalityDomainMultiprocessorCount:
        return *value = m->processors, 0;
    case cudaDevAttrClusterLaunch:
    case 127: /* tensor maps */
        return *value = hopper, 0;
    case cudaDevAttrMemoryPoolSupportedHandleTypes:
        return *value = 1, 0; /* POSIX file descriptors */
    /* Properties of hostcuda itself. */
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrHostRegisterReadOnlySupported:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrIpcEventSupport:
    case cudaDevAttrCanFlushRemoteWrites:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER:
    case 122: /* 64-bit stream memory operations */
    case 123: /* stream waits by NOR */
        return *value = 1, 0;
    case cudaDevAttrMaxTexture1DWidth:
    case cudaDevAttrMaxTexture2DWidth:
    case cudaDevAttrMaxTexture2DLinearWidth:
    case cudaDevAttrMaxSurface2DWidth:
        return *value = 131072, 0;
    case cudaDevAttrMaxTexture2DHeight:
    case cudaDevAttrMaxTexture2DLinearHeight:
    case cudaDevAttrMaxSurface2DHeight:
        return *value = 65536, 0;
    case cudaDevAttrMaxTexture2DLinearPitch:
        return *value = 2097120, 0;
    case cudaDevAttrMaxTexture1DLinearWidth:
        return *value = 1 << 28, 0;
    case cudaDevAttrMaxTexture3DWidth:
    case cudaDevAttrMaxTexture3DHeight:
    case cudaDevAttrMaxTexture3DDepth:
    case cudaDevAttrMaxSurface3DWidth:
    case cudaDevAttrMaxSurface3DHeight:
    case cudaDevAttrMaxSurface3DDepth:
        return *value = 16384, 0;
    case cudaDevAttrMaxTexture3DWidthAlt:
    case cudaDevAttrMaxTexture3DHeightAlt:
        return *value = 8192, 0;
    case cudaDevAttrMaxTexture1DLayeredWidth:
    case cudaDevAttrMaxTexture2DLayeredWidth:
    case cudaDevAttrMaxTexture2DLayeredHeight:
    case cudaDevAttrMaxTexture2DGatherWidth:
    case cudaDevAttrMaxTexture2DGatherHeight:
    case cudaDevAttrMaxTexture3DDepthAlt:
    case cudaDevAttrMaxTextureCubemapWidth:
    case cudaDevAttrMaxTextureCubemapLayeredWidth:
    case cudaDevAttrMaxSurface1DWidth:
    case cudaDevAttrMaxSurface1DLayeredWidth:
    case cudaDevAttrMaxSurface2DLayeredWidth:
    case cudaDevAttrMaxSurface2DLayeredHeight:
    case cudaDevAttrMaxSurfaceCubemapWidth:
    case cudaDevAttrMaxSurfaceCubemapLayeredWidth:
    case cudaDevAttrMaxTexture2DMipmappedWidth:
    case cudaDevAttrMaxTexture2DMipmappedHeight:
    case cudaDevAttrMaxTexture1DMipmappedWidth:
        return *value = 32768, 0;
    case cudaDevAttrMaxTexture1DLayeredLayers:
    case cudaDevAttrMaxTexture2DLayeredLayers:
    case cudaDevAttrMaxSurface1DLayeredLayers:
    case cudaDevAttrMaxSurface2DLayeredLayers:
        return *value = 2048, 0;
    case cudaDevAttrMaxTextureCubemapLayeredLayers:
    case cudaDevAttrMaxSurfaceCubemapLayeredLayers:
        return *value = 2046, 0;
    default:
        break;
    }
    /* Known attributes that neither a GPU of this kind nor hostcuda supports. */
    if (attribute < 1 || attribute > HC_ATTRIBUTE_LAST) return PSM_CUDA_INVALID_VALUE;
    return *value = 0, 0;
}
