/* The header of a segment: reading and validation. */
#define _GNU_SOURCE
#include "shm/header.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_LENGTH = 4 + 16 };

void psm_segment_name(uint64_t id, char name[PSM_SEGMENT_NAME])
{
    snprintf(name, PSM_SEGMENT_NAME, "psm-%016" PRIx64, id);
}

bool psm_segment_is_name(const char *name, size_t size)
{
    if (size <= NAME_LENGTH || memcmp(name, "psm-", 4) != 0) return false;
    for (size_t i = 4; i < NAME_LENGTH; i++)
        if (!((name[i] >= '0' && name[i] <= '9') || (name[i] >= 'a' && name[i] <= 'f'))) return false;
    return name[NAME_LENGTH] == 0;
}

const char *psm_segment_folder_name(void)
{
    const char *given = getenv("PSM_SHM_DIR");
    return given && *given ? given : "/dev/shm";
}

int psm_segment_folder(void)
{
    return open(psm_segment_folder_name(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static psm_status refuse(psm_status status, const char *what, const char *field, uint64_t seen, uint64_t meant)
{
    return psm_fail(status, "shm", -1, -1, 0, "%s is no segment of libpsm: bad %s 0x%" PRIx64 ", expected 0x%" PRIx64,
                    what, field, seen, meant);
}

psm_status psm_segment_read_header(int fd, const char *what, struct psm_segment_header *header)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return psm_fail_errno(errno, "shm", -1, -1, "fstat of %s, descriptor %d", what, fd);
    if (!S_ISREG(st.st_mode)) return refuse(PSM_ERR_PROTOCOL, what, "the file type", st.st_mode & S_IFMT, S_IFREG);
    if (st.st_uid != geteuid())
        return psm_fail(PSM_ERR_DENIED, "shm", -1, -1, 0, "%s belongs to user %u and this process runs as user %u",
                        what, (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_mode & 077 && st.st_nlink > 0) /* the mode of a memfd says nothing: nobody can open it by name */
        return psm_fail(PSM_ERR_DENIED, "shm", -1, -1, 0, "%s is open to other users: bad mode %04o, expected 0600",
                        what, (unsigned)st.st_mode & 07777);
    struct psm_segment_header h;
    ssize_t n;
    do n = pread(fd, &h, sizeof h, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0) return psm_fail_errno(errno, "shm", -1, -1, "reading the header of %s", what);
    if (n != (ssize_t)sizeof h) return refuse(PSM_ERR_PROTOCOL, what, "its size", (uint64_t)n, sizeof h);
    if (h.magic != PSM_SEGMENT_MAGIC) return refuse(PSM_ERR_PROTOCOL, what, "the magic", h.magic, PSM_SEGMENT_MAGIC);
    if (h.version != PSM_SEGMENT_VERSION)
        return psm_fail(PSM_ERR_VERSION, "shm", -1, -1, 0,
                        "%s has version %" PRIu32 " and this library version %u: run the same psmkit on both sides",
                        what, h.version, PSM_SEGMENT_VERSION);
    if (h.header_size != PSM_SEGMENT_HEADER)
        return refuse(PSM_ERR_PROTOCOL, what, "the size of its header", h.header_size, PSM_SEGMENT_HEADER);
    if (h.size <= PSM_SEGMENT_HEADER || h.size > PSM_SEGMENT_MAX)
        return refuse(PSM_ERR_PROTOCOL, what, "the size in its header", h.size, (uint64_t)st.st_size);
    if (h.size != (uint64_t)st.st_size)
        return psm_fail(PSM_ERR_MISMATCH, "shm", -1, -1, 0, "%s claims to have %" PRIu64 " bytes, but has %" PRIu64,
                        what, h.size, (uint64_t)st.st_size);
    if (h.id == 0) return refuse(PSM_ERR_PROTOCOL, what, "the id", 0, 1);
    if (!memchr(h.label, 0, sizeof h.label) || !memchr(h.owner_boot_id, 0, sizeof h.owner_boot_id))
        return psm_fail(PSM_ERR_PROTOCOL, "shm", -1, -1, 0,
                        "%s is not a psm segment: a text in its header is not NUL-ended", what);
    *header = h;
    return PSM_OK;
}
