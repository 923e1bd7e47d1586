/* A writer of windows that does what csrc/telemetry/window.h says, and nothing more: for tests of the consumer.
 *   writer THREADS EVENTS    then on the input: the file, whose process is this one
 * Each thread starts EVENTS events, of which up to 8 are open at a time. An event is told by its start:
 * thread << 32 | number. Ends with what was begun and dropped, and leaves the file as one who ended. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "record_format.h"
#include "window.h"

enum { OPEN = 8 };
static struct psm_prof_comm *comm;
static struct psm_prof_window *window[PSM_PROF_WINDOWS];
static unsigned char *events;
static size_t event_size;
static _Atomic uint32_t current;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static uint64_t serial, each;
static _Atomic uint64_t dropped;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct rec_slot *slot_of(uint32_t row)
{
    return (struct rec_slot *)(events + row * event_size);
}

static uint64_t sum(uint32_t w)
{
    uint64_t open = 0;
    for (int i = 0; i < PSM_PROF_SHARDS; i++) open -= window[w]->shard[i].stopped;
    for (int i = 0; i < PSM_PROF_SHARDS; i++) open += window[w]->shard[i].started;
    return open;
}

/* Another window to fill, if one is READY. Nobody was taken by force here: the sums go on from where they are. */
static int next_window(uint32_t from)
{
    int done = 0;
    pthread_mutex_lock(&opening);
    uint32_t filling = PSM_PROF_FILLING;
    if (current != from) done = 1;
    for (uint32_t w = 0; !done && w < PSM_PROF_WINDOWS; w++) {
        if (window[w]->state != PSM_PROF_READY || sum(w)) continue;
        window[w]->cycle++;
        window[w]->next = 0;
        window[w]->serial = ++serial;
        window[w]->open_ns = now_ns();
        window[w]->state = PSM_PROF_FILLING;
        window[from]->close_ns = now_ns();
        atomic_compare_exchange_strong(&window[from]->state, &filling, PSM_PROF_CLOSING);
        current = w;
        done = 1;
    }
    pthread_mutex_unlock(&opening);
    return done;
}

static struct rec_slot *start(int thread, uint64_t number, uint32_t *where)
{
    for (int tries = 0; tries < 4; tries++) {
        uint32_t w = current, cycle, at;
        struct psm_prof_shard *shard = &window[w]->shard[thread % PSM_PROF_SHARDS];
        atomic_fetch_add(&shard->started, 1);
        cycle = window[w]->cycle;
        if (window[w]->state == PSM_PROF_FILLING && (at = atomic_fetch_add(&window[w]->next, 1)) < comm->slots) {
            struct rec_slot *slot = slot_of(w * comm->slots + at);
            struct psm_prof_event *e = (struct psm_prof_event *)slot->record;
            slot->sequence = (uint64_t)cycle << 2 | SLOT_CLAIMED;
            slot->time_ns = (uint64_t)thread << 32 | number;
            slot->tid = thread;
            memset(e, 0, sizeof *e);
            e->type = PSM_PROF_GROUP;
            slot->sequence = (uint64_t)cycle << 2 | SLOT_LIVE;
            if (at + 1 == comm->trigger) next_window(w);
            *where = w;
            return slot;
        }
        atomic_fetch_add(&shard->stopped, 1);
        if (!next_window(w)) break;
    }
    dropped++;
    return NULL;
}

static void stop(int thread, struct rec_slot *slot, uint32_t w)
{
    struct psm_prof_event *e = (struct psm_prof_event *)slot->record;
    e->stop_ns = slot->time_ns + 1;
    e->flags = PSM_PROF_STOPPED;
    atomic_fetch_add(&window[w]->shard[thread % PSM_PROF_SHARDS].stopped, 1);
}

static void *run(void *arg)
{
    int thread = (int)(intptr_t)arg;
    struct rec_slot *open[OPEN] = {0};
    uint32_t where[OPEN];
    for (uint64_t i = 0; i < each + OPEN; i++) {
        if (open[i % OPEN]) stop(thread, open[i % OPEN], where[i % OPEN]);
        open[i % OPEN] = i < each ? start(thread, i, &where[i % OPEN]) : NULL;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    char path[4096];
    if (argc < 3 || !fgets(path, sizeof path, stdin)) return 2;
    path[strcspn(path, "\n")] = 0;
    int fd = open(path, O_RDWR), threads = atoi(argv[1]);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0 || threads < 1 || threads > 16) return 2;
    each = strtoull(argv[2], NULL, 10);
    unsigned char *base = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) return 2;
    struct rec_header *h = (struct rec_header *)base;
    comm = (struct psm_prof_comm *)(base + h->section[0].data_offset + REC_SLOT_HEADER);
    for (uint32_t w = 0; w < PSM_PROF_WINDOWS; w++)
        window[w] = (struct psm_prof_window *)(base + h->section[1].data_offset + w * h->section[1].slot_size +
                                               REC_SLOT_HEADER);
    events = base + h->section[2].data_offset;
    event_size = h->section[2].slot_size;
    window[0]->cycle = 1;
    window[0]->serial = ++serial;
    window[0]->open_ns = now_ns();
    window[0]->state = PSM_PROF_FILLING;
    pthread_t thread[16];
    for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, run, (void *)(intptr_t)i);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    comm->begun = each * (uint64_t)threads;
    comm->dropped_full = dropped;
    comm->end_ns = now_ns();
    printf("%llu\n", (unsigned long long)dropped);
    h->state = REC_CLEAN;
    return 0;
}
