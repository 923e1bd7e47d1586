/* Data of a thread. A thread's part of a communicator outlives it and is reused by the next new thread. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "profiler_plugin.h"

_Thread_local struct prof_thread *prof_thread_self __attribute__((tls_model("initial-exec")));

static pthread_key_t key;
static bool has_key;

/* Other destructors of the thread may still cause events: these create a part again, and the key's next round ends it.
 */
static void thread_ends(void *at)
{
    struct prof_thread *thread = at;
    prof_thread_self = NULL;
    for (uint32_t i = 0; i < PROF_COMMS; i++)
        if (thread->local[i]) {
            atomic_store_explicit(&thread->local[i]->inside, 0, memory_order_release);
            atomic_store_explicit(&thread->local[i]->taken, false, memory_order_release);
        }
    free(thread);
}

__attribute__((constructor)) static void prepare(void)
{
    has_key = pthread_key_create(&key, thread_ends) == 0;
}

struct prof_thread *prof_thread_make(void)
{
    struct prof_thread *thread = calloc(1, sizeof *thread);
    if (!thread) return NULL;
    thread->tid = psm_tid();
    if (has_key) pthread_setspecific(key, thread);
    prof_thread_self = thread;
    return thread;
}

void prof_threads_forked(void)
{
    if (prof_thread_self) prof_thread_self->tid = psm_tid();
}

/* The first threads of a communicator have a shard of their own: usually there are no more. */
enum { ALONE = PSM_PROF_SHARDS / 2 };

struct prof_local *prof_local_make(struct prof_thread *thread, struct prof_comm *comm)
{
    struct prof_local *local = thread->local[comm->number];
    if (!local) {
        bool no = false;
        for (local = atomic_load(&comm->locals); local; local = local->next) {
            if (atomic_compare_exchange_strong(&local->taken, &no, true)) break;
            no = false;
        }
    }
    if (!local) {
        local = aligned_alloc(64, sizeof *local);
        if (!local) return NULL;
        memset(local, 0, sizeof *local);
        atomic_store(&local->taken, true);
        uint32_t n = atomic_fetch_add(&comm->threads, 1);
        local->alone = n < ALONE;
        local->shard = local->alone ? n : ALONE + n % (PSM_PROF_SHARDS - ALONE);
        local->next = atomic_load(&comm->locals);
        while (!atomic_compare_exchange_weak(&comm->locals, &local->next, local)) continue;
    }
    uint32_t generation = atomic_load(&comm->generation);
    if (atomic_load_explicit(&local->generation, memory_order_relaxed) != generation) {
        for (int w = 0; w < PSM_PROF_WINDOWS; w++) {
            local->batch[w].next = local->batch[w].end = 0;
            atomic_store_explicit(&local->batch[w].cycle, 0, memory_order_relaxed);
            atomic_store_explicit(&local->batch[w].rows, 0, memory_order_relaxed);
        }
        atomic_store_explicit(&local->begun, 0, memory_order_relaxed);
        local->told = 0;
        atomic_store_explicit(&local->generation, generation, memory_order_release);
    }
    thread->local[comm->number] = local;
    return local;
}
