/* Variants that take a stale event for a new one, or lose a new flag. */
#include <stddef.h>

#include "p2p/variants/p2p_variants.h"

/* ---- stale-event: the event that is queried is not the one recorded behind the copy. Shows from two slots on: an
 * operation of one slot queries none ---- */

static psm_status connect_stale(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                void *resp, int respSize, int *done)
{
    PSM_TRY(psm_conn_check_spare(connection, "stale-event"));
    PSM_TRY(psm_p2p_proxy_connect(connection, state, req, reqSize, resp, respSize, done));
    return psm_conn_make_spare(connection);
}

static psm_status free_stale(psmProxyConnection *connection, psmProxyState *state)
{
    psm_conn_free_spare(connection);
    return psm_p2p_proxy_free(connection, state);
}

/* The slots of the copies that are under way get the other events. */
static void swap_events(struct psmProxyArgs *args)
{
    for (int s = 0; s < args->nsubs; s++) {
        struct psmProxySubArgs *sub = &args->subs[s];
        struct psm_conn *conn = psm_conn_running(sub);
        if (conn) psm_conn_swap_spare(conn, sub, sub->done);
    }
}
static psm_status stale_send_progress(psmProxyState *state, struct psmProxyArgs *args)
{
    PSM_TRY(psm_p2p_send_progress(state, args));
    swap_events(args);
    return PSM_OK;
}
static psm_status stale_recv_progress(psmProxyState *state, struct psmProxyArgs *args)
{
    PSM_TRY(psm_p2p_recv_progress(state, args));
    swap_events(args);
    return PSM_OK;
}

/* ---- erased-flag: the sender clears the receiver's offer when an operation has ended, and once more ---- */

static psm_status erase_progress(psmProxyState *state, struct psmProxyArgs *args)
{
    for (int s = 0; s < args->nsubs; s++) {
        struct psmP2pLocalInfo *local = args->subs[s].connection->transportResources;
        if (!local || !local->conn.connected || local->conn.stage > PSM_STAGE_OFFER) continue;
        uint64_t flag = psm_line_load(&local->shared->offer);
        if (psm_flag_what(flag) == PSM_FLAG_ZERO_COPY && psm_flag_seq(flag) > 1)
            psm_line_swap(&local->shared->offer, 0);
    }
    return psm_p2p_send_progress(state, args);
}

static const struct psmTransportComm stale_send =
    PSM_P2P_COMM(psm_p2p_proxy_setup, connect_stale, free_stale, stale_send_progress);
static const struct psmTransportComm stale_recv =
    PSM_P2P_COMM(psm_p2p_proxy_setup, connect_stale, free_stale, stale_recv_progress);
static const struct psmTransportComm erase_send =
    PSM_P2P_COMM(psm_p2p_proxy_setup, psm_p2p_proxy_connect, psm_p2p_proxy_free, erase_progress);

static const struct psmP2pVariant variants[] = {
    {.size = sizeof(struct psmP2pVariant),
     .name = "stale-event",
     .summary = "queries a slot's event of an earlier use, which completed long ago",
     .outcome = "PSM513: steps are published before their copies are done; the data is wrong, or right by luck",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_FAILED, .codes = "PSM513", .shows = PSM_SHOWS_BY_LUCK),
     .wrong = 1,
     .send = &stale_send,
     .recv = &stale_recv},
    {.size = sizeof(struct psmP2pVariant),
     .name = "erased-flag",
     .summary = "the sender clears the zero-copy flag twice, and so also that of the next operation",
     .outcome = "PSM307: a zero-copy operation after the first hangs, most often the second; the FIFO works",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HUNG, .codes = "PSM307", .shows = PSM_SHOWS_ZERO_COPY),
     .wrong = 1,
     .send = &erase_send,
     .recv = &psm_p2p_split_recv},
};
PSM_VARIANTS(variants)
