/* The checks of what is left: memory, descriptors and threads, after communicators, calls and the library itself. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

#include "libc.h"
#include "profiler_drive.h"

static int entries(const char *folder)
{
    DIR *dir = opendir(folder);
    int n = 0;
    if (!dir) return 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static void rounds_of(int n)
{
    for (int i = 0; i < n; i++) {
        struct comm c = check_opened(i);
        check_whole(&c, 1, 2, check_room());
        p_finalize(&c);
    }
}

static size_t in_use(void)
{
    return psm_heap_in_use(1);
}

/* All that is mapped: a ring that fills up slowly is allocated from the start, and not a leak. */
static size_t mapped(void)
{
    unsigned long size = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file) return 0;
    if (fscanf(file, "%lu", &size) != 1) size = 0;
    fclose(file);
    return size * (size_t)sysconf(_SC_PAGESIZE);
}

static size_t risen(size_t now, size_t before)
{
    return now > before ? now - before : 0;
}

void check_leaks(void)
{
    enum { ROUNDS = 50, PARTS = 4 };
    d.unchecked = true;
    /* One communicator stays, so that one-time allocations of the process are not counted. */
    struct comm stays = check_opened(1000);
    size_t heap = SIZE_MAX, pages = SIZE_MAX;
    int fds = ROUNDS, tasks = ROUNDS;
    rounds_of(ROUNDS);
    /* Only continuous growth is a leak: take the least of several parts. */
    for (int part = 0; part < PARTS; part++) {
        int had_fds = entries("/proc/self/fd"), had_tasks = entries("/proc/self/task");
        size_t had_heap = in_use(), had_pages = mapped();
        rounds_of(ROUNDS);
        size_t more_heap = risen(in_use(), had_heap), more_pages = risen(mapped(), had_pages);
        int more_fds = entries("/proc/self/fd") - had_fds, more_tasks = entries("/proc/self/task") - had_tasks;
        if (more_heap < heap) heap = more_heap;
        if (more_pages < pages) pages = more_pages;
        if (more_fds < fds) fds = more_fds;
        if (more_tasks < tasks) tasks = more_tasks;
    }
    p_finalize(&stays);
    /* One in two is not chance. */
    if (fds >= ROUNDS / 2) failed("leak", "%d descriptors more for each %d communicators", fds, ROUNDS);
    if (tasks >= ROUNDS / 2) failed("leak", "%d threads more for each %d communicators", tasks, ROUNDS);
    if (heap >= ROUNDS * 16u) failed("leak", "%zu bytes of the heap more for each communicator", heap / ROUNDS);
    if (pages >= ROUNDS * 4096u) failed("leak", "%zu KiB more are mapped for each communicator", pages / ROUNDS / 1024);
    note("%zu bytes more after %d communicators", heap, ROUNDS);
}

/* Memory that grows with each group call while a communicator lives. */
void check_growth(void)
{
    enum { CALLS = 400 };
    d.unchecked = true;
    struct comm c = check_opened(0);
    check_need(event_known(d.version), "anything");
    size_t more[4];
    /* Pools that are filled once may grow at first; only continuous growth is a leak. */
    for (int part = 0; part < 4; part++) {
        size_t memory = in_use();
        for (int i = 0; i < CALLS; i++) check_whole(&c, 1, 1, check_room());
        more[part] = in_use() > memory ? in_use() - memory : 0;
    }
    p_finalize(&c);
    size_t least = more[0];
    for (int part = 1; part < 4; part++)
        if (more[part] < least) least = more[part];
    if (least >= CALLS * 16u)
        failed("leak", "%zu bytes of the heap more for each group call, while the communicator lives", least / CALLS);
    note("%zu bytes more after %d group calls", more[3], CALLS);
}

void check_unload(void)
{
    int before = entries("/proc/self/task");
    for (int i = 0; i < 3; i++) {
        rounds_of(2);
        dlclose(d.library);
        load_again();
    }
    dlclose(d.library);
    /* A thread that keeps running crashes when it is next scheduled: its code is unmapped. */
    const uint64_t end = now_ns() + 3000000000u;
    while (entries("/proc/self/task") > before && now_ns() < end) usleep(1000);
    int more = entries("/proc/self/task") - before;
    if (more > 0) failed("leak", "%d threads more after the library was unloaded", more);
}
