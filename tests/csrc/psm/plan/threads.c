/* Plans over real threads: streams, a proxy, destructors of graphs, somebody who aborts; in an order that a seed
 * decides where they meet. For ThreadSanitizer: the engine hands work from thread to thread with the edges that CUDA
 * and the proxy promise (what was put on a stream is seen there, an event orders two streams), and no others.
 *
 *   threads SEED COUNT [variant=NAME] [planted=1]
 *
 * Built with untraced.c it has no trace: the lock of the trace orders all threads, and hides what does without.
 * planted: the proxy writes once more behind the end of an operation, which is a race. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answers.h"
#include "permute.h"
#include "plan/launch.h"

enum { STREAMS = 4, MOST_TASKS = 24, RANKS = 4, BYTES = 4096 };
enum kind { FUNCTION, RECORD, WAIT, KERNEL, STOP };

struct event { /* recorded so often */
    _Atomic uint64_t count;
    uint64_t recorded; /* main thread: records that were put on a stream */
};
struct item {
    struct item *next;
    enum kind kind;
    int stream;
    void (*function)(void *);
    void *arg; /* function's; a plan; an event */
    uint64_t count;
};
struct link { /* an item, and what comes behind it */
    struct item item;
    _Atomic(struct link *) after;
};
/* One producer, the main thread; its consumer never tells it anything. */
struct queue {
    pthread_t thread;
    struct link *tail, *head;
};

struct run { /* launches of a plan with a kernel */
    _Atomic uint32_t gate, ended;
    uint32_t expected;
};
struct op {
    struct op *next;
    psmPlan *plan;
    const struct psmSyncCondition *sync;
    struct run *run;
    void *cookie;
    uint64_t delay;
};

static struct queue queues[STREAMS]; /* launch, second, device, host */
static struct event events[4096];
static int nevents;
static psmPlanComm *comm;
static _Atomic(struct op *) posted;
static _Thread_local struct op *saved, **saved_end;
static _Atomic uint32_t stop_proxy, destructor_due, abort_due;
static struct item *graph; /* what is captured, newest first */
static uint64_t graph_number, capturing_now;
static void (*destructor_fn[8])(void *);
static void *destructor_arg[8];
static int ndestructors;
static uint64_t written; /* by the proxy, read by the main thread when all is reclaimed */
static bool planted;

static const char *const names[STREAMS] = {"launch", "second", "device", "host"};

static void *must(void *memory)
{
    if (!memory) abort();
    return memory;
}

/* ---- streams ---- */

static void push(int stream, struct item item)
{
    struct link *link = must(calloc(1, sizeof *link));
    link->item = item;
    atomic_store_explicit(&queues[stream].tail->after, link, memory_order_release);
    queues[stream].tail = link;
}

/* On a stream, or into the graph that is being captured. */
static void put(int stream, enum kind kind, void (*function)(void *), void *arg)
{
    struct item item = {.kind = kind, .stream = stream, .function = function, .arg = arg};
    if (capturing_now) {
        struct item *kept = must(malloc(sizeof *kept));
        *kept = item;
        kept->next = graph;
        graph = kept;
        return;
    }
    struct event *event = arg;
    if (kind == RECORD) event->recorded++;
    if (kind == WAIT) item.count = event->recorded;
    push(stream, item);
}

static void run_kernel(psmPlan *plan)
{
    struct run *run = plan->run;
    atomic_store_explicit(&run->gate, 1, memory_order_release);
    bool persistent = plan->persistent;
    while (atomic_load_explicit(&run->ended, memory_order_acquire) < run->expected && !psmPlanAborted(comm))
        permute_pause();
    if (persistent) {
        atomic_store_explicit(&run->gate, 0, memory_order_relaxed);
        atomic_fetch_sub_explicit(&run->ended, run->expected, memory_order_relaxed);
    }
    permute_meet(NULL, 100);
    psmPlanKernelDone(plan);
}

static void run_item(const struct item *item)
{
    struct event *event = item->arg;
    switch (item->kind) {
    case FUNCTION:
        item->function(item->arg);
        break;
    case RECORD:
        atomic_fetch_add_explicit(&event->count, 1, memory_order_release);
        break;
    case WAIT:
        while (atomic_load_explicit(&event->count, memory_order_acquire) < item->count) permute_pause();
        break;
    case KERNEL:
        run_kernel(item->arg);
        break;
    case STOP:
        break;
    }
}

static void *stream_main(void *arg)
{
    struct queue *queue = arg;
    permute_thread((enum thread_name)(LAUNCH + (queue - queues)));
    while (true) {
        struct link *next;
        while (!(next = atomic_load_explicit(&queue->head->after, memory_order_acquire))) permute_pause();
        free(queue->head);
        queue->head = next;
        if (next->item.kind == STOP) return NULL;
        run_item(&next->item);
    }
}

static struct event *new_event(void)
{
    if (nevents == (int)(sizeof events / sizeof *events)) abort();
    return &events[nevents++];
}

/* ---- the engine ---- */

static int number_of(void *stream)
{
    return (int)((struct queue *)stream - queues);
}
static psm_status capturing(void *self, void *stream, uint64_t *out)
{
    (void)self, (void)stream;
    *out = capturing_now;
    return PSM_OK;
}
static psm_status acquire(void *self, int which, uint64_t number, void **stream)
{
    (void)self, (void)number;
    *stream = &queues[which == PSM_PLAN_DEVICE_STREAM ? 2 : 3];
    return PSM_OK;
}
static psm_status wait_for(void *self, void *stream, void *on)
{
    (void)self;
    struct event *event = new_event();
    put(number_of(on), RECORD, NULL, event);
    put(number_of(stream), WAIT, NULL, event);
    return PSM_OK;
}
static psm_status host_func(void *self, void *stream, void (*fn)(void *), void *arg)
{
    (void)self;
    put(number_of(stream), FUNCTION, fn, arg);
    return PSM_OK;
}
static psm_status copy(void *self, void *stream, void *to, const void *from, uint64_t nbytes)
{
    (void)self, (void)stream, (void)to, (void)from, (void)nbytes;
    return PSM_OK;
}
static struct run *runs[256]; /* freed when the communicator is gone */
static int nruns;

static psm_status kernel(void *self, void *stream, psmPlan *plan)
{
    (void)self;
    put(number_of(stream), KERNEL, NULL, plan);
    return PSM_OK;
}
static psm_status on_destroy(void *self, uint64_t number, void (*fn)(void *), void *arg)
{
    (void)self, (void)number;
    destructor_fn[ndestructors] = fn;
    destructor_arg[ndestructors++] = arg;
    return PSM_OK;
}
static psm_status alloc(void *self, uint64_t number, uint64_t nbytes, void **memory)
{
    (void)self, (void)number;
    *memory = must(calloc(1, nbytes + 1));
    return PSM_OK;
}
static psm_status save(void *self, psmPlan *plan, const struct psmPlanOpInfo *info, struct psmSyncCondition *sync,
                       void *cookie)
{
    (void)self;
    struct op *op = must(malloc(sizeof *op));
    *op = (struct op){NULL, plan, sync, plan->run, cookie, permute_random() % 8};
    if (info->decrements) op->run = NULL;
    if (!saved) saved_end = &saved;
    *saved_end = op;
    saved_end = &op->next;
    return PSM_OK;
}
static psm_status start(void *self)
{
    (void)self;
    if (!saved) return PSM_OK;
    struct op *head = atomic_load_explicit(&posted, memory_order_relaxed);
    do *saved_end = head;
    while (!atomic_compare_exchange_weak_explicit(&posted, &head, saved, memory_order_release, memory_order_relaxed));
    saved = NULL;
    return PSM_OK;
}
static void pause_round(void *self, int why, psmPlan *plan)
{
    (void)self, (void)why;
    (void)plan;
    permute_pause();
}

/* A plan's run is there before anybody knows the plan: at the point of commit. */
static void meet(void *self, int point)
{
    if (point == PSM_PLAN_POINT_COMMIT)
        for (psmPlan *plan = comm->planHead; plan; plan = plan->next) {
            struct run *run = must(calloc(1, sizeof *run));
            for (const struct plan_op *op = plan->ops; op; op = op->next) run->expected += !op->info.decrements;
            plan->run = runs[nruns++] = run;
        }
    permute_meet(self, point);
}

static const struct psmPlanEngine engine = {TEST_ENGINE, .pause = pause_round, .meet = meet};

/* ---- the other threads ---- */

static bool may_end(const struct op *op)
{
    if (psmPlanAborted(comm)) return true;
    if (op->sync) return __atomic_load_n(&op->sync->proxyReadyEvent, __ATOMIC_ACQUIRE) != 0;
    return atomic_load_explicit(&op->run->gate, memory_order_acquire) != 0;
}

static void end(struct op *op)
{
    permute_meet(NULL, 101);
    if (!planted) written++; /* what the end of an operation orders before its plan's reclaim */
    struct run *run = op->run;
    psmPlanOpDone(op->cookie, psmPlanAborted(comm) ? PSM_ERR_ABORTED : PSM_OK);
    if (planted) written++;
    if (run) atomic_fetch_add_explicit(&run->ended, 1, memory_order_release);
    free(op);
}

static void *proxy_main(void *unused)
{
    (void)unused;
    struct op *active = NULL;
    permute_thread(PROXY);
    while (!atomic_load_explicit(&stop_proxy, memory_order_acquire)) {
        struct op *list = atomic_exchange_explicit(&posted, NULL, memory_order_acquire);
        while (list) {
            struct op *next = list->next;
            list->next = active;
            active = list;
            list = next;
        }
        for (struct op **at = &active; *at;) {
            struct op *op = *at;
            if (!may_end(op) || op->delay-- > 0) {
                if (op->delay == UINT64_MAX) op->delay = 0;
                at = &op->next;
                continue;
            }
            *at = op->next;
            end(op);
        }
        permute_pause();
    }
    return NULL;
}

static void *destructor_main(void *unused)
{
    (void)unused;
    permute_thread(DESTRUCTOR);
    while (true) {
        uint32_t due;
        while (!(due = atomic_exchange_explicit(&destructor_due, 0, memory_order_acquire))) permute_pause();
        if (due == UINT32_MAX) return NULL;
        for (uint32_t i = 0; i < due; i++) destructor_fn[i](destructor_arg[i]);
    }
}

static void *aborter_main(void *unused)
{
    (void)unused;
    permute_thread(ABORTER);
    uint32_t due;
    while (!(due = atomic_load_explicit(&abort_due, memory_order_relaxed))) permute_pause();
    for (uint64_t i = permute_random() % 200; due == 1 && i > 0; i--) permute_pause();
    permute_meet(NULL, 102);
    if (due == 1) psmPlanAbort(comm);
    return NULL;
}

/* ---- what the main thread does ---- */

static char memory[2][MOST_TASKS * RANKS * BYTES];

static void must_be(psm_status status)
{
    if (status >= 0 || status == PSM_ERR_ABORTED) return;
    fprintf(stderr, "%s: %s\n", psm_status_name(status), psm_last_error()->text);
    exit(3);
}

static bool group(bool two_streams)
{
    int n = 1 + (int)(permute_random() % MOST_TASKS);
    for (int i = 0; i < n; i++) {
        static const int funcs[] = {PSM_PLAN_ALLREDUCE, PSM_PLAN_BROADCAST, PSM_PLAN_ALLGATHER, PSM_PLAN_SEND,
                                    PSM_PLAN_RECV};
        struct psmPlanTask task = {.func = funcs[permute_random() % 5],
                                   .peer = 1 + (int)(permute_random() % (RANKS - 1)),
                                   .datatype = 7,
                                   .count = 1 + permute_random() % (BYTES / 4),
                                   .sendbuff = memory[0] + i * RANKS * BYTES,
                                   .recvbuff = memory[1] + i * RANKS * BYTES};
        psm_status status = psmPlanEnqueue(comm, &task, &queues[two_streams && i % 3 == 0]);
        must_be(status);
    }
    psm_status status = psmPlanGroupEnd(&comm, 1);
    must_be(status);
    return status == PSM_OK;
}

/* As a launch of the graph on the launch stream: all of it behind what is there. */
static void replay(void)
{
    struct item *order = NULL;
    for (struct item *item = graph; item; item = item->next) { /* oldest first: by copies */
        struct item *again = must(malloc(sizeof *again));
        *again = *item;
        again->next = order;
        order = again;
    }
    wait_for(NULL, &queues[3], &queues[0]);
    wait_for(NULL, &queues[2], &queues[0]);
    for (struct item *next; order; order = next) {
        next = order->next;
        put(order->stream, order->kind, order->function, order->arg);
        free(order);
    }
    wait_for(NULL, &queues[0], &queues[2]);
}

static void graph_gone(void *unused)
{
    (void)unused;
    atomic_store_explicit(&destructor_due, (uint32_t)ndestructors, memory_order_release);
}

static void with_graph(void)
{
    capturing_now = ++graph_number;
    bool good = group(false);
    capturing_now = 0;
    for (uint64_t i = permute_random() % 4; good && i > 0; i--) {
        replay();
        if (permute_random() % 2) must_be(psmPlanPoll(comm, 0, NULL));
        if (permute_random() % 3 == 0) group(false);
    }
    if (ndestructors > 0) put(0, FUNCTION, graph_gone, NULL);
}

static struct {
    const char *variant;
    uint64_t ended, orders[4096];
    size_t norders, aborted, graphs, plans, breaches;
} all;

static void start_threads(pthread_t *threads)
{
    for (int i = 0; i < STREAMS; i++) {
        queues[i].head = queues[i].tail = must(calloc(1, sizeof(struct link)));
        if (pthread_create(&queues[i].thread, NULL, stream_main, &queues[i])) abort();
        pthread_setname_np(queues[i].thread, names[i]);
    }
    if (pthread_create(&threads[0], NULL, proxy_main, NULL)) abort();
    if (pthread_create(&threads[1], NULL, destructor_main, NULL)) abort();
    if (pthread_create(&threads[2], NULL, aborter_main, NULL)) abort();
}

static void end_threads(pthread_t *threads)
{
    for (int i = 0; i < STREAMS; i++) push(i, (struct item){.kind = STOP});
    atomic_store_explicit(&stop_proxy, 1, memory_order_release);
    while (atomic_load_explicit(&destructor_due, memory_order_relaxed)) permute_pause();
    atomic_store_explicit(&destructor_due, UINT32_MAX, memory_order_release);
    uint32_t none = 0;
    atomic_compare_exchange_strong_explicit(&abort_due, &none, 2, memory_order_relaxed, memory_order_relaxed);
    for (int i = 0; i < STREAMS; i++) pthread_join(queues[i].thread, NULL);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < STREAMS; i++) free(queues[i].head);
}

static void reset(uint64_t seed)
{
    permute_begin(seed);
    permute_thread(MAIN);
    memset(events, 0, sizeof events);
    nevents = ndestructors = nruns = 0;
    written = 0;
    atomic_store_explicit(&stop_proxy, 0, memory_order_relaxed);
    atomic_store_explicit(&destructor_due, 0, memory_order_relaxed);
    atomic_store_explicit(&abort_due, 0, memory_order_relaxed);
}

static uint64_t one(uint64_t seed)
{
    pthread_t threads[3];
    reset(seed);
    struct psmPlanConfig config = {.size = sizeof config,
                                   .nRanks = RANKS,
                                   .nNodes = 1,
                                   .scheduler = (int)(permute_random() % 2),
                                   .nChannels = 1 + (int)(permute_random() % 3),
                                   .p2pnChannels = 2,
                                   .p2pnChannelsPerPeer = 1 + (int)(permute_random() % 2),
                                   .passSm = permute_random() % 4 != 0,
                                   .launchBlocking = permute_random() % 4 == 0,
                                   .workFifoDepth = 64,
                                   .workFifoBytes = 4096,
                                   .workArgsBytes = 512,
                                   .variant = all.variant};
    must_be(psmPlanCommCreate(&config, &engine, &comm));
    start_threads(threads);
    if (permute_random() % 4 == 0) atomic_store_explicit(&abort_due, 1, memory_order_relaxed);
    int groups = 1 + (int)(permute_random() % 3);
    for (int i = 0; i < groups; i++) {
        group(permute_random() % 2);
        if (permute_random() % 2) must_be(psmPlanPoll(comm, 0, NULL));
    }
    bool graphs = permute_random() % 2;
    if (graphs) with_graph();
    psm_plan_comm_close(comm);
    all.ended += written; /* all is reclaimed, so what the proxy has written is seen */
    all.breaches += psmPlanBreaches(comm, NULL, 0);
    all.plans += comm->counted.plans;
    all.aborted += psmPlanAborted(comm) != 0;
    all.graphs += graphs;
    struct psmPlanBreach first;
    if (psmPlanBreaches(comm, &first, 1) > 0) printf("seed %" PRIu64 ": %s: %s\n", seed, first.rule, first.text);
    end_threads(threads);
    psm_plan_comm_free(comm);
    for (int i = 0; i < nruns; i++) free(runs[i]);
    while (graph) {
        struct item *next = graph->next;
        free(graph);
        graph = next;
    }
    return permute_order();
}

static void count_order(uint64_t order)
{
    size_t i = 0;
    while (i < all.norders && all.orders[i] != order) i++;
    if (i == all.norders && i < sizeof all.orders / sizeof *all.orders) all.orders[all.norders++] = order;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1, count = argc > 2 ? strtoull(argv[2], NULL, 0) : 20;
    for (int i = 3; i < argc; i++) {
        if (!strncmp(argv[i], "variant=", 8)) all.variant = argv[i] + 8;
        planted |= !strcmp(argv[i], "planted=1");
    }
    for (uint64_t seed = first; seed < first + count; seed++) count_order(one(seed));
    printf("%" PRIu64 " seeds, %zu orders, %zu plans, %" PRIu64
           " operations, %zu with graphs, %zu aborted, %zu breaches\n",
           count, all.norders, all.plans, all.ended, all.graphs, all.aborted, all.breaches);
    return all.breaches != 0;
}
