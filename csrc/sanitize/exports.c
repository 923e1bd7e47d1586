/* Exported objects, in a table of their own: an import looks up one key in all processes, and there may be thousands of
 * both, so that reading all objects of all processes would take longer than the program's own work. Exports stay in
 * their table, so a process keeps what it has read of the others, and each import reads only what they added: N ranks
 * that import from all others open N * N files, not one for each pair of an import and a rank. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- what this process has read of the others ---- */

enum { SEEN_FIRST = 256, SEEN_MOST = 1 << 20, FILES_MOST = 1 << 16 };
struct file {
    uint64_t name; /* its hash; the name has a random part */
    uint64_t upto; /* the slots before it are read */
    struct san_owner owner;
    bool near; /* of this boot and pid namespace: its pid says whether it lives */
};
struct seen {
    uint64_t key; /* 0: none */
    uint32_t file;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct file *files;
static struct seen *seen; /* open addressing, half full at most */
static size_t nfiles, files_size, nseen, seen_size;
static bool incomplete; /* something found no place: only a search through all files answers */

static struct seen *seen_at(struct seen *table_of, size_t size, uint64_t key)
{
    size_t i = (size_t)(key * UINT64_C(0x9e3779b97f4a7c15)) & (size - 1);
    while (table_of[i].key && table_of[i].key != key) i = (i + 1) & (size - 1);
    return &table_of[i];
}

static bool seen_room(void)
{
    if (nseen * 2 < seen_size) return true;
    size_t size = seen_size ? seen_size * 2 : SEEN_FIRST;
    struct seen *grown = nseen < SEEN_MOST ? calloc(size, sizeof *grown) : NULL;
    if (!grown) return false;
    for (size_t i = 0; i < seen_size; i++)
        if (seen[i].key) *seen_at(grown, size, seen[i].key) = seen[i];
    free(seen);
    seen = grown;
    seen_size = size;
    return true;
}

static struct file *file_of(const psm_view *view)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = psm_view_name(view); *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    for (size_t i = 0; i < nfiles; i++)
        if (files[i].name == hash) return &files[i];
    if (nfiles == files_size) {
        size_t size = files_size ? files_size * 2 : 16;
        struct file *grown = nfiles < FILES_MOST ? realloc(files, size * sizeof *grown) : NULL;
        if (!grown) return NULL;
        files = grown;
        files_size = size;
    }
    const struct psm_proc *proc = psm_view_proc(view), *self = psm_proc_self();
    files[nfiles] = (struct file){.name = hash,
                                  .owner = {proc->pid, proc->rank, proc->start_time},
                                  .near = proc->start_time && proc->pid_ns == self->pid_ns &&
                                          strcmp(proc->boot_id, self->boot_id) == 0};
    return &files[nfiles++];
}

static int keep(const struct psm_slot *slot, void *context)
{
    struct file *file = context;
    uint64_t key = ((const struct export_record *)slot->record)->key;
    /* Behind a slot that is still being written, or that a death left so, all are read again. */
    if (slot->place == file->upto) file->upto++;
    if (!key) return 0;
    if (!seen_room()) {
        incomplete = true;
        return 1;
    }
    struct seen *at = seen_at(seen, seen_size, key);
    if (at->key) return 0;
    *at = (struct seen){key, (uint32_t)(file - files)};
    nseen++;
    return 0;
}

static bool own(const psm_view *view)
{
    const struct psm_proc *proc = psm_view_proc(view), *self = psm_proc_self();
    return proc->pid == self->pid && proc->start_time == self->start_time && proc->pid_ns == self->pid_ns;
}

static int read_new(const psm_view *view, void *context)
{
    (void)context;
    if (own(view)) return 0;
    struct file *file = file_of(view);
    if (file)
        psm_view_foreach_from(view, schema.name, schema.version, schema.record_size, file->upto, keep, file);
    else
        incomplete = true;
    return incomplete;
}

static bool look_up(uint64_t key, struct file *file)
{
    const struct seen *at = seen_size ? seen_at(seen, seen_size, key) : NULL;
    if (!at || !at->key) return false;
    *file = files[at->file];
    return true;
}

/* ---- the search through all files ---- */

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
    const struct psm_proc *proc = psm_view_proc(view);
    if (own(view)) return 0;
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
    struct file file = {0};
    pthread_mutex_lock(&lock);
    bool known = look_up(key, &file);
    if (!known && !incomplete) {
        psm_record_foreach_process(read_new, NULL);
        known = look_up(key, &file);
    }
    bool absent = !known && !incomplete;
    pthread_mutex_unlock(&lock);
    if (absent) return false;
    if (known && file.near && psm_pid_alive(file.owner.pid, file.owner.start_time)) {
        *owner = file.owner;
        return true;
    }
    /* Its owner is dead, or nobody knows: another may have exported the same, or it belongs to another job. */
    struct search s = {.key = key, .owner = owner};
    psm_record_foreach_process(visit, &s);
    return s.have;
}
