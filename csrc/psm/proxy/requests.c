/* Requests from arrival to answer: unfinished ones are retried, answers that do not fit into a socket are kept. Runs on
 * the service thread. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libc.h"
#include "proxy/service.h"
#include "psm_lib_messages.h"

#define RETRY_LAST_NS UINT64_C(5000000)

PSM_FAULT_SITE_OF(response_site, "proxy.response", "the service sends an answer; op is its type",
                  PSM_FAULT_CAN_GENERIC | PSM_FAULT_CAN_MESSAGE);

/* ---- answers ---- */

static void request_free(struct psm_request *r)
{
    r->peer->waiting--;
    free(r);
}

void psm_service_send(struct psm_service *service, struct psm_peer *peer, const uint8_t *bytes, size_t size)
{
    int number = 0;
    psm_status status = peer->unsent ? PSM_IN_PROGRESS : psm_socket_send(peer->fd, bytes, size, &number);
    if (status == PSM_OK) return;
    struct psm_unsent *kept = status < 0 ? NULL : malloc(sizeof *kept + size);
    if (!kept) {
        psm_peer_lost(service, peer, status < 0 ? psm_errno_text(number) : "no memory for its answers");
        return;
    }
    kept->next = NULL;
    kept->size = size;
    memcpy(kept->bytes, bytes, size);
    *peer->unsent_end = kept;
    peer->unsent_end = &kept->next;
    peer->unsent_count++;
}

void psm_service_send_kept(struct psm_service *service, struct psm_peer *peer)
{
    int number = 0;
    while (peer->unsent) {
        struct psm_unsent *first = peer->unsent;
        psm_status status = psm_socket_send(peer->fd, first->bytes, first->size, &number);
        if (status == PSM_IN_PROGRESS) return;
        if (status < 0) {
            psm_peer_lost(service, peer, psm_errno_text(number));
            return;
        }
        peer->unsent = first->next;
        if (!peer->unsent) peer->unsent_end = &peer->unsent;
        peer->unsent_count--;
        free(first);
    }
}

/* After the message that has just been sent, or when it is due. */
void psm_service_send_held(struct psm_service *service, struct psm_peer *peer)
{
    if (peer->held) psm_service_send(service, peer, peer->held->bytes, peer->held->size);
    psm_held_drop(&peer->held);
}

static void send_answer(struct psm_service *service, struct psm_peer *peer, const uint8_t *bytes, size_t size,
                        enum psm_fault_action fault)
{
    if (fault == PSM_FAULT_REORDER && psm_held_keep(&peer->held, NULL, bytes, size, -1)) return;
    psm_service_send(service, peer, bytes, size);
    if (fault == PSM_FAULT_DUPLICATE && !peer->gone) psm_service_send(service, peer, bytes, size);
    if (!peer->gone) psm_service_send_held(service, peer);
}

/* Removes and frees the request. */
static void respond(struct psm_service *service, struct psm_request *r, psm_status status)
{
    psmProxyState *state = service->state;
    struct psm_peer *peer = r->peer;
    struct psm_error error;
    char local[200];
    if (status == PSM_OK && !r->direct && psm_wire_audited() &&
        psmLocalValue(r->resp, r->resp_size, local, sizeof local) >= 0)
        status = psm_fail(PSM_ERR_PROTOCOL, psm_proxy_stage(r->type), state->rank, peer->rank, r->op_id,
                          "the answer to %s goes to another process with a value that means nothing there: %s",
                          psm_proxy_type_name(r->type), local);
    if (status < 0) error = *psm_last_error();
    struct psm_fault fault = {.action = PSM_FAULT_NONE};
    struct psm_fault_args here = psm_fault_here(state, peer->rank, r->type);
    if (r->direct) /* within a process the answer is not a message */
        here.cannot = PSM_FAULT_CAN(PSM_FAULT_DUPLICATE) | PSM_FAULT_CAN(PSM_FAULT_REORDER);
    if (!r->resp_size) here.cannot |= PSM_FAULT_CAN(PSM_FAULT_CORRUPT);
    psm_msg_proxy_call_done(r->op_id, r->type, (int64_t)(uintptr_t)r->req, r->resp_size);
    if (status < 0)
        psm_msg_libpsm_proxy_failed(psm_proxy_type_name(r->type), peer->rank, r->op_id, psm_status_name(status),
                                    psm_cause_name(psm_error_cause(&error)), psm_error_names(&error), error.text);
    PSM_COUNT(state, served);
    if (r->fault.action == PSM_FAULT_DROP || psm_fault_before(&response_site, &here, "response", &fault) < 0)
        fault.action = PSM_FAULT_DROP;
    if (fault.action == PSM_FAULT_CORRUPT && r->resp_size) r->resp[0] ^= 0xff;
    if (fault.action == PSM_FAULT_DROP) {
        if (r->direct) psm_direct_call_drop(r->direct);
    } else if (r->direct) {
        if (status < 0) r->direct->error = error;
        psm_direct_call_done(r->direct);
    } else {
        _Alignas(8) uint8_t bytes[PSM_WIRE_MAX];
        /* a failed call has no payload */
        size_t size = psm_wire_encode_response(bytes, r->op_id, status < 0 ? &error : NULL, r->resp,
                                               status < 0 ? 0 : r->resp_size);
        send_answer(service, peer, bytes, size, fault.action); /* before anything that it need not wait for */
    }
    request_free(r);
    psm_fault_act_after(&fault);
}

/* ---- requests ---- */

void psm_service_begin(struct psm_service *service, struct psm_request *r)
{
    psmProxyState *state = service->state;
    int type = r->type;
    r->peer->waiting++;
    psm_status status = psm_request_do(service, r);
    if (status == PSM_IN_PROGRESS) {
        r->next = NULL;
        *service->pending_end = r;
        service->pending_end = &r->next;
        service->retry_ns = PSM_RETRY_FIRST_NS;
        service->next_retry = psm_clock_ns() + PSM_RETRY_FIRST_NS;
        PSM_COUNT(state, retried);
    } else {
        respond(service, r, status);
    }
    /* NCCL's numbers: 0 success, also for an unfinished request; 3 internal error */
    psm_msg_proxy_call_begun(psm_proxy_type_name(type), status < 0 ? 3 : 0);
}

bool psm_service_retry(struct psm_service *service)
{
    bool moved = false;
    struct psm_request *list = service->pending;
    service->pending = NULL;
    service->pending_end = &service->pending;
    while (list) {
        struct psm_request *r = list;
        list = r->next;
        r->next = NULL;
        psm_status status = r->peer->gone ? PSM_ERR_PEER_CLOSED : psm_request_do(service, r);
        if (status == PSM_IN_PROGRESS || r->peer->gone) {
            /* the code that drops a peer removes the peer's requests */
            *service->pending_end = r;
            service->pending_end = &r->next;
            PSM_COUNT(service->state, retried);
        } else {
            respond(service, r, status);
            moved = true;
        }
    }
    service->retry_ns = moved ? PSM_RETRY_FIRST_NS : service->retry_ns * 2;
    if (service->retry_ns > RETRY_LAST_NS) service->retry_ns = RETRY_LAST_NS;
    service->next_retry = psm_clock_ns() + service->retry_ns;
    return moved;
}

/* Requests of a peer that nobody can answer any more. */
void psm_service_sweep(struct psm_service *service, const struct psm_peer *peer)
{
    struct psm_request **at = &service->pending;
    while (*at) {
        struct psm_request *r = *at;
        if (peer && r->peer != peer) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        if (r->closing) psm_service_free_connection(service, r->closing);
        if (r->direct) {
            r->direct->error = (struct psm_error){.status = PSM_ERR_PEER_CLOSED, .rank = -1, .peer = -1};
            strcpy(r->direct->error.stage, psm_proxy_stage(r->type));
            strcpy(r->direct->error.text, "the proxy in this process was stopped");
            psm_direct_call_done(r->direct);
        }
        request_free(r);
    }
    service->pending_end = at;
}
