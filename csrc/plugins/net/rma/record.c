/* The recorder: a row for each peer of a communicator, with what is under way to it and what came from it. The analysis
 * compares the rows of both. */
#define _GNU_SOURCE
#include "record.h"
#include "net_say.h"
#include "record_format.h"
#include "rma/rma_comm.h"

enum { ROWS = 4096 };

/* puts, signals: posted for the peer; taken: those of the puts that are in its memory. arrived, notes: the peer's puts
 * and signals that are in this one's memory. */
struct row {
    uint64_t communicator;
    int32_t rank, ranks, peer;
    uint32_t number; /* of the communicators of the process */
    uint64_t puts, taken, signals, arrived, notes;
};
static const struct psm_field fields[] = {
    PSM_FIELDS(struct row, PSM_HEX64, communicator),
    PSM_FIELDS(struct row, PSM_I32, rank, ranks, peer),
    PSM_FIELDS(struct row, PSM_U32, number),
    PSM_FIELDS(struct row, PSM_U64, puts, taken, signals, arrived, notes),
};
static const struct psm_record_message message[] = {PSM_MESSAGE_PSM_NET_RMA_PEER};
static const struct psm_schema schema = PSM_SCHEMA("psm.rma", struct row, fields, message);

void rma_record(struct rma_comm *c)
{
    c->rows = psm_record_section(psm_record_self(), &schema, PSM_TABLE, ROWS);
    for (int i = 0; i < c->ranks; i++) {
        struct rma_peer *p = &c->peer[i];
        struct row *row = i == c->rank ? NULL : psm_table_claim(c->rows, &p->row);
        p->has_row = row != NULL;
        if (!row) continue;
        *row = (struct row){.communicator = c->id, .rank = c->rank, .ranks = c->ranks, .peer = i, .number = c->number};
        psm_table_publish(c->rows, p->row);
    }
}

void rma_record_peer(struct rma_comm *c, struct rma_peer *p)
{
    struct row *row = p->has_row ? psm_table_update(c->rows, p->row) : NULL;
    if (!row) return;
    row->puts = p->puts;
    row->taken = p->acked;
    row->signals = p->signals;
    row->arrived = p->arrived;
    row->notes = p->notes;
    psm_table_publish(c->rows, p->row);
}

void rma_record_end(struct rma_comm *c)
{
    for (int i = 0; i < c->ranks; i++)
        if (c->peer[i].has_row) psm_table_release(c->rows, c->peer[i].row);
}
