/* Record files of communicators. No file content is trusted: sizes are checked against the file, rows are copied with
 * pread. Only what has atomics that both sides write, the windows' states and the communicator's row, is mapped: its
 * blocks are allocated from the start. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "consumer.h"

static void copy_text(char *to, size_t size, const char *from, size_t n)
{
    if (n > size - 1) n = size - 1;
    n = strnlen(from, n);
    memcpy(to, from, n);
    memset(to + n, 0, size - n);
}

static bool good_header(const struct rec_header *h)
{
    return memcmp(h->magic, REC_MAGIC, sizeof h->magic) == 0 && h->order == REC_ORDER && h->version == REC_VERSION &&
           h->header_size == REC_HEADER && h->section_size == sizeof(struct rec_section) && h->sections <= REC_SECTIONS;
}

enum found { ABSENT, BAD, GOOD };

/* The section of this name; its slots are within the file and aligned for atomics. */
static enum found find(const struct rec_header *h, uint64_t size, const char *name, uint32_t record_size,
                       uint64_t capacity, const struct rec_section **out)
{
    for (uint32_t i = 0; i < h->sections; i++) {
        const struct rec_section *s = &h->section[i];
        if (s->ready != 1 || strncmp(s->name, name, sizeof s->name) != 0) continue;
        *out = s;
        bool good = s->version == PSM_PROF_VERSION && s->kind == PSM_TABLE && s->record_size == record_size &&
                    s->slot_size % 8 == 0 && s->slot_size >= REC_SLOT_HEADER + record_size &&
                    s->slot_size <= REC_LARGEST_RECORD + 64 && s->data_offset % 8 == 0 &&
                    s->data_offset >= REC_HEADER && s->data_offset <= size && s->capacity >= capacity &&
                    s->capacity <= (size - s->data_offset) / s->slot_size;
        return good ? GOOD : BAD;
    }
    return ABSENT;
}

static enum found place_sections(struct tel_comm *c, const struct rec_header *h, uint64_t size)
{
    const struct rec_section *comm, *windows, *events;
    enum found found = find(h, size, "psm.prof.comm", sizeof(struct psm_prof_comm), 1, &comm);
    if (found != GOOD) return found;
    found = find(h, size, "psm.prof.windows", sizeof(struct psm_prof_window), PSM_PROF_WINDOWS, &windows);
    if (found != GOOD) return found;
    found = find(h, size, "psm.prof.events", sizeof(struct psm_prof_event), PSM_PROF_WINDOWS, &events);
    if (found != GOOD) return found;
    c->comm_at = comm->data_offset + REC_SLOT_HEADER;
    c->windows_at = windows->data_offset + REC_SLOT_HEADER;
    c->window_stride = windows->slot_size;
    c->events_at = events->data_offset;
    /* Not live yet: its row is being written. */
    struct rec_slot slot;
    if (!psm_read_at(c->fd, &slot, sizeof slot, comm->data_offset) || (slot.sequence & SLOT_BITS) != SLOT_LIVE)
        return ABSENT;
    if (!psm_read_at(c->fd, &c->head, sizeof c->head, c->comm_at)) return BAD;
    c->slots = c->head.slots;
    c->context = c->head.context;
    if (!c->slots || c->slots > PSM_PROF_MAX_SLOTS || events->slot_size != sizeof(struct tel_slot) ||
        events->capacity < (uint64_t)c->slots * PSM_PROF_WINDOWS)
        return BAD;
    uint64_t ends[] = {c->comm_at + sizeof c->head, c->windows_at + (uint64_t)PSM_PROF_WINDOWS * c->window_stride,
                       c->events_at + (uint64_t)PSM_PROF_WINDOWS * c->slots * sizeof(struct tel_slot)};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends[i] > c->need) c->need = ends[i];
    return c->need <= size ? GOOD : BAD;
}

static void note_process(struct psm_tel *tel, struct tel_comm *c, const struct rec_header *h)
{
    c->proc.pid = h->pid;
    c->proc.start_time = h->start_time;
    c->proc.pid_ns = h->pid_ns;
    copy_text(c->proc.boot_id, sizeof c->proc.boot_id, h->boot_id, sizeof h->boot_id);
    copy_text(c->seen.host, sizeof c->seen.host, h->host, sizeof h->host);
    snprintf(c->seen.file, sizeof c->seen.file, "%.*s/%s", (int)(sizeof c->seen.file - sizeof c->name - 2),
             tel->directory, c->name);
    c->seen.pid = h->pid;
}

/* ABSENT: not a file of a communicator, or not yet. */
static enum found open_file(struct psm_tel *tel, const char *name, struct tel_comm *c)
{
    c->fd = openat(tel->folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (c->fd < 0) return ABSENT;
    struct stat st;
    static struct rec_header h; /* used by one thread */
    if (fstat(c->fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 077) return ABSENT;
    if (st.st_size < REC_HEADER || (uint64_t)st.st_size > REC_LARGEST || !psm_read_at(c->fd, &h, sizeof h, 0) ||
        !good_header(&h))
        return BAD;
    c->dev = st.st_dev;
    c->ino = st.st_ino;
    copy_text(c->name, sizeof c->name, name, sizeof c->name);
    enum found found = place_sections(c, &h, (uint64_t)st.st_size);
    if (found == GOOD) note_process(tel, c, &h);
    return found;
}

static bool is_record(const char *name)
{
    size_t n = strlen(name);
    return n > 4 && n < sizeof((struct tel_comm *)0)->name && *name != '.' && strcmp(name + n - 4, ".rec") == 0;
}

static bool is_known(const struct psm_tel *tel, const char *name)
{
    for (uint32_t i = 0; i < tel->ncomms; i++)
        if (strcmp(tel->comms[i]->name, name) == 0) return true;
    return false;
}

void tel_files_scan(struct psm_tel *tel)
{
    int again = openat(tel->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    if (!dir) {
        if (again >= 0) close(again);
        return;
    }
    uint64_t bad = 0;
    for (const struct dirent *e; (e = readdir(dir));) {
        if (!is_record(e->d_name) || is_known(tel, e->d_name) || tel->ncomms == TEL_MOST_COMMS) continue;
        struct tel_comm *c = calloc(1, sizeof *c);
        if (!c) {
            tel->failed = true;
            break;
        }
        enum found found = open_file(tel, e->d_name, c);
        if (found == GOOD) {
            c->seen.id = tel->next_id++;
            tel->comms[tel->ncomms++] = c;
            continue;
        }
        bad += found == BAD;
        if (c->fd >= 0) close(c->fd);
        free(c);
    }
    closedir(dir);
    tel->losses.files = bad;
}

static void *map(int fd, uint64_t at, uint64_t n, void **base, size_t *size)
{
    uint64_t from = at & ~(uint64_t)(REC_ALIGN - 1);
    *size = (size_t)(at + n - from);
    *base = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)from);
    if (*base == MAP_FAILED) {
        *base = NULL;
        return NULL;
    }
    return (unsigned char *)*base + (at - from);
}

/* We are the only consumer of the file, and what both sides write is mapped. */
bool tel_file_lock(struct tel_comm *c)
{
    if (c->locked) return true;
    c->seen.busy = 1;
    if (flock(c->fd, LOCK_EX | LOCK_NB) != 0) return false;
    c->live = map(c->fd, c->comm_at, sizeof *c->live, &c->maps[0], &c->map_size[0]);
    unsigned char *windows = map(c->fd, c->windows_at, (uint64_t)PSM_PROF_WINDOWS * c->window_stride - REC_SLOT_HEADER,
                                 &c->maps[1], &c->map_size[1]);
    if (!c->live || !windows) {
        for (int i = 0; i < 2; i++)
            if (c->maps[i]) munmap(c->maps[i], c->map_size[i]);
        c->maps[0] = c->maps[1] = NULL;
        c->live = NULL;
        flock(c->fd, LOCK_UN);
        return false;
    }
    for (uint32_t w = 0; w < PSM_PROF_WINDOWS; w++)
        c->window[w] = (struct psm_prof_window *)(windows + (size_t)w * c->window_stride);
    c->seen.busy = 0;
    return c->locked = true;
}

static uint32_t owner_of(const struct tel_comm *c, uint32_t state)
{
    const struct psm_proc *self = psm_proc_self();
    if (state == REC_CLEAN) return 3;
    if (strcmp(self->boot_id, c->proc.boot_id) != 0 || self->pid_ns != c->proc.pid_ns || !c->proc.start_time) return 2;
    return psm_pid_alive(c->proc.pid, c->proc.start_time) ? 0 : 1;
}

bool tel_file_refresh(struct psm_tel *tel, struct tel_comm *c)
{
    struct stat st;
    uint32_t state;
    (void)tel;
    if (fstat(c->fd, &st) != 0 || (uint64_t)st.st_size < c->need) return false;
    /* Check the owner first: if it has ended, what is read afterwards is final. */
    if (!psm_read_at(c->fd, &state, sizeof state, offsetof(struct rec_header, state))) return false;
    c->seen.owner = owner_of(c, state);
    if (!psm_read_at(c->fd, &c->head, sizeof c->head, c->comm_at)) return false;
    const struct psm_prof_comm *h = &c->head;
    struct psm_tel_comm *s = &c->seen;
    s->comm_hash = h->comm_hash;
    s->begin_ns = h->begin_ns;
    s->end_ns = h->end_ns;
    s->begun = h->begun;
    s->dropped_full = h->dropped_full;
    s->dropped_memory = h->dropped_memory;
    s->overwritten = h->overwritten;
    s->carried = h->carried;
    s->bad_handle = h->bad_handle;
    s->stale_handle = h->stale_handle;
    s->stopped_twice = h->stopped_twice;
    s->state_after_stop = h->state_after_stop;
    s->never_stopped = h->never_stopped;
    s->foreign_parents = h->foreign_parents;
    s->rank = h->rank;
    s->nranks = h->nranks;
    s->nnodes = h->nnodes;
    s->abi = h->abi;
    s->mask = h->mask;
    s->context = h->context;
    copy_text(s->name, sizeof s->name, h->name, sizeof h->name);
    return true;
}

bool tel_file_windows(struct tel_comm *c, struct psm_prof_window *copy)
{
    for (uint32_t w = 0; w < PSM_PROF_WINDOWS; w++)
        if (!psm_read_at(c->fd, &copy[w], sizeof copy[w], c->windows_at + (uint64_t)w * c->window_stride)) return false;
    return true;
}

uint32_t tel_file_rows(struct tel_comm *c, uint32_t w, uint32_t next, struct tel_slot *rows)
{
    uint32_t n = next < c->slots ? next : c->slots;
    uint64_t at = c->events_at + (uint64_t)w * c->slots * sizeof *rows;
    return n && psm_read_at(c->fd, rows, (size_t)n * sizeof *rows, at) ? n : 0;
}

void tel_file_remove(struct psm_tel *tel, struct tel_comm *c)
{
    const char *keep = getenv("PSM_RECORD_KEEP");
    struct stat st;
    if (keep && strcmp(keep, "1") == 0) return;
    if (fstatat(tel->folder, c->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_dev == c->dev && st.st_ino == c->ino)
        unlinkat(tel->folder, c->name, 0);
}

void tel_file_close(struct tel_comm *c)
{
    struct stat st;
    /* A truncated file has no pages behind its end. */
    bool whole = c->fd >= 0 && fstat(c->fd, &st) == 0 && (uint64_t)st.st_size >= c->need;
    if (c->live && whole) {
        atomic_store(&c->live->consumer, 0);
        atomic_store(&c->live->heartbeat_ns, 0);
    }
    for (int i = 0; i < 2; i++)
        if (c->maps[i]) munmap(c->maps[i], c->map_size[i]);
    c->maps[0] = c->maps[1] = NULL;
    c->live = NULL;
    for (int w = 0; w < PSM_PROF_WINDOWS; w++) {
        free(c->looked[w]);
        c->looked[w] = NULL;
        c->window[w] = NULL;
    }
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->locked = false;
}
