/* The ledger as other processes see it: a table in the record container, and the search in theirs. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "san_internal.h"

/* SPARE: slots that the shards keep for their next births. */
enum { OBJECTS = 8192, SPARE = SAN_SHARDS };
/* A dead process's handles are reported only if it belonged to the same job: not older than this before our own start.
 */
enum { SAME_JOB_SECONDS = 600, TICKS = 100 /* USER_HZ, the unit of start_time */ };

struct object_record {
    uint32_t kind, generation;
    char object[16];
    uint64_t value, size;
    uint64_t owner_start_time; /* owner, for imported ones */
    int32_t pid, tid, rank, device;
    int32_t owner_pid, owner_rank;
    struct san_stack birth;
};

#define FRAME(number, name) {name, PSM_HEX64, (uint32_t)(offsetof(struct object_record, birth.frame) + 8 * (number)), 8}
static const struct psm_field fields[] = {
    PSM_FIELDS(struct object_record, PSM_U32, kind, generation),
    PSM_FIELDS(struct object_record, PSM_STR, object),
    PSM_FIELDS(struct object_record, PSM_HEX64, value),
    PSM_FIELDS(struct object_record, PSM_U64, size),
    PSM_FIELDS(struct object_record, PSM_I32, pid, tid, rank, device, owner_pid, owner_rank),
    {"frames", PSM_U32, (uint32_t)offsetof(struct object_record, birth.n), 4},
    FRAME(0, "frame0"),
    FRAME(1, "frame1"),
    FRAME(2, "frame2"),
    FRAME(3, "frame3"),
    FRAME(4, "frame4"),
    FRAME(5, "frame5"),
    FRAME(6, "frame6"),
    FRAME(7, "frame7"),
    FRAME(8, "frame8"),
    FRAME(9, "frame9"),
    FRAME(10, "frame10"),
    FRAME(11, "frame11"),
};
static const struct psm_schema schema = PSM_SCHEMA_SILENT("sanitizer.objects", struct object_record, fields);

static psm_section *table;
static const struct psm_proc *self;
static char names[PSM_SAN_KINDS][16];

void san_records_start(void)
{
    for (int kind = 0; kind < PSM_SAN_KINDS; kind++)
        snprintf(names[kind], sizeof names[kind], "%s", san_kind_name((enum psm_san_kind)kind));
    self = psm_proc_self();
    table = psm_record_section(psm_record_self(), &schema, PSM_TABLE, OBJECTS + SPARE);
}

void san_record_birth(struct san_shard *shard, struct san_object *o)
{
    /* CUDA's own pools have no owner. */
    if (o->flags & SAN_BORROWED) return;
    struct object_record *r = NULL;
    bool has_stack = false; /* objects that come and go are often born at one place */
    if (shard->spare != SAN_NO_SLOT) {
        o->slot = shard->spare;
        shard->spare = SAN_NO_SLOT;
        has_stack = shard->spare_birth && shard->spare_birth == o->birth;
        r = psm_table_claim_aside(table, o->slot, san_clock_ns(), o->tid, o->device);
    } else {
        r = psm_table_claim(table, &o->slot);
    }
    if (!r) return;
    r->kind = o->kind;
    r->generation = o->generation;
    memcpy(r->object, names[o->kind], sizeof r->object);
    r->value = o->value;
    r->size = o->size;
    r->pid = self->pid;
    r->tid = o->tid;
    r->rank = self->rank;
    r->device = o->device;
    bool imported = o->flags & SAN_IMPORTED;
    r->owner_pid = imported ? o->owner.pid : 0;
    r->owner_rank = imported ? o->owner.rank : -1;
    r->owner_start_time = imported ? o->owner.start_time : 0;
    if (!has_stack) r->birth = o->birth ? o->birth->stack : (struct san_stack){0};
    psm_table_publish(table, o->slot);
    o->flags &= (uint16_t)~SAN_NO_RECORD;
}

void san_record_end(struct san_shard *shard, struct san_object *o)
{
    if (o->flags & SAN_NO_RECORD) return;
    if (shard->spare == SAN_NO_SLOT) {
        psm_table_set_aside(table, o->slot);
        shard->spare = o->slot;
        shard->spare_birth = o->birth && o->birth->stays ? o->birth : NULL;
    } else {
        psm_table_release(table, o->slot);
    }
    o->flags |= SAN_NO_RECORD;
}

struct search {
    enum psm_san_kind kind;
    uint64_t value;
    bool address;
    const psm_view *view;
    struct san_foreign *found;
    bool have;
};

static bool is_memory(uint32_t kind)
{
    return kind == PSM_SAN_ALLOC || kind == PSM_SAN_MAP || kind == PSM_SAN_IPC;
}

static int compare(const struct psm_slot *slot, void *context)
{
    struct search *s = context;
    const struct object_record *r = slot->record;
    if (s->address) {
        if (!is_memory(r->kind) || s->value < r->value || s->value - r->value >= (r->size ? r->size : 1)) return 0;
    } else if (r->kind != s->kind || r->value != s->value) {
        return 0;
    }
    const struct psm_proc *proc = psm_view_proc(s->view);
    struct san_foreign *f = s->found;
    f->owner = (struct san_owner){proc->pid, proc->rank, proc->start_time};
    f->alive = psm_view_owner(s->view);
    f->tid = r->tid;
    f->kind = (enum psm_san_kind)r->kind;
    f->value = r->value;
    f->size = r->size;
    san_stack_render_foreign(&r->birth, s->view, f->stack, sizeof f->stack);
    s->have = true;
    return 1;
}

bool san_same_job(const psm_view *view)
{
    return !psm_view_clean_exit(view) &&
           psm_view_proc(view)->start_time + (uint64_t)SAME_JOB_SECONDS * TICKS >= psm_proc_self()->start_time;
}

static int visit(const psm_view *view, void *context)
{
    struct search *s = context;
    const struct psm_proc *proc = psm_view_proc(view);
    enum psm_owner alive = psm_view_owner(view);
    /* The shim and the emulated CUDA under it have a file each. */
    if (proc->pid == self->pid && proc->start_time == self->start_time && proc->pid_ns == self->pid_ns) return 0;
    if (alive == PSM_OWNER_DEAD && !san_same_job(view)) return 0;
    if (alive != PSM_OWNER_ALIVE && s->have) return 0;
    s->view = view;
    psm_view_foreach(view, schema.name, schema.version, schema.record_size, compare, s);
    /* Prefer a living owner to a dead one. */
    return s->have && s->found->alive == PSM_OWNER_ALIVE;
}

static bool search(struct search *s)
{
    psm_record_foreach_process(visit, s);
    return s->have;
}

bool san_foreign_find(enum psm_san_kind kind, uint64_t value, struct san_foreign *found)
{
    return search(&(struct search){.kind = kind, .value = value, .found = found});
}

bool san_foreign_address(uint64_t address, struct san_foreign *found)
{
    return search(&(struct search){.value = address, .address = true, .found = found});
}
