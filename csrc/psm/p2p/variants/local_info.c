/* Variants whose answer to Setup carries local info: the handles of the stream and the events of a process, which mean
 * nothing, or something else, in another. The answer is as large as the right one: they travel where a share that is
 * fetched by its id has room left. */
#include <stddef.h>
#include <string.h>

#include "p2p/variants/p2p_variants.h"

enum { ROOM = sizeof(((struct psm_share *)0)->blob), STREAM = offsetof(struct psmP2pLocalInfo, conn.stream) };
enum { EVENTS = offsetof(struct psmP2pLocalInfo, conn.events) };
_Static_assert(STREAM == 0 && EVENTS == sizeof(cudaStream_t), "the local info begins with what is copied");

static psm_status setup(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize, void *resp,
                        int respSize, int *done, bool make_stream, size_t from)
{
    PSM_TRY(psm_p2p_proxy_setup(connection, state, req, reqSize, resp, respSize, done));
    if (!*done) return PSM_OK;
    struct psmP2pLocalInfo *local = connection->transportResources;
    struct psmP2pShareInfo *info = resp;
    int kind = info->share.kind;
    if (kind == PSM_SHARE_POSIX || kind == PSM_SHARE_CUDA_IPC)
        return psm_fail(PSM_ERR_UNSUPPORTED, "setup", local->conn.rank, local->conn.peer, 0,
                        "a variant that puts its local info into the answer has room for it in shares that are fetched "
                        "by id: set PSM_SHARE to cumem or memfd");
    if (make_stream) PSM_TRY(psm_conn_make_stream(&local->conn));
    memcpy(info->share.blob, (const char *)local + from, ROOM);
    return PSM_OK;
}

/* What the peer's answer carried, over the own. */
static void write_back(psmProxyConnection *connection, const void *req, int reqSize, size_t to, size_t bytes)
{
    struct psmP2pLocalInfo *local = connection->transportResources;
    struct psm_p2p_attach want;
    if (!local || reqSize != (int)sizeof want) return; /* which the right handler refuses */
    memcpy(&want, req, sizeof want);
    memcpy((char *)local + to, want.peer.share.blob, bytes);
}

#define SETUP(name, make_stream, from)                                                                                 \
    static psm_status name(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,         \
                           void *resp, int respSize, int *done)                                                        \
    {                                                                                                                  \
        return setup(connection, state, req, reqSize, resp, respSize, done, make_stream, from);                        \
    }
SETUP(setup_whole, true, STREAM)
SETUP(setup_early, false, STREAM)
SETUP(setup_events, true, EVENTS)

/* The sender had its stream at Setup: its handle is there before Connect looks whether it has to make one. */
static psm_status connect_whole(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                void *resp, int respSize, int *done)
{
    write_back(connection, req, reqSize, STREAM, ROOM);
    return psm_p2p_proxy_connect(connection, state, req, reqSize, resp, respSize, done);
}

/* It had none: this end makes a stream, and gets the 0 written over it. The events come after that. */
static psm_status connect_zero(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                               void *resp, int respSize, int *done)
{
    PSM_TRY(psm_p2p_proxy_connect(connection, state, req, reqSize, resp, respSize, done));
    if (*done) write_back(connection, req, reqSize, STREAM, sizeof(cudaStream_t));
    return PSM_OK;
}

static psm_status connect_events(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                 void *resp, int respSize, int *done)
{
    write_back(connection, req, reqSize, EVENTS, ROOM);
    return psm_p2p_proxy_connect(connection, state, req, reqSize, resp, respSize, done);
}

/* "if (stream == 0) create one", where the copies are queued: it cannot tell a foreign handle from its own. */
static psm_status guarded(struct psmProxyArgs *args)
{
    for (int s = 0; s < args->nsubs; s++) {
        struct psmP2pLocalInfo *local = args->subs[s].connection->transportResources;
        if (local && local->conn.connected && !local->conn.stream) PSM_TRY(psm_conn_make_stream(&local->conn));
    }
    return PSM_OK;
}
static psm_status guarded_send(psmProxyState *state, struct psmProxyArgs *args)
{
    PSM_TRY(guarded(args));
    return psm_p2p_send_progress(state, args);
}
static psm_status guarded_recv(psmProxyState *state, struct psmProxyArgs *args)
{
    PSM_TRY(guarded(args));
    return psm_p2p_recv_progress(state, args);
}

PSM_COMMS(whole, setup_whole, connect_whole, psm_p2p_proxy_free);
PSM_COMMS(zero, setup_early, connect_zero, psm_p2p_proxy_free);
PSM_COMMS(clobber, setup_events, connect_events, psm_p2p_proxy_free);
PSM_COMMS(shallow, setup_whole, psm_p2p_proxy_connect, psm_p2p_proxy_free);
static const struct psmTransportComm lazy_send =
    PSM_P2P_COMM(setup_whole, connect_whole, psm_p2p_proxy_free, guarded_send);
static const struct psmTransportComm lazy_recv =
    PSM_P2P_COMM(setup_whole, connect_whole, psm_p2p_proxy_free, guarded_recv);

static const struct psmP2pVariant variants[] = {
    {.size = sizeof(struct psmP2pVariant), PSM_WRONG_WHOLE_STRUCT, .send = &whole_send, .recv = &whole_recv},
    {.size = sizeof(struct psmP2pVariant),
     .name = "whole-struct-zero",
     .summary = "the same, with the answer made before the stream: the peer's handle is overwritten with 0",
     .outcome = "PSM307: hangs where the application's stream is legacy or blocking; else passes and leaks a stream",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HUNG, .codes = "PSM307", .shows = PSM_SHOWS_SYNC_STREAM,
                              .leaves = PSM_LEAVES_STREAM),
     .wrong = 1,
     .send = &zero_send,
     .recv = &zero_recv},
    {.size = sizeof(struct psmP2pVariant),
     .name = "clobber-events",
     .summary = "Setup's answer carries the events, and the peer writes them over its own",
     .outcome = "PSM507: the first record of an event fails with an invalid resource handle; own handles are leaked",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_FAILED, .codes = "PSM507", .leaves = PSM_LEAVES_EVENTS,
                              .status = PSM_ERR_CUDA),
     .wrong = 1,
     .send = &clobber_send,
     .recv = &clobber_recv},
    {.size = sizeof(struct psmP2pVariant),
     .name = "lazy-stream-guard",
     .summary = "whole-struct, but progress makes a stream when there is none",
     .outcome = "PSM507: a handle that is not 0 passes the guard; fails as whole-struct does",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_FAILED, .codes = "PSM507",
                              .leaves = PSM_LEAVES_STREAM | PSM_LEAVES_EVENTS, .status = PSM_ERR_CUDA),
     .wrong = 1,
     .send = &lazy_send,
     .recv = &lazy_recv},
    {.size = sizeof(struct psmP2pVariant),
     .name = "shallow",
     .summary = "Setup's answer carries the local info, but the peer reads only the share",
     .outcome = "passes: nobody uses the handles that the answer carried",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HEALTHY, .codes = ""),
     .wrong = 1,
     .send = &shallow_send,
     .recv = &shallow_recv},
};
PSM_VARIANTS(variants)
