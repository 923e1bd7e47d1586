/* Calls to a service of the same process: a stack that callers push to and that the service takes as a whole, and an
 * eventfd for a sleeping service. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proxy/proxy.h"

static struct psm_direct_call closed_mark; /* only its address matters */
#define CLOSED (&closed_mark)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct psm_direct **known;
static size_t known_count, known_size;

struct psm_direct *psm_direct_make(const char *name, int rank)
{
    struct psm_direct *direct = calloc(1, sizeof *direct);
    if (!direct) return NULL;
    atomic_init(&direct->refs, 1);
    direct->rank = rank;
    atomic_init(&direct->cpu, -1);
    memcpy(direct->name, name, sizeof direct->name);
    direct->event = psm_event_make();
    if (direct->event < 0) {
        free(direct);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    if (known_count == known_size) {
        size_t size = known_size ? known_size * 2 : 16;
        struct psm_direct **grown = realloc(known, size * sizeof(*grown));
        if (!grown) {
            pthread_mutex_unlock(&lock);
            close(direct->event);
            free(direct);
            errno = ENOMEM;
            return NULL;
        }
        known = grown;
        known_size = size;
    }
    known[known_count++] = direct;
    pthread_mutex_unlock(&lock);
    return direct;
}

struct psm_direct *psm_direct_find(const char *name)
{
    struct psm_direct *found = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < known_count && !found; i++)
        if (strncmp(known[i]->name, name, sizeof known[i]->name) == 0) found = known[i];
    if (found) atomic_fetch_add(&found->refs, 1);
    pthread_mutex_unlock(&lock);
    return found;
}

void psm_direct_forget(struct psm_direct *direct)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < known_count; i++)
        if (known[i] == direct) {
            known[i] = known[--known_count];
            break;
        }
    if (known_count == 0) {
        free(known);
        known = NULL;
        known_size = 0;
    }
    pthread_mutex_unlock(&lock);
}

void psm_direct_drop(struct psm_direct *direct)
{
    if (!direct || atomic_fetch_sub(&direct->refs, 1) != 1) return;
    close(direct->event);
    free(direct);
}

static void wake(struct psm_direct *direct)
{
    /* Sequentially consistent, like the service's store of `sleeping` before its last look. */
    if (atomic_load(&direct->sleeping) && atomic_exchange(&direct->sleeping, 0)) psm_event_set(direct->event);
}

bool psm_direct_push(struct psm_direct *direct, struct psm_direct_call *call)
{
    struct psm_direct_call *head = atomic_load(&direct->head);
    do {
        if (head == CLOSED) return false;
        call->next = head;
    } while (!atomic_compare_exchange_weak(&direct->head, &head, call));
    wake(direct);
    return true;
}

struct psm_direct_call *psm_direct_take(struct psm_direct *direct, bool close)
{
    struct psm_direct_call *seen = atomic_load_explicit(&direct->head, memory_order_relaxed);
    if (!close && (seen == NULL || seen == CLOSED)) return NULL;
    struct psm_direct_call *newest = atomic_exchange(&direct->head, close ? CLOSED : NULL), *oldest = NULL;
    if (newest == CLOSED) newest = NULL;
    while (newest) {
        struct psm_direct_call *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

struct psm_direct_call *psm_direct_call_make(size_t req_size, size_t resp_size)
{
    size_t aligned = (req_size + 15) / 16 * 16;
    struct psm_direct_call *call = malloc(sizeof *call + aligned + resp_size);
    if (!call) return NULL;
    memset(call, 0, sizeof *call);
    atomic_init(&call->refs, 2);
    call->resp = call->data + aligned;
    memset(call->resp, 0, resp_size);
    call->req_size = (uint32_t)req_size;
    call->resp_size = (uint32_t)resp_size;
    return call;
}

void psm_direct_call_drop(struct psm_direct_call *call)
{
    if (call && atomic_fetch_sub(&call->refs, 1) == 1) free(call);
}

void psm_direct_call_done(struct psm_direct_call *call)
{
    atomic_store(&call->done, 1);
    if (atomic_load(&call->waiting)) psm_futex_wake(&call->done);
    psm_direct_call_drop(call);
}
