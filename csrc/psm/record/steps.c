/* The step recorder: one row of the record file for each end of a connection, written at each transition, and readable
 * even after SIGKILL. psmkit/analysis/steps.py reads the rows of both ends. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conn/conn.h"
#include "psm_lib_messages.h"
#include "record.h"

enum { ROWS = 1024 };

/* A row as stored in the file. Words are stored as text, so that a reader can print each row without this code's enums.
 */
struct row {
    uint64_t pair, connection, stream, seq, nbytes, base, step, nsteps, recv_tail, send_head, posted, transmitted, done;
    uint64_t offer, answer;      /* numbers of the operations whose flags are set, 0: none */
    uint64_t moved, seen, event; /* CLOCK_MONOTONIC, read without a system call: coarse to a few ms */
    int32_t rank, peer;
    uint32_t channel, conn_index, mode, steps, slot, zero_copy;
    char role[8], what[12], stage[12], can_send[4];
};

static const struct psm_field fields[] = {
    PSM_FIELDS(struct row, PSM_HEX64, pair, connection, stream),
    PSM_FIELDS(struct row, PSM_U64, seq, nbytes, base, step, nsteps, recv_tail, send_head, posted, transmitted, done,
               offer, answer),
    PSM_FIELDS(struct row, PSM_TIME, moved, seen, event),
    PSM_FIELDS(struct row, PSM_I32, rank, peer),
    PSM_FIELDS(struct row, PSM_U32, channel, conn_index, mode, steps, slot, zero_copy),
    PSM_FIELDS(struct row, PSM_STR, role, what, stage, can_send),
};
static const struct psm_record_message messages[] = {PSM_MESSAGE_LIBPSM_STEPS_ROW};
static const struct psm_schema schema = PSM_SCHEMA("psm.steps", struct row, fields, messages);

struct recorder {
    psm_section *section;
    uint32_t number, slots;
    bool sends;
    uint64_t copied_at[PSM_CONN_MAX_STEPS]; /* when the copy of the slot was enqueued on the stream */
};

static const char what_names[][12] = {"connected", "begin",     "offered", "taken",   "declined",
                                      "copying",   "published", "ended",   "stalled", "failed"};
static const char stage_names[][12] = {"idle", "offer", "fifo", "zero-copy", "ended"};

static void *open_row(const struct psm_step_connection *about)
{
    psm_section *section = psm_record_section(psm_record_self(), &schema, PSM_TABLE, ROWS);
    uint32_t number;
    struct row *row = psm_table_claim(section, &number);
    if (!row) return NULL;
    struct recorder *recorder = calloc(1, sizeof *recorder);
    if (!recorder) {
        psm_table_release(section, number);
        return NULL;
    }
    recorder->section = section;
    recorder->number = number;
    recorder->slots = about->steps;
    recorder->sends = about->role != 0;
    *row = (struct row){.pair = about->pair,
                        .connection = about->connection,
                        .stream = about->stream,
                        .rank = about->rank,
                        .peer = about->peer,
                        .channel = (uint32_t)about->channel,
                        .conn_index = (uint32_t)about->connIndex,
                        .mode = (uint32_t)about->mode,
                        .steps = about->steps};
    row->moved = row->seen = psm_tick_ns();
    memcpy(row->role, recorder->sends ? "send" : "recv", 5);
    memcpy(row->what, what_names[0], sizeof row->what);
    memcpy(row->stage, stage_names[PSM_STAGE_IDLE], sizeof row->stage);
    memcpy(row->can_send, recorder->sends ? "NO" : "-\0", 3);
    psm_table_publish(section, number);
    return recorder;
}

static void record_step(void *user, const struct psm_step *now)
{
    struct recorder *recorder = user;
    uint64_t tick = now->at_ns;
    struct row *row = psm_table_update(recorder->section, recorder->number);
    if (!row) return; /* a child of fork */
    if (now->what == PSM_STEP_COPYING) recorder->copied_at[now->slot % PSM_CONN_MAX_STEPS] = tick;
    row->seq = now->seq;
    row->nbytes = now->nbytes;
    row->stream = now->stream;
    row->base = now->base;
    row->step = now->step;
    row->nsteps = now->nsteps;
    row->recv_tail = now->recvTail;
    row->send_head = now->sendHead;
    row->posted = now->posted;
    row->transmitted = now->transmitted;
    row->done = now->done;
    row->offer = now->offer;
    row->answer = now->answer;
    row->slot = now->slot;
    row->zero_copy = now->zero_copy;
    row->seen = tick;
    if (now->what != PSM_STEP_STALLED && now->what != PSM_STEP_FAILED) row->moved = tick;
    row->event = now->transmitted > now->done ? recorder->copied_at[(now->base + now->done) % recorder->slots] : 0;
    memcpy(row->what, what_names[now->what], sizeof row->what);
    memcpy(row->stage, stage_names[now->stage], sizeof row->stage);
    bool can =
        now->stage == PSM_STAGE_FIFO && now->transmitted < now->nsteps && now->recvTail > now->base + now->transmitted;
    memcpy(row->can_send, recorder->sends ? (can ? "YES" : "NO\0") : "-\0\0", sizeof row->can_send);
    psm_table_publish(recorder->section, recorder->number);
}

static void close_row(void *user)
{
    struct recorder *recorder = user;
    psm_table_release(recorder->section, recorder->number);
    free(recorder);
}

static const struct psm_step_recorder in_record = {open_row, record_step, close_row};

/* Installed from the start; a program with its own recorder sets psm_step_recorder. */
__attribute__((constructor)) static void begin(void)
{
    const struct psm_step_recorder *none = NULL;
    atomic_compare_exchange_strong(&psm_step_recorder, &none, &in_record);
}
