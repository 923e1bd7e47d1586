/* Host memory shared by processes. A segment starts with a page that identifies it and its owner; the data follows.
 *
 * memfd: sealed against shrinking and growing, passed by descriptor. POSIX: a file in /dev/shm (PSM_SHM_DIR) of mode
 * 0600 with a random name, unlinked by the first process that attaches, or by its owner.
 *
 * Any thread may call these functions, but each segment by one thread at a time. Errors are recorded with the stage
 * "shm". */
#ifndef PSM_SHM_SEGMENT_H
#define PSM_SHM_SEGMENT_H

#include <stddef.h>

#include "base.h"
#include "psm/psm_segment.h"
#include "psm/psm_share.h"

enum { PSM_SEGMENT_HEADER = 4096, PSM_SEGMENT_NAME = 64, PSM_SEGMENT_LABEL = 24 };
#define PSM_SEGMENT_MAGIC   0x50534d5345474d31u /* "PSMSEGM1" */
#define PSM_SEGMENT_VERSION 1u
#define PSM_SEGMENT_MAX     (UINT64_C(1) << 40) /* maximum size of a segment in bytes */

/* The header of a segment. Written once, before anybody can find it. Shareable. */
struct psm_segment_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_size; /* PSM_SEGMENT_HEADER */
    uint64_t size;        /* of the whole segment, including the header */
    uint64_t id;
    uint32_t owner_pid, owner_uid;
    uint64_t owner_start_time, owner_pid_ns;
    char owner_boot_id[PSM_BOOT_ID_SIZE];
    char label[PSM_SEGMENT_LABEL]; /* its purpose: "control", "fifo", "pool" */
};
PSM_SHAREABLE(psm_segment_header, 120);

/* One mapping of a segment: local. Zeroed: none. Do not move it; copies of it are not counted. */
struct psm_segment {
    void *data;    /* of size bytes, aligned to a page; NULL: not mapped */
    uint64_t size; /* of the data */
    uint64_t id;
    int fd;   /* of a memfd that this process made, else -1 */
    int kind; /* PSM_SHARE_MEMFD or PSM_SHARE_POSIX */
    bool owner;
    struct psm_mapping *mapping; /* shared by all that attached it in this process */
};

/* Create a segment of `size` zeroed bytes. kind: PSM_SHARE_MEMFD or PSM_SHARE_POSIX. The memory is allocated when this
 * returns; PSM_ERR_NO_RESOURCE says that it is not (a full /dev/shm), so that no later access crashes. */
psm_status psm_segment_create(struct psm_segment *segment, int kind, uint64_t size, const char *label);

/* What a peer needs to attach it. Offer segment->fd under share->id if kind is PSM_SHARE_MEMFD. */
void psm_segment_share(const struct psm_segment *segment, struct psm_share *share);

/* Map what `share` names. fd: of a memfd, for PSM_SHARE_MEMFD (the caller keeps it and may close it afterwards);
 * otherwise -1. A segment of this process, of any kind, is not mapped again. For PSM_SHARE_POSIX the name is removed.
 * PSM_ERR_PROTOCOL (not a segment), VERSION, MISMATCH (id, size or owner: both values are in the text), DENIED (of
 * another user, or not sealed), NOT_FOUND, INVALID. */
psm_status psm_segment_attach(struct psm_segment *segment, const struct psm_share *share, int fd);

/* Unmap; the owner also closes the descriptor and removes the name. Zeroes it. Accepts NULL or a zeroed one. */
void psm_segment_close(struct psm_segment *segment);

#endif
