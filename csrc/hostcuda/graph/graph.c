/* Graphs as a data structure: nodes, edges, clones, and their lock. */
#define _GNU_SOURCE
#include "graph/hc_graph.h"

#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hc_payload *dead_payloads;
static struct hc_stream **put_streams; /* to give back */
static size_t n_put, room_put;
static unsigned last_id;

void hc_graph_lock(void)
{
    pthread_mutex_lock(&lock);
}

void hc_graph_unlock(void)
{
    struct hc_payload *payloads = dead_payloads;
    struct hc_stream **streams = put_streams;
    struct hc_user_object *objects = hc_objects_take_dead();
    size_t n = n_put;
    dead_payloads = NULL;
    put_streams = NULL;
    n_put = room_put = 0;
    pthread_mutex_unlock(&lock);
    while (payloads) {
        struct hc_payload *next = payloads->next;
        if (payloads->work.end) payloads->work.end(payloads->bytes);
        free(payloads);
        payloads = next;
    }
    for (size_t i = 0; i < n; i++) hc_stream_put(streams[i]);
    free(streams);
    hc_objects_destroy(objects);
}

void hc_later_put_stream(struct hc_stream *stream)
{
    if (n_put == room_put) {
        size_t room = room_put ? 2 * room_put : 8;
        struct hc_stream **more = realloc(put_streams, room * sizeof(struct hc_stream *));
        if (!more) return; /* the stream's memory stays: a dangling pointer does no harm */
        put_streams = more;
        room_put = room;
    }
    put_streams[n_put++] = stream;
}

/* ---- payloads ---- */

int hc_payload_new(const struct hc_work *work, struct hc_payload **payload)
{
    size_t at = (work->size + 15) & ~(size_t)15;
    size_t extra = work->node_parameters ? work->node_parameters_size : 0;
    struct hc_payload *p = aligned_alloc(16, (sizeof *p + at + extra + 15) & ~(size_t)15);
    if (!p) return PSM_CUDA_OUT_OF_MEMORY;
    p->references = 1;
    p->next = NULL;
    p->work = *work;
    if (work->size) memcpy(p->bytes, work->argument, work->size);
    p->work.argument = p->bytes;
    p->work.node_parameters = NULL;
    p->work.node_parameters_size = extra;
    if (extra) {
        memcpy(p->bytes + at, work->node_parameters, extra);
        p->work.node_parameters = p->bytes + at;
    }
    *payload = p;
    return 0;
}

int hc_payload_describe(struct hc_payload **payload, const void *parameters, size_t size)
{
    struct hc_payload *described;
    struct hc_work work = (*payload)->work;
    work.node_parameters = parameters;
    work.node_parameters_size = size;
    int rc = hc_payload_new(&work, &described);
    if (rc) return rc;
    free(*payload); /* nobody else can see it yet, and the new one owns the argument */
    *payload = described;
    return 0;
}

void hc_payload_put(struct hc_payload *payload)
{
    if (!payload || --payload->references) return;
    payload->next = dead_payloads;
    dead_payloads = payload;
}

/* ---- finding ---- */

int hc_graph_find(cudaGraph_t handle, struct hc_graph **graph)
{
    if (!handle) return PSM_CUDA_INVALID_VALUE;
    *graph = hc_handle_get(HC_GRAPH, (uintptr_t)handle);
    return *graph ? 0 : PSM_CUDA_INVALID_HANDLE;
}

int hc_node_find(cudaGraphNode_t handle, struct hc_node **node)
{
    if (!handle) return PSM_CUDA_INVALID_VALUE;
    *node = hc_handle_get(HC_NODE, (uintptr_t)handle);
    return *node ? 0 : PSM_CUDA_INVALID_HANDLE;
}

struct hc_node *hc_graph_find_origin(struct hc_graph *clone, uint64_t origin, bool deep)
{
    for (struct hc_node *node = clone->first; node; node = node->next) {
        if (node->origin == origin) return node;
        struct hc_node *inside = deep && node->child ? hc_graph_find_origin(node->child, origin, true) : NULL;
        if (inside) return inside;
    }
    return NULL;
}

/* ---- edges ---- */

static struct hc_edge *find_edge(struct hc_edges *edges, const struct hc_node *node)
{
    for (size_t i = 0; i < edges->n; i++)
        if (edges->at[i].node == node) return &edges->at[i];
    return NULL;
}

bool hc_edge_plain(CUgraphEdgeData data)
{
    static const CUgraphEdgeData plain;
    return memcmp(&data, &plain, sizeof data) == 0;
}

/* Only kernels have non-default ports and dependencies: 0..2, and programmatic from kernel to kernel. */
int hc_edge_check(const struct hc_node *from, int to_type, CUgraphEdgeData data)
{
    static const unsigned char zero[sizeof data.reserved];
    if (hc_edge_plain(data)) return 0;
    if (data.to_port || data.from_port > 2 || data.type > 1 || memcmp(data.reserved, zero, sizeof zero))
        return PSM_CUDA_INVALID_VALUE;
    if (from->type != cudaGraphNodeTypeKernel) return PSM_CUDA_INVALID_VALUE;
    if (data.type == 1 && (to_type != cudaGraphNodeTypeKernel || !data.from_port)) return PSM_CUDA_INVALID_VALUE;
    return 0;
}

static bool reserve(struct hc_edges *edges)
{
    if (edges->n < edges->room) return true;
    size_t room = edges->room ? 2 * edges->room : 4;
    struct hc_edge *more = realloc(edges->at, room * sizeof *more);
    if (!more) return false;
    edges->at = more;
    edges->room = room;
    return true;
}

int hc_edge_add(struct hc_node *from, struct hc_node *to, CUgraphEdgeData data)
{
    if (from == to || from->graph != to->graph || find_edge(&to->in, from)) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_edge_check(from, to->type, data);
    if (rc) return rc;
    if (!reserve(&from->out) || !reserve(&to->in)) return PSM_CUDA_OUT_OF_MEMORY;
    from->out.at[from->out.n++] = (struct hc_edge){to, data};
    to->in.at[to->in.n++] = (struct hc_edge){from, data};
    return 0;
}

static void take_out(struct hc_edges *edges, struct hc_edge *edge)
{
    size_t at = (size_t)(edge - edges->at);
    memmove(edge, edge + 1, (--edges->n - at) * sizeof *edge);
}

int hc_edge_remove(struct hc_node *from, struct hc_node *to, CUgraphEdgeData data)
{
    struct hc_edge *in = find_edge(&to->in, from);
    if (!in || memcmp(&in->data, &data, sizeof data)) return PSM_CUDA_INVALID_VALUE;
    take_out(&to->in, in);
    take_out(&from->out, find_edge(&from->out, to));
    return 0;
}

/* ---- nodes ---- */

static struct hc_node *node_append(struct hc_graph *graph, int type, bool handle)
{
    struct hc_node *node = calloc(1, sizeof *node);
    if (!node) return NULL;
    if (handle && !(node->handle = hc_handle_new(HC_NODE, node))) {
        free(node);
        return NULL;
    }
    node->graph = graph;
    node->type = type;
    node->id = graph->next_id++;
    node->previous = graph->last;
    if (graph->last)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    graph->n++;
    return node;
}

int hc_node_new(struct hc_graph *graph, int type, const cudaGraphNode_t *dependencies, const CUgraphEdgeData *data,
                size_t n, struct hc_node **out)
{
    static const CUgraphEdgeData plain;
    if (n && !dependencies) return PSM_CUDA_INVALID_VALUE;
    struct hc_node *node = node_append(graph, type, true);
    if (!node) return PSM_CUDA_OUT_OF_MEMORY;
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        struct hc_node *from;
        rc = hc_node_find(dependencies[i], &from);
        if (!rc) rc = hc_edge_add(from, node, data ? data[i] : plain);
    }
    if (rc)
        hc_node_free(node);
    else
        *out = node;
    return rc;
}

void hc_node_free(struct hc_node *node)
{
    struct hc_graph *graph = node->graph;
    for (size_t i = 0; i < node->in.n; i++)
        take_out(&node->in.at[i].node->out, find_edge(&node->in.at[i].node->out, node));
    for (size_t i = 0; i < node->out.n; i++)
        take_out(&node->out.at[i].node->in, find_edge(&node->out.at[i].node->in, node));
    if (node->handle) hc_handle_end(HC_NODE, node->handle);
    *(node->previous ? &node->previous->next : &graph->first) = node->next;
    *(node->next ? &node->next->previous : &graph->last) = node->previous;
    graph->n--;
    hc_payload_put(node->payload);
    if (node->child) hc_graph_free(node->child);
    free(node->in.at);
    free(node->out.at);
    free(node);
}

/* ---- graphs ---- */

int hc_graph_new(bool handle, struct hc_graph **out)
{
    struct hc_graph *graph = calloc(1, sizeof *graph);
    if (!graph) return PSM_CUDA_OUT_OF_MEMORY;
    if (handle && !(graph->handle = hc_handle_new(HC_GRAPH, graph))) {
        free(graph);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    graph->id = ++last_id;
    *out = graph;
    return 0;
}

void hc_graph_free(struct hc_graph *graph)
{
    if (graph->handle) hc_handle_end(HC_GRAPH, graph->handle);
    while (graph->last) { /* most edges point backwards, so the lists of edges stay short */
        graph->last->in.n = graph->last->out.n = 0;
        hc_node_free(graph->last);
    }
    hc_held_drop(graph);
    free(graph);
}

static int clone_edges(const struct hc_graph *graph, struct hc_node **twins)
{
    for (const struct hc_node *node = graph->first; node; node = node->next)
        for (size_t i = 0; i < node->in.n; i++) {
            int rc = hc_edge_add(twins[node->in.at[i].node->mark], twins[node->mark], node->in.at[i].data);
            if (rc) return rc;
        }
    return 0;
}

int hc_graph_clone(const struct hc_graph *graph, bool handles, struct hc_graph **out)
{
    struct hc_graph *clone;
    int rc = hc_graph_new(handles, &clone);
    if (rc) return rc;
    struct hc_node **twins = malloc((graph->n + 1) * sizeof(struct hc_node *));
    rc = twins ? hc_held_clone(graph, clone) : PSM_CUDA_OUT_OF_MEMORY;
    size_t n = 0;
    for (struct hc_node *node = graph->first; node && !rc; node = node->next) {
        struct hc_node *twin = twins[n] = node_append(clone, node->type, handles);
        if (!twin) {
            rc = PSM_CUDA_OUT_OF_MEMORY;
            break;
        }
        node->mark = n++;
        /* The clone of a plan belongs to a plan: its nodes keep the handles that the application has. */
        twin->origin = node->handle ? node->handle : node->origin;
        twin->device = node->device;
        twin->disabled = node->disabled;
        twin->event = node->event;
        twin->payload = node->payload;
        if (twin->payload) twin->payload->references++;
        if (node->child) rc = hc_graph_clone(node->child, handles, &twin->child);
        if (!rc && twin->child) twin->child->parent = twin;
    }
    if (!rc) rc = clone_edges(graph, twins);
    free(twins);
    if (rc)
        hc_graph_free(clone);
    else
        *out = clone;
    return rc;
}

bool hc_graph_allocates(const struct hc_graph *graph)
{
    for (const struct hc_node *node = graph->first; node; node = node->next)
        if (node->type == cudaGraphNodeTypeMemAlloc || node->type == cudaGraphNodeTypeMemFree ||
            (node->child && hc_graph_allocates(node->child)))
            return true;
    return false;
}

int hc_graph_order(const struct hc_graph *graph, struct hc_node ***out, struct hc_node **bad)
{
    struct hc_node **order = malloc((graph->n + 1) * sizeof(struct hc_node *));
    if (!order) return PSM_CUDA_OUT_OF_MEMORY;
    size_t n = 0;
    for (struct hc_node *node = graph->first; node; node = node->next) {
        node->mark = node->in.n;
        if (!node->mark) order[n++] = node;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < order[i]->out.n; k++)
            if (--order[i]->out.at[k].node->mark == 0) order[n++] = order[i]->out.at[k].node;
    if (n < graph->n) {
        struct hc_node *node = graph->first;
        while (!node->mark) node = node->next;
        if (bad) *bad = node;
        free(order);
        return PSM_CUDA_INVALID_VALUE;
    }
    *out = order;
    return 0;
}

/* ---- calls ---- */

cudaError_t hc_cudaGraphCreate(cudaGraph_t *pGraph, unsigned int flags)
{
    if (!pGraph || flags) return PSM_CUDA_INVALID_VALUE;
    struct hc_graph *graph;
    hc_graph_lock();
    int rc = hc_graph_new(true, &graph);
    if (!rc) *pGraph = (cudaGraph_t)(uintptr_t)graph->handle;
    hc_graph_unlock();
    return rc;
}

/* The application must not destroy a graph that is being captured into, or that belongs to a child graph node. */
cudaError_t hc_cudaGraphDestroy(cudaGraph_t handle)
{
    struct hc_graph *graph;
    hc_graph_lock();
    int rc = hc_graph_find(handle, &graph);
    if (!rc && (graph->sequence || graph->parent)) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc) hc_graph_free(graph);
    hc_graph_unlock();
    return rc;
}

cudaError_t hc_cudaGraphClone(cudaGraph_t *pGraphClone, cudaGraph_t originalGraph)
{
    if (!pGraphClone) return PSM_CUDA_INVALID_VALUE;
    struct hc_graph *graph, *clone;
    hc_graph_lock();
    int rc = hc_graph_find(originalGraph, &graph);
    if (!rc && hc_graph_allocates(graph)) rc = PSM_CUDA_NOT_SUPPORTED;
    if (!rc) rc = hc_graph_clone(graph, true, &clone);
    if (!rc) *pGraphClone = (cudaGraph_t)(uintptr_t)clone->handle;
    hc_graph_unlock();
    return rc;
}

cudaError_t hc_cudaGraphNodeFindInClone(cudaGraphNode_t *pNode, cudaGraphNode_t originalNode, cudaGraph_t clonedGraph)
{
    if (!pNode) return PSM_CUDA_INVALID_VALUE;
    struct hc_graph *clone;
    struct hc_node *original, *node = NULL;
    hc_graph_lock();
    int rc = hc_graph_find(clonedGraph, &clone);
    if (!rc) rc = hc_node_find(originalNode, &original);
    if (!rc && !(node = hc_graph_find_origin(clone, original->handle, false))) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc) *pNode = (cudaGraphNode_t)(uintptr_t)node->handle;
    hc_graph_unlock();
    return rc;
}

cudaError_t hc_cudaGraphDestroyNode(cudaGraphNode_t handle)
{
    struct hc_node *node;
    hc_graph_lock();
    int rc = hc_node_find(handle, &node);
    if (!rc && node->graph->sequence) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc && hc_graph_allocates(node->graph)) rc = PSM_CUDA_NOT_SUPPORTED;
    if (!rc) hc_node_free(node);
    hc_graph_unlock();
    return rc;
}

cudaError_t hc_cudaGraphGetId(cudaGraph_t hGraph, unsigned int *graphID)
{
    if (!graphID) return PSM_CUDA_INVALID_VALUE;
    struct hc_graph *graph;
    hc_graph_lock();
    int rc = hc_graph_find(hGraph, &graph);
    if (!rc) *graphID = graph->id;
    hc_graph_unlock();
    return rc;
}
