/* Threads that play trees of events, and a consumer as csrc/telemetry/window.h describes it. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

static _Atomic bool done;
static _Atomic uint64_t asked;
static uint64_t rounds, seed, force;
static struct {
    uint64_t rows, late, open, windows, forced, strange;
} taken;

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static void *ask(uint64_t type, void *parent)
{
    atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
    return start_v6(type, parent);
}

static void *play(void *argument)
{
    uint64_t random = seed * 0x9e3779b97f4a7c15u + (uint64_t)(uintptr_t)argument + 1;
    void *held = NULL;
    for (uint64_t i = 0; i < rounds; i++) {
        void *group = ask(ncclProfileGroup, NULL), *coll = ask(ncclProfileColl, group), *op[2];
        stop_v6(group);
        if (next(&random) % 2) stop_v6(coll);
        for (int n = 0; n < 2; n++) op[n] = ask(ncclProfileProxyOp, coll);
        for (uint64_t n = next(&random) % 6; n; n--) {
            void *step = ask(ncclProfileProxyStep, op[n % 2]);
            ncclProfiler_v6.recordEventState(step, ncclProfilerProxyStepSendGPUWait, NULL);
            ncclProfiler_v6.recordEventState(step, ncclProfilerProxyStepSendWait, NULL);
            stop_v6(step);
        }
        for (int n = 0; n < 2; n++) {
            stop_v6(op[n]);
            ncclProfiler_v6.recordEventState(coll, ncclProfilerProxyCtrlIdle, NULL);
        }
        stop_v6(coll);                  /* the second time, now and then */
        if (i % 16 == 0) sched_yield(); /* the consumer has to come to its turn, too */
        /* One that stays open while windows come and go. */
        if (next(&random) % 64 == 0) {
            stop_v6(held);
            held = ask(ncclProfileGroup, NULL);
        }
    }
    stop_v6(held);
    return NULL;
}

static uint64_t sum(const struct psm_prof_window *window, bool stopped)
{
    uint64_t n = 0;
    for (int i = 0; i < PSM_PROF_SHARDS; i++)
        n += stopped ? atomic_load(&window->shard[i].stopped) : atomic_load(&window->shard[i].started);
    return n;
}

static bool awaits(const struct psm_prof_window *window)
{
    uint64_t completed = 0, awaited = 0;
    for (int i = 0; i < PSM_PROF_SHARDS; i++) completed += atomic_load(&window->shard[i].completed);
    for (int i = 0; i < PSM_PROF_SHARDS; i++) awaited += atomic_load(&window->shard[i].awaited);
    return awaited != completed;
}

static uint64_t walk(const struct prof_comm *comm, uint32_t w, bool count)
{
    const struct psm_prof_window *window = comm->window[w];
    uint64_t cycle = atomic_load(&window->cycle), open = 0;
    for (uint32_t i = 0; i < comm->slots; i++) {
        if (!prof_row_there(comm, w * comm->slots + i)) break;
        struct rec_slot *slot = prof_slot(comm, w * comm->slots + i);
        if (atomic_load_explicit(&slot->sequence, memory_order_acquire) != (cycle << 2 | SLOT_LIVE)) continue;
        struct psm_prof_event *event = (struct psm_prof_event *)slot->record;
        bool stopped = atomic_load(&event->flags) & PSM_PROF_STOPPED;
        open += !stopped;
        if (!count) continue;
        if (PROF_GET(event->type) == PSM_PROF_LATE)
            taken.late++;
        else
            taken.rows++;
        taken.open += !stopped;
        taken.strange += slot->time_ns == 0 || PROF_GET(event->abi) != 6;
    }
    return open;
}

static bool take(struct prof_comm *comm, uint32_t w, bool by_force)
{
    struct psm_prof_window *window = comm->window[w];
    uint32_t closing = PSM_PROF_CLOSING;
    if (!by_force && (sum(window, true) != sum(window, false) || awaits(window))) return false;
    if (!atomic_compare_exchange_strong(&window->state, &closing, PSM_PROF_PROCESSING)) return false;
    if (!by_force && sum(window, true) != sum(window, false)) {
        atomic_store(&window->state, PSM_PROF_CLOSING);
        return false;
    }
    if (by_force) {
        /* Until no start is on its way into it. */
        for (;;) {
            uint64_t stopped = sum(window, true), started = sum(window, false);
            if (walk(comm, w, false) == started - stopped && stopped == sum(window, true)) break;
            sched_yield();
        }
        atomic_fetch_add(&window->forced, 1);
        taken.forced++;
    }
    walk(comm, w, true);
    taken.windows++;
    atomic_store(&window->state, PSM_PROF_READY);
    return true;
}

static void *consume(void *argument)
{
    struct prof_comm *comm = argument;
    uint64_t random = seed * 77 + 5;
    while (!atomic_load(&done)) {
        atomic_store(&comm->shared->heartbeat_ns, psm_clock_ns());
        for (uint32_t w = 0; w < PSM_PROF_WINDOWS; w++) {
            uint32_t filling = PSM_PROF_FILLING;
            if (next(&random) % 16 == 0)
                atomic_compare_exchange_strong(&comm->window[w]->state, &filling, PSM_PROF_CLOSING);
            if (atomic_load(&comm->window[w]->state) == PSM_PROF_CLOSING) take(comm, w, next(&random) % 100 < force);
        }
        if (next(&random) % 4 == 0) sched_yield();
    }
    return NULL;
}

int stress(char **argument)
{
    int threads = atoi(argument[0]);
    rounds = strtoull(argument[1], NULL, 10);
    seed = strtoull(argument[2], NULL, 10);
    force = strtoull(argument[3], NULL, 10);
    begin_v6();
    struct prof_comm *comm = comm_now();
    printf("%s\n", psm_record_path(comm->record));
    fflush(stdout);
    atomic_store(&comm->shared->heartbeat_ns, psm_clock_ns());
    pthread_t thread[16], consumer;
    bool consumes = force <= 100; /* more than that: nobody takes anything */
    if (!consumes) atomic_store(&comm->shared->heartbeat_ns, 0);
    if (consumes) pthread_create(&consumer, NULL, consume, comm);
    for (long i = 0; i < threads; i++) pthread_create(&thread[i], NULL, play, (void *)i);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    atomic_store(&done, true);
    if (consumes) pthread_join(consumer, NULL);
    /* What is left, as a consumer has it after the end. */
    for (uint32_t w = 0; w < PSM_PROF_WINDOWS; w++) {
        uint32_t filling = PSM_PROF_FILLING;
        atomic_compare_exchange_strong(&comm->window[w]->state, &filling, PSM_PROF_CLOSING);
        if (atomic_load(&comm->window[w]->state) == PSM_PROF_CLOSING) take(comm, w, true);
    }
    struct psm_prof_comm *s = comm->shared;
    printf("{\"asked\": %" PRIu64 ", \"rows\": %" PRIu64 ", \"dropped\": %" PRIu64 ", \"overwritten\": %" PRIu64
           ", \"open\": %" PRIu64 ", \"late\": %" PRIu64 ", \"carried\": %" PRIu64 ", \"late_lost\": %" PRIu64
           ", \"windows\": %" PRIu64 ", \"forced\": %" PRIu64 ", \"strange\": %" PRIu64 ", \"bad\": %" PRIu64 "}\n",
           atomic_load(&asked), taken.rows, atomic_load(&s->dropped_full) + atomic_load(&s->dropped_memory),
           atomic_load(&s->overwritten), taken.open, taken.late, atomic_load(&s->carried),
           atomic_load(&comm->late_lost), taken.windows, taken.forced, taken.strange, atomic_load(&s->bad_handle));
    return ncclProfiler_v6.finalize(context);
}
