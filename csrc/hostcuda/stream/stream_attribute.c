/* Attributes of a stream. Only the priority is visible: workers take streams in turn, so that it is just a stored
 * number. */
#include "stream/hc_stream.h"

enum { ATTRIBUTE_WINDOW = 1, ATTRIBUTE_SYNC = 3, ATTRIBUTE_PRIORITY = 8, ATTRIBUTE_MAP = 9, ATTRIBUTE_DOMAIN = 10 };

static cudaLaunchAttributeValue *attribute_of(struct hc_stream *stream, cudaLaunchAttributeID which)
{
    switch ((int)which) {
    case ATTRIBUTE_WINDOW:
        return &stream->attributes->window;
    case ATTRIBUTE_SYNC:
        return &stream->attributes->sync;
    case ATTRIBUTE_PRIORITY:
        return &stream->attributes->priority;
    case ATTRIBUTE_MAP:
        return &stream->attributes->map;
    case ATTRIBUTE_DOMAIN:
        return &stream->attributes->domain;
    default:
        return NULL; /* of launches and graph nodes only */
    }
}

static bool attribute_valid(cudaLaunchAttributeID which, const cudaLaunchAttributeValue *value)
{
    switch ((int)which) {
    case ATTRIBUTE_WINDOW:
        return value->accessPolicyWindow.hitRatio >= 0 && value->accessPolicyWindow.hitRatio <= 1 &&
               value->accessPolicyWindow.missProp != cudaAccessPropertyPersisting;
    case ATTRIBUTE_SYNC:
        return value->syncPolicy >= 1 && value->syncPolicy <= 4;
    case ATTRIBUTE_PRIORITY:
        return value->priority <= HC_PRIORITY_LEAST && value->priority >= HC_PRIORITY_GREATEST;
    case ATTRIBUTE_MAP:
        return value->memSyncDomainMap.default_ < 4 && value->memSyncDomainMap.remote < 4;
    default:
        return value->memSyncDomain == 0 || value->memSyncDomain == 1;
    }
}

static int attribute(cudaStream_t handle, cudaLaunchAttributeID which, cudaLaunchAttributeValue *out,
                     const cudaLaunchAttributeValue *in)
{
    struct hc_stream *stream;
    if (!out && !in) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    cudaLaunchAttributeValue *value = attribute_of(stream, which);
    if (!value || (in && !attribute_valid(which, in))) {
        rc = PSM_CUDA_INVALID_VALUE;
    } else {
        pthread_mutex_lock(&hc_queue_lock);
        if (in)
            *value = *in;
        else
            *out = *value;
        pthread_mutex_unlock(&hc_queue_lock);
    }
    hc_stream_put(stream);
    return rc;
}

static int copy_attributes(cudaStream_t dst, cudaStream_t src)
{
    struct hc_stream *from, *to;
    int rc = hc_stream_get(src, &from);
    if (rc) return rc;
    rc = hc_stream_get(dst, &to);
    if (!rc) {
        pthread_mutex_lock(&hc_queue_lock);
        *to->attributes = *from->attributes;
        pthread_mutex_unlock(&hc_queue_lock);
        hc_stream_put(to);
    }
    hc_stream_put(from);
    return rc;
}

cudaError_t hc_cudaStreamGetAttribute(cudaStream_t hStream, cudaLaunchAttributeID attr,
                                      cudaLaunchAttributeValue *value_out)
{
    return attribute(hStream, attr, value_out, NULL);
}

cudaError_t hc_cudaStreamSetAttribute(cudaStream_t hStream, cudaLaunchAttributeID attr,
                                      const cudaLaunchAttributeValue *value)
{
    return attribute(hStream, attr, NULL, value);
}

cudaError_t hc_cudaStreamCopyAttributes(cudaStream_t dst, cudaStream_t src)
{
    return copy_attributes(dst, src);
}
