/* Connects to the proxy of another rank and verifies its identity, through a socket or, within a process, directly. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libc.h"
#include "proxy/client.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(dial_site, "proxy.dial", "a rank connects to the proxy of another");

static psm_status dial(psmProxyState *state, const struct psmProxyAddress *to, struct psm_deadline deadline, int *out)
{
    struct sockaddr_un address;
    socklen_t size;
    struct ucred user;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        psm_msg_uds_create_failed(psm_errno_text(errno), errno);
        return psm_fail_errno(errno, "init", state->rank, to->rank, "cannot make a socket to the proxy of rank %d",
                              to->rank);
    }
    psm_socket_address(&address, &size, to->service);
    psm_status status = PSM_OK;
    for (uint64_t pause = 20000; connect(fd, (struct sockaddr *)&address, size) != 0;) {
        int number = errno;
        if (number == EINTR) continue;
        if (number != EAGAIN) { /* EAGAIN: the listener's queue is full */
            status = psm_fail_errno(number, "init", state->rank, to->rank,
                                    "cannot connect to the proxy of rank %d (process %u) at @%s; it has ended, or runs "
                                    "in another network namespace",
                                    to->rank, to->pid, to->service);
            if (number == ECONNREFUSED) {
                struct psm_error error = *psm_last_error();
                error.status = PSM_ERR_PEER_DEAD;
                error.detail = psm_detail_of(error.status, to->rank);
                status = psm_fail_again(&error);
            }
            break;
        }
        if (psm_state_ended(state)) status = psm_client_aborted(state, psmProxyMsgInit, to->rank, 0);
        if (psm_deadline_passed(deadline))
            status =
                psm_fail(PSM_ERR_TIMEOUT, "init", state->rank, to->rank, 0,
                         "rank %d could not connect to the proxy of rank %d (process %u) in %u ms: its queue is full",
                         state->rank, to->rank, to->pid, state->settings.timeout_ms);
        if (status < 0) break;
        struct pollfd fds = {state->abort_event, POLLIN, 0};
        ppoll(&fds, 1, &(struct timespec){0, (long)pause}, NULL);
        if (pause < 5000000) pause *= 2;
    }
    if (status == PSM_OK) status = psm_socket_check_user(fd, state->rank, to->rank, &user);
    if (status < 0) {
        psm_stranger_close(fd);
        return status;
    }
    *out = fd;
    return PSM_OK;
}

/* Send our hello, and receive the answer. */
static psm_status greet(psmProxyState *state, struct psm_client *client, struct psm_deadline deadline)
{
    const struct psmProxyAddress *to = &client->address;
    struct psm_wire_hello hello;
    struct psm_wire_message m;
    char text[PSM_WIRE_TEXT];
    _Alignas(8) uint8_t bytes[PSM_WIRE_MAX];
    size_t size = 0;
    int number = 0;
    psm_hello_fill(&hello, state->rank, state->nranks, to->service);
    /* If that fails, its last message says why. */
    psm_socket_send(client->fd, &hello, sizeof hello, &number);
    psm_status status;
    for (;;) {
        status = psm_socket_recv(client->fd, bytes, sizeof bytes, &size, &number);
        if (status != PSM_IN_PROGRESS) break;
        if (psm_state_ended(state)) return psm_client_aborted(state, psmProxyMsgInit, to->rank, 0);
        if (psm_deadline_passed(deadline))
            return psm_client_timed_out(state, psmProxyMsgInit, client, 0, "got no answer to");
        psm_client_sleep(state, client, POLLIN, psm_client_slice(deadline));
    }
    if (status < 0)
        return psm_fail(PSM_ERR_PEER_DEAD, "init", state->rank, to->rank, 0,
                        "the proxy of rank %d (process %u) closed the socket before its hello", to->rank, to->pid);
    status = psm_wire_decode(bytes, size > sizeof bytes ? sizeof bytes : size,
                             1u << PSM_WIRE_HELLO | 1u << PSM_WIRE_BYE, &m, text);
    if (status < 0)
        return psm_fail(status, "init", state->rank, to->rank, 0, "%.220s (from the proxy of rank %d)", text, to->rank);
    if (m.kind == PSM_WIRE_BYE) {
        status = m.bye.status < 0 ? (psm_status)m.bye.status : PSM_ERR_PEER_CLOSED;
        psm_fail(status, "init", state->rank, to->rank, 0, "the proxy of rank %d refused this rank: %.200s", to->rank,
                 m.bye.text);
        return psm_because(status, psm_refusal(status), to->rank);
    }
    if (m.hello.rank != to->rank || m.hello.nranks != state->nranks)
        return psm_fail(PSM_ERR_MISMATCH, "init", state->rank, to->rank, 0,
                        "rank %d of %d answers at @%s, expected rank %d of %d", m.hello.rank, m.hello.nranks,
                        to->service, to->rank, state->nranks);
    return PSM_OK;
}

psm_status psm_client_make(psmProxyState *state, const struct psmProxyAddress *address, struct psm_client **out)
{
    const struct psm_proc *self = psm_proc_self();
    struct psm_deadline deadline = psm_deadline_in(state->settings.timeout_ms);
    struct psm_fault fault;
    struct psm_fault_args here = psm_fault_here(state, address->rank, psmProxyMsgInit);
    PSM_TRY(psm_fault_before(&dial_site, &here, "init", &fault));
    struct psm_client *client = calloc(1, sizeof *client);
    if (!client)
        return psm_fail(PSM_ERR_NO_MEMORY, "init", state->rank, address->rank, 0, "no memory for a connection");
    client->rank = address->rank;
    client->address = *address;
    client->fd = -1;
    pthread_mutex_init(&client->lock, NULL);
    psm_cond_init(&client->moved);
    psm_status status = PSM_OK;
    if (address->pid == (uint32_t)self->pid && address->start_time == self->start_time)
        client->direct = psm_direct_find(address->service);
    if (!client->direct) {
        int fd = -1;
        status = dial(state, address, deadline, &fd);
        client->fd = fd;
        if (status == PSM_OK) status = greet(state, client, deadline);
    }
    if (status < 0) {
        if (client->fd >= 0) close(client->fd);
        pthread_mutex_destroy(&client->lock);
        pthread_cond_destroy(&client->moved);
        free(client);
        return status;
    }
    psm_fault_act_after(&fault);
    *out = client;
    return PSM_OK;
}
