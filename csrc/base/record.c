/* The record of this process: the file, its sections, rings and tables. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "psm_messages.h"
#include "record_format.h"

struct psm_section {
    _Atomic bool open; /* false in a child of fork, and after the exit handler: takes no records */
    enum psm_section_kind kind;
    uint32_t record_size, slot_size;
    uint64_t capacity;
    struct rec_control *control;
    unsigned char *data;
    char name[REC_NAME];
    uint32_t version;
};

struct psm_record {
    int pid;
    struct rec_header *header;
    uint64_t size, used; /* used: bytes given to sections, from the begin of the file */
    uint32_t sections;
    int fd;
    char directory[PATH_MAX];
    char name[128];
    char path[PATH_MAX + 130];
    psm_section section[REC_SECTIONS];
    psm_record *parent; /* of the parent process: its pointers are still around */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int owner; /* the thread that holds the mutex */
static psm_record *_Atomic current;
static bool tried;

static bool lock(void)
{
    /* A signal handler that interrupted the holder cannot wait for it. */
    if (atomic_load(&owner) == psm_tid()) return false;
    pthread_mutex_lock(&mutex);
    atomic_store(&owner, psm_tid());
    return true;
}

static void unlock(void)
{
    atomic_store(&owner, 0);
    pthread_mutex_unlock(&mutex);
}

static void close_sections(psm_record *record)
{
    for (uint32_t i = 0; i < record->sections; i++)
        atomic_store_explicit(&record->section[i].open, false, memory_order_release);
}

/* The child must not write into the parent's file, whatever pointers it holds: its pages become memory of its own. */
static void after_fork(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    mutex = fresh;
    atomic_store(&owner, 0);
    psm_record *record = atomic_load(&current);
    if (record) {
        close_sections(record);
        mmap(record->header, record->size, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        close(record->fd);
    }
    atomic_store(&current, NULL);
    tried = false;
}

/* The last of the destructors of the object that links this: theirs may still write records. */
__attribute__((destructor(101))) static void clean_exit(void)
{
    psm_record *record = atomic_load(&current);
    /* Asked of the kernel: a child made by clone() itself ran no handler of fork. */
    if (!record || record->pid != (int)getpid()) return;
    const char *keep = getenv("PSM_RECORD_KEEP");
    atomic_store(&record->header->state, REC_CLEAN);
    close_sections(record);
    if (!keep || strcmp(keep, "1") != 0) unlink(record->path);
}

static void complain(const char *what, const char *why)
{
    psm_msg_record_unavailable(what, why);
}

static uint64_t largest(void)
{
    const char *text = getenv("PSM_RECORD_MAX");
    if (!text || !*text) return REC_DEFAULT_MAX;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    static const struct {
        const char *unit;
        int shift;
    } units[] = {{"", 0}, {"k", 10}, {"KiB", 10}, {"m", 20}, {"MiB", 20}, {"g", 30}, {"GiB", 30}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (errno == 0 && *text != '-' && end != text && strcasecmp(end, units[i].unit) == 0) {
            if (value == 0) return 0;
            if (value > REC_LARGEST >> units[i].shift) return REC_LARGEST;
            value <<= units[i].shift;
            return value < 2 * REC_HEADER ? 2 * REC_HEADER : value & ~(uint64_t)(REC_ALIGN - 1);
        }
    complain("PSM_RECORD_MAX", "not a size such as 16777216 or 16MiB");
    return 0;
}

static void copy_text(char *to, size_t size, const char *from)
{
    size_t n = strnlen(from, size - 1);
    memcpy(to, from, n);
    memset(to + n, 0, size - n);
}

static void write_header(struct rec_header *h, uint64_t size)
{
    const struct psm_proc *proc = psm_proc_self();
    h->order = REC_ORDER;
    h->version = REC_VERSION;
    h->header_size = REC_HEADER;
    h->section_size = sizeof(struct rec_section);
    h->file_size = size;
    h->pid = proc->pid;
    h->rank = proc->rank;
    h->start_time = proc->start_time;
    h->pid_ns = proc->pid_ns;
    h->wall_ns = psm_wall_ns();
    h->clock_ns = psm_clock_ns();
    h->uid = (uint32_t)geteuid();
    h->tag = proc->tag;
    h->sections = REC_SECTIONS;
    copy_text(h->boot_id, sizeof h->boot_id, proc->boot_id);
    copy_text(h->host, sizeof h->host, proc->host);
    copy_text(h->command, sizeof h->command, program_invocation_short_name ? program_invocation_short_name : "");
    atomic_store(&h->state, REC_RUNNING);
    memcpy(h->magic, REC_MAGIC, sizeof h->magic);
}

static void make_name(char *name, size_t size)
{
    const struct psm_proc *proc = psm_proc_self();
    char host[PSM_HOST_SIZE];
    copy_text(host, sizeof host, proc->host);
    for (char *p = host; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-')) *p = '_';
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number) number = psm_clock_ns() * 0x9e3779b97f4a7c15u;
    snprintf(name, size, "psm-%s-%d-%016llx.rec", host, proc->pid, (unsigned long long)number);
}

/* The file gets its name when its header is whole: no reader sees half a header. */
static bool open_file(psm_record *r, int folder)
{
    char hidden[sizeof r->name + 1];
    make_name(r->name, sizeof r->name);
    snprintf(hidden, sizeof hidden, ".%s", r->name);
    snprintf(r->path, sizeof r->path, "%s/%s", r->directory, r->name);
    r->fd = openat(folder, hidden, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (r->fd < 0) {
        complain(r->directory, strerror(errno));
        return false;
    }
    int error = fchmod(r->fd, 0600) != 0 || ftruncate(r->fd, (off_t)r->size) != 0 ? errno : 0;
    /* A hole is filled when it is written to: on a full disk that is a SIGBUS. So blocks are taken before. */
    if (!error) error = posix_fallocate(r->fd, 0, REC_HEADER);
    void *at = error ? MAP_FAILED : mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    if (at == MAP_FAILED) {
        if (!error) error = errno;
    } else {
        r->header = at;
        write_header(r->header, r->size);
        if (renameat(folder, hidden, folder, r->name) == 0) return true;
        error = errno;
        munmap(at, r->size);
    }
    complain(r->directory, strerror(error));
    unlinkat(folder, hidden, 0);
    close(r->fd);
    return false;
}

static psm_record *make_record(void)
{
    uint64_t size = largest();
    if (!size) return NULL;
    psm_record *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    const char *why;
    int folder = psm_record_directory(true, r->directory, sizeof r->directory, &why);
    if (folder < 0) {
        complain(r->directory, why);
        free(r);
        return NULL;
    }
    r->pid = psm_proc_self()->pid;
    r->size = size;
    r->used = REC_HEADER;
    bool good = open_file(r, folder);
    close(folder);
    if (good) return r;
    free(r);
    return NULL;
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

psm_record *psm_record_self(void)
{
    psm_record *record = atomic_load_explicit(&current, memory_order_acquire);
    if (record) return record;
    if (!lock()) return NULL;
    record = atomic_load(&current);
    if (!record && !tried) {
        tried = true;
        record = make_record();
        atomic_store_explicit(&current, record, memory_order_release);
    }
    unlock();
    return record;
}

const char *psm_record_path(const psm_record *record)
{
    return record ? record->path : NULL;
}

const char *psm_record_own_name(void)
{
    const psm_record *record = atomic_load(&current);
    return record ? record->name : "";
}

/* ---- schemas ---- */

static const char *const types[] = {
    [PSM_U8] = "u8",   [PSM_U16] = "u16", [PSM_U32] = "u32",     [PSM_U64] = "u64", [PSM_I32] = "i32",
    [PSM_I64] = "i64", [PSM_F64] = "f64", [PSM_HEX64] = "hex64", [PSM_STR] = "str", [PSM_TIME] = "time",
};
static const uint32_t type_size[] = {
    [PSM_U8] = 1,  [PSM_U16] = 2, [PSM_U32] = 4,   [PSM_U64] = 8, [PSM_I32] = 4,
    [PSM_I64] = 8, [PSM_F64] = 8, [PSM_HEX64] = 8, [PSM_STR] = 0, [PSM_TIME] = 8,
};

static void put(struct psm_text *t, const char *s)
{
    psm_text_literal(t, s, strlen(s));
}

static void put_json(struct psm_text *t, const char *s)
{
    put(t, "\"");
    for (; *s; s++) {
        char escape[8];
        if (*s == '"' || *s == '\\' || (unsigned char)*s < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned char)*s);
            put(t, escape);
        } else {
            psm_text_literal(t, s, 1);
        }
    }
    put(t, "\"");
}

static size_t schema_json(const struct psm_schema *schema, char *buffer, size_t size)
{
    struct psm_text t = {buffer, 0, size, 0};
    put(&t, "{\"name\": ");
    put_json(&t, schema->name);
    put(&t, ", \"version\": ");
    psm_text_uint(&t, schema->version);
    put(&t, ", \"selector\": ");
    psm_text_int(&t, schema->selector);
    put(&t, ", \"fields\": [");
    for (uint32_t i = 0; i < schema->nfields; i++) {
        const struct psm_field *f = &schema->fields[i];
        put(&t, i ? ", [" : "[");
        put_json(&t, f->name);
        put(&t, ", ");
        put_json(&t, types[f->type]);
        put(&t, ", ");
        psm_text_uint(&t, f->offset);
        put(&t, ", ");
        psm_text_uint(&t, f->size);
        put(&t, "]");
    }
    put(&t, "], \"messages\": [");
    for (uint32_t i = 0; i < schema->nmessages; i++) {
        const struct psm_record_message *m = &schema->messages[i];
        put(&t, i ? ", [" : "[");
        put_json(&t, m->name);
        put(&t, m->level == PSM_LEVEL_WARN ? ", \"WARN\", " : ", \"INFO\", ");
        put_json(&t, m->pattern);
        put(&t, "]");
    }
    put(&t, "]}");
    return t.lost ? 0 : t.n;
}

static bool good_schema(const struct psm_schema *schema)
{
    if (!schema->name || strlen(schema->name) >= REC_NAME || !*schema->name) return false;
    if (schema->record_size == 0 || schema->record_size > REC_LARGEST_RECORD) return false;
    for (uint32_t i = 0; i < schema->nfields; i++) {
        const struct psm_field *f = &schema->fields[i];
        if (f->type < PSM_U8 || f->type > PSM_TIME || f->size == 0 || f->size > schema->record_size) return false;
        if (f->offset > schema->record_size - f->size) return false;
        if (type_size[f->type] && type_size[f->type] != f->size) return false;
    }
    return schema->selector >= -1 && (schema->selector < 0 || (uint32_t)schema->selector < schema->nfields);
}

/* ---- sections ---- */

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

static psm_section *find_section(psm_record *r, const struct psm_schema *schema)
{
    for (uint32_t i = 0; i < r->sections; i++)
        if (r->section[i].version == schema->version && strcmp(r->section[i].name, schema->name) == 0)
            return r->section[i].record_size == schema->record_size ? &r->section[i] : NULL;
    return NULL;
}

static psm_section *make_section(psm_record *r, const struct psm_schema *schema, enum psm_section_kind kind,
                                 uint64_t capacity)
{
    char json[REC_LARGEST_SCHEMA / 4];
    size_t n = schema_json(schema, json, sizeof json);
    if (!n || r->sections == REC_SECTIONS) return NULL;
    uint32_t slot_size = (uint32_t)round_up(sizeof(struct rec_slot) + schema->record_size, 8);
    uint64_t begin = round_up(r->used, REC_ALIGN), control = begin + round_up(n, 64), data = control + REC_CONTROL;
    uint64_t end = data + capacity * slot_size;
    if (begin > r->size || end > r->size || posix_fallocate(r->fd, (off_t)begin, (off_t)(end - begin)) != 0) {
        psm_msg_record_no_room(schema->name, end - begin, r->size > begin ? r->size - begin : 0);
        return NULL;
    }
    unsigned char *base = (unsigned char *)r->header;
    memcpy(base + begin, json, n);
    struct rec_section *e = &r->header->section[r->sections];
    e->kind = kind;
    copy_text(e->name, sizeof e->name, schema->name);
    e->version = schema->version;
    e->record_size = schema->record_size;
    e->slot_size = slot_size;
    e->schema_size = (uint32_t)n;
    e->schema_offset = begin;
    e->control_offset = control;
    e->data_offset = data;
    e->capacity = capacity;
    atomic_store_explicit(&e->ready, 1, memory_order_release);
    psm_section *s = &r->section[r->sections];
    s->kind = kind;
    s->record_size = schema->record_size;
    s->slot_size = slot_size;
    s->capacity = capacity;
    s->control = (struct rec_control *)(base + control);
    s->data = base + data;
    s->version = schema->version;
    memcpy(s->name, e->name, sizeof s->name);
    atomic_store_explicit(&s->open, true, memory_order_release);
    r->sections++;
    r->used = end;
    return s;
}

psm_section *psm_record_section(psm_record *record, const struct psm_schema *schema, enum psm_section_kind kind,
                                uint32_t capacity)
{
    if (!record || !capacity || !good_schema(schema)) return NULL;
    uint64_t slots = 1;
    while (kind == PSM_RING && slots < capacity) slots *= 2;
    if (kind != PSM_RING) slots = capacity;
    if (!lock()) return NULL;
    psm_section *s = NULL;
    if (record == atomic_load(&current)) {
        s = find_section(record, schema);
        if (!s) s = make_section(record, schema, kind, slots);
    }
    unlock();
    return s;
}

static struct rec_slot *slot_at(const psm_section *s, uint64_t i)
{
    return (struct rec_slot *)(s->data + i * s->slot_size);
}

static bool is_open(const psm_section *s)
{
    return s && atomic_load_explicit(&s->open, memory_order_relaxed);
}

static void note_writer(struct rec_slot *slot)
{
    slot->time_ns = psm_clock_ns();
    slot->tid = psm_tid();
    slot->device = psm_log_device();
}

static void *lose(psm_section *s)
{
    atomic_fetch_add_explicit(&s->control->lost, 1, memory_order_relaxed);
    return NULL;
}

void *psm_ring_begin(psm_section *section, uint64_t *ticket)
{
    if (!is_open(section) || section->kind != PSM_RING) return NULL;
    uint64_t t = atomic_fetch_add_explicit(&section->control->tickets, 1, memory_order_relaxed);
    struct rec_slot *slot = slot_at(section, t & (section->capacity - 1));
    uint64_t seen = atomic_load_explicit(&slot->sequence, memory_order_relaxed);
    /* Odd: a writer was stopped in this slot while the ring went round. Two in one slot would tear both. */
    if (seen & 1 || seen > 2 * t ||
        !atomic_compare_exchange_strong_explicit(&slot->sequence, &seen, 2 * t + 1, memory_order_acquire,
                                                 memory_order_relaxed))
        return lose(section);
    atomic_thread_fence(memory_order_release);
    note_writer(slot);
    *ticket = t;
    return slot->record;
}

void psm_ring_commit(psm_section *section, uint64_t ticket)
{
    if (!is_open(section)) return;
    struct rec_slot *slot = slot_at(section, ticket & (section->capacity - 1));
    atomic_store_explicit(&slot->sequence, 2 * ticket + 2, memory_order_release);
}

void *psm_table_claim(psm_section *section, uint32_t *number)
{
    if (!is_open(section) || section->kind != PSM_TABLE) return NULL;
    struct rec_control *c = section->control;
    /* used is counted up before the slot is taken and down after it is free: below capacity means that one is free. */
    if (atomic_fetch_add_explicit(&c->used, 1, memory_order_acquire) >= section->capacity) {
        atomic_fetch_sub_explicit(&c->used, 1, memory_order_relaxed);
        return lose(section);
    }
    for (;;) {
        uint64_t i = atomic_fetch_add_explicit(&c->tickets, 1, memory_order_relaxed) % section->capacity;
        struct rec_slot *slot = slot_at(section, i);
        uint64_t seen = atomic_load_explicit(&slot->sequence, memory_order_relaxed);
        if ((seen & SLOT_BITS) != SLOT_FREE || seen & SLOT_ASIDE) continue;
        if (!atomic_compare_exchange_strong_explicit(&slot->sequence, &seen, seen | SLOT_CLAIMED, memory_order_acquire,
                                                     memory_order_relaxed))
            continue;
        atomic_thread_fence(memory_order_release);
        memset(slot->record, 0, section->record_size);
        note_writer(slot);
        *number = (uint32_t)i;
        return slot->record;
    }
}

static void set_state(struct rec_slot *slot, uint64_t state, memory_order order)
{
    uint64_t seen = atomic_load_explicit(&slot->sequence, memory_order_relaxed);
    atomic_store_explicit(&slot->sequence, (seen & ~(SLOT_ASIDE | SLOT_BITS)) + SLOT_STEP + state, order);
}

void psm_table_publish(psm_section *section, uint32_t number)
{
    if (is_open(section)) set_state(slot_at(section, number), SLOT_LIVE, memory_order_release);
}

void *psm_table_update(psm_section *section, uint32_t number)
{
    if (!is_open(section)) return NULL;
    struct rec_slot *slot = slot_at(section, number);
    set_state(slot, SLOT_UPDATING, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    return slot->record;
}

void psm_table_release(psm_section *section, uint32_t number)
{
    if (!is_open(section)) return;
    set_state(slot_at(section, number), SLOT_FREE, memory_order_release);
    atomic_fetch_sub_explicit(&section->control->used, 1, memory_order_release);
}

void psm_table_set_aside(psm_section *section, uint32_t number)
{
    if (is_open(section)) set_state(slot_at(section, number), SLOT_ASIDE | SLOT_FREE, memory_order_release);
}

void *psm_table_claim_aside(psm_section *section, uint32_t number, uint64_t time_ns, int tid, int device)
{
    if (!is_open(section)) return NULL;
    struct rec_slot *slot = slot_at(section, number);
    set_state(slot, SLOT_CLAIMED, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    slot->time_ns = time_ns;
    slot->tid = tid;
    slot->device = device;
    return slot->record;
}

uint64_t psm_section_lost(const psm_section *section)
{
    return is_open(section) ? atomic_load_explicit(&section->control->lost, memory_order_relaxed) : 0;
}
