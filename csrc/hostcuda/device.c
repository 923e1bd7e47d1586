/* Devices as the runtime asks for them. */
#define _GNU_SOURCE
#include "context.h"

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

cudaError_t hc_cudaDeviceSynchronize(void)
{
    return hc_topology.devices ? hc_device_drain(hc_current_device()) : PSM_CUDA_NO_DEVICE;
}

cudaError_t hc_cudaDeviceReset(void)
{
    if (!hc_topology.devices) return PSM_CUDA_NO_DEVICE;
    hc_device_reset(hc_current_device());
    return 0;
}

CUresult hc_cuInit(unsigned int Flags)
{
    if (Flags) return PSM_CUDA_INVALID_VALUE;
    return hc_topology.devices ? 0 : PSM_CUDA_NO_DEVICE;
}
