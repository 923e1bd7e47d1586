/* Memfds: sealed, with a page after the data that identifies their owner. */
#define _GNU_SOURCE
#include "memory/hc_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char MAGIC[8] = "psmcuda";
enum { VERSION = 1 };
static const int SEALS = F_SEAL_SHRINK | F_SEAL_GROW;

uint64_t hc_start_time(int pid)
{
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    /* The name, in parentheses, may contain anything: count fields from the last parenthesis. Field 3 follows it. */
    char *at = strrchr(text, ')');
    if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X') return 0;
    at += 2;
    for (int field = 3; field < 22; field++) {
        at = strchr(at, ' ');
        if (!at) return 0;
        at++;
    }
    return strtoull(at, NULL, 10);
}

/* Random per process, so that ids of two processes do not collide. */
static uint64_t unique_id(void)
{
    static _Atomic uint64_t next;
    uint64_t start = atomic_load(&next);
    if (!start) {
        uint64_t fresh = 0;
        if (getrandom(&fresh, sizeof fresh, 0) != (ssize_t)sizeof fresh) fresh = (uint64_t)getpid() << 40;
        fresh = fresh << 24 | 1;
        atomic_compare_exchange_strong(&next, &start, fresh);
    }
    return atomic_fetch_add(&next, 1);
}

uint64_t hc_buffer_id(void)
{
    static _Atomic uint64_t next = 1;
    return atomic_fetch_add_explicit(&next, 1, memory_order_relaxed);
}

int hc_device_of_uuid(const unsigned char uuid[16])
{
    for (int device = 0; device < hc_topology.devices; device++)
        if (memcmp(hc_gpu_of(device)->uuid, uuid, 16) == 0) return device;
    return -1;
}

/* ---- descriptors
 *
 * In CUDA an allocation needs no descriptor, here each needs one. So the limit of the process is raised, and our
 * descriptors are placed above those that the application could have had before: it keeps all its numbers, and select()
 * works on them. */

enum { MOST_DESCRIPTORS = 1 << 17 }; /* mappings end before (vm.max_map_count) */
static int first_own;                /* 0: the limit is unchanged */

void hc_descriptors_start(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    rlim_t before = limit.rlim_cur, most = limit.rlim_max < MOST_DESCRIPTORS ? limit.rlim_max : MOST_DESCRIPTORS;
    if (before >= most) return;
    limit.rlim_cur = most;
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0) first_own = (int)before;
}

int hc_descriptor_dup(int fd)
{
    int own = fcntl(fd, F_DUPFD_CLOEXEC, first_own);
    return own >= 0 || !first_own ? own : fcntl(fd, F_DUPFD_CLOEXEC, 0); /* the application has lowered its limit */
}

static int keep(int fd)
{
    if (fd >= first_own) return fd;
    int own = hc_descriptor_dup(fd);
    if (own < 0) return fd;
    close(fd);
    return own;
}

int hc_memfd_new(struct hc_trailer *t, int device)
{
    static _Atomic uint64_t started;
    uint64_t start_time = atomic_load_explicit(&started, memory_order_relaxed);
    if (!start_time) {
        start_time = hc_start_time(getpid());
        atomic_store_explicit(&started, start_time, memory_order_relaxed);
    }
    memcpy(t->magic, MAGIC, sizeof MAGIC);
    t->version = VERSION;
    t->bytes = sizeof *t;
    t->id = unique_id();
    t->pid = getpid();
    t->start_time = start_time;
    t->node = hc_topology.node;
    memset(t->device, 0, sizeof t->device);
    if (hc_device_valid(device)) memcpy(t->device, hc_gpu_of(device)->uuid, sizeof t->device);

    int fd = memfd_create("psm-hostcuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, (off_t)(t->size + HC_PAGE)) != 0 ||
        pwrite(fd, t, sizeof *t, (off_t)t->size) != (ssize_t)sizeof *t ||
        fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return keep(fd);
}

/* Anyone who has the descriptor can overwrite the trailer: check each field as untrusted input, and use only the copy.
 */
int hc_memfd_check(int fd, enum hc_memfd_kind kind, struct hc_trailer *t)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &st) != 0) {
        hc_say_import(fd, "%s", strerror(errno));
        return PSM_CUDA_INVALID_VALUE;
    }
    if (seals < 0 || (seals & SEALS) != SEALS) {
        hc_say_import(fd,
                      seals < 0 ? "it is not a memfd" : "it is an unsealed memfd, so it does not come from hostcuda");
        return PSM_CUDA_INVALID_VALUE;
    }
    if (st.st_size < (off_t)HC_PAGE || st.st_size % HC_PAGE ||
        pread(fd, t, sizeof *t, st.st_size - (off_t)HC_PAGE) != (ssize_t)sizeof *t ||
        memcmp(t->magic, MAGIC, sizeof MAGIC) != 0) {
        hc_say_import(fd, "it is not memory of hostcuda: %lld bytes without its trailer", (long long)st.st_size);
        return PSM_CUDA_INVALID_VALUE;
    }
    if (t->version != VERSION || t->bytes != sizeof *t) {
        hc_say_import(fd, "another version of hostcuda made it (theirs %u, ours %d); use one psmkit in all processes",
                      t->version, VERSION);
        return PSM_CUDA_INVALID_VALUE;
    }
    if (t->size != (uint64_t)st.st_size - HC_PAGE || t->kind != (uint32_t)kind) {
        hc_say_import(fd, "its trailer has kind %u and %llu bytes, expected kind %d and %llu", t->kind,
                      (unsigned long long)t->size, (int)kind, (unsigned long long)st.st_size - HC_PAGE);
        return PSM_CUDA_INVALID_VALUE;
    }
    if (t->node != hc_topology.node) {
        hc_say_import(fd, "it is memory of pretended node %d, but this is node %d: nodes share no memory", t->node,
                      hc_topology.node);
        return PSM_CUDA_INVALID_DEVICE;
    }
    return 0;
}
