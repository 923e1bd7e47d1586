/* Launching: the steps of a plan go into internal streams, between a first and a last piece of work in the stream of
 * the launch. Those two obey the rules of that stream; the last one keeps the plan alive until all steps are done. */
#include "graph/hc_graph.h"

#include <stdlib.h>

static int nothing(void *argument, int device)
{
    (void)argument, (void)device;
    return 0;
}

static void put_plan(void *argument)
{
    hc_graph_lock();
    hc_plan_put(*(struct hc_plan **)argument);
    hc_graph_unlock();
}

/* One launch, on the stack of the call. */
struct launch {
    struct hc_plan *plan;
    struct hc_ticket *tickets; /* of the steps */
    struct hc_ticket *deps;    /* room for the dependencies of one step, and for the leaves */
    struct hc_event **events;  /* events of steps that record or wait, held */
    struct hc_ticket head;
};

static void launch_end(struct launch *launch)
{
    for (unsigned i = 0; launch->events && i < launch->plan->n; i++)
        if (launch->events[i]) hc_event_put(launch->events[i]);
    free(launch->events);
    free(launch->tickets);
    free(launch->deps);
}

/* Check everything that can fail through the application's fault before anything is queued. */
static int launch_begin(struct launch *launch, struct hc_plan *plan)
{
    *launch = (struct launch){.plan = plan};
    launch->tickets = malloc((plan->n + 1) * sizeof *launch->tickets);
    launch->deps = malloc((plan->n + plan->n_deps + 1) * sizeof *launch->deps);
    launch->events = calloc(plan->n + 1, sizeof(struct hc_event *));
    if (!launch->tickets || !launch->deps || !launch->events) return PSM_CUDA_OUT_OF_MEMORY;
    for (unsigned i = 0; i < plan->n; i++) {
        const struct hc_node *node = plan->steps[i].node;
        if (!node || !node->event) continue;
        int rc = hc_event_get(node->event, &launch->events[i]);
        if (rc) {
            launch->events[i] = NULL;
            return rc;
        }
    }
    return 0;
}

/* One internal stream per chain, kept between launches. */
static int prepare_streams(struct hc_exec *exec, const struct hc_plan *plan)
{
    if (plan->chains > exec->n_streams) {
        struct hc_stream **streams = realloc(exec->streams, plan->chains * sizeof(struct hc_stream *));
        if (!streams) return PSM_CUDA_OUT_OF_MEMORY;
        exec->streams = streams;
        while (exec->n_streams < plan->chains) streams[exec->n_streams++] = NULL;
    }
    for (unsigned chain = 0; chain < plan->chains; chain++) {
        struct hc_stream **slot = &exec->streams[chain];
        if (*slot && hc_stream_device(*slot) == plan->chain_device[chain]) continue;
        if (*slot) hc_stream_put(*slot);
        *slot = NULL;
        int rc = hc_stream_internal(plan->chain_device[chain], slot);
        if (rc) return rc;
    }
    return 0;
}

/* What a step waits for: nothing in its own chain, where the order is enough. Roots wait for the head of the launch. */
static size_t deps_of(const struct launch *launch, unsigned i)
{
    const struct hc_plan *plan = launch->plan;
    const struct hc_step *step = &plan->steps[i];
    size_t n = 0;
    for (unsigned k = 0; k < step->n_deps; k++) {
        unsigned dep = plan->deps[step->first_dep + k];
        if (plan->steps[dep].chain != step->chain) launch->deps[n++] = launch->tickets[dep];
    }
    if (!step->n_deps) launch->deps[n++] = launch->head;
    return n;
}

static int submit_step(const struct launch *launch, const struct hc_exec *exec, unsigned i)
{
    const struct hc_step *step = &launch->plan->steps[i];
    const struct hc_node *node = step->node;
    struct hc_stream *stream = exec->streams[step->chain];
    struct hc_ticket *ticket = &launch->tickets[i];
    struct hc_event *event = launch->events[i];
    size_t n = deps_of(launch, i);
    if (event && node->type == cudaGraphNodeTypeEventRecord)
        return hc_event_submit(event, stream, launch->deps, n, ticket);
    if (event) return hc_event_submit_wait(event, stream, launch->deps, n, ticket);
    struct hc_work work = {.run = nothing, .flags = HC_WORK_QUICK};
    if (node && node->payload && !node->disabled) {
        work = node->payload->work;
        work.end = NULL; /* the payload lives as long as the plan */
    }
    return hc_submit_after(stream, &work, launch->deps, n, ticket);
}

static int submit_all(struct hc_exec *exec, struct launch *launch, struct hc_stream *stream)
{
    struct hc_plan *plan = launch->plan;
    struct hc_work head = {.run = nothing, .flags = HC_WORK_QUICK};
    struct hc_work last = {.run = nothing, .end = put_plan, .size = sizeof plan, .argument = &plan};
    last.flags = HC_WORK_QUICK;
    hc_graph_lock();
    plan->references++;
    hc_graph_unlock();
    int rc = hc_submit_after(stream, &head, &exec->last, 1, &launch->head);
    unsigned done = 0;
    while (!rc && done < plan->n) {
        rc = submit_step(launch, exec, done);
        if (!rc) done++;
    }
    /* If memory runs out on the way, the steps already queued run and must still be waited for. */
    size_t n = 0;
    for (unsigned i = 0; i < done; i++)
        if (plan->steps[i].leaf || done < plan->n) launch->deps[n++] = launch->tickets[i];
    int ended = hc_submit_after(stream, &last, launch->deps, n, &exec->last);
    if (ended && !done) put_plan(&plan); /* otherwise leak the plan: its steps may still run */
    return rc ? rc : ended;
}

static int launch_plan(struct hc_exec *exec, struct hc_plan *plan, struct hc_stream *stream)
{
    struct launch launch;
    int rc = launch_begin(&launch, plan);
    if (!rc) rc = prepare_streams(exec, plan);
    if (!rc) rc = submit_all(exec, &launch, stream);
    launch_end(&launch);
    return rc;
}

static int launch_on(struct hc_exec *exec, struct hc_stream *stream)
{
    int rc = hc_stream_is_legacy(stream) ? hc_capture_forbids(true) : 0;
    if (rc) return rc;
    pthread_mutex_lock(&exec->launching);
    hc_graph_lock();
    struct hc_plan *plan = exec->plan;
    plan->references++;
    rc = hc_capture_child(stream, plan->graph);
    hc_graph_unlock();
    if (rc == HC_NOT_CAPTURED) rc = launch_plan(exec, plan, stream);
    put_plan(&plan);
    pthread_mutex_unlock(&exec->launching);
    return rc;
}

/* There is nothing to upload, but the call has a visible place in the order. */
static int upload_on(struct hc_exec *exec, struct hc_stream *stream)
{
    struct hc_work work = {.run = nothing, .flags = HC_WORK_QUICK};
    int rc = hc_stream_is_legacy(stream) ? hc_capture_forbids(true) : hc_captures->forbids_stream(stream);
    if (rc) return rc;
    pthread_mutex_lock(&exec->launching);
    struct hc_ticket before = exec->last;
    rc = hc_submit_after(stream, &work, &before, 1, &exec->last);
    pthread_mutex_unlock(&exec->launching);
    return rc;
}

static int with_stream(cudaGraphExec_t graph, cudaStream_t handle, int (*act)(struct hc_exec *, struct hc_stream *))
{
    struct hc_stream *stream;
    struct hc_exec *exec;
    int rc = hc_exec_get(graph, &exec);
    if (rc) return rc;
    rc = hc_stream_get(handle, &stream);
    if (!rc) {
        rc = act(exec, stream);
        hc_stream_put(stream);
    }
    hc_exec_put(exec);
    return rc;
}

cudaError_t hc_cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t handle)
{
    return with_stream(graphExec, handle, launch_on);
}

cudaError_t hc_cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t handle)
{
    return with_stream(graphExec, handle, upload_on);
}
