/* The recorder: a row for each connection, and one for each of its requests, which keeps what it says after the request
 * is done, until the place is used again. They are in the file after a SIGKILL, too. */
#define _GNU_SOURCE
#include <string.h>

#include "front.h"
#include "record.h"
#include "say.h"

enum { COMMS = 1024, REQUESTS = 8192 };

struct comm_row {
    uint64_t connection;
    int32_t rank, device, peer, peer_device;
    uint32_t max_recvs;
    char backend[12], role[8], address[NET_ADDRESS];
};
static const struct psm_field comm_fields[] = {
    PSM_FIELD(struct comm_row, PSM_HEX64, connection), PSM_FIELD(struct comm_row, PSM_I32, rank),
    PSM_FIELD(struct comm_row, PSM_I32, device),       PSM_FIELD(struct comm_row, PSM_I32, peer),
    PSM_FIELD(struct comm_row, PSM_I32, peer_device),  PSM_FIELD(struct comm_row, PSM_U32, max_recvs),
    PSM_FIELD(struct comm_row, PSM_STR, backend),      PSM_FIELD(struct comm_row, PSM_STR, role),
    PSM_FIELD(struct comm_row, PSM_STR, address),
};
static const struct psm_schema comm_schema = {.name = "psm.net.comm",
                                              .version = 1,
                                              .record_size = sizeof(struct comm_row),
                                              .fields = comm_fields,
                                              .nfields = sizeof comm_fields / sizeof *comm_fields,
                                              .selector = -1};

/* size, tag: of the first buffer; of all: n and total. completed 0: not done. */
struct request_row {
    uint64_t connection, number, size, total, posted, completed;
    int32_t peer, device, tag, error;
    uint32_t n;
    char op[4];
};
static const struct psm_field request_fields[] = {
    PSM_FIELD(struct request_row, PSM_HEX64, connection),
    PSM_FIELD(struct request_row, PSM_U64, number),
    PSM_FIELD(struct request_row, PSM_U64, size),
    PSM_FIELD(struct request_row, PSM_U64, total),
    PSM_FIELD(struct request_row, PSM_TIME, posted),
    PSM_FIELD(struct request_row, PSM_TIME, completed),
    PSM_FIELD(struct request_row, PSM_I32, peer),
    PSM_FIELD(struct request_row, PSM_I32, device),
    PSM_FIELD(struct request_row, PSM_I32, tag),
    PSM_FIELD(struct request_row, PSM_I32, error),
    PSM_FIELD(struct request_row, PSM_U32, n),
    PSM_FIELD(struct request_row, PSM_STR, op),
};
static const struct psm_schema request_schema = {.name = "psm.net",
                                                 .version = 1,
                                                 .record_size = sizeof(struct request_row),
                                                 .fields = request_fields,
                                                 .nfields = sizeof request_fields / sizeof *request_fields,
                                                 .selector = -1};

static void text(char *to, size_t size, const char *from)
{
    size_t n = strlen(from);
    memcpy(to, from, n < size ? n : size);
}

void net_record_comm(struct net_comm *c)
{
    psm_record *record = psm_record_self();
    c->rows = psm_record_section(record, &request_schema, PSM_TABLE, REQUESTS);
    c->comms = psm_record_section(record, &comm_schema, PSM_TABLE, COMMS);
    struct comm_row *row = psm_table_claim(c->comms, &c->row);
    c->has_row = row != NULL;
    if (!row) return;
    *row = (struct comm_row){.connection = c->id,
                             .rank = c->rank,
                             .device = c->dev,
                             .peer = c->peer_rank,
                             .peer_device = c->peer_dev,
                             .max_recvs = (uint32_t)c->max_recvs};
    text(row->backend, sizeof row->backend, c->backend->name);
    text(row->role, sizeof row->role, net_role(c));
    text(row->address, sizeof row->address, c->address);
    psm_table_publish(c->comms, c->row);
}

void net_record_comm_end(struct net_comm *c)
{
    if (c->has_row) psm_table_release(c->comms, c->row);
    for (uint32_t i = 0; i < c->capacity; i++)
        if (c->request[i].has_row) psm_table_release(c->rows, c->request[i].row);
}

void net_record_posted(struct net_request *r)
{
    struct net_comm *c = r->comm;
    if (!c->rows) return;
    uint64_t now = psm_clock_ns();
    struct request_row *row;
    if (r->has_row) {
        row = psm_table_update(c->rows, r->row);
    } else {
        row = psm_table_claim(c->rows, &r->row);
        r->has_row = row != NULL;
    }
    if (!row) return;
    row->connection = c->id;
    row->number = r->number;
    row->size = row->total = r->part[0].room;
    for (int i = 1; i < r->n; i++) row->total += r->part[i].room;
    row->posted = now;
    row->completed = 0;
    row->peer = c->peer_rank;
    row->device = c->dev;
    row->tag = r->part[0].tag;
    row->error = 0;
    row->n = r->n;
    memcpy(row->op, c->sends ? "send" : "recv", sizeof row->op);
    psm_table_publish(c->rows, r->row);
}

void net_record_done(struct net_request *r, ncclResult_t result)
{
    struct net_comm *c = r->comm;
    if (!r->has_row) return;
    uint64_t now = psm_clock_ns();
    struct request_row *row = psm_table_update(c->rows, r->row);
    if (!row) return;
    row->size = row->total = r->part[0].size;
    for (int i = 1; i < r->n; i++) row->total += r->part[i].size;
    row->completed = now;
    row->error = (int32_t)result;
    psm_table_publish(c->rows, r->row);
}
