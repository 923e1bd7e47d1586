/* Device queries of the driver API. A CUdevice is the runtime's number of the device. */
#define _GNU_SOURCE
#include "device/hc_context.h"

#include <stdio.h>
#include <string.h>

CUresult hc_cuInit(unsigned int Flags)
{
    if (Flags) return PSM_CUDA_INVALID_VALUE;
    return hc_topology.devices ? 0 : PSM_CUDA_NO_DEVICE;
}

CUresult hc_cuDriverGetVersion(int *driverVersion)
{
    if (!driverVersion) return PSM_CUDA_INVALID_VALUE;
    *driverVersion = hc_topology.cuda;
    return 0;
}

CUresult hc_cuDeviceGetCount(int *count)
{
    if (!count) return PSM_CUDA_INVALID_VALUE;
    *count = hc_topology.devices;
    return 0;
}

CUresult hc_cuDeviceGet(CUdevice *device, int ordinal)
{
    if (!device) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(ordinal)) return PSM_CUDA_INVALID_DEVICE;
    *device = ordinal;
    return 0;
}

CUresult hc_cuDeviceGetName(char *name, int len, CUdevice dev)
{
    if (!name || len <= 0) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(dev)) return PSM_CUDA_INVALID_DEVICE;
    snprintf(name, (size_t)len, "%s", hc_gpu_of(dev)->name);
    return 0;
}

static int uuid(CUuuid *out, int device)
{
    if (!out) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(device)) return PSM_CUDA_INVALID_DEVICE;
    memcpy(out->bytes, hc_gpu_of(device)->uuid, sizeof out->bytes);
    return 0;
}

CUresult hc_cuDeviceGetUuid(CUuuid *out, CUdevice dev)
{
    return uuid(out, dev);
}

CUresult hc_cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    if (!bytes) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(dev)) return PSM_CUDA_INVALID_DEVICE;
    *bytes = hc_device_total_memory(dev);
    return 0;
}

CUresult hc_cuMemGetInfo_v2(size_t *free, size_t *total)
{
    int rc = hc_context_require();
    if (!free || !total) return PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    *total = hc_device_total_memory(hc_current_device());
    *free = *total - hc_device_memory_in_use(hc_current_device());
    return 0;
}

CUresult hc_cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    if (!pi) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(dev)) return PSM_CUDA_INVALID_DEVICE;
    return hc_gpu_attribute(hc_gpu_of(dev), (int)attrib, pi);
}

CUresult hc_cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
    if (!prop) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(dev)) return PSM_CUDA_INVALID_DEVICE;
    prop->maxThreadsPerBlock = hc_attribute(dev, cudaDevAttrMaxThreadsPerBlock);
    for (int axis = 0; axis < 3; axis++) {
        prop->maxThreadsDim[axis] = hc_attribute(dev, (int)cudaDevAttrMaxBlockDimX + axis);
        prop->maxGridSize[axis] = hc_attribute(dev, (int)cudaDevAttrMaxGridDimX + axis);
    }
    prop->sharedMemPerBlock = hc_attribute(dev, cudaDevAttrMaxSharedMemoryPerBlock);
    prop->totalConstantMemory = hc_attribute(dev, cudaDevAttrTotalConstantMemory);
    prop->SIMDWidth = hc_attribute(dev, cudaDevAttrWarpSize);
    prop->memPitch = hc_attribute(dev, cudaDevAttrMaxPitch);
    prop->regsPerBlock = hc_attribute(dev, cudaDevAttrMaxRegistersPerBlock);
    prop->clockRate = hc_attribute(dev, cudaDevAttrClockRate);
    prop->textureAlign = hc_attribute(dev, cudaDevAttrTextureAlignment);
    return 0;
}

CUresult hc_cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    if (!major || !minor) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(dev)) return PSM_CUDA_INVALID_DEVICE;
    *major = hc_gpu_of(dev)->major;
    *minor = hc_gpu_of(dev)->minor;
    return 0;
}

CUresult hc_cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    return hc_pci_id_text(pciBusId, len, dev);
}

CUresult hc_cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    return hc_pci_id_find(pciBusId, dev);
}

CUresult hc_cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    if (!canAccessPeer) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(dev) || !hc_device_valid(peerDev)) return PSM_CUDA_INVALID_DEVICE;
    *canAccessPeer = hc_peer_possible(dev, peerDev);
    return 0;
}

CUresult hc_cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice)
{
    return hc_peer_attribute(value, (int)attrib, srcDevice, dstDevice);
}

/* Affinity to multiprocessors exists only with MPS. */
CUresult hc_cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev)
{
    if (!pi || type != 0) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(dev)) return PSM_CUDA_INVALID_DEVICE;
    *pi = 0;
    return 0;
}

CUresult hc_cuProfilerStart(void)
{
    return hc_context_require();
}

CUresult hc_cuProfilerStop(void)
{
    return hc_context_require();
}
