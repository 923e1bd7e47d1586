/* Many threads make, use and end objects under the same few numbers, as a CUDA that reuses its handles does. */
#include <pthread.h>
#include <stdio.h>

#include "san.h"

enum { THREADS = 4, ROUNDS = 3000, NUMBERS = 16 };

/* One owner a number at a time, as CUDA guarantees; uses by others are the races that the sanitizer has to stand. */
static pthread_mutex_t owners[NUMBERS];

static void born(enum psm_san_kind kind, uint64_t value, uint64_t size)
{
    struct psm_san_call call;
    psm_san_enter(&call, "make");
    psm_san_new(&call, kind, value, size);
    psm_san_leave(&call, 0);
}

static void ended(enum psm_san_kind kind, uint64_t value)
{
    struct psm_san_call call;
    psm_san_enter(&call, "end");
    psm_san_end(&call, kind, value);
    psm_san_leave(&call, 0);
}

static void used(uint64_t stream, uint64_t event, uint64_t address)
{
    struct psm_san_call call;
    psm_san_enter(&call, "use");
    psm_san_use(&call, PSM_SAN_STREAM, stream, PSM_SAN_PLAIN);
    psm_san_use(&call, PSM_SAN_EVENT, event, PSM_SAN_RECORD);
    psm_san_span(&call, address + 8, 64, PSM_SAN_DEVICE_SIDE, true);
    psm_san_leave(&call, 0);
}

static void *work(void *argument)
{
    uint64_t seed = (uint64_t)(size_t)argument;
    for (int i = 0; i < ROUNDS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t n = (seed >> 33) % NUMBERS, stream = 0x1000 + 16 * n, event = 0x2000 + 16 * n;
        uint64_t memory = 0x700000000000 + 4096 * n, mapping = 0x600000000000 + 4096 * n;
        if (pthread_mutex_trylock(&owners[n]) != 0) {
            used(stream, event, memory); /* somebody else's, in whatever state */
            continue;
        }
        born(PSM_SAN_STREAM, stream, 0);
        born(PSM_SAN_EVENT, event, 0);
        born(PSM_SAN_ALLOC, memory, 4096);
        born(PSM_SAN_MAP, mapping, 4096);
        used(stream, event, memory);
        struct psm_san_call call;
        psm_san_enter(&call, "unmap");
        psm_san_unmap(&call, mapping, 4096);
        psm_san_leave(&call, 0);
        ended(PSM_SAN_ALLOC, memory);
        ended(PSM_SAN_EVENT, event);
        ended(PSM_SAN_STREAM, stream);
        pthread_mutex_unlock(&owners[n]);
    }
    return NULL;
}

static bool nowhere(uint64_t address, uint64_t *base, uint64_t *size)
{
    (void)address, (void)base, (void)size;
    return true; /* CUDA knows all: nobody is looked for in other processes */
}

int main(void)
{
    const struct psm_san_hooks hooks = {.place = nowhere};
    pthread_t threads[THREADS];
    for (int i = 0; i < NUMBERS; i++) pthread_mutex_init(&owners[i], NULL);
    psm_san_start(PSM_SAN_WARN, "stress", &hooks);
    for (size_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    puts("done");
    return 0;
}
