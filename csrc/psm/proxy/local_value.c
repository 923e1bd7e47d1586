/* The wire audit: looks in a message for a number that means something in this process only. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"
#include "psm/psm_host_ops.h"
#include "psm_cuda.h"

enum { TAG_SHIFT = 31, LOW = 4 }; /* of emulated CUDA's handles: csrc/hostcuda/core/handle.c */
static uint64_t tag;              /* of this process's handles; 0: they are pointers, or there is no CUDA */

/* The mapping that an address lies in. */
static bool is_mapped(FILE *maps, uint64_t value, char *what, size_t room)
{
    char line[512];
    rewind(maps);
    while (fgets(line, sizeof line, maps)) {
        uint64_t begin, end;
        int name = 0;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %*s %n", &begin, &end, &name) < 2) continue;
        if (value < begin || value >= end) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(what, room, "a pointer into %.100s", name && line[name] ? line + name : "this process's memory");
        return true;
    }
    return false;
}

static void read_tag(void)
{
    const struct psm_cuda *cuda = psmCuda();
    cudaEvent_t event = NULL;
    if (!cuda || cuda->cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != 0) return;
    char ignored[8];
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps && !is_mapped(maps, (uint64_t)(uintptr_t)event, ignored, sizeof ignored))
        tag = (uint64_t)(uintptr_t)event >> TAG_SHIFT;
    if (maps) fclose(maps);
    cuda->cudaEventDestroy(event);
}

int psmLocalValue(const void *message, size_t size, char *what, size_t room)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_tag);
    FILE *maps = fopen("/proc/self/maps", "re");
    int found = -1;
    for (size_t at = 0; found < 0 && maps && at + sizeof(uint64_t) <= size; at += sizeof(uint64_t)) {
        uint64_t value;
        char kind[160];
        memcpy(&value, (const char *)message + at, sizeof value);
        if (value >> 32 == 0) continue; /* a count or a size */
        if (tag && value >> TAG_SHIFT == tag && (value & ((1u << LOW) - 1)) == 0)
            snprintf(kind, sizeof kind, "a CUDA handle");
        else if (!is_mapped(maps, value, kind, sizeof kind))
            continue;
        snprintf(what, room, "0x%" PRIx64 " at byte %zu is %s", value, at, kind);
        found = (int)at;
    }
    if (maps) fclose(maps);
    return found;
}

bool psm_wire_audited(void)
{
    static _Atomic int asked; /* 1: no, 2: yes */
    int known = atomic_load_explicit(&asked, memory_order_relaxed);
    if (!known) {
        const char *text = getenv("PSM_WIRE_AUDIT");
        known = text && strcmp(text, "1") == 0 ? 2 : 1;
        atomic_store_explicit(&asked, known, memory_order_relaxed);
    }
    return known == 2;
}
