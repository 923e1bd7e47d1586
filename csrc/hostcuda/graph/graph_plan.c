/* Executable graphs: a plan of steps from a clone of the graph, and later changes to it. */
#include "graph/hc_graph.h"

#include <stdlib.h>
#include <string.h>

#define NONE (~0u)

/* ---- steps: the nodes of the graph and of all child graphs, in an order in which dependencies come first ---- */

struct build {
    struct hc_step *steps;
    unsigned n, room;
    unsigned *deps;
    unsigned n_deps, room_deps;
    struct hc_node *bad;
};

static bool grow(void **at, unsigned n, unsigned *room, size_t size)
{
    if (n < *room) return true;
    unsigned more = *room ? 2 * *room : 16;
    void *memory = realloc(*at, more * size);
    if (!memory) return false;
    *at = memory;
    *room = more;
    return true;
}

static bool add_dep(struct build *build, unsigned dep)
{
    if (!grow((void **)&build->deps, build->n_deps, &build->room_deps, sizeof *build->deps)) return false;
    build->deps[build->n_deps++] = dep;
    build->steps[build->n - 1].n_deps++;
    build->steps[dep].leaf = false;
    return true;
}

static bool add_step(struct build *build, const struct hc_node *node)
{
    if (!grow((void **)&build->steps, build->n, &build->room, sizeof *build->steps)) return false;
    build->steps[build->n++] = (struct hc_step){.node = node, .first_dep = build->n_deps, .leaf = true};
    return true;
}

static int flatten(struct build *build, const struct hc_graph *graph, unsigned begin);

/* A child graph runs between two empty steps: mark is the second, the exit. */
static int flatten_child(struct build *build, struct hc_node *node)
{
    unsigned begin = build->n - 1;
    int rc = flatten(build, node->child, begin);
    if (rc) return rc;
    if (!add_step(build, NULL)) return PSM_CUDA_OUT_OF_MEMORY;
    unsigned end = build->n - 1;
    if (!node->child->n && !add_dep(build, begin)) return PSM_CUDA_OUT_OF_MEMORY;
    for (const struct hc_node *inner = node->child->first; inner; inner = inner->next)
        if (!inner->out.n && !add_dep(build, (unsigned)inner->mark)) return PSM_CUDA_OUT_OF_MEMORY;
    node->mark = end;
    return 0;
}

static int flatten(struct build *build, const struct hc_graph *graph, unsigned begin)
{
    struct hc_node **order;
    int rc = hc_graph_order(graph, &order, &build->bad);
    if (rc) return rc;
    for (size_t i = 0; i < graph->n && !rc; i++) {
        struct hc_node *node = order[i];
        bool ok = add_step(build, node->child ? NULL : node);
        for (size_t k = 0; k < node->in.n && ok; k++) ok = add_dep(build, (unsigned)node->in.at[k].node->mark);
        if (ok && !node->in.n && begin != NONE) ok = add_dep(build, begin);
        node->mark = build->n - 1;
        rc = !ok ? PSM_CUDA_OUT_OF_MEMORY : node->child ? flatten_child(build, node) : 0;
    }
    free(order);
    return rc;
}

/* ---- chains: which step runs in which internal stream. Steps that do not depend on each other, directly or not, never
 * share one: a step that blocks delays only what depends on it. ---- */

enum { REACH_LIMIT = 4096 }; /* for more steps the table of dependencies would be too large */

struct reach {
    uint64_t *bits;
    size_t words;
};

static void reach_begin(struct reach *reach, const struct build *build)
{
    reach->words = (build->n + 63) / 64;
    reach->bits = build->n <= REACH_LIMIT ? calloc(build->n * reach->words + 1, sizeof *reach->bits) : NULL;
    for (unsigned i = 0; reach->bits && i < build->n; i++) {
        uint64_t *mine = reach->bits + i * reach->words;
        for (unsigned k = 0; k < build->steps[i].n_deps; k++) {
            unsigned dep = build->deps[build->steps[i].first_dep + k];
            for (size_t w = 0; w < reach->words; w++) mine[w] |= reach->bits[dep * reach->words + w];
            mine[dep / 64] |= 1ull << dep % 64;
        }
    }
}

static bool reaches(const struct reach *reach, unsigned step, unsigned earlier)
{
    return reach->bits && reach->bits[step * reach->words + earlier / 64] >> earlier % 64 & 1;
}

static int step_device(const struct build *build, unsigned i)
{
    const struct hc_node *node = build->steps[i].node;
    return node ? node->device : -1;
}

static int assign_chains(struct build *build, struct hc_plan *plan)
{
    unsigned *tail = malloc((build->n + 1) * sizeof *tail), chains = 0;
    int *device = malloc((build->n + 1) * sizeof *device);
    struct reach reach;
    if (!tail || !device) {
        free(tail);
        free(device);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    reach_begin(&reach, build);
    for (unsigned i = 0; i < build->n; i++) {
        struct hc_step *step = &build->steps[i];
        int wanted = step_device(build, i);
        unsigned chosen = NONE;
        for (unsigned k = 0; k < step->n_deps && chosen == NONE; k++) {
            unsigned dep = build->deps[step->first_dep + k], chain = build->steps[dep].chain;
            if (tail[chain] == dep && (wanted < 0 || wanted == device[chain])) chosen = chain;
        }
        for (unsigned chain = 0; chain < chains && chosen == NONE && step->n_deps; chain++)
            if (reaches(&reach, i, tail[chain]) && (wanted < 0 || wanted == device[chain])) chosen = chain;
        if (chosen == NONE) {
            chosen = chains++;
            device[chosen] = wanted < 0 ? 0 : wanted;
        }
        tail[chosen] = i;
        step->chain = chosen;
    }
    free(reach.bits);
    free(tail);
    plan->chains = chains;
    plan->chain_device = device;
    return 0;
}

/* ---- plans ---- */

int hc_plan_new(struct hc_graph *clone, struct hc_plan **out, struct hc_node **bad)
{
    struct build build = {0};
    struct hc_plan *plan = calloc(1, sizeof *plan);
    int rc = plan ? flatten(&build, clone, NONE) : PSM_CUDA_OUT_OF_MEMORY;
    if (!rc) rc = assign_chains(&build, plan);
    if (rc) {
        if (bad && build.bad) *bad = build.bad;
        free(build.steps);
        free(build.deps);
        free(plan);
        return rc;
    }
    plan->references = 1;
    plan->graph = clone;
    plan->steps = build.steps;
    plan->n = build.n;
    plan->deps = build.deps;
    plan->n_deps = build.n_deps;
    *out = plan;
    return 0;
}

void hc_plan_put(struct hc_plan *plan)
{
    if (--plan->references) return;
    hc_graph_free(plan->graph);
    free(plan->steps);
    free(plan->deps);
    free(plan->chain_device);
    free(plan);
}

/* ---- executable graphs ---- */

int hc_exec_get(cudaGraphExec_t handle, struct hc_exec **exec)
{
    if (!handle) return PSM_CUDA_INVALID_VALUE;
    hc_graph_lock();
    *exec = hc_handle_get(HC_EXEC, (uintptr_t)handle);
    if (*exec) (*exec)->references++;
    hc_graph_unlock();
    return *exec ? 0 : PSM_CUDA_INVALID_HANDLE;
}

void hc_exec_put(struct hc_exec *exec)
{
    hc_graph_lock();
    bool last = --exec->references == 0;
    if (last) hc_plan_put(exec->plan);
    hc_graph_unlock();
    if (!last) return;
    for (unsigned i = 0; i < exec->n_streams; i++) /* work queued in them still runs */
        if (exec->streams[i]) hc_stream_put(exec->streams[i]);
    free(exec->streams);
    free(exec->stream_device);
    pthread_mutex_destroy(&exec->launching);
    free(exec);
}

/* ---- changes: launches that are queued or running keep the plan they have ---- */

int hc_exec_change(struct hc_exec *exec, int (*change)(struct hc_graph *clone, void *context), void *context)
{
    struct hc_graph *clone;
    struct hc_plan *plan;
    hc_graph_lock();
    int rc = hc_graph_clone(exec->plan->graph, false, &clone);
    if (!rc) {
        rc = change(clone, context);
        if (!rc) rc = hc_plan_new(clone, &plan, NULL);
        if (rc) hc_graph_free(clone);
    }
    if (!rc) {
        hc_plan_put(exec->plan);
        exec->plan = plan;
    }
    hc_graph_unlock();
    return rc;
}
