/* The queue of callbacks: host functions, destructors of graphs and the main thread push without a lock; the main
 * thread takes all at once. */
#include "plan/launch.h"

void psm_plan_mpsc_push(struct plan_mpsc *queue, struct plan_callback *callback)
{
    struct plan_callback *head = atomic_load_explicit(&queue->head, memory_order_relaxed);
    do callback->next = head;
    while (!atomic_compare_exchange_weak_explicit(&queue->head, &head, callback, memory_order_release,
                                                  memory_order_relaxed));
    atomic_fetch_add_explicit(&queue->enqueued, 1, memory_order_relaxed);
}

struct plan_callback *psm_plan_mpsc_take(struct plan_mpsc *queue)
{
    if (!atomic_load_explicit(&queue->head, memory_order_relaxed)) return NULL;
    struct plan_callback *last = atomic_exchange_explicit(&queue->head, NULL, memory_order_acquire), *first = NULL;
    while (last) {
        struct plan_callback *next = last->next;
        last->next = first;
        first = last;
        last = next;
    }
    return first;
}
