/* Bytes from device memory of one process into device memory of another by libpsm's p2p transport over hostcuda, each
 * process with all its threads on a processor of its own. One line a turn: NAME SECONDS.
 *
 *   fifo_p2p LIBCUDART small TURNS          8 bytes: hostcuda's own copy and event, there and back; one way by the
 *                                           transport's progress functions, without a proxy's threads
 *   fifo_p2p LIBCUDART group TURNS          8 bytes one way: a group on a stream at both ends, to the end of both
 *   fifo_p2p LIBCUDART move BYTES TURNS     through the FIFO and by zero-copy; beside it, in one process, memcpy
 * between memory of the same kind, and hostcuda's own copy fifo_p2p LIBCUDART idle SECONDS         processor seconds of
 * a connected pair that has nothing to do
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "psm/psm_launch.h"
#include "psm/psm_p2p.h"
#include "types.h"
#include "types_memory.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cudaSetDevice, (int))                                                                                            \
    X(cudaMalloc, (void **, size_t))                                                                                   \
    X(cudaHostAlloc, (void **, size_t, unsigned))                                                                      \
    X(cudaFreeHost, (void *))                                                                                          \
    X(cudaMemset, (void *, int, size_t))                                                                               \
    X(cudaMemcpy, (void *, const void *, size_t, int))                                                                 \
    X(cudaMemcpyAsync, (void *, const void *, size_t, int, cudaStream_t))                                              \
    X(cudaStreamCreateWithFlags, (cudaStream_t *, unsigned))                                                           \
    X(cudaStreamSynchronize, (cudaStream_t))                                                                           \
    X(cudaEventCreateWithFlags, (cudaEvent_t *, unsigned))                                                             \
    X(cudaEventRecord, (cudaEvent_t, cudaStream_t))                                                                    \
    X(cudaEventQuery, (cudaEvent_t))
#define POINTER(name, parameters) static int(*name) parameters;
FUNCTIONS(POINTER)

enum { SMALL = 8, SMALL_ROUNDS = 200, LINE = 64 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, psm_last_error()->text[0] ? psm_last_error()->text : strerror(errno));
    exit(1);
}
#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != 0) die(#call);                                                                                   \
    } while (0)
#define PSM(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) < 0) die(#call);                                                                                    \
    } while (0)

static void report(const char *name, double seconds)
{
    printf("%s %.9f\n", name, seconds);
    fflush(stdout);
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* What both processes have in common: where their proxies are, what connectors tell, and meetings. */
static struct page {
    struct psm_peer_info infos[2];
    struct psm_p2p_connect tells[2][2]; /* [rank][sends] */
    _Alignas(LINE) _Atomic uint64_t came[2][LINE / sizeof(uint64_t)];
    _Alignas(LINE) _Atomic uint64_t begun_ns; /* of a turn: the clock is the same in both */
    uint64_t ended_ns[2];
} *page;

static int rank;
static uint64_t meetings;

static void meet(void)
{
    meetings++;
    atomic_store(&page->came[rank][0], meetings);
    while (atomic_load(&page->came[!rank][0]) < meetings) sched_yield();
}

/* ---- a rank ---- */

static psmProxyState *state;
static struct psm_host host;
static const struct psmP2pVariant *split;
static struct psmTransportComm comms[2]; /* [send]: split's, with what is noted or taken over here */
static psmProxyConnection *connections[2];
static psmP2pConnector *connectors[2];
static cudaStream_t stream;

static psm_status note_connection(psmProxyConnection *connection, psmProxyState *proxy, const void *req, int req_size,
                                  void *resp, int resp_size, int *done)
{
    connections[connection->send] = connection;
    return (connection->send ? split->send : split->recv)
        ->proxyConnect(connection, proxy, req, req_size, resp, resp_size, done);
}

static void begin_rank(void)
{
    struct psmProxyOptions options = {.size = sizeof options, .rank = rank, .nranks = 2, .device = rank};
    struct psmProxyAddress address, addresses[2];
    split = psmP2pFindVariant(NULL);
    const struct psmTransportComm *taken = comms[1].proxyProgress ? &comms[1] : NULL;
    psm_status (*progress)(psmProxyState *, struct psmProxyArgs *) = taken ? taken->proxyProgress : NULL;
    comms[0] = *split->recv;
    comms[1] = *split->send;
    if (progress) comms[1].proxyProgress = progress;
    comms[0].proxyConnect = comms[1].proxyConnect = note_connection;
    for (int send = 0; send < 2; send++) options.transports[PSM_TRANSPORT_P2P][send] = &comms[send];
    CUDA(cudaSetDevice(rank));
    CUDA(cudaStreamCreateWithFlags(&stream, 1));
    PSM(psmProxyInit(&state, &options));
    PSM(psmProxyCreate(state));
    host = psm_host_of(state);
    PSM(psmProxyAddress(state, &address));
    PSM(psmP2pPeerInfo(&host, &address, &page->infos[rank]));
    meet();
    for (int r = 0; r < 2; r++) addresses[r] = page->infos[r].proxy;
    PSM(psmProxySetAddresses(state, addresses, 2));
    const struct psm_peer_info *me = &page->infos[rank], *peer = &page->infos[!rank];
    PSM(psmP2pSendSetup(&host, me, peer, 0, 0, &page->tells[rank][1], &connectors[1]));
    PSM(psmP2pRecvSetup(&host, me, peer, 0, 0, &page->tells[rank][0], &connectors[0]));
    meet();
    PSM(psmP2pSendConnect(connectors[1], &page->tells[!rank][0]));
    PSM(psmP2pRecvConnect(connectors[0], &page->tells[!rank][1]));
    meet();
}

static void end_rank(void)
{
    meet();
    PSM(psmP2pSendFree(connectors[1]));
    PSM(psmP2pRecvFree(connectors[0]));
    meet();
    PSM(psmProxyDestroy(state));
}

static void *device(size_t bytes, int value)
{
    void *at;
    CUDA(cudaMalloc(&at, bytes));
    CUDA(cudaMemset(at, value, bytes));
    CUDA(cudaStreamSynchronize(NULL));
    return at;
}

/* ---- 8 bytes ---- */

static int small_turns;
static void *small_out, *small_in;
static _Atomic int small_over;

/* As the proxy makes them; the other subs of `args` stay zeros. */
static void begin_op(struct psmProxyArgs *args, int send)
{
    args->nsubs = 1;
    args->done = 0;
    args->state = psmProxyOpReady;
    args->subs[0] = (struct psmProxySubArgs){
        .connection = connections[send], .sendbuff = small_out, .recvbuff = small_in, .nbytes = SMALL, .peer = !rank};
}

static psm_status run_op(psmProxyState *proxy, struct psmProxyArgs *args, int send)
{
    const struct psmTransportComm *comm = send ? split->send : split->recv;
    begin_op(args, send);
    for (unsigned turns = 1; args->state != psmProxyOpNone; turns++) {
        psm_status status = comm->proxyProgress(proxy, args);
        if (status < 0) return status;
        if (turns % 65536 == 0) sched_yield();
    }
    return PSM_OK;
}

/* On the progress thread, which it does not give back before the end. Who has sent is ready to receive while its
   message is on its way. */
static psm_status ping_pong(psmProxyState *proxy, struct psmProxyArgs *args)
{
    static struct psmProxyArgs send, recv;
    double begin = now();
    for (int i = 0; i < small_turns * SMALL_ROUNDS; i++) {
        if (rank == 0) PSM(run_op(proxy, &send, 1));
        PSM(run_op(proxy, &recv, 0));
        if (rank == 1) PSM(run_op(proxy, &send, 1));
        if ((i + 1) % SMALL_ROUNDS == 0) {
            if (rank == 0) report("p2p-step", (now() - begin) / SMALL_ROUNDS / 2);
            begin = now();
        }
    }
    args->state = psmProxyOpNone;
    atomic_store(&small_over, 1);
    return PSM_OK;
}

static void small(int turns)
{
    small_turns = turns;
    comms[1].proxyProgress = ping_pong;
    begin_rank();
    small_out = device(SMALL, 7);
    small_in = device(SMALL, 0);
    void *twin = device(SMALL, 0);
    cudaEvent_t event;
    CUDA(cudaEventCreateWithFlags(&event, 2));
    meet();
    for (int turn = 0; rank == 0 && turn < turns; turn++) { /* the other one waits in meet() */
        double begin = now();
        for (int i = 0; i < SMALL_ROUNDS; i++) {
            CUDA(cudaMemcpyAsync(twin, small_out, SMALL, cudaMemcpyDefault, stream));
            CUDA(cudaEventRecord(event, stream));
            while (cudaEventQuery(event) != 0) {
            }
        }
        report("copy-event", (now() - begin) / SMALL_ROUNDS);
    }
    meet();
    struct psmProxyOp op = {
        .connection = psmP2pConnection(connectors[1]), .opCount = 1, .nbytes = SMALL, .peer = !rank};
    PSM(psmProxySaveOp(state, &op));
    PSM(psmProxyStart(state));
    while (!atomic_load(&small_over)) usleep(1000);
    uint64_t word = 0;
    CUDA(cudaMemcpy(&word, small_in, SMALL, cudaMemcpyDefault));
    if (word != UINT64_C(0x0707070707070707)) die("the 8 bytes did not arrive");
    end_rank();
}

/* ---- groups ---- */

static uint64_t ns(void)
{
    return (uint64_t)(now() * 1e9);
}

/* Rank 0 sends, rank 1 receives. Rank 0 knows how long both took. */
static double one_way(void *buffer, size_t bytes, uint64_t handle)
{
    struct psmGroupOp op = {.connector = connectors[rank == 0], .nbytes = bytes, .handle = handle, .peer = !rank};
    psmGroup *group;
    if (rank == 0)
        op.sendbuff = buffer;
    else
        op.recvbuff = buffer;
    meet();
    if (rank == 0) atomic_store(&page->begun_ns, ns());
    PSM(psmGroupLaunch(state, stream, &op, 1, &group));
    PSM(psmGroupWait(group));
    page->ended_ns[rank] = ns();
    PSM(psmGroupFree(group));
    meet();
    uint64_t last = page->ended_ns[0] > page->ended_ns[1] ? page->ended_ns[0] : page->ended_ns[1];
    return (double)(last - atomic_load(&page->begun_ns)) * 1e-9;
}

static void group(int turns)
{
    begin_rank();
    void *buffer = device(SMALL, rank == 0 ? 7 : 0);
    for (int turn = -3; turn < turns; turn++) {
        double seconds = one_way(buffer, SMALL, 0);
        if (rank == 0 && turn >= 0) report("group", seconds);
    }
    end_rank();
}

static void compare(const char *what, void *at, uint8_t *bytes, size_t n, int value)
{
    CUDA(cudaMemcpy(bytes, at, n, cudaMemcpyDefault));
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != value) die(what);
    CUDA(cudaMemset(at, 0, n));
    CUDA(cudaStreamSynchronize(NULL));
}

static void move(size_t bytes, int turns)
{
    begin_rank();
    void *buffer = device(bytes, rank == 0 ? 7 : 0);
    void *from, *to; /* memory of the same kind, for memcpy */
    uint64_t handle;
    void *twin = device(bytes, 0);
    CUDA(cudaHostAlloc(&from, bytes, 0));
    CUDA(cudaHostAlloc(&to, bytes, 0));
    memset(from, 1, bytes);
    memset(to, 2, bytes);
    PSM(psmP2pRegister(connectors[rank == 0], buffer, bytes, &handle));
    for (int turn = -1; turn < turns; turn++) {
        double begin = now();
        if (rank == 0) memcpy(to, from, bytes);
        if (rank == 0 && turn >= 0) report("memcpy", now() - begin);
        begin = now();
        if (rank == 0) CUDA(cudaMemcpyAsync(twin, buffer, bytes, cudaMemcpyDefault, stream));
        CUDA(cudaStreamSynchronize(stream));
        if (rank == 0 && turn >= 0) report("copy", now() - begin);
        double seconds = one_way(buffer, bytes, 0);
        if (rank == 0 && turn >= 0) report("p2p-fifo", seconds);
        if (rank == 1) compare("wrong bytes by the FIFO", buffer, to, bytes, 7);
        seconds = one_way(buffer, bytes, handle);
        if (rank == 0 && turn >= 0) report("p2p-zero-copy", seconds);
        if (rank == 1) compare("wrong bytes by zero-copy", buffer, to, bytes, 7);
        meet();
    }
    PSM(psmP2pDeregister(connectors[rank == 0], handle));
    CUDA(cudaFreeHost(from));
    CUDA(cudaFreeHost(to));
    end_rank();
}

static double processor_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static void idle(int seconds)
{
    begin_rank();
    void *buffer = device(SMALL, 7);
    one_way(buffer, SMALL, 0);
    double before = processor_seconds();
    sleep((unsigned)seconds);
    double used = processor_seconds() - before;
    report("idle", used);
    end_rank();
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[2] : "";
    if (argc < 4) return 2;
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) die("mmap");
    pid_t child = fork(); /* before CUDA: it does not outlive a fork */
    rank = child == 0;
    pin(rank);
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    if (!library) die(dlerror());
#define FIND(name, parameters)                                                                                         \
    if (!(name = (int(*) parameters)dlsym(library, #name))) die(#name);
    FUNCTIONS(FIND)
    if (strcmp(what, "small") == 0)
        small(atoi(argv[3]));
    else if (strcmp(what, "group") == 0)
        group(atoi(argv[3]));
    else if (strcmp(what, "idle") == 0)
        idle(atoi(argv[3]));
    else if (strcmp(what, "move") == 0 && argc > 4)
        move(strtoull(argv[3], NULL, 10), atoi(argv[4]));
    else
        return 2;
    int status = 0;
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0)) die("the receiver failed");
    return 0;
}
