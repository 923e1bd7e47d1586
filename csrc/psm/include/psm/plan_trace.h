/* A recorder of kernel plans for the enqueue code of NCCL and its forks: this one file, for C99 and C++11, needs only
 * libc. Copy it into a tree, include it where plans are made, launched and reclaimed (enqueue.cc, group.cc, init.cc),
 * and put its macros where docs/plan_trace.md says. `psmkit plan check DIR` then checks what they recorded against the
 * rules of plans.
 *
 *   PSM_PLAN_TRACE=DIR         record into a new file of this folder (made if it is missing). Not set: off, and a macro
 *                              costs a load and a branch; its arguments are not evaluated
 *   PSM_PLAN_TRACE_EVENTS=N    room for the last N events of the process (default 65536, 104 bytes each)
 *
 * The file is a record (docs/records.md) with the ring psm.plan. It is mapped: what was recorded survives a crash and a
 * kill. If the ring is full, new events replace the oldest, and the numbers of the rest say how many are gone. Any
 * thread may record, a signal handler may not. After fork the child begins a file of its own.
 *
 * comm and plan are pointers. An event of a plan that was not made, or of a communicator without a PREPARE, is dropped.
 */
#ifndef PSM_PLAN_TRACE_H
#define PSM_PLAN_TRACE_H

#if !defined(__cplusplus) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* 0: the scheduler of NCCL up to 2.21, 1: that from 2.22 on. */
#ifndef PSM_TRACE_SCHEDULER
#if defined(NCCL_VERSION_CODE) && NCCL_VERSION_CODE < 22200
#define PSM_TRACE_SCHEDULER 0
#else
#define PSM_TRACE_SCHEDULER 1
#endif
#endif

/* ---- the macros, in the order of a plan's life ---- */

/* A task of the group was enqueued (no rule needs it). */
#define PSM_TRACE_TASK(comm, func, number) PSM_TRACE_EVENT_(comm, NULL, TASK, func, number, 0)
/* ncclLaunchPrepare begins. id: the same number on all ranks of the communicator and another one for each communicator
 * (commHash); 0: not known. depth: frames of the scoped memory stack. graph: not 0 if the group is captured. */
#define PSM_TRACE_PREPARE(comm, rank, id, depth, tasks, graph)                                                         \
    PSM_TRACE_(                                                                                                        \
        psm_trace_comm_((comm), (int32_t)(rank), (uint64_t)(id)),                                                      \
        psm_trace_event_((comm), NULL, PSM_TRACE_E_PREPARE, (int64_t)(depth), (int64_t)(tasks), (graph) ? 1 : 0))
/* A plan was taken from the pool: what is known of this pointer is about an earlier plan. */
#define PSM_TRACE_NEW_PLAN(comm, plan) PSM_TRACE_(psm_trace_plan_((comm), (plan), 0), (void)0)
/* The plan is complete and will be launched. */
#define PSM_TRACE_MADE(comm, plan, channelMask, colls, p2ps)                                                           \
    PSM_TRACE_(                                                                                                        \
        psm_trace_plan_((comm), (plan), 1),                                                                            \
        psm_trace_event_((comm), (plan), PSM_TRACE_E_MADE, (int64_t)(channelMask), (int64_t)(colls), (int64_t)(p2ps)))
/* It holds a registration for its launches, or another thing that must be given back; kind: enum psm_plan_holds. */
#define PSM_TRACE_REGISTERED(comm, plan, kind, now)    PSM_TRACE_EVENT_(comm, plan, REGISTERED, kind, now, 0)
#define PSM_TRACE_DEREGISTERED(comm, plan, kind, left) PSM_TRACE_EVENT_(comm, plan, DEREGISTERED, kind, left, 0)
/* A stream was put behind another: PSM_TRACE_ON_DEVICE, PSM_TRACE_ON_HOST, PSM_TRACE_ON_LAUNCH (the first user stream;
 * the other user streams follow: PSM_TRACE_ON_LAUNCH + 1, ...). */
#define PSM_TRACE_ORDERED(comm, waits, for_whom) PSM_TRACE_EVENT_(comm, NULL, ORDERED, waits, for_whom, 0)
/* ncclLaunchPrepare ends well: streams: user streams of the group (0: their order is not judged). Or it fails. */
#define PSM_TRACE_PREPARED(comm, depth, plans, streams) PSM_TRACE_EVENT_(comm, NULL, PREPARED, depth, plans, streams)
#define PSM_TRACE_PREPARE_FAILED(comm, depth, result)   PSM_TRACE_EVENT_(comm, NULL, PREPARE_FAILED, depth, result, 0)
/* comm->persistentRefs has this value now, after this change. */
#define PSM_TRACE_REFS(comm, now, change) PSM_TRACE_EVENT_(comm, NULL, REFS, now, change, 0)
/* The barrier between the communicators of the process was passed: until LAUNCHED nothing may call CUDA that is not
 * captured; CUDA(comm, n) stands at such a call, with a number of your own. */
#define PSM_TRACE_BARRIER(comm)    PSM_TRACE_EVENT_(comm, NULL, BARRIER, 0, 0, 0)
#define PSM_TRACE_CUDA(comm, call) PSM_TRACE_EVENT_(comm, NULL, CUDA, call, 0, 0)
/* Without a kernel (PassSM): the sync condition has this count, and this many operations count it off. */
#define PSM_TRACE_ARMED(comm, plan, count, ops) PSM_TRACE_EVENT_(comm, plan, ARMED, count, ops, 0)
/* The plan is on the launch stream. how: 1: a kernel, 2: a host function, 3: both, 4: other work. attributes: of the
 * kernel, 0: not known (psm_trace_attributes). */
#define PSM_TRACE_LAUNCHED(comm, plan, how, captured, attributes)                                                      \
    PSM_TRACE_EVENT_(comm, plan, LAUNCHED, how, (captured) ? 1 : 0, attributes)
/* hostStreamPlanTask begins; on_host: 1: on the thread of the host stream. */
#define PSM_TRACE_HOST_TASK(comm, plan, on_host) PSM_TRACE_EVENT_(comm, plan, HOST_TASK, (on_host) ? 1 : 0, 0, 0)
/* An operation goes to the proxy, with its opCount in the history of the communicator (the lowest bit: p2p). how:
 * PSM_TRACE_COPIED: the proxy gets a copy and does not use the plan (NCCL's own operations; no OP_DONE follows);
 * PSM_TRACE_COUNTS: it counts off the sync condition of the plan; 0: neither, but it uses the plan. */
#define PSM_TRACE_OP_POSTED(comm, plan, opCount, channel, how)                                                         \
    PSM_TRACE_EVENT_(comm, plan, OP_POSTED, opCount, channel, how)
#define PSM_TRACE_OP_DONE(comm, plan, opCount, channel, how)                                                           \
    PSM_TRACE_EVENT_(comm, plan, OP_DONE, opCount, channel, how)
/* The sync condition was counted off, to this. Its host function begins, and returns. */
#define PSM_TRACE_COUNTED_OFF(comm, plan, left) PSM_TRACE_EVENT_(comm, plan, COUNTED_OFF, left, 0, 0)
#define PSM_TRACE_CALLBACK(comm, plan, count)   PSM_TRACE_EVENT_(comm, plan, CALLBACK, count, 0, 0)
#define PSM_TRACE_CALLBACK_OVER(comm, plan, aborted, count, freed)                                                     \
    PSM_TRACE_EVENT_(comm, plan, CALLBACK_OVER, (aborted) ? 1 : 0, count, (freed) ? 1 : 0)
/* Before the reclaimer of the plan is enqueued; by: PSM_TRACE_BY_HOST_TASK, PSM_TRACE_BY_LAUNCH_AFTER,
 * PSM_TRACE_BY_DESTRUCTOR or PSM_TRACE_BY_CANCEL. Behind the enqueueing the plan may be gone already. */
#define PSM_TRACE_RECLAIMER(comm, plan, by) PSM_TRACE_EVENT_(comm, plan, RECLAIMER, by, 0, 0)
/* Before the plan goes back to its pool. */
#define PSM_TRACE_RECLAIM(comm, plan) PSM_TRACE_EVENT_(comm, plan, RECLAIM, 0, 0, 0)
/* A thread uses the plan, which must not be freed; who: 1: the main thread, 2: the proxy, 3: a host function, 4: a
 * kernel. */
#define PSM_TRACE_TOUCHED(comm, plan, who) PSM_TRACE_EVENT_(comm, plan, TOUCHED, who, 0, 0)
/* The plan of a group that failed goes back without a launch: before its RECLAIM. */
#define PSM_TRACE_CANCELLED(comm, plan)       PSM_TRACE_EVENT_(comm, plan, CANCELLED, 0, 0, 0)
#define PSM_TRACE_DESTRUCTOR(comm, plans)     PSM_TRACE_EVENT_(comm, NULL, DESTRUCTOR, 1, plans, 0)
#define PSM_TRACE_FINISH(comm, depth, failed) PSM_TRACE_EVENT_(comm, NULL, FINISH, depth, (failed) ? 1 : 0, 0)
#define PSM_TRACE_ABORT(comm)                 PSM_TRACE_EVENT_(comm, NULL, ABORT, 0, 0, 0)
/* The communicator is freed; what its pools miss, if that is counted, else 0. */
#define PSM_TRACE_DESTROY(comm, plans, ops, tasks)                                                                     \
    PSM_TRACE_(                                                                                                        \
        psm_trace_event_((comm), NULL, PSM_TRACE_E_DESTROY, (int64_t)(plans), (int64_t)(ops), (int64_t)(tasks)),       \
        psm_trace_forget_((comm)))

enum { PSM_TRACE_ON_DEVICE = 0, PSM_TRACE_ON_HOST = 1, PSM_TRACE_ON_LAUNCH = 2 };
enum { PSM_TRACE_COUNTS = 1, PSM_TRACE_COPIED = 2 };
enum {
    PSM_TRACE_BY_HOST_TASK = 1,
    PSM_TRACE_BY_LAUNCH_AFTER = 2,
    PSM_TRACE_BY_DESTRUCTOR = 3,
    PSM_TRACE_BY_CANCEL = 4
};

/* ---- the numbers of psm_plan_events.h ---- */

enum psm_trace_event_code_ {
    PSM_TRACE_E_TASK = 1,
    PSM_TRACE_E_PREPARE = 2,
    PSM_TRACE_E_MADE = 3,
    PSM_TRACE_E_PREPARED = 4,
    PSM_TRACE_E_PREPARE_FAILED = 5,
    PSM_TRACE_E_ARMED = 6,
    PSM_TRACE_E_BARRIER = 7,
    PSM_TRACE_E_CUDA = 8,
    PSM_TRACE_E_LAUNCHED = 9,
    PSM_TRACE_E_HOST_TASK = 11,
    PSM_TRACE_E_OP_POSTED = 12,
    PSM_TRACE_E_OP_DONE = 13,
    PSM_TRACE_E_COUNTED_OFF = 14,
    PSM_TRACE_E_CALLBACK = 15,
    PSM_TRACE_E_CALLBACK_OVER = 16,
    PSM_TRACE_E_RECLAIMER = 17,
    PSM_TRACE_E_RECLAIM = 18,
    PSM_TRACE_E_TOUCHED = 19,
    PSM_TRACE_E_DESTRUCTOR = 21,
    PSM_TRACE_E_REFS = 22,
    PSM_TRACE_E_ABORT = 23,
    PSM_TRACE_E_FINISH = 24,
    PSM_TRACE_E_DESTROY = 25,
    PSM_TRACE_E_CANCELLED = 27,
    PSM_TRACE_E_REGISTERED = 28,
    PSM_TRACE_E_DEREGISTERED = 29,
    PSM_TRACE_E_ORDERED = 30
};

/* ---- how it records ---- */

#define PSM_TRACE_(first, second)                                                                                      \
    do {                                                                                                               \
        if (psm_trace_on_()) {                                                                                         \
            first;                                                                                                     \
            second;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define PSM_TRACE_EVENT_(comm, plan, what, a, b, c)                                                                    \
    PSM_TRACE_(psm_trace_event_((comm), (plan), PSM_TRACE_E_##what, (int64_t)(a), (int64_t)(b), (int64_t)(c)), (void)0)
#define PSM_TRACE_HERE_ static __attribute__((unused))
/* One for all files of a library that include this. */
#define PSM_TRACE_SHARED_ __attribute__((weak, visibility("hidden")))

/* The file: csrc/base/record_format.h of psmkit, version 1. */
struct psm_trace_section_ {
    uint32_t ready, kind;
    char name[32];
    uint32_t version, record_size, slot_size, schema_size;
    uint64_t schema_offset, control_offset, data_offset, capacity, reserved[5];
};
struct psm_trace_header_ {
    char magic[8];
    uint32_t order, version, header_size, section_size;
    uint64_t file_size;
    int32_t pid, rank;
    uint64_t start_time, pid_ns, wall_ns, clock_ns;
    uint32_t uid, tag, state, sections;
    char boot_id[40], host[64], command[16];
    uint64_t reserved[6];
    struct psm_trace_section_ section[28];
};
struct psm_trace_slot_ {
    uint64_t sequence, time_ns;
    int32_t tid, device;
    uint64_t comm, order, plan;
    int64_t a, b, c;
    int32_t rank, code, scheduler;
    char what[20];
};
/* A communicator or a plan, by its address. */
struct psm_trace_entry_ {
    const void *at;
    int is;             /* 0: nothing, or gone; 1: a communicator, 2: a plan */
    int32_t rank;       /* of a communicator */
    uint64_t comm;      /* its number in this process */
    uint64_t plan;      /* its number in its communicator, 0: it was not made; of a communicator: its plans so far */
    uint64_t order, id; /* of a communicator: its events so far, and its id in the file */
};
struct psm_trace_state_ {
    int mode; /* 0: not looked at, 1: on, 2: off */
    int forks;
    struct psm_trace_header_ *file;
    uint64_t *control; /* records begun, 0, records lost */
    struct psm_trace_slot_ *slots;
    uint64_t capacity, comms;
    struct psm_trace_entry_ *entries;
    size_t room, used;
};

#ifdef __cplusplus
extern "C" {
#endif
extern PSM_TRACE_SHARED_ pthread_mutex_t psm_trace_lock_;
extern PSM_TRACE_SHARED_ struct psm_trace_state_ psm_trace_state_;
PSM_TRACE_SHARED_ pthread_mutex_t psm_trace_lock_ = PTHREAD_MUTEX_INITIALIZER;
PSM_TRACE_SHARED_ struct psm_trace_state_ psm_trace_state_;
#ifdef __cplusplus
}
#endif

PSM_TRACE_HERE_ uint64_t psm_trace_ns_(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

PSM_TRACE_HERE_ void psm_trace_read_(const char *path, char *text, size_t size)
{
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, text, size - 1);
        close(fd);
    }
    text[n > 0 ? n : 0] = 0;
}

PSM_TRACE_HERE_ int32_t psm_trace_rank_(void)
{
    static const char *const names[] = {"PSM_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK",
                                        "PMI_RANK", "SLURM_PROCID",         "RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        char *end;
        if (!text || *text < '0' || *text > '9') continue;
        long value = strtol(text, &end, 10);
        if (*end == 0 && value <= INT32_MAX) return (int32_t)value;
    }
    return -1;
}

PSM_TRACE_HERE_ void psm_trace_describe_(struct psm_trace_header_ *h, uint64_t size)
{
    char text[1024];
    struct stat st;
    h->order = 0x01020304;
    h->version = 1;
    h->header_size = 4096;
    h->section_size = sizeof *h->section;
    h->file_size = size;
    h->pid = (int32_t)getpid();
    h->rank = psm_trace_rank_();
    psm_trace_read_("/proc/self/stat", text, sizeof text);
    char *at = strrchr(text, ')'); /* the command may contain blanks; the start is the 20th field behind it */
    for (int field = 0; at && field < 20; field++) at = strchr(at + 1, ' ');
    h->start_time = at ? strtoull(at + 1, NULL, 10) : 0;
    h->pid_ns = stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
    h->wall_ns = psm_trace_ns_(CLOCK_REALTIME);
    h->clock_ns = psm_trace_ns_(CLOCK_MONOTONIC);
    h->uid = (uint32_t)geteuid();
    h->tag = 1;
    h->state = 1; /* running */
    h->sections = 28;
    psm_trace_read_("/proc/sys/kernel/random/boot_id", h->boot_id, sizeof h->boot_id);
    h->boot_id[strcspn(h->boot_id, "\n")] = 0;
    if (gethostname(h->host, sizeof h->host - 1) != 0) h->host[0] = 0;
    h->host[strcspn(h->host, ".")] = 0;
    psm_trace_read_("/proc/self/comm", h->command, sizeof h->command);
    h->command[strcspn(h->command, "\n")] = 0;
}

PSM_TRACE_HERE_ const char *psm_trace_schema_(void)
{
    return "{\"name\": \"psm.plan\", \"version\": 1, \"selector\": -1, \"fields\": "
           "[[\"comm\", \"hex64\", 0, 8], [\"order\", \"u64\", 8, 8], [\"plan\", \"u64\", 16, 8], "
           "[\"a\", \"i64\", 24, 8], [\"b\", \"i64\", 32, 8], [\"c\", \"i64\", 40, 8], "
           "[\"rank\", \"i32\", 48, 4], [\"code\", \"i32\", 52, 4], [\"scheduler\", \"i32\", 56, 4], "
           "[\"what\", \"str\", 60, 20]], \"messages\": [[\"libpsm.plan.event\", \"INFO\", "
           "\"psm event {order:uint} of communicator {comm:hex} rank {rank:int}: {what:word} plan {plan:uint} "
           "a={a:int} b={b:int} c={c:int} code={code:int} scheduler={scheduler:int}\"]]}";
}

PSM_TRACE_HERE_ uint64_t psm_trace_capacity_(void)
{
    const char *text = getenv("PSM_PLAN_TRACE_EVENTS");
    uint64_t wanted = text && *text >= '0' && *text <= '9' ? strtoull(text, NULL, 10) : 65536, n = 1024;
    while (n < wanted && n < (uint64_t)1 << 23) n *= 2;
    return n;
}

/* The file gets its name when its header is complete. Returns an error number. */
PSM_TRACE_HERE_ int psm_trace_create_(const char *folder)
{
    struct psm_trace_state_ *s = &psm_trace_state_;
    const char *schema = psm_trace_schema_();
    char hidden[4096], path[4096], host[64];
    uint64_t control = (4096 + strlen(schema) + 63) / 64 * 64, data = control + 64;
    uint64_t capacity = psm_trace_capacity_(), size = (data + capacity * sizeof *s->slots + 4095) / 4096 * 4096;
    uint64_t number = psm_trace_ns_(CLOCK_MONOTONIC) * 0x9e3779b97f4a7c15u;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) return errno;
    if (gethostname(host, sizeof host) != 0) host[0] = 0;
    host[sizeof host - 1] = 0;
    host[strcspn(host, ".")] = 0;
    for (char *p = host; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-')) *p = '_';
    for (int i = 0; i < 2; i++) {
        int n = snprintf(i ? path : hidden, sizeof path, "%s/%spsm-%s-%d-%016llx.rec", folder, i ? "" : ".", host,
                         (int)getpid(), (unsigned long long)number);
        if (n < 0 || (size_t)n >= sizeof path) return ENAMETOOLONG;
    }
    int fd = open(hidden, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    /* All blocks now: on a full disk, writing to a hole raises SIGBUS. */
    int error = posix_fallocate(fd, 0, (off_t)size);
    void *at = error ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!error && at == MAP_FAILED) error = errno;
    close(fd);
    if (error) {
        unlink(hidden);
        return error;
    }
    struct psm_trace_header_ *h = (struct psm_trace_header_ *)at;
    struct psm_trace_section_ *section = h->section;
    psm_trace_describe_(h, size);
    memcpy((char *)at + 4096, schema, strlen(schema));
    section->kind = 1; /* a ring */
    memcpy(section->name, "psm.plan", sizeof "psm.plan");
    section->version = 1;
    section->record_size = (uint32_t)(sizeof *s->slots - offsetof(struct psm_trace_slot_, comm));
    section->slot_size = sizeof *s->slots;
    section->schema_size = (uint32_t)strlen(schema);
    section->schema_offset = 4096;
    section->control_offset = control;
    section->data_offset = data;
    section->capacity = capacity;
    section->ready = 1;
    memcpy(h->magic, "\x89PSMREC\n", sizeof h->magic);
    if (rename(hidden, path) != 0) {
        error = errno;
        munmap(at, size);
        unlink(hidden);
        return error;
    }
    s->file = h;
    s->control = (uint64_t *)(void *)((char *)at + control);
    s->slots = (struct psm_trace_slot_ *)(void *)((char *)at + data);
    s->capacity = capacity;
    return 0;
}

/* The parent's file stays the parent's. */
PSM_TRACE_HERE_ void psm_trace_child_(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    psm_trace_lock_ = fresh;
    psm_trace_state_.file = NULL;
    __atomic_store_n(&psm_trace_state_.mode, 0, __ATOMIC_RELAXED);
}

PSM_TRACE_HERE_ int psm_trace_open_(void)
{
    struct psm_trace_state_ *s = &psm_trace_state_;
    pthread_mutex_lock(&psm_trace_lock_);
    if (s->mode == 0) {
        const char *folder = getenv("PSM_PLAN_TRACE");
        int mode = folder && *folder && strcmp(folder, "0") != 0 ? 1 : 2;
        int error = mode == 1 ? psm_trace_create_(folder) : 0;
        if (error) {
            fprintf(stderr, "PSM_PLAN_TRACE: plans are not recorded: %s: %s\n", folder, strerror(error));
            mode = 2;
        }
        if (mode == 1 && !s->forks++) pthread_atfork(NULL, NULL, psm_trace_child_);
        __atomic_store_n(&s->mode, mode, __ATOMIC_RELEASE);
    }
    int on = s->mode == 1;
    pthread_mutex_unlock(&psm_trace_lock_);
    return on;
}

PSM_TRACE_HERE_ inline int psm_trace_on_(void)
{
    int mode = __atomic_load_n(&psm_trace_state_.mode, __ATOMIC_ACQUIRE);
    return mode != 2 && (mode == 1 || psm_trace_open_());
}

PSM_TRACE_HERE_ __attribute__((destructor)) void psm_trace_exit_(void)
{
    if (psm_trace_state_.file) psm_trace_state_.file->state = 2; /* a clean end */
}

/* The entry of an address, or a free one for it; NULL: no memory. The lock is held. */
PSM_TRACE_HERE_ struct psm_trace_entry_ *psm_trace_find_(const void *at)
{
    struct psm_trace_state_ *s = &psm_trace_state_;
    if (s->used * 2 >= s->room) {
        size_t room = s->room ? s->room * 2 : 256;
        struct psm_trace_entry_ *old = s->entries, *wide = (struct psm_trace_entry_ *)calloc(room, sizeof *wide);
        if (!wide) return NULL;
        for (size_t i = 0; i < s->room; i++) {
            size_t to = (size_t)(((uintptr_t)old[i].at >> 4) * 0x9e3779b97f4a7c15u) & (room - 1);
            while (old[i].at && wide[to].at) to = (to + 1) & (room - 1);
            if (old[i].at) wide[to] = old[i];
        }
        free(old);
        s->entries = wide;
        s->room = room;
    }
    size_t i = (size_t)(((uintptr_t)at >> 4) * 0x9e3779b97f4a7c15u) & (s->room - 1);
    while (s->entries[i].at && s->entries[i].at != at) i = (i + 1) & (s->room - 1);
    if (!s->entries[i].at) s->used++;
    s->entries[i].at = at;
    return &s->entries[i];
}

PSM_TRACE_HERE_ void psm_trace_comm_(const void *comm, int32_t rank, uint64_t id)
{
    struct psm_trace_state_ *s = &psm_trace_state_;
    pthread_mutex_lock(&psm_trace_lock_);
    struct psm_trace_entry_ *mine = comm ? psm_trace_find_(comm) : NULL;
    if (mine && mine->is != 1) {
        mine->is = 1;
        mine->rank = rank;
        mine->comm = ++s->comms;
        mine->plan = mine->order = 0;
        mine->id = id ? id : (psm_trace_ns_(CLOCK_MONOTONIC) + (uint64_t)getpid()) * 0x9e3779b97f4a7c15u;
    }
    pthread_mutex_unlock(&psm_trace_lock_);
}

PSM_TRACE_HERE_ void psm_trace_forget_(const void *comm)
{
    pthread_mutex_lock(&psm_trace_lock_);
    struct psm_trace_entry_ *mine = comm ? psm_trace_find_(comm) : NULL;
    if (mine && mine->is == 1) mine->is = 0;
    pthread_mutex_unlock(&psm_trace_lock_);
}

/* made: gives it the next number of its communicator. */
PSM_TRACE_HERE_ void psm_trace_plan_(const void *comm, const void *plan, int made)
{
    pthread_mutex_lock(&psm_trace_lock_);
    /* The second call may move what the first found. */
    struct psm_trace_entry_ *mine = comm && plan && psm_trace_find_(plan) ? psm_trace_find_(comm) : NULL;
    if (mine && mine->is == 1 && comm != plan) {
        struct psm_trace_entry_ *its = psm_trace_find_(plan);
        its->is = 2;
        its->comm = mine->comm;
        its->plan = made ? ++mine->plan : 0;
    }
    pthread_mutex_unlock(&psm_trace_lock_);
}

PSM_TRACE_HERE_ const char *psm_trace_name_(int what)
{
    static const char *const names[] = {
        "?",           "task",         "prepare",       "made",        "prepared",  "prepare-failed", "armed",
        "barrier",     "cuda",         "launched",      "kernel-done", "host-task", "op-posted",      "op-done",
        "counted-off", "callback",     "callback-over", "reclaimer",   "reclaim",   "touched",        "replay",
        "destructor",  "refs",         "abort",         "finish",      "destroy",   "stuck",          "cancelled",
        "registered",  "deregistered", "ordered"};
    return what > 0 && (size_t)what < sizeof names / sizeof *names ? names[what] : names[0];
}

PSM_TRACE_HERE_ void psm_trace_write_(const struct psm_trace_entry_ *comm, uint64_t order, uint64_t plan, int what,
                                      int64_t a, int64_t b, int64_t c)
{
    struct psm_trace_state_ *s = &psm_trace_state_;
    uint64_t ticket = s->control[0]++;
    struct psm_trace_slot_ *slot = &s->slots[ticket & (s->capacity - 1)];
    /* Odd while it is written: a reader sees that a record is incomplete. */
    __atomic_store_n(&slot->sequence, 2 * ticket + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    slot->time_ns = psm_trace_ns_(CLOCK_MONOTONIC);
    slot->tid = (int32_t)syscall(SYS_gettid);
    slot->device = -1;
    slot->comm = comm->id;
    slot->order = order;
    slot->plan = plan;
    slot->a = a;
    slot->b = b;
    slot->c = c;
    slot->rank = comm->rank;
    slot->code = what;
    slot->scheduler = PSM_TRACE_SCHEDULER;
    memset(slot->what, 0, sizeof slot->what);
    memcpy(slot->what, psm_trace_name_(what), strlen(psm_trace_name_(what)));
    __atomic_store_n(&slot->sequence, 2 * ticket + 2, __ATOMIC_RELEASE);
}

PSM_TRACE_HERE_ void psm_trace_event_(const void *comm, const void *plan, int what, int64_t a, int64_t b, int64_t c)
{
    struct psm_trace_state_ *s = &psm_trace_state_;
    pthread_mutex_lock(&psm_trace_lock_);
    struct psm_trace_entry_ *its = plan ? psm_trace_find_(plan) : NULL;
    uint64_t number = its && its->is == 2 ? its->plan : 0, of = its ? its->comm : 0;
    struct psm_trace_entry_ *mine = comm ? psm_trace_find_(comm) : NULL;
    if (s->file && mine && mine->is == 1 && (!plan || (number && of == mine->comm)))
        psm_trace_write_(mine, mine->order++, number, what, a, b, c);
    else if (s->file && ((comm && !mine) || (plan && !its)))
        s->control[2]++; /* no memory */
    pthread_mutex_unlock(&psm_trace_lock_);
}

/* ---- for NCCL's own structures: what the macros need of them ---- */

#ifdef __cplusplus
/* Frames of a scoped memory stack. */
template <class Stack> int64_t psm_trace_depth(const Stack &stack)
{
    int64_t n = 0;
    for (auto frame = stack.topFrame.below; frame; frame = frame->below) n++;
    return n;
}
/* Items of a list. */
template <class Item> int64_t psm_trace_count(const Item *head)
{
    int64_t n = 0;
    for (; head; head = head->next) n++;
    return n;
}
/* The place of a user stream, for PSM_TRACE_ORDERED. */
template <class List> int64_t psm_trace_user(const List *streams, const List *one)
{
    return PSM_TRACE_ON_LAUNCH + psm_trace_count(streams) - psm_trace_count(one);
}
/* What CUDA is given for a launch, for PSM_TRACE_LAUNCHED. The ids are those of CUDA's launch attributes. */
template <class Attribute>
int64_t psm_trace_attributes(const Attribute *attributes, int n, unsigned grid, int capability)
{
    int64_t packed = (int64_t)(grid & 0xffff) << 16 | (int64_t)capability << 32;
    for (int i = 0; i < n; i++) {
        int id = (int)attributes[i].id;
        if (id == 4) packed |= (int64_t)(attributes[i].value.clusterDim.x & 0xff);
        if (id == 5 && (int)attributes[i].value.clusterSchedulingPolicyPreference == 1) packed |= 256;
        if (id == 10 && (int)attributes[i].value.memSyncDomain == 1) packed |= 512;
    }
    return packed;
}
/* Broadcasts of a plan: a queue of their own in newer releases. */
template <class Plan> auto psm_trace_bcasts(const Plan *plan, int) -> decltype((void)plan->bcastTaskQueue, int64_t())
{
    return psm_trace_count(plan->bcastTaskQueue.head);
}
template <class Plan> int64_t psm_trace_bcasts(const Plan *, long)
{
    return 0;
}
/* MADE for each plan of a group's list, and REGISTERED for what each must give back. */
template <class Comm, class Plan> int64_t psm_trace_plans(const Comm *comm, const Plan *head)
{
    int64_t n = 0;
    for (const Plan *plan = head; plan && psm_trace_on_(); plan = plan->next, n++) {
        PSM_TRACE_MADE(comm, plan, plan->channelMask,
                       psm_trace_count(plan->collTaskQueue.head) + psm_trace_bcasts(plan, 0),
                       psm_trace_count(plan->p2pTaskQueue.head));
        for (int64_t i = 1, held = psm_trace_count(plan->cleanupQueue.head); i <= held; i++)
            PSM_TRACE_REGISTERED(comm, plan, 3, i);
    }
    return n;
}
#endif

#endif
