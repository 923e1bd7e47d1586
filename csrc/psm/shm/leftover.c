/* Named segments that were left behind. Removes only those that nobody can own: of this user, complete, of this boot
 * and pid namespace, and with a dead owner. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "psm_lib_messages.h"
#include "shm/header.h"

_Static_assert(sizeof((struct psm_segment_info *)0)->name == PSM_SEGMENT_NAME, "the name is copied whole");
_Static_assert(sizeof((struct psm_segment_info *)0)->label == PSM_SEGMENT_LABEL, "the label is copied whole");

static uint32_t owner_of(const struct psm_segment_header *h)
{
    const struct psm_proc *self = psm_proc_self();
    /* Empty or 0: that side could not determine it. */
    if (!*self->boot_id || strcmp(self->boot_id, h->owner_boot_id) != 0) return PSM_SEGMENT_UNKNOWN;
    if (self->pid_ns == 0 || self->pid_ns != h->owner_pid_ns || h->owner_start_time == 0) return PSM_SEGMENT_UNKNOWN;
    if (h->owner_pid == 0 || h->owner_pid > INT32_MAX) return PSM_SEGMENT_UNKNOWN;
    return psm_pid_alive((int)h->owner_pid, h->owner_start_time) ? PSM_SEGMENT_ALIVE : PSM_SEGMENT_DEAD;
}

/* false: not a segment of this user. */
static bool look(int folder, const char *name, struct psm_segment_info *info, struct stat *st)
{
    char padded[PSM_SEGMENT_NAME] = {0};
    size_t n = strlen(name);
    if (n >= sizeof padded) return false;
    memcpy(padded, name, n);
    if (!psm_segment_is_name(padded, sizeof padded)) return false;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    *info = (struct psm_segment_info){.owner = PSM_SEGMENT_UNKNOWN};
    memcpy(info->name, padded, sizeof padded);
    bool ours = fstat(fd, st) == 0 && S_ISREG(st->st_mode) && st->st_uid == geteuid();
    if (ours) {
        struct psm_segment_header h;
        struct psm_error before = *psm_last_error();
        info->size = (uint64_t)st->st_size;
        if (psm_segment_read_header(fd, name, &h) == PSM_OK) {
            memcpy(info->label, h.label, sizeof h.label);
            info->id = h.id;
            info->owner_pid = h.owner_pid;
            info->owner = owner_of(&h);
        } else {
            psm_fail_again(&before); /* a damaged file is a result, not a failure of the caller */
        }
    }
    close(fd);
    return ours;
}

static psm_status
each(psm_status (*visit)(int folder, const struct psm_segment_info *info, const struct stat *st, void *), void *context)
{
    int folder = psm_segment_folder();
    DIR *entries = folder < 0 ? NULL : fdopendir(folder);
    if (!entries) {
        int error = errno;
        if (folder >= 0) close(folder);
        return psm_fail_errno(error, "shm", -1, -1, "reading %s", psm_segment_folder_name());
    }
    psm_status status = PSM_OK;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(entries);
        if (!entry && errno != 0)
            status = psm_fail_errno(errno, "shm", -1, -1, "reading %s", psm_segment_folder_name());
        if (!entry || status != PSM_OK) break;
        struct psm_segment_info info;
        struct stat st;
        if (look(folder, entry->d_name, &info, &st)) status = visit(folder, &info, &st, context);
    }
    closedir(entries);
    return status;
}

struct listing {
    struct psm_segment_info *out;
    size_t capacity, count;
};

static psm_status list_one(int folder, const struct psm_segment_info *info, const struct stat *st, void *context)
{
    (void)folder, (void)st;
    struct listing *listing = context;
    if (listing->count < listing->capacity) listing->out[listing->count] = *info;
    listing->count++;
    return PSM_OK;
}

psm_status psm_segments_list(struct psm_segment_info *out, size_t capacity, size_t *count)
{
    if (!count || (capacity && !out))
        return psm_fail(PSM_ERR_INVALID, "shm", -1, -1, 0, "psm_segments_list: the place for results is NULL");
    struct listing listing = {out, capacity, 0};
    psm_status status = each(list_one, &listing);
    *count = listing.count;
    return status;
}

static psm_status prune_one(int folder, const struct psm_segment_info *info, const struct stat *st, void *context)
{
    if (info->owner != PSM_SEGMENT_DEAD) return PSM_OK;
    /* Another file may have taken the name since it was opened. */
    struct stat now;
    if (fstatat(folder, info->name, &now, AT_SYMLINK_NOFOLLOW) != 0 || now.st_dev != st->st_dev ||
        now.st_ino != st->st_ino)
        return PSM_OK;
    if (unlinkat(folder, info->name, 0) != 0)
        return errno == ENOENT ? PSM_OK
                               : psm_fail_errno(errno, "shm", -1, -1, "removing %s/%s, whose owner %" PRIu32 " is dead",
                                                psm_segment_folder_name(), info->name, info->owner_pid);
    ++*(size_t *)context;
    psm_msg_libpsm_segment_pruned(info->name, info->owner_pid);
    return PSM_OK;
}

psm_status psm_segments_prune(size_t *removed)
{
    size_t count = 0;
    psm_status status = each(prune_one, &count);
    if (removed) *removed = count;
    return status;
}
