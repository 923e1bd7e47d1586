/* Messages: memory between guards, posts with retries, polls, and the contract for each. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base.h"
#include "bootstrap.h"
#include "drive.h"

enum { GUARD_BYTE = 0xE7, SENTINEL = -0x5afe };

/* ---- memory ---- */

struct arena arena_of(void *comm, size_t size)
{
    struct arena a = {.size = size, .comm = comm};
    a.base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a.base == MAP_FAILED) failed("contract", "psm_net_drive has no memory for %zu bytes", size);
    memset(a.base, GUARD_BYTE, size);
    ncclResult_t result = t_reg(comm, a.base, size, NCCL_PTR_HOST, &a.mhandle);
    if (result != ncclSuccess) failed("contract", "regMr of %zu bytes returned %s", size, result_name(result));
    return a;
}

void arena_free(struct arena *a)
{
    ncclResult_t result = t_dereg(a->comm, a->mhandle);
    ok(result, "deregMr");
    munmap(a->base, a->size);
    a->base = NULL;
}

void arena_reset(struct arena *a)
{
    memset(a->base, GUARD_BYTE, a->used);
    a->used = 0;
}

static uint8_t *arena_take(struct arena *a, size_t size)
{
    uint8_t *data = a->base + a->used + GUARD;
    a->used += (size + 2 * GUARD + 7) / 8 * 8;
    if (a->used > a->size) failed("contract", "psm_net_drive's own memory of %zu bytes is too small", a->size);
    return data;
}

static uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t sum_of(const struct piece *p)
{
    uint64_t sum = 0, word;
    for (size_t i = 0; i + 8 <= p->size; i += 8) {
        memcpy(&word, p->data + i, 8);
        sum = (sum ^ word) * 0x2545f4914f6cdd1du;
    }
    for (size_t i = p->size / 8 * 8; i < p->size; i++) sum = (sum ^ p->data[i]) * 0x2545f4914f6cdd1du;
    return sum;
}

void fill(uint8_t *data, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = mixed(seed * 0x2545f4914f6cdd1du + i);
        memcpy(data + i, &word, n - i < 8 ? n - i : 8);
    }
}

uint64_t seed_of(int from, int to, uint64_t number)
{
    return ((uint64_t)from * MAX_RANKS + (uint64_t)to) << 32 ^ number;
}

static void guards(const struct piece *p, const char *what)
{
    for (int i = 1; i <= GUARD; i++) {
        if (p->data[-i] != GUARD_BYTE) failed("data", "%s: byte %d before the buffer was overwritten", what, i);
        if (p->data[p->size + (size_t)i - 1] != GUARD_BYTE)
            failed("data", "%s: byte %d beyond the %zu posted bytes was overwritten", what, i, p->size);
    }
}

void compare(const struct piece *p, size_t meant, uint64_t seed, const char *what)
{
    if (p->got != meant && d.check_sizes)
        failed("data", "%s: test reports %zd received bytes; %zu were sent, %zu posted", what, (ssize_t)p->got, meant,
               p->size);
    for (size_t i = 0; i < meant; i += 8) {
        uint64_t word = mixed(seed * 0x2545f4914f6cdd1du + i);
        size_t n = meant - i < 8 ? meant - i : 8;
        if (memcmp(p->data + i, &word, n) == 0) continue;
        size_t k = 0;
        while (p->data[i + k] == ((uint8_t *)&word)[k]) k++;
        failed("data", "%s: byte %zu of %zu is 0x%02x, 0x%02x was sent", what, i + k, meant, p->data[i + k],
               ((uint8_t *)&word)[k]);
    }
    if (p->watched && sum_of(p) != p->sum) failed("data", "%s: bytes changed after test had reported it as done", what);
    guards(p, what);
}

/* ---- operations ---- */

struct op *ops_of(size_t n)
{
    struct op *ops = calloc(n, sizeof *ops);
    if (!ops) failed("contract", "psm_net_drive has no memory for %zu operations", n);
    return ops;
}

void send_into(struct op *op, void *comm, struct arena *a, size_t size, int tag, uint64_t seed)
{
    *op = (struct op){.n = 1, .comm = comm};
    op->piece[0] = (struct piece){.data = arena_take(a, size), .size = size, .tag = tag, .mhandle = a->mhandle};
    fill(op->piece[0].data, size, seed);
}

void recv_into(struct op *op, void *comm, struct arena *a, size_t size, int tag)
{
    op->recv = true;
    op->comm = comm;
    op->piece[op->n++] =
        (struct piece){.data = arena_take(a, size), .size = size, .tag = tag, .mhandle = a->mhandle, .watched = true};
}

/* Requests in use: all addresses must differ. Hashed, because there can be thousands. */
enum { BUCKETS = 8192 };
static void *in_use[BUCKETS];
static size_t place_of(void *request)
{
    return mixed((uintptr_t)request) % BUCKETS;
}

static void take_request(void *request, const char *what)
{
    size_t at = place_of(request);
    for (; in_use[at]; at = (at + 1) % BUCKETS)
        if (in_use[at] == request)
            failed("contract", "%s returned request %p, which is in use: test has not reported it as done", what,
                   request);
    in_use[at] = request;
}

static void drop_request(void *request)
{
    size_t at = place_of(request);
    while (in_use[at] != request) at = (at + 1) % BUCKETS;
    in_use[at] = NULL;
    /* An entry after it may have been moved here from an earlier place. */
    for (size_t next = (at + 1) % BUCKETS; in_use[next]; next = (next + 1) % BUCKETS) {
        void *moved = in_use[next];
        in_use[next] = NULL;
        size_t to = place_of(moved);
        while (in_use[to]) to = (to + 1) % BUCKETS;
        in_use[to] = moved;
    }
}

/* The posted operations of each comm in their order. recvProxyProgress and sendProxyProgress of NCCL test the oldest
 * request of a channel; several channels have one comm only if maxRecvs is more than 1. */
enum { QUEUES = 4 * MAX_RANKS };
static struct queue {
    void *comm;
    struct op *first;
} queues[QUEUES];

static struct queue *queue_of(void *comm)
{
    struct queue *free_one = NULL;
    for (int i = 0; i < QUEUES; i++) {
        if (queues[i].first && queues[i].comm == comm) return &queues[i];
        if (!queues[i].first && !free_one) free_one = &queues[i];
    }
    if (!free_one) failed("contract", "psm_net_drive has no room for more than %d connections", QUEUES);
    free_one->comm = comm;
    return free_one;
}

/* NCCL has NCCL_NET_MAX_REQUESTS receives of a connection in flight at most, and maxRecvs times as many sends. */
static bool at_limit(const struct op *op)
{
    int n = 0, most = d.max_requests * (op->recv || d.version == 4 ? 1 : d.max_recvs);
    for (const struct op *at = queue_of(op->comm)->first; at; at = at->later) n++;
    return n >= most;
}

static void enqueue(struct op *op)
{
    struct op **at = &queue_of(op->comm)->first;
    while (*at) at = &(*at)->later;
    op->later = NULL;
    *at = op;
}

static void dequeue(struct op *op)
{
    struct op **at = &queue_of(op->comm)->first;
    while (*at && *at != op) at = &(*at)->later;
    if (*at) *at = op->later;
}

static bool nccl_tests(const struct op *op)
{
    return d.any_order || d.max_recvs > 1 || queue_of(op->comm)->first == op;
}

void forget_requests(void)
{
    memset(in_use, 0, sizeof in_use);
    memset(queues, 0, sizeof queues);
}

ncclResult_t try_post(struct op *op)
{
    bool over = at_limit(op);
    void *data[MAX_PIECES], *mhandles[MAX_PIECES];
    size_t sizes[MAX_PIECES];
    int tags[MAX_PIECES];
    for (int i = 0; i < op->n; i++) {
        data[i] = op->piece[i].data, sizes[i] = op->piece[i].size;
        tags[i] = op->piece[i].tag, mhandles[i] = op->piece[i].mhandle;
    }
    if (over && !d.over_limit) {
        op->refused++;
        return ncclSuccess;
    }
    op->request = op->hint;
    ncclResult_t result = op->recv ? t_irecv(op->comm, op->n, data, sizes, tags, mhandles, &op->request)
                                   : t_isend(op->comm, data[0], sizes[0], tags[0], mhandles[0], &op->request);
    if (result != ncclSuccess && over) {
        /* An error where NCCL never comes is as good as NULL; do not ask again. */
        d.over_limit = false;
        op->refused++;
        return ncclSuccess;
    }
    if (result != ncclSuccess) return result;
    if (op->request == (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION)
        failed("contract",
               op->hint
                   ? "irecv did not write *request, (void *)1: NCCL takes that for a request, and calls test with it"
                   : "%s returned the request (void *)1, which is NCCL's hint and not a request",
               op->recv ? "irecv" : "isend");
    if (op->request) {
        take_request(op->request, op->recv ? "irecv" : "isend");
        enqueue(op);
        op->posted = true;
    } else {
        op->refused++;
    }
    return result;
}

ncclResult_t try_poll(struct op *op)
{
    int sizes[MAX_PIECES + 1], done = 0;
    if (!nccl_tests(op)) return ncclSuccess;
    for (int i = 0; i <= MAX_PIECES; i++) sizes[i] = SENTINEL;
    ncclResult_t result = t_test(op->request, &done, sizes);
    if (result != ncclSuccess || !done) return result;
    drop_request(op->request);
    dequeue(op);
    op->done = true;
    op->request = NULL;
    /* NCCL gives a send room for one size, a receive for as many as it has channels, which it adds up. */
    if (sizes[op->n] != SENTINEL && (!op->recv || d.check_sizes))
        failed("contract", "test wrote sizes[%d] of %s for %d", op->n, op->recv ? "an irecv" : "an isend", op->n);
    for (int i = 0; i < op->n && op->recv; i++) {
        if (sizes[i] == SENTINEL && d.check_sizes)
            failed("contract", "test reported an irecv of %d as done but did not write sizes[%d]", op->n, i);
        op->piece[i].sum = op->piece[i].watched ? sum_of(&op->piece[i]) : 0;
        op->piece[i].got = sizes[i] == SENTINEL ? UNREPORTED : (size_t)sizes[i];
    }
    return result;
}

bool post(struct op *op)
{
    ncclResult_t result = try_post(op);
    if (result != ncclSuccess)
        failed("contract", "%s of %zu bytes returned %s", op->recv ? "irecv" : "isend", op->piece[0].size,
               result_name(result));
    return op->posted;
}

bool poll_op(struct op *op)
{
    ncclResult_t result = try_poll(op);
    if (result != ncclSuccess)
        failed("contract", "test of %s of %zu bytes returned %s", op->recv ? "an irecv" : "an isend", op->piece[0].size,
               result_name(result));
    return op->done;
}

static _Noreturn void late(const struct op *ops, size_t n)
{
    size_t open = 0;
    const struct op *first = NULL;
    for (size_t i = 0; i < n; i++) {
        if (ops[i].done) continue;
        open++;
        if (!first || (ops[i].posted && !first->posted)) first = ops + i;
    }
    double seconds = (double)d.timeout_ns * 1e-9;
    const char *what = first->recv ? "irecv" : "isend";
    if (!first->posted)
        failed("late", "%s of %zu bytes, tag %d, returned NULL %d times for %.3g s; %zu of %zu operations are done",
               what, first->piece[0].size, first->piece[0].tag, first->refused, seconds, n - open, n);
    failed("late",
           "test does not report %s %s of %d x %zu bytes, tag %d, as done for %.3g s; %zu of %zu operations are done",
           first->recv ? "an" : "an", what, first->n, first->piece[0].size, first->piece[0].tag, seconds, n - open, n);
}

void finish(struct op *ops, size_t n)
{
    struct patience p = patience();
    for (size_t open = n; open > 0;) {
        bool progress = false;
        void *full[2] = {NULL,
                         NULL}; /* comms that refused in this turn: later operations on them wait, to keep the order */
        open = 0;
        for (size_t i = 0; i < n; i++) {
            struct op *op = ops + i;
            if (op->done) continue;
            open++;
            if (!op->posted) {
                if (op->comm == full[0] || op->comm == full[1]) continue;
                if (post(op))
                    progress = true;
                else
                    full[full[0] != NULL] = op->comm;
            }
            if (op->posted && poll_op(op)) progress = true;
        }
        if (progress)
            p.last = psm_clock_ns();
        else if (open && too_long(&p))
            late(ops, n);
    }
}

/* ---- connections ---- */

void exchange_handles(const char *name, int to, int from, const void *mine, void *theirs)
{
    uint8_t all_mine[NCCL_NET_HANDLE_MAXSIZE], all_theirs[NCCL_NET_HANDLE_MAXSIZE];
    void *out[MAX_RANKS] = {NULL}, *in[MAX_RANKS] = {NULL};
    size_t n[MAX_RANKS], got[MAX_RANKS];
    for (int i = 0; i < d.ranks; i++) n[i] = sizeof all_mine;
    memcpy(all_mine, mine, sizeof all_mine);
    out[to] = all_mine;
    in[from] = all_theirs;
    lab_exchange(name, out, in, n, got);
    if (got[from] != sizeof all_theirs) left();
    memcpy(theirs, all_theirs, sizeof all_theirs);
}

void *listen_on(int which, int dev, void *handle)
{
    /* In a block of its own, overwritten and freed at once: NCCL copies the handle to other ranks, and the plugin must
     * not read it again. */
    size_t room = NCCL_NET_HANDLE_MAXSIZE, limit = d.version == 4 ? NCCL_NET_HANDLE_MAXSIZE_V4 : room;
    uint8_t *block = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) failed("contract", "psm_net_drive has no memory");
    memset(block, GUARD_BYTE, 4096);
    void *listener = NULL;
    ncclResult_t result = t_listen(which, dev, block, &listener);
    if (result != ncclSuccess) failed("contract", "listen on device %d returned %s", dev, result_name(result));
    if (!listener) failed("contract", "listen on device %d returned success but no listenComm", dev);
    for (size_t i = limit; i < 4096; i++)
        if (block[i] != GUARD_BYTE)
            failed("contract", "listen wrote byte %zu of the handle; NCCL has room for %zu with this version", i,
                   limit);
    memset(block + limit, 0, room - limit);
    memcpy(handle, block, room);
    munmap(block, 4096);
    return listener;
}

void connect_both(int which, int dev, void *handle, void **send, void *listener, void **recv)
{
    struct patience p = patience();
    while ((send && !*send) || (recv && !*recv)) {
        ncclResult_t result;
        if (send && !*send && (result = t_connect(which, dev, handle, send)) != ncclSuccess)
            failed("contract", "connect returned %s", result_name(result));
        if (recv && !*recv && (result = t_accept(listener, recv)) != ncclSuccess)
            failed("contract", "accept returned %s", result_name(result));
        if (too_long(&p))
            failed("late", "%s%s%s returned no comm for %.3g s", send && !*send ? "connect" : "",
                   send && !*send && recv && !*recv ? " and " : "", recv && !*recv ? "accept" : "",
                   (double)d.timeout_ns * 1e-9);
    }
}

struct lane lane_open_in(int which, int dev, size_t room)
{
    struct lane l = {.to = (d.rank + 1) % d.ranks, .from = (d.rank + d.ranks - 1) % d.ranks};
    _Alignas(16) uint8_t mine[NCCL_NET_HANDLE_MAXSIZE], theirs[NCCL_NET_HANDLE_MAXSIZE];
    l.listener = listen_on(which, dev, mine);
    exchange_handles("handles", l.from, l.to, mine, theirs);
    if (d.version == 4) {
        /* Both may block until the other side is there: one connection after the other, in ring order. */
        for (int at = 0; at < d.ranks; at++) {
            if (at == d.rank) connect_both(which, dev, theirs, &l.send, NULL, NULL);
            if ((at + 1) % d.ranks == d.rank) connect_both(which, dev, NULL, NULL, l.listener, &l.recv);
        }
    } else {
        connect_both(which, dev, theirs, &l.send, l.listener, &l.recv);
    }
    l.out = arena_of(l.send, room);
    l.in = arena_of(l.recv, room);
    return l;
}

struct lane lane_open(int dev, size_t room)
{
    return lane_open_in(0, dev, room);
}

/* Others may still receive what this rank has sent: check_close closes earlier than they end. */
void lane_close(struct lane *l)
{
    ncclResult_t result;
    meet();
    arena_free(&l->out);
    arena_free(&l->in);
    if ((result = t_close_send(l->send)) != ncclSuccess)
        failed("contract", "closeSend returned %s", result_name(result));
    if ((result = t_close_recv(l->recv)) != ncclSuccess)
        failed("contract", "closeRecv returned %s", result_name(result));
    if ((result = t_close_listen(l->listener)) != ncclSuccess)
        failed("contract", "closeListen returned %s", result_name(result));
}

void loopback(void **listener, void **send, void **recv)
{
    _Alignas(16) uint8_t handle[NCCL_NET_HANDLE_MAXSIZE];
    *send = *recv = NULL;
    *listener = listen_on(0, 0, handle);
    connect_both(0, 0, handle, send, *listener, recv);
}
