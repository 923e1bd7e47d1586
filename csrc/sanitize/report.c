/* Prints findings as log lines and stores them in the record. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "psm_messages.h"
#include "san_internal.h"

/* REPORTS: number of last records that are kept, at two to four per report. TOLD: maximum number of different reports.
 */
enum { REPORTS = 256, TOLD = 1024 };

static const char *const names[PSM_SAN_KINDS] = {
    [PSM_SAN_NONE] = "object",         [PSM_SAN_STREAM] = "stream",       [PSM_SAN_EVENT] = "event",
    [PSM_SAN_MEM] = "memory-handle",   [PSM_SAN_POOL] = "memory-pool",    [PSM_SAN_GRAPH] = "graph",
    [PSM_SAN_EXEC] = "graph-exec",     [PSM_SAN_RANGE] = "address-range", [PSM_SAN_REGISTERED] = "registration",
    [PSM_SAN_ALLOC] = "device-memory", [PSM_SAN_HOST] = "pinned-memory",  [PSM_SAN_MAP] = "mapping",
    [PSM_SAN_IPC] = "ipc-mapping",     [PSM_SAN_EXPORT] = "export",
};

const char *san_kind_name(enum psm_san_kind kind)
{
    return names[kind];
}

/* The fields of all messages; a reader recreates the log lines from them. */
struct report_record {
    uint32_t message;
    char call[44];
    char object[16];
    char access[8];
    char which[16];
    uint64_t report, value, size, address, bytes, beyond, generation, count;
    int64_t owner_rank, owner_pid, device, thread;
    char stack[SAN_STACK_TEXT - 256];
};

enum message {
    MESSAGE_FINDING = 0, /* + enum san_finding */
    MESSAGE_STACK = SAN_FINDINGS,
    MESSAGE_LEAK,
    MESSAGE_LEFT,
    MESSAGE_FOREIGN_UNRANKED, /* the rank of the owner is unknown */
    MESSAGE_DEAD_OWNER_UNRANKED,
    MESSAGE_NOT_RECORDED_TIME /* elapsed time was requested, which CUDA refuses */
};

static const struct psm_field fields[] = {
    PSM_FIELDS(struct report_record, PSM_U32, message),
    PSM_FIELDS(struct report_record, PSM_STR, call, object, access, which),
    PSM_FIELDS(struct report_record, PSM_U64, report),
    PSM_FIELDS(struct report_record, PSM_HEX64, value),
    PSM_FIELDS(struct report_record, PSM_U64, size),
    PSM_FIELDS(struct report_record, PSM_HEX64, address),
    PSM_FIELDS(struct report_record, PSM_U64, bytes, beyond, generation, count),
    PSM_FIELDS(struct report_record, PSM_I64, owner_rank, owner_pid, device, thread),
    PSM_FIELDS(struct report_record, PSM_STR, stack),
};
static const struct psm_record_message messages[] = {
    [SAN_FOREIGN] = PSM_MESSAGE_SANITIZER_FOREIGN,
    [SAN_DESTROYED] = PSM_MESSAGE_SANITIZER_DESTROYED,
    [SAN_NEVER_CREATED] = PSM_MESSAGE_SANITIZER_NEVER_CREATED,
    [SAN_OUT_OF_BOUNDS] = PSM_MESSAGE_SANITIZER_OUT_OF_BOUNDS,
    [SAN_FREED_MEMORY] = PSM_MESSAGE_SANITIZER_FREED_MEMORY,
    [SAN_DOUBLE_FREE] = PSM_MESSAGE_SANITIZER_DOUBLE_FREE,
    [SAN_BAD_FREE] = PSM_MESSAGE_SANITIZER_BAD_FREE,
    [SAN_NOT_RECORDED] = PSM_MESSAGE_SANITIZER_NOT_RECORDED,
    [SAN_HOST_ACCESS] = PSM_MESSAGE_SANITIZER_HOST_ACCESS,
    [SAN_DEAD_OWNER] = PSM_MESSAGE_SANITIZER_DEAD_OWNER,
    [SAN_EMPTY_UNMAP] = PSM_MESSAGE_SANITIZER_EMPTY_UNMAP,
    [MESSAGE_STACK] = PSM_MESSAGE_SANITIZER_STACK,
    [MESSAGE_LEAK] = PSM_MESSAGE_SANITIZER_LEAK,
    [MESSAGE_LEFT] = PSM_MESSAGE_SANITIZER_LEFT,
    [MESSAGE_FOREIGN_UNRANKED] = PSM_MESSAGE_SANITIZER_FOREIGN_2,
    [MESSAGE_DEAD_OWNER_UNRANKED] = PSM_MESSAGE_SANITIZER_DEAD_OWNER_2,
    [MESSAGE_NOT_RECORDED_TIME] = PSM_MESSAGE_SANITIZER_NOT_RECORDED_2,
};
static const struct psm_schema schema =
    PSM_SCHEMA_SELECTED("sanitizer.reports", struct report_record, fields, messages, 0);

static psm_section *ring;
static _Atomic uint64_t numbers;
static _Atomic uint64_t told[TOLD];

void san_reports_start(void)
{
    ring = psm_record_section(psm_record_self(), &schema, PSM_RING, REPORTS);
}

static void print(const struct report_record *r)
{
    switch (r->message) {
    case SAN_FOREIGN:
        psm_msg_sanitizer_foreign(r->report, r->call, r->object, r->value, r->owner_rank, r->owner_pid);
        break;
    case SAN_DESTROYED:
        psm_msg_sanitizer_destroyed(r->report, r->call, r->object, r->value, r->generation);
        break;
    case SAN_NEVER_CREATED:
        psm_msg_sanitizer_never_created(r->report, r->call, r->object, r->value);
        break;
    case SAN_OUT_OF_BOUNDS:
        psm_msg_sanitizer_out_of_bounds(r->report, r->call, r->access, r->bytes, r->address, r->beyond, r->object,
                                        r->value, r->size);
        break;
    case SAN_FREED_MEMORY:
        psm_msg_sanitizer_freed_memory(r->report, r->call, r->access, r->bytes, r->address, r->object, r->value,
                                       r->size);
        break;
    case SAN_DOUBLE_FREE:
        psm_msg_sanitizer_double_free(r->report, r->call, r->object, r->value);
        break;
    case SAN_BAD_FREE:
        psm_msg_sanitizer_bad_free(r->report, r->call, r->address, r->object, r->value, r->size);
        break;
    case SAN_NOT_RECORDED:
        psm_msg_sanitizer_not_recorded(r->report, r->call, r->value);
        break;
    case SAN_HOST_ACCESS:
        psm_msg_sanitizer_host_access(r->report, r->access, r->address, r->object, r->value, r->size, r->device);
        break;
    case SAN_DEAD_OWNER:
        psm_msg_sanitizer_dead_owner(r->report, r->call, r->object, r->value, r->owner_rank, r->owner_pid);
        break;
    case SAN_EMPTY_UNMAP:
        psm_msg_sanitizer_empty_unmap(r->report, r->call, r->object, r->value, r->size);
        break;
    case MESSAGE_FOREIGN_UNRANKED:
        psm_msg_sanitizer_foreign_2(r->report, r->call, r->object, r->value, r->owner_pid);
        break;
    case MESSAGE_DEAD_OWNER_UNRANKED:
        psm_msg_sanitizer_dead_owner_2(r->report, r->call, r->object, r->value, r->owner_pid);
        break;
    case MESSAGE_NOT_RECORDED_TIME:
        psm_msg_sanitizer_not_recorded_2(r->report, r->call, r->value);
        break;
    case MESSAGE_STACK:
        psm_msg_sanitizer_stack(r->report, r->which, r->thread, r->stack);
        break;
    case MESSAGE_LEAK:
        psm_msg_sanitizer_leak(r->count, r->object, r->bytes, r->stack);
        break;
    case MESSAGE_LEFT:
        psm_msg_sanitizer_left(r->count, r->object, r->bytes, r->stack);
        break;
    default:
        break;
    }
}

static void emit(const struct report_record *r)
{
    uint64_t ticket;
    void *place = psm_ring_begin(ring, &ticket);
    if (place) {
        memcpy(place, r, sizeof *r);
        psm_ring_commit(ring, ticket);
    }
    print(r);
}

/* Each finding is reported once per call: a progress loop would print it for ever. */
static bool is_news(const struct san_report *r)
{
    uint64_t key = r->value ^ (uint64_t)r->finding << 60 ^ (uint64_t)r->kind << 52;
    for (const char *c = r->call; *c; c++) key = (key ^ (unsigned char)*c) * 0x100000001b3u;
    key = (key ^ r->generation) * 0x9e3779b97f4a7c15u | 1;
    for (int i = 0; i < TOLD; i++) {
        _Atomic uint64_t *at = &told[(key + (uint64_t)i) % TOLD];
        uint64_t seen = atomic_load(at);
        if (seen == 0 && atomic_compare_exchange_strong(at, &seen, key)) return true;
        if (seen == key) return false;
    }
    return false;
}

static void copy_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

static void tell_stack(struct report_record *r, const char *which, int thread, const struct san_stack *stack)
{
    r->message = MESSAGE_STACK;
    copy_text(r->which, sizeof r->which, which);
    r->thread = thread;
    if (stack) san_stack_render(stack, r->stack, sizeof r->stack);
    emit(r);
}

static uint32_t message_of(const struct san_report *report)
{
    if (report->finding == SAN_NOT_RECORDED && strstr(report->call, "ElapsedTime")) return MESSAGE_NOT_RECORDED_TIME;
    if (report->owner.rank >= 0) return (uint32_t)report->finding;
    return report->finding == SAN_FOREIGN      ? MESSAGE_FOREIGN_UNRANKED
           : report->finding == SAN_DEAD_OWNER ? MESSAGE_DEAD_OWNER_UNRANKED
                                               : (uint32_t)report->finding;
}

bool san_report(const struct san_report *report)
{
    if (!is_news(report)) return false;
    struct san_stack now;
    if (!report->used) san_stack_take_now(&now);
    const struct san_stack *used = report->used ? report->used : &now;
    struct report_record r = {.message = message_of(report),
                              .report = atomic_fetch_add(&numbers, 1) + 1,
                              .value = report->value,
                              .size = report->size,
                              .address = report->address,
                              .bytes = report->bytes,
                              .beyond = report->beyond,
                              .generation = report->generation,
                              .owner_rank = report->owner.rank,
                              .owner_pid = report->owner.pid,
                              .device = report->device};
    copy_text(r.call, sizeof r.call, report->call);
    copy_text(r.object, sizeof r.object, names[report->kind]);
    copy_text(r.access, sizeof r.access, report->write ? "writes" : "reads");
    emit(&r);
    tell_stack(&r, "used", psm_tid(), used);
    if (report->birth && report->birth->n) tell_stack(&r, "born", report->tid, report->birth);
    if (report->foreign_stack) {
        copy_text(r.stack, sizeof r.stack, report->foreign_stack);
        tell_stack(&r, "born", report->tid, NULL);
    }
    if (report->end && report->end->n) tell_stack(&r, "ended", report->end_tid, report->end);
    return true;
}

void san_report_left(enum psm_san_kind kind, uint64_t count, uint64_t bytes, const struct san_stack *first, bool leak)
{
    struct report_record r = {.message = leak ? MESSAGE_LEAK : MESSAGE_LEFT, .count = count, .bytes = bytes};
    copy_text(r.object, sizeof r.object, names[kind]);
    san_stack_render(first, r.stack, sizeof r.stack);
    emit(&r);
}
