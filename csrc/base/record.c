/* The records of this process: the files, their sections, rings and tables. */
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
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "psm_messages.h"
#include "record_format.h"

struct psm_section {
    _Atomic bool open; /* false in a child of fork and after the exit handler: accepts no records */
    enum psm_section_kind kind;
    uint32_t record_size, slot_size;
    uint64_t capacity;
    struct rec_control *control;
    unsigned char *data;
    char name[REC_NAME];
    uint32_t version;
    uint64_t data_offset;
    const psm_record *record;
};

struct psm_record {
    int pid;
    struct rec_header *header;
    uint64_t size, used; /* used: bytes assigned to sections, from the start of the file */
    uint32_t sections;
    int fd;
    char directory[PATH_MAX];
    char name[128];
    char path[PATH_MAX + 130];
    bool disk_full; /* it was said */
    psm_section section[REC_SECTIONS];
    bool keep;        /* keep the file at a clean exit, for a later reader */
    psm_record *next; /* on the list `others` or `ended` */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int owner; /* the thread that holds the mutex */
static psm_record *_Atomic current;
static bool tried;
/* Protected by the mutex: further records, and the address ranges of those that ended, for reuse by records of the same
 * size. */
static psm_record *others, *ended;

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

/* Pointers into the file may still be in use: redirect what they write to private memory, and release the file. */
static void detach(psm_record *record)
{
    close_sections(record);
    mmap(record->header, record->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
         -1, 0);
    close(record->fd);
    record->fd = -1;
}

/* The child must not write into the parent's files, whichever pointers it holds. */
static void after_fork(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    mutex = fresh;
    atomic_store(&owner, 0);
    psm_record *record = atomic_load(&current);
    if (record) detach(record);
    for (record = others; record; record = record->next) detach(record);
    /* Not reused: the parent's threads may have been changing the lists at the fork. */
    others = ended = NULL;
    atomic_store(&current, NULL);
    tried = false;
}

static void end_file(psm_record *record)
{
    const char *keep = getenv("PSM_RECORD_KEEP");
    atomic_store(&record->header->state, REC_CLEAN);
    close_sections(record);
    if (!record->keep && (!keep || strcmp(keep, "1") != 0)) unlink(record->path);
}

/* The last destructor of the object that links this: the others may still write records. */
__attribute__((destructor(101))) static void clean_exit(void)
{
    psm_record *record = atomic_load(&current);
    /* Asks the kernel: a child made by a plain clone() ran no fork handler. */
    if (record && record->pid == (int)getpid()) end_file(record);
    if (!lock()) return;
    for (record = others; record; record = record->next)
        if (record->pid == (int)getpid()) end_file(record);
    unlock();
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

/* The file gets its name after its header is complete: no reader sees a partial header. */
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
    /* Writing beyond that limit raises a signal that ends the process. */
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &limit);
    int error = limit.rlim_cur < r->size ? EFBIG : 0;
    if (!error && (fchmod(r->fd, 0600) != 0 || ftruncate(r->fd, (off_t)r->size) != 0)) error = errno;
    /* Writing to a hole allocates a block, and on a full disk that raises SIGBUS. So allocate blocks first. */
    if (!error) error = posix_fallocate(r->fd, 0, REC_HEADER);
    /* The range of an ended record is in use again. */
    void *old = r->header, *at = MAP_FAILED;
    if (!error) at = mmap(old, r->size, PROT_READ | PROT_WRITE, MAP_SHARED | (old ? MAP_FIXED : 0), r->fd, 0);
    if (at == MAP_FAILED) {
        if (!error) error = errno;
    } else {
        r->header = at;
        write_header(r->header, r->size);
        if (renameat(folder, hidden, folder, r->name) == 0) return true;
        error = errno;
        if (old)
            mmap(old, r->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        else
            munmap(at, r->size);
    }
    complain(r->directory, strerror(error));
    unlinkat(folder, hidden, 0);
    close(r->fd);
    return false;
}

/* Takes an ended record of this size, or creates one. */
static psm_record *get_record(uint64_t size)
{
    psm_record **at = &ended, *r;
    while ((r = *at) && r->size != size) at = &r->next;
    if (!r) return calloc(1, sizeof *r);
    *at = r->next;
    struct rec_header *header = r->header;
    memset(r, 0, sizeof *r);
    r->header = header;
    return r;
}

static void put_record(psm_record *r, uint64_t size)
{
    if (!r->header) {
        free(r);
        return;
    }
    r->size = size;
    r->next = ended;
    ended = r;
}

static psm_record *make_record(uint64_t size)
{
    if (!size) return NULL;
    psm_record *r = get_record(size);
    if (!r) return NULL;
    void *old = r->header;
    const char *why;
    int folder = psm_record_directory(true, r->directory, sizeof r->directory, &why);
    bool good = folder >= 0;
    if (good) {
        r->pid = psm_proc_self()->pid;
        r->size = size;
        r->used = REC_HEADER;
        good = open_file(r, folder);
        close(folder);
    } else {
        complain(r->directory, why);
    }
    if (good) return r;
    r->header = old;
    put_record(r, size);
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
        record = make_record(largest());
        atomic_store_explicit(&current, record, memory_order_release);
    }
    unlock();
    return record;
}

const char *psm_record_path(const psm_record *record)
{
    return record ? record->path : NULL;
}

psm_record *psm_record_more(uint64_t most)
{
    uint64_t size = most & ~(uint64_t)(REC_ALIGN - 1);
    if (size > REC_LARGEST) size = REC_LARGEST;
    if (size < 2 * REC_HEADER || !largest() || !lock()) return NULL;
    psm_record *record = make_record(size);
    if (record) {
        record->next = others;
        others = record;
    }
    unlock();
    return record;
}

void psm_record_keep(psm_record *record, bool keep)
{
    if (record) record->keep = keep;
}

void psm_record_end(psm_record *record)
{
    if (!record || !lock()) return;
    psm_record **at = &others;
    while (*at && *at != record) at = &(*at)->next;
    if (*at) {
        *at = record->next;
        end_file(record);
        detach(record);
        put_record(record, record->size);
    }
    unlock();
}

bool psm_record_is_own(const char *name)
{
    const psm_record *record = atomic_load(&current);
    bool found = record && strcmp(record->name, name) == 0;
    if (found || !lock()) return found;
    for (record = others; record && !found; record = record->next) found = strcmp(record->name, name) == 0;
    unlock();
    return found;
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
                                 uint64_t capacity, bool sparse)
{
    char json[REC_LARGEST_SCHEMA / 4];
    size_t n = psm_schema_json(schema, json, sizeof json);
    if (!n || r->sections == REC_SECTIONS) return NULL;
    uint32_t slot_size = (uint32_t)round_up(sizeof(struct rec_slot) + schema->record_size, 8);
    uint64_t begin = round_up(r->used, REC_ALIGN), control = begin + round_up(n, 64), data = control + REC_CONTROL;
    /* Blocks that are allocated one by one: no block is shared with earlier sections. */
    if (sparse) data = round_up(data, REC_ALIGN);
    uint64_t end = data + capacity * slot_size, taken = sparse ? data : end;
    if (begin > r->size || end > r->size) {
        psm_msg_record_no_room(schema->name, end - begin, r->size > begin ? r->size - begin : 0);
        return NULL;
    }
    int error = posix_fallocate(r->fd, (off_t)begin, (off_t)(taken - begin));
    if (error) {
        /* Once: a section that is not there is asked for again and again. */
        if (!r->disk_full) psm_msg_record_no_space(schema->name, r->path, strerror(error));
        r->disk_full = true;
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
    s->data_offset = data;
    s->record = r;
    /* Readers look at as many slots as there are tickets; a caller that writes rows itself draws no tickets. */
    if (sparse) atomic_store(&s->control->tickets, capacity);
    atomic_store_explicit(&s->open, true, memory_order_release);
    r->sections++;
    r->used = end;
    return s;
}

static bool is_ours(const psm_record *record)
{
    const psm_record *at = atomic_load(&current);
    if (record == at) return true;
    for (at = others; at && at != record; at = at->next) continue;
    return at != NULL;
}

static psm_section *get_section(psm_record *record, const struct psm_schema *schema, enum psm_section_kind kind,
                                uint32_t capacity, bool sparse)
{
    if (!record || !capacity || !psm_schema_good(schema)) return NULL;
    uint64_t slots = 1;
    while (kind == PSM_RING && slots < capacity) slots *= 2;
    if (kind != PSM_RING) slots = capacity;
    if (!lock()) return NULL;
    psm_section *s = NULL;
    if (is_ours(record)) {
        s = find_section(record, schema);
        if (!s) s = make_section(record, schema, kind, slots, sparse);
    }
    unlock();
    return s;
}

psm_section *psm_record_section(psm_record *record, const struct psm_schema *schema, enum psm_section_kind kind,
                                uint32_t capacity)
{
    return get_section(record, schema, kind, capacity, false);
}

psm_section *psm_record_sparse(psm_record *record, const struct psm_schema *schema, uint32_t capacity)
{
    return get_section(record, schema, PSM_TABLE, capacity, true);
}

static struct rec_slot *slot_at(const psm_section *s, uint64_t i)
{
    return (struct rec_slot *)(s->data + i * s->slot_size);
}

static bool is_open(const psm_section *s)
{
    return s && atomic_load_explicit(&s->open, memory_order_relaxed);
}

int psm_section_take(psm_section *section, uint32_t first, uint32_t count)
{
    if (!is_open(section) || first > section->capacity || count > section->capacity - first || !count) return EINVAL;
    uint64_t at = section->data_offset + (uint64_t)first * section->slot_size,
             size = (uint64_t)count * section->slot_size;
    int error = posix_fallocate(section->record->fd, (off_t)at, (off_t)size);
#ifdef MADV_POPULATE_WRITE
    /* Map all pages at once instead of at each first write. Kernels before 5.14 map them at the first write. */
    if (error == 0) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin = at / page * page;
        madvise((unsigned char *)section->record->header + begin, at + size - begin, MADV_POPULATE_WRITE);
    }
#endif
    return error;
}

void *psm_section_rows(psm_section *section, size_t *slot_size)
{
    if (!is_open(section) || section->kind != PSM_TABLE) return NULL;
    *slot_size = section->slot_size;
    return section->data;
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
    /* Odd: a writer was interrupted in this slot while the ring wrapped around. Two writers would tear both records. */
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
    /* used is incremented before a slot is claimed and decremented after it is free: below capacity means that a slot
     * is free. */
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
