/* Captures, graph launches and stream memory operations under many threads; see stream_stress.c.

   graph_stress ROUNDS */
#include "cuda_calls.h"
#include "types_graph.h"

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
CUresult cuInit(unsigned flags);
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);

enum { THREADS = 4, BRANCHES = 3, LAUNCHES = 4 };
static int rounds;

/* ---- a graph: one function, then branches in streams of their own, then one that sees what all did ---- */

struct shape {
    int first, branch[BRANCHES], joined;
};
struct part {
    struct shape *shape;
    int *mine;
};

static void begin(void *data)
{
    ((struct shape *)data)->first++;
}

static void branch(void *data)
{
    struct part *part = data;
    CHECK(++*part->mine == part->shape->first);
}

static void join(void *data)
{
    struct shape *shape = data;
    shape->joined++;
    for (int i = 0; i < BRANCHES; i++) CHECK(shape->branch[i] == shape->joined);
}

static void *graph_thread(void *which)
{
    unsigned seed = 3u + (unsigned)(intptr_t)which;
    struct shape shape = {0};
    struct part parts[BRANCHES];
    cudaStream_t stream, side[BRANCHES];
    cudaEvent_t fork, back[BRANCHES];
    OK(cudaStreamCreateWithFlags(&stream, NON_BLOCKING));
    OK(cudaEventCreateWithFlags(&fork, NO_TIMING));
    for (int i = 0; i < BRANCHES; i++) {
        parts[i] = (struct part){&shape, &shape.branch[i]};
        OK(cudaStreamCreateWithFlags(&side[i], NON_BLOCKING));
        OK(cudaEventCreateWithFlags(&back[i], NO_TIMING));
    }
    int expected = 0;
    for (int round = 0; round < rounds; round++) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        OK(cudaLaunchHostFunc(stream, begin, &shape));
        OK(cudaEventRecord(fork, stream));
        for (int i = 0; i < BRANCHES; i++) {
            OK(cudaStreamWaitEvent(side[i], fork, 0));
            OK(cudaLaunchHostFunc(side[i], branch, &parts[i]));
            OK(cudaEventRecord(back[i], side[i]));
            OK(cudaStreamWaitEvent(stream, back[i], 0));
        }
        OK(cudaLaunchHostFunc(stream, join, &shape));
        OK(cudaStreamEndCapture(stream, &graph));
        OK(cudaGraphInstantiate(&exec, graph, 0));
        OK(cudaGraphDestroy(graph));
        int n = 1 + (int)(next_random(&seed) % LAUNCHES);
        for (int i = 0; i < n; i++) { /* launches of one graph are ordered, whichever streams they are in */
            OK(cudaGraphLaunch(exec, next_random(&seed) % 2 ? stream : side[0]));
            expected++;
        }
        OK(cudaEventRecord(back[0], side[0]));
        OK(cudaStreamWaitEvent(stream, back[0], 0));
        if (next_random(&seed) % 2) { /* while it may run */
            OK(cudaGraphExecDestroy(exec));
            exec = NULL;
        }
        OK(cudaStreamSynchronize(stream));
        CHECK(shape.joined == expected);
        if (exec) OK(cudaGraphExecDestroy(exec));
    }
    OK(cudaStreamDestroy(stream));
    OK(cudaEventDestroy(fork));
    for (int i = 0; i < BRANCHES; i++) {
        OK(cudaStreamDestroy(side[i]));
        OK(cudaEventDestroy(back[i]));
    }
    return NULL;
}

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
    in_threads(THREADS, graph_thread);
    in_threads(THREADS, turn_thread);
    puts("all orders held");
    return 0;
}
