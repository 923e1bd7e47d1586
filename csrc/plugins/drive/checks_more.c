/* Registrations, GPU memory, threads, and the end of connections. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "drive.h"

/* ---- registrations ---- */

/* Many at a time, unaligned, overlapping, small; deregistered in another order than registered. */
static void check_reg(void)
{
    enum { N = 48, ROOM = 1 << 18 };
    struct lane l = lane_open(0, ROOM);
    void *mhandle[2][N];
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < N; i++)
            ok(t_reg(side ? l.recv : l.send, (side ? l.in.base : l.out.base) + i * 37, i ? (size_t)i * 4001 : 1,
                     NCCL_PTR_HOST, &mhandle[side][i]),
               "regMr of a part of a buffer that is registered");
    for (int i = 0; i < N; i++)
        for (int side = 0; side < 2; side++) ok(t_dereg(side ? l.recv : l.send, mhandle[side][(i * 7) % N]), "deregMr");
    /* The registrations of the whole buffer are still valid. */
    struct op *ops = ops_of(2);
    recv_into(&ops[0], l.recv, &l.in, 50000, 1);
    send_into(&ops[1], l.send, &l.out, 50000, 1, seed_of(d.rank, l.to, 1));
    finish(ops, 2);
    compare(&ops[0].piece[0], 50000, seed_of(l.from, d.rank, 1), "a message after others were deregistered");
    lane_close(&l);
}

/* NCCL registers a whole allocation and sends from, and receives into, the middle of it. */
static void check_offset(void)
{
    enum { N = 30 };
    struct lane l = lane_open(0, 1 << 20);
    struct op *ops = ops_of(2 * N);
    l.in.used = 8 * 1111, l.out.used = 8 * 777;
    for (int i = 0; i < N; i++) {
        l.in.used += (size_t)(i * 8), l.out.used += (size_t)(i * 24);
        recv_into(&ops[2 * i], l.recv, &l.in, 5001, 1);
        send_into(&ops[2 * i + 1], l.send, &l.out, 5001, 1, seed_of(d.rank, l.to, (uint64_t)i));
    }
    finish(ops, 2 * N);
    for (int i = 0; i < N; i++)
        compare(&ops[2 * i].piece[0], 5001, seed_of(l.from, d.rank, (uint64_t)i), "in the middle of a registration");
    lane_close(&l);
}

/* With regIsGlobal NCCL registers a buffer once, over a connection to itself, then again at an offset for each
 * connection that uses it. It expects the second registration to be free, and to outlive the first. */
static void check_global(void)
{
    if (!d.props.regIsGlobal) {
        skipped("regIsGlobal is 0");
        return;
    }
    enum { ROOM = 1 << 19, AT = 4096 * 5, SIZE = 70000 };
    void *listener, *send, *recv, *whole[2], *part[2];
    loopback(&listener, &send, &recv);
    struct lane l = lane_open(0, ROOM);
    uint8_t *base[2] = {l.out.base, l.in.base};
    for (int i = 0; i < 2; i++) ok(t_reg(send, base[i], ROOM, NCCL_PTR_HOST, &whole[i]), "regMr over a loopback");
    for (int round = 0; round < 3; round++) {
        /* 0: the handle of the whole; 1: registered again; 2: the first is deregistered */
        for (int i = 0; i < 2 && round == 1; i++)
            ok(t_reg(i ? l.recv : l.send, base[i] + AT, ROOM - AT, NCCL_PTR_HOST, &part[i]), "regMr at an offset");
        for (int i = 0; i < 2 && round == 2; i++) ok(t_dereg(send, whole[i]), "deregMr of the global registration");
        struct op *ops = ops_of(2);
        arena_reset(&l.in);
        arena_reset(&l.out);
        l.in.used = l.out.used = AT;
        recv_into(&ops[0], l.recv, &l.in, SIZE, 1);
        send_into(&ops[1], l.send, &l.out, SIZE, 1, seed_of(d.rank, l.to, (uint64_t)round));
        ops[0].piece[0].mhandle = round ? part[1] : whole[1];
        ops[1].piece[0].mhandle = round ? part[0] : whole[0];
        finish(ops, 2);
        compare(&ops[0].piece[0], SIZE, seed_of(l.from, d.rank, (uint64_t)round),
                round == 0   ? "with a registration of another connection"
                : round == 1 ? "with a second registration at an offset"
                             : "after the first of two registrations was deregistered");
        free(ops);
    }
    ok(t_dereg(l.send, part[0]), "deregMr");
    ok(t_dereg(l.recv, part[1]), "deregMr");
    lane_close(&l);
    ok(t_close_send(send), "closeSend");
    ok(t_close_recv(recv), "closeRecv");
    ok(t_close_listen(listener), "closeListen");
}

/* ---- GPU memory ---- */

static struct {
    void *runtime, *driver;
    int (*set_device)(int), (*allocate)(void **, size_t), (*release)(void *),
        (*copy)(void *, const void *, size_t, int);
    int (*range)(void *, uintptr_t, size_t, int, unsigned long long);
} cuda;

/* False: skipped; the reason is reported. */
static bool cuda_there(void)
{
    if (!(d.props.ptrSupport & NCCL_PTR_CUDA)) {
        skipped("ptrSupport 0x%x has no NCCL_PTR_CUDA", d.props.ptrSupport);
        return false;
    }
    if (!d.cuda || !*d.cuda) {
        skipped("no CUDA: --cuda libcudart.so.12");
        return false;
    }
    if (cuda.runtime) return true;
    cuda.runtime = dlopen(d.cuda, RTLD_NOW | RTLD_GLOBAL);
    if (!cuda.runtime) {
        skipped("%s", dlerror());
        return false;
    }
    *(void **)&cuda.set_device = dlsym(cuda.runtime, "cudaSetDevice");
    *(void **)&cuda.allocate = dlsym(cuda.runtime, "cudaMalloc");
    *(void **)&cuda.release = dlsym(cuda.runtime, "cudaFree");
    *(void **)&cuda.copy = dlsym(cuda.runtime, "cudaMemcpy");
    if (!cuda.set_device || !cuda.allocate || !cuda.release || !cuda.copy) {
        cuda.runtime = NULL;
        skipped("%s is not a CUDA runtime", d.cuda);
        return false;
    }
    int error = cuda.set_device(0);
    if (error) {
        cuda.runtime = NULL;
        skipped("cudaSetDevice(0) returned %d", error);
        return false;
    }
    return true;
}

enum { CUDA_ROOM = 1 << 20, CUDA_SIZE = 300000, CUDA_COPIES = 4 };

/* Sends from GPU memory into GPU memory; the receive is flushed, as NCCL does before a kernel reads it. */
static void cuda_message(struct lane *l, void *out, void *out_mr, void *in, void *in_mr, uint64_t number)
{
    struct op *ops = ops_of(2);
    uint8_t *host = malloc(CUDA_SIZE + 2 * GUARD);
    fill(host, CUDA_SIZE, seed_of(d.rank, l->to, number));
    if (cuda.copy(out, host, CUDA_SIZE, CUDA_COPIES)) failed("contract", "psm_net_drive's cudaMemcpy failed");
    ops[0] = (struct op){.recv = true, .n = 1, .comm = l->recv};
    ops[0].piece[0] = (struct piece){.data = in, .size = CUDA_SIZE, .tag = 2, .mhandle = in_mr};
    ops[1] = (struct op){.n = 1, .comm = l->send};
    ops[1].piece[0] = (struct piece){.data = out, .size = CUDA_SIZE, .tag = 2, .mhandle = out_mr};
    finish(ops, 2);
    void *request = NULL;
    ok(t_iflush(l->recv, in, CUDA_SIZE, in_mr, &request), "iflush");
    if (request == (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION)
        failed("contract", "iflush returned the request (void *)1");
    struct patience p = patience();
    for (int done = request == NULL; !done;) { /* For NCCL NULL means: nothing to flush */
        ok(t_test(request, &done, NULL), "test of an iflush");
        if (!done && too_long(&p))
            failed("late", "test does not report an iflush as done for %.3g s", (double)d.timeout_ns * 1e-9);
    }
    memset(host, 0xE7, CUDA_SIZE + 2 * GUARD);
    if (cuda.copy(host + GUARD, in, CUDA_SIZE, CUDA_COPIES)) failed("contract", "psm_net_drive's cudaMemcpy failed");
    struct piece seen = {.data = host + GUARD, .size = CUDA_SIZE, .got = ops[0].piece[0].got};
    compare(&seen, CUDA_SIZE, seed_of(l->from, d.rank, number), "a message between GPUs");
    free(host);
    free(ops);
}

static void check_cuda(void)
{
    if (!cuda_there()) return;
    struct lane l = lane_open(0, 4096);
    void *memory[2], *mhandle[2];
    for (int i = 0; i < 2; i++) {
        if (cuda.allocate(&memory[i], CUDA_ROOM)) failed("contract", "psm_net_drive's cudaMalloc failed");
        ok(t_reg(i ? l.recv : l.send, memory[i], CUDA_ROOM, NCCL_PTR_CUDA, &mhandle[i]), "regMr of GPU memory");
    }
    for (uint64_t number = 0; number < 3; number++)
        cuda_message(&l, (char *)memory[0] + 512 * number, mhandle[0], (char *)memory[1] + 1024 * number, mhandle[1],
                     number);
    for (int i = 0; i < 2; i++) {
        ok(t_dereg(i ? l.recv : l.send, mhandle[i]), "deregMr of GPU memory");
        cuda.release(memory[i]);
    }
    lane_close(&l);
}

static void check_dmabuf(void)
{
    if (!(d.props.ptrSupport & NCCL_PTR_DMABUF)) {
        skipped("ptrSupport 0x%x has no NCCL_PTR_DMABUF", d.props.ptrSupport);
        return;
    }
    if (!cuda_there()) return;
    /* Next to the runtime, for the emulated one; the real one is on the system's path. */
    char beside[4096];
    const char *slash = strrchr(d.cuda, '/');
    snprintf(beside, sizeof beside, "%.*slibcuda.so.1", slash ? (int)(slash + 1 - d.cuda) : 0, d.cuda);
    if (!cuda.driver) cuda.driver = dlopen(beside, RTLD_NOW | RTLD_GLOBAL);
    if (!cuda.driver) cuda.driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (cuda.driver) *(void **)&cuda.range = dlsym(cuda.driver, "cuMemGetHandleForAddressRange");
    if (!cuda.range) {
        skipped("no cuMemGetHandleForAddressRange in libcuda.so.1");
        return;
    }
    struct lane l = lane_open(0, 4096);
    void *memory[2], *mhandle[2];
    int fds[2] = {-1, -1};
    for (int i = 0; i < 2; i++) {
        if (cuda.allocate(&memory[i], CUDA_ROOM)) failed("contract", "psm_net_drive's cudaMalloc failed");
        int error = cuda.range(&fds[i], (uintptr_t)memory[i], CUDA_ROOM, 1 /* a descriptor of a DMA-BUF */, 0);
        if (error) {
            skipped("cuMemGetHandleForAddressRange returned %d", error);
            lane_close(&l);
            return;
        }
        ok(t_reg_dmabuf(i ? l.recv : l.send, memory[i], CUDA_ROOM, NCCL_PTR_CUDA, 0, fds[i], &mhandle[i]),
           "regMrDmaBuf");
        close(fds[i]); /* as NCCL does: the plugin has its own reference */
    }
    cuda_message(&l, memory[0], mhandle[0], memory[1], mhandle[1], 9);
    for (int i = 0; i < 2; i++) {
        ok(t_dereg(i ? l.recv : l.send, mhandle[i]), "deregMr of a DMA-BUF");
        cuda.release(memory[i]);
    }
    lane_close(&l);
}

/* ---- threads and contexts ---- */

static void *thread_moves(void *lane)
{
    struct lane *l = lane;
    struct op *ops = ops_of(2);
    recv_into(&ops[0], l->recv, &l->in, 20000, 1);
    send_into(&ops[1], l->send, &l->out, 20000, 1, seed_of(d.rank, l->to, 11));
    finish(ops, 2);
    compare(&ops[0].piece[0], 20000, seed_of(l->from, d.rank, 11), "a message that another thread moves");
    free(ops);
    return NULL;
}

static void *thread_closes(void *lane)
{
    lane_close(lane);
    return NULL;
}

/* NCCL connects and registers on one thread of the proxy, moves data on another, and closes on whichever is last. */
static void check_threads(void)
{
    struct lane l = lane_open(0, 1 << 16);
    void *(*const work[])(void *) = {thread_moves, thread_closes};
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work[i], &l) != 0) failed("contract", "psm_net_drive cannot start a thread");
        pthread_join(thread, NULL);
    }
}

/* Two communicators at a time; the second is destroyed while the first is in use, and created again. */
static void check_contexts(void)
{
    for (int round = 0; round < 2; round++) {
        ok(t_init(1, 0xc0ffee + (uint64_t)round), "init of a second communicator");
        struct lane first = lane_open_in(0, 0, 1 << 16), second = lane_open_in(1, 0, 1 << 16);
        struct lane *const lanes[2] = {&first, &second};
        struct op *ops = ops_of(4);
        for (int i = 0; i < 2; i++) {
            recv_into(&ops[2 * i], lanes[i]->recv, &lanes[i]->in, 3000, 1);
            send_into(&ops[2 * i + 1], lanes[i]->send, &lanes[i]->out, 3000, 1,
                      seed_of(d.rank, first.to, 20 + (uint64_t)i));
        }
        finish(ops, 4);
        for (int i = 0; i < 2; i++)
            compare(&ops[2 * i].piece[0], 3000, seed_of(first.from, d.rank, 20 + (uint64_t)i),
                    "one of two communicators");
        lane_close(&second);
        ok(t_finalize(1), "finalize of the second communicator");
        d.context[1] = NULL;
        forget_requests();
        ops[0] = (struct op){0};
        recv_into(&ops[0], first.recv, &first.in, 4000, 1);
        send_into(&ops[1], first.send, &first.out, 4000, 1, seed_of(d.rank, first.to, 30));
        finish(ops, 2);
        compare(&ops[0].piece[0], 4000, seed_of(first.from, d.rank, 30), "after another communicator has ended");
        lane_close(&first);
        free(ops);
        first = lane_open(0, 4096);
        lane_close(&first);
        meet();
    }
    if (t_has_net_attr()) ok(t_set_net_attr(), "setNetAttr with nothing set");
}

/* ---- the end ---- */

static void close_one(struct lane *l, int which)
{
    if (which == 0) {
        arena_free(&l->out);
        ok(t_close_send(l->send), "closeSend");
    } else if (which == 1) {
        arena_free(&l->in);
        ok(t_close_recv(l->recv), "closeRecv");
    } else {
        ok(t_close_listen(l->listener), "closeListen");
    }
}

/* All orders of the three; a rank closes in another order than its neighbour, and each step is at the same time or, in
 * the second half, one rank after the other. */
static void check_close(void)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int round = 0; round < 12; round++) {
        struct lane l = lane_open(0, 1 << 16);
        struct op *ops = ops_of(2);
        recv_into(&ops[0], l.recv, &l.in, 2000, 1);
        send_into(&ops[1], l.send, &l.out, 2000, 1, seed_of(d.rank, l.to, (uint64_t)round));
        if (round % 4 != 3) { /* else: closed without a transfer */
            finish(ops, 2);
            compare(&ops[0].piece[0], 2000, seed_of(l.from, d.rank, (uint64_t)round), "a message before the end");
        }
        const int *order = orders[(round + d.rank) % 6];
        for (int i = 0; i < 3; i++) {
            if (round >= 6 && (d.rank + i) % 2) meet();
            close_one(&l, order[i]);
            if (round >= 6 && (d.rank + i) % 2 == 0) meet();
        }
        free(ops);
        meet();
    }
}

/* What test has reported as done arrives, although the sender closes at once. */
static void check_close_after_send(void)
{
    struct lane l = lane_open(0, 1 << 19);
    struct op *ops = ops_of(8);
    /* First this rank sends everything, as far as the plugin accepts it, and closes; then it receives. */
    bool even = d.rank % 2 == 0;
    if (d.ranks % 2) {
        skipped("%d ranks: the check needs an even number", d.ranks);
        lane_close(&l);
        return;
    }
    for (int half = 0; half < 2; half++) {
        if (even == (half == 0)) {
            for (int i = 0; i < 4; i++)
                send_into(&ops[i], l.send, &l.out, 30000, 1, seed_of(d.rank, l.to, (uint64_t)i));
            finish(ops, 4);
            arena_free(&l.out);
            ok(t_close_send(l.send), "closeSend");
        } else {
            for (int i = 0; i < 4; i++) recv_into(&ops[4 + i], l.recv, &l.in, 30000, 1);
            struct patience p = patience();
            for (int i = 0; i < 4; i++)
                while (!post(&ops[4 + i]))
                    if (too_long(&p)) failed("late", "irecv returns NULL with %d in flight", i);
            finish(ops + 4, 4);
            for (int i = 0; i < 4; i++)
                compare(&ops[4 + i].piece[0], 30000, seed_of(l.from, d.rank, (uint64_t)i),
                        "a message before closeSend");
            arena_free(&l.in);
            ok(t_close_recv(l.recv), "closeRecv");
        }
    }
    ok(t_close_listen(l.listener), "closeListen");
}

int entries(const char *folder)
{
    int n = 0;
    DIR *dir = opendir(folder);
    if (!dir) failed("contract", "psm_net_drive cannot read %s", folder);
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static void describe_fds(char *text, size_t room)
{
    DIR *dir = opendir("/proc/self/fd");
    size_t at = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[300], target[120];
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n <= 0 || e->d_name[0] == '.') continue;
        target[n] = 0;
        if (at < room) at += (size_t)snprintf(text + at, room - at, "%s%s", at ? ", " : "", target);
    }
    if (dir) closedir(dir);
}

static void one_life(void)
{
    struct lane l = lane_open(0, 1 << 16);
    struct op *ops = ops_of(2);
    recv_into(&ops[0], l.recv, &l.in, 1000, 1);
    send_into(&ops[1], l.send, &l.out, 1000, 1, seed_of(d.rank, l.to, 1));
    finish(ops, 2);
    lane_close(&l);
    free(ops);
    meet();
}

/* A first life may allocate what serves all; further ones must leave nothing behind. */
static void check_leaks(void)
{
    enum { LIVES = 4 };
    one_life();
    int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task"), fds_now, threads_now;
    for (int i = 0; i < LIVES; i++) one_life();
    struct patience p = patience();
    /* A thread that is ending may need a moment. */
    while (fds_now = entries("/proc/self/fd"), threads_now = entries("/proc/self/task"),
           fds_now > fds || threads_now > threads) {
        if (!too_long(&p)) continue;
        char text[500] = "";
        describe_fds(text, sizeof text);
        if (fds_now > fds)
            failed("leak", "%d descriptors more after %d connections were opened and closed: %s", fds_now - fds, LIVES,
                   text);
        failed("leak", "%d threads more after %d connections were opened and closed", threads_now - threads, LIVES);
    }
}

static void check_finalize(void)
{
    ok(t_finalize(0), "finalize");
    ok(t_init(0, 0x5eed2), "init after finalize");
    struct lane l = lane_open(0, 4096);
    lane_close(&l);
    meet();
    ok(t_finalize(0), "finalize");
    d.finalized = true;
}

static bool still_mapped(void)
{
    char line[4400];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && !found && fgets(line, sizeof line, maps)) found = strstr(line, d.path) != NULL;
    if (maps) fclose(maps);
    return found;
}

/* NCCL closes the library when its last communicator is destroyed. Threads of the plugin must have ended by then. */
static void check_unload(void)
{
    if (d.version >= 11 && !d.finalized) ok(t_finalize(0), "finalize");
    strcpy(d.slots[d.rank].call, "dlclose");
    if (dlclose(d.library) != 0) failed("contract", "dlclose: %s", dlerror());
    d.library = d.table = NULL;
    if (still_mapped()) {
        note("it stays loaded");
        return;
    }
    /* Threads started by a CUDA runtime are not the plugin's. */
    struct patience p = patience();
    while (!cuda.runtime && entries("/proc/self/task") > d.threads)
        if (too_long(&p))
            failed("leak", "%d threads of the library are still running, but their code is unmapped",
                   entries("/proc/self/task") - d.threads);
}

const struct check more_checks[] = {
    {"reg", check_reg, 4},
    {"offset", check_offset, 4},
    {"global", check_global, 8},
    {"cuda", check_cuda, 4},
    {"dmabuf", check_dmabuf, 6},
    {"threads", check_threads, 4},
    {"contexts", check_contexts, 11},
    {"close", check_close, 4},
    {"close-after-send", check_close_after_send, 4},
    {"leaks", check_leaks, 4},
    {"finalize", check_finalize, 11},
    {"unload", check_unload, 4},
    {NULL, NULL, 0},
};
