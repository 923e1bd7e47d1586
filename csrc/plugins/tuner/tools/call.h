/* Any version of a tuner's table in one form. */
#ifndef PSM_TUNER_CALL_H
#define PSM_TUNER_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "psm_abi/tuner.h"

enum { ALGORITHMS = NCCL_NUM_ALGORITHMS, PROTOCOLS = NCCL_NUM_PROTOCOLS, PAIRS = ALGORITHMS * PROTOCOLS };

struct tuner {
    int version;
    const void *table;
};

struct question {
    int op;
    size_t bytes;
    int pipe_ops, registered, collnet, nvls;
    int algorithms; /* rows of the table: 6 until NCCL 2.22 */
    float costs[PAIRS];
};

struct reply {
    ncclResult_t result;
    int algorithm, protocol, channels; /* what NCCL uses; -1, 0: its own choice */
    float costs[PAIRS];
    bool outside; /* the tuner wrote outside the table or the outputs */
};

/* NULL: success; else what is wrong. */
const char *tuner_open(struct tuner *t, const char *path, int version);
const char *tuner_name(const struct tuner *t);
const char *tuner_missing(const struct tuner *t); /* the first required slot that is NULL */
/* Whether it wrote beyond the constants of v7; those of older versions are the caller's own. */
extern bool tuner_beyond;
ncclResult_t tuner_begin(const struct tuner *t, void **context, uint64_t id, size_t ranks, size_t nodes, int domains,
                         ncclTunerConstants_v5_t *constants);
void tuner_ask(const struct tuner *t, void *context, const struct question *q, struct reply *r);
bool tuner_has_chunk(const struct tuner *t);
ncclResult_t tuner_ask_chunk(const struct tuner *t, void *context, int op, size_t bytes, int algorithm, int protocol,
                             int channels, size_t *chunk);
ncclResult_t tuner_end(const struct tuner *t, void *context);

#endif
