/* The checks, in the order in which they run; each in its own process. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "profiler_drive.h"

enum { COMMS = 4 };

/* ---- loading ---- */

static void load(void)
{
    note("%s", table_name() ? table_name() : "");
}

static void slots(void)
{
    const char *empty = table_empty();
    if (!table_name() || !*table_name()) failed("contract", "the table has no name, which NCCL prints");
    if (!empty) return;
    /* NCCL reads the table after init, which may fill it. */
    if (strcmp(empty, "init") != 0) {
        struct comm c = check_comm(0, 0, 4);
        const char *still = p_init(&c) ? table_empty() : empty;
        if (!still) {
            note("filled by init: %s was NULL before", empty);
            p_finalize(&c);
            return;
        }
        empty = still;
    }
    failed("contract", "%s is NULL, but NCCL calls it without a check", empty);
}

enum { FIRST_SHAPE = 2000 };

static void init(void)
{
    const struct {
        int rank, ranks, nodes;
    } shapes[] = {{0, 1, 1}, {3, 8, 1}, {1023, 1024, 128}};
    struct comm c[3];
    for (int i = 0; i < 3; i++) {
        /* Numbers that no other check has: a consumer takes two sizes of one id for one communicator. */
        c[i] = check_comm(FIRST_SHAPE + i, shapes[i].rank, shapes[i].ranks);
        c[i].nodes = shapes[i].nodes;
        if (!p_init(&c[i]))
            failed("contract", "init returned an error for rank %d of %d: NCCL continues without the profiler",
                   c[i].rank, c[i].ranks);
    }
    for (int i = 0; i < 3; i++) {
        if (!c[i].context) weak("init returned no context; from 2.28 on NCCL calls finalize only if there is one");
        p_finalize(&c[i]);
    }
}

static void mask(void)
{
    struct comm c = check_opened(0);
    uint64_t now = (uint32_t)d.mask, known = event_known(d.version);
    char kinds[300] = "";
    size_t at = 0;
    for (int i = 0; i < EVENT_TYPES; i++)
        if (now >> i & 1)
            at += (size_t)snprintf(kinds + at, sizeof kinds - at, "%s%s", at ? " " : "", event_kind_name(i));
    if (now & ~known)
        weak("the mask is 0x%lx; v%d has no events for the bits 0x%lx", (unsigned long)now, d.version,
             (unsigned long)(now & ~known));
    else if (!now)
        note("the profiler enables nothing: configure it to enable events, or no event is tested");
    else
        note("%s", kinds);
    p_finalize(&c);
}

/* ---- events ---- */

static void collective(void)
{
    struct comm c = check_opened(0);
    check_need(ncclProfileColl | ncclProfileProxyCtrl | ncclProfileKernelLaunch | ncclProfileGroupApi, "collectives");
    for (int i = 0; i < 4; i++) check_whole(&c, 1, 0, check_room());
    p_finalize(&c);
}

static void p2p(void)
{
    struct comm c = check_opened(0);
    check_need(ncclProfileP2p, "sends and receives");
    for (int i = 0; i < 4; i++) check_whole(&c, 0, 2, check_room());
    p_finalize(&c);
}

static void group(void)
{
    struct comm c = check_opened(0);
    check_need(ncclProfileColl | ncclProfileP2p, "operations");
    for (int i = 0; i < 3; i++) check_whole(&c, 64, 96, check_room());
    p_finalize(&c);
}

/* Small groups of all kinds of events. */
static void small_groups(int n)
{
    struct comm c = check_opened(0);
    check_need(event_known(d.version), "anything");
    for (int i = 0; i < n; i++) check_whole(&c, 3, 4, check_room());
    p_finalize(&c);
}

static void descriptor(void)
{
    d.trap = true;
    small_groups(3);
}

/* Newer releases call tables of older versions through adapters, which omit and add events. */
static void adapter(void)
{
    d.adapted = true;
    if (d.version == PROFILER_VERSIONS) skipped("no known release has an adapter for v%d", d.version);
    small_groups(4);
}

static void strings(void)
{
    d.trap_strings = true;
    small_groups(3);
}

/* Operations of the proxy start when the events of the operations were stopped long ago, and newer ones exist. */
static void order(void)
{
    static struct plan plans[8];
    struct comm c = check_opened(0);
    check_need(ncclProfileProxyOp | ncclProfileKernelCh, "the proxy's events");
    struct op *ops = check_room();
    int ends[8], n = 0;
    for (int i = 0; i < 8; i++) {
        plan_begin(&plans[i], &c);
        plan_coll(&plans[i], "AllReduce", 1 << 20, 2);
        n += plan_launch(&plans[i], ops + n, OPS - n);
        plan_end(&plans[i]);
        ends[i] = n;
    }
    /* The last operations first, and two plans at a time. */
    for (int i = 7; i > 0; i -= 2) ops_run(ops + (i > 1 ? ends[i - 2] : 0), ends[i] - (i > 1 ? ends[i - 2] : 0));
    p_finalize(&c);
}

/* A captured graph: its operations run again and again, and their API events are those of the capture. */
static void graph(void)
{
    static struct plan plan;
    struct comm c = check_opened(0);
    check_need(ncclProfileColl, "collectives");
    plan_begin(&plan, &c);
    plan_coll(&plan, "AllReduce", 1 << 20, 1);
    plan_p2p(&plan, true, 1, 1 << 20);
    plan_end(&plan);
    for (int i = 0; i < 5; i++) {
        int n = plan_launch(&plan, check_room(), OPS);
        ops_run(check_room(), n);
        memset(check_room(), 0, sizeof *check_room() * OPS);
    }
    p_finalize(&c);
}

/* NCCL passes NULL if the profiler returned no handle; and in v5 if no API call caused an operation. */
static void null_parent(void)
{
    struct comm c = check_opened(0);
    const uint64_t kinds[] = {ncclProfileColl,         ncclProfileP2p,       ncclProfileProxyOp, ncclProfileProxyStep,
                              ncclProfileKernelCh,     ncclProfileNetPlugin, ncclProfileCollApi, ncclProfileP2pApi,
                              ncclProfileKernelLaunch, ncclProfileCeColl};
    check_need(event_known(d.version), "anything");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!asked((uint32_t)d.mask, event_kind(kinds[i]))) continue;
        void *handle = NULL;
        struct event e = {.type = kinds[i],
                          .func = "Broadcast",
                          .datatype = "ncclInt8",
                          .algo = "RING",
                          .proto = "LL",
                          .pid = getpid(),
                          .steps = 1,
                          .is_send = true,
                          .channels = 1};
        p_start(c.context, &handle, &e);
        if (handle) p_stop(handle);
    }
    for (int kind = 0; kind < EVENT_TYPES; kind++) {
        if (!(others_known() >> kind & 1) || !asked((uint32_t)d.mask, kind)) continue;
        void *handle = NULL;
        struct event e = others_event(kind, c.rank);
        p_start(c.context, &handle, &e);
        if (handle) p_stop(handle);
    }
    p_finalize(&c);
}

/* NCCL stops events that a net plugin got no handle for; up to 2.25 also tasks. */
static void null_handle(void)
{
    struct comm c = check_opened(0);
    p_stop(NULL);
    struct event_args args = {.bytes = 0};
    if (d.version >= 4) p_state(NULL, ncclProfilerNetPluginUpdate, &args);
    p_stop(NULL);
    p_finalize(&c);
}

/* PXN: the proxy of this process serves another one. Parent and context are addresses in that one. */
static void pxn(void)
{
    struct comm c = check_opened(0);
    check_need(ncclProfileProxyOp, "proxy operations");
    static struct plan plan;
    struct op *ops = check_room();
    plan_begin(&plan, &c);
    plan_coll(&plan, "AllReduce", 1 << 20, 4);
    int n = plan_launch(&plan, ops, OPS);
    plan_end(&plan);
    for (int i = 0; i < n; i++) {
        if (ops[i].kernel || ops[i].channel % 2) continue;
        ops[i].pid = getpid() + 1 + i;
        ops[i].parent = foreign_parent((unsigned)i);
        ops[i].context = foreign_context();
        ops[i].rank = 5;
    }
    ops_run(ops, n);
    /* Also after the local communicator is destroyed, while another one keeps the proxy. */
    struct comm other = check_opened(1);
    p_finalize(&c);
    struct op late = {.context = foreign_context(),
                      .parent = foreign_parent(77),
                      .mask = (uint32_t)d.mask,
                      .rank = 6,
                      .pid = getpid() + 9,
                      .peer = 1,
                      .steps = 4,
                      .is_send = true};
    op_run(&late);
    /* From 2.28 on steps have events even if the profiler did not accept the operation: without a parent nothing says
     * whose they are. */
    struct event step = {.type = ncclProfileProxyStep, .rank = 6, .step = 1};
    void *handle = NULL;
    if (d.version >= 5 && asked((uint32_t)d.mask, event_kind(step.type))) {
        p_start(foreign_context(), &handle, &step);
        if (handle) p_stop(handle);
    }
    p_finalize(&other);
}

/* The profiler changes its mask while NCCL runs: what was called before continues with the old mask. */
static void mask_off(void)
{
    struct comm c = check_opened(0);
    static struct plan plan;
    struct op *ops = check_room();
    int all = d.mask;
    if (!all) skipped("the mask enables nothing");
    plan_begin(&plan, &c);
    plan_coll(&plan, "AllReduce", 1 << 20, 2);
    plan_p2p(&plan, true, 1, 100);
    __atomic_store_n(&d.mask, 0, __ATOMIC_RELAXED);
    plan_coll(&plan, "AllGather", 1 << 20, 2); /* of the same group, and not enabled */
    int n = plan_launch(&plan, ops, OPS);
    plan_end(&plan);
    ops_run(ops, n);
    for (int bit = 0; bit < EVENT_TYPES; bit++) {
        if (!(all >> bit & 1)) continue;
        __atomic_store_n(&d.mask, 1 << bit, __ATOMIC_RELAXED);
        check_whole(&c, 1, 2, ops);
    }
    __atomic_store_n(&d.mask, all, __ATOMIC_RELAXED);
    check_whole(&c, 2, 2, ops);
    p_finalize(&c);
}

/* 2.28 to 2.30 do not drop the handle of the last collective's API event: once the mask is cleared each further
 * collective stops it again. */
static void stale_stop(void)
{
    static struct plan plan;
    struct comm c = check_opened(0);
    const int all = d.mask;
    if (d.version < 5) skipped("v%d has no events of the API", d.version);
    check_need(ncclProfileCollApi, "collectives");
    plan_begin(&plan, &c);
    plan_coll(&plan, "AllReduce", 1 << 20, 2);
    int n = plan_launch(&plan, check_room(), OPS);
    plan_end(&plan);
    void *stale = plan.tasks[0].api;
    if (!stale) skipped("the profiler accepted no event of the API");
    d.foreign_calls = true;
    __atomic_store_n(&d.mask, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; i++) p_stop(stale);
    ops_run(check_room(), n);
    __atomic_store_n(&d.mask, all, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; i++) check_whole(&c, 2, 2, check_room());
    p_finalize(&c);
}

/* ---- many ---- */

static void communicators(void)
{
    struct comm c[COMMS];
    for (int i = 0; i < COMMS; i++) c[i] = check_opened(i);
    check_need(event_known(d.version), "anything");
    for (int i = 0; i < 3 * COMMS; i++) check_whole(&c[i % COMMS], 2, 2, check_room());
    /* The first ends, the others continue; its hash is reused. */
    p_finalize(&c[0]);
    for (int i = 1; i < COMMS; i++) check_whole(&c[i], 1, 2, check_room());
    c[0] = check_opened(0);
    for (int i = 0; i < COMMS; i++) check_whole(&c[i], 1, 0, check_room());
    for (int i = COMMS; i-- > 0;) p_finalize(&c[i]);
}

static void one_thread(void *argument)
{
    struct comm *c = argument;
    struct op *ops = calloc(OPS, sizeof *ops);
    if (!ops) abort();
    for (int i = 0; i < 20; i++) check_whole(c, 2, 3, ops);
    free(ops);
}

/* The application's thread gives work to the proxy's: events of one communicator from both. */
struct pair {
    struct comm c;
    struct op ops[8][64];
    int n[8];
    _Atomic int posted;
};

static void proxy_thread(void *argument)
{
    struct pair *p = argument;
    for (int i = 0; i < 8; i++) {
        while (p->posted <= i) usleep(50);
        control(&p->c, false, p->n[i]);
        ops_run(p->ops[i], p->n[i]);
    }
}

static void application_thread(void *argument)
{
    struct pair *p = argument;
    struct plan *plan = calloc(1, sizeof *plan);
    if (!plan) abort();
    for (int i = 0; i < 8; i++) {
        plan_begin(plan, &p->c);
        plan_coll(plan, "AllReduce", 1 << 20, 4);
        plan_p2p(plan, true, 1, 1 << 10);
        p->n[i] = plan_launch(plan, p->ops[i], 64);
        p->posted = i + 1;
        plan_end(plan);
    }
    free(plan);
}

static void threads(void)
{
    struct comm c[COMMS];
    static struct pair pairs[2];
    for (int i = 0; i < COMMS; i++) c[i] = check_opened(i);
    for (int i = 0; i < 2; i++) pairs[i].c = check_opened(COMMS + i);
    for (int i = 0; i < COMMS; i++) in_thread(one_thread, &c[i]);
    for (int i = 0; i < 2; i++) {
        in_thread(application_thread, &pairs[i]);
        in_thread(proxy_thread, &pairs[i]);
    }
    join_all();
    for (int i = 0; i < COMMS; i++) p_finalize(&c[i]);
    for (int i = 0; i < 2; i++) p_finalize(&pairs[i].c);
}

/* More open events than any pool has: NULL or a handle, each different. */
static void pool(void)
{
    enum { MANY = 30000 };
    static void *handles[MANY];
    struct comm c = check_opened(0);
    check_need(ncclProfileColl, "collectives");
    struct event e = {.type = ncclProfileColl,
                      .func = "AllReduce",
                      .datatype = "ncclFloat32",
                      .algo = "RING",
                      .proto = "SIMPLE",
                      .channels = 1,
                      .warps = 16};
    void *group = NULL, *group_api = NULL, *api = NULL;
    struct event g = {.type = ncclProfileGroup};
    if (d.version >= 5) {
        struct event a = {.type = ncclProfileGroupApi, .depth = 1};
        p_start(c.context, &group_api, &a);
        a = (struct event){
            .type = ncclProfileCollApi, .parent = group_api, .func = "AllReduce", .datatype = "ncclFloat32"};
        p_start(c.context, &api, &a);
        if (api) p_stop(api);
    }
    p_start(c.context, &group, &g);
    e.parent = d.version >= 5 ? api : group;
    e.group = d.version >= 5 ? group : NULL;
    int taken = 0;
    for (int i = 0; i < MANY; i++) {
        e.seq = (uint64_t)i;
        p_start(c.context, &handles[i], &e);
        taken += handles[i] != NULL;
    }
    for (int i = 0; i < MANY; i++)
        if (handles[i]) p_stop(handles[i]);
    if (group) p_stop(group);
    if (group_api) p_stop(group_api);
    p_finalize(&c);
    note("%d of %d open at a time", taken, MANY);
}

static void open_end(void)
{
    d.open_at_end = true;
    for (int round = 0; round < 3; round++) {
        static struct plan plan;
        struct comm c = check_opened(round);
        plan_begin(&plan, &c);
        plan_coll(&plan, "AllReduce", 1 << 20, 2);
        int n = plan_launch(&plan, check_room(), OPS);
        /* An abort: the group, operations and steps of the proxy stay open. */
        struct event e = {.type = ncclProfileProxyOp, .rank = c.rank, .pid = getpid(), .steps = 4, .is_send = true};
        void *op = NULL, *step = NULL;
        if (n && check_room()[0].parent) e.parent = check_room()[0].parent;
        if (asked((uint32_t)d.mask, event_kind(e.type))) p_start(c.context, &op, &e);
        struct event s = {.type = ncclProfileProxyStep, .parent = op};
        if (op && asked((uint32_t)d.mask, event_kind(s.type))) p_start(c.context, &step, &s);
        p_finalize(&c);
    }
    struct comm c = check_opened(9);
    check_whole(&c, 1, 1, check_room());
    p_finalize(&c);
}

static void latency(void)
{
    struct comm c = check_opened(0);
    check_need(ncclProfileProxyStep, "steps of the proxy");
    uint64_t pair = p_time_pairs(&c), state = p_time_states(&c);
    p_finalize(&c);
    if (!pair) skipped("the profiler accepted no operation of the proxy");
    note("startEvent and stopEvent %.1f ns, recordEventState %.1f ns", (double)pair / 10, (double)state / 10);
    if (pair > 50000)
        weak("startEvent and stopEvent take %.0f ns at best, for each step of each transfer", (double)pair / 10);
}

const struct check checks[] = {
    {"load", load, 1},
    {"slots", slots, 1},
    {"init", init, 1},
    {"mask", mask, 1},
    {"collective", collective, 1},
    {"p2p", p2p, 1},
    {"group", group, 1},
    {"adapter", adapter, 1},
    {"order", order, 1},
    {"graph", graph, 1},
    {"null-parent", null_parent, 1},
    {"null-handle", null_handle, 1},
    {"descriptor", descriptor, 1},
    {"strings", strings, 1},
    {"pxn", pxn, 1},
    {"mask-off", mask_off, 1},
    {"stale-stop", stale_stop, 1},
    {"communicators", communicators, 1},
    {"threads", threads, 1},
    {"pool", pool, 1},
    {"open-end", open_end, 1},
    {"leaks", check_leaks, 1},
    {"growth", check_growth, 1},
    {"unload", check_unload, 1},
    {"latency", latency, 1},
    {"stream", play_stream, 1},
    {NULL, NULL, 0},
};
