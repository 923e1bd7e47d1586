/* Calls that make, hold and release user objects. */
#include "graph/hc_graph.h"

#include <limits.h>
#include <stdlib.h>

static bool bad_count(unsigned count)
{
    return count == 0 || count > INT_MAX;
}

static int find(cudaUserObject_t handle, struct hc_user_object **object)
{
    if (!handle) return PSM_CUDA_INVALID_VALUE;
    *object = hc_handle_get(HC_USER_OBJECT, (uintptr_t)handle);
    return *object ? 0 : PSM_CUDA_INVALID_HANDLE;
}

cudaError_t hc_cudaUserObjectCreate(cudaUserObject_t *object_out, void *ptr, cudaHostFn_t destroy,
                                    unsigned int initialRefcount, unsigned int flags)
{
    if (!object_out || !destroy || bad_count(initialRefcount) || flags != cudaUserObjectNoDestructorSync)
        return PSM_CUDA_INVALID_VALUE;
    struct hc_user_object *object = calloc(1, sizeof *object);
    if (!object) return PSM_CUDA_OUT_OF_MEMORY;
    object->callers = initialRefcount;
    object->destroy = destroy;
    object->argument = ptr;
    object->handle = hc_handle_new(HC_USER_OBJECT, object);
    if (!object->handle) {
        free(object);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    *object_out = (cudaUserObject_t)(uintptr_t)object->handle;
    return 0;
}

cudaError_t hc_cudaUserObjectRetain(cudaUserObject_t handle, unsigned int count)
{
    struct hc_user_object *object;
    if (bad_count(count)) return PSM_CUDA_INVALID_VALUE;
    hc_graph_lock();
    int rc = find(handle, &object);
    if (!rc) object->callers += count;
    hc_graph_unlock();
    return rc;
}

/* Releasing references that the caller does not own is undefined in CUDA; here it is an error and changes nothing. */
cudaError_t hc_cudaUserObjectRelease(cudaUserObject_t handle, unsigned int count)
{
    struct hc_user_object *object;
    if (bad_count(count)) return PSM_CUDA_INVALID_VALUE;
    hc_graph_lock();
    int rc = find(handle, &object);
    if (!rc && object->callers < count) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc) {
        object->callers -= count;
        hc_object_end_if_unused(object);
    }
    hc_graph_unlock();
    return rc;
}

cudaError_t hc_cudaGraphRetainUserObject(cudaGraph_t graph_handle, cudaUserObject_t handle, unsigned int count,
                                         unsigned int flags)
{
    struct hc_user_object *object;
    struct hc_graph *graph;
    if (bad_count(count) || flags & ~(unsigned)cudaGraphUserObjectMove) return PSM_CUDA_INVALID_VALUE;
    hc_graph_lock();
    int rc = hc_graph_find(graph_handle, &graph);
    if (!rc) rc = find(handle, &object);
    if (!rc && flags && object->callers < count) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc) rc = hc_held_add(graph, object, count);
    if (!rc && flags) object->callers -= count;
    hc_graph_unlock();
    return rc;
}

cudaError_t hc_cudaGraphReleaseUserObject(cudaGraph_t graph_handle, cudaUserObject_t handle, unsigned int count)
{
    struct hc_user_object *object;
    struct hc_graph *graph;
    if (bad_count(count)) return PSM_CUDA_INVALID_VALUE;
    hc_graph_lock();
    int rc = hc_graph_find(graph_handle, &graph);
    if (!rc) rc = find(handle, &object);
    struct hc_held **link = rc ? NULL : hc_held_link(graph, object);
    if (!rc && (!*link || (*link)->count < count)) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc) {
        struct hc_held *held = *link;
        held->count -= count;
        object->graphs -= count;
        if (!held->count) {
            *link = held->next;
            free(held);
        }
        hc_object_end_if_unused(object);
    }
    hc_graph_unlock();
    return rc;
}
