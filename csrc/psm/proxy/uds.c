/* The UDS thread: gives out the descriptors that were offered, takes in those that peers give, and receives the answers
 * to this rank's own questions. The kernel tells with every datagram who sent it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libc.h"
#include "proxy/fd.h"
#include "psm_lib_messages.h"

enum { GIVEN_REMEMBERED = 256 /* answered questions that may be asked again */ };

PSM_FAULT_SITE_OF(getfd_site, "proxy.getfd", "the UDS thread answers GetFd",
                  PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_CORRUPT));
PSM_FAULT_SITE_OF(queryfd_site, "proxy.queryfd", "the UDS thread answers QueryFd",
                  PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_CORRUPT));

PSM_FAULT_SITE_OF(reply_site, "uds.reply", "the UDS thread sends an answer; op is GetFd or QueryFd",
                  PSM_FAULT_CAN_GENERIC | PSM_FAULT_CAN_MESSAGE);

psm_status psm_uds_init(psmProxyState *state)
{
    struct psm_uds *uds = &state->uds;
    int on = 1;
    pthread_mutex_init(&uds->lock, NULL);
    psm_cond_init(&uds->ended);
    atomic_store(&uds->generation, (uint32_t)psm_random64());
    PSM_TRY(psm_socket_listen(SOCK_DGRAM, state->rank, state->address.uds, &uds->fd));
    uds->event = psm_event_make();
    if (uds->event < 0 || setsockopt(uds->fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
        return psm_fail_errno(errno, "init", state->rank, -1, "cannot set up the UDS socket");
    return PSM_OK;
}

void psm_uds_stop(psmProxyState *state)
{
    struct psm_uds *uds = &state->uds;
    pthread_mutex_lock(&uds->lock);
    for (size_t i = 0; i < uds->ngiven; i++)
        if (!uds->given[i].taken) close(uds->given[i].fd);
    uds->ngiven = 0;
    /* Nobody answers any more: who asks is to learn it at once. */
    if (uds->fd >= 0) psm_stranger_close(uds->fd);
    uds->fd = -1;
    pthread_mutex_unlock(&uds->lock);
}

void psm_uds_free(psmProxyState *state)
{
    struct psm_uds *uds = &state->uds;
    while (uds->jobs) {
        struct psmProxyFetch *next = uds->jobs->next;
        if (uds->jobs->give >= 0) close(uds->jobs->give);
        if (uds->jobs->got >= 0) close(uds->jobs->got);
        free(uds->jobs);
        uds->jobs = next;
    }
    psm_uds_stop(state);
    psm_held_drop(&uds->held_ask);
    psm_held_drop(&uds->held_answer);
    free(uds->given);
    free(uds->offers);
    if (uds->event >= 0) close(uds->event);
    pthread_mutex_destroy(&uds->lock);
    pthread_cond_destroy(&uds->ended);
}

/* ---- one datagram ---- */

int psm_datagram_send(int socket, const char *name, const void *bytes, size_t size, int fd)
{
    struct sockaddr_un address;
    socklen_t length;
    psm_socket_address(&address, &length, name);
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_name = &address, .msg_namelen = length, .msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    ssize_t n;
    do n = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? errno : 0;
}

struct datagram {
    _Alignas(8) uint8_t bytes[512];
    size_t size;
    char from[24]; /* "": it has no abstract name */
    struct ucred user;
    bool cut;
    int fd;
};

enum sender { NOBODY, SAME_USER, STRANGER };

/* Who sent the first datagram of the queue, and whether descriptors come with it. It stays where it is. */
static enum sender look(int socket, struct ucred *user, bool *descriptors)
{
    char byte;
    struct iovec part = {&byte, 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof *user)]; /* no room for a descriptor, so that none is received */
    } control;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n;
    do n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_PEEK);
    while (n < 0 && errno == EINTR);
    if (n < 0) return NOBODY;
    *user = (struct ucred){.pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1};
    *descriptors = (message.msg_flags & MSG_CTRUNC) != 0;
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) memcpy(user, CMSG_DATA(c), sizeof *user);
    return user->uid == geteuid() ? SAME_USER : STRANGER;
}

/* Of this user: look() says so. False: there is none. Descriptors beyond the first are closed. */
static bool receive(int socket, struct datagram *d)
{
    struct sockaddr_un address = {0};
    struct iovec part = {d->bytes, sizeof d->bytes};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 16) + CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct msghdr message = {.msg_name = &address,
                             .msg_namelen = sizeof address,
                             .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t n;
    do n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
    while (n < 0 && errno == EINTR);
    if (n < 0) return false;
    d->size = (size_t)n;
    d->fd = -1;
    d->user = (struct ucred){.pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1};
    d->cut = (message.msg_flags & MSG_CTRUNC) != 0;
    memset(d->from, 0, sizeof d->from);
    size_t name = message.msg_namelen > offsetof(struct sockaddr_un, sun_path)
                      ? message.msg_namelen - offsetof(struct sockaddr_un, sun_path)
                      : 0;
    if (name > 1 && name <= sizeof d->from && address.sun_path[0] == 0) memcpy(d->from, address.sun_path + 1, name - 1);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET) continue;
        if (c->cmsg_type == SCM_CREDENTIALS && c->cmsg_len >= CMSG_LEN(sizeof d->user)) {
            memcpy(&d->user, CMSG_DATA(c), sizeof d->user);
        } else if (c->cmsg_type == SCM_RIGHTS) {
            size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < count; i++) {
                int fd;
                memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
                if (d->fd < 0)
                    d->fd = fd;
                else
                    close(fd);
            }
        }
    }
    return true;
}

/* ---- questions of others ---- */

/* uds.lock is held: a descriptor that is offered cannot be withdrawn, and closed, until it is sent. */
static void answer(psmProxyState *state, struct datagram *d, const struct psm_wire_fd_ask *ask, psm_status status,
                   const struct psm_error *error, int number, int fd, bool corrupt, enum psm_fault_action fault)
{
    struct psm_uds *uds = &state->uds;
    struct psm_wire_fd_answer a = {.type = ask->type, .status = status, .op_id = ask->op_id, .number = number};
    if (status < 0) {
        a.sys_errno = error->sys_errno;
        snprintf(a.text, sizeof a.text, "%.127s", error->text);
    }
    if (corrupt || fault == PSM_FAULT_CORRUPT) a.op_id ^= 1;
    psm_wire_begin(&a.head, PSM_WIRE_FD_ANSWER, sizeof a);
    bool held = fault == PSM_FAULT_REORDER && psm_held_keep(&uds->held_answer, d->from, &a, sizeof a, fd);
    if (!held && fault != PSM_FAULT_DROP) {
        /* An answer that does not fit is asked for once more. */
        for (int i = 0; i < (fault == PSM_FAULT_DUPLICATE ? 2 : 1); i++)
            if (psm_datagram_send(uds->fd, d->from, &a, sizeof a, fd) == 0 && fd >= 0) PSM_COUNT(state, fds_sent);
        if (uds->held_answer && strcmp(uds->held_answer->to, d->from) == 0) psm_datagram_held(state, &uds->held_answer);
    }
}

void psm_datagram_held(psmProxyState *state, struct psm_held **held)
{
    const struct psm_held *h = *held;
    if (psm_datagram_send(state->uds.fd, h->to, h->bytes, h->size, h->fd) == 0 && h->fd >= 0)
        PSM_COUNT(state, fds_sent);
    psm_held_drop(held);
}

/* Whether this question was answered before; it is noted now. */
static bool asked_again(struct psm_uds *uds, const struct datagram *d, const struct psm_wire_fd_ask *ask)
{
    for (unsigned i = 0; i < PSM_GOTTEN; i++)
        if (uds->gotten[i].op_id == ask->op_id && strcmp(uds->gotten[i].from, d->from) == 0) return true;
    struct psm_gotten *oldest = &uds->gotten[uds->ngotten++ % PSM_GOTTEN];
    oldest->op_id = ask->op_id;
    memcpy(oldest->from, d->from, sizeof oldest->from);
    return false;
}

static void give_out(psmProxyState *state, struct datagram *d, const struct psm_wire_fd_ask *ask)
{
    struct psm_uds *uds = &state->uds;
    struct psm_fault fault, reply;
    struct psm_fault_args here = psm_fault_here(state, ask->rank, psmProxyMsgGetFd);
    if (asked_again(uds, d, ask)) { /* one exchange is one pair of lines */
        psm_msg_libpsm_proxy_fd_repeat(psm_proxy_type_name(ask->type), ask->rank, ask->op_id);
    } else {
        psm_msg_proxy_fd_received(ask->rank, ask->op_id, ask->share);
        psm_msg_proxy_fd_answered(ask->share, ask->rank, ask->op_id);
    }
    psm_status status = psm_fault_before(&getfd_site, &here, "getfd", &fault);
    if (status == PSM_OK && fault.action == PSM_FAULT_DROP) return;
    /* Not under the lock: a hang there would be everybody's. */
    if (psm_fault_before(&reply_site, &here, "getfd", &reply) < 0) return;
    pthread_mutex_lock(&uds->lock);
    int fd = -1;
    for (size_t i = 0; i < uds->noffers && fd < 0; i++)
        if (uds->offers[i].id == ask->share) fd = uds->offers[i].fd;
    if (status == PSM_OK && fd < 0)
        status = psm_fail(PSM_ERR_NOT_FOUND, "getfd", state->rank, ask->rank, ask->op_id,
                          "rank %d offers no share %#llx: it was withdrawn, or never there", state->rank,
                          (unsigned long long)ask->share);
    answer(state, d, ask, status, psm_last_error(), -1, status < 0 ? -1 : fd, fault.action == PSM_FAULT_CORRUPT,
           reply.action);
    pthread_mutex_unlock(&uds->lock);
    psm_fault_act_after(&reply);
    psm_fault_act_after(&fault);
}

/* Room for one more; those that were taken long ago are forgotten. */
static bool given_room(struct psm_uds *uds)
{
    if (uds->ngiven < uds->given_size) return true;
    size_t kept = 0;
    for (size_t i = 0; i < uds->ngiven; i++)
        if (!uds->given[i].taken || i + GIVEN_REMEMBERED >= uds->ngiven) uds->given[kept++] = uds->given[i];
    uds->ngiven = kept;
    if (uds->given_size > 0 && kept * 2 <= uds->given_size) return true;
    size_t size = uds->given_size ? uds->given_size * 2 : 64;
    struct psm_given *grown = realloc(uds->given, size * sizeof *grown);
    if (!grown) return uds->ngiven < uds->given_size;
    uds->given = grown;
    uds->given_size = size;
    return true;
}

static void take_in(psmProxyState *state, struct datagram *d, const struct psm_wire_fd_ask *ask)
{
    struct psm_uds *uds = &state->uds;
    struct psm_fault fault, reply;
    struct psm_fault_args here = psm_fault_here(state, ask->rank, psmProxyMsgQueryFd);
    if (asked_again(uds, d, ask))
        psm_msg_libpsm_proxy_fd_repeat(psm_proxy_type_name(ask->type), ask->rank, ask->op_id);
    else
        psm_msg_proxy_fd_received_2(ask->rank, ask->op_id, d->fd);
    psm_status status = psm_fault_before(&queryfd_site, &here, "queryfd", &fault);
    if (psm_fault_before(&reply_site, &here, "queryfd", &reply) < 0) return;
    if (status == PSM_OK && d->fd < 0)
        status = d->cut ? psm_fail_errno(EMFILE, "queryfd", state->rank, ask->rank,
                                         "rank %d has no descriptor left for the one that was given", state->rank)
                        : psm_fail(PSM_ERR_PROTOCOL, "queryfd", state->rank, ask->rank, ask->op_id,
                                   "received a QueryFd without a descriptor, expected one");
    int number = -1;
    pthread_mutex_lock(&uds->lock);
    for (size_t i = uds->ngiven; i-- > 0 && status == PSM_OK && number < 0;)
        if (uds->given[i].op_id == ask->op_id && strcmp(uds->given[i].from, d->from) == 0) number = uds->given[i].fd;
    if (status == PSM_OK && number < 0) {
        if (given_room(uds)) {
            struct psm_given *g = &uds->given[uds->ngiven++];
            *g = (struct psm_given){.fd = d->fd, .rank = ask->rank, .op_id = ask->op_id};
            memcpy(g->from, d->from, sizeof g->from);
            number = d->fd;
            d->fd = -1;
            PSM_COUNT(state, fds_received);
        } else {
            status = psm_fail(PSM_ERR_NO_MEMORY, "queryfd", state->rank, ask->rank, 0, "no memory for a descriptor");
        }
    }
    if (fault.action != PSM_FAULT_DROP) /* it is kept, and its number told when it is asked for once more */
        answer(state, d, ask, status, psm_last_error(), number, -1, fault.action == PSM_FAULT_CORRUPT, reply.action);
    pthread_mutex_unlock(&uds->lock);
    psm_fault_act_after(&reply);
    psm_fault_act_after(&fault);
}

static void handle(psmProxyState *state, struct datagram *d)
{
    char text[PSM_WIRE_TEXT];
    struct psm_wire_message m;
    psm_status status = PSM_OK;
    if (d->from[0] == 0) {
        status = PSM_ERR_PROTOCOL;
        snprintf(text, sizeof text, "a datagram without a sender's name came");
    } else {
        status = psm_wire_decode(d->bytes, d->size > sizeof d->bytes ? sizeof d->bytes : d->size,
                                 1u << PSM_WIRE_FD_ASK | 1u << PSM_WIRE_FD_ANSWER, &m, text);
    }
    if (status < 0) {
        psm_refused(state, &state->uds.refusals, "datagram", &d->user, text);
    } else if (m.kind == PSM_WIRE_FD_ANSWER) {
        psm_fetch_answered(state, d->from, &m.fd_answer, &d->fd, d->cut);
    } else if (m.fd_ask.type == psmProxyMsgGetFd) {
        give_out(state, d, &m.fd_ask);
    } else if (m.fd_ask.type == psmProxyMsgQueryFd) {
        take_in(state, d, &m.fd_ask);
    } else {
        psm_msg_proxy_unknown_command(m.fd_ask.type, m.fd_ask.rank);
        PSM_COUNT(state, refused);
    }
    if (d->fd >= 0) close(d->fd);
}

/* Whether to look for another datagram at once. */
static bool next_datagram(psmProxyState *state)
{
    struct psm_uds *uds = &state->uds;
    struct datagram d;
    bool descriptors;
    char byte;
    switch (look(uds->fd, &d.user, &descriptors)) {
    case NOBODY:
        return false;
    case SAME_USER:
        if (receive(uds->fd, &d)) handle(state, &d);
        return true;
    default:
        psm_refused(state, &uds->refusals, "datagram", &d.user, NULL);
        if (descriptors)
            psm_stranger_drop(uds->fd);
        else
            recv(uds->fd, &byte, 1, MSG_DONTWAIT);
        return false; /* it may have taken a while: this rank's own questions have their turn */
    }
}

void *psm_uds_main(void *argument)
{
    psmProxyState *state = argument;
    struct psm_uds *uds = &state->uds;
    struct pollfd fds[] = {{uds->fd, POLLIN, 0}, {uds->event, POLLIN, 0}};
    psm_thread_device(state, "Proxy Service UDS");
    while (!atomic_load(&state->stop)) {
        uint64_t ns = psm_fetch_work(state);
        struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        int ready = ppoll(fds, 2, &time, NULL);
        if (ready < 0 && errno != EINTR) psm_msg_proxy_poll_failed_2(psm_errno_text(errno));
        if (ready <= 0) continue;
        if (fds[1].revents) psm_event_clear(uds->event);
        for (int i = 0; i < 64 && fds[0].revents && next_datagram(state); i++) {
        }
    }
    psm_fetch_end_all(state);
    psm_refused_rest(&uds->refusals);
    psm_msg_proxy_uds_exit((int)atomic_load(&state->stop), psm_state_ended(state));
    return NULL;
}

/* ---- the owner's side ---- */

psm_status psmProxyOfferFd(psmProxyState *state, uint64_t id, int fd)
{
    if (!state || id == 0 || fd < 0)
        return psm_fail(PSM_ERR_INVALID, "getfd", state ? state->rank : -1, -1, 0,
                        "psmProxyOfferFd: share %#llx, fd %d; expected a non-zero id and an open fd",
                        (unsigned long long)id, fd);
    struct psm_uds *uds = &state->uds;
    psm_status status = PSM_OK;
    pthread_mutex_lock(&uds->lock);
    for (size_t i = 0; i < uds->noffers; i++)
        if (uds->offers[i].id == id) status = PSM_ERR_INVALID;
    if (status == PSM_OK && uds->noffers == uds->offers_size) {
        size_t size = uds->offers_size ? uds->offers_size * 2 : 32;
        struct psm_offer *grown = realloc(uds->offers, size * sizeof *grown);
        if (grown) {
            uds->offers = grown;
            uds->offers_size = size;
        } else {
            status = PSM_ERR_NO_MEMORY;
        }
    }
    if (status == PSM_OK) uds->offers[uds->noffers++] = (struct psm_offer){id, fd};
    pthread_mutex_unlock(&uds->lock);
    if (status < 0)
        return psm_fail(status, "getfd", state->rank, -1, 0, "share %#llx cannot be offered: %s",
                        (unsigned long long)id, status == PSM_ERR_INVALID ? "it is offered already" : "no memory");
    return PSM_OK;
}

psm_status psmProxyWithdrawFd(psmProxyState *state, uint64_t id)
{
    struct psm_uds *uds = &state->uds;
    bool found = false;
    pthread_mutex_lock(&uds->lock);
    for (size_t i = 0; i < uds->noffers && !found; i++)
        if (uds->offers[i].id == id) {
            uds->offers[i] = uds->offers[--uds->noffers];
            found = true;
        }
    pthread_mutex_unlock(&uds->lock);
    if (found) return PSM_OK;
    return psm_fail(PSM_ERR_NOT_FOUND, "getfd", state->rank, -1, 0, "share %#llx is not offered",
                    (unsigned long long)id);
}

psm_status psmProxyTakeFd(psmProxyState *state, int number, int *fd)
{
    struct psm_uds *uds = &state->uds;
    bool found = false;
    pthread_mutex_lock(&uds->lock);
    for (size_t i = uds->ngiven; i-- > 0 && !found;)
        if (uds->given[i].fd == number && !uds->given[i].taken) {
            uds->given[i].taken = found = true;
            *fd = number;
        }
    pthread_mutex_unlock(&uds->lock);
    if (found) return PSM_OK;
    return psm_fail(PSM_ERR_NOT_FOUND, "queryfd", state->rank, -1, 0,
                    "no peer gave this proxy a descriptor with the number %d, or it was taken before", number);
}
