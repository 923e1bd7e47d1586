/* Calls that an exit handler makes after CUDA has ended: an error, not a hang or a crash. */
#include <stdatomic.h>

#include "cuda_calls.h"

static cudaStream_t stream;
static void *memory;
static atomic_int entered, never;

static void block(void *data)
{
    (void)data;
    atomic_store(&entered, 1);
    while (!atomic_load(&never)) {
    }
}

static void late(void)
{
    printf("%d %d %d\n", cudaStreamSynchronize(stream), cudaFree(memory), cudaDeviceSynchronize());
}

int main(void)
{
    atexit(late); /* before the first call of CUDA: runs after its own handler */
    OK(cudaMalloc(&memory, 64));
    OK(cudaStreamCreateWithFlags(&stream, 0));
    OK(cudaLaunchHostFunc(stream, block, NULL));
    while (!atomic_load(&entered)) {
    }
    return 0;
}
