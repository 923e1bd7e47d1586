/* Ranks that are threads of one process, and launch groups by plans over emulated CUDA and libpsm's proxy: for
 * ThreadSanitizer, which sees what main threads, streams, proxies and destructors of graphs share.
 *
 *   ranks RANKS SCHEDULER PASSSM GROUPS [graph] [abort] [race=MICROSECONDS] */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "psm/psm_plan_cuda.h"
#include "psm_cuda.h"

enum { MOST = 8, CHANNELS = 2, NUMBERS = 50000, BYTES = 30000 };

static int nranks, scheduler, pass_sm, groups;
static bool with_graph, with_abort, with_race;
static long race_us;
static pthread_barrier_t barrier;
static struct psmProxyAddress addresses[MOST];
static struct psm_peer_info infos[MOST];
static struct psm_p2p_connect connects[MOST][MOST][2][2][CHANNELS]; /* from, to, send, index, channel */
static psmPlanComm *comms[MOST];

struct rank {
    pthread_t thread;
    int me;
    psmProxyState *state;
    const struct psm_cuda *cuda;
    struct psm_host host;
    psmP2pConnector *ends[CHANNELS * MOST * 2 * 2];
    struct psmPlanConnectorTable table;
    const struct psmPlanEngine *engine;
    psmPlanComm *comm;
    float *numbers;
    char *out, *in;
    int failed;
};

static void must(psm_status status, const char *what)
{
    if (status >= 0) return;
    fprintf(stderr, "%s: %s: %s\n", what, psm_status_name(status), psm_last_error()->text);
    exit(3);
}
static void must_cuda(int code, const char *what)
{
    if (code == 0) return;
    fprintf(stderr, "%s: CUDA error %d\n", what, code);
    exit(3);
}
#define CUDA(rank, call) must_cuda((int)(rank)->cuda->call, #call)

static void meet(void)
{
    pthread_barrier_wait(&barrier);
}

static void begin(struct rank *r)
{
    const struct psmP2pVariant *variant = psmP2pFindVariant(NULL);
    struct psm_settings settings = {.size = sizeof settings};
    must(psm_settings_read(&settings), "settings");
    settings.buffer_size = 65536;
    struct psmProxyOptions options = {
        .size = sizeof options, .rank = r->me, .nranks = nranks, .device = r->me, .settings = &settings};
    options.transports[PSM_TRANSPORT_P2P][0] = variant->recv;
    options.transports[PSM_TRANSPORT_P2P][1] = variant->send;
    r->cuda = psmCuda();
    if (!r->cuda) must(psm_last_error()->status, "CUDA");
    CUDA(r, cudaSetDevice(r->me));
    must(psmProxyInit(&r->state, &options), "init");
    must(psmProxyCreate(r->state), "create");
    must(psmProxyAddress(r->state, &addresses[r->me]), "address");
    r->host = psm_host_of(r->state);
    must(psmP2pPeerInfo(&r->host, &addresses[r->me], &infos[r->me]), "info");
    meet();
    must(psmProxySetAddresses(r->state, addresses, nranks), "addresses");
}

/* 1: this rank has the end: of its ring (index 0), to all others (1). */
static int has(const struct rank *r, int peer, int send, int index)
{
    if (peer == r->me) return 0;
    return index == 1 || peer == (r->me + (send ? 1 : nranks - 1)) % nranks;
}

#define EACH_END(r)                                                                                                    \
    for (int channel = 0; channel < CHANNELS; channel++)                                                               \
        for (int peer = 0; peer < nranks; peer++)                                                                      \
            for (int send = 0; send < 2; send++)                                                                       \
                for (int index = 0; index < 2; index++)                                                                \
                    if (has(r, peer, send, index))
#define END(r) (r)->ends[((channel * nranks + peer) * 2 + send) * 2 + index]

static void connect_all(struct rank *r)
{
    EACH_END(r)
    {
        struct psm_p2p_connect *info = &connects[r->me][peer][send][index][channel];
        must(send ? psmP2pSendSetup(&r->host, &infos[r->me], &infos[peer], channel, index, info, &END(r))
                  : psmP2pRecvSetup(&r->host, &infos[r->me], &infos[peer], channel, index, info, &END(r)),
             "setup");
    }
    meet();
    EACH_END(r)
    {
        const struct psm_p2p_connect *theirs = &connects[peer][r->me][!send][index][channel];
        must(send ? psmP2pSendConnect(END(r), theirs) : psmP2pRecvConnect(END(r), theirs), "connect");
    }
    r->table = (struct psmPlanConnectorTable){sizeof r->table, CHANNELS, nranks, r->ends};
    struct psmPlanConnectors connectors = {psmPlanFindConnector, &r->table};
    struct psmPlanConfig config = {.size = sizeof config,
                                   .rank = r->me,
                                   .nRanks = nranks,
                                   .nNodes = 1,
                                   .scheduler = scheduler,
                                   .nChannels = CHANNELS,
                                   .p2pnChannels = CHANNELS,
                                   .p2pnChannelsPerPeer = 1,
                                   .passSm = pass_sm};
    must(psmPlanCudaEngine(r->state, &connectors, &r->engine), "engine");
    must(psmPlanCommCreate(&config, r->engine, &r->comm), "communicator");
    comms[r->me] = r->comm;
    r->numbers = malloc(NUMBERS * sizeof *r->numbers);
    r->out = malloc(BYTES);
    r->in = malloc(BYTES);
}

static void enqueue(struct rank *r, cudaStream_t stream, int func, int peer, uint64_t count, const void *from, void *to)
{
    bool p2p = func >= PSM_PLAN_SEND;
    struct psmPlanTask task = {func, peer, p2p ? 1 : 7, 0, count, from, to};
    must(psmPlanEnqueue(r->comm, &task, stream), "enqueue");
}

static psm_status group(struct rank *r, cudaStream_t stream)
{
    enqueue(r, stream, PSM_PLAN_ALLREDUCE, 0, NUMBERS, r->numbers, r->numbers);
    enqueue(r, stream, PSM_PLAN_SEND, (r->me + 1) % nranks, BYTES, r->out, NULL);
    enqueue(r, stream, PSM_PLAN_RECV, (r->me + nranks - 1) % nranks, BYTES, NULL, r->in);
    return psmPlanGroupEnd(&r->comm, 1);
}

static void fill(struct rank *r, int round)
{
    for (int i = 0; i < NUMBERS; i++) r->numbers[i] = (float)(i % 100 + r->me + round);
    memset(r->out, r->me + round, BYTES);
    memset(r->in, 255, BYTES);
}

static void check(struct rank *r, int round)
{
    float ranks = (float)(nranks * (nranks - 1) / 2);
    for (int i = 0; i < NUMBERS; i++) r->failed += r->numbers[i] != (float)(nranks * (i % 100 + round)) + ranks;
    for (int i = 0; i < BYTES; i++) r->failed += r->in[i] != (char)((r->me + nranks - 1) % nranks + round);
}

static void wait_all(struct rank *r)
{
    struct psmPlanCounters now = {.size = sizeof now};
    do {
        must(psmPlanPoll(r->comm, 0, NULL), "poll");
        must(psmPlanCount(r->comm, &now), "count");
    } while (now.plansLive > (uint64_t)now.persistentRefs);
}

/* The graph's functions are no part of libpsm's table. */
extern cudaError_t cudaStreamBeginCapture(cudaStream_t, enum cudaStreamCaptureMode);
extern cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *);
extern cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long);
extern cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
extern cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);
extern cudaError_t cudaGraphDestroy(cudaGraph_t);

static void graph(struct rank *r, cudaStream_t stream, cudaStream_t other)
{
    cudaGraph_t captured;
    cudaGraphExec_t executable;
    must_cuda((int)cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
    must(group(r, stream), "captured group");
    must_cuda((int)cudaStreamEndCapture(stream, &captured), "end of capture");
    must_cuda((int)cudaGraphInstantiate(&executable, captured, 0), "instantiate");
    for (int round = 0; round < 3; round++) {
        fill(r, round);
        meet();
        must_cuda((int)cudaGraphLaunch(executable, stream), "launch");
        CUDA(r, cudaStreamSynchronize(stream));
        check(r, round);
        fill(r, 7);
        meet();
        must(group(r, other), "group beside a graph");
        wait_all(r);
        check(r, 7);
    }
    meet();
    must_cuda((int)cudaGraphExecDestroy(executable), "destroy");
    must_cuda((int)cudaGraphDestroy(captured), "destroy");
}

static void *run(void *arg)
{
    struct rank *r = arg;
    cudaStream_t stream, other;
    begin(r);
    connect_all(r);
    CUDA(r, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(r, cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    meet();
    for (int i = 0; i < groups; i++) {
        fill(r, i);
        meet();
        must(group(r, i % 2 ? other : stream), "group");
        wait_all(r);
        check(r, i);
    }
    if (with_graph) graph(r, stream, other);
    meet();
    if (with_abort) { /* the last rank has no part in the group: the others hang until another thread aborts them */
        if (r->me != nranks - 1) must(group(r, stream), "group");
        meet();
        psmPlanAbort(comms[(r->me + 1) % nranks]);
    }
    if (with_race) { /* aborted while it launches */
        meet();
        if (r->me % 2) {
            usleep((useconds_t)race_us);
            psmPlanAbort(comms[r->me - 1]);
        }
        psm_status status;
        for (int i = 0; i < 20 && (status = group(r, i % 2 ? other : stream)) == PSM_OK; i++) {
        }
        if (status != PSM_ERR_ABORTED && status != PSM_OK) must(status, "group in a race");
        psmPlanAbort(r->comm);
    }
    must(psmPlanCommFinish(r->comm), "finish");
    struct psmPlanBreach breach;
    if (psmPlanBreaches(r->comm, &breach, 1) > 0) {
        printf("rank %d: %s: %s\n", r->me, breach.rule, breach.text);
        r->failed++;
    }
    meet();
    must(psmPlanCommDestroy(r->comm), "destroy");
    psmPlanCudaEngineFree(r->engine);
    EACH_END(r) must(send ? psmP2pSendFree(END(r)) : psmP2pRecvFree(END(r)), "free");
    CUDA(r, cudaStreamDestroy(stream));
    CUDA(r, cudaStreamDestroy(other));
    meet();
    must(psmProxyStop(r->state), "stop");
    meet();
    must(psmProxyDestroy(r->state), "destroy of the proxy");
    free(r->numbers);
    free(r->out);
    free(r->in);
    return NULL;
}

int main(int argc, char **argv)
{
    static struct rank ranks[MOST];
    if (argc < 5) return 2;
    nranks = atoi(argv[1]);
    scheduler = atoi(argv[2]);
    pass_sm = atoi(argv[3]);
    groups = atoi(argv[4]);
    for (int i = 5; i < argc; i++) {
        with_graph |= !strcmp(argv[i], "graph");
        with_abort |= !strcmp(argv[i], "abort");
        with_race |= sscanf(argv[i], "race=%ld", &race_us) == 1;
    }
    pthread_barrier_init(&barrier, NULL, (unsigned)nranks);
    for (int i = 0; i < nranks; i++) {
        ranks[i].me = i;
        if (pthread_create(&ranks[i].thread, NULL, run, &ranks[i])) return 2;
    }
    int failed = 0;
    for (int i = 0; i < nranks; i++) {
        pthread_join(ranks[i].thread, NULL);
        failed += ranks[i].failed;
    }
    printf("%d ranks, %d wrong\n", nranks, failed);
    return failed != 0;
}
