/* As much of a CUDA runtime and driver as the checks of registrations need, with DMA-BUF descriptors, which the
   emulated CUDA does not have. Built as libcudart.so and as libcuda.so.1. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int cudaSetDevice(int device)
{
    return device != 0;
}

int cudaMalloc(void **memory, size_t size)
{
    *memory = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    return !*memory;
}

int cudaFree(void *memory)
{
    free(memory);
    return 0;
}

int cudaMemcpy(void *to, const void *from, size_t size, int kind)
{
    (void)kind;
    memcpy(to, from, size);
    return 0;
}

int cuMemGetHandleForAddressRange(void *handle, unsigned long long address, size_t size, int type,
                                  unsigned long long flags)
{
    (void)address, (void)size, (void)type, (void)flags;
    *(int *)handle = memfd_create("dmabuf", MFD_CLOEXEC);
    return *(int *)handle < 0;
}
