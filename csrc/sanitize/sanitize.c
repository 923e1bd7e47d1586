/* What a checked call does: looks up its objects, reports misuse, and records births and ends. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "log.h"
#include "psm_messages.h"
#include "san_internal.h"

PSM_SAN_API _Atomic int psm_san_mode_now;
PSM_SAN_API _Thread_local int psm_san_depth __attribute__((tls_model("initial-exec")));
struct psm_san_hooks san_hooks;

static pid_t process;
static bool leaks_wanted;
static _Atomic int captures; /* streams that are being captured */

enum { INVALID_VALUE = 1, INVALID_HANDLE = 400, CAPTURE_INVALIDATED = 901 };
/* How long an owner that was seen alive counts as alive: each check costs microseconds. */
enum { OWNER_CHECK_NS = 10000000 };

static int san_device(void)
{
    return san_hooks.device ? san_hooks.device() : 0;
}

static bool refuses(void)
{
    return atomic_load_explicit(&psm_san_mode_now, memory_order_relaxed) == PSM_SAN_ERROR;
}

/* ---- around the call ---- */

static void wrong(struct psm_san_call *call, const struct san_report *report)
{
    san_report(report);
    if (refuses() && !call->refuse)
        call->refuse = report->finding == SAN_OUT_OF_BOUNDS || report->finding == SAN_FREED_MEMORY || report->address ||
                               report->bytes
                           ? INVALID_VALUE
                           : INVALID_HANDLE;
}

static void never_created(struct psm_san_call *call, enum psm_san_kind kind, uint64_t value)
{
    wrong(call, &(struct san_report){.finding = SAN_NEVER_CREATED, .call = call->name, .kind = kind, .value = value});
}

static bool says_invalid(int rc)
{
    return rc == INVALID_VALUE || rc == INVALID_HANDLE || rc == 709 /* context is destroyed */;
}

/* cuMemUnmap ends all mappings in its range at once. */
__attribute__((noinline)) static void end_mappings(const struct psm_san_call *call)
{
    struct san_span span;
    uint64_t from = call->unmapped.from;
    struct san_shared *stack = san_stack_take();
    while (san_span_first(PSM_SAN_MAP, from, call->unmapped.to, &span)) {
        struct san_shard *shard;
        struct san_object *o = san_lock(PSM_SAN_MAP, span.base, &shard);
        bool ours = o && o->generation == span.generation && o->state == SAN_ALIVE &&
                    o->generation <= call->unmapped.generation;
        if (ours) san_ending(shard, o);
        san_unlock(shard);
        if (ours) san_ended(shard, o, span.generation, true, san_stack_share(stack));
        from = span.end;
    }
    san_stack_drop(stack);
}

__attribute__((noinline)) static void failed(struct psm_san_call *call, int rc)
{
    if (rc == CAPTURE_INVALIDATED && strstr(call->name, "EndCapture")) psm_san_capture(call, false);
    for (uint32_t i = 0; i < call->strangers && says_invalid(rc); i++)
        never_created(call, call->stranger[i].kind, call->stranger[i].value);
}

/* A call that failed, or one that affected its objects. */
void psm_san_settle(struct psm_san_call *call, int rc)
{
    if (rc != 0) failed(call, rc);
    if (call->recorded && rc == 0) {
        struct san_shard *shard;
        struct san_object *o = san_lock(PSM_SAN_EVENT, call->recorded, &shard);
        if (o) o->flags |= SAN_RECORDED;
        san_unlock(shard);
    }
    if (call->ends) {
        struct san_shared *stack = san_stack_take();
        for (uint32_t i = 1; i < call->ends; i++)
            san_ended(call->end[i].shard, call->end[i].object, call->end[i].generation, rc == 0,
                      san_stack_share(stack));
        san_ended(call->end[0].shard, call->end[0].object, call->end[0].generation, rc == 0, stack);
    }
    if (call->unmapped.to && rc == 0) end_mappings(call);
}

/* ---- handles ---- */

/* Nobody here knows the number: find its owner. */
static void unknown(struct psm_san_call *call, enum psm_san_kind kind, uint64_t value)
{
    struct san_foreign found;
    if (san_foreign_find(kind, value, &found)) {
        wrong(call, &(struct san_report){.finding = SAN_FOREIGN,
                                         .call = call->name,
                                         .kind = kind,
                                         .value = value,
                                         .owner = found.owner,
                                         .tid = found.tid,
                                         .foreign_stack = found.stack});
        return;
    }
    /* CUDA creates graphs, pools and their parts in more ways than the sanitizer sees. */
    if (kind != PSM_SAN_STREAM && kind != PSM_SAN_EVENT && kind != PSM_SAN_MEM) return;
    if (san_hooks.every_birth) {
        never_created(call, kind, value);
    } else if (call->strangers < PSM_SAN_STRANGERS) {
        call->stranger[call->strangers++] = (struct psm_san_stranger){kind, value};
    }
}

static void ended_before(struct psm_san_call *call, const struct san_copy *copy, bool ends)
{
    const struct san_object *o = &copy->object;
    wrong(call, &(struct san_report){.finding = ends ? SAN_DOUBLE_FREE : SAN_DESTROYED,
                                     .call = call->name,
                                     .kind = o->kind,
                                     .value = o->value,
                                     .size = o->size,
                                     .generation = o->generation,
                                     .birth = &copy->birth,
                                     .tid = o->tid,
                                     .end = &copy->end,
                                     .end_tid = copy->end_tid});
}

/* Imported from a process that is gone: the memory behind it may go any time. Checked only now and then. */
static bool owner_died(struct san_object *o)
{
    if (!(o->flags & SAN_IMPORTED) || !o->owner.start_time) return false;
    uint64_t now = psm_clock_ns();
    if (o->checked_ns && now - o->checked_ns < OWNER_CHECK_NS) return false;
    o->checked_ns = now;
    return !psm_pid_alive(o->owner.pid, o->owner.start_time);
}

static void tell_dead_owner(struct psm_san_call *call, const struct san_copy *copy)
{
    const struct san_object *o = &copy->object;
    /* Mapped memory stays readable, so the call is made in every mode. */
    san_report(&(struct san_report){.finding = SAN_DEAD_OWNER,
                                    .call = call->name,
                                    .kind = o->kind,
                                    .value = o->value,
                                    .generation = o->generation,
                                    .owner = o->owner,
                                    .birth = &copy->birth,
                                    .tid = o->tid});
}

static bool special(enum psm_san_kind kind, uint64_t value)
{
    /* 0, 1 and 2 are the default streams; a null handle of another kind does not use an object. */
    return value == 0 || (kind == PSM_SAN_STREAM && value <= 2);
}

void psm_san_use(struct psm_san_call *call, enum psm_san_kind kind, uint64_t value, enum psm_san_how how)
{
    if (special(kind, value)) return;
    struct san_shard *shard;
    struct san_copy copy;
    struct san_object *o = san_lock(kind, value, &shard);
    enum { FINE, GONE, STRANGE, UNRECORDED, DEAD } what = FINE;
    if (!o) {
        what = san_copy_ended(shard, kind, value, 0, &copy) ? GONE : STRANGE;
    } else if (how == PSM_SAN_QUERY && !(o->flags & (SAN_RECORDED | SAN_TOLD))) {
        o->flags |= SAN_TOLD;
        what = UNRECORDED;
    } else if (owner_died(o)) {
        what = DEAD;
    }
    if (what != FINE && o) san_copy(&copy, o);
    san_unlock(shard);
    if (what == FINE) {
        if (how == PSM_SAN_RECORD) call->recorded = value;
    } else if (what == STRANGE) {
        unknown(call, kind, value);
    } else if (what == GONE) {
        ended_before(call, &copy, false);
    } else if (what == DEAD) {
        tell_dead_owner(call, &copy);
    } else {
        /* CUDA allows it: the event counts as complete. */
        san_report(&(struct san_report){.finding = SAN_NOT_RECORDED,
                                        .call = call->name,
                                        .kind = kind,
                                        .value = value,
                                        .generation = copy.object.generation,
                                        .birth = &copy.birth,
                                        .tid = copy.object.tid});
    }
}

static bool is_address(enum psm_san_kind kind)
{
    return kind == PSM_SAN_ALLOC || kind == PSM_SAN_HOST || kind == PSM_SAN_IPC || kind == PSM_SAN_RANGE ||
           kind == PSM_SAN_REGISTERED || kind == PSM_SAN_MAP;
}

/* Memory that a graph allocates comes back with each launch and ends when the graph says so. The streams that a capture
 * has joined are unknown, so during a capture no stream-ordered memory counts as the program's. */
static bool of_graph(const struct psm_san_call *call, enum psm_san_kind kind)
{
    return kind == PSM_SAN_ALLOC && atomic_load_explicit(&captures, memory_order_relaxed) > 0 &&
           strstr(call->name, "Async") != NULL;
}

void psm_san_capture(struct psm_san_call *call, bool begins)
{
    (void)call;
    int now = atomic_load(&captures);
    /* Never below zero: the capture may have started before the sanitizer did. */
    while (!atomic_compare_exchange_weak(&captures, &now, begins ? now + 1 : now > 0 ? now - 1 : 0)) continue;
}

/* An address that is nobody's here: reported if it is one of another process. */
static void check_foreign(struct psm_san_call *call, uint64_t address)
{
    uint64_t base = 0, size = 0;
    struct san_foreign found;
    if (san_hooks.place && san_hooks.place(address, &base, &size)) return;
    if (san_foreign_address(address, &found))
        wrong(call, &(struct san_report){.finding = SAN_FOREIGN,
                                         .call = call->name,
                                         .kind = found.kind,
                                         .value = address,
                                         .address = address,
                                         .owner = found.owner,
                                         .tid = found.tid,
                                         .foreign_stack = found.stack});
}

/* An address that is freed and is not the start of anything known. */
static void unknown_address(struct psm_san_call *call, enum psm_san_kind kind, uint64_t address)
{
    struct san_span span;
    uint64_t end;
    enum san_hit hit = san_span_find(address, &span, &end);
    if (hit == SAN_HIT_LIVE) {
        struct san_copy copy = {0};
        struct san_shard *shard;
        const struct san_object *o = san_lock(span.kind, span.base, &shard);
        if (o) san_copy(&copy, o);
        san_unlock(shard);
        wrong(call, &(struct san_report){.finding = SAN_BAD_FREE,
                                         .call = call->name,
                                         .kind = span.kind,
                                         .value = span.base,
                                         .size = span.end - span.base,
                                         .address = address,
                                         .generation = span.generation,
                                         .birth = &copy.birth,
                                         .tid = copy.object.tid});
        return;
    }
    if (kind == PSM_SAN_HOST || kind == PSM_SAN_REGISTERED || kind == PSM_SAN_RANGE) return;
    check_foreign(call, address);
}

void psm_san_end(struct psm_san_call *call, enum psm_san_kind kind, uint64_t value)
{
    if (special(kind, value) || of_graph(call, kind)) return;
    struct san_shard *shard;
    struct san_copy copy;
    struct san_object *o = san_lock(kind, value, &shard);
    bool known = o != NULL, ends = o && o->state == SAN_ALIVE;
    if (ends) {
        san_ending(shard, o);
        if (call->ends < PSM_SAN_ENDS) call->end[call->ends++] = (struct psm_san_end){shard, o, o->generation};
    }
    if (!o)
        known = san_copy_ended(shard, kind, value, 0, &copy);
    else if (!ends)
        san_copy(&copy, o);
    san_unlock(shard);
    if (ends) return;
    if (known)
        ended_before(call, &copy, true);
    else if (is_address(kind))
        unknown_address(call, kind, value);
    else
        unknown(call, kind, value);
}

/* Unmapping a whole reservation of this process in which nothing is mapped: it cannot end what another part of the
 * program mapped there, so it is reported and never refused. */
static bool empty_reservation(const struct psm_san_call *call, uint64_t address, uint64_t size)
{
    struct san_shard *shard;
    struct san_copy copy = {0};
    const struct san_object *o = san_lock(PSM_SAN_RANGE, address, &shard);
    bool whole = o && o->state == SAN_ALIVE && o->size == size;
    if (whole) san_copy(&copy, o);
    san_unlock(shard);
    if (whole)
        san_report(&(struct san_report){.finding = SAN_EMPTY_UNMAP,
                                        .call = call->name,
                                        .kind = PSM_SAN_RANGE,
                                        .value = address,
                                        .size = size,
                                        .generation = copy.object.generation,
                                        .birth = &copy.birth,
                                        .tid = copy.object.tid});
    return whole;
}

void psm_san_unmap(struct psm_san_call *call, uint64_t address, uint64_t size)
{
    struct san_span span;
    if (san_span_first(PSM_SAN_MAP, address, address + size, &span))
        call->unmapped = (struct psm_san_unmapped){address, address + size, san_generation()};
    else if (!empty_reservation(call, address, size))
        psm_san_end(call, PSM_SAN_MAP, address); /* unmapped before, or of another process */
}

/* ---- addresses ---- */

/* Whether this is memory that the process can read itself: if so, CUDA does not know it. */
static bool readable(uint64_t address)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)address, 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

void psm_san_span(struct psm_san_call *call, uint64_t address, uint64_t n, enum psm_san_side side, bool write)
{
    if (!n || !address) return;
    struct san_span span;
    uint64_t end;
    enum san_hit hit = san_span_find(address, &span, &end);
    if (hit == SAN_HIT_LIVE && n <= end - address && !span.look) return;
    if (hit == SAN_HIT_FREED && (side == PSM_SAN_HOST_SIDE || (side == PSM_SAN_ANY && readable(address)))) return;
    if (hit == SAN_HIT_NONE) {
        if (side == PSM_SAN_HOST_SIDE || (side == PSM_SAN_ANY && readable(address))) return;
        check_foreign(call, address);
        return;
    }
    struct san_shard *shard;
    struct san_copy copy = {0};
    struct san_object *o = san_lock(span.kind, span.base, &shard);
    bool same = o && o->generation == span.generation;
    bool sized = same && o->size != 0, dead = same && hit == SAN_HIT_LIVE && owner_died(o);
    if (same)
        san_copy(&copy, o);
    else
        san_copy_ended(shard, span.kind, span.base, span.generation, &copy);
    san_unlock(shard);
    if (dead) tell_dead_owner(call, &copy);
    if (hit == SAN_HIT_LIVE && (!sized || n <= end - address)) return;
    wrong(call, &(struct san_report){.finding = hit == SAN_HIT_LIVE ? SAN_OUT_OF_BOUNDS : SAN_FREED_MEMORY,
                                     .call = call->name,
                                     .kind = span.kind,
                                     .value = span.base,
                                     .size = span.end - span.base,
                                     .address = address,
                                     .bytes = n,
                                     .beyond = hit == SAN_HIT_LIVE ? n - (end - address) : 0,
                                     .generation = span.generation,
                                     .write = write,
                                     .birth = &copy.birth,
                                     .tid = copy.object.tid,
                                     .end = hit == SAN_HIT_LIVE ? NULL : &copy.end,
                                     .end_tid = copy.end_tid});
}

void psm_san_spans(struct psm_san_call *call, const void *addresses, const size_t *sizes, size_t count, bool write)
{
    const uint64_t *at = addresses;
    for (size_t i = 0; at && sizes && i < count; i++) psm_san_span(call, at[i], sizes[i], PSM_SAN_ANY, write);
}

/* ---- births ---- */

void psm_san_new(struct psm_san_call *call, enum psm_san_kind kind, uint64_t value, uint64_t size)
{
    if (special(kind, value) || of_graph(call, kind)) return;
    if (!size && (kind == PSM_SAN_ALLOC || kind == PSM_SAN_IPC) && san_hooks.place) {
        uint64_t base = 0, whole = 0;
        if (san_hooks.place(value, &base, &whole) && whole) size = whole - (value - base);
    }
    san_born(kind, value, size, san_device(), 0, NULL);
}

void psm_san_map(struct psm_san_call *call, uint64_t address, uint64_t size, uint64_t handle)
{
    (void)call;
    struct san_shard *shard;
    const struct san_object *o = san_lock(PSM_SAN_MEM, handle, &shard);
    unsigned flags = o ? o->flags & SAN_IMPORTED : 0;
    struct san_owner owner = flags ? o->owner : (struct san_owner){0};
    san_unlock(shard);
    if (address) san_born(PSM_SAN_MAP, address, size, san_device(), flags, &owner);
}

void psm_san_get(struct psm_san_call *call, enum psm_san_kind kind, uint64_t value)
{
    (void)call;
    if (!special(kind, value)) san_born(kind, value, 0, san_device(), SAN_BORROWED, NULL);
}

static uint64_t hash_bytes(const void *bytes, size_t n)
{
    const unsigned char *b = bytes;
    uint64_t x = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) x = (x ^ b[i]) * 0x100000001b3u;
    return x | 1; /* never 0 */
}

static void import_of(enum psm_san_kind kind, uint64_t value, uint64_t size, uint64_t key)
{
    struct san_owner owner = {0};
    unsigned flags = kind == PSM_SAN_EVENT ? SAN_RECORDED : 0; /* recorded by its owner */
    if (key && san_export_find(key, &owner)) flags |= SAN_IMPORTED;
    if (!size && kind == PSM_SAN_IPC && san_hooks.place) {
        uint64_t base = 0, whole = 0;
        if (san_hooks.place(value, &base, &whole) && whole) size = whole - (value - base);
    }
    san_born(kind, value, size, san_device(), flags, &owner);
}

static void exported(uint64_t key)
{
    san_born(PSM_SAN_EXPORT, key, 0, san_device(), 0, NULL);
    san_export_note(key);
}

void psm_san_export(struct psm_san_call *call, const void *bytes, size_t n)
{
    (void)call;
    if (bytes) exported(hash_bytes(bytes, n));
}

void psm_san_import(struct psm_san_call *call, enum psm_san_kind kind, uint64_t value, const void *bytes, size_t n)
{
    (void)call;
    if (!special(kind, value)) import_of(kind, value, 0, hash_bytes(bytes, n));
}

/* A descriptor identifies its file, if that is a real one: the same inode in both processes. */
static uint64_t key_of_fd(int fd, int handle_type)
{
    struct stat st;
    if (handle_type != 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */ || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return 0;
    uint64_t id[2] = {st.st_dev, st.st_ino};
    return hash_bytes(id, sizeof id);
}

void psm_san_export_fd(struct psm_san_call *call, const void *fd, int handle_type)
{
    (void)call;
    uint64_t key = fd && handle_type == 1 ? key_of_fd(*(const int *)fd, handle_type) : 0;
    if (key) exported(key);
}

/* For descriptors osHandle is the number itself. */
void psm_san_import_fd(struct psm_san_call *call, uint64_t value, const void *fd, int handle_type)
{
    (void)call;
    if (value) import_of(PSM_SAN_MEM, value, 0, key_of_fd((int)(intptr_t)fd, handle_type));
}

void psm_san_reset(struct psm_san_call *call)
{
    (void)call;
    san_reset(san_device());
}

/* ---- start and end ---- */

static void after_fork(void)
{
    /* CUDA does not work in a child of fork, and threads that do not exist there may hold the locks. */
    atomic_store(&psm_san_mode_now, PSM_SAN_OFF);
}

void psm_san_start(enum psm_san_mode mode, const char *where, const struct psm_san_hooks *hooks)
{
    if (mode == PSM_SAN_OFF) return;
    const char *text = getenv("PSM_SANITIZE_LEAKS");
    leaks_wanted = text && *text && strcmp(text, "0") != 0;
    process = getpid();
    if (hooks) san_hooks = *hooks;
    if (hooks && hooks->log_device) psm_log_set_device_function(hooks->log_device);
    san_clock_start();
    san_ledger_start();
    san_stack_start();
    san_records_start();
    san_exports_start();
    san_reports_start();
    san_segv_start();
    pthread_atfork(NULL, NULL, after_fork);
    psm_msg_sanitizer_on(where, mode == PSM_SAN_ERROR ? "error" : "warn");
    atomic_store(&psm_san_mode_now, mode);
}

struct left {
    uint64_t count, bytes;
    struct san_copy first;
};

static void count_left(const struct san_object *o, void *context)
{
    struct left *left = &((struct left *)context)[o->kind];
    if (o->flags & SAN_BORROWED || o->kind == PSM_SAN_EXPORT) return;
    if (!left->count || o->generation < left->first.object.generation) san_copy(&left->first, o);
    left->count++;
    left->bytes += o->size;
}

/* After all exit handlers and destructors of this library's users: nobody will free what is left. CUDA frees it with
 * the process, so it is only a remark, unless the user asked for it. */
__attribute__((destructor)) static void tell_left(void)
{
    if (atomic_load(&psm_san_mode_now) == PSM_SAN_OFF || process != getpid()) return;
    struct left *left = calloc(PSM_SAN_KINDS, sizeof *left);
    if (!left) return;
    atomic_store(&psm_san_mode_now, PSM_SAN_OFF); /* from here on libraries tear down */
    san_each(count_left, left);
    for (int kind = 1; kind < PSM_SAN_KINDS; kind++)
        if (left[kind].count)
            san_report_left((enum psm_san_kind)kind, left[kind].count, left[kind].bytes, &left[kind].first.birth,
                            leaks_wanted);
    free(left);
}
