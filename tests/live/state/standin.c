/* A process with objects whose types and members are called as NCCL's, for tests of the reader: a machine of the CI has
 * no NCCL with debug information. standin MODE ... [LIBRARY]: makes one communicator (rank 1 of 4), says "ready" and
 * what a test compares, and goes on until its input ends. heap      RAS's list does not have it circle    its lists go
 * in a circle wild      pointers lead nowhere, and counts are huge moving    a step of its operation moves all the time
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHANNELS = 4, SUBS = 4, PEERS = 4 };
#define MAGIC UINT64_C(0x0280028002800280)

typedef enum {
    ncclFuncBroadcast,
    ncclFuncReduce,
    ncclFuncAllGather,
    ncclFuncReduceScatter,
    ncclFuncAllReduce
} ncclFunc_t;
typedef enum { ncclPatternRing, ncclPatternSend, ncclPatternRecv } ncclPattern_t;
typedef enum { ncclSuccess, ncclUnhandledCudaError, ncclInProgress = 7 } ncclResult_t;
enum proxyConnectState { connUninitialized, connInitialized, connSharedInitialized, connSetupDone, connConnected };

struct ncclComm;
struct ncclSendMem {
    uint64_t head;
    char pad[120];
};
struct ncclRecvMem {
    uint64_t tail;
    char pad[120];
};
struct sendNetResources {
    void *netSendComm;
    struct ncclSendMem *sendMem;
    struct ncclRecvMem *recvMem;
    uint64_t step;
};
struct ncclTransportComm {
    int (*setup)(void);
};
struct ncclTransport {
    char name[8];
    struct ncclTransportComm send, recv;
};
struct ncclProxyConnection {
    int send, transport, sameProcess;
    struct ncclTransportComm *tcomm;
    void *transportResources;
    enum proxyConnectState state;
};
struct ncclProxySubArgs {
    struct ncclProxyConnection *connection;
    int channelId, nsteps, peer, reg;
    long nbytes;
    uint64_t base, posted, received, flushed, transmitted, done, end;
};
struct ncclProxyArgs {
    struct ncclProxySubArgs subs[SUBS];
    int nsubs, done, state, idle, sliceSteps, chunkSteps;
    uint64_t opCount;
    uint8_t pattern, coll, protocol;
    struct ncclProxyArgs *next, *nextPeer;
};
struct ncclProxyProgressState {
    volatile int stop;
    struct ncclProxyArgs *active;
};
struct ncclExpectedProxyResponse {
    void *opId;
    int respSize;
    _Bool done;
    ncclResult_t res;
    struct ncclExpectedProxyResponse *next;
};
struct ncclProxyState {
    int tpRank, tpnRanks, cudaDev, stop;
    ncclResult_t asyncResult;
    struct ncclProxyProgressState progressState;
    struct ncclExpectedProxyResponse *expectedResponses;
};
struct ncclSharedResources {
    uint64_t p2pOpCount[CHANNELS], collOpCount;
    struct ncclProxyState *proxyState;
};
struct ncclProxyConnector {
    _Bool initialized;
    int rank, sameProcess;
    struct ncclProxyConnection *connection;
};
struct ncclConnInfo {
    uint64_t *tail, *head, step;
};
struct ncclConnector {
    int connected;
    struct ncclProxyConnector proxyConn;
    struct ncclTransportComm *transportComm;
    void *transportResources;
    struct ncclConnInfo conn;
};
struct ncclChannelPeer {
    struct ncclConnector send[2], recv[2];
    int refCount;
};
struct ncclChannel {
    struct ncclChannelPeer **peers;
    int id;
    uint32_t workFifoProduced;
};
struct ncclCommCallback {
    struct ncclCommCallback *next;
    ncclResult_t (*fn)(struct ncclComm *comm, struct ncclCommCallback *cb);
};
#ifdef OLD
enum ncclWorkType { ncclWorkTypeUnused, ncclWorkTypeColl, ncclWorkTypeP2p };
enum ncclWorkP2PType { ncclWorkP2pTypeUnused, ncclWorkP2pTypeSend, ncclWorkP2pTypeRecv };
struct ncclWorkHeader {
    union {
        int32_t workNext;
        uint32_t doneAcks;
    };
    uint8_t isLast : 1, inFifo : 1;
    enum ncclWorkType type;
};
struct ncclWorkElemP2p {
    int peer : 30, proto : 2;
    enum ncclWorkP2PType p2pType;
    uint32_t countHi32, countLo32;
};
struct ncclWork {
    struct ncclWorkHeader header;
    union {
        char pad[96];
        struct ncclWorkElemP2p p2pElems[4];
    };
};
#endif
struct ncclKernelPlan {
    struct ncclCommCallback reclaimer;
    struct ncclComm *comm;
    struct ncclKernelPlan *next;
    _Bool persistent, hasProxyOps;
    int collOpCount;
#ifdef OLD
    int channelCount;
    struct ncclWork *workHead;
#endif
    uint64_t workBytes, channelMask;
};
struct ncclCallbackQueue {
    struct ncclCommCallback *head;
    uintptr_t tail;
};
struct ncclPlanQueue {
    struct ncclKernelPlan *head, *tail;
};
struct ncclKernelPlanner {
    struct ncclPlanQueue planQueue;
    struct ncclKernelPlan *unlaunchedPlansHead;
};
struct ncclComm {
    uint64_t startMagic;
    struct ncclSharedResources *sharedRes;
    struct ncclChannel channels[CHANNELS];
    uint64_t commHash;
    int rank, nRanks, cudaDev, nChannels;
    uint64_t opCount;
    ncclResult_t asyncResult, initState;
    uint32_t *abortFlag;
    struct ncclProxyState *proxyState;
    struct ncclCallbackQueue callbackQueue;
#ifdef OLD
    int workFifoDepth;
    struct ncclWork *workFifoHeap, *devWorkFifoHeap;
    uint32_t workFifoSent, workFifoAckdMin;
    struct ncclPlanQueue planQueue;
    struct ncclKernelPlan *unlaunchedPlansHead;
#else
    uint64_t collOpCount;
    uint32_t workFifoBytes, workFifoProduced, workFifoConsumed;
    struct ncclKernelPlanner planner;
    uint64_t seqNumber[5];
#endif
    uint64_t endMagic;
};

static int setup(void)
{
    return 0;
}
struct ncclTransport netTransport = {"NET", {setup}, {setup}};

static ncclResult_t reclaimPlan(struct ncclComm *comm, struct ncclCommCallback *cb)
{
    return comm && cb ? ncclSuccess : ncclInProgress;
}

static void *made(size_t size)
{
    void *memory = calloc(1, size);
    if (!memory) abort();
    return memory;
}

static void connect_peers(struct ncclComm *comm, struct ncclProxyConnection *connection)
{
    static uint64_t head = 40, tail = 44;
    for (int c = 0; c < 2; c++) {
        comm->channels[c].peers = made(PEERS * sizeof(void *));
        for (int p = 0; p < PEERS; p++) comm->channels[c].peers[p] = made(sizeof(struct ncclChannelPeer));
    }
    struct ncclConnector *send = &comm->channels[1].peers[2]->send[0];
    *send = (struct ncclConnector){.connected = 1,
                                   .proxyConn = {1, 1, 1, connection},
                                   .transportComm = &netTransport.send,
                                   .conn = {&tail, &head, 42}};
}

static struct ncclProxyState *make_proxy(struct ncclProxyConnection *connection)
{
    struct ncclProxyState *proxy = made(sizeof *proxy);
    struct sendNetResources *resources = made(sizeof *resources);
    resources->sendMem = made(sizeof *resources->sendMem);
    resources->recvMem = made(sizeof *resources->recvMem);
    resources->sendMem->head = 7;
    resources->recvMem->tail = 11;
    *connection = (struct ncclProxyConnection){1, 2, 1, &netTransport.send, resources, connConnected};
    struct ncclProxyArgs *args = made(sizeof *args);
    args->subs[0] = (struct ncclProxySubArgs){.connection = connection,
                                              .channelId = 1,
                                              .nsteps = 8,
                                              .peer = 2,
                                              .nbytes = 4096,
                                              .posted = 5,
                                              .received = 4,
                                              .transmitted = 4,
                                              .done = 3};
    args->nsubs = 1;
    args->state = 2;
    args->opCount = 6;
    ncclPattern_t pattern = ncclPatternSend; /* as variables: the compiler describes only types that are used */
    ncclFunc_t function = ncclFuncAllReduce;
    args->pattern = (uint8_t)pattern;
    args->coll = (uint8_t)function;
    proxy->progressState.active = args;
    proxy->expectedResponses = made(sizeof *proxy->expectedResponses);
    proxy->expectedResponses->opId = (void *)0x7f0011223344;
    proxy->expectedResponses->respSize = 80;
    return proxy;
}

static void make_plans(struct ncclComm *comm)
{
    struct ncclKernelPlan *reclaimed = made(sizeof *reclaimed), *planned = made(sizeof *planned);
    reclaimed->reclaimer.fn = reclaimPlan;
    reclaimed->collOpCount = 3;
    comm->callbackQueue.head = &reclaimed->reclaimer;
    planned->hasProxyOps = 1;
#ifdef OLD
    reclaimed->channelCount = planned->channelCount = 2;
    reclaimed->workHead = planned->workHead = comm->devWorkFifoHeap + 956;
    comm->planQueue.head = comm->planQueue.tail = comm->unlaunchedPlansHead = planned;
#else
    comm->planner.planQueue.head = comm->planner.planQueue.tail = comm->planner.unlaunchedPlansHead = planned;
#endif
}

/* What differs between releases. */
#ifdef OLD
static void count(struct ncclComm *comm)
{
    comm->sharedRes->collOpCount = 17;
    comm->workFifoDepth = 1024;
    comm->workFifoSent = 960;
    comm->workFifoAckdMin = 64;
    comm->workFifoHeap = made(1024 * sizeof *comm->workFifoHeap);
    comm->devWorkFifoHeap = (struct ncclWork *)0x70000000;
    struct ncclWork *works = comm->workFifoHeap;
    /* Of the plan before; of two channels of the last one, the first with two works. */
    works[955].header = (struct ncclWorkHeader){{.doneAcks = 956}, 1, 1, ncclWorkTypeP2p};
    works[955].p2pElems[0] = (struct ncclWorkElemP2p){0, 0, ncclWorkP2pTypeSend, 0, 1};
    works[956].header = (struct ncclWorkHeader){{.workNext = 3}, 0, 0, ncclWorkTypeP2p};
    works[956].p2pElems[0] = (struct ncclWorkElemP2p){2, 0, ncclWorkP2pTypeSend, 1, 5};
    works[957].header = (struct ncclWorkHeader){{.doneAcks = 958}, 1, 1, ncclWorkTypeColl};
    works[957].p2pElems[0] = works[955].p2pElems[0];
    works[958] = works[955];
    works[959].header = (struct ncclWorkHeader){{.doneAcks = 960}, 1, 1, ncclWorkTypeP2p};
    works[959].p2pElems[1] = (struct ncclWorkElemP2p){0, 0, ncclWorkP2pTypeRecv, 0, 7};
}
static void list(struct ncclComm *comm)
{
    (void)comm;
}
#else
struct ncclComm **ncclComms;
int nNcclComms;

static void count(struct ncclComm *comm)
{
    comm->collOpCount = 17;
    comm->seqNumber[ncclFuncAllReduce] = 17;
    comm->workFifoBytes = 1024;
    comm->workFifoProduced = 960;
    comm->workFifoConsumed = 64;
}
static void list(struct ncclComm *comm)
{
    nNcclComms = 8;
    ncclComms = made(8 * sizeof(void *));
    ncclComms[3] = comm;
}
#endif

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (argc > 2 && !dlopen(argv[2], RTLD_NOW)) return fprintf(stderr, "%s\n", dlerror()), 1;
    static uint32_t abortFlag;
    static struct ncclProxyConnection connection;
    struct ncclComm *comm = made(sizeof *comm);
    comm->startMagic = comm->endMagic = MAGIC;
    comm->commHash = 0xabcdef;
    comm->rank = 1;
    comm->nRanks = PEERS;
    comm->abortFlag = &abortFlag;
    comm->initState = ncclInProgress;
    comm->sharedRes = made(sizeof *comm->sharedRes);
    count(comm);
    comm->sharedRes->p2pOpCount[0] = 2;
    comm->sharedRes->p2pOpCount[3] = 3;
    comm->proxyState = make_proxy(&connection);
    connect_peers(comm, &connection);
    make_plans(comm);
    struct ncclProxyArgs *args = comm->proxyState->progressState.active;
    if (strcmp(mode, "circle") == 0) {
        args->next = args;
        args->nextPeer = args;
        comm->proxyState->expectedResponses->next = comm->proxyState->expectedResponses;
    }
    if (strcmp(mode, "wild") == 0) {
        args->nsubs = 0x7fffffff;
        args->next = (void *)0x4141414141414141;
        comm->nRanks = 0x7fffffff;
        comm->proxyState->expectedResponses->next = (void *)1;
        comm->callbackQueue.head = (void *)UINTPTR_MAX;
        comm->channels[0].peers = (void *)8;
        comm->abortFlag = (void *)16;
        connection.transportResources = (void *)0x10;
    }
    if (strcmp(mode, "heap") != 0) list(comm);
    printf("ready %p\n", (void *)comm);
    fflush(stdout);
    if (strcmp(mode, "moving") == 0) {
        for (;; usleep(1000)) args->subs[0].posted++;
    }
    while (getchar() != EOF) {
    }
    return 0;
}
