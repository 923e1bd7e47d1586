/* Captures: work on a stream becomes nodes of a graph; events extend a capture to other streams. */
#define _GNU_SOURCE
#include "graph/hc_capture.h"

#include <stdlib.h>
#include <string.h>

static struct hc_sequence *sequences; /* in progress, including invalidated ones */
static unsigned long long last_id;

static _Thread_local int thread_mode; /* enum cudaStreamCaptureMode */

struct hc_capture *hc_capture_of(struct hc_stream *stream)
{
    return __atomic_load_n(hc_stream_capture(stream), __ATOMIC_ACQUIRE);
}

static void set_capture(struct hc_stream *stream, struct hc_capture *capture)
{
    __atomic_store_n(hc_stream_capture(stream), capture, __ATOMIC_RELEASE);
}

/* ---- frontiers ---- */

/* The arrays may be those of the frontier itself: applications pass them back. */
int hc_frontier_add(struct hc_frontier *frontier, const CUgraphNode *nodes, const CUgraphEdgeData *data, size_t n,
                    bool replace)
{
    static const CUgraphEdgeData plain;
    size_t kept = replace ? 0 : frontier->n;
    CUgraphNode *new_nodes = malloc((kept + n + 1) * sizeof(CUgraphNode));
    CUgraphEdgeData *new_data = malloc((kept + n + 1) * sizeof *new_data);
    if (!new_nodes || !new_data) {
        free(new_nodes);
        free(new_data);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    if (kept) {
        memcpy(new_nodes, frontier->nodes, kept * sizeof(CUgraphNode));
        memcpy(new_data, frontier->data, kept * sizeof *new_data);
    }
    for (size_t i = 0; i < n; i++) {
        size_t at = 0;
        while (at < kept && new_nodes[at] != nodes[i]) at++;
        if (at < kept) continue;
        new_nodes[kept] = nodes[i];
        new_data[kept++] = data ? data[i] : plain;
    }
    free(frontier->nodes);
    free(frontier->data);
    *frontier = (struct hc_frontier){new_nodes, new_data, kept};
    return 0;
}

static void frontier_free(struct hc_frontier *frontier)
{
    free(frontier->nodes);
    free(frontier->data);
    *frontier = (struct hc_frontier){0};
}

/* ---- sequences ---- */

static struct hc_capture *join(struct hc_sequence *sequence, struct hc_stream *stream)
{
    struct hc_capture *part = calloc(1, sizeof *part);
    if (!part) return NULL;
    atomic_fetch_add(&stream->refs, 1);
    part->sequence = sequence;
    part->stream = stream;
    part->next = sequence->parts;
    sequence->parts = part;
    set_capture(stream, part);
    return part;
}

int hc_sequence_begin(struct hc_stream *stream, int mode, struct hc_graph *graph, struct hc_sequence **out)
{
    struct hc_sequence *sequence = calloc(1, sizeof *sequence);
    if (!sequence) return PSM_CUDA_OUT_OF_MEMORY;
    sequence->borrowed = graph != NULL;
    int rc = graph ? 0 : hc_graph_new(true, &graph);
    sequence->graph = graph;
    if (!rc && !(sequence->origin = join(sequence, stream))) rc = PSM_CUDA_OUT_OF_MEMORY;
    if (rc) {
        if (graph && !sequence->borrowed) hc_graph_free(graph);
        free(sequence);
        return rc;
    }
    graph->sequence = sequence;
    sequence->id = ++last_id;
    sequence->mode = mode;
    sequence->owner = pthread_self();
    sequence->next = sequences;
    sequences = sequence;
    atomic_fetch_add(&hc_captures_running, 1);
    *out = sequence;
    return 0;
}

/* The graph stays; from now on its points only say that their events were captured. */
void hc_sequence_end(struct hc_sequence *sequence, bool keep)
{
    struct hc_sequence **link = &sequences;
    while (*link != sequence) link = &(*link)->next;
    *link = sequence->next;
    atomic_fetch_sub(&hc_captures_running, 1);
    while (sequence->parts) {
        struct hc_capture *part = sequence->parts;
        sequence->parts = part->next;
        if (hc_capture_of(part->stream) == part) set_capture(part->stream, NULL);
        hc_later_put_stream(part->stream);
        frontier_free(&part->frontier);
        free(part);
    }
    while (sequence->points) {
        struct hc_capture_point *point = sequence->points;
        sequence->points = point->next;
        point->sequence = NULL;
        point->next = point->previous = NULL;
        frontier_free(&point->frontier);
    }
    sequence->graph->sequence = NULL;
    if (!keep && !sequence->borrowed) hc_graph_free(sequence->graph);
    free(sequence);
}

/* Marks everything that `frontier` depends on, including itself, with 1 and everything else with 0. */
static int mark_behind(struct hc_graph *graph, struct hc_node *const *from, size_t n)
{
    struct hc_node **stack = malloc((graph->n + 1) * sizeof(struct hc_node *));
    if (!stack) return PSM_CUDA_OUT_OF_MEMORY;
    for (struct hc_node *node = graph->first; node; node = node->next) node->mark = 0;
    size_t depth = 0;
    for (size_t i = 0; i < n; i++)
        if (from[i] && !from[i]->mark) from[i]->mark = 1, stack[depth++] = from[i];
    while (depth) {
        struct hc_node *node = stack[--depth];
        for (size_t i = 0; i < node->in.n; i++)
            if (!node->in.at[i].node->mark) node->in.at[i].node->mark = 1, stack[depth++] = node->in.at[i].node;
    }
    free(stack);
    return 0;
}

void hc_node_forgive(struct hc_node *node)
{
    struct hc_graph *graph = node->graph;
    if (!graph->sequence || mark_behind(graph, &node, 1)) return;
    for (struct hc_node *each = graph->first; each; each = each->next)
        if (each->mark) each->captured = false;
}

int hc_sequence_joined(struct hc_sequence *sequence)
{
    struct hc_frontier *end = &sequence->origin->frontier;
    struct hc_node **nodes = malloc((end->n + 1) * sizeof(struct hc_node *));
    if (!nodes) return PSM_CUDA_OUT_OF_MEMORY;
    for (size_t i = 0; i < end->n; i++) nodes[i] = hc_handle_get(HC_NODE, (uintptr_t)end->nodes[i]);
    int rc = mark_behind(sequence->graph, nodes, end->n);
    free(nodes);
    for (struct hc_capture *part = sequence->parts; part && !rc; part = part->next)
        for (size_t i = 0; i < part->frontier.n && !rc; i++) {
            const struct hc_node *node = hc_handle_get(HC_NODE, (uintptr_t)part->frontier.nodes[i]);
            if (node && node->captured && !node->mark) rc = PSM_CUDA_STREAM_CAPTURE_UNJOINED;
        }
    return rc;
}

/* ---- work ---- */

/* Adds a node after the frontier of a stream; it becomes the new frontier. */
static int append(struct hc_capture *part, int type, struct hc_node **out)
{
    struct hc_frontier *frontier = &part->frontier;
    struct hc_node *node;
    if (part->sequence->invalid) return PSM_CUDA_STREAM_CAPTURE_INVALIDATED;
    int rc = hc_node_new(part->sequence->graph, type, frontier->nodes, frontier->data, frontier->n, &node);
    if (rc) return rc;
    CUgraphNode handle = (CUgraphNode)(uintptr_t)node->handle;
    rc = hc_frontier_add(frontier, &handle, NULL, 1, true);
    if (rc) {
        hc_node_free(node);
        return rc;
    }
    node->device = hc_stream_device(part->stream);
    node->captured = true;
    *out = node;
    return 0;
}

static int take_work(struct hc_stream *stream, const struct hc_work *work)
{
    struct hc_payload *payload;
    struct hc_node *node;
    int rc = hc_payload_new(work, &payload);
    if (rc) return rc;
    hc_graph_lock();
    struct hc_capture *part = hc_capture_of(stream);
    if (!part) {
        rc = HC_NOT_CAPTURED;
    } else if (!part->sequence) { /* hc_payload_record */
        rc = part->collected ? PSM_CUDA_NOT_SUPPORTED : 0;
        if (!rc) part->collected = payload;
    } else {
        rc = append(part, work->node_type, &node);
        if (!rc) node->payload = payload;
    }
    if (rc) {
        /* The caller still owns the work and ends it, but without the payload's copy. */
        payload->work.end = NULL;
        hc_payload_put(payload);
    }
    hc_graph_unlock();
    return rc;
}

int hc_payload_record(int (*call)(cudaStream_t stream, void *context), void *context, struct hc_payload **payload)
{
    cudaStream_t handle;
    struct hc_stream *stream;
    struct hc_capture part = {0};
    int rc = hc_cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking);
    if (rc) return rc;
    rc = hc_stream_get(handle, &stream);
    if (!rc) {
        set_capture(stream, &part);
        rc = call(handle, context);
        set_capture(stream, NULL);
        hc_stream_put(stream);
    }
    hc_cudaStreamDestroy(handle);
    if (!rc) {
        *payload = part.collected; /* NULL: nothing to do */
    } else if (part.collected) {
        hc_graph_lock();
        hc_payload_put(part.collected);
        hc_graph_unlock();
    }
    return rc;
}

int hc_capture_child(struct hc_stream *stream, const struct hc_graph *child)
{
    struct hc_node *node;
    struct hc_graph *clone;
    struct hc_capture *part = hc_capture_of(stream);
    if (!part || !part->sequence) return HC_NOT_CAPTURED;
    int rc = hc_graph_clone(child, true, &clone);
    if (rc) return rc;
    rc = append(part, cudaGraphNodeTypeGraph, &node);
    if (rc) {
        hc_graph_free(clone);
        return rc;
    }
    node->child = clone;
    clone->parent = node;
    return 0;
}

/* ---- events ---- */

static void point_unlink(struct hc_capture_point *point)
{
    if (!point->sequence) return;
    *(point->previous ? &point->previous->next : &point->sequence->points) = point->next;
    if (point->next) point->next->previous = point->previous;
}

static void point_free(struct hc_capture_point *point)
{
    point_unlink(point);
    frontier_free(&point->frontier);
    free(point);
}

static struct hc_capture_point *point_of(struct hc_event *event)
{
    return __atomic_load_n(hc_event_capture(event), __ATOMIC_ACQUIRE);
}

static void set_point(struct hc_event *event, struct hc_capture_point *point)
{
    struct hc_capture_point *old = point_of(event);
    __atomic_store_n(hc_event_capture(event), point, __ATOMIC_RELEASE);
    if (old) point_free(old);
}

static void event_ends(struct hc_event *event)
{
    hc_graph_lock();
    set_point(event, NULL);
    hc_graph_unlock();
}

/* Event record and wait nodes keep the handle; the event is looked up when the graph is launched. */
static int append_event(struct hc_capture *part, int type, CUevent handle)
{
    struct hc_node *node;
    int rc = append(part, type, &node);
    if (!rc) node->event = handle;
    return rc;
}

static int record_inside(struct hc_capture *part, struct hc_event *event)
{
    struct hc_sequence *sequence = part->sequence;
    if (sequence->invalid) return PSM_CUDA_STREAM_CAPTURE_INVALIDATED;
    struct hc_capture_point *point = calloc(1, sizeof *point);
    if (!point) return PSM_CUDA_OUT_OF_MEMORY;
    int rc = hc_frontier_add(&point->frontier, part->frontier.nodes, part->frontier.data, part->frontier.n, true);
    if (rc) {
        free(point);
        return rc;
    }
    point->sequence = sequence;
    point->next = sequence->points;
    if (point->next) point->next->previous = point;
    sequence->points = point;
    set_point(event, point);
    return 0;
}

static int record_event(struct hc_stream *stream, CUevent handle, unsigned flags)
{
    struct hc_event *event;
    int rc = hc_event_get(handle, &event);
    if (rc) return rc;
    hc_graph_lock();
    struct hc_capture *part = hc_capture_of(stream);
    if (!part || !part->sequence) {
        set_point(event, NULL); /* an ordinary record: it replaces the captured one */
        rc = HC_NOT_CAPTURED;
    } else if (flags & HC_EVENT_EXTERNAL) {
        rc = append_event(part, cudaGraphNodeTypeEventRecord, handle);
    } else {
        rc = record_inside(part, event);
    }
    hc_graph_unlock();
    hc_event_put(event);
    return rc;
}

/* A stream that is not capturing waits for a captured event: it joins the capture. */
static int pull_in(struct hc_stream *stream, const struct hc_capture_point *point)
{
    if (!point->sequence) return PSM_CUDA_CAPTURED_EVENT;
    if (point->sequence->invalid) return PSM_CUDA_STREAM_CAPTURE_INVALIDATED;
    if (hc_stream_is_legacy(stream)) {
        point->sequence->invalid = true;
        return PSM_CUDA_STREAM_CAPTURE_IMPLICIT;
    }
    struct hc_frontier copy = {0};
    int rc = hc_frontier_add(&copy, point->frontier.nodes, point->frontier.data, point->frontier.n, true);
    if (rc) return rc;
    struct hc_capture *part = join(point->sequence, stream);
    if (!part) {
        frontier_free(&copy);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    part->frontier = copy;
    return 0;
}

static int wait_inside(struct hc_capture *part, const struct hc_capture_point *point)
{
    struct hc_sequence *sequence = part->sequence;
    if (sequence->invalid) return PSM_CUDA_STREAM_CAPTURE_INVALIDATED;
    if (!point || !point->sequence) { /* recorded outside of this capture, or in one that has ended */
        sequence->invalid = true;
        return PSM_CUDA_STREAM_CAPTURE_ISOLATION;
    }
    if (point->sequence != sequence) {
        sequence->invalid = point->sequence->invalid = true;
        return PSM_CUDA_STREAM_CAPTURE_MERGE;
    }
    return hc_frontier_add(&part->frontier, point->frontier.nodes, point->frontier.data, point->frontier.n, false);
}

static int wait_event(struct hc_stream *stream, CUevent handle, unsigned flags)
{
    struct hc_event *event;
    int rc = hc_event_get(handle, &event);
    if (rc) return rc;
    hc_graph_lock();
    struct hc_capture *part = hc_capture_of(stream);
    const struct hc_capture_point *point = point_of(event);
    if (part && part->sequence)
        rc = flags & HC_EVENT_EXTERNAL ? append_event(part, cudaGraphNodeTypeWaitEvent, handle)
                                       : wait_inside(part, point);
    else
        rc = point && !(flags & HC_EVENT_EXTERNAL) ? pull_in(stream, point) : HC_NOT_CAPTURED;
    hc_graph_unlock();
    hc_event_put(event);
    return rc;
}

static int forbids_event(CUevent handle)
{
    struct hc_event *event;
    int rc = hc_event_get(handle, &event);
    if (rc) return rc;
    hc_graph_lock();
    const struct hc_capture_point *point = point_of(event);
    if (point) {
        rc = PSM_CUDA_CAPTURED_EVENT;
        if (point->sequence) point->sequence->invalid = true;
    }
    hc_graph_unlock();
    hc_event_put(event);
    return rc;
}

/* ---- what must not be done meanwhile ---- */

bool hc_capture_blocks_legacy(int device, bool invalidate)
{
    bool found = false;
    for (struct hc_sequence *sequence = sequences; sequence; sequence = sequence->next)
        for (struct hc_capture *part = sequence->parts; part; part = part->next)
            if (hc_stream_is_blocking(part->stream) && hc_stream_device(part->stream) == device) {
                found = true;
                if (invalidate) sequence->invalid = true;
            }
    return found;
}

/* Whether this thread may make a call that is unsafe during a capture: cudaThreadExchangeStreamCaptureMode. */
static int unsafe_call(void)
{
    int rc = 0;
    if (thread_mode == cudaStreamCaptureModeRelaxed) return 0;
    for (struct hc_sequence *sequence = sequences; sequence; sequence = sequence->next) {
        bool mine = pthread_equal(sequence->owner, pthread_self()) && sequence->mode != cudaStreamCaptureModeRelaxed;
        bool global = thread_mode == cudaStreamCaptureModeGlobal && sequence->mode == cudaStreamCaptureModeGlobal;
        if (!mine && !global) continue;
        sequence->invalid = true;
        rc = PSM_CUDA_STREAM_CAPTURE_UNSUPPORTED;
    }
    return rc;
}

static int forbids(bool legacy_stream)
{
    int rc;
    hc_graph_lock();
    if (legacy_stream)
        rc = hc_capture_blocks_legacy(hc_current_device(), true) ? PSM_CUDA_STREAM_CAPTURE_IMPLICIT : 0;
    else
        rc = unsafe_call();
    hc_graph_unlock();
    return rc;
}

static int forbids_stream(struct hc_stream *stream)
{
    int rc = 0;
    hc_graph_lock();
    struct hc_capture *part = hc_capture_of(stream);
    if (part && part->sequence) {
        rc = PSM_CUDA_STREAM_CAPTURE_UNSUPPORTED;
        part->sequence->invalid = true;
    }
    hc_graph_unlock();
    return rc;
}

static int forbids_device(int device)
{
    int rc = 0;
    hc_graph_lock();
    for (struct hc_sequence *sequence = sequences; sequence; sequence = sequence->next)
        for (struct hc_capture *part = sequence->parts; part; part = part->next)
            if (hc_stream_device(part->stream) == device) {
                rc = PSM_CUDA_STREAM_CAPTURE_UNSUPPORTED;
                sequence->invalid = true;
            }
    hc_graph_unlock();
    return rc;
}

/* A stream that joined may be destroyed: what it captured must still be joined. Without the stream that started the
 * capture nobody could end it. */
static void stream_ends(struct hc_stream *stream)
{
    hc_graph_lock();
    struct hc_capture *part = hc_capture_of(stream);
    if (part && part->sequence) {
        if (part->sequence->origin == part)
            hc_sequence_end(part->sequence, false);
        else
            set_capture(stream, NULL);
    }
    hc_graph_unlock();
}

static const struct hc_captures captures = {.work = take_work,
                                            .record = record_event,
                                            .wait = wait_event,
                                            .forbids = forbids,
                                            .forbids_stream = forbids_stream,
                                            .forbids_device = forbids_device,
                                            .forbids_event = forbids_event,
                                            .stream_ends = stream_ends,
                                            .event_ends = event_ends};

__attribute__((constructor)) static void register_captures(void)
{
    hc_captures = &captures;
}

cudaError_t hc_cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    if (!mode || (unsigned)*mode > cudaStreamCaptureModeRelaxed) return PSM_CUDA_INVALID_VALUE;
    int old = thread_mode;
    thread_mode = (int)*mode;
    *mode = (enum cudaStreamCaptureMode)old;
    return 0;
}
