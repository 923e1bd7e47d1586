/* Stream memory operations under many threads: values in memory give an order that plain variables check; see
   stream_stress.c.

   memop_stress ROUNDS */
#include "cuda_calls.h"

CUresult cuInit(unsigned flags);
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);

enum { THREADS = 4 };
static int rounds;

/* ---- two streams that take turns by a value in memory ---- */

static void take_turn(void *data)
{
    ++*(int *)data; /* plain: the values order the turns */
}

static void *turn_thread(void *which)
{
    void *memory;
    int turns = 0;
    cudaStream_t streams[2];
    (void)which;
    OK(cudaHostAlloc(&memory, 64, 0));
    *(unsigned *)memory = 0;
    for (int i = 0; i < 2; i++) OK(cudaStreamCreateWithFlags(&streams[i], NON_BLOCKING));
    for (int i = 0; i < rounds; i++) {
        OK(cuStreamWaitValue32_v2(streams[i & 1], (CUdeviceptr)(uintptr_t)memory, (unsigned)i, 0));
        OK(cudaLaunchHostFunc(streams[i & 1], take_turn, &turns));
        OK(cuStreamWriteValue32_v2(streams[i & 1], (CUdeviceptr)(uintptr_t)memory, (unsigned)i + 1, 0));
    }
    for (int i = 0; i < 2; i++) {
        OK(cudaStreamSynchronize(streams[i]));
        OK(cudaStreamDestroy(streams[i]));
    }
    CHECK(turns == rounds);
    OK(cudaFreeHost(memory));
    return NULL;
}

int main(int argc, char **argv)
{
    rounds = argc > 1 ? atoi(argv[1]) : 100;
    CHECK(rounds > 0);
    OK(cuInit(0));
    in_threads(THREADS, turn_thread);
    puts("all orders held");
    return 0;
}
