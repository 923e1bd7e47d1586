/* Broken variants of the net transport: each is the right one with one mistake, and declares its symptoms. Tests, the
 * lab and the analysis are checked against them. A variant is used only where its name is given. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "conn/wrong.h"
#include "net/net_conn.h"

/* ---- whole-struct: Setup's answer carries the local info, and the peer writes it over its own ---- */

static psm_status setup_whole(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                              void *resp, int respSize, int *done)
{
    PSM_TRY(psm_net_proxy_setup(connection, state, req, reqSize, resp, respSize, done));
    if (!*done) return PSM_OK;
    PSM_TRY(psm_conn_make_stream(connection->transportResources));
    memcpy(((struct psmNetShareInfo *)resp)->more, connection->transportResources, PSM_NET_MORE);
    return PSM_OK;
}

static psm_status connect_whole(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                void *resp, int respSize, int *done)
{
    struct psm_net_connect peer;
    if (connection->transportResources && reqSize == (int)sizeof peer) { /* else the right handler refuses it */
        memcpy(&peer, req, sizeof peer);
        memcpy(connection->transportResources, peer.more, PSM_NET_MORE);
    }
    return psm_net_proxy_connect(connection, state, req, reqSize, resp, respSize, done);
}

/* ---- early-send: a slot goes to the network once its copy is on the stream, not once it is done ---- */

static psm_status connect_early(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                void *resp, int respSize, int *done)
{
    PSM_TRY(psm_conn_check_spare(connection, "early-send"));
    PSM_TRY(psm_net_proxy_connect(connection, state, req, reqSize, resp, respSize, done));
    return psm_conn_make_spare(connection);
}

static psm_status free_early(psmProxyConnection *connection, psmProxyState *state)
{
    psm_conn_free_spare(connection);
    return psm_net_proxy_free(connection, state);
}

/* The copies under way are queried by the other events. */
static psm_status progress_early(psmProxyState *state, struct psmProxyArgs *args)
{
    PSM_TRY(psm_net_send_progress(state, args));
    for (int s = 0; s < args->nsubs; s++) {
        struct psmNetLocalInfo *local = psm_conn_running(&args->subs[s]);
        if (local) psm_conn_swap_spare(&local->conn, &args->subs[s], local->passed);
    }
    return PSM_OK;
}

/* ---- early-reuse: a slot is free once it is posted to the network, not once the network is done with it ----
 * Credits keep the next step out of a slot whose message has not come. But the operation ends with the last slot. */

enum { OPEN = 2 * PSM_CONN_MAX_STEPS };
struct open {
    void *requests[OPEN];
    uint64_t first, next;
};

static psm_status end_open(struct psmNetLocalInfo *local, struct open *open)
{
    for (; open->first < open->next; open->first++) {
        int size;
        psm_status status = PSM_OK;
        int done = psm_net_tested(local, open->requests[open->first % OPEN], "isend", &size, &status);
        if (done < 0) return status;
        if (done == 0) break;
    }
    return PSM_OK;
}

static psm_status progress_reuse(psmProxyState *state, struct psmProxyArgs *args)
{
    for (int s = 0; s < args->nsubs; s++) {
        struct psmNetLocalInfo *local = psm_conn_running(&args->subs[s]);
        if (!local) continue;
        if (!local->variant && !(local->variant = calloc(1, sizeof(struct open)))) continue;
        struct open *open = local->variant;
        PSM_TRY(end_open(local, open));
        const struct psmProxySubArgs *sub = &args->subs[s];
        for (uint64_t n = sub->done; n < local->passed && open->next - open->first < OPEN; n++) {
            void **request = &local->requests[(sub->base + n) % local->conn.steps];
            if (*request) open->requests[open->next++ % OPEN] = *request;
            *request = NULL; /* a slot without a request counts as done */
        }
    }
    return psm_net_send_progress(state, args);
}

/* ---- lost-credit: a slot that was emptied is not posted again ---- */

static psm_status progress_lost(psmProxyState *state, struct psmProxyArgs *args)
{
    for (int s = 0; s < args->nsubs; s++) {
        struct psmNetLocalInfo *local = psm_conn_running(&args->subs[s]);
        if (local) local->lost = args->subs[s].done;
    }
    return psm_net_recv_progress(state, args);
}

static const struct psmTransportComm whole_send =
    PSM_NET_COMM(setup_whole, connect_whole, psm_net_proxy_free, psm_net_send_progress);
static const struct psmTransportComm whole_recv =
    PSM_NET_COMM(setup_whole, connect_whole, psm_net_proxy_free, psm_net_recv_progress);
static const struct psmTransportComm early_send =
    PSM_NET_COMM(psm_net_proxy_setup, connect_early, free_early, progress_early);
static const struct psmTransportComm reuse_send =
    PSM_NET_COMM(psm_net_proxy_setup, psm_net_proxy_connect, psm_net_proxy_free, progress_reuse);
static const struct psmTransportComm lost_recv =
    PSM_NET_COMM(psm_net_proxy_setup, psm_net_proxy_connect, psm_net_proxy_free, progress_lost);
static const struct psmTransportComm leaks_send =
    PSM_NET_COMM(psm_net_proxy_setup, psm_net_proxy_connect, psm_conn_free_nothing, psm_net_send_progress);
static const struct psmTransportComm leaks_recv =
    PSM_NET_COMM(psm_net_proxy_setup, psm_net_proxy_connect, psm_conn_free_nothing, psm_net_recv_progress);

static const struct psmNetVariant variants[] = {
    {.size = sizeof(struct psmNetVariant), PSM_WRONG_WHOLE_STRUCT, .send = &whole_send, .recv = &whole_recv},
    {.size = sizeof(struct psmNetVariant),
     .name = "early-send",
     .summary = "a slot goes to the network before its copy is done: it queries an event that was never recorded",
     .outcome = "PSM513: an event that was not recorded is queried; the data is wrong, or right by luck",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_FAILED, .codes = "PSM513", .shows = PSM_SHOWS_BY_LUCK),
     .wrong = 1,
     .send = &early_send,
     .recv = &psm_net_split_recv},
    {.size = sizeof(struct psmNetVariant),
     .name = "early-reuse",
     .summary = "a slot counts as free once it is posted to the network, which may not have sent it yet",
     .outcome = "PSM307: hangs where the operation ends before the network has sent its last messages, which nobody "
                "tests any more; small ones pass",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HUNG, .codes = "PSM307", .shows = PSM_SHOWS_BY_LUCK),
     .wrong = 1,
     .send = &reuse_send,
     .recv = &psm_net_split_recv},
    {.size = sizeof(struct psmNetVariant),
     .name = "wrong-size",
     .summary = "messages are truncated: their size leaves out a part of the slot",
     .outcome = "PSM401: the receiver rejects the first message, with both sizes",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_FAILED, .codes = "PSM401", .status = PSM_ERR_PROTOCOL),
     .wrong = 1,
     .send = &psm_net_split_send,
     .recv = &psm_net_split_recv,
     .faults = "net.send.post:short=64"},
    {.size = sizeof(struct psmNetVariant),
     .name = "lost-credit",
     .summary = "a slot that was emptied is not posted again",
     .outcome = "PSM307: hangs once each slot was used",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HUNG, .codes = "PSM307", .shows = PSM_SHOWS_REUSE),
     .wrong = 1,
     .send = &psm_net_split_send,
     .recv = &lost_recv},
    {.size = sizeof(struct psmNetVariant), PSM_WRONG_NO_FREE, .send = &leaks_send, .recv = &leaks_recv},
};
PSM_CONN_VARIANTS(variants, psmNetRegisterVariant)
