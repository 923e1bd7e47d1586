/* Captures, launches, updates and user objects of many threads. Nodes pass plain variables on along their edges: a
   missing order is a wrong value here, and a data race for the thread sanitizer.

   graph_stress ROUNDS */
#include <string.h>
#include <unistd.h>

#include "cuda_calls.h"
#include "types_graph.h"

enum { THREADS = 5, RUNS = 3, WIDTH = 4, LAUNCHES = 20 };

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **data,
                                     size_t *n);
cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphClone(cudaGraph_t *clone, cudaGraph_t graph);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n);
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                 size_t n, const struct cudaHostNodeParams *params);
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                  size_t n);
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *info);
cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                           const struct cudaHostNodeParams *params);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *data, cudaHostFn_t destroy, unsigned count,
                                 unsigned flags);
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count);
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags);

static int rounds;
static atomic_int created, destroyed;

/* ---- a captured fork and join: the join sees what all branches made of what the fork began with ---- */

struct fan {
    int begun;
    int branch[WIDTH];
    int joined;
};
struct branch {
    struct fan *fan;
    int number;
};

static void begin_fan(void *data)
{
    struct fan *fan = data;
    fan->begun++;
}

static void run_branch(void *data)
{
    struct branch *branch = data;
    branch->fan->branch[branch->number] = branch->fan->begun;
}

static void join_fan(void *data)
{
    struct fan *fan = data;
    for (int i = 0; i < WIDTH; i++) CHECK(fan->branch[i] == fan->begun);
    fan->joined++;
}

/* Its memory goes with the last graph that holds it. */
static void free_fan(void *data)
{
    free(data);
    atomic_fetch_add(&destroyed, 1);
}

static cudaGraph_t capture_fan(struct fan *fan, struct branch *branches, cudaStream_t origin, cudaStream_t *others,
                               cudaEvent_t event)
{
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal));
    OK(cudaLaunchHostFunc(origin, begin_fan, fan));
    OK(cudaEventRecord(event, origin));
    for (int i = 0; i < WIDTH; i++) {
        branches[i] = (struct branch){fan, i};
        OK(cudaStreamWaitEvent(others[i], event, 0));
        OK(cudaLaunchHostFunc(others[i], run_branch, &branches[i]));
    }
    for (int i = 0; i < WIDTH; i++) {
        OK(cudaEventRecord(event, others[i]));
        OK(cudaStreamWaitEvent(origin, event, 0));
    }
    OK(cudaLaunchHostFunc(origin, join_fan, fan));
    OK(cudaStreamEndCapture(origin, &graph));
    return graph;
}

static void give_data(cudaGraph_t graph, void *data)
{
    cudaUserObject_t object;
    OK(cudaUserObjectCreate(&object, data, free_fan, 1, cudaUserObjectNoDestructorSync));
    OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    atomic_fetch_add(&created, 1);
}

static void *fan_thread(void *which)
{
    cudaStream_t origin, other, others[WIDTH];
    cudaEvent_t event;
    OK(cudaSetDevice((int)(intptr_t)which % 2));
    OK(cudaStreamCreateWithFlags(&origin, (unsigned)(intptr_t)which & 1));
    OK(cudaStreamCreateWithFlags(&other, NON_BLOCKING));
    for (int i = 0; i < WIDTH; i++) OK(cudaStreamCreateWithFlags(&others[i], NON_BLOCKING));
    OK(cudaEventCreateWithFlags(&event, NO_TIMING));
    for (int round = 0; round < rounds; round++) {
        struct both {
            struct fan fan;
            struct branch branches[WIDTH];
        } *first = calloc(1, sizeof *first), *second = calloc(1, sizeof *second);
        CHECK(first && second);
        cudaGraph_t graph = capture_fan(&first->fan, first->branches, origin, others, event);
        give_data(graph, first);
        cudaGraphExec_t exec;
        OK(cudaGraphInstantiate(&exec, graph, 0));
        OK(cudaGraphDestroy(graph)); /* the instance holds what it needs */
        for (int i = 0; i < RUNS; i++) OK(cudaGraphLaunch(exec, i % 2 ? other : origin));
        graph = capture_fan(&second->fan, second->branches, origin, others, event);
        give_data(graph, second);
        cudaGraphExecUpdateResultInfo info;
        OK(cudaGraphExecUpdate(exec, graph, &info)); /* while it runs */
        for (int i = 0; i < RUNS; i++) OK(cudaGraphLaunch(exec, origin));
        OK(cudaStreamSynchronize(origin));
        CHECK(second->fan.joined == RUNS);
        OK(cudaGraphLaunch(exec, origin));
        OK(cudaGraphExecDestroy(exec)); /* while it runs, perhaps */
        OK(cudaGraphDestroy(graph));
    }
    OK(cudaStreamSynchronize(origin));
    OK(cudaStreamDestroy(origin));
    OK(cudaStreamDestroy(other));
    for (int i = 0; i < WIDTH; i++) OK(cudaStreamDestroy(others[i]));
    OK(cudaEventDestroy(event));
    return NULL;
}

/* ---- one instance, launched and changed by all threads: one launch at a time ---- */

static cudaGraphExec_t shared_exec;
static cudaGraphNode_t shared_node;
static int runs; /* plain: launches follow each other */

static void count_run(void *data)
{
    (void)data;
    runs++;
}

static void *shared_thread(void *which)
{
    struct cudaHostNodeParams params = {count_run, NULL};
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, NON_BLOCKING));
    for (int i = 0; i < LAUNCHES * rounds / 10; i++) {
        params.userData = which;
        if (i % 8 == 0) OK(cudaGraphExecHostNodeSetParams(shared_exec, shared_node, &params));
        OK(cudaGraphLaunch(shared_exec, stream));
    }
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    return NULL;
}

static void shared_instance(void)
{
    struct cudaHostNodeParams params = {count_run, NULL};
    cudaGraph_t graph;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddHostNode(&shared_node, graph, NULL, 0, &params));
    OK(cudaGraphInstantiate(&shared_exec, graph, 0));
    in_threads(THREADS, shared_thread);
    CHECK(runs == THREADS * (LAUNCHES * rounds / 10));
    OK(cudaGraphExecDestroy(shared_exec));
    OK(cudaGraphDestroy(graph));
}

/* ---- one graph that all threads change, look at and clone ---- */

static cudaGraph_t common;

static void *change_thread(void *which)
{
    unsigned seed = 5u + (unsigned)(intptr_t)which;
    cudaGraphNode_t mine[WIDTH], all[64];
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < WIDTH; k++) OK(cudaGraphAddEmptyNode(&mine[k], common, mine, (size_t)k));
        size_t n = sizeof all / sizeof *all;
        OK(cudaGraphGetNodes(common, all, &n));
        CHECK(n >= WIDTH && n <= THREADS * WIDTH);
        if (next_random(&seed) % 4 == 0) {
            cudaGraph_t clone;
            OK(cudaGraphClone(&clone, common));
            OK(cudaGraphDestroy(clone));
        }
        for (int k = 0; k < WIDTH; k++) OK(cudaGraphDestroyNode(mine[k]));
    }
    return NULL;
}

static void common_graph(void)
{
    size_t n = 0;
    OK(cudaGraphCreate(&common, 0));
    in_threads(THREADS, change_thread);
    OK(cudaGraphGetNodes(common, NULL, &n));
    CHECK(n == 0);
    OK(cudaGraphDestroy(common));
}

int main(int argc, char **argv)
{
    rounds = argc > 1 ? atoi(argv[1]) : 100;
    CHECK(rounds > 0);
    in_threads(THREADS, fan_thread);
    shared_instance();
    common_graph();
    OK(cudaDeviceSynchronize());
    OK(cudaSetDevice(1));
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 3000 && atomic_load(&destroyed) < atomic_load(&created); i++)
        usleep(10000); /* no call waits for destructors */
    CHECK(atomic_load(&destroyed) == atomic_load(&created));
    puts("all orders held");
    return 0;
}
