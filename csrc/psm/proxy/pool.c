/* The op pool: a row for each operation that was saved and has not ended. The rows are in the record file of the
 * process, which is shared memory that outlives it: their state can be read without a debugger, of a stuck process and
 * of a killed one. Data that has a meaning only in this process (pointers, the condition that it decrements) is kept
 * separately, in psm_posted and psmProxyArgs. */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "proxy/proxy.h"
#include "psm_lib_messages.h"
#include "record.h"

enum { ROWS = 1024 };

struct psm_op_row {
    uint64_t connection, op_count, nbytes, buffer, handle;
    uint64_t since; /* of this state: CLOCK_MONOTONIC, coarse to a few ms */
    int32_t rank, peer;
    uint32_t channel, subs; /* number of operations that run together with this one */
    char role[8], state[12], place[12];
};
PSM_SHAREABLE(psm_op_row, 96);

static const struct psm_field fields[] = {
    PSM_FIELDS(struct psm_op_row, PSM_HEX64, connection),
    PSM_FIELDS(struct psm_op_row, PSM_U64, op_count, nbytes),
    PSM_FIELDS(struct psm_op_row, PSM_HEX64, buffer, handle),
    PSM_FIELDS(struct psm_op_row, PSM_TIME, since),
    PSM_FIELDS(struct psm_op_row, PSM_I32, rank, peer),
    PSM_FIELDS(struct psm_op_row, PSM_U32, channel, subs),
    PSM_FIELDS(struct psm_op_row, PSM_STR, role, state, place),
};
static const struct psm_record_message messages[] = {PSM_MESSAGE_LIBPSM_OPS_ROW};
static const struct psm_schema schema = PSM_SCHEMA("psm.ops", struct psm_op_row, fields, messages);

/* NCCL's states, and where the operation waits for the next one. */
static const struct {
    char state[12], place[12];
} stands[] = {[PSM_OP_SAVED] = {"None", "saved"},
              [PSM_OP_POSTED] = {"Ready", "posted"},
              [PSM_OP_CHAINED] = {"Ready", "chained"},
              [PSM_OP_ACTIVE] = {"Ready", "active"},
              [PSM_OP_PROGRESS] = {"Progress", "active"}};

/* Created with the first operation: a process without operations keeps no record of them. Two threads that race get the
 * same section. */
static psm_section *section_of(psmProxyState *state)
{
    struct psm_progress *p = &state->progress;
    if (!atomic_load_explicit(&p->pool_made, memory_order_acquire)) {
        atomic_store(&p->pool, psm_record_section(psm_record_self(), &schema, PSM_TABLE, ROWS));
        atomic_store_explicit(&p->pool_made, true, memory_order_release);
    }
    return atomic_load_explicit(&p->pool, memory_order_relaxed);
}

uint32_t psm_pool_save(psmProxyState *state, const struct psm_connection *c, const struct psmProxyOp *op)
{
    uint32_t number;
    psm_section *pool = section_of(state);
    struct psm_op_row *row = psm_table_claim(pool, &number);
    if (!row) return PSM_POOL_NONE; /* no record, or no room: counted there as lost */
    bool send = c->pub.send != 0;
    *row = (struct psm_op_row){.connection = op->connection,
                               .op_count = op->opCount,
                               .nbytes = op->nbytes,
                               .buffer = (uint64_t)(uintptr_t)(send ? op->sendbuff : op->recvbuff),
                               .handle = send ? op->sendHandle : op->recvHandle,
                               .since = psm_tick_ns(),
                               .rank = state->rank,
                               .peer = op->peer,
                               .channel = (uint32_t)op->channel,
                               .subs = 1};
    memcpy(row->role, send ? "send" : "recv", 5);
    memcpy(row->state, stands[PSM_OP_SAVED].state, sizeof row->state);
    memcpy(row->place, stands[PSM_OP_SAVED].place, sizeof row->place);
    psm_table_publish(pool, number);
    return number;
}

void psm_pool_move(const struct psm_progress *p, uint32_t number, enum psm_op_stand stand, int subs)
{
    if (number == PSM_POOL_NONE) return;
    struct psm_op_row *row = psm_table_update(p->pool, number);
    if (!row) return; /* a child of fork */
    memcpy(row->state, stands[stand].state, sizeof row->state);
    memcpy(row->place, stands[stand].place, sizeof row->place);
    row->since = psm_tick_ns();
    row->subs = (uint32_t)subs;
    psm_table_publish(p->pool, number);
}

void psm_pool_end(const struct psm_progress *p, uint32_t number)
{
    if (number != PSM_POOL_NONE) psm_table_release(p->pool, number);
}
