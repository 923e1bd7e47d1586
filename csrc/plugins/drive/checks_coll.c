/* CollNet: the table next to that of the network, as NCCL's collNet transport uses it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "bootstrap.h"
#include "drive_collnet.h"

enum { TYPES = 10, OPS = 4, ROOM = 1 << 17, IN_FLIGHT = 8 };
static const char *const type_names[] = {"int8",   "uint8", "int32", "uint32", "int64",
                                         "uint64", "half",  "float", "double", "bfloat16"};
static const char *const op_names[] = {"sum", "prod", "max", "min"};
static const size_t sizes_of[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

static void coll_ok(ncclResult_t result, const char *call)
{
    if (result != ncclSuccess) failed("contract", "%s of CollNet returned %s", call, result_name(result));
}

/* ---- a communicator ---- */

static struct {
    void *context, *comm, *out_mr, *in_mr;
    uint8_t *out, *in;
} coll;

/* False: skipped; the reason is reported. */
static bool there(void)
{
    static bool initialized;
    int n = -1;
    if (!coll_find()) {
        skipped("there is no ncclCollNetPlugin_v%d", d.version);
        return false;
    }
    if (!coll_has_init()) failed("contract", "init is NULL in ncclCollNetPlugin_v%d", d.version);
    if (d.version >= 11 || !initialized) coll_ok(coll_init(&coll.context), "init");
    initialized = true;
    /* After init, as NCCL does: init may fill the table. */
    const char *empty = coll_empty();
    if (empty) failed("contract", "%s is NULL in ncclCollNetPlugin_v%d after init", empty, d.version);
    coll_ok(coll_devices(&n), "devices");
    if (n > 0) return true;
    skipped("CollNet has %d devices", n);
    return false;
}

static void comm_open(void)
{
    _Alignas(16) static uint8_t all[MAX_RANKS][NCCL_NET_HANDLE_MAXSIZE];
    uint8_t mine[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *handles[MAX_RANKS], *listener = NULL;
    bool present[MAX_RANKS];
    coll_ok(coll_listen(coll.context, 0, mine, &listener), "listen");
    if (!listener) failed("contract", "listen of CollNet returned success but no listenComm");
    lab_gather("collnet", mine, sizeof mine, all, present);
    for (int r = 0; r < d.ranks; r++) {
        if (!present[r]) left();
        handles[r] = all[r];
    }
    coll.comm = NULL;
    coll_ok(coll_connect(handles, listener, &coll.comm), "connect");
    if (!coll.comm)
        failed("contract", "connect of CollNet returned success but no collComm: NCCL does not call it again");
    /* At once, as NCCL does. */
    coll_ok(coll_close_listen(listener), "closeListen");
    coll.out = malloc(ROOM);
    coll.in = malloc(ROOM);
    if (!coll.out || !coll.in) failed("contract", "psm_net_drive has no memory");
    coll_ok(coll_reg(coll.comm, coll.out, ROOM, &coll.out_mr), "regMr");
    coll_ok(coll_reg(coll.comm, coll.in, ROOM, &coll.in_mr), "regMr");
}

static void comm_close(void)
{
    coll_ok(coll_dereg(coll.comm, coll.out_mr), "deregMr");
    coll_ok(coll_dereg(coll.comm, coll.in_mr), "deregMr");
    coll_ok(coll_close(coll.comm), "closeColl");
    free(coll.out);
    free(coll.in);
    if (d.version >= 11) coll_ok(coll_finalize(coll.context), "finalize");
    meet();
}

/* ---- data: small numbers, which every type can represent, and which give the same result in any order ---- */

static int value_of(int rank, size_t i)
{
    return 1 + (rank < 3 && (i / 3 + (size_t)rank) % 2);
}

static int reduced(int op, size_t i)
{
    int result = value_of(0, i);
    for (int r = 1; r < d.ranks; r++) {
        int v = value_of(r, i);
        result = op == 0      ? result + v
                 : op == 1    ? result * v
                 : op == 2    ? (v > result ? v : result)
                 : v < result ? v
                              : result;
    }
    return result;
}

static void put(uint8_t *at, int type, int value)
{
    int64_t whole = value;
    float single = (float)value;
    double twice = value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    uint16_t bfloat = (uint16_t)(bits >> 16), half = (uint16_t)((bits >> 13 & 0x3ff) | ((bits >> 23) - 112) << 10);
    switch (type) {
    case ncclFloat16:
        memcpy(at, &half, sizeof half);
        break;
    case ncclBfloat16:
        memcpy(at, &bfloat, sizeof bfloat);
        break;
    case ncclFloat32:
        memcpy(at, &single, sizeof single);
        break;
    case ncclFloat64:
        memcpy(at, &twice, sizeof twice);
        break;
    default:
        memcpy(at, &whole, sizes_of[type]);
    }
}

static void expect(const uint8_t *got, int type, int op, size_t from, size_t n, const char *what)
{
    uint8_t meant[8];
    for (size_t i = 0; i < n; i++) {
        put(meant, type, reduced(op, from + i));
        if (memcmp(got + i * sizes_of[type], meant, sizes_of[type]) != 0)
            failed("data", "%s, %s of %s: element %zu of %zu is not the result for %d ranks", what, op_names[op],
                   type_names[type], i, n, d.ranks);
    }
}

static void wait_for(void *request, const char *call)
{
    struct patience p = patience();
    for (int done = 0, size; !done;) {
        coll_ok(coll_test(request, &done, &size), "test");
        if (!done && too_long(&p))
            failed("late", "test of CollNet does not report %s as done for %.3g s", call, (double)d.timeout_ns * 1e-9);
    }
}

/* Again while the plugin returns NULL. */
#define POST(request, call, name)                                                                                      \
    for (struct patience p_ = patience(); !request;) {                                                                 \
        coll_ok(call, name);                                                                                           \
        if (!request && too_long(&p_))                                                                                 \
            failed("late", name " of CollNet returned NULL for %.3g s", (double)d.timeout_ns * 1e-9);                  \
    }

/* ---- checks ---- */

static void check_collnet(void)
{
    int ptr = 0, supported, sums = 0;
    size_t most = 0;
    if (!there()) return;
    if (!*coll_name()) failed("contract", "the name in ncclCollNetPlugin_v%d is empty", d.version);
    coll_ok(coll_properties(0, &ptr, &most), "getProperties");
    if (!(ptr & NCCL_PTR_HOST) && !(ptr & NCCL_PTR_CUDA)) failed("contract", "ptrSupport of CollNet is 0x%x", ptr);
    if (most == 0) failed("contract", "maxCollBytes of CollNet is 0");
    for (int type = 0; type < ncclNumTypes; type++)
        for (int op = 0; op < ncclNumOps; op++) {
            supported = -1;
            coll_ok(coll_support((ncclDataType_t)type, (ncclRedOp_t)op, &supported), "reduceSupport");
            if (supported != 0 && supported != 1)
                failed("contract", "reduceSupport reports %d for type %d, op %d", supported, type, op);
            sums += op == ncclSum && supported;
        }
    comm_open();
    comm_close();
    note("%s: %d types", coll_name(), sums);
}

static void check_reduce(void)
{
    static const size_t counts[] = {1, 2, 3, 1000, 4096, 8191};
    if (!there()) return;
    comm_open();
    for (int type = 0; type < TYPES; type++)
        for (int op = 0; op < OPS; op++) {
            int supported = 0, in_place = (type + op) % 3 == 0;
            size_t count = counts[(size_t)(type + op) % 6];
            void *request = NULL;
            coll_ok(coll_support((ncclDataType_t)type, (ncclRedOp_t)op, &supported), "reduceSupport");
            if (!supported) continue;
            uint8_t *to = in_place ? coll.out : coll.in;
            memset(coll.in, 0xE7, ROOM);
            for (size_t i = 0; i < count; i++) put(coll.out + i * sizes_of[type], type, value_of(d.rank, i));
            POST(request,
                 coll_allreduce(coll.comm, coll.out, to, count, (ncclDataType_t)type, (ncclRedOp_t)op, coll.out_mr,
                                in_place ? coll.out_mr : coll.in_mr, &request),
                 "iallreduce");
            wait_for(request, "iallreduce");
            expect(to, type, op, 0, count, in_place ? "iallreduce in place" : "iallreduce");
        }
    comm_close();
}

/* NCCL has several in flight, and tests them in turn. */
static void check_many(void)
{
    enum { COUNT = 900, N = 40 };
    void *request[N] = {NULL};
    size_t each = COUNT * sizeof(float);
    int posted = 0, done = 0;
    if (!there()) return;
    int supported = 0;
    coll_ok(coll_support(ncclFloat32, ncclSum, &supported), "reduceSupport");
    if (!supported) {
        skipped("no sum of float");
        return;
    }
    comm_open();
    struct patience p = patience();
    while (done < N) {
        bool progress = false;
        if (posted < N && posted < done + IN_FLIGHT) {
            uint8_t *at = coll.out + (size_t)(posted % IN_FLIGHT) * each, *to = coll.in + (at - coll.out);
            for (size_t i = 0; i < COUNT; i++) put(at + i * 4, ncclFloat32, value_of(d.rank, i + (size_t)posted));
            coll_ok(coll_allreduce(coll.comm, at, to, COUNT, ncclFloat32, ncclSum, coll.out_mr, coll.in_mr,
                                   &request[posted]),
                    "iallreduce");
            if (request[posted]) posted++, progress = true;
        }
        int yes = 0, size;
        if (done < posted) coll_ok(coll_test(request[done], &yes, &size), "test");
        if (yes) {
            expect(coll.in + (size_t)(done % IN_FLIGHT) * each, ncclFloat32, 0, (size_t)done, COUNT, "one of many");
            done++, progress = true;
        }
        if (progress)
            p.last = psm_clock_ns();
        else if (too_long(&p))
            failed("late", "%d of %d collectives are done, %d posted", done, N, posted);
    }
    comm_close();
}

/* Windows of the ranks' data: the whole, and a part that starts and ends within ranks' shares. */
static void check_gather(void)
{
    enum { SHARE = 400 };
    size_t all = (size_t)d.ranks * SHARE, windows[2][2] = {{0, all}, {150, all - 300}};
    if (!there()) return;
    comm_open();
    for (int w = 0; w < 2; w++) {
        size_t offset = windows[w][0], n = windows[w][1], begin = (size_t)d.rank * SHARE, end = begin + SHARE;
        size_t low = begin > offset ? begin : offset, high = end < offset + n ? end : offset + n;
        void *request = NULL;
        for (size_t i = low; i < high; i++) put(coll.out + (i - low) * 4, ncclInt32, (int)i * 7 + 3);
        memset(coll.in, 0xE7, ROOM);
        ncclNetSGE_v12_t part = {coll.in_mr, coll.in, n * 4};
        ncclResult_t result =
            coll_allgather(coll.comm, coll.out, part, SHARE * 4, offset * 4, n * 4, coll.out_mr, &request);
        if (result == ncclInProgress) {
            skipped("iallgather is NULL");
            break;
        }
        coll_ok(result, "iallgather");
        POST(request, coll_allgather(coll.comm, coll.out, part, SHARE * 4, offset * 4, n * 4, coll.out_mr, &request),
             "iallgather");
        wait_for(request, "iallgather");
        for (size_t i = 0; i < n; i++) {
            uint8_t meant[4];
            put(meant, ncclInt32, (int)(offset + i) * 7 + 3);
            if (memcmp(coll.in + i * 4, meant, 4) != 0)
                failed("data", "iallgather of a window from %zu, %zu elements of %d x %d: element %zu is wrong", offset,
                       n, d.ranks, SHARE, i);
        }
        if (coll.in[n * 4] != 0xE7) failed("data", "iallgather wrote beyond its window");
        for (size_t i = 0; i < n; i++) put(coll.out + i * 4, ncclInt32, value_of(d.rank, offset + i));
        memset(coll.in, 0xE7, ROOM);
        part = (ncclNetSGE_v12_t){coll.out_mr, coll.out, n * 4};
        request = NULL;
        result = coll_reducescatter(coll.comm, part, coll.in, SHARE * 4, offset * 4, n * 4, ncclInt32, ncclSum,
                                    coll.in_mr, &request);
        if (result == ncclInProgress) continue; /* NULL */
        coll_ok(result, "ireducescatter");
        POST(request,
             coll_reducescatter(coll.comm, part, coll.in, SHARE * 4, offset * 4, n * 4, ncclInt32, ncclSum, coll.in_mr,
                                &request),
             "ireducescatter");
        wait_for(request, "ireducescatter");
        expect(coll.in, ncclInt32, 0, low, high > low ? high - low : 0, "ireducescatter");
    }
    comm_close();
}

const struct check coll_checks[] = {
    {"collnet", check_collnet, 4},
    {"collnet-reduce", check_reduce, 4},
    {"collnet-many", check_many, 4},
    {"collnet-gather", check_gather, 8},
    {NULL, NULL, 0},
};
