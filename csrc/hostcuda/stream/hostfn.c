/* Functions of the application that a stream calls. They run on workers, never in the submitting thread, and must not
 * call CUDA. */
#define _GNU_SOURCE
#include "stream/hc_stream.h"

struct host_function {
    CUhostFn function;
    void *data;
};

static int call_function(void *argument, int device)
{
    (void)device;
    const struct host_function *host = argument;
    host->function(host->data);
    return 0;
}

static int launch(cudaStream_t handle, CUhostFn function, void *data)
{
    if (!function) return PSM_CUDA_INVALID_VALUE;
    struct hc_stream *stream;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    /* The common start of cudaHostNodeParams and CUDA_HOST_NODE_PARAMS. */
    struct host_function host = {function, data};
    struct hc_work work = {.run = call_function,
                           .size = sizeof host,
                           .argument = &host,
                           .flags = HC_WORK_BLOCKS | HC_WORK_HOST_FUNCTION,
                           .node_type = 3,
                           .node_parameters = &host,
                           .node_parameters_size = sizeof host};
    rc = hc_submit(stream, &work, NULL);
    hc_stream_put(stream);
    return rc;
}

cudaError_t hc_cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData)
{
    return launch(stream, fn, userData);
}

/* syncMode says how a thread waits for tasks (blocking or spinning), which has no visible effect. */
cudaError_t hc_cudaLaunchHostFunc_v2(cudaStream_t stream, cudaHostFn_t fn, void *userData, unsigned int syncMode)
{
    return syncMode > 1 ? PSM_CUDA_INVALID_VALUE : launch(stream, fn, userData);
}

/* ---- cudaStreamAddCallback, which receives the stream and its state ---- */

struct callback {
    CUstreamCallback function;
    void *data;
    CUstream stream;
};

static int call_callback(void *argument, int device)
{
    const struct callback *callback = argument;
    callback->function(callback->stream, hc_device_sticky(device), callback->data);
    return 0;
}

static int add_callback(cudaStream_t handle, CUstreamCallback function, void *data, unsigned flags)
{
    if (!function || flags) return PSM_CUDA_INVALID_VALUE;
    struct hc_stream *stream;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    if (hc_is_captured(stream)) { /* cannot become a node */
        rc = hc_captures->forbids_stream(stream);
        hc_stream_put(stream);
        return rc ? rc : PSM_CUDA_STREAM_CAPTURE_UNSUPPORTED;
    }
    struct callback callback = {function, data, handle};
    struct hc_work work = {.run = call_callback,
                           .size = sizeof callback,
                           .argument = &callback,
                           .flags = HC_WORK_BLOCKS | HC_WORK_HOST_FUNCTION | HC_WORK_AFTER_ERROR,
                           .node_type = 3};
    rc = hc_submit(stream, &work, NULL);
    hc_stream_put(stream);
    return rc;
}

cudaError_t hc_cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *userData,
                                     unsigned int flags)
{
    return add_callback(stream, callback, userData, flags);
}
