/* What happens to each matched line: counted, passed to a tracker, perhaps kept. */
#ifndef LOGSCAN_MATCHED_H
#define LOGSCAN_MATCHED_H

#include "scanner.h"

/* events.c */
ls_count *ls_new_count(struct ls_scan *scan, const struct ls_record *rec, uint32_t message);
void ls_keep_line(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m, ls_count *c, int how);

static inline ls_count *count_of(struct ls_scan *scan, const struct ls_record *rec, uint32_t message)
{
    uint32_t at = 0;
    if (rec->proc >= 0) {
        const struct ls_proc_state *state = &scan->states.at[rec->proc];
        uint32_t place = scan->number_of[message] - 1; /* the greatest number if it has none */
        if (place < state->counted) at = state->count_of[place];
    } else
        at = scan->outside_counts[message];
    return at ? &scan->counts.at[at - 1] : ls_new_count(scan, rec, message);
}

/* A request whose handler returned an error: it gets no answer, so keep the line, not only its count. */
static inline bool failed(const struct ls_match *m)
{
    int64_t res = ls_role_int(m, F_RES, 0);
    return res != 0 && res != 7;
}

static inline void track(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m)
{
    int role = m->message->role;
    if (role <= LS_RPC_CONNECTED)
        ls_rpc_record(scan, rec, m);
    else if (scan->part && role <= LS_LEDGER_CLOSE)
        ls_part_later(scan, rec, m);
    else if (role <= LS_FD_RETURNED)
        ls_fds_record(scan, rec, m);
    else if (role <= LS_SEQ_OP)
        ls_comms_record(scan, rec, m);
    else if (role <= LS_LEDGER_CLOSE)
        ls_book_record(scan, rec, m);
    if (role < LS_DATA_PROGRESS) scan->states.at[rec->proc].worked = true;
}

static inline void on_match(struct ls_scan *scan, struct ls_record *rec, const struct ls_match *m)
{
    const struct ls_message *msg = m->message;
    scan->totals.matched++;
    if (rec->proc >= 0) {
        if (msg->role == LS_PROC_BIRTH) ls_birth(scan, rec, msg, scan->threads.at[rec->thread].tid);
        scan->threads.at[rec->thread].last_message = m->index;
    }
    ls_count *c = count_of(scan, rec, m->index);
    c->count += rec->repeated;
    c->last = rec->ref;
    if (scan->part && rec->proc < 0) ls_part_outside(scan, m->index);
    if (msg->role != LS_NO_ROLE && rec->proc >= 0) track(scan, rec, m);
    bool refused = msg->role == LS_RPC_BEGUN && failed(m);
    if (msg->keep == LS_KEEP_COUNT && !refused && !scan->emit_all) return;
    ls_keep_line(scan, rec, m, c, refused ? LS_KEEP_ALL : msg->keep);
}

#endif
