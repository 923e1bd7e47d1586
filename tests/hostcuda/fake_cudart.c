/* A libcudart of a few functions that gives every process the same numbers, and asks a driver for nothing. */
#include <stddef.h>

static int created;

int cudaStreamCreate(void **stream)
{
    *stream = (void *)(size_t)(0x5000 + 16 * created++);
    return 0;
}

int cudaStreamSynchronize(void *stream)
{
    return stream != NULL && (size_t)stream < 0x5000 ? 400 : 0;
}

int cudaStreamDestroy(void *stream)
{
    (void)stream;
    return 0;
}

int cudaGetDevice(int *device)
{
    *device = 3;
    return 0;
}

int cudaMalloc(void **p, size_t n)
{
    (void)n;
    *p = (void *)(size_t)0x700000000000;
    return 0;
}

int cudaMemset(void *p, int value, size_t n)
{
    (void)p, (void)value, (void)n;
    return 0;
}
