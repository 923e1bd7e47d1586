/* The calls that start, end, query and steer a capture, in the forms of both APIs. */
#include "graph/hc_capture.h"

static bool bad_mode(enum cudaStreamCaptureMode mode)
{
    return (unsigned)mode > cudaStreamCaptureModeRelaxed;
}

static int begin(cudaStream_t handle, bool to_graph, cudaGraph_t graph_handle, const CUgraphNode *nodes,
                 const CUgraphEdgeData *data, size_t n, enum cudaStreamCaptureMode mode)
{
    struct hc_stream *stream;
    struct hc_graph *graph = NULL;
    struct hc_sequence *sequence;
    struct hc_node *node;
    if (bad_mode(mode) || (n && !nodes)) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    hc_graph_lock();
    if (hc_stream_is_legacy(stream))
        rc = PSM_CUDA_STREAM_CAPTURE_UNSUPPORTED;
    else if (hc_capture_of(stream))
        rc = PSM_CUDA_ILLEGAL_STATE;
    if (!rc && to_graph) rc = hc_graph_find(graph_handle, &graph);
    if (!rc && graph && graph->sequence) rc = PSM_CUDA_ILLEGAL_STATE;
    for (size_t i = 0; i < n && !rc; i++) {
        rc = hc_node_find(nodes[i], &node);
        if (!rc && node->graph != graph) rc = PSM_CUDA_INVALID_VALUE;
    }
    if (!rc) rc = hc_sequence_begin(stream, (int)mode, graph, &sequence);
    if (!rc && n && (rc = hc_frontier_add(&sequence->origin->frontier, nodes, data, n, true)))
        hc_sequence_end(sequence, false);
    hc_graph_unlock();
    hc_stream_put(stream);
    return rc;
}

cudaError_t hc_cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return begin(stream, false, NULL, NULL, NULL, 0, mode);
}

cudaError_t hc_cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                             const cudaGraphNode_t *dependencies,
                                             const cudaGraphEdgeData *dependencyData, size_t numDependencies,
                                             enum cudaStreamCaptureMode mode)
{
    return begin(stream, true, graph, dependencies, dependencyData, numDependencies, mode);
}

/* If called for the wrong stream or thread, the capture goes on; in all other cases it is over. */
static int end(struct hc_stream *stream, cudaGraph_t *graph)
{
    struct hc_capture *part = hc_capture_of(stream);
    if (!part || !part->sequence) return PSM_CUDA_ILLEGAL_STATE;
    struct hc_sequence *sequence = part->sequence;
    if (sequence->origin != part) {
        sequence->invalid = true;
        return PSM_CUDA_STREAM_CAPTURE_UNMATCHED;
    }
    if (sequence->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(sequence->owner, pthread_self()))
        return PSM_CUDA_STREAM_CAPTURE_WRONG_THREAD;
    int rc = sequence->invalid ? PSM_CUDA_STREAM_CAPTURE_INVALIDATED : hc_sequence_joined(sequence);
    if (!rc) *graph = (cudaGraph_t)(uintptr_t)sequence->graph->handle;
    hc_sequence_end(sequence, rc == 0);
    return rc;
}

cudaError_t hc_cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *pGraph)
{
    struct hc_stream *stream;
    if (!pGraph) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    *pGraph = NULL;
    hc_graph_lock();
    rc = end(stream, pGraph);
    hc_graph_unlock();
    hc_stream_put(stream);
    return rc;
}

/* ---- asking ---- */

struct answer {
    enum cudaStreamCaptureStatus *status;
    unsigned long long *id;
    cudaGraph_t *graph;
    const cudaGraphNode_t **nodes;
    const cudaGraphEdgeData **data;
    size_t *n;
};

static int lossy(const struct hc_frontier *frontier)
{
    for (size_t i = 0; i < frontier->n; i++)
        if (!hc_edge_plain(frontier->data[i])) return PSM_CUDA_LOSSY_QUERY;
    return 0;
}

static int info(cudaStream_t handle, struct answer out)
{
    struct hc_stream *stream;
    if (!out.status || (out.data && !out.nodes)) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    hc_graph_lock();
    const struct hc_capture *part = hc_capture_of(stream);
    const struct hc_sequence *sequence = part ? part->sequence : NULL;
    if (hc_stream_is_legacy(stream) && hc_capture_blocks_legacy(hc_stream_device(stream), false))
        rc = PSM_CUDA_STREAM_CAPTURE_IMPLICIT;
    else
        *out.status = !sequence           ? cudaStreamCaptureStatusNone
                      : sequence->invalid ? cudaStreamCaptureStatusInvalidated
                                          : cudaStreamCaptureStatusActive;
    if (!rc && sequence && !sequence->invalid) {
        if (out.nodes && !out.data) rc = lossy(&part->frontier);
        if (out.id) *out.id = sequence->id;
        if (out.graph) *out.graph = (cudaGraph_t)(uintptr_t)sequence->graph->handle;
        if (out.nodes) *out.nodes = part->frontier.nodes;
        if (out.data) *out.data = part->frontier.data;
        if (out.n) *out.n = part->frontier.n;
    }
    hc_graph_unlock();
    hc_stream_put(stream);
    return rc;
}

cudaError_t hc_cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *pCaptureStatus)
{
    return info(stream, (struct answer){.status = pCaptureStatus});
}

cudaError_t hc_cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *captureStatus_out,
                                           unsigned long long *id_out, cudaGraph_t *graph_out,
                                           const cudaGraphNode_t **dependencies_out, size_t *numDependencies_out)
{
    return info(stream,
                (struct answer){captureStatus_out, id_out, graph_out, dependencies_out, NULL, numDependencies_out});
}

cudaError_t hc_cudaStreamGetCaptureInfo_v3(cudaStream_t stream, enum cudaStreamCaptureStatus *captureStatus_out,
                                           unsigned long long *id_out, cudaGraph_t *graph_out,
                                           const cudaGraphNode_t **dependencies_out,
                                           const cudaGraphEdgeData **edgeData_out, size_t *numDependencies_out)
{
    return info(stream, (struct answer){captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
                                        numDependencies_out});
}

/* The form of CUDA 10.1, which a libcudart of CUDA 11 still calls. */
CUresult hc_cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out)
{
    return info(hStream, (struct answer){.status = captureStatus_out, .id = id_out});
}

/* ---- steering ---- */

static bool has(const CUgraphNode *nodes, size_t n, CUgraphNode node)
{
    for (size_t i = 0; i < n; i++)
        if (nodes[i] == node) return true;
    return false;
}

static int update(struct hc_stream *stream, const CUgraphNode *nodes, const CUgraphEdgeData *data, size_t n,
                  bool replace)
{
    struct hc_capture *part = hc_capture_of(stream);
    struct hc_node *node;
    if (!part || !part->sequence) return PSM_CUDA_ILLEGAL_STATE;
    if (part->sequence->invalid) return PSM_CUDA_STREAM_CAPTURE_INVALIDATED;
    for (size_t i = 0; i < n; i++) {
        int rc = hc_node_find(nodes[i], &node);
        if (!rc && node->graph != part->sequence->graph) rc = PSM_CUDA_INVALID_VALUE;
        if (!rc && data) rc = hc_edge_check(node, cudaGraphNodeTypeKernel, data[i]);
        if (rc) return rc;
    }
    for (size_t i = 0; replace && i < part->frontier.n; i++) {
        node = hc_handle_get(HC_NODE, (uintptr_t)part->frontier.nodes[i]);
        if (node && !has(nodes, n, part->frontier.nodes[i])) hc_node_forgive(node);
    }
    return hc_frontier_add(&part->frontier, nodes, data, n, replace);
}

cudaError_t hc_cudaStreamUpdateCaptureDependencies_v2(cudaStream_t handle, cudaGraphNode_t *dependencies,
                                                      const cudaGraphEdgeData *dependencyData, size_t numDependencies,
                                                      unsigned int flags)
{
    struct hc_stream *stream;
    if (flags > cudaStreamSetCaptureDependencies || (numDependencies && !dependencies)) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    hc_graph_lock();
    rc = update(stream, dependencies, dependencyData, numDependencies, flags == cudaStreamSetCaptureDependencies);
    hc_graph_unlock();
    hc_stream_put(stream);
    return rc;
}

cudaError_t hc_cudaStreamUpdateCaptureDependencies__13(cudaStream_t stream, cudaGraphNode_t *dependencies,
                                                       const cudaGraphEdgeData *dependencyData, size_t numDependencies,
                                                       unsigned int flags)
{
    return hc_cudaStreamUpdateCaptureDependencies_v2(stream, dependencies, dependencyData, numDependencies, flags);
}

CUresult hc_cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies, size_t numDependencies,
                                              unsigned int flags)
{
    return hc_cudaStreamUpdateCaptureDependencies_v2(hStream, dependencies, NULL, numDependencies, flags);
}
