/* Interprocess events. If the process that recorded an event has died, CUDA would wait for ever; here the wait ends
 * with cudaErrorUnknown, because a silent hang cannot be diagnosed. */
#define _GNU_SOURCE
#include "memory/hc_memory.h"
#include "psm_messages.h"
#include "stream/hc_event.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PARTIES = 64, NUMBERS = 256, NUMBER_BITS = 56, PID_BITS = 22, LOOK_MS = 50 };

/* Values written by other processes are never used as an address or an unchecked index. */
struct page {
    _Atomic uint64_t last;    /* stamp of the last record: party << 56 | number */
    _Atomic uint32_t changes; /* futex that waiters sleep on */
    uint32_t spare;
    _Atomic uint64_t party[PARTIES]; /* owner: start time << 22 | pid; 0: free */
    _Atomic uint64_t done[NUMBERS];  /* the highest finished number with this remainder */
};
_Static_assert(sizeof(struct page) <= HC_PAGE, "one page");

struct hc_shared_event {
    struct hc_shared_page memory;
    struct page *page;
    unsigned self; /* our party */
};

static uint64_t number_of(uint64_t stamp)
{
    return stamp & ((1ull << NUMBER_BITS) - 1);
}

static bool lives(uint64_t who)
{
    uint64_t start = hc_start_time((int)(who & ((1u << PID_BITS) - 1)));
    return start && start == who >> PID_BITS;
}

/* Takes a free place, our own earlier one, or that of a process that is gone, unless its record is the last. */
static bool join(struct hc_shared_event *event)
{
    uint64_t self = hc_start_time(getpid()) << PID_BITS | (uint64_t)getpid();
    for (int round = 0; round < 2; round++) {
        for (unsigned i = 0; i < PARTIES; i++) {
            uint64_t who = atomic_load(&event->page->party[i]);
            bool ours = who == self;
            bool dead = round && !ours && who && !lives(who) && atomic_load(&event->page->last) >> NUMBER_BITS != i;
            if (ours || ((!who || dead) && atomic_compare_exchange_strong(&event->page->party[i], &who, self))) {
                event->self = i;
                return true;
            }
        }
    }
    return false;
}

int hc_shared_event_new(int device, struct hc_shared_event **out)
{
    struct hc_shared_event *event = calloc(1, sizeof *event);
    if (!event) return PSM_CUDA_OUT_OF_MEMORY;
    int rc = hc_shared_page_new(device, &event->memory);
    if (rc) {
        free(event);
        return rc;
    }
    event->page = event->memory.page;
    join(event);
    *out = event;
    return 0;
}

void hc_shared_event_end(struct hc_shared_event *event)
{
    hc_shared_page_end(&event->memory);
    free(event);
}

int hc_shared_event_name(struct hc_shared_event *event, void *out)
{
    struct hc_ipc_name name;
    int rc = hc_ipc_name_of(event->memory.memfd, 0, HC_PAGE, 0, &name);
    if (!rc) memcpy(out, &name, sizeof name);
    return rc;
}

int hc_shared_event_open(const void *bytes, struct hc_shared_event **out)
{
    struct hc_ipc_name name;
    struct hc_trailer trailer;
    memcpy(&name, bytes, sizeof name);
    struct hc_shared_event *event = calloc(1, sizeof *event);
    if (!event) return PSM_CUDA_OUT_OF_MEMORY;
    int rc = hc_shared_page_open(&name, &event->memory, &trailer);
    if (rc) {
        free(event);
        return rc;
    }
    event->page = event->memory.page;
    if (!join(event)) {
        hc_say_ipc(trailer.pid, "the maximum number of processes already use this event");
        hc_shared_event_end(event);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    *out = event;
    return 0;
}

uint64_t hc_shared_event_record(struct hc_shared_event *event)
{
    uint64_t last = atomic_load(&event->page->last), next;
    do {
        next = (uint64_t)event->self << NUMBER_BITS | (number_of(last) + 1);
    } while (!atomic_compare_exchange_weak(&event->page->last, &last, next));
    return next;
}

void hc_shared_event_done(struct hc_shared_event *event, uint64_t stamp)
{
    uint64_t number = number_of(stamp);
    _Atomic uint64_t *done = &event->page->done[number % NUMBERS];
    uint64_t before = atomic_load(done);
    while (before < number && !atomic_compare_exchange_weak(done, &before, number)) {
    }
    atomic_fetch_add(&event->page->changes, 1);
    syscall(SYS_futex, &event->page->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint64_t hc_shared_event_last(struct hc_shared_event *event)
{
    return atomic_load(&event->page->last);
}

static bool is_done(struct hc_shared_event *event, uint64_t stamp)
{
    return atomic_load(&event->page->done[number_of(stamp) % NUMBERS]) >= number_of(stamp);
}

/* Its owner is gone: an unfinished record never completes. */
static int lost(struct hc_shared_event *event, uint64_t stamp)
{
    uint64_t who = atomic_load(&event->page->party[(stamp >> NUMBER_BITS) % PARTIES]);
    if (lives(who) || is_done(event, stamp)) return 0;
    psm_msg_hostcuda_event_lost((int)(who & ((1u << PID_BITS) - 1)));
    return PSM_CUDA_UNKNOWN;
}

int hc_shared_event_query(struct hc_shared_event *event, uint64_t stamp)
{
    if (is_done(event, stamp)) return 0;
    int rc = lost(event, stamp);
    return rc ? rc : is_done(event, stamp) ? 0 : PSM_CUDA_NOT_READY;
}

int hc_shared_event_wait(struct hc_shared_event *event, uint64_t stamp, const struct hc_stream *stream)
{
    for (;;) {
        uint32_t seen = atomic_load(&event->page->changes);
        if (is_done(event, stamp) || (stream && hc_stream_stopped(stream))) return 0;
        struct timespec pause = {0, LOOK_MS * 1000000l};
        if (syscall(SYS_futex, &event->page->changes, FUTEX_WAIT, seen, &pause, NULL, 0) != 0 && errno == ETIMEDOUT) {
            int rc = lost(event, stamp);
            if (rc) return rc;
        }
    }
}
