/* How the service carries out a request: connections, and the transport's handlers. */
#include <string.h>

#include "proxy/service.h"
#include "psm_lib_messages.h"

enum { PSM_MAX_CHANNELS = 64 /* NCCL's MAXCHANNELS */ };

#define SITES(X)                                                                                                       \
    X(init, "init", "the service answers Init")                                                                        \
    X(sharedinit, "sharedinit", "the service answers SharedInit")                                                      \
    X(setup, "setup", "the service answers Setup: its handler runs")                                                   \
    X(connect, "connect", "the service answers Connect: its handler runs")                                             \
    X(register_, "register", "the service answers Register: its handler runs")                                         \
    X(deregister, "deregister", "the service answers Deregister: its handler runs")
#define SITE(variable, name, text)                                                                                     \
    PSM_FAULT_SITE_OF(site_##variable, "proxy." name, text,                                                            \
                      PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_CORRUPT));
SITES(SITE)
PSM_FAULT_SITE_OF(site_close, "proxy.close", "the service frees a connection",
                  PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP)); /* no payload to corrupt */
PSM_FAULT_SITE_OF(site_keep, "proxy.keep", "the service keeps a connection that is connected",
                  PSM_FAULT_CAN_GENERIC | PSM_FAULT_CAN(PSM_FAULT_CLOSE));

static struct psm_site *site_of(int type)
{
    switch (type) {
    case psmProxyMsgInit:
        return &site_init;
    case psmProxyMsgSharedInit:
        return &site_sharedinit;
    case psmProxyMsgSetup:
        return &site_setup;
    case psmProxyMsgConnect:
        return &site_connect;
    case psmProxyMsgRegister:
        return &site_register_;
    case psmProxyMsgDeregister:
        return &site_deregister;
    default:
        return &site_close;
    }
}

/* The connection is freed, whatever its transport returns. */
static psm_status free_now(struct psm_service *service, struct psm_connection *c)
{
    psm_status status = PSM_OK;
    if (psm_last_error()->status != PSM_OK) psm_fail_again(&psm_no_error);
    if (c->pub.tcomm && c->pub.tcomm->proxyFree && c->pub.connState > 0)
        status = c->pub.tcomm->proxyFree(&c->pub, service->state);
    if (status < 0 && psm_last_error()->status != status)
        psm_fail(status, "close", service->state->rank, c->pub.rank, 0, "proxyFree of transport %d returned %s",
                 c->pub.transport, psm_status_name(status));
    if (status < 0) psm_msg_libpsm_proxy_free_failed(c->pub.id, c->pub.rank, psm_last_error()->text);
    psm_msg_libpsm_proxy_freed(c->pub.id, c->pub.rank);
    psm_connection_release(service->state, c);
    return status < 0 ? status : PSM_OK;
}

void psm_service_free_connection(struct psm_service *service, struct psm_connection *c)
{
    if (!atomic_load(&c->running)) {
        free_now(service, c);
        return;
    }
    c->next_freed = service->freed;
    service->freed = c;
}

void psm_service_free_later(struct psm_service *service)
{
    struct psm_connection *list = service->freed;
    service->freed = NULL;
    while (list) {
        struct psm_connection *next = list->next_freed;
        psm_service_free_connection(service, list);
        list = next;
    }
}

static psm_status do_init(struct psm_service *service, struct psm_request *r)
{
    psmProxyState *state = service->state;
    struct psm_wire_init req;
    int rank = state->rank, peer = r->peer->rank;
    if (r->req_size != sizeof req || r->resp_size != sizeof(struct psm_wire_inited))
        return psm_fail(PSM_ERR_PROTOCOL, "init", rank, peer, r->op_id,
                        "Init: bad sizes of request and answer, %u and %u bytes, expected %zu and %zu", r->req_size,
                        r->resp_size, sizeof req, sizeof(struct psm_wire_inited));
    memcpy(&req, r->req, sizeof req);
    if (req.transport < 0 || req.transport >= PSM_TRANSPORTS || req.send < 0 || req.send > 1)
        return psm_fail(PSM_ERR_PROTOCOL, "init", rank, peer, r->op_id,
                        "Init: bad transport %d or send %d, expected 0 to %d and 0 or 1", req.transport, req.send,
                        PSM_TRANSPORTS - 1);
    const struct psmTransportComm *tcomm = state->transports[req.transport][req.send];
    if (!tcomm)
        return psm_fail(PSM_ERR_UNSUPPORTED, "init", rank, peer, r->op_id,
                        "the proxy of rank %d has no transport %d for %s", rank, req.transport,
                        req.send ? "send" : "recv");
    struct psm_connection *c = psm_connection_new(state, r->peer->id);
    if (!c) return psm_fail(PSM_ERR_NO_MEMORY, "init", rank, peer, r->op_id, "no memory for another connection");
    c->pub.transport = req.transport;
    c->pub.send = req.send;
    c->pub.rank = peer;
    c->pub.sameProcess = r->direct != NULL;
    c->pub.tcomm = tcomm;
    c->pub.connState = 1;
    struct psm_wire_inited resp = {c->pub.id};
    memcpy(r->resp, &resp, sizeof resp);
    psm_msg_proxy_conn_new(req.send ? "send" : "recv", (uint32_t)c->pub.id, peer, req.transport);
    return PSM_OK;
}

static psm_status do_close(struct psm_service *service, struct psm_request *r, struct psm_connection *c)
{
    if (!r->closing) {
        psm_connection_begin_free_one(service->state, c);
        r->closing = c;
    }
    if (atomic_load(&r->closing->running)) return PSM_IN_PROGRESS;
    r->closing = NULL;
    psm_status status = free_now(service, c);
    return status < 0 ? psm_fail_at("close", service->state->rank, r->peer->rank, r->op_id) : PSM_OK;
}

static psm_status handle(psmProxyState *state, struct psm_connection *c, struct psm_request *r, int *done)
{
    const struct psmTransportComm *t = c->pub.tcomm;
    psmProxyConnection *pub = &c->pub;
    int req_size = (int)r->req_size, resp_size = (int)r->resp_size;
    uint64_t req = (uint64_t)(uintptr_t)r->req;
    switch (r->type) {
    case psmProxyMsgSharedInit: {
        int channels = 0;
        if (r->req_size != sizeof channels)
            return psm_fail(PSM_ERR_PROTOCOL, "sharedinit", -1, -1, 0,
                            "SharedInit: bad request of %u bytes, expected %zu", r->req_size, sizeof channels);
        memcpy(&channels, r->req, sizeof channels);
        if (channels < 1 || channels > PSM_MAX_CHANNELS)
            return psm_fail(PSM_ERR_PROTOCOL, "sharedinit", -1, -1, 0,
                            "SharedInit: bad number of channels %d, expected 1 to %d", channels, PSM_MAX_CHANNELS);
        psm_msg_proxy_trace_step_3(r->op_id, req, channels);
        return t->proxySharedInit ? t->proxySharedInit(pub, state, channels) : PSM_OK;
    }
    case psmProxyMsgSetup:
        psm_msg_proxy_trace_step(r->op_id);
        if (!t->proxySetup) break;
        return t->proxySetup(pub, state, r->req, req_size, r->resp, resp_size, done);
    case psmProxyMsgConnect:
        psm_msg_proxy_trace_step_2(r->op_id, req);
        if (!t->proxyConnect) break;
        return t->proxyConnect(pub, state, r->req, req_size, r->resp, resp_size, done);
    case psmProxyMsgRegister:
        psm_msg_proxy_trace_step_5(r->op_id, req, req_size, resp_size);
        if (!t->proxyRegister) break;
        return t->proxyRegister(pub, state, r->req, req_size, r->resp, resp_size, done);
    case psmProxyMsgDeregister:
        psm_msg_proxy_trace_step_6(r->op_id, req, req_size, resp_size);
        if (!t->proxyDeregister) break;
        return t->proxyDeregister(pub, state, r->req, req_size, done);
    default:
        return psm_fail(PSM_ERR_PROTOCOL, "call", -1, -1, 0, "unknown message type %d", r->type);
    }
    return psm_fail(PSM_ERR_UNSUPPORTED, psm_proxy_stage(r->type), -1, -1, 0, "transport %d has no handler for %s",
                    pub->transport, psm_proxy_type_name(r->type));
}

static psm_status do_it(struct psm_service *service, struct psm_request *r)
{
    psmProxyState *state = service->state;
    const char *stage = psm_proxy_stage(r->type);
    int peer = r->peer->rank, done = 1;
    if (!r->struck) {
        r->struck = true;
        struct psm_fault_args here = psm_fault_here(state, peer, r->type);
        if (!r->req_size) here.cannot = PSM_FAULT_CAN(PSM_FAULT_CORRUPT);
        PSM_TRY(psm_fault_before(site_of(r->type), &here, stage, &r->fault));
        if (r->fault.action == PSM_FAULT_CORRUPT && r->req_size) r->req[0] ^= 0xff;
    }
    if (r->type == psmProxyMsgInit) return do_init(service, r);
    if (r->closing) return do_close(service, r, r->closing);
    struct psm_connection *c = psm_connection_find(state, r->connection);
    if (!c || c->owner != r->peer->id)
        return psm_fail(
            PSM_ERR_NOT_FOUND, stage, state->rank, peer, r->op_id,
            "%s for connection %#llx, which does not exist for rank %d at the proxy of rank %d: it was freed",
            psm_proxy_type_name(r->type), (unsigned long long)r->connection, peer, state->rank);
    if (r->type == psmProxyMsgClose) return do_close(service, r, c);
    /* Drop older errors, so that they do not appear as the handler's reason. */
    if (psm_last_error()->status != PSM_OK) psm_fail_again(&psm_no_error);
    psm_status status = handle(state, c, r, &done);
    if (status < 0) {
        if (psm_last_error()->status != status)
            psm_fail(status, stage, state->rank, peer, r->op_id, "the handler of %s for transport %d returned %s",
                     psm_proxy_type_name(r->type), c->pub.transport, psm_status_name(status));
        return psm_fail_at(stage, state->rank, peer, r->op_id);
    }
    if (status == PSM_IN_PROGRESS || !done) {
        uint64_t now = psm_clock_ns();
        if (r->begun == 0) r->begun = now;
        if (now - r->begun < state->settings.timeout_ms * UINT64_C(2000000)) return PSM_IN_PROGRESS;
        /* The caller has given up long ago. */
        return psm_fail(PSM_ERR_TIMEOUT, stage, state->rank, peer, r->op_id,
                        "the handler of %s for transport %d did not finish in %u ms", psm_proxy_type_name(r->type),
                        c->pub.transport, 2 * state->settings.timeout_ms);
    }
    static const int after[] = {[psmProxyMsgSharedInit] = 2, [psmProxyMsgSetup] = 3, [psmProxyMsgConnect] = 4};
    if (r->type <= psmProxyMsgConnect) c->pub.connState = after[r->type];
    if (r->type == psmProxyMsgConnect) {
        atomic_store(&c->connected, true);
        struct psm_fault fault;
        struct psm_fault_args here = psm_fault_here(state, peer, r->type);
        PSM_TRY(psm_fault_before(&site_keep, &here, stage, &fault));
        if (fault.action == PSM_FAULT_CLOSE) { /* as if nobody used it any more */
            psm_connection_begin_free_one(state, c);
            psm_service_free_connection(service, c);
        }
    }
    return PSM_OK;
}

psm_status psm_request_do(struct psm_service *service, struct psm_request *r)
{
    psm_status status = do_it(service, r);
    if (status != PSM_IN_PROGRESS) psm_fault_act_after(&r->fault);
    return status;
}
