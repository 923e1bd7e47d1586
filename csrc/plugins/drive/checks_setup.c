/* From the library to connections: everything that NCCL does before the first byte moves. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "drive.h"

enum { MOST_RECVS = 64, MOST_DEVICES = 256 };

static void check_load(void)
{
    d.threads = entries("/proc/self/task");
    strcpy(d.slots[d.rank].call, "dlopen");
    d.library = dlopen(d.path, RTLD_NOW | RTLD_LOCAL);
    if (!d.library) failed("contract", "dlopen: %s", dlerror());
    strcpy(d.slots[d.rank].call, "dlsym");
    if (!table_find()) failed("contract", "there is no ncclNetPlugin_v%d", d.version);
    const char *name = table_name();
    if (!name || !*name)
        failed("contract", "the name in ncclNetPlugin_v%d is %s: NCCL reads it before init", d.version,
               name ? "empty" : "NULL");
    if (!table_has_init()) failed("contract", "init is NULL in ncclNetPlugin_v%d", d.version);
    note("%s", name);
    d.max_requests = d.version < 7 ? NCCL_NET_MAX_REQUESTS_V6 : NCCL_NET_MAX_REQUESTS;
}

static char before_init[64]; /* the first slot that was NULL before init */

static void check_init(void)
{
    const char *empty = table_empty(false, false);
    snprintf(before_init, sizeof before_init, "%s", empty ? empty : "");
    ncclResult_t result = t_init(0, 0x5eed);
    ok(result, "init");
}

/* After init, as NCCL does: init may fill the table. */
static void check_slots(void)
{
    const char *empty = table_empty(false, false);
    if (empty) failed("contract", "%s is NULL in ncclNetPlugin_v%d after init", empty, d.version);
    if (*before_init) note("filled by init: %s was NULL before", before_init);
}

static void check_devices(void)
{
    const char *missing;
    int n = -1;
    ncclResult_t result = t_devices(&n);
    ok(result, "devices");
    if (n < 1) failed("contract", "devices reports %d devices", n);
    if (n > MOST_DEVICES) failed("contract", "devices reports %d devices", n);
    d.devices = n;
    result = t_properties(0, &d.props, &missing);
    ok(result, "getProperties of device 0");
    int recvs = d.props.maxRecvs;
    d.max_recvs = recvs < 1 ? 1 : recvs > MAX_PIECES ? MAX_PIECES : recvs;
    note("%d", n);
}

#define WANT(condition, ...)                                                                                           \
    if (!(condition)) failed("contract", "device " __VA_ARGS__)

static void properties_of(int dev)
{
    ncclNetProperties_v12_t p, again;
    const char *missing;
    ncclResult_t result = t_properties(dev, &p, &missing);
    WANT(result == ncclSuccess, "%d: getProperties returned %s", dev, result_name(result));
    WANT(!missing, "%d: getProperties does not write %s, and NCCL does not clear the record before the call", dev,
         missing);
    WANT(p.name && *p.name, "%d has no name", dev);
    WANT(!p.pciPath || !*p.pciPath || *p.pciPath == '/', "%d: pciPath %s is not a path in /sys", dev, p.pciPath);
    WANT(p.ptrSupport & NCCL_PTR_HOST, "%d: ptrSupport 0x%x lacks NCCL_PTR_HOST, which all transports use", dev,
         p.ptrSupport);
    WANT((p.ptrSupport & ~(NCCL_PTR_HOST | NCCL_PTR_CUDA | NCCL_PTR_DMABUF)) == 0,
         "%d: ptrSupport 0x%x has unknown bits", dev, p.ptrSupport);
    const char *empty = table_empty(p.ptrSupport & NCCL_PTR_CUDA, p.ptrSupport & NCCL_PTR_DMABUF);
    WANT(!empty, "%d: ptrSupport is 0x%x but %s is NULL", dev, p.ptrSupport, empty);
    WANT(p.maxComms >= 1, "%d: maxComms is %d", dev, p.maxComms);
    WANT(p.maxRecvs >= 1 && p.maxRecvs <= MOST_RECVS, "%d: maxRecvs is %d, not 1 to %d", dev, p.maxRecvs, MOST_RECVS);
    WANT(p.latency >= 0, "%d: latency is %g us", dev, (double)p.latency);
    WANT(p.netDeviceType == NCCL_NET_DEVICE_HOST ||
             (p.netDeviceType == NCCL_NET_DEVICE_UNPACK && p.netDeviceVersion == NCCL_NET_DEVICE_UNPACK_VERSION),
         "%d: NCCL rejects netDeviceType %d of version %d", dev, (int)p.netDeviceType, p.netDeviceVersion);
    WANT(p.regIsGlobal == 0 || p.regIsGlobal == 1, "%d: regIsGlobal is %d", dev, p.regIsGlobal);
    WANT(p.forceFlush == 0 || p.forceFlush == 1, "%d: forceFlush is %d", dev, p.forceFlush);
    int most = d.version == 12 ? NCCL_NET_MAX_DEVS_PER_NIC_V12 : NCCL_NET_MAX_DEVS_PER_NIC_V9;
    WANT(p.vProps.ndevs >= 1 && p.vProps.ndevs <= most, "%d: vProps.ndevs is %d, not 1 to %d", dev, p.vProps.ndevs,
         most);
    for (int i = 0; d.version >= 9 && i < p.vProps.ndevs; i++)
        WANT(p.vProps.devs[i] >= 0 && p.vProps.devs[i] < d.devices, "%d: vProps.devs[%d] is %d of %d devices", dev, i,
             p.vProps.devs[i], d.devices);
    WANT(p.maxP2pBytes >= 1 && p.maxP2pBytes <= (size_t)NCCL_MAX_NET_SIZE_BYTES, "%d: NCCL rejects maxP2pBytes %zu",
         dev, p.maxP2pBytes);
    result = t_properties(dev, &again, &missing);
    WANT(result == ncclSuccess && again.name && strcmp(again.name, p.name) == 0 && again.guid == p.guid &&
             again.ptrSupport == p.ptrSupport && again.maxRecvs == p.maxRecvs && again.speed == p.speed,
         "%d: getProperties returns other values at the second call", dev);
}

static void check_properties(void)
{
    for (int dev = 0; dev < d.devices; dev++) properties_of(dev);
    const ncclNetProperties_v12_t *p = &d.props;
    note("%s: %d Mbit/s, maxComms %d, maxRecvs %d, ptrSupport 0x%x%s", p->name, p->speed, p->maxComms, p->maxRecvs,
         p->ptrSupport, p->regIsGlobal ? ", regIsGlobal" : "");
}

/* ---- connections ---- */

static void check_listen(void)
{
    uint8_t handle[2][NCCL_NET_HANDLE_MAXSIZE];
    void *comm[2];
    for (int i = 0; i < 2; i++) comm[i] = listen_on(0, 0, handle[i]);
    if (comm[0] == comm[1]) failed("contract", "two calls of listen returned the same listenComm");
    if (memcmp(handle[0], handle[1], sizeof handle[0]) == 0)
        failed("contract", "two calls of listen wrote the same handle: connections would get mixed up");
    for (int i = 0; i < 2; i++) {
        ncclResult_t result = t_close_listen(comm[i]);
        ok(result, "closeListen without a connection");
    }
}

static void check_connect(void)
{
    struct lane l = lane_open(0, 4096);
    lane_close(&l);
}

/* A send and a receive, and a check of each byte, on a lane of its own. */
static void exchange(int dev, size_t room, size_t size, int tag, int turn, const char *what)
{
    struct lane l = lane_open(dev, room);
    struct op *ops = ops_of(2);
    recv_into(&ops[0], l.recv, &l.in, size, tag);
    send_into(&ops[1], l.send, &l.out, size, tag, seed_of(d.rank, l.to, turn));
    finish(ops, 2);
    compare(&ops[0].piece[0], size, seed_of(l.from, d.rank, turn), what);
    lane_close(&l);
}

/* As messages of NCCL's rings and trees. */
static void check_message(void)
{
    exchange(0, 1 << 17, 40000, 7, 1, "the first message");
}

enum { EARLY_CALLS = 200 };

/* One thread that serves all connections calls connect and accept: neither may wait for the other side. */
static void check_early(void)
{
    _Alignas(16) uint8_t mine[NCCL_NET_HANDLE_MAXSIZE], theirs[NCCL_NET_HANDLE_MAXSIZE];
    int to = (d.rank + 1) % d.ranks, from = (d.rank + d.ranks - 1) % d.ranks;
    void *send = NULL, *recv = NULL, *listener = listen_on(0, 0, mine);
    ncclResult_t result;
    /* No other rank has the handle yet. */
    for (int i = 0; i < EARLY_CALLS; i++) {
        if ((result = t_accept(listener, &recv)) != ncclSuccess)
            failed("contract", "accept before anybody connects returned %s", result_name(result));
        if (recv) failed("contract", "accept returned a comm although no rank has the handle");
    }
    exchange_handles("handles", from, to, mine, theirs);
    for (int i = 0; i < EARLY_CALLS && !send; i++)
        if ((result = t_connect(0, 0, theirs, &send)) != ncclSuccess)
            failed("contract", "connect before the other side calls accept returned %s", result_name(result));
    meet();
    connect_both(0, 0, theirs, &send, listener, &recv);
    if ((result = t_close_send(send)) != ncclSuccess || (result = t_close_recv(recv)) != ncclSuccess ||
        (result = t_close_listen(listener)) != ncclSuccess)
        failed("contract", "closing returned %s", result_name(result));
}

/* All pairs: NCCL opens them at the same time. */
static void check_pairs(void)
{
    size_t others = (size_t)d.ranks - 1;
    if ((size_t)d.props.maxComms < 2 * others) {
        skipped("maxComms is %d", d.props.maxComms);
        return;
    }
    _Alignas(16) static uint8_t handle[MAX_RANKS][NCCL_NET_HANDLE_MAXSIZE];
    void *listener[MAX_RANKS], *send[MAX_RANKS] = {NULL}, *recv[MAX_RANKS] = {NULL};
    struct arena out[MAX_RANKS], in[MAX_RANKS];
    struct op *ops = ops_of(2 * others);
    /* Step s: to the rank s places further on. */
    for (int s = 1; s < d.ranks; s++) {
        uint8_t mine[NCCL_NET_HANDLE_MAXSIZE];
        listener[s] = listen_on(0, 0, mine);
        exchange_handles("pairs", (d.rank + d.ranks - s) % d.ranks, (d.rank + s) % d.ranks, mine, handle[s]);
    }
    struct patience p = patience();
    for (size_t open = 1; open;) {
        open = 0;
        for (int s = 1; s < d.ranks; s++) {
            ncclResult_t result = ncclSuccess;
            if (!send[s] && (result = t_connect(0, 0, handle[s], &send[s])) != ncclSuccess)
                failed("contract", "connect to rank %d returned %s", (d.rank + s) % d.ranks, result_name(result));
            if (!recv[s] && (result = t_accept(listener[s], &recv[s])) != ncclSuccess)
                failed("contract", "accept returned %s", result_name(result));
            open += !send[s] + !recv[s];
        }
        if (open && too_long(&p)) failed("late", "%zu of %zu connections have no comm", open, 2 * others);
    }
    for (int s = 1; s < d.ranks; s++) {
        out[s] = arena_of(send[s], 8192);
        in[s] = arena_of(recv[s], 8192);
        int to = (d.rank + s) % d.ranks;
        recv_into(&ops[2 * s - 2], recv[s], &in[s], 5000, s);
        send_into(&ops[2 * s - 1], send[s], &out[s], 5000, s, seed_of(d.rank, to, 2));
    }
    finish(ops, 2 * others);
    meet(); /* others may still receive; check_close closes earlier */
    for (int s = 1; s < d.ranks; s++) {
        compare(&ops[2 * s - 2].piece[0], 5000, seed_of((d.rank + d.ranks - s) % d.ranks, d.rank, 2), "a message");
        arena_free(&out[s]);
        arena_free(&in[s]);
        ncclResult_t result;
        if ((result = t_close_listen(listener[s])) != ncclSuccess || (result = t_close_send(send[s])) != ncclSuccess ||
            (result = t_close_recv(recv[s])) != ncclSuccess)
            failed("contract", "closing returned %s", result_name(result));
    }
}

/* Within one process, as NCCL does to register memory globally, with one thread for both sides. */
static void check_self(void)
{
    void *listener, *send, *recv;
    loopback(&listener, &send, &recv);
    struct arena out = arena_of(send, 1 << 16), in = arena_of(recv, 1 << 16);
    struct op *ops = ops_of(2);
    recv_into(&ops[0], recv, &in, 30000, 0);
    send_into(&ops[1], send, &out, 30000, 0, seed_of(d.rank, d.rank, 3));
    finish(ops, 2);
    compare(&ops[0].piece[0], 30000, seed_of(d.rank, d.rank, 3), "a message to itself");
    arena_free(&out);
    arena_free(&in);
    ncclResult_t result;
    if ((result = t_close_recv(recv)) != ncclSuccess || (result = t_close_send(send)) != ncclSuccess ||
        (result = t_close_listen(listener)) != ncclSuccess)
        failed("contract", "closing a connection to itself returned %s", result_name(result));
}

static void check_each_device(void)
{
    if (d.devices == 1) {
        skipped("there is only one device");
        return;
    }
    for (int dev = 1; dev < d.devices; dev++) {
        exchange(dev, 1 << 14, 9000, 1, 4, "a message");
        meet();
    }
    note("%d", d.devices);
}

const struct check setup_checks[] = {
    {"load", check_load, 4},
    {"init", check_init, 4},
    {"slots", check_slots, 4},
    {"devices", check_devices, 4},
    {"properties", check_properties, 4},
    {"listen", check_listen, 4},
    {"connect", check_connect, 4},
    {"message", check_message, 4},
    {"connect-early", check_early, 5},
    {"pairs", check_pairs, 5},
    {"self", check_self, 5},
    {"each-device", check_each_device, 4},
    {NULL, NULL, 0},
};
