/* Ranks of an RMA communicator, in processes of their own: rma LIB VERSION RANKS SCENARIO. All ranks put messages of
 * several sizes with a signal to all ranks, also to themselves, and get what the next one has. SCENARIO is all, or
 *   threads: another thread calls rmaProgress all the time, as NCCL's does
 *   outside: rank 0 puts behind the end of rank 1's memory
 *   leaves: rank 1 ends before the others put to it
 *   alone: rank 1 does not register the last region
 *   wrong: calls with arguments that were never given
 *   off: PSM_NET_RMA is not set */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "driver.h"
#include "psm_abi/gin.h"

enum { MOST = 8, ROOM = 1 << 20 };
static const size_t sizes[] = {0, 1, 4096, 128 << 10, (128 << 10) * 7 + 13};
enum { SIZES = sizeof sizes / sizeof *sizes };

static struct shared {
    char handle[MOST][128];
    _Atomic int ready[16];
} *shared;
static int rank, ranks, points;
static void *rma, *context, *comm, *ctx;

#define R(v) ((const ncclRma_v##v##_t *)rma)
#define EACH(call)                                                                                                     \
    (version == 16 ? R(16)->call : version == 15 ? R(15)->call : version == 14 ? R(14)->call : R(13)->call)

static void all_here(void)
{
    double until = now() + DEADLINE;
    int point = points++;
    atomic_fetch_add(&shared->ready[point], 1);
    while (atomic_load(&shared->ready[point]) < ranks) {
        CHECK(now() < until, "not all ranks come");
        sched_yield();
    }
}

static ncclResult_t progress(void)
{
    return version == 16   ? R(16)->rmaProgress(ctx)
           : version == 15 ? R(15)->rmaProgress(ctx)
           : version == 14 ? R(14)->rmaProgress(ctx)
                           : R(13)->ginProgress(ctx);
}

/* ---- calls whose arguments differ by version ---- */

static ncclResult_t reg(void *data, size_t size, uint64_t flags, void **mhandle)
{
    void *gpu;
    if (version == 13) return R(13)->regMrSym(comm, data, size, NCCL_PTR_HOST, flags, mhandle, &gpu);
    return version == 16   ? R(16)->regMrSym(comm, data, size, NCCL_PTR_HOST, flags, mhandle)
           : version == 15 ? R(15)->regMrSym(comm, data, size, NCCL_PTR_HOST, flags, mhandle)
                           : R(14)->regMrSym(comm, data, size, NCCL_PTR_HOST, flags, mhandle);
}

static ncclResult_t put(uint64_t from, void *source, size_t size, uint64_t to, void *target, int peer, void **request)
{
    uint32_t r = (uint32_t)peer;
    return version == 16   ? R(16)->iput(ctx, 0, from, source, size, to, target, r, 0, request)
           : version == 15 ? R(15)->iput(ctx, 0, from, source, size, to, target, r, 0, request)
           : version == 14 ? R(14)->iput(ctx, 0, from, source, size, to, target, r, request)
                           : R(13)->iput(ctx, 0, from, source, size, to, target, r, request);
}

static ncclResult_t put_signal(uint64_t from, void *source, size_t size, uint64_t to, void *target, int peer,
                               uint64_t at, void *counter, uint64_t value, uint32_t op, void **request)
{
    uint32_t r = (uint32_t)peer;
    if (version == 13)
        return R(13)->iputSignal(ctx, 0, from, source, size, to, target, r, at, counter, value, op, request);
    if (version == 14)
        return R(14)->iputSignal(ctx, 0, from, source, size, to, target, r, at, counter, value, op, true, request);
    return version == 15
               ? R(15)->iputSignal(ctx, 0, from, source, size, to, target, r, at, counter, value, op, true, 0, request)
               : R(16)->iputSignal(ctx, 0, from, source, size, to, target, r, at, counter, value, op, true, 0, request);
}

static ncclResult_t get(uint64_t from, void *source, size_t size, uint64_t to, void *target, int peer, void **request)
{
    uint32_t r = (uint32_t)peer;
    return version == 16   ? R(16)->iget(ctx, 0, from, source, size, to, target, r, 0, request)
           : version == 15 ? R(15)->iget(ctx, 0, from, source, size, to, target, r, 0, request)
           : version == 14 ? R(14)->iget(ctx, 0, from, source, size, to, target, r, request)
                           : R(13)->iget(ctx, 0, from, source, size, to, target, r, request);
}

/* ---- the beginning and the end ---- */

static void open_comm(void)
{
    void *listener = NULL, *handles[MOST];
    int n = -1;
    ncclNetProperties_v12_t properties;
    OK(EACH(init(&context, 7, logger)));
    OK(EACH(devices(&n)));
    CHECK(n == 1, "%d devices", n);
    OK(EACH(getProperties(0, &properties)));
    CHECK(properties.netDeviceType == NCCL_NET_DEVICE_GIN_PROXY && properties.ptrSupport == NCCL_PTR_HOST);
    OK(EACH(listen(context, 0, shared->handle[rank], &listener)));
    all_here();
    for (int i = 0; i < ranks; i++) handles[i] = shared->handle[i];
    OK(EACH(connect((void *)&n, handles, ranks, rank, listener, &comm))); /* NCCL 2.30 gives another plugin's context */
    OK(EACH(closeListen(listener)));
    if (version == 13) {
        ncclGinConfig_v13_t config = {.nContexts = 1};
        ncclNetDeviceHandle_v11_t *device;
        OK(R(13)->createContext(comm, &config, &ctx, &device));
    } else {
        ncclRmaConfig_v14_t config = {1, -1, 1};
        OK(version == 16   ? R(16)->createContext(comm, &config, &ctx)
           : version == 15 ? R(15)->createContext(comm, &config, &ctx)
                           : R(14)->createContext(comm, &config, &ctx));
    }
    if (version == 16) {
        ncclRmaProperties_v16_t own;
        OK(R(16)->getRmaProperties(comm, &own));
        CHECK(!own.flushesAllPutsOnAnySignal);
    }
}

static void close_comm(void)
{
    OK(EACH(destroyContext(ctx)));
    OK(EACH(closeColl(comm)));
    OK(EACH(finalize(context)));
}

/* ---- moves ---- */

static ncclResult_t end(void *request)
{
    double until = now() + DEADLINE;
    CHECK(request != NULL, "no request");
    for (int done = 0; !done; sched_yield()) {
        ncclResult_t result = EACH(test(comm, request, &done));
        if (result != ncclSuccess) return result;
        CHECK(now() < until, "an operation does not end");
    }
    return ncclSuccess;
}

static char value(int of, size_t size, size_t at)
{
    return (char)(of * 31 + (int)size * 7 + (int)at * 13 + (int)(at >> 8));
}

static char out[ROOM], in[MOST][ROOM], got[ROOM];
static _Atomic uint64_t signals[MOST + 1];
static void *out_region, *in_region, *got_region, *signal_region;

static void regions(void)
{
    OK(reg(out, sizeof out, 0, &out_region));
    OK(reg(in, sizeof in, 0, &in_region));
    OK(reg(got, sizeof got, 0, &got_region));
    OK(reg((void *)signals, sizeof signals, NCCL_NET_MR_FLAG_FORCE_SO, &signal_region));
    CHECK(out_region && in_region && got_region && signal_region);
}

static void wait_for_signals(uint64_t count)
{
    double until = now() + DEADLINE;
    for (int r = 0; r < ranks; r++)
        while (atomic_load(&signals[r]) < count) {
            OK(progress());
            CHECK(now() < until, "no signal of rank %d", r);
            sched_yield();
        }
}

/* Unlike all_here, it serves the operations of the others. */
static void all_done(int with, uint64_t count)
{
    atomic_fetch_add(&shared->ready[with], 1);
    double until = now() + DEADLINE;
    while (atomic_load(&shared->ready[with]) < ranks * (int)count) {
        OK(progress());
        CHECK(now() < until, "not all ranks are done");
    }
}

static void exchange(size_t size, uint64_t count)
{
    void *request[MOST];
    uint64_t to = (uint64_t)rank * ROOM, at = (uint64_t)rank * sizeof(uint64_t);
    for (size_t i = 0; i < size; i++) out[i] = value(rank, size, i);
    all_here(); /* everybody has looked at what came before */
    for (int r = 0; r < ranks; r++)
        OK(put_signal(0, out_region, size, to, in_region, r, at, signal_region, count % 2 ? 1 : 99,
                      count % 2 ? NCCL_NET_SIGNAL_OP_ADD : NCCL_NET_SIGNAL_OP_INC, &request[r]));
    for (int r = 0; r < ranks; r++) OK(end(request[r]));
    wait_for_signals(count);
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < size; i++)
            CHECK(in[r][i] == value(r, size, i), "byte %zu of %zu of rank %d", i, size, r);
    /* the next rank's data, without its help but its progress */
    int next = (rank + 1) % ranks;
    memset(got, 0, size);
    OK(get(0, out_region, size, 0, got_region, next, &request[0]));
    OK(end(request[0]));
    OK(EACH(iflush(ctx, 0, got_region, (uint32_t)next, &request[0])));
    OK(end(request[0]));
    for (size_t i = 0; i < size; i++) CHECK(got[i] == value(next, size, i), "byte %zu of %zu was got", i, size);
    CHECK(memcmp(got + size, "\0\0", 2) == 0 || size == 0, "too much was got");
    all_done(13, count); /* no signal tells when the next put writes what is read above */
    /* a put without a signal */
    OK(put(0, out_region, size, to, in_region, next, &request[0]));
    OK(end(request[0]));
    all_done(15, count);
}

static _Atomic bool over;
static void *progress_always(void *unused)
{
    while (!atomic_load(&over)) {
        OK(progress());
        sched_yield();
    }
    return unused;
}

static void all(bool threads)
{
    pthread_t thread;
    if (threads) CHECK(pthread_create(&thread, NULL, progress_always, NULL) == 0);
    regions();
    for (uint64_t i = 0; i < SIZES; i++) exchange(sizes[i], i + 1);
    atomic_store(&over, true);
    if (threads) pthread_join(thread, NULL);
    bool failed = true;
    OK(EACH(queryLastError(ctx, &failed)));
    CHECK(!failed);
    OK(EACH(deregMrSym(comm, in_region)));
    OK(EACH(deregMrSym(comm, NULL)));
}

static void outside(void)
{
    void *request = NULL;
    regions();
    if (rank != 0) {
        all_here(); /* a peer that leaves would end the put that is right */
        return;
    }
    CHECK(put(0, out_region, 64, sizeof in - 63, in_region, 1, &request) == ncclInvalidUsage && !request);
    CHECK(put(sizeof out, out_region, 1, 0, in_region, 1, &request) == ncclInternalError);
    CHECK(get(0, out_region, 64, sizeof got, got_region, 1, &request) == ncclInternalError);
    CHECK(put_signal(0, out_region, 64, 0, in_region, 1, sizeof signals, signal_region, 1, NCCL_NET_SIGNAL_OP_ADD,
                     &request) == ncclInvalidUsage);
    OK(put(0, out_region, 64, sizeof in - 64, in_region, 1, &request));
    all_here();
}

static void leaves(void)
{
    void *request = NULL;
    regions();
    all_here();
    if (rank == 1) return;
    ncclResult_t result = ncclSuccess;
    for (double until = now() + DEADLINE; result == ncclSuccess && now() < until;) {
        result = put(0, out_region, 64, 0, in_region, 1, &request);
        if (result == ncclSuccess) result = end(request);
    }
    CHECK(result == ncclRemoteError, "result %d", result);
    bool failed = false;
    OK(EACH(queryLastError(ctx, &failed)));
    CHECK(failed && progress() == ncclRemoteError);
}

static void alone(void)
{
    void *mhandle = NULL;
    regions();
    if (rank == 1) {
        double until = now() + DEADLINE;
        while (atomic_load(&shared->ready[14]) < ranks - 1) {
            OK(progress());
            CHECK(now() < until, "the others wait for ever");
        }
        return;
    }
    CHECK(reg(got, 64, 0, &mhandle) == ncclSystemError && !mhandle);
    atomic_fetch_add(&shared->ready[14], 1);
}

static void wrong(void)
{
    void *request = NULL;
    int done;
    regions();
    CHECK(put(0, out_region, 1, 0, in_region, ranks, &request) == ncclInternalError);
    CHECK(put(0, out, 1, 0, in_region, 0, &request) == ncclInternalError);
    CHECK(put(0, out_region, 1, 0, in, 0, &request) == ncclInternalError);
    CHECK(put_signal(0, out_region, 1, 0, in_region, 0, 0, signal_region, 1, 7, &request) == ncclInternalError);
    CHECK(EACH(test(comm, in, &done)) == ncclInternalError && EACH(test(in, in, &done)) == ncclInternalError);
    CHECK(EACH(deregMrSym(comm, in)) == ncclInternalError && EACH(closeColl(ctx)) == ncclInternalError);
    CHECK(EACH(destroyContext(comm)) == ncclInternalError && EACH(closeListen(comm)) == ncclInternalError);
    OK(put(0, out_region, 1, 0, in_region, rank, &request));
    OK(end(request));
    CHECK(EACH(test(comm, request, &done)) == ncclInternalError, "it was reported as done");
}

static int be_a_rank(const char *scenario)
{
    if (strcmp(scenario, "off") == 0) {
        int n = -1;
        OK(EACH(init(&context, 7, logger)));
        OK(EACH(devices(&n)));
        CHECK(n == 0, "%d devices", n);
        OK(EACH(finalize(context)));
        return 0;
    }
    open_comm();
    if (strcmp(scenario, "all") == 0 || strcmp(scenario, "threads") == 0) all(*scenario == 't');
    if (strcmp(scenario, "outside") == 0) outside();
    if (strcmp(scenario, "leaves") == 0) leaves();
    if (strcmp(scenario, "alone") == 0) alone();
    if (strcmp(scenario, "wrong") == 0) wrong();
    close_comm();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 5) return 2;
    version = atoi(argv[2]);
    ranks = atoi(argv[3]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[MOST];
    for (rank = 0; rank < ranks; rank++) {
        if ((pids[rank] = fork()) != 0) continue;
        char text[16], symbol[40];
        snprintf(text, sizeof text, "%d", rank);
        setenv("PSM_RANK", text, 1);
        who = "rank";
        void *library = dlopen(argv[1], RTLD_NOW);
        snprintf(symbol, sizeof symbol, "ncclRmaPlugin_v%d", version);
        CHECK(library && (rma = dlsym(library, symbol)), "%s", dlerror());
        return be_a_rank(argv[4]);
    }
    int failed = 0;
    for (int r = 0; r < ranks; r++) {
        int status;
        CHECK(waitpid(pids[r], &status, 0) == pids[r]);
        failed += status != 0;
    }
    return failed;
}
