/* Exported objects, in a table of their own: an import looks up one key in all processes, and there may be thousands of
 * both, so that reading all objects of all processes would take longer than the program's own work. */
#include "san_internal.h"

/* A key is published once. If the table is full, an import of the object has no known owner. */
enum { EXPORTS = 8192, PROBES = 8 };

struct export_record {
    uint64_t key;
    int32_t pid, rank;
};
static const struct psm_field fields[] = {
    PSM_FIELDS(struct export_record, PSM_HEX64, key),
    PSM_FIELDS(struct export_record, PSM_I32, pid, rank),
};
static const struct psm_schema schema = PSM_SCHEMA_SILENT("sanitizer.exports", struct export_record, fields);

static psm_section *table;
static _Atomic uint64_t published[EXPORTS]; /* by key; 0: none */

void san_exports_start(void)
{
    table = psm_record_section(psm_record_self(), &schema, PSM_TABLE, EXPORTS);
}

/* Whether it is new. A key that finds no place near its hash counts as new: it then has two records. */
static bool first_time(uint64_t key)
{
    for (uint64_t i = 0; i < PROBES; i++) {
        uint64_t none = 0;
        /* Relaxed: the key publishes no other data. */
        if (atomic_compare_exchange_strong_explicit(&published[(key + i) % EXPORTS], &none, key, memory_order_relaxed,
                                                    memory_order_relaxed))
            return true;
        if (none == key) return false;
    }
    return true;
}

void san_export_note(uint64_t key)
{
    uint32_t slot;
    if (!first_time(key)) return;
    struct export_record *r = psm_table_claim(table, &slot);
    if (!r) return;
    const struct psm_proc *self = psm_proc_self();
    *r = (struct export_record){key, self->pid, self->rank};
    psm_table_publish(table, slot);
}

struct search {
    uint64_t key;
    struct san_owner *owner;
    bool here, have;
};

static int compare(const struct psm_slot *slot, void *context)
{
    struct search *s = context;
    s->here = ((const struct export_record *)slot->record)->key == s->key;
    return s->here;
}

static int visit(const psm_view *view, void *context)
{
    struct search *s = context;
    const struct psm_proc *proc = psm_view_proc(view), *self = psm_proc_self();
    if (proc->pid == self->pid && proc->start_time == self->start_time && proc->pid_ns == self->pid_ns) return 0;
    s->here = false;
    psm_view_foreach(view, schema.name, schema.version, schema.record_size, compare, s);
    if (!s->here) return 0;
    /* Checked last: it costs more than the table lookup. Prefer a living owner to a dead one. */
    enum psm_owner alive = psm_view_owner(view);
    if (alive != PSM_OWNER_ALIVE && s->have) return 0;
    if (alive == PSM_OWNER_DEAD && !san_same_job(view)) return 0;
    *s->owner = (struct san_owner){proc->pid, proc->rank, proc->start_time};
    s->have = true;
    return alive == PSM_OWNER_ALIVE;
}

bool san_export_find(uint64_t key, struct san_owner *owner)
{
    struct search s = {.key = key, .owner = owner};
    psm_record_foreach_process(visit, &s);
    return s.have;
}
