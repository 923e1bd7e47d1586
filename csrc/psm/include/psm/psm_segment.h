/* Named shared memory that libpsm left behind: segments that a killed process could not remove. */
#ifndef PSM_SEGMENT_H
#define PSM_SEGMENT_H

#include "psm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum psm_segment_owner {
    PSM_SEGMENT_ALIVE = 1,
    PSM_SEGMENT_DEAD = 2,
    PSM_SEGMENT_UNKNOWN = 3 /* of another boot or pid namespace, or damaged: the owner is unknown */
};

struct psm_segment_info {
    char name[64]; /* in /dev/shm, or in PSM_SHM_DIR */
    char label[24];
    uint64_t size; /* bytes of the file */
    uint64_t id;
    uint32_t owner_pid;
    uint32_t owner; /* enum psm_segment_owner */
};

/* Lists segments of the calling user. Writes up to `capacity` of them and sets *count to their total number. Any
 * thread. PSM_ERR_SYSTEM, PSM_ERR_NOT_FOUND, PSM_ERR_DENIED: the folder cannot be read. */
PSM_API psm_status psm_segments_list(struct psm_segment_info *out, size_t capacity, size_t *count);
/* Removes the segments whose owner is dead, and only those. *removed: how many. The same statuses. */
PSM_API psm_status psm_segments_prune(size_t *removed);

#ifdef __cplusplus
}
#endif
#endif
