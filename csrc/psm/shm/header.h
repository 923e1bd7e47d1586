/* The names of POSIX segments and the check of a segment's first bytes: for attaching and for the reaper. */
#ifndef PSM_SHM_HEADER_H
#define PSM_SHM_HEADER_H

#include "core/internal.h"
#include "shm/segment.h"

/* "psm-" and 16 hex digits. */
void psm_segment_name(uint64_t id, char name[PSM_SEGMENT_NAME]);
/* Whether these bytes are such a name, including the NUL: no other name from a peer is ever opened. */
bool psm_segment_is_name(const char *name, size_t size);
/* Opens the folder of POSIX segments: /dev/shm or PSM_SHM_DIR. -1: errno says why. */
int psm_segment_folder(void);
const char *psm_segment_folder_name(void);

/* Read the header of a file and check everything that does not depend on the expected segment. `what` names the file in
 * errors. */
psm_status psm_segment_read_header(int fd, const char *what, struct psm_segment_header *header);

#endif
