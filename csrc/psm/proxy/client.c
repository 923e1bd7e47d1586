/* The calling side: connect to a proxy, send requests, wait for answers. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proxy/client.h"
#include "psm_lib_messages.h"

/* Interval at which flags without a wake-up, such as the caller's abort flag, are polled. */
#define SLICE_NS UINT64_C(100000000)

PSM_FAULT_SITE_OF(request_site, "proxy.request", "a request is sent to a proxy; op is its type",
                  PSM_FAULT_CAN_CALL | PSM_FAULT_CAN_MESSAGE | PSM_FAULT_CAN(PSM_FAULT_SHORT));

psm_status psm_client_aborted(psmProxyState *state, int type, int peer, psmOpId id)
{
    pthread_mutex_lock(&state->lock);
    struct psm_error error = state->async_error;
    pthread_mutex_unlock(&state->lock);
    psm_status status =
        psm_fail(PSM_ERR_ABORTED, psm_proxy_stage(type), state->rank, peer, id, "%s to the proxy of rank %d: %s%.200s",
                 psm_proxy_type_name(type), peer, error.status < 0 ? "" : "the operation was aborted",
                 error.status < 0 ? error.text : "");
    return psm_because(status, psm_error_cause(&error), psm_error_names(&error));
}

psm_status psm_client_timed_out(psmProxyState *state, int type, const struct psm_client *client, psmOpId id,
                                const char *what)
{
    return psm_fail(PSM_ERR_TIMEOUT, psm_proxy_stage(type), state->rank, client->rank, id,
                    "rank %d %s %s to the proxy of rank %d (process %u) in %u ms: check what that process is doing, or "
                    "raise PSM_TIMEOUT",
                    state->rank, what, psm_proxy_type_name(type), client->rank, client->address.pid,
                    state->settings.timeout_ms);
}

static void end_client(psmProxyState *state, struct psm_client *client, const struct psm_error *error)
{
    pthread_mutex_lock(&client->lock);
    bool first = !atomic_load(&client->gone);
    if (first) {
        client->end = *error;
        atomic_store(&client->gone, 1);
    }
    pthread_cond_broadcast(&client->moved);
    pthread_mutex_unlock(&client->lock);
    if (!first) return;
    psm_calls_fail(state, client->rank, error);
    psm_state_lost(state, client->rank);
}

/* The reason in a bye, or that none arrived. */
static void ended_by(psmProxyState *state, struct psm_client *client, const struct psm_wire_bye *bye, int number)
{
    struct psm_error error = {.rank = state->rank, .peer = client->rank, .sys_errno = number};
    strcpy(error.stage, "call");
    if (bye && bye->status < 0) {
        error.status = bye->refused ? (psm_status)bye->status : PSM_ERR_ABORTED;
        snprintf(error.text, sizeof error.text, "the proxy of rank %d %s: %.200s", client->rank,
                 bye->refused ? "refused this rank" : "ended the operation", bye->text);
        error.detail = psm_error_detail(bye->refused ? psm_refusal(error.status) : PSM_CAUSE_PEER_FAILED, client->rank);
    } else if (bye) {
        error.status = PSM_ERR_PEER_CLOSED;
        error.detail = psm_detail_of(error.status, client->rank);
        snprintf(error.text, sizeof error.text, "the proxy of rank %d (process %u) has stopped: it was closed there",
                 client->rank, client->address.pid);
    } else {
        error.status = PSM_ERR_PEER_DEAD;
        error.detail = psm_detail_of(error.status, client->rank);
        snprintf(error.text, sizeof error.text,
                 "the proxy of rank %d (process %u) closed the socket without a bye: the process has died; look at the "
                 "end of its log",
                 client->rank, client->address.pid);
    }
    end_client(state, client, &error);
    if (bye && bye->status < 0 && !bye->refused) psm_state_abort(state, &error);
}

static psm_status read_one(psmProxyState *state, struct psm_client *client, psmOpId expected)
{
    _Alignas(8) uint8_t bytes[PSM_WIRE_MAX];
    char text[PSM_WIRE_TEXT];
    struct psm_wire_message m;
    size_t size = 0;
    int number = 0;
    psm_status status = psm_socket_recv(atomic_load(&client->fd), bytes, sizeof bytes, &size, &number);
    if (status == PSM_IN_PROGRESS) return status;
    if (status < 0) {
        ended_by(state, client, NULL, number);
        return status;
    }
    status = psm_wire_decode(bytes, size > sizeof bytes ? sizeof bytes : size,
                             1u << PSM_WIRE_RESPONSE | 1u << PSM_WIRE_BYE, &m, text);
    if (status < 0) {
        struct psm_error error = {.status = status, .rank = state->rank, .peer = client->rank, .stage = "call"};
        snprintf(error.text, sizeof error.text, "%.220s (from the proxy of rank %d)", text, client->rank);
        psm_msg_libpsm_proxy_refused(client->address.pid, text);
        PSM_COUNT(state, refused);
        psm_socket_bye(atomic_load(&client->fd), status, true, error.text);
        end_client(state, client, &error);
        return status;
    }
    if (m.kind == PSM_WIRE_BYE) {
        ended_by(state, client, &m.bye, 0);
        return PSM_ERR_PEER_CLOSED;
    }
    psm_calls_store(state, client->rank, &m, expected);
    return PSM_OK;
}

static bool begin_reading(struct psm_client *client)
{
    pthread_mutex_lock(&client->lock);
    bool mine = !client->reading && !atomic_load(&client->gone);
    if (mine) client->reading = true;
    pthread_mutex_unlock(&client->lock);
    return mine;
}

static void end_reading(struct psm_client *client)
{
    pthread_mutex_lock(&client->lock);
    client->reading = false;
    if (client->waiters) pthread_cond_broadcast(&client->moved);
    pthread_mutex_unlock(&client->lock);
}

/* Reads one message, unless another thread is reading. PSM_IN_PROGRESS: none has arrived, or another thread is reading.
 */
static psm_status read_client(psmProxyState *state, struct psm_client *client, psmOpId expected)
{
    if (!begin_reading(client)) return PSM_IN_PROGRESS;
    psm_status status = read_one(state, client, expected);
    end_reading(client);
    return status;
}

void psm_client_hung_up(psmProxyState *state, struct psm_client *client)
{
    while (read_client(state, client, 0) == PSM_OK) {
    }
}

/* Sleep until the socket is ready for `events`, or is closed, or the proxy has other work. */
void psm_client_sleep(psmProxyState *state, struct psm_client *client, short events, uint64_t ns)
{
    struct pollfd fds[] = {{atomic_load(&client->fd), events, 0}, {state->abort_event, POLLIN, 0}};
    struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    ppoll(fds, 2, &time, NULL);
}

uint64_t psm_client_slice(struct psm_deadline deadline)
{
    uint64_t now = psm_clock_ns();
    if (now >= deadline.at_ns) return 0;
    return deadline.at_ns - now < SLICE_NS ? deadline.at_ns - now : SLICE_NS;
}

static psm_status gone(psmProxyState *state, struct psm_client *client, int type, psmOpId id)
{
    pthread_mutex_lock(&client->lock);
    struct psm_error error = client->end;
    pthread_mutex_unlock(&client->lock);
    error.op_id = id;
    error.rank = state->rank;
    snprintf(error.stage, sizeof error.stage, "%s", psm_proxy_stage(type));
    return psm_fail_again(&error);
}

static psm_status send_whole(psmProxyState *state, struct psm_client *client, const uint8_t *bytes, size_t size,
                             int type, psmOpId id)
{
    struct psm_deadline deadline = {0}; /* after a full socket: the clock costs a sizeable part of a call */
    for (;;) {
        int number = 0;
        pthread_mutex_lock(&client->lock);
        bool over = atomic_load(&client->gone);
        psm_status status =
            over ? PSM_ERR_PEER_CLOSED : psm_socket_send(atomic_load(&client->fd), bytes, size, &number);
        pthread_mutex_unlock(&client->lock);
        if (status == PSM_OK) return PSM_OK;
        if (psm_state_ended(state)) return psm_client_aborted(state, type, client->rank, id);
        if (status < 0) {
            /* the last message may say why */
            while (!over && read_client(state, client, id) == PSM_OK) {
            }
            if (!atomic_load(&client->gone)) ended_by(state, client, NULL, number);
            return gone(state, client, type, id);
        }
        if (deadline.at_ns == 0) deadline = psm_deadline_in(state->settings.timeout_ms);
        if (psm_deadline_passed(deadline)) return psm_client_timed_out(state, type, client, id, "could not send");
        /* Full: the service may be waiting for us to read answers. */
        bool read = false;
        while (read_client(state, client, id) == PSM_OK) read = true;
        if (!read)
            psm_client_sleep(state, client, POLLOUT | POLLIN,
                             psm_client_slice(deadline) < 1000000 ? psm_client_slice(deadline) : 1000000);
    }
}

static psm_status send_direct(psmProxyState *state, struct psm_client *client, uint64_t connection, int type,
                              const void *req, int req_size, int resp_size, psmOpId id)
{
    struct psm_direct_call *direct = psm_direct_call_make((size_t)req_size, (size_t)resp_size);
    if (!direct)
        return psm_fail(PSM_ERR_NO_MEMORY, psm_proxy_stage(type), state->rank, client->rank, id,
                        "no memory for a call of %d bytes", req_size + resp_size);
    direct->client = state->client_id;
    direct->client_rank = state->rank;
    direct->cpu = sched_getcpu();
    direct->type = type;
    direct->connection = connection;
    direct->op_id = id;
    if (req_size) memcpy(direct->data, req, (size_t)req_size);
    pthread_mutex_lock(&state->calls.lock);
    struct psm_call *call = psm_calls_find(state, id);
    if (call) call->direct = direct;
    pthread_mutex_unlock(&state->calls.lock);
    if (psm_direct_push(client->direct, direct)) return PSM_OK;
    psm_direct_call_drop(direct); /* the service owns it; the other reference belongs to the call */
    if (psm_state_ended(state)) return psm_client_aborted(state, type, client->rank, id);
    return psm_fail(PSM_ERR_PEER_CLOSED, psm_proxy_stage(type), state->rank, client->rank, id,
                    "the proxy of rank %d in this process was stopped", client->rank);
}

static psm_status call_async(psmProxyConnector *connector, int type, const void *req, int req_size, int resp_size,
                             psmOpId *id)
{
    psmProxyState *state = connector->state;
    struct psm_client *client = atomic_load(&state->clients[connector->peer]);
    if (psm_state_ended(state)) return psm_client_aborted(state, type, client->rank, 0);
    if (atomic_load(&client->gone)) return gone(state, client, type, 0);
    char local[200];
    if (!client->direct && req_size && psm_wire_audited() &&
        psmLocalValue(req, (size_t)req_size, local, sizeof local) >= 0)
        return psm_fail(PSM_ERR_PROTOCOL, psm_proxy_stage(type), state->rank, client->rank, 0,
                        "the request %s goes to another process with a value that means nothing there: %s",
                        psm_proxy_type_name(type), local);
    PSM_TRY(psm_calls_take(state, client->rank, type, (uint32_t)resp_size, id));
    struct psm_fault_args here = psm_fault_here(state, client->rank, type);
    if (client->direct) /* nothing is sent, as if the request were lost */
        here.cannot = (PSM_FAULT_CAN_MESSAGE | PSM_FAULT_CAN(PSM_FAULT_SHORT)) & ~PSM_FAULT_CAN(PSM_FAULT_DROP);
    struct psm_fault fault;
    psm_status status = psm_fault_before(&request_site, &here, psm_proxy_stage(type), &fault);
    if (status == PSM_OK && fault.action == PSM_FAULT_DROP) return PSM_OK;
    if (status == PSM_OK && client->direct) {
        status = send_direct(state, client, connector->connection, type, req, req_size, resp_size, *id);
    } else if (status == PSM_OK) {
        _Alignas(8) uint8_t bytes[PSM_WIRE_MAX];
        size_t size =
            psm_wire_encode_request(bytes, type, connector->connection, *id, req, (size_t)req_size, (size_t)resp_size);
        if (fault.action == PSM_FAULT_CORRUPT) bytes[0] ^= 0xff;
        if (fault.action == PSM_FAULT_SHORT && (size_t)fault.value < size) size = (size_t)fault.value;
        if (fault.action != PSM_FAULT_REORDER || !psm_client_hold(client, bytes, size)) {
            status = send_whole(state, client, bytes, size, type, *id);
            if (fault.action == PSM_FAULT_DUPLICATE) send_whole(state, client, bytes, size, type, *id);
            psm_client_send_held(client, true);
        }
    }
    if (status < 0) {
        psm_calls_drop(state, *id);
        return status;
    }
    psm_fault_act_after(&fault);
    return PSM_OK;
}

/* 0: no type; the answer is being fetched. */
static psm_status check_call(const psmProxyConnector *connector, int type, const void *req, int req_size, int resp_size)
{
    if (type != 0 && type != psmProxyMsgSharedInit && type != psmProxyMsgSetup && type != psmProxyMsgConnect &&
        type != psmProxyMsgRegister && type != psmProxyMsgDeregister)
        return psm_fail(PSM_ERR_INVALID, "call", -1, -1, 0,
                        "bad type of a call, %d (%s), expected SharedInit, Setup, Connect, Register or Deregister",
                        type, psm_proxy_type_name(type));
    if (!connector || !connector->state || !connector->initialized || req_size < 0 || resp_size < 0 ||
        req_size > PSM_PROXY_PAYLOAD || resp_size > PSM_PROXY_PAYLOAD || (req_size && !req))
        return psm_fail(
            PSM_ERR_INVALID, psm_proxy_stage(type), -1, -1, 0,
            "a call of type %d with %d bytes and a response of %d: expected a connected connector and 0 to %d bytes",
            type, req_size, resp_size, PSM_PROXY_PAYLOAD);
    return PSM_OK;
}

psm_status psmProxyCallAsync(psmProxyConnector *connector, int type, const void *req, int reqSize, int respSize,
                             psmOpId *opId)
{
    PSM_TRY(check_call(connector, type ? type : -1, req, reqSize, respSize));
    if (!opId) return psm_fail(PSM_ERR_INVALID, psm_proxy_stage(type), -1, -1, 0, "opId is NULL");
    return call_async(connector, type, req, reqSize, respSize, opId);
}

static psm_status poll_response(psmProxyConnector *connector, void *resp, int resp_size, psmOpId id)
{
    psmProxyState *state = connector->state;
    struct psm_client *client = atomic_load(&state->clients[connector->peer]);
    psm_status status = psm_calls_fetch(state, id, resp, (size_t)resp_size);
    if (status != PSM_IN_PROGRESS) return status;
    psm_client_send_held(client, false);
    if (!client->direct)
        while (status == PSM_IN_PROGRESS && read_client(state, client, id) == PSM_OK)
            status = psm_calls_fetch(state, id, resp, (size_t)resp_size);
    /* the reader that found the end has already failed all calls */
    if (status == PSM_IN_PROGRESS && atomic_load(&client->gone)) {
        psm_calls_fail(state, client->rank, &client->end);
        status = psm_calls_fetch(state, id, resp, (size_t)resp_size);
    }
    if (status == PSM_IN_PROGRESS && psm_state_ended(state)) {
        psm_calls_drop(state, id);
        return psm_client_aborted(state, 0, client->rank, id);
    }
    return status;
}

psm_status psmPollProxyResponse(psmProxyConnector *connector, void *resp, int respSize, psmOpId opId)
{
    PSM_TRY(check_call(connector, 0, NULL, 0, respSize));
    if (respSize && !resp) return psm_fail(PSM_ERR_INVALID, "call", -1, -1, opId, "resp is NULL");
    return poll_response(connector, resp, respSize, opId);
}

/* Read without a pause until a message arrives, or until `until`. A lock per read would cost as much as the read. */
static void spin_on(psmProxyState *state, struct psm_client *client, psmOpId id, uint64_t until)
{
    if (!begin_reading(client)) return;
    for (unsigned turn = 1; read_one(state, client, id) == PSM_IN_PROGRESS; turn++) {
        if (turn % 8) continue; /* the clock costs a third of a read */
        if (psm_clock_ns() >= until) break;
        if (turn % 64) continue;
        if (psm_state_ended(state)) break;
        sched_yield(); /* the service may need this processor */
    }
    end_reading(client);
}

/* Sleep until an answer may have arrived. */
static void sleep_for(psmProxyState *state, struct psm_client *client, psmOpId id, struct psm_deadline deadline)
{
    if (client->direct) {
        pthread_mutex_lock(&state->calls.lock);
        struct psm_call *call = psm_calls_find(state, id);
        struct psm_direct_call *direct = call ? call->direct : NULL;
        if (direct) atomic_fetch_add(&direct->refs, 1);
        pthread_mutex_unlock(&state->calls.lock);
        if (!direct) return;
        atomic_store(&direct->waiting, 1);
        if (!atomic_load(&direct->done))
            psm_futex_wait((const volatile uint32_t *)&direct->done, 0, psm_client_slice(deadline));
        psm_direct_call_drop(direct);
        return;
    }
    if (begin_reading(client)) {
        psm_client_sleep(state, client, POLLIN, psm_client_slice(deadline));
        end_reading(client);
        return;
    }
    pthread_mutex_lock(&client->lock);
    client->waiters++;
    if (client->reading && !atomic_load(&client->gone))
        psm_cond_wait(&client->moved, &client->lock, psm_client_slice(deadline));
    client->waiters--;
    pthread_mutex_unlock(&client->lock);
}

/* PSM_IN_PROGRESS: the deadline has passed. */
static psm_status wait_response(psmProxyConnector *connector, void *resp, int resp_size, psmOpId id,
                                struct psm_deadline deadline)
{
    psmProxyState *state = connector->state;
    struct psm_client *client = atomic_load(&state->clients[connector->peer]);
    uint64_t spin_until = psm_clock_ns() + psm_state_spin_ns(state);
    for (unsigned turn = 1;; turn++) {
        psm_status status = poll_response(connector, resp, resp_size, id);
        if (status != PSM_IN_PROGRESS) return status;
        uint64_t now = psm_clock_ns();
        if (now >= deadline.at_ns) return status;
        if (now < spin_until) {
            if (!client->direct) spin_on(state, client, id, spin_until);
            /* The service may need this processor. */
            if (turn % 64 == 0 || (client->direct && atomic_load(&client->direct->cpu) == sched_getcpu()))
                sched_yield();
            else if (client->direct)
                psm_relax();
            continue;
        }
        sleep_for(state, client, id, deadline);
    }
}

static psm_status call_blocking(psmProxyConnector *connector, int type, const void *req, int req_size, void *resp,
                                int resp_size)
{
    psmProxyState *state = connector->state;
    struct psm_client *client = atomic_load(&state->clients[connector->peer]);
    psmOpId id = 0;
    PSM_TRY(call_async(connector, type, req, req_size, resp_size, &id));
    struct psm_deadline deadline = psm_deadline_in(state->settings.timeout_ms);
    psm_status status = wait_response(connector, resp, resp_size, id, deadline);
    if (status == PSM_IN_PROGRESS) {
        psm_calls_drop(state, id); /* an answer that arrives from now on is late */
        psm_msg_proxy_call_failed(client->rank, psm_proxy_type_name(type));
        return psm_client_timed_out(state, type, client, id, "got no answer to");
    }
    return status < 0 ? psm_fail_at(psm_proxy_stage(type), state->rank, client->rank, id) : status;
}

psm_status psmProxyWaitResponse(psmProxyConnector *connector, void *resp, int respSize, psmOpId opId,
                                uint32_t timeoutMs)
{
    PSM_TRY(check_call(connector, 0, NULL, 0, respSize));
    if (respSize && !resp) return psm_fail(PSM_ERR_INVALID, "call", -1, -1, opId, "resp is NULL");
    return wait_response(connector, resp, respSize, opId, psm_deadline_in(timeoutMs));
}

psm_status psmProxyCancelCall(psmProxyConnector *connector, psmOpId opId)
{
    PSM_TRY(check_call(connector, 0, NULL, 0, 0));
    psmProxyState *state = connector->state;
    pthread_mutex_lock(&state->calls.lock);
    struct psm_call *call = psm_calls_find(state, opId);
    bool mine = call && call->peer == connector->peer;
    pthread_mutex_unlock(&state->calls.lock);
    if (!mine)
        return psm_fail(PSM_ERR_NOT_FOUND, "call", state->rank, connector->peer, opId,
                        "there is no call with opId %#llx to give up: it was already fetched, or has ended",
                        (unsigned long long)opId);
    psm_calls_drop(state, opId);
    return PSM_OK;
}

psm_status psmProxyCallBlocking(psmProxyConnector *connector, int type, const void *req, int reqSize, void *resp,
                                int respSize)
{
    PSM_TRY(check_call(connector, type ? type : -1, req, reqSize, respSize));
    if (respSize && !resp) return psm_fail(PSM_ERR_INVALID, psm_proxy_stage(type), -1, -1, 0, "resp is NULL");
    return call_blocking(connector, type, req, reqSize, resp, respSize);
}

/* ---- connecting ---- */

psm_status psmProxyConnect(psmProxyState *state, int transport, int send, const struct psmProxyAddress *address,
                           psmProxyConnector *connector)
{
    if (!state || !address || !connector || transport < 0 || transport >= PSM_TRANSPORTS)
        return psm_fail(
            PSM_ERR_INVALID, "init", state ? state->rank : -1, -1, 0,
            "psmProxyConnect: transport %d; expected a state, an address, a connector and a transport below %d",
            transport, PSM_TRANSPORTS);
    if (address->rank < 0 || address->rank >= state->nranks) {
        psm_msg_proxy_connect_out_of_bounds(address->rank, state->nranks);
        return psm_fail(PSM_ERR_INVALID, "init", state->rank, address->rank, 0, "bad rank %d, expected 0 to %d",
                        address->rank, state->nranks - 1);
    }
    if (psm_state_ended(state)) return psm_client_aborted(state, psmProxyMsgInit, address->rank, 0);
    psm_status status = PSM_OK;
    pthread_mutex_lock(&state->connect_lock);
    struct psm_client *client = atomic_load(&state->clients[address->rank]);
    if (!client) {
        status = psm_client_make(state, address, &client);
        if (status == PSM_OK) {
            atomic_store(&state->clients[address->rank], client);
            psm_event_set(state->direct->event); /* from now on the service watches the socket */
        }
    } else if (strncmp(client->address.service, address->service, sizeof address->service) != 0) {
        status = psm_fail(PSM_ERR_MISMATCH, "init", state->rank, address->rank, 0,
                          "the address of the proxy of rank %d changed to @%.23s from @%.23s", address->rank,
                          address->service, client->address.service);
    }
    pthread_mutex_unlock(&state->connect_lock);
    if (status < 0) return status;
    *connector = (psmProxyConnector){.state = state,
                                     .rank = address->rank,
                                     .transport = transport,
                                     .send = send != 0,
                                     .sameProcess = client->direct != NULL,
                                     .peer = address->rank};
    struct psm_wire_init req = {transport, connector->send, state->rank, connector->sameProcess};
    struct psm_wire_inited resp = {0};
    PSM_TRY(call_blocking(connector, psmProxyMsgInit, &req, sizeof req, &resp, sizeof resp));
    connector->connection = resp.connection;
    connector->initialized = 1;
    psm_msg_proxy_conn_connected_2(address->rank, resp.connection);
    return PSM_OK;
}

psm_status psmProxyDisconnect(psmProxyConnector *connector)
{
    if (!connector || !connector->state || !connector->initialized) return PSM_OK;
    psmProxyState *state = connector->state;
    connector->initialized = 0;
    struct psm_client *client = atomic_load(&state->clients[connector->peer]);
    /* When a proxy ends, it frees its connections itself. */
    if (psm_state_ended(state) || atomic_load(&client->gone) || atomic_load(&state->stop)) return PSM_OK;
    psm_status status = call_blocking(connector, psmProxyMsgClose, NULL, 0, NULL, 0);
    if (status == PSM_ERR_PEER_CLOSED || status == PSM_ERR_PEER_DEAD || status == PSM_ERR_ABORTED) return PSM_OK;
    return status;
}

/* Takes the answers that have arrived and that no call waits for. A connection that fetches descriptors is kept to the
 * end, and a second answer on it would not be read otherwise. */
static void take_left_answers(psmProxyState *state, struct psm_client *client)
{
    _Alignas(8) uint8_t bytes[PSM_WIRE_MAX];
    char text[PSM_WIRE_TEXT];
    struct psm_wire_message m;
    size_t size = 0;
    int number = 0;
    if (!begin_reading(client)) return;
    while (psm_socket_recv(atomic_load(&client->fd), bytes, sizeof bytes, &size, &number) == PSM_OK &&
           psm_wire_decode(bytes, size > sizeof bytes ? sizeof bytes : size, 1u << PSM_WIRE_RESPONSE, &m, text) ==
               PSM_OK)
        psm_calls_store(state, client->rank, &m, 0);
    end_reading(client);
}

void psm_clients_close(psmProxyState *state, psm_status status, const char *text)
{
    for (int i = 0; i < state->nranks; i++) {
        struct psm_client *client = atomic_load(&state->clients[i]);
        if (!client || atomic_load(&client->gone)) continue;
        struct psm_error error = {.status = status < 0 ? PSM_ERR_ABORTED : PSM_ERR_PEER_CLOSED,
                                  .rank = state->rank,
                                  .peer = i,
                                  .stage = "call"};
        error.detail = psm_detail_of(error.status, state->rank);
        snprintf(error.text, sizeof error.text, "%.250s", status < 0 ? text : "this rank's proxy was stopped");
        if (client->direct) {
            struct psm_direct_call *bye = psm_direct_call_make(0, 0);
            if (bye) {
                bye->client = state->client_id;
                bye->client_rank = state->rank;
                bye->type = status < 0 ? psmProxyMsgAbort : psmProxyMsgClose;
                bye->error = error;
                if (!psm_direct_push(client->direct, bye)) psm_direct_call_drop(bye);
                psm_direct_call_drop(bye);
            }
        } else {
            if (status >= 0) take_left_answers(state, client);
            psm_socket_bye(atomic_load(&client->fd), status, false, text);
        }
        end_client(state, client, &error);
    }
}

void psm_clients_free(psmProxyState *state)
{
    for (int i = 0; state->clients && i < state->nranks; i++) {
        struct psm_client *client = atomic_load(&state->clients[i]);
        if (!client) continue;
        if (client->fd >= 0) close(client->fd);
        psm_held_drop(&client->held);
        psm_direct_drop(client->direct);
        pthread_mutex_destroy(&client->lock);
        pthread_cond_destroy(&client->moved);
        free(client);
    }
    free((void *)state->clients);
    state->clients = NULL;
}
