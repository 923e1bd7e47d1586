/* Variants that take a stale event for a new one, or lose a new flag. */
#include <stddef.h>

#include "p2p/variants/variants.h"

/* ---- stale-event: the event that is queried is not the one recorded behind the copy. Shows from two slots on: an
 * operation of one slot queries none ---- */

enum { SPARE = PSM_CONN_MAX_STEPS / 2 }; /* of the slots beyond: events of an earlier use */

static psm_status connect_stale(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                void *resp, int respSize, int *done)
{
    struct psmP2pLocalInfo *local = connection->transportResources;
    if (local && local->conn.steps > SPARE)
        return psm_fail(PSM_ERR_UNSUPPORTED, "connect", local->conn.rank, local->conn.peer, 0,
                        "stale-event has room for %d steps: set PSM_STEPS", SPARE);
    PSM_TRY(psm_p2p_proxy_connect(connection, state, req, reqSize, resp, respSize, done));
    for (uint32_t i = 0; *done && i < local->conn.steps; i++)
        PSM_CUDA(local->conn.cuda, "connect", local->conn.rank, local->conn.peer,
                 cudaEventCreateWithFlags(&local->conn.events[SPARE + i], cudaEventDisableTiming));
    return PSM_OK;
}

static psm_status free_stale(psmProxyConnection *connection, psmProxyState *state)
{
    struct psmP2pLocalInfo *local = connection->transportResources;
    for (uint32_t i = 0; local && local->conn.connected && i < local->conn.steps; i++)
        local->conn.cuda->cudaEventDestroy(local->conn.events[SPARE + i]);
    return psm_p2p_proxy_free(connection, state);
}

/* The slots of the copies that are under way get the other events. */
static void swap_events(struct psmProxyArgs *args)
{
    for (int s = 0; s < args->nsubs; s++) {
        struct psmProxySubArgs *sub = &args->subs[s];
        struct psmP2pLocalInfo *local = sub->connection->transportResources;
        if (!local || local->conn.active != sub) continue;
        for (uint64_t n = sub->done; n < sub->transmitted; n++) {
            uint64_t slot = (sub->base + n) % local->conn.steps;
            cudaEvent_t recorded = local->conn.events[slot];
            local->conn.events[slot] = local->conn.events[SPARE + slot];
            local->conn.events[SPARE + slot] = recorded;
        }
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
    PSM_COMM(psm_p2p_proxy_setup, connect_stale, free_stale, stale_send_progress);
static const struct psmTransportComm stale_recv =
    PSM_COMM(psm_p2p_proxy_setup, connect_stale, free_stale, stale_recv_progress);
static const struct psmTransportComm erase_send =
    PSM_COMM(psm_p2p_proxy_setup, psm_p2p_proxy_connect, psm_p2p_proxy_free, erase_progress);

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
