/* User objects: counted by callers and by graphs; the destructor runs when the last reference of either kind is
 * dropped. */
#define _GNU_SOURCE
#include "graph/hc_graph.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>

struct hc_user_object {
    uint64_t handle;
    unsigned long callers, graphs; /* references, under the lock of the graphs */
    void (*destroy)(void *argument);
    void *argument;
    struct hc_user_object *next;
};

static struct hc_user_object *dead; /* under the lock of the graphs */

/* Destructors run one after the other in a thread that exists while there are any: no call waits for them, and they
 * must not call CUDA. */
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hc_user_object *queue_first, *queue_last;
static bool queue_runs;
static _Thread_local bool in_destructor;

bool hc_in_destructor(void)
{
    return in_destructor;
}

static void *run_destructors(void *unused)
{
    (void)unused;
    in_destructor = true;
    pthread_mutex_lock(&queue_lock);
    while (queue_first) {
        struct hc_user_object *object = queue_first;
        queue_first = object->next;
        pthread_mutex_unlock(&queue_lock);
        object->destroy(object->argument);
        free(object);
        pthread_mutex_lock(&queue_lock);
    }
    queue_runs = false;
    pthread_mutex_unlock(&queue_lock);
    return NULL;
}

static void start_thread(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, old;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 512 << 10);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_BLOCK, &all, &old); /* signals belong to the application's own threads */
    /* Without a thread they wait for the next one that can be started. */
    queue_runs = pthread_create(&thread, &attributes, run_destructors, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
}

struct hc_user_object *hc_objects_take_dead(void)
{
    struct hc_user_object *list = dead;
    dead = NULL;
    return list;
}

void hc_objects_destroy(struct hc_user_object *list)
{
    if (!list) return;
    pthread_mutex_lock(&queue_lock);
    while (list) { /* newest first: keeps the order of objects that ended in several calls */
        struct hc_user_object *object = list;
        list = object->next;
        object->next = NULL;
        *(queue_first ? &queue_last->next : &queue_first) = object;
        queue_last = object;
    }
    if (!queue_runs) start_thread();
    pthread_mutex_unlock(&queue_lock);
}

/* ---- references, under the lock of the graphs ---- */

static void end_if_unused(struct hc_user_object *object)
{
    if (object->callers || object->graphs) return;
    hc_handle_end(HC_USER_OBJECT, object->handle);
    object->next = dead;
    dead = object;
}

static struct hc_held **held_link(struct hc_graph *graph, const struct hc_user_object *object)
{
    struct hc_held **link = &graph->held;
    while (*link && (*link)->object != object) link = &(*link)->next;
    return link;
}

static int hold(struct hc_graph *graph, struct hc_user_object *object, unsigned long count)
{
    struct hc_held **link = held_link(graph, object);
    if (!*link) {
        struct hc_held *held = calloc(1, sizeof *held);
        if (!held) return PSM_CUDA_OUT_OF_MEMORY;
        held->object = object;
        *link = held;
    }
    (*link)->count += count;
    object->graphs += count;
    return 0;
}

int hc_held_clone(const struct hc_graph *from, struct hc_graph *to)
{
    int rc = 0;
    for (const struct hc_held *held = from->held; held && !rc; held = held->next)
        rc = hold(to, held->object, held->count);
    return rc;
}

void hc_held_drop(struct hc_graph *graph)
{
    while (graph->held) {
        struct hc_held *held = graph->held;
        graph->held = held->next;
        held->object->graphs -= held->count;
        end_if_unused(held->object);
        free(held);
    }
}

/* ---- calls ---- */

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
        end_if_unused(object);
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
    if (!rc) rc = hold(graph, object, count);
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
    struct hc_held **link = rc ? NULL : held_link(graph, object);
    if (!rc && (!*link || (*link)->count < count)) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc) {
        struct hc_held *held = *link;
        held->count -= count;
        object->graphs -= count;
        if (!held->count) {
            *link = held->next;
            free(held);
        }
        end_if_unused(object);
    }
    hc_graph_unlock();
    return rc;
}

CUresult hc_cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy, unsigned int initialRefcount,
                               unsigned int flags)
{
    return hc_cudaUserObjectCreate(object_out, ptr, destroy, initialRefcount, flags);
}

CUresult hc_cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    return hc_cudaUserObjectRetain(object, count);
}

CUresult hc_cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    return hc_cudaUserObjectRelease(object, count);
}

CUresult hc_cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
    return hc_cudaGraphRetainUserObject(graph, object, count, flags);
}

CUresult hc_cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    return hc_cudaGraphReleaseUserObject(graph, object, count);
}
