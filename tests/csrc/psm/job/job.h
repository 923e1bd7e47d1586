/* Ranks that send each other data: what the drivers of p2p and net share. See Job in jobs.py for what they print. */
#ifndef PSM_TEST_JOB_H
#define PSM_TEST_JOB_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"
#include "job/end.h"
#include "psm/psm_launch.h"
#include "psm_cuda.h"

enum { JOB_SIZES = 64, JOB_UNTOUCHED = 0xa5 };

/* The arguments: one NAME=VALUE each. */
extern struct job {
    int ranks, iters, one_way;
    int lone, aborts, differ; /* a rank; -1: none */
    int nsizes;
    uint64_t sizes[JOB_SIZES];
    uint64_t around; /* bytes of a buffer that no operation uses */
    const char *stream, *differs, *variant;
} job;
/* Reads an argument that all drivers have. */
void job_argument(char *argument);
/* The value of an argument of this name; NULL: it has another. */
const char *job_value(const char *argument, const char *name);

/* Shared by the processes. A driver has it as first member of its own. */
struct job_meeting {
    _Atomic int arrived, failed;
    struct end_place places[END_RANKS];
    struct psm_peer_info infos[END_RANKS];
};
extern struct job_meeting *job_meeting;
void *job_share(size_t size);

struct job_rank {
    int rank, device;
    struct end end;
    cudaStream_t stream; /* the application's */
    const struct psm_cuda *cuda;
    uint8_t *check; /* room for a buffer */
};

void job_say(const struct job_rank *r, const char *what, psm_status status);
#define JOB_OK(r, what, call)                                                                                          \
    do {                                                                                                               \
        psm_status s_ = (call);                                                                                        \
        if (s_ != PSM_OK) {                                                                                            \
            job_say(r, what, s_);                                                                                      \
            atomic_store(&job_meeting->failed, 1);                                                                     \
            return s_;                                                                                                 \
        }                                                                                                              \
    } while (0)
#define JOB_CUDA(r, call)                                                                                              \
    do {                                                                                                               \
        int c_ = (int)(r)->cuda->call;                                                                                 \
        if (c_) {                                                                                                      \
            printf("rank %d CUDA %d: %s\n", (r)->rank, c_, #call);                                                     \
            exit(3);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Waits for all ranks; false when one has failed or died. */
bool job_meet(void);
/* Whether data goes from a rank to another. */
bool job_pair(int from, int to);
/* Whether this rank must differ from the other in this: differ=RANK:WHAT. */
bool job_differs(const struct job_rank *r, const char *what);
/* Falsifies what this rank sends to the other. */
#define JOB_TELL_WRONG(r, info)                                                                                        \
    do {                                                                                                               \
        if (job_differs(r, "magic")) (info)->magic ^= 1;                                                               \
        if (job_differs(r, "version")) (info)->version++;                                                              \
        if (job_differs(r, "role")) (info)->role = !(info)->role;                                                      \
        if (job_differs(r, "steps")) (info)->steps *= 2;                                                               \
        if (job_differs(r, "chunk")) (info)->chunk *= 2;                                                               \
        if (job_differs(r, "buffer")) (info)->buffer_size *= 2;                                                        \
        if (job_differs(r, "rank")) (info)->rank = 77;                                                                 \
    } while (0)

/* The bytes of the largest buffer. */
uint64_t job_largest(void);
/* The bytes that go from this rank to another in an operation, from an offset of the buffer on; the rest of a buffer to
 * receive in is left untouched. */
void job_fill(const struct job_rank *r, int to, uint8_t *out, uint8_t *in, int iter, uint64_t offset, uint64_t bytes);
psm_status job_compare(const struct job_rank *r, int from, const uint8_t *in, int iter, uint64_t offset,
                       uint64_t bytes);

/* Opens a rank's device, settings and end, and meets the others; ends the process if that fails. */
void job_open(struct job_rank *r);
/* The stream, and room to compare. */
void job_prepare(struct job_rank *r);
void job_close(struct job_rank *r);
/* Launches operations on the stream, and waits for them. */
psm_status job_group(struct job_rank *r, const struct psmGroupOp *ops, size_t n);
/* The rank has no more operations. Waits for the others unless it has failed. */
void job_over(psm_status status);

/* Prints how many descriptors and mappings libpsm and the ends have left open. */
void job_say_left(void);
/* A process for each rank. Returns the exit status: the worst one. */
int job_fork(int (*work)(int rank));
/* Prints the variants of a transport, one a line. A macro: their type is the transport's. */
#define JOB_LIST_VARIANTS(type, list)                                                                                  \
    do {                                                                                                               \
        const type *v_[JOB_SIZES];                                                                                     \
        size_t n_ = list(v_, JOB_SIZES);                                                                               \
        for (size_t i_ = 0; i_ < n_; i_++)                                                                             \
            printf("%s|%d|%s|%s|%u|%u|%u|%s|%s\n", v_[i_]->name, v_[i_]->wrong, v_[i_]->outcome,                       \
                   v_[i_]->faults ? v_[i_]->faults : "", v_[i_]->declared->verdict, v_[i_]->declared->shows,           \
                   v_[i_]->declared->leaves, psm_status_name(v_[i_]->declared->status), v_[i_]->declared->codes);      \
    } while (0)

#endif
