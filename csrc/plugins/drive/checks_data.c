/* Messages: sizes, groups and tags, order, requests in flight, retries. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "bootstrap.h"
#include "drive.h"

enum { LARGEST = 4 << 20 };

static void check_sizes(void)
{
    static const size_t sizes[] = {1,    2,    3,    7,    8,     9,     63,    64,     65,     511,     4095,
                                   4096, 4097, 8191, 9000, 16385, 65535, 65536, 131073, 524288, 1048573, LARGEST};
    enum { N = sizeof sizes / sizeof sizes[0] };
    struct lane l = lane_open(0, LARGEST + 4096);
    struct op *ops = ops_of(2);
    for (int i = 0; i < N; i++) {
        arena_reset(&l.in);
        arena_reset(&l.out);
        ops[0] = (struct op){0};
        recv_into(&ops[0], l.recv, &l.in, sizes[i], i);
        send_into(&ops[1], l.send, &l.out, sizes[i], i, seed_of(d.rank, l.to, (uint64_t)i));
        finish(ops, 2);
        compare(&ops[0].piece[0], sizes[i], seed_of(l.from, d.rank, (uint64_t)i), "a message");
    }
    note("%d sizes up to %d MiB", N, LARGEST >> 20);
    lane_close(&l);
}

/* n messages one after the other, all posted as fast as the plugin accepts them; sizes differ by `less` from what is
 * posted. */
static void stream(struct lane *l, size_t n, size_t (*posted)(size_t), size_t (*sent)(size_t), const char *what)
{
    struct op *ops = ops_of(2 * n);
    for (size_t i = 0; i < n; i++) {
        recv_into(&ops[2 * i], l->recv, &l->in, posted(i), 5);
        send_into(&ops[2 * i + 1], l->send, &l->out, sent(i), 5, seed_of(d.rank, l->to, i));
    }
    finish(ops, 2 * n);
    for (size_t i = 0; i < n; i++) {
        char text[80];
        snprintf(text, sizeof text, "message %zu of %zu%s", i, n, what);
        compare(&ops[2 * i].piece[0], sent(i), seed_of(l->from, d.rank, i), text);
    }
    free(ops);
}

static size_t odd_even(size_t i)
{
    return i % 3 == 1 ? 0 : i % 3 == 2 ? 77 : 1000;
}

static size_t zero_or_room(size_t i)
{
    return i % 3 == 1 ? (i % 2 ? 0 : 500) : odd_even(i);
}

static void check_zero(void)
{
    struct lane l = lane_open(0, 1 << 16);
    stream(&l, 18, zero_or_room, odd_even, ", some of 0 bytes");
    lane_close(&l);
}

static size_t roomy(size_t i)
{
    return 3000 + 211 * i;
}

static size_t less(size_t i)
{
    return i % 4 == 0 ? 1 : i % 4 == 1 ? 2999 + 211 * i : 13 * i;
}

static void shorter_group(struct lane *l)
{
    int n = d.max_recvs;
    struct op *ops = ops_of(1 + (size_t)n);
    arena_reset(&l->in);
    arena_reset(&l->out);
    for (int i = 0; i < n; i++) recv_into(&ops[0], l->recv, &l->in, 2000, i);
    for (int i = 0; i < n; i++)
        send_into(&ops[1 + i], l->send, &l->out, 100 + (size_t)i, i, seed_of(d.rank, l->to, (uint64_t)i));
    finish(ops, 1 + (size_t)n);
    for (int i = 0; i < n; i++)
        compare(&ops[0].piece[i], 100 + (size_t)i, seed_of(l->from, d.rank, (uint64_t)i), "a slot of an irecv");
    free(ops);
}

static void check_shorter(void)
{
    struct lane l = lane_open(0, 1 << 18);
    d.check_sizes = true;
    stream(&l, 24, roomy, less, ", all shorter than posted");
    arena_reset(&l.in);
    arena_reset(&l.out);
    stream(&l, 18, zero_or_room, odd_even, ", some of 0 bytes");
    if (d.version > 4 && d.max_recvs > 1) shorter_group(&l);
    d.check_sizes = false;
    lane_close(&l);
}

/* NCCL tests the oldest request of a connection with maxRecvs 1. Others may be tested all the same, says net.h. */
static void check_test_order(void)
{
    enum { N = 4 };
    if (d.max_recvs > 1) {
        skipped("maxRecvs is %d: all checks test in any order, as NCCL does", d.max_recvs);
        return;
    }
    struct lane l = lane_open(0, 1 << 16);
    struct op *ops = ops_of(2 * N);
    for (int i = 0; i < N; i++) recv_into(&ops[i], l.recv, &l.in, 500, 5);
    for (int i = 0; i < N; i++) send_into(&ops[N + i], l.send, &l.out, 500, 5, seed_of(d.rank, l.to, (uint64_t)i));
    d.any_order = true;
    struct patience p = patience();
    for (int open = 2 * N; open;) {
        open = 0;
        for (int i = 0; i < 2 * N; i++)
            if (!ops[i].posted && (!(i % N) || ops[i - 1].posted)) (void)post(&ops[i]);
        for (int i = 2 * N - 1; i >= 0; i--)
            if (!ops[i].done && (!ops[i].posted || !poll_op(&ops[i]))) open++;
        if (open && too_long(&p))
            failed("late", "%d of %d requests, tested from the newest to the oldest, are not done", open, 2 * N);
    }
    d.any_order = false;
    for (int i = 0; i < N; i++)
        compare(&ops[i].piece[0], 500, seed_of(l.from, d.rank, (uint64_t)i), "a message tested in another order");
    lane_close(&l);
}

static size_t falling(size_t i)
{
    return i % 7 == 0 ? 200000 : 64 + (i * 37) % 500;
}

static size_t most(size_t i)
{
    (void)i;
    return 200000;
}

static void check_order(void)
{
    struct lane l = lane_open(0, 96u * 210000u);
    stream(&l, 90, most, falling, "");
    lane_close(&l);
}

/* NCCL cannot continue after this; what matters is that an error is reported, and that no memory is overwritten. */
static void check_longer(void)
{
    struct lane l = lane_open(0, 1 << 17);
    struct op *ops = ops_of(2);
    struct patience p = patience();
    recv_into(&ops[0], l.recv, &l.in, 1000, 3);
    send_into(&ops[1], l.send, &l.out, 5000, 3, seed_of(d.rank, l.to, 1));
    /* The plugin may choose which side reports it, and a sender whose bytes are on their way may see no error: continue
     * until the receive has ended, or this rank's own send has failed. */
    bool error[2] = {false, false};
    while (!(ops[0].done || error[0]) && !error[1]) {
        for (int i = 0; i < 2; i++) {
            if (error[i] || ops[i].done) continue;
            ncclResult_t result = ops[i].posted ? try_poll(&ops[i]) : try_post(&ops[i]);
            if (result != ncclSuccess) error[i] = true;
        }
        if (too_long(&p)) break;
    }
    /* What each rank saw, in ring order: the send to this rank was its predecessor's. */
    uint8_t mine = (uint8_t)(error[0] | error[1] << 1 | ops[0].done << 2), all[MAX_RANKS];
    bool there[MAX_RANKS];
    lab_gather("longer", &mine, 1, all, there);
    bool anybody = false;
    for (int r = 0; r < d.ranks; r++) {
        if (!there[r]) left();
        anybody |= (all[r] & 3) != 0;
    }
    if (ops[0].done && !anybody) {
        compare(&ops[0].piece[0], ops[0].piece[0].got > 1000 ? 1000 : ops[0].piece[0].got, seed_of(l.from, d.rank, 1),
                "a message longer than posted");
        failed(
            "truncated",
            "5000 bytes were sent to an irecv of 1000: test reports %zu received bytes, and neither side has an error",
            ops[0].piece[0].got);
    }
    if (!anybody)
        failed("late", "5000 bytes were sent to an irecv of 1000: no error on either side, and no completion");
    const uint8_t *data = ops[0].piece[0].data;
    for (int i = 0; i < GUARD; i++)
        if (data[1000 + i] != data[-1]) failed("data", "an irecv of 1000 bytes overwrote byte %d beyond", i);
    meet();
    /* The connection is broken now; close it anyway. */
    (void)t_dereg(l.out.comm, l.out.mhandle);
    (void)t_dereg(l.in.comm, l.in.mhandle);
    (void)t_close_send(l.send);
    (void)t_close_recv(l.recv);
    (void)t_close_listen(l.listener);
}

/* ---- groups ---- */

static bool no_groups(void)
{
    if (d.max_recvs == 1) skipped("maxRecvs is 1");
    return d.max_recvs == 1;
}

static int tag_of(int slot)
{
    return 0x100 + slot * 3;
}

/* Groups of each size; the sends of a group are in another order, some shorter than posted. */
static void check_group(void)
{
    if (no_groups()) return;
    int n = d.max_recvs;
    struct lane l = lane_open(0, 1 << 22);
    for (int k = 1; k <= n; k++) {
        struct op *ops = ops_of(1 + (size_t)k);
        arena_reset(&l.in);
        arena_reset(&l.out);
        for (int i = 0; i < k; i++) recv_into(&ops[0], l.recv, &l.in, 2000 + 100 * (size_t)i, tag_of(i));
        for (int i = 0; i < k; i++) {
            int slot = (i * 5 + k) % k;
            for (int j = 0; j < i; j++) /* 5 and k may have a common divisor */
                if (ops[1 + j].piece[0].tag == tag_of(slot)) slot = (slot + 1) % k, j = -1;
            size_t size = slot % 3 ? 1500 + (size_t)slot : 2000 + 100 * (size_t)slot;
            send_into(&ops[1 + i], l.send, &l.out, size, tag_of(slot), seed_of(d.rank, l.to, (uint64_t)slot));
        }
        finish(ops, 1 + (size_t)k);
        for (int i = 0; i < k; i++) {
            char text[80];
            snprintf(text, sizeof text, "slot %d (tag %d) of an irecv of %d", i, tag_of(i), k);
            compare(&ops[0].piece[i], i % 3 ? 1500 + (size_t)i : 2000 + 100 * (size_t)i,
                    seed_of(l.from, d.rank, (uint64_t)i), text);
        }
        free(ops);
    }
    note("up to %d", n);
    lane_close(&l);
}

enum { POLLS = 2000 };

/* Two groups are posted; a send whose tag is only in the second must wait until the first is full. */
static void check_first_group(void)
{
    if (no_groups()) return;
    struct lane l = lane_open(0, 1 << 17);
    struct op *recvs = ops_of(2), *sends = ops_of(4);
    for (int g = 0; g < 2; g++)
        for (int i = 0; i < 2; i++) recv_into(&recvs[g], l.recv, &l.in, 800, 10 + 2 * g + i);
    struct patience p = patience();
    for (int g = 0; g < 2; g++)
        while (!post(&recvs[g]))
            if (too_long(&p)) failed("late", "irecv of two returns NULL: %d are in flight", g);
    /* The order of the sends: tags 12 and 13 of the second group, then 11 and 10 of the first. */
    static const int tags[4] = {12, 13, 11, 10};
    for (int i = 0; i < 4; i++)
        send_into(&sends[i], l.send, &l.out, 700 + (size_t)i, tags[i], seed_of(d.rank, l.to, (uint64_t)tags[i]));
    meet();
    for (int t = 0; t < POLLS;
         t++) { /* NULL until its group is the first, or accepted and held back: both are correct */
        for (int i = 0; i < 2; i++)
            if (!sends[i].posted) (void)post(&sends[i]);
        for (int g = 0; g < 2; g++)
            if (poll_op(&recvs[g]))
                failed("contract", "%s posted irecv is done; only messages with tags of the second were sent",
                       g ? "the second" : "the first");
        for (int i = 0; i < 2; i++)
            if (sends[i].posted && !sends[i].done) (void)poll_op(&sends[i]);
    }
    meet();
    p = patience();
    for (size_t open = 6; open;) {
        open = 0;
        for (int i = 2; i < 6; i++) { /* 11, 10, 12, 13 */
            struct op *op = &sends[i % 4];
            if (!op->posted && !post(op)) {
                open++;
                continue;
            }
            if (!op->done && !poll_op(op)) open++;
        }
        for (int g = 0; g < 2; g++) {
            if (recvs[g].done || poll_op(&recvs[g])) continue;
            open++;
        }
        if (open && too_long(&p)) failed("late", "%zu of 6 operations of two groups are not done", open);
    }
    for (int g = 0; g < 2; g++)
        for (int i = 0; i < 2; i++) {
            char text[80];
            int tag = 10 + 2 * g + i, k = tag == 12 ? 0 : tag == 13 ? 1 : tag == 11 ? 2 : 3;
            snprintf(text, sizeof text, "slot %d (tag %d) of the %s irecv", i, tag, g ? "second" : "first");
            compare(&recvs[g].piece[i], 700 + (size_t)k, seed_of(l.from, d.rank, (uint64_t)tag), text);
        }
    lane_close(&l);
}

/* Many groups with the same tags: in each the sends are in another order, and none may go to a later group. */
static void check_same_tags(void)
{
    if (no_groups()) return;
    enum { GROUPS = 12 };
    int n = d.max_recvs < 4 ? d.max_recvs : 4;
    struct lane l = lane_open(0, 1 << 19);
    struct op *ops = ops_of((size_t)GROUPS * (1 + (size_t)n));
    size_t at = 0;
    for (int g = 0; g < GROUPS; g++) {
        struct op *group = &ops[at++];
        for (int i = 0; i < n; i++) recv_into(group, l.recv, &l.in, 600, 20 + i);
        for (int i = 0; i < n; i++, at++)
            send_into(&ops[at], l.send, &l.out, 500, 20 + (i + g) % n,
                      seed_of(d.rank, l.to, (uint64_t)(g * 100 + (i + g) % n)));
    }
    finish(ops, at);
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < n; i++) {
            char text[80];
            snprintf(text, sizeof text, "slot %d of irecv %d, all with the same %d tags", i, g, n);
            compare(&ops[g * (1 + n)].piece[i], 500, seed_of(l.from, d.rank, (uint64_t)(g * 100 + i)), text);
        }
    lane_close(&l);
}

/* ---- many at a time ---- */

/* As many as NCCL has buffers for: first the receives, then all sends, none of which is polled before all are accepted.
 */
static void check_in_flight(void)
{
    int k = d.version == 4 ? 1 : d.max_recvs, n = d.max_requests;
    size_t all = (size_t)n * (size_t)k, sent = 0, done = 0;
    struct lane l = lane_open(0, all * 512 + 8192);
    struct op *warm = ops_of(2), *recvs = ops_of((size_t)n), *sends = ops_of(all);
    recv_into(&warm[0], l.recv, &l.in, 8, 0);
    send_into(&warm[1], l.send, &l.out, 8, 0, 0);
    finish(warm, 2);
    struct patience p = patience();
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < k; j++) recv_into(&recvs[i], l.recv, &l.in, 320, j);
        while (!post(&recvs[i]))
            if (too_long(&p)) failed("late", "irecv returns NULL with %d in flight; %d must be possible", i, n);
    }
    meet();
    p = patience();
    while (sent < all) {
        struct op *op = &sends[sent];
        if (!op->n) send_into(op, l.send, &l.out, 300, (int)sent % k, seed_of(d.rank, l.to, sent));
        bool progress = post(op);
        sent += progress;
        for (int i = 0; i < n; i++) /* the receiving side continues: it is another connection */
            if (!recvs[i].done && poll_op(&recvs[i])) done++, progress = true;
        if (progress)
            p.last = psm_clock_ns();
        else if (too_long(&p))
            failed("late", "isend returns NULL with %zu in flight, %zu of %d irecvs done; %d x %d must be possible",
                   sent, done, n, n, k);
    }
    p = patience();
    for (size_t open = 1; open;) {
        bool progress = false;
        open = 0;
        for (int i = 0; i < n; i++)
            if (!recvs[i].done) open++, progress |= poll_op(&recvs[i]);
        for (size_t i = 0; i < all; i++)
            if (!sends[i].done) open++, progress |= poll_op(&sends[i]);
        if (progress)
            p.last = psm_clock_ns();
        else if (open && too_long(&p))
            failed("late", "%zu of %zu operations in flight are not done", open, all + (size_t)n);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < k; j++)
            compare(&recvs[i].piece[j], 300, seed_of(l.from, d.rank, (uint64_t)(i * k + j)), "one of all in flight");
    note("%d x %d", n, k);
    lane_close(&l);
}

enum { ATTEMPT_BYTES = 256, TO_REFUSE = 600, RETRY_ROOM = 600 };

/* Another number and another buffer after each refusal, while there is room. */
static bool attempt_send(struct lane *l, struct op *op, size_t number, uint32_t *attempt, size_t *refused)
{
    if (!op->n) send_into(op, l->send, &l->out, ATTEMPT_BYTES, 9, seed_of(d.rank, l->to, number << 16 | *attempt));
    if (post(op)) return true;
    if (++*refused > TO_REFUSE) return false;
    ++*attempt;
    send_into(op, l->send, &l->out, ATTEMPT_BYTES, 9, seed_of(d.rank, l->to, number << 16 | *attempt));
    return false;
}

static void finish_sends(struct op *sends, size_t n)
{
    for (struct patience p = patience();;) {
        size_t open = 0;
        for (size_t j = 0; j < n; j++)
            if (!sends[j].done && !poll_op(&sends[j])) open++;
        if (!open) return;
        if (too_long(&p)) failed("late", "%zu of %zu sends are not done, but all receives are", open, n);
    }
}

/* A NULL request means that nothing has happened: each attempt has another number in its data, and another buffer, and
 * the received data must be that of the accepted attempt. */
static void check_retry(void)
{
    size_t n = 3 * (size_t)d.max_requests, posted = 0, refused = 0;
    struct lane l = lane_open(0, (n + TO_REFUSE) * 512 + (n + TO_REFUSE) * (RETRY_ROOM + 200));
    struct op *sends = ops_of(n), *recvs = ops_of(n);
    uint32_t *attempt = calloc(n, sizeof *attempt), *theirs = calloc(n, sizeof *theirs);
    struct patience p = patience();
    d.over_limit = true; /* most plugins refuse none of those that NCCL posts */
    /* Nothing is received yet: post sends until the plugin refuses, or the limit is reached. */
    while (posted < n && refused < 100) {
        if (attempt_send(&l, &sends[posted], posted, &attempt[posted], &refused)) posted++;
        for (size_t j = 0; j < posted; j++)
            if (!sends[j].done) (void)poll_op(&sends[j]);
    }
    meet();
    size_t got = 0, recv_posted = 0;
    while (got < n || posted < n) {
        bool progress = false;
        if (posted < n && attempt_send(&l, &sends[posted], posted, &attempt[posted], &refused))
            posted++, progress = true;
        for (size_t j = 0; j < posted; j++)
            if (!sends[j].done) progress |= poll_op(&sends[j]);
        /* As many receives as are accepted, at most two for each completed one. */
        if (recv_posted < n && recv_posted < 2 * got + 1) {
            struct op *op = &recvs[recv_posted];
            recv_into(op, l.recv, &l.in, RETRY_ROOM, 9);
            if (post(op)) {
                recv_posted++, progress = true;
            } else {
                l.in.used -= (RETRY_ROOM + 2 * GUARD + 7) / 8 * 8;
                *op = (struct op){0};
            }
        }
        for (size_t j = got; j < recv_posted; j++)
            if (!recvs[j].done && poll_op(&recvs[j])) progress = true;
        while (got < recv_posted && recvs[got].done) got++;
        if (progress)
            p.last = psm_clock_ns();
        else if (too_long(&p))
            failed("late",
                   "%zu of %zu sends accepted, %zu of %zu receives done: an operation that was refused once is never "
                   "accepted or never done",
                   posted, n, got, n);
    }
    finish_sends(sends, n);
    void *out[MAX_RANKS] = {NULL}, *in[MAX_RANKS] = {NULL};
    size_t bytes[MAX_RANKS], came[MAX_RANKS];
    for (int r = 0; r < d.ranks; r++) bytes[r] = n * sizeof *attempt;
    out[l.to] = attempt, in[l.from] = theirs;
    lab_exchange("attempts", out, in, bytes, came);
    if (came[l.from] != bytes[l.from]) left();
    for (size_t i = 0; i < n; i++) {
        char text[120];
        snprintf(text, sizeof text, "message %zu, which isend refused %u times before it accepted it", i, theirs[i]);
        compare(&recvs[i].piece[0], ATTEMPT_BYTES, seed_of(l.from, d.rank, i << 16 | theirs[i]), text);
    }
    d.over_limit = false;
    note("%zu requests were NULL", refused);
    lane_close(&l);
}

/* *request is (void *)1 on entry: NCCL does not need the completion, and calls test with whatever it then finds there.
 */
static void check_hint(void)
{
    enum { N = 40 };
    struct lane l = lane_open(0, 1 << 16);
    struct op *ops = ops_of(2 * N);
    for (int i = 0; i < N; i++) {
        recv_into(&ops[2 * i], l.recv, &l.in, 300, 4);
        if (i % 4 != 3) ops[2 * i].hint = (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION;
        send_into(&ops[2 * i + 1], l.send, &l.out, i % 5 ? 300 : 100, 4, seed_of(d.rank, l.to, (uint64_t)i));
    }
    /* First only the receives, as many as are accepted: some may be refused with the hint in *request. */
    for (int i = 0; i < N && post(&ops[2 * i]); i++) {
    }
    meet();
    finish(ops, 2 * N);
    for (int i = 0; i < N; i++)
        compare(&ops[2 * i].piece[0], i % 5 ? 300 : 100, seed_of(l.from, d.rank, (uint64_t)i),
                "a receive with the hint");
    lane_close(&l);
}

/* ---- all together ---- */

static uint32_t chance(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Both sides draw the same random numbers: groups, tags, sizes. */
static size_t draw(struct op *ops, struct lane *l, bool receive, int from, int to, size_t *sizes)
{
    uint32_t state = (uint32_t)(from * 1000 + to);
    size_t at = 0, number = 0;
    int limit = d.version == 4 ? 1 : d.max_recvs;
    for (int g = 0; g < 60; g++) {
        int k = 1 + (int)(chance(&state) % (unsigned)limit), first = (int)(chance(&state) % (unsigned)k);
        size_t posted[MAX_PIECES], size[MAX_PIECES];
        for (int i = 0; i < k; i++) {
            uint32_t kind = chance(&state) % 10;
            posted[i] = kind == 0 ? 0 : kind < 7 ? chance(&state) % 700 : chance(&state) % 30000;
            size[i] = chance(&state) % 2 ? posted[i] : posted[i] / 3;
        }
        for (int i = 0; i < k && receive; i++) {
            recv_into(&ops[at], l->recv, &l->in, posted[i], 40 + i);
            sizes[number++] = size[i];
        }
        at += receive;
        for (int i = 0; i < k && !receive; i++) {
            int slot = (first + i) % k;
            send_into(&ops[at++], l->send, &l->out, size[slot], 40 + slot,
                      seed_of(from, to, (uint64_t)(g * 64 + slot)));
        }
    }
    return at;
}

static void check_mixed(void)
{
    size_t room = 60 * (size_t)d.max_recvs;
    struct lane l = lane_open(0, room * 12000 + (1 << 20));
    struct op *ops = ops_of(60 + room);
    size_t *sizes = calloc(room, sizeof *sizes);
    size_t n = draw(ops, &l, true, l.from, d.rank, sizes), number = 0;
    n += draw(ops + n, &l, false, d.rank, l.to, NULL);
    finish(ops, n);
    for (int g = 0; g < 60; g++)
        for (int i = 0; i < ops[g].n; i++) {
            char text[80];
            snprintf(text, sizeof text, "slot %d of irecv %d of %d", i, g, ops[g].n);
            compare(&ops[g].piece[i], sizes[number++], seed_of(l.from, d.rank, (uint64_t)(g * 64 + i)), text);
        }
    note("%zu messages", number);
    free(sizes);
    lane_close(&l);
}

const struct check data_checks[] = {
    {"sizes", check_sizes, 4},         {"zero", check_zero, 4},
    {"shorter", check_shorter, 4},     {"order", check_order, 4},
    {"group", check_group, 5},         {"first-group", check_first_group, 5},
    {"same-tags", check_same_tags, 5}, {"test-order", check_test_order, 4},
    {"in-flight", check_in_flight, 4}, {"retry", check_retry, 4},
    {"hint", check_hint, 9},           {"mixed", check_mixed, 4},
    {"longer", check_longer, 4},       {NULL, NULL, 0},
};
