/* User objects: counted by callers and by graphs; the destructor runs when the last reference of either kind is
 * dropped. */
#define _GNU_SOURCE
#include "graph/hc_graph.h"

#include <signal.h>
#include <stdlib.h>

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

void hc_object_end_if_unused(struct hc_user_object *object)
{
    if (object->callers || object->graphs) return;
    hc_handle_end(HC_USER_OBJECT, object->handle);
    object->next = dead;
    dead = object;
}

struct hc_held **hc_held_link(struct hc_graph *graph, const struct hc_user_object *object)
{
    struct hc_held **link = &graph->held;
    while (*link && (*link)->object != object) link = &(*link)->next;
    return link;
}

int hc_held_add(struct hc_graph *graph, struct hc_user_object *object, unsigned long count)
{
    struct hc_held **link = hc_held_link(graph, object);
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
        rc = hc_held_add(to, held->object, held->count);
    return rc;
}

void hc_held_drop(struct hc_graph *graph)
{
    while (graph->held) {
        struct hc_held *held = graph->held;
        graph->held = held->next;
        held->object->graphs -= held->count;
        hc_object_end_if_unused(held->object);
        free(held);
    }
}
