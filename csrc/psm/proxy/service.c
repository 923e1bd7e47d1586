/* The service thread: accepts peers and their requests, retries unfinished ones, answers in any order. Without work it
 * sleeps in poll(2); after work it spins for PSM_SPIN first. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libc.h"
#include "proxy/service.h"
#include "psm_lib_messages.h"

enum {
    READ_AT_ONCE = 64, /* messages read from one peer before the others' turn */
    SPIN_LOOK = 128,   /* rounds of the spinning loop between looks at all sockets */
    SPIN_YIELD = 128,
    SPIN_CLOCK = 8 /* rounds between reads of the clock, which cost a third of a read of a socket */
};

PSM_FAULT_SITE(accept_site, "proxy.accept", "the service accepts a peer");

/* ---- peers ---- */

static struct psm_peer *peer_new(struct psm_service *service, int fd)
{
    if (service->npeers == service->peers_size) {
        size_t size = service->peers_size ? service->peers_size * 2 : 16;
        struct psm_peer **grown = realloc(service->peers, size * sizeof(*grown));
        if (!grown) return NULL;
        service->peers = grown;
        service->peers_size = size;
    }
    struct psm_peer *peer = calloc(1, sizeof *peer);
    if (!peer) return NULL;
    peer->fd = fd;
    peer->pidfd = peer->rank = -1;
    peer->id = ++service->last_id;
    peer->unsent_end = &peer->unsent;
    service->peers[service->npeers++] = peer;
    PSM_COUNT(service->state, peers);
    return peer;
}

/* Closes and frees everything but the struct, which is dropped at the end of the round. */
void psm_peer_lost(struct psm_service *service, struct psm_peer *peer, const char *why)
{
    if (peer->gone) return;
    peer->gone = service->lost = true;
    if (peer->rank >= 0) {
        psm_msg_proxy_closed_by_peer(peer->rank);
        psm_msg_libpsm_proxy_peer_gone(peer->rank, peer->pid, why);
        psm_state_lost(service->state, peer->rank);
    }
    if (peer->fd >= 0) close(peer->fd);
    if (peer->pidfd >= 0) close(peer->pidfd);
    peer->fd = peer->pidfd = -1;
}

static void peers_drop(struct psm_service *service)
{
    if (!service->lost) return;
    service->lost = false;
    for (size_t i = 0; i < service->npeers;) {
        struct psm_peer *peer = service->peers[i];
        if (!peer->gone) {
            i++;
            continue;
        }
        psm_service_sweep(service, peer);
        if (service->hot == peer) service->hot = NULL;
        for (struct psm_connection *c; (c = psm_connection_begin_free(service->state, peer->id));)
            psm_service_free_connection(service, c);
        while (peer->unsent) {
            struct psm_unsent *next = peer->unsent->next;
            free(peer->unsent);
            peer->unsent = next;
        }
        psm_held_drop(&peer->held);
        free(peer);
        service->peers[i] = service->peers[--service->npeers];
        atomic_fetch_sub(&service->state->counts.peers, 1);
    }
}

static void refuse(struct psm_service *service, struct psm_peer *peer, psm_status status, const char *text)
{
    struct ucred user = {.pid = (pid_t)peer->pid, .uid = geteuid()};
    psm_refused(service->state, &service->refusals, "connection", &user, text);
    psm_socket_bye(peer->fd, status, true, text);
    psm_peer_lost(service, peer, text);
}

static void accept_all(struct psm_service *service)
{
    psmProxyState *state = service->state;
    for (int i = 0; i < READ_AT_ONCE; i++) {
        int fd = accept4(state->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            if (errno != EAGAIN) psm_msg_proxy_accept_failed(psm_errno_text(errno));
            return;
        }
        struct psm_fault fault;
        struct psm_fault_args here = psm_fault_here(state, PSM_FAULT_UNKNOWN, 0);
        struct ucred user = {.uid = geteuid()};
        psm_status status = psm_fault_before(&accept_site, &here, "accept", &fault);
        if (status == PSM_OK) status = psm_socket_check_user(fd, state->rank, -1, &user);
        if (status < 0) {
            psm_refused(state, &service->refusals, "connection", &user, psm_last_error()->text);
            psm_socket_bye(fd, status, true, psm_last_error()->text);
            psm_stranger_close(fd);
            return; /* it may have taken a while: others have their turn */
        }
        struct psm_peer *peer = service->npeers < PSM_SERVICE_PEERS ? peer_new(service, fd) : NULL;
        if (!peer) {
            psm_msg_proxy_too_many_connections(PSM_SERVICE_PEERS);
            psm_socket_bye(fd, PSM_ERR_NO_RESOURCE, true, "this proxy has too many connections");
            close(fd);
            continue;
        }
        peer->pid = (uint32_t)user.pid;
        peer->pidfd = psm_socket_pidfd(fd, peer->pid);
        peer->hello_until = psm_clock_ns() + state->settings.timeout_ms * UINT64_C(1000000);
    }
}

static void hello(struct psm_service *service, struct psm_peer *peer, const struct psm_wire_hello *said)
{
    psmProxyState *state = service->state;
    char text[PSM_WIRE_TEXT] = "";
    if (said->nranks != state->nranks || said->rank < 0 || said->rank >= state->nranks)
        snprintf(text, sizeof text, "bad hello of rank %d of %d, expected a rank of %d", said->rank, said->nranks,
                 state->nranks);
    else if (strcmp(said->service, state->address.service) != 0)
        snprintf(text, sizeof text, "received a hello for the proxy @%s, but this is @%s", said->service,
                 state->address.service);
    if (text[0]) {
        refuse(service, peer, PSM_ERR_MISMATCH, text);
        return;
    }
    peer->rank = said->rank;
    struct psm_wire_hello answer;
    psm_hello_fill(&answer, state->rank, state->nranks, state->address.service);
    psm_service_send(service, peer, (const uint8_t *)&answer, sizeof answer);
}

static void ended_by_peer(struct psm_service *service, struct psm_peer *peer, psm_status status, const char *text)
{
    struct psm_error error = {.status = PSM_ERR_ABORTED,
                              .rank = service->state->rank,
                              .peer = peer->rank,
                              .detail = psm_error_detail(PSM_CAUSE_PEER_FAILED, peer->rank)};
    int rank = peer->rank;
    strcpy(error.stage, "service");
    snprintf(error.text, sizeof error.text, "rank %d ended the operation: %.200s", rank, text);
    psm_peer_lost(service, peer, status < 0 ? text : "it said so");
    if (status < 0) psm_state_abort(service->state, &error);
}

/* What requests have in common, in a message or in a call of this process. */
#define REQUEST_OF(who, from)                                                                                          \
    (struct psm_request)                                                                                               \
    {                                                                                                                  \
        .peer = (who), .type = (from)->type, .req_size = (from)->req_size, .resp_size = (from)->resp_size,             \
        .connection = (from)->connection, .op_id = (from)->op_id                                                       \
    }

static void request_from(struct psm_service *service, struct psm_peer *peer, const struct psm_wire_message *m)
{
    const struct psm_wire_request *w = &m->request;
    size_t aligned = (w->req_size + 15) / 16 * 16;
    /* Not calloc, which bypasses the thread's own free blocks. */
    struct psm_request *r = malloc(sizeof *r + 16 + aligned + w->resp_size);
    if (!r) {
        psm_peer_lost(service, peer, "no memory for its request");
        return;
    }
    service->hot = peer;
    *r = REQUEST_OF(peer, w);
    r->req = (uint8_t *)(((uintptr_t)(r + 1) + 15) / 16 * 16);
    r->resp = r->req + aligned;
    if (m->payload_size) memcpy(r->req, m->payload, m->payload_size);
    memset(r->req + w->req_size, 0, aligned - w->req_size + w->resp_size);
    psm_service_begin(service, r);
}

static bool known_type(int type)
{
    return type == psmProxyMsgInit || type == psmProxyMsgSharedInit || type == psmProxyMsgSetup ||
           type == psmProxyMsgConnect || type == psmProxyMsgClose || type == psmProxyMsgRegister ||
           type == psmProxyMsgDeregister;
}

static bool read_peer(struct psm_service *service, struct psm_peer *peer)
{
    _Alignas(8) uint8_t bytes[PSM_WIRE_MAX];
    char text[PSM_WIRE_TEXT];
    struct psm_wire_message m;
    bool any = false;
    for (int i = 0; i < READ_AT_ONCE && !peer->gone; i++) {
        size_t size = 0;
        int number = 0;
        psm_status status = psm_socket_recv(peer->fd, bytes, sizeof bytes, &size, &number);
        if (status == PSM_IN_PROGRESS) return any;
        any = true;
        if (status < 0) {
            psm_peer_lost(service, peer, "its socket was closed without a bye: it has died");
            return true;
        }
        unsigned kinds = peer->rank < 0 ? 1u << PSM_WIRE_HELLO : 1u << PSM_WIRE_REQUEST | 1u << PSM_WIRE_BYE;
        status = psm_wire_decode(bytes, size > sizeof bytes ? sizeof bytes : size, kinds, &m, text);
        if (status < 0) {
            refuse(service, peer, status, text);
        } else if (m.kind == PSM_WIRE_HELLO) {
            hello(service, peer, &m.hello);
        } else if (m.kind == PSM_WIRE_BYE) {
            ended_by_peer(service, peer, (psm_status)m.bye.status, m.bye.text);
        } else if (!known_type(m.request.type)) {
            psm_msg_proxy_unknown_command(m.request.type, peer->rank);
            snprintf(text, sizeof text, "received a request of the unknown type %d", m.request.type);
            refuse(service, peer, PSM_ERR_PROTOCOL, text);
        } else {
            request_from(service, peer, &m);
        }
        if (peer->waiting + peer->unsent_count >= PSM_PEER_QUEUE) return true;
    }
    return any;
}

/* ---- callers of this process ---- */

static struct psm_peer *peer_of(struct psm_service *service, const struct psm_direct_call *call)
{
    for (size_t i = 0; i < service->npeers; i++)
        if (service->peers[i]->client == call->client && !service->peers[i]->gone) return service->peers[i];
    struct psm_peer *peer = peer_new(service, -1);
    if (!peer) return NULL;
    peer->client = call->client;
    peer->rank = call->client_rank;
    peer->pid = (uint32_t)psm_proc_self()->pid;
    return peer;
}

static void refuse_direct(struct psm_direct_call *call, psm_status status, const char *text)
{
    call->error = (struct psm_error){.status = status, .rank = -1, .peer = -1};
    snprintf(call->error.stage, sizeof call->error.stage, "%s", psm_proxy_stage(call->type));
    snprintf(call->error.text, sizeof call->error.text, "%s", text);
    psm_direct_call_done(call);
}

static bool take_direct(struct psm_service *service)
{
    struct psm_direct_call *list = psm_direct_take(service->state->direct, false);
    bool any = list != NULL, here = false;
    int cpu = any ? sched_getcpu() : -1;
    if (any) atomic_store(&service->state->direct->cpu, cpu);
    while (list) {
        struct psm_direct_call *call = list;
        list = call->next;
        here |= call->cpu == cpu;
        struct psm_peer *peer = peer_of(service, call);
        struct psm_request *r = peer ? calloc(1, sizeof *r) : NULL;
        if (!r) {
            refuse_direct(call, PSM_ERR_NO_MEMORY, "the proxy has no memory for the request");
        } else if (call->type == psmProxyMsgAbort || (call->type == psmProxyMsgClose && call->connection == 0)) {
            ended_by_peer(service, peer, call->type == psmProxyMsgAbort ? PSM_ERR_ABORTED : PSM_OK, call->error.text);
            call->error.status = PSM_OK;
            psm_direct_call_done(call);
            free(r);
        } else if (!known_type(call->type)) {
            psm_msg_proxy_unknown_command(call->type, peer->rank);
            refuse_direct(call, PSM_ERR_PROTOCOL, "received a request of an unknown type");
            free(r);
        } else {
            service->hot = NULL;
            *r = REQUEST_OF(peer, call);
            r->direct = call;
            r->req = call->data;
            r->resp = call->resp;
            psm_service_begin(service, r);
        }
    }
    if (here) sched_yield();
    return any;
}

/* ---- the loop ---- */

enum what { LISTEN, EVENT, PEER, PIDFD, CLIENT };
struct watch {
    struct pollfd *fds;
    struct {
        enum what what;
        void *who;
    } *of;
    size_t n, size;
};

static bool add(struct watch *w, int fd, short events, enum what what, void *who)
{
    if (w->n == w->size) {
        size_t size = w->size ? w->size * 2 : 32;
        struct pollfd *fds = realloc(w->fds, size * sizeof *fds);
        if (fds) w->fds = fds;
        void *of = realloc(w->of, size * sizeof *w->of);
        if (of) w->of = of;
        if (!fds || !of) return false; /* what does not fit is read when there is memory */
        w->size = size;
    }
    w->fds[w->n] = (struct pollfd){fd, events, 0};
    w->of[w->n].what = what;
    w->of[w->n++].who = who;
    return true;
}

static void gather(struct psm_service *service, struct watch *w)
{
    psmProxyState *state = service->state;
    w->n = 0;
    add(w, state->direct->event, POLLIN, EVENT, NULL);
    if (service->said_bye) return;
    add(w, state->listen_fd, POLLIN, LISTEN, NULL);
    for (size_t i = 0; i < service->npeers; i++) {
        struct psm_peer *peer = service->peers[i];
        if (peer->fd < 0) continue;
        bool full = peer->waiting + peer->unsent_count >= PSM_PEER_QUEUE;
        add(w, peer->fd, (short)((full ? 0 : POLLIN) | (peer->unsent ? POLLOUT : 0)), PEER, peer);
        if (peer->pidfd >= 0) add(w, peer->pidfd, POLLIN, PIDFD, peer);
    }
    for (int i = 0; i < state->nranks; i++) {
        struct psm_client *client = atomic_load(&state->clients[i]);
        if (client && client->fd >= 0 && !atomic_load(&client->gone)) add(w, client->fd, POLLRDHUP, CLIENT, client);
    }
}

/* Poll PEER before PIDFD of the same peer, to read first what it sent before it died. */
static bool look(struct psm_service *service, struct watch *w, uint64_t ns)
{
    struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    bool any = false;
    gather(service, w);
    int ready = ppoll(w->fds, w->n, &time, NULL);
    atomic_store(&service->state->direct->sleeping, 0);
    if (ready < 0 && errno != EINTR) psm_msg_proxy_poll_failed(psm_errno_text(errno));
    for (size_t i = 0; i < w->n && ready > 0; i++) {
        short events = w->fds[i].revents;
        struct psm_peer *peer = w->of[i].who;
        if (!events) continue;
        ready--;
        switch (w->of[i].what) {
        case EVENT:
            psm_event_clear(w->fds[i].fd);
            service->retry_ns = PSM_RETRY_FIRST_NS;
            service->next_retry = 0;
            break;
        case LISTEN:
            accept_all(service);
            break;
        case PEER:
            if (events & POLLOUT && !peer->gone) psm_service_send_kept(service, peer);
            if (events & (POLLIN | POLLHUP | POLLERR) && !peer->gone) any |= read_peer(service, peer);
            break;
        case PIDFD:
            while (!peer->gone && read_peer(service, peer)) {
            }
            psm_peer_lost(service, peer, "its process has died");
            break;
        case CLIENT:
            psm_client_hung_up(service->state, w->of[i].who);
            break;
        }
    }
    return any;
}

/* Tell every peer, but keep what the peers use until the proxy is stopped. */
static void say_bye(struct psm_service *service, psm_status status, const char *text)
{
    struct psm_direct_call *list = psm_direct_take(service->state->direct, true);
    service->said_bye = true;
    psm_clients_close(service->state, status, text);
    while (list) {
        struct psm_direct_call *next = list->next;
        refuse_direct(list, status < 0 ? PSM_ERR_ABORTED : PSM_ERR_PEER_CLOSED, text);
        list = next;
    }
    for (size_t i = 0; i < service->npeers; i++)
        if (service->peers[i]->fd >= 0) psm_socket_bye(service->peers[i]->fd, status, false, text);
    psm_service_sweep(service, NULL);
}

/* Once. An abort is sent as an abort even if the stop follows at once: otherwise peers would wait for what this rank
 * has given up. */
static void say_ending(struct psm_service *service)
{
    if (service->said_bye) return;
    struct psm_error ending = psm_state_ending(service->state);
    say_bye(service, ending.status, ending.text);
}

static uint64_t sleep_ns(const struct psm_service *service, uint64_t now)
{
    uint64_t until = now + UINT64_C(500000000); /* polls flags without a wake-up twice a second */
    if ((service->pending || service->freed) && service->next_retry < until) until = service->next_retry;
    for (size_t i = 0; i < service->npeers; i++) {
        const struct psm_peer *peer = service->peers[i];
        if (peer->rank < 0 && peer->hello_until < until) until = peer->hello_until;
        if (peer->held && peer->held->until < until) until = peer->held->until;
    }
    return until > now ? until - now : 0;
}

static void look_at_clock(struct psm_service *service, uint64_t now)
{
    for (size_t i = 0; i < service->npeers; i++) {
        struct psm_peer *peer = service->peers[i];
        if (psm_held_due(peer->held, now) && !peer->gone) psm_service_send_held(service, peer);
        if (peer->rank < 0 && !peer->gone && now >= peer->hello_until)
            refuse(service, peer, PSM_ERR_TIMEOUT, "no hello arrived in time");
    }
}

static void finish(struct psm_service *service)
{
    psmProxyState *state = service->state;
    say_ending(service);
    for (size_t i = 0; i < service->npeers; i++) {
        struct psm_peer *peer = service->peers[i];
        if (peer->fd >= 0) close(peer->fd);
        if (peer->pidfd >= 0) close(peer->pidfd);
        peer->fd = peer->pidfd = -1;
        peer->gone = service->lost = true;
    }
    peers_drop(service);
    for (struct psm_connection *c; (c = psm_connection_begin_free(state, 0));) psm_service_free_connection(service, c);
    psm_service_free_later(service);
    psm_refused_rest(&service->refusals);
    free(service->peers);
}

void *psm_service_main(void *argument)
{
    psmProxyState *state = argument;
    struct psm_service service = {.state = state, .retry_ns = PSM_RETRY_FIRST_NS};
    struct watch watch = {0};
    uint64_t now = 0, spin_until = 0;
    service.pending_end = &service.pending;
    state->serving = &service;
    psm_thread_device(state, "Proxy Service");
    for (unsigned turn = 0; !atomic_load(&state->stop); turn++) {
        bool busy = take_direct(&service), ticks = turn % SPIN_CLOCK == 0 || now >= spin_until;
        if (ticks) now = psm_clock_ns();
        if ((service.pending || service.freed) && now >= service.next_retry) {
            psm_service_free_later(&service);
            psm_service_retry(&service);
        }
        if (psm_state_ended(state)) say_ending(&service);
        if (busy || now < spin_until) {
            /* One recv(2) costs less than a poll(2) of all sockets. */
            bool socket = service.hot && !service.hot->gone && service.hot->fd >= 0;
            if (!busy && socket) busy = read_peer(&service, service.hot);
            if (turn % SPIN_LOOK == 0) busy |= look(&service, &watch, 0);
            if (turn % SPIN_YIELD == 0)
                sched_yield();
            else if (!socket)
                psm_relax();
        } else {
            uint64_t ns = sleep_ns(&service, now);
            atomic_store(&state->direct->sleeping, 1);
            /* finds what was pushed before the pusher could see `sleeping` */
            if (atomic_load(&state->direct->head) && !service.said_bye) ns = 0;
            busy |= look(&service, &watch, ns);
        }
        if (ticks) look_at_clock(&service, now);
        peers_drop(&service);
        if (busy) spin_until = (now = psm_clock_ns()) + psm_state_spin_ns(state);
    }
    finish(&service);
    state->serving = NULL;
    free(watch.fds);
    free(watch.of);
    return NULL;
}
