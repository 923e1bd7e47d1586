/* The engine of the simulation: streams that execute their items in order, graphs that are launched as one item. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "plan/simulate.h"

/* ---- streams ---- */

static void push(struct sim_rank *rank, struct stream *stream, struct item item)
{
    struct world *world = rank->world;
    if (!psm_sim_room(world, (void **)&stream->items, stream->n, &stream->room, sizeof item)) return;
    stream->items[stream->n++] = item;
    world->changes++;
    ptrdiff_t live = stream - rank->streams;
    if (live >= 0 && live < CHAINS) psm_sim_wake(rank, LIVE + (int)live);
}

/* Work enqueued on a captured user stream goes into the graph. */
static struct stream *resolve(struct sim_rank *rank, void *handle)
{
    struct stream *stream = handle;
    if (rank->capturing && (stream == &rank->streams[USER] || stream == &rank->streams[USER2]))
        return &rank->capturing->streams[stream - rank->streams];
    return stream;
}
static struct stream *set_of(struct sim_rank *rank, const struct stream *stream)
{
    if (stream >= rank->streams && stream < rank->streams + CHAINS) return rank->streams;
    for (struct sim_graph *graph = rank->graphs; graph; graph = graph->next)
        if (stream >= graph->streams && stream < graph->streams + CHAINS) return graph->streams;
    return NULL;
}

static psm_status capturing(void *self, void *stream, uint64_t *graph)
{
    struct sim_rank *rank = self;
    (void)stream;
    *graph = rank->capturing ? rank->capturing->id : 0;
    return PSM_OK;
}

static psm_status acquire(void *self, int which, uint64_t graph, void **stream)
{
    struct sim_rank *rank = self;
    int chain = which == PSM_PLAN_HOST_STREAM ? HOST : DEVICE;
    if (graph && (!rank->capturing || rank->capturing->id != graph))
        return psm_fail(
            PSM_ERR_INVALID, "plan", rank->rank, -1, 0,
            "the tasks of a group were captured, but the capture ended before the group: end the group first");
    *stream = graph ? &rank->capturing->streams[chain] : &rank->streams[chain];
    return PSM_OK;
}

static psm_status release(void *self, int which, uint64_t graph)
{
    (void)self;
    (void)which;
    (void)graph;
    return PSM_OK;
}

static psm_status wait_for(void *self, void *waits, void *on)
{
    struct sim_rank *rank = self;
    struct stream *stream = resolve(rank, waits), *other = resolve(rank, on);
    if (stream != other)
        push(rank, stream,
             (struct item){.kind = ITEM_WAIT, .on = (int)(other - set_of(rank, other)), .until = other->n});
    return PSM_OK;
}

static psm_status host_func(void *self, void *stream, void (*fn)(void *), void *arg)
{
    struct sim_rank *rank = self;
    push(rank, resolve(rank, stream), (struct item){.kind = ITEM_FUNCTION, .fn = fn, .arg = arg, .plan = arg});
    return PSM_OK;
}

static psm_status copy(void *self, void *stream, void *to, const void *from, uint64_t nbytes)
{
    (void)self; /* there is no data */
    (void)stream;
    (void)to;
    (void)from;
    (void)nbytes;
    return PSM_OK;
}

static psm_status deregister(void *arg)
{
    ((struct sim_rank *)arg)->registered--;
    return PSM_OK;
}

/* Buffers of a graph are registered, as in NCCL: some by IPC, some for NVLS or CollNet. */
static psm_status register_buffers(struct sim_rank *rank, psmPlan *plan)
{
    for (int i = 0; i < 3; i++) {
        if (plan->id % 4 < (uint64_t)i) continue;
        PSM_TRY(psmPlanHold(plan, (int)((plan->id + (uint64_t)i) % 3), deregister, rank));
        rank->registered++;
    }
    return PSM_OK;
}

static psm_status kernel(void *self, void *stream, psmPlan *plan)
{
    struct sim_rank *rank = self;
    if (rank->capturing) PSM_TRY(register_buffers(rank, plan));
    push(rank, resolve(rank, stream), (struct item){.kind = ITEM_KERNEL, .plan = plan});
    return PSM_OK;
}

static psm_status on_destroy(void *self, uint64_t id, void (*fn)(void *), void *arg)
{
    struct sim_rank *rank = self;
    struct sim_graph *graph = rank->capturing;
    (void)id;
    /* A graph may hold several groups: each has a destructor. */
    struct sim_graph *more = graph->fn ? calloc(1, sizeof *more) : graph;
    if (!more) return psm_fail(PSM_ERR_NO_MEMORY, "plan", rank->rank, -1, 0, "no memory for a graph");
    if (more != graph) {
        more->next = graph->next;
        more->id = graph->id;
        graph->next = more;
    }
    more->fn = fn;
    more->arg = arg;
    return PSM_OK;
}

static psm_status alloc(void *self, uint64_t graph, uint64_t nbytes, void **memory)
{
    struct sim_rank *rank = self;
    (void)graph;
    *memory = malloc(nbytes ? nbytes : 1);
    if (*memory) return PSM_OK;
    return psm_fail(PSM_ERR_NO_MEMORY, "plan", rank->rank, -1, 0, "no memory for persistent work");
}
static psm_status give_back(void *self, void *memory)
{
    (void)self;
    free(memory);
    return PSM_OK;
}

/* ---- threads ---- */

static void pause_fiber(void *self, int why, psmPlan *plan)
{
    struct sim_rank *rank = self;
    struct world *world = rank->world;
    if (!psm_fiber_inside(world->home)) return;
    if (why == PSM_PLAN_WAIT_COUNT) {
        for (int i = 0; i < CHAINS; i++) { /* whose host function is running */
            struct stream *live = &rank->streams[i], *run = rank->running ? &rank->running->streams[i] : NULL;
            if (live->fiber && live->items[live->done].plan == plan) live->waits = plan;
            if (run && run->fiber && run->items[run->done].plan == plan) run->waits = plan;
        }
        psm_fiber_yield(world->home);
        return;
    }
    rank->why = why;
    rank->whom = plan;
    psm_fiber_yield(world->home);
    rank->why = 0;
}

/* The change may be a wait condition of the main thread, a host function, the proxy or the other end's proxy. */
static void wake(void *self)
{
    struct sim_rank *rank = self;
    struct world *world = rank->world;
    world->changes++;
    psm_sim_wake(rank, MAIN);
    for (int i = 0; i < CHAINS; i++) {
        if (rank->streams[i].fiber) psm_sim_wake(rank, LIVE + i);
        if (rank->running && rank->running->streams[i].fiber) psm_sim_wake(rank, GRAPH + i);
    }
    for (int r = 0; r < world->nranks; r++)
        if (world->ranks[r].posted) psm_sim_wake(&world->ranks[r], PROXY);
}

static void meet(void *self, int point)
{
    struct sim_rank *rank = self;
    (void)point;
    if (!psm_fiber_inside(rank->world->home) || psm_sim_random(rank->world) % 4 != 0) return;
    rank->world->yielded = true;
    psm_fiber_yield(rank->world->home);
}

const struct psmPlanEngine psm_sim_engine = {.size = sizeof psm_sim_engine,
                                             .capturing = capturing,
                                             .acquire = acquire,
                                             .release = release,
                                             .wait = wait_for,
                                             .host_func = host_func,
                                             .copy = copy,
                                             .kernel = kernel,
                                             .on_destroy = on_destroy,
                                             .alloc = alloc,
                                             .free = give_back,
                                             .save = psm_sim_save,
                                             .start = psm_sim_start,
                                             .pause = pause_fiber,
                                             .wake = wake,
                                             .meet = meet};

/* ---- graphs ---- */

void psm_sim_capture(struct sim_rank *rank)
{
    if (rank->capturing) return;
    struct sim_graph *graph = calloc(1, sizeof *graph);
    if (!graph) {
        rank->world->no_memory = true;
        return;
    }
    graph->id = ++rank->ngraphs;
    graph->next = rank->graphs;
    rank->graphs = rank->capturing = graph;
}

void psm_sim_captured(struct sim_rank *rank)
{
    rank->capturing = NULL;
}

static struct sim_graph *last_graph(const struct sim_rank *rank)
{
    struct sim_graph *graph = rank->graphs;
    return graph && graph != rank->capturing && !graph->dropped ? graph : NULL;
}

/* As strong streams do: a launch follows earlier work on the device and host streams, and precedes later work. */
void psm_sim_replay(struct sim_rank *rank)
{
    struct sim_graph *graph = last_graph(rank);
    if (!graph || rank->capturing) return;
    graph->launches++;
    psm_plan_event(rank->comm, PSM_PLAN_REPLAY, NULL, (int64_t)graph->id, 0, 0);
    for (int other = USER2; other < CHAINS; other++) wait_for(rank, &rank->streams[USER], &rank->streams[other]);
    push(rank, &rank->streams[USER], (struct item){.kind = ITEM_GRAPH, .graph = graph});
    for (int other = USER2; other < CHAINS; other++) wait_for(rank, &rank->streams[other], &rank->streams[USER]);
}

void psm_sim_drop_graph(struct sim_rank *rank)
{
    struct sim_graph *graph = last_graph(rank);
    if (!graph) return;
    for (struct sim_graph *part = graph; part && part->id == graph->id; part = part->next) part->dropped = true;
    rank->world->changes++;
    psm_sim_wake(rank, DESTROYER);
}

/* A graph is destroyed when it is dropped and none of its launches is left. */
bool psm_sim_step_destroyer(struct sim_rank *rank)
{
    for (struct sim_graph *graph = rank->graphs, *head = NULL; graph; graph = graph->next) {
        if (!head || head->id != graph->id) head = graph;
        if (!graph->dropped || graph->destroyed || head->launches) continue;
        graph->destroyed = true;
        if (graph->fn) graph->fn(graph->arg);
        return true;
    }
    return false;
}

/* ---- steps ---- */

static bool graph_done(const struct sim_graph *graph)
{
    for (int i = 0; i < CHAINS; i++)
        if (graph->streams[i].done < graph->streams[i].n) return false;
    return true;
}

static void done(struct sim_rank *rank, struct stream *stream)
{
    stream->done++;
    rank->world->changes++;
    for (int i = 0; i < CHAINS; i++) {
        if (rank->streams[i].done < rank->streams[i].n) psm_sim_wake(rank, LIVE + i);
        if (rank->running && rank->running->streams[i].done < rank->running->streams[i].n)
            psm_sim_wake(rank, GRAPH + i);
    }
}

static bool step_graph(struct sim_rank *rank, struct stream *stream, struct sim_graph *graph)
{
    if (rank->running == graph) {
        if (!graph_done(graph)) return false;
        rank->running = NULL;
        graph->launches--;
        psm_sim_wake(rank, DESTROYER);
        done(rank, stream);
        return true;
    }
    if (rank->running) return false;
    rank->running = graph;
    rank->world->changes++;
    for (int i = 0; i < CHAINS; i++) {
        graph->streams[i].done = 0;
        psm_sim_wake(rank, GRAPH + i);
    }
    return !graph_done(graph) || step_graph(rank, stream, graph);
}

static bool step_function(struct sim_rank *rank, struct stream *stream, const struct item *item)
{
    struct world *world = rank->world;
    if (!stream->fiber) {
        stream->fiber = psm_fiber_new(world->home, item->fn, item->arg);
        if (!stream->fiber) {
            world->no_memory = true;
            return false;
        }
    }
    stream->waits = NULL;
    if (psm_fiber_resume(stream->fiber)) {
        stream->fiber = NULL;
        stream->waits = NULL;
        done(rank, stream);
        return true;
    }
    return stream->waits == NULL; /* else it waits for the count */
}

bool psm_sim_step_stream(struct sim_rank *rank, int agent)
{
    if (agent >= GRAPH && !rank->running) return false;
    struct stream *set = agent >= GRAPH ? rank->running->streams : rank->streams;
    struct stream *stream = &set[agent - (agent >= GRAPH ? GRAPH : LIVE)];
    if (stream->done >= stream->n) return false;
    const struct item item = stream->items[stream->done];
    bool moved = false;
    switch (item.kind) {
    case ITEM_WAIT:
        if (set[item.on].done < item.until) return false;
        done(rank, stream);
        return true;
    case ITEM_FUNCTION:
        return step_function(rank, stream, &item);
    case ITEM_GRAPH:
        return step_graph(rank, stream, item.graph);
    case ITEM_KERNEL:
        if (!stream->kernel || !stream->kernel->runs) {
            moved = true;
            if (!psm_sim_kernel_begin(rank, stream, item.plan)) return false;
        }
        if (!psm_sim_kernel_step(rank, stream->kernel, &moved)) return moved;
        stream->kernel->runs = false;
        psmPlanKernelDone(item.plan);
        done(rank, stream);
        return true;
    }
    return false;
}

/* ---- end ---- */

static void free_streams(struct stream *streams)
{
    for (int i = 0; i < CHAINS; i++) {
        free(streams[i].items);
        if (streams[i].kernel) free(streams[i].kernel->numbers);
        free(streams[i].kernel);
    }
}

void psm_sim_free_streams(struct sim_rank *rank)
{
    free_streams(rank->streams);
    while (rank->graphs) {
        struct sim_graph *graph = rank->graphs;
        rank->graphs = graph->next;
        free_streams(graph->streams);
        free(graph);
    }
}
