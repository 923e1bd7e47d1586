/* Segments: create, attach, release. */
#define _GNU_SOURCE
#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "psm_lib_messages.h"
#include "shm/header.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif
/* Without these seals a peer could truncate the file, and our next access would crash. */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

PSM_FAULT_SITE(site_create, "shm.create", "a shared memory segment is created; error=EMFILE and others");
PSM_FAULT_SITE(site_reserve, "shm.reserve", "memory is allocated for a segment; error=ENOSPC and others");
PSM_FAULT_SITE(site_attach, "shm.attach", "a shared memory segment is mapped; error=ENOMEM, EMFILE and others");

/* Mappings of this process: one per segment, however often it is attached. */
struct psm_mapping {
    struct psm_segment_header header; /* a copy: the peer can write to the page */
    char *base;
    uint64_t refs;
    int kind, fd;
    int pid; /* pid of the creator: a child of fork must not remove its parent's name */
    char name[PSM_SEGMENT_NAME];
    struct psm_mapping *next;
};
static struct psm_mapping *mappings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *kind_name(int kind)
{
    return kind == PSM_SHARE_POSIX ? "posix" : "memfd";
}

static int make_memfd(const char *label)
{
    char name[PSM_SEGMENT_LABEL + 8];
    snprintf(name, sizeof name, "psm-%s", label);
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING); /* Linux before 6.3 */
    return fd;
}

/* Created without a name: a process that finds the name finds a complete segment, and one that dies in between leaves
 * nothing. */
static int make_file(int folder, bool *named, const char *name)
{
    *named = false;
    int fd = openat(folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        fd = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        *named = fd >= 0;
    }
    if (fd >= 0 && fchmod(fd, 0600) != 0) { /* independent of the umask */
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static int give_name(int folder, int fd, const char *name)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, path, folder, name, AT_SYMLINK_FOLLOW);
}

/* 0, or the errno. */
static int reserve(int fd, uint64_t bytes)
{
    struct psm_fault fault;
    if (psm_fault_before(&site_reserve, NULL, "shm", &fault) != PSM_OK)
        return fault.value > 0 ? (int)fault.value : ENOSPC;
    int rc;
    do rc = fallocate(fd, 0, 0, (off_t)bytes);
    while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno == EOPNOTSUPP) rc = ftruncate(fd, (off_t)bytes);
    psm_fault_act_after(&fault);
    return rc == 0 ? 0 : errno;
}

static psm_status no_room(int number, int fd, int kind, uint64_t bytes, const char *label)
{
    struct statvfs fs;
    if (number == ENOSPC && kind == PSM_SHARE_POSIX && fstatvfs(fd, &fs) == 0)
        return psm_fail_errno(number, "shm", -1, -1,
                              "a segment for %s needs %" PRIu64 " bytes but %s has %" PRIu64
                              " left: make it larger (docker: --shm-size)",
                              label, bytes, psm_segment_folder_name(), (uint64_t)fs.f_bavail * fs.f_frsize);
    return psm_fail_errno(number, "shm", -1, -1, "making a segment of %" PRIu64 " bytes (%s) for %s", bytes,
                          kind_name(kind), label);
}

static void fill_header(struct psm_segment_header *h, uint64_t bytes, uint64_t id, const char *label)
{
    const struct psm_proc *self = psm_proc_self();
    *h = (struct psm_segment_header){
        .magic = PSM_SEGMENT_MAGIC,
        .version = PSM_SEGMENT_VERSION,
        .header_size = PSM_SEGMENT_HEADER,
        .size = bytes,
        .id = id,
        .owner_pid = (uint32_t)self->pid,
        .owner_uid = self->uid,
        .owner_start_time = self->start_time,
        .owner_pid_ns = self->pid_ns,
    };
    snprintf(h->owner_boot_id, sizeof h->owner_boot_id, "%s", self->boot_id);
    snprintf(h->label, sizeof h->label, "%s", label);
}

static void use(struct psm_segment *segment, struct psm_mapping *m, bool owner)
{
    *segment = (struct psm_segment){
        .data = m->base + PSM_SEGMENT_HEADER,
        .size = m->header.size - PSM_SEGMENT_HEADER,
        .id = m->header.id,
        .fd = owner ? m->fd : -1,
        .kind = m->kind,
        .owner = owner,
        .mapping = m,
    };
}

/* Fills in everything but the fd, which the caller closes if this fails. */
static psm_status build(struct psm_mapping *m, int folder, bool named, uint64_t bytes, const char *label)
{
    int fd = m->fd;
    int error = reserve(fd, bytes);
    size_t removed = 0;
    /* Killed processes may have left enough memory behind. */
    if (error == ENOSPC && m->kind == PSM_SHARE_POSIX) psm_segments_prune(&removed);
    if (removed) error = reserve(fd, bytes);
    if (error) return no_room(error, fd, m->kind, bytes, label);
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return psm_fail_errno(errno, "shm", -1, -1, "mapping %" PRIu64 " bytes for %s", bytes, label);
    memcpy(base, &m->header, sizeof m->header);
    int rc = 0;
    if (m->kind == PSM_SHARE_MEMFD)
        rc = fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL);
    else if (!named)
        rc = give_name(folder, fd, m->name);
    if (rc != 0) {
        error = errno;
        munmap(base, bytes);
        return psm_fail_errno(error, "shm", -1, -1, "%s a segment for %s",
                              m->kind == PSM_SHARE_MEMFD ? "sealing" : "naming", label);
    }
    m->base = base;
    return PSM_OK;
}

psm_status psm_segment_create(struct psm_segment *segment, int kind, uint64_t size, const char *label)
{
    *segment = (struct psm_segment){.fd = -1};
    if (kind != PSM_SHARE_MEMFD && kind != PSM_SHARE_POSIX)
        return psm_fail(PSM_ERR_INVALID, "shm", -1, -1, 0,
                        "bad kind %d of a segment for %s, expected memfd (%d) or posix (%d)", kind, label,
                        PSM_SHARE_MEMFD, PSM_SHARE_POSIX);
    if (size == 0 || size > PSM_SEGMENT_MAX - PSM_SEGMENT_HEADER)
        return psm_fail(PSM_ERR_INVALID, "shm", -1, -1, 0,
                        "bad size of a segment for %s, %" PRIu64 " bytes, expected 1 to %" PRIu64, label, size,
                        PSM_SEGMENT_MAX - PSM_SEGMENT_HEADER);
    struct psm_fault fault;
    PSM_TRY(psm_fault_before(&site_create, NULL, "shm", &fault));
    uint64_t bytes = size + PSM_SEGMENT_HEADER;
    struct psm_mapping *m = calloc(1, sizeof *m);
    if (!m) return psm_fail(PSM_ERR_NO_MEMORY, "shm", -1, -1, 0, "no memory for a segment's record");
    uint64_t id = psm_random64();
    fill_header(&m->header, bytes, id, label);
    m->kind = kind;
    m->refs = 1;
    m->pid = psm_proc_self()->pid;

    int folder = -1;
    bool named = false;
    if (kind == PSM_SHARE_MEMFD) {
        m->fd = make_memfd(label);
    } else {
        psm_segment_name(psm_random64(), m->name); /* not the id: that one is public, in logs */
        folder = psm_segment_folder();
        m->fd = folder < 0 ? -1 : make_file(folder, &named, m->name);
    }
    psm_status status;
    if (m->fd < 0)
        status = psm_fail_errno(errno, "shm", -1, -1, "making a segment of %" PRIu64 " bytes (%s%s%s) for %s", size,
                                kind_name(kind), kind == PSM_SHARE_POSIX ? ", in " : "",
                                kind == PSM_SHARE_POSIX ? psm_segment_folder_name() : "", label);
    else
        status = build(m, folder, named, bytes, label);
    if (status != PSM_OK && named) unlinkat(folder, m->name, 0);
    if (folder >= 0) close(folder);
    if (m->fd >= 0 && (status != PSM_OK || kind == PSM_SHARE_POSIX)) { /* the name is enough for a POSIX segment */
        close(m->fd);
        m->fd = -1;
    }
    if (status != PSM_OK) {
        free(m);
        return status;
    }
    use(segment, m, true);
    pthread_mutex_lock(&lock);
    m->next = mappings;
    mappings = m;
    pthread_mutex_unlock(&lock);
    psm_msg_libpsm_segment_created(id, kind_name(kind), size, label, (uint64_t)(uintptr_t)segment->data);
    psm_fault_act_after(&fault);
    return PSM_OK;
}

void psm_segment_share(const struct psm_segment *segment, struct psm_share *share)
{
    *share = (struct psm_share){
        .kind = (uint16_t)segment->kind,
        .device = -1,
        .owner_pid = segment->mapping->header.owner_pid,
        .id = segment->id,
        .size = segment->size,
        .offset = PSM_SEGMENT_HEADER,
    };
    if (segment->kind == PSM_SHARE_POSIX) memcpy(share->blob, segment->mapping->name, sizeof share->blob);
}

_Static_assert(PSM_SEGMENT_NAME == sizeof((struct psm_share *)0)->blob, "the name is copied whole");

static psm_status differ(const char *what, uint64_t expected, uint64_t found)
{
    return psm_fail(PSM_ERR_MISMATCH, "shm", -1, -1, 0,
                    "attaching a segment: the peer offered %s 0x%" PRIx64 " and its segment has 0x%" PRIx64, what,
                    expected, found);
}

static psm_status compare(const struct psm_share *share, const struct psm_segment_header *h)
{
    if (h->id != share->id) return differ("id", share->id, h->id);
    if (h->owner_pid != share->owner_pid) return differ("owner", share->owner_pid, h->owner_pid);
    if (share->offset != PSM_SEGMENT_HEADER) return differ("offset", share->offset, PSM_SEGMENT_HEADER);
    if (share->size != h->size - PSM_SEGMENT_HEADER) return differ("size", share->size, h->size - PSM_SEGMENT_HEADER);
    return PSM_OK;
}

static psm_status map(struct psm_mapping *m, const struct psm_share *share, int fd, const char *what)
{
    PSM_TRY(psm_segment_read_header(fd, what, &m->header));
    PSM_TRY(compare(share, &m->header));
    if (m->kind == PSM_SHARE_MEMFD) {
        int seals = fcntl(fd, F_GET_SEALS);
        if (seals < 0 || (seals & SEALS) != SEALS)
            return psm_fail(PSM_ERR_DENIED, "shm", -1, -1, 0,
                            "the owner can truncate %s: bad seals 0x%x, expected 0x%x", what,
                            seals < 0 ? 0u : (unsigned)seals, (unsigned)SEALS);
    }
    m->base = mmap(NULL, m->header.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (m->base == MAP_FAILED)
        return psm_fail_errno(errno, "shm", -1, -1, "mapping %" PRIu64 " bytes of %s", m->header.size, what);
    return PSM_OK;
}

static psm_status map_named(struct psm_mapping *m, const struct psm_share *share)
{
    if (!psm_segment_is_name((const char *)share->blob, sizeof share->blob))
        return psm_fail(PSM_ERR_PROTOCOL, "shm", -1, -1, 0,
                        "attaching segment 0x%" PRIx64
                        ": the peer sent an invalid name (expected psm- and 16 hex digits)",
                        share->id);
    memcpy(m->name, share->blob, sizeof m->name);
    int folder = psm_segment_folder();
    if (folder < 0) return psm_fail_errno(errno, "shm", -1, -1, "opening %s", psm_segment_folder_name());
    /* O_NONBLOCK: opening a pipe of that name must not block. */
    int fd = openat(folder, m->name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    psm_status status;
    if (fd < 0)
        status = psm_fail_errno(errno, "shm", -1, -1,
                                "opening %s/%s: is the peer in another container or mount namespace, or did another "
                                "process already attach it?",
                                psm_segment_folder_name(), m->name);
    else
        status = map(m, share, fd, m->name);
    /* Both have it now: the name is no longer needed, and would be left behind if both were killed. */
    if (status == PSM_OK) unlinkat(folder, m->name, 0);
    if (fd >= 0) close(fd);
    close(folder);
    return status;
}

static struct psm_mapping *find(uint64_t id)
{
    struct psm_mapping *m = mappings;
    while (m && m->header.id != id) m = m->next;
    return m;
}

static psm_status attach(struct psm_segment *segment, const struct psm_share *share, int fd)
{
    struct psm_mapping *m = find(share->id);
    if (m) {
        PSM_TRY(compare(share, &m->header));
        m->refs++;
        use(segment, m, false);
        return PSM_OK;
    }
    if (share->kind == PSM_SHARE_SAME_PROCESS)
        return psm_fail(PSM_ERR_NOT_FOUND, "shm", -1, -1, 0,
                        "attaching segment 0x%" PRIx64 " of process %" PRIu32
                        ": this process, %d, has no segment with that id",
                        share->id, share->owner_pid, psm_proc_self()->pid);
    m = calloc(1, sizeof *m);
    if (!m) return psm_fail(PSM_ERR_NO_MEMORY, "shm", -1, -1, 0, "no memory for a segment's record");
    m->kind = share->kind;
    m->fd = -1;
    m->refs = 1;
    psm_status status = m->kind == PSM_SHARE_MEMFD ? map(m, share, fd, "the descriptor") : map_named(m, share);
    if (status != PSM_OK) {
        free(m);
        return status;
    }
    m->next = mappings;
    mappings = m;
    use(segment, m, false);
    return PSM_OK;
}

psm_status psm_segment_attach(struct psm_segment *segment, const struct psm_share *share, int fd)
{
    *segment = (struct psm_segment){.fd = -1};
    if (share->kind != PSM_SHARE_SAME_PROCESS && share->kind != PSM_SHARE_MEMFD && share->kind != PSM_SHARE_POSIX)
        return psm_fail(PSM_ERR_INVALID, "shm", -1, -1, 0,
                        "attaching a share: bad kind %u, expected host memory (same process 1, memfd 2, posix 3)",
                        share->kind);
    if (share->id == 0) return psm_fail(PSM_ERR_PROTOCOL, "shm", -1, -1, 0, "attaching a segment whose id is 0");
    struct psm_fault fault;
    PSM_TRY(psm_fault_before(&site_attach, NULL, "shm", &fault));
    pthread_mutex_lock(&lock);
    psm_status status = attach(segment, share, fd);
    pthread_mutex_unlock(&lock);
    if (status != PSM_OK) return status;
    psm_msg_libpsm_segment_attached(segment->id, share->owner_pid, kind_name(segment->kind), segment->size,
                                    (uint64_t)(uintptr_t)segment->data);
    psm_fault_act_after(&fault);
    return PSM_OK;
}

/* The owner removes the name even if others keep the memory mapped: no new process can attach. */
static void withdraw(struct psm_mapping *m)
{
    if (m->fd >= 0) close(m->fd);
    m->fd = -1;
    if (m->kind != PSM_SHARE_POSIX || m->pid != psm_proc_self()->pid) return;
    int folder = psm_segment_folder();
    if (folder < 0) return;
    unlinkat(folder, m->name, 0); /* usually already removed: the peer does so when it attaches */
    close(folder);
}

void psm_segment_close(struct psm_segment *segment)
{
    if (!segment || !segment->mapping) return;
    struct psm_mapping *m = segment->mapping;
    psm_msg_libpsm_segment_closed(segment->id, segment->owner ? "destroyed" : "detached",
                                  (uint64_t)(uintptr_t)segment->data);
    pthread_mutex_lock(&lock);
    if (segment->owner) withdraw(m);
    if (--m->refs == 0) {
        struct psm_mapping **at = &mappings;
        while (*at != m) at = &(*at)->next;
        *at = m->next;
        munmap(m->base, m->header.size);
        free(m);
    }
    pthread_mutex_unlock(&lock);
    *segment = (struct psm_segment){.fd = -1};
}
