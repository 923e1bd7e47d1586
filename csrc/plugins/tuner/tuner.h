/* Internals of the tuner plugin: a communicator's rules, and its decisions. tables.c has NCCL's tables. */
#ifndef PSM_TUNER_H
#define PSM_TUNER_H

#include "record.h"
#include "rules.h"

enum { TUNER_CONTEXT = 0x74756e65 };

struct tuner_context {
    uint32_t magic;
    int version; /* version of NCCL's table */
    struct tuner_context *next;
    ncclDebugLogger_t logger;
    uint64_t comm_id; /* 0: not known before v5 */
    struct tuner_shape shape;
    int64_t ranks, nodes; /* as passed to init; shape omits what is not the same for all */
    psm_section *rows;
    /* Readers take no lock: they count themselves in, and replaced tables are freed when there is no reader. */
    _Atomic(struct tuner_table *) current, coming;
    _Atomic uint32_t readers;
    _Atomic uint64_t calls;
    struct tuner_table *retired;
};

ncclResult_t tuner_init(int version, uint64_t comm_id, size_t ranks, size_t nodes, ncclDebugLogger_t logger,
                        const ncclNvlDomainInfo_v5_t *domains, ncclTunerConstants_v5_t *constants,
                        struct tuner_context **context);
/* v1: one more communicator shares the context. */
void tuner_other_shape(const struct tuner_context *context, size_t ranks, size_t nodes);
void tuner_finalize(struct tuner_context *context);
/* Makes the decision; logs it the first time, records it, and changes query->costs for it. */
void tuner_collective(struct tuner_context *context, struct tuner_query *query, float *costs, int *algorithm,
                      int *protocol, int *channels);
void tuner_chunk_size(struct tuner_context *context, int op, uint64_t bytes, int algorithm, int protocol,
                      size_t *chunk);

/* The record. */
psm_section *tuner_record(void);
void tuner_record_decision(const struct tuner_context *context, uint64_t call, const struct tuner_query *query,
                           const struct tuner_choice *choice);

static inline void tuner_leave(struct tuner_context *context)
{
    atomic_fetch_sub(&context->readers, 1);
}

#endif
