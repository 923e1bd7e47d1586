/* Records of other processes. No file content is trusted: a file may be damaged, or truncated while it is read, so it
 * is copied with pread and never mapped. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "record_format.h"

struct psm_view {
    struct psm_proc proc;
    int fd;
    uint64_t size;
    const char *name;
    struct rec_header header; /* a copy */
};

enum { CHUNK = 1 << 16 };

bool psm_read_at(int fd, void *to, size_t n, uint64_t offset)
{
    unsigned char *p = to;
    while (n) {
        ssize_t got = pread(fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return true;
}

static void copy_text(char *to, const char *from, size_t size)
{
    memcpy(to, from, size);
    to[size - 1] = 0;
}

static bool open_view(int folder, const char *name, psm_view *view)
{
    /* O_NONBLOCK: do not block on a pipe of that name. */
    view->fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (view->fd < 0) return false;
    struct stat st;
    struct rec_header *h = &view->header;
    bool good = fstat(view->fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077) &&
                st.st_size >= REC_HEADER && (uint64_t)st.st_size <= REC_LARGEST &&
                psm_read_at(view->fd, h, sizeof *h, 0) && memcmp(h->magic, REC_MAGIC, sizeof h->magic) == 0 &&
                h->order == REC_ORDER && h->version == REC_VERSION && h->header_size == REC_HEADER &&
                h->section_size == sizeof(struct rec_section) && h->sections <= REC_SECTIONS;
    if (!good) {
        close(view->fd);
        return false;
    }
    view->size = (uint64_t)st.st_size;
    view->name = name;
    view->proc.pid = h->pid;
    view->proc.rank = h->rank;
    view->proc.start_time = h->start_time;
    view->proc.pid_ns = h->pid_ns;
    view->proc.uid = h->uid;
    view->proc.tag = (uint16_t)h->tag;
    copy_text(view->proc.host, h->host, sizeof view->proc.host);
    copy_text(view->proc.boot_id, h->boot_id, sizeof view->proc.boot_id);
    return true;
}

static bool is_record(const char *name)
{
    size_t n = strlen(name);
    return n > 4 && *name != '.' && strcmp(name + n - 4, ".rec") == 0;
}

static int foreach_view(int folder, int (*each)(const psm_view *view, void *context), void *context)
{
    DIR *dir = fdopendir(folder);
    if (!dir) {
        close(folder);
        return 0;
    }
    psm_view *view = calloc(1, sizeof *view);
    struct dirent *e;
    int answer = 0;
    while (view && !answer && (e = readdir(dir))) {
        if (!is_record(e->d_name) || psm_record_is_own(e->d_name)) continue;
        if (!open_view(dirfd(dir), e->d_name, view)) continue;
        answer = each(view, context);
        close(view->fd);
    }
    free(view);
    closedir(dir);
    return answer;
}

int psm_record_foreach_process(int (*each)(const psm_view *view, void *context), void *context)
{
    char path[PATH_MAX];
    const char *why;
    int folder = psm_record_directory(false, path, sizeof path, &why);
    return folder < 0 ? 0 : foreach_view(folder, each, context);
}

const struct psm_proc *psm_view_proc(const psm_view *view)
{
    return &view->proc;
}

const char *psm_view_name(const psm_view *view)
{
    return view->name;
}

bool psm_view_clean_exit(const psm_view *view)
{
    return view->header.state == REC_CLEAN;
}

enum psm_owner psm_view_owner(const psm_view *view)
{
    const struct psm_proc *self = psm_proc_self(), *other = &view->proc;
    if (view->header.state == REC_CLEAN) return PSM_OWNER_DEAD;
    /* Across these borders neither the presence nor the absence of a pid means anything. */
    if (strcmp(self->boot_id, other->boot_id) != 0 || self->pid_ns != other->pid_ns || !other->start_time)
        return PSM_OWNER_UNKNOWN;
    return psm_pid_alive(other->pid, other->start_time) ? PSM_OWNER_ALIVE : PSM_OWNER_DEAD;
}

static bool within(const psm_view *view, uint64_t offset, uint64_t n)
{
    return offset >= REC_HEADER && offset <= view->size && n <= view->size - offset;
}

/* A ticket determines the place of its record in a ring. */
static bool is_whole(const struct rec_section *s, uint64_t place, uint64_t sequence)
{
    if (s->kind == PSM_TABLE) return (sequence & SLOT_BITS) == SLOT_LIVE;
    return sequence != 0 && !(sequence & 1) && ((sequence / 2 - 1) & (s->capacity - 1)) == place;
}

/* Copies slots from `first` on, as many as the buffers hold. A slot is complete if two copies of it are equal: its
 * sequence changes with each write. */
static int read_slots(const psm_view *view, const struct rec_section *s, uint64_t first, uint64_t n,
                      unsigned char *twice, int (*each)(const struct psm_slot *slot, void *context), void *context)
{
    size_t bytes = (size_t)(n * s->slot_size);
    uint64_t at = s->data_offset + first * s->slot_size;
    if (!psm_read_at(view->fd, twice, bytes, at) || !psm_read_at(view->fd, twice + bytes, bytes, at)) return 0;
    for (uint64_t i = 0; i < n; i++) {
        unsigned char *copy = twice + i * s->slot_size;
        if (memcmp(copy, copy + bytes, s->slot_size) != 0) continue;
        struct rec_slot *slot = (struct rec_slot *)copy;
        if (!is_whole(s, first + i, slot->sequence)) continue;
        struct psm_slot found = {slot->time_ns, slot->tid, slot->device, slot->record, first + i};
        int answer = each(&found, context);
        if (answer) return answer;
    }
    return 0;
}

/* Reads the table of sections again: a live process adds sections. */
static bool find_section(const psm_view *view, const char *name, uint32_t version, uint32_t record_size,
                         struct rec_section *s)
{
    for (uint32_t i = 0; i < view->header.sections; i++) {
        if (!psm_read_at(view->fd, s, sizeof *s, offsetof(struct rec_header, section) + i * sizeof *s)) return false;
        s->name[sizeof s->name - 1] = 0;
        if (s->ready == 1 && s->version == version && s->record_size == record_size && strcmp(s->name, name) == 0)
            return true;
    }
    return false;
}

/* Upper bound of the slots in use: slots are claimed in order, after drawing a ticket. In a damaged file the number may
 * be too small, like anything else in it. */
static uint64_t used_slots(const psm_view *view, const struct rec_section *s)
{
    struct rec_control control;
    if (!within(view, s->control_offset, sizeof control) ||
        !psm_read_at(view->fd, &control, sizeof control, s->control_offset))
        return s->capacity;
    return control.tickets < s->capacity ? control.tickets : s->capacity;
}

int psm_view_foreach(const psm_view *view, const char *name, uint32_t version, uint32_t record_size,
                     int (*each)(const struct psm_slot *slot, void *context), void *context)
{
    return psm_view_foreach_from(view, name, version, record_size, 0, each, context);
}

int psm_view_foreach_from(const psm_view *view, const char *name, uint32_t version, uint32_t record_size,
                          uint64_t first, int (*each)(const struct psm_slot *slot, void *context), void *context)
{
    struct rec_section s;
    if (!find_section(view, name, version, record_size, &s)) return 0;
    if ((s.kind != PSM_RING && s.kind != PSM_TABLE) || s.slot_size % 8 || s.slot_size > REC_LARGEST_RECORD + 64 ||
        s.slot_size < sizeof(struct rec_slot) + (uint64_t)record_size || s.capacity > REC_LARGEST / s.slot_size ||
        !within(view, s.data_offset, s.capacity * s.slot_size))
        return 0;
    uint64_t step = CHUNK / s.slot_size ? CHUNK / s.slot_size : 1;
    unsigned char *twice = malloc((size_t)(2 * step * s.slot_size));
    int answer = 0;
    uint64_t used = used_slots(view, &s);
    for (; twice && !answer && first < used; first += step) {
        uint64_t left = used - first;
        answer = read_slots(view, &s, first, left < step ? left : step, twice, each, context);
    }
    free(twice);
    return answer;
}

struct pruning {
    int folder;
    int removed;
};

static int prune_one(const psm_view *view, void *context)
{
    struct pruning *p = context;
    if (psm_view_owner(view) == PSM_OWNER_DEAD && unlinkat(p->folder, view->name, 0) == 0) p->removed++;
    return 0;
}

int psm_record_prune(void)
{
    char path[PATH_MAX];
    const char *why;
    struct pruning p = {psm_record_directory(false, path, sizeof path, &why), 0};
    if (p.folder < 0) return -1;
    int again = openat(p.folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (again >= 0) foreach_view(again, prune_one, &p);
    close(p.folder);
    return again < 0 ? -1 : p.removed;
}
