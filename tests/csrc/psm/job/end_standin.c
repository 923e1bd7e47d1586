/* A host for p2p that is no proxy of libpsm's: one thread that answers requests over a socket, one that moves data. It
 * shows what p2p asks of its surroundings, and no more. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/internal.h"
#include "job/end.h"
#include "p2p/p2p.h"
#include "psm/psm_net.h"

const struct psmTransportComm *end_net[2];

enum { CLIENTS = 128, CONNECTIONS = 128, OFFERS = 128, OPS = 256, OP_INIT = 100, OP_FREE, OP_GETFD, OP_QUERYFD };

struct request {
    int type, transport, send, rank, reqSize, respSize;
    uint64_t connection;
    char req[1024];
};
struct response {
    psm_status status;
    uint64_t connection;
    char text[256], resp[1024];
};
struct op {
    struct psmProxyArgs args;
    struct op *next;
};
struct psmProxyState {
    struct psm_host host;
    int rank, device, listener, stop_pipe[2];
    struct psm_settings settings;
    char name[64];
    const struct end_place *places;
    pthread_t service, progress;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t wake;
    psmProxyConnection *connections[CONNECTIONS];
    struct {
        uint64_t id;
        int fd;
    } offers[OFFERS];
    int given[OFFERS], ngiven;
    struct op *saved, *posted;
    _Atomic bool stopping;
    _Atomic uint32_t aborted;
    struct psm_error error;
};
struct connector {
    int rank, socket;
    uint64_t connection;
};

/* ---- sockets ---- */

static int transfer(int socket, bool out, void *data, size_t n, int *fd)
{
    struct iovec part = {data, n};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (out) {
        if (*fd < 0) {
            message.msg_control = NULL;
            message.msg_controllen = 0;
        } else {
            control.head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
            memcpy(CMSG_DATA(&control.head), fd, sizeof *fd);
        }
        return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)n ? 0 : -1;
    }
    *fd = -1;
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (got > 0 && head && head->cmsg_type == SCM_RIGHTS) memcpy(fd, CMSG_DATA(head), sizeof *fd);
    return got == (ssize_t)n ? 0 : -1;
}

static socklen_t address_of(const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path + 1, name, strlen(name));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

/* ---- service ---- */

static psmProxyConnection *find(psmProxyState *state, uint64_t id)
{
    for (int i = 0; i < CONNECTIONS; i++)
        if (state->connections[i] && state->connections[i]->id == id) return state->connections[i];
    return NULL;
}

static bool busy(psmProxyState *state, const psmProxyConnection *connection)
{
    for (struct op *op = state->posted; op; op = op->next)
        for (int s = 0; s < op->args.nsubs; s++)
            if (op->args.subs[s].connection == connection) return true;
    return false;
}

static void drop(psmProxyState *state, psmProxyConnection *connection)
{
    pthread_mutex_lock(&state->lock);
    while (busy(state, connection)) {
        pthread_mutex_unlock(&state->lock);
        sched_yield();
        pthread_mutex_lock(&state->lock);
    }
    for (int i = 0; i < CONNECTIONS; i++)
        if (state->connections[i] == connection) state->connections[i] = NULL;
    pthread_mutex_unlock(&state->lock);
    if (connection->tcomm->proxyFree(connection, state) < 0)
        fprintf(stderr, "proxyFree failed: %s\n", psm_last_error()->text);
    free(connection);
}

static psm_status add(psmProxyState *state, const struct request *r, int socket, uint64_t *id)
{
    psmProxyConnection *c = calloc(1, sizeof *c);
    const struct psmP2pVariant *variant = psmP2pFindVariant(end_variant);
    *c = (psmProxyConnection){.state = state,
                              .transport = r->transport,
                              .send = r->send,
                              .rank = r->rank,
                              .connState = socket,
                              .id = psm_random64(),
                              .host = &state->host,
                              .tcomm = r->transport == PSM_TRANSPORT_NET ? end_net[r->send]
                                       : r->send                         ? variant->send
                                                                         : variant->recv};
    pthread_mutex_lock(&state->lock);
    int i = 0;
    while (i < CONNECTIONS && state->connections[i]) i++;
    if (i < CONNECTIONS) state->connections[i] = c;
    pthread_mutex_unlock(&state->lock);
    *id = c->id;
    return i < CONNECTIONS ? PSM_OK : PSM_ERR_NO_RESOURCE;
}

static psm_status answer(psmProxyState *state, const struct request *r, int socket, int given, struct response *out,
                         int *fd)
{
    int done = 0;
    if (r->type == OP_INIT) return add(state, r, socket, &out->connection);
    pthread_mutex_lock(&state->lock);
    psmProxyConnection *c = find(state, r->connection);
    pthread_mutex_unlock(&state->lock);
    if (!c) return psm_fail(PSM_ERR_NOT_FOUND, "call", state->rank, r->rank, 0, "no such connection");
    switch (r->type) {
    case OP_FREE:
        drop(state, c);
        return PSM_OK;
    case OP_GETFD: {
        uint64_t id;
        memcpy(&id, r->req, sizeof id);
        pthread_mutex_lock(&state->lock);
        for (int i = 0; i < OFFERS; i++)
            if (state->offers[i].id == id) *fd = dup(state->offers[i].fd);
        pthread_mutex_unlock(&state->lock);
        return *fd >= 0 ? PSM_OK : psm_fail(PSM_ERR_NOT_FOUND, "getfd", state->rank, r->rank, 0, "no such share");
    }
    case OP_QUERYFD:
        pthread_mutex_lock(&state->lock);
        state->given[state->ngiven++ % OFFERS] = given;
        pthread_mutex_unlock(&state->lock);
        memcpy(out->resp, &given, sizeof given);
        return PSM_OK;
    case psmProxyMsgSetup:
        return c->tcomm->proxySetup(c, state, r->req, r->reqSize, out->resp, r->respSize, &done);
    case psmProxyMsgConnect:
        return c->tcomm->proxyConnect(c, state, r->req, r->reqSize, out->resp, r->respSize, &done);
    case psmProxyMsgRegister:
        return c->tcomm->proxyRegister(c, state, r->req, r->reqSize, out->resp, r->respSize, &done);
    case psmProxyMsgDeregister:
        return c->tcomm->proxyDeregister(c, state, r->req, r->reqSize, &done);
    default:
        return psm_fail(PSM_ERR_PROTOCOL, "call", state->rank, r->rank, 0, "type %d", r->type);
    }
}

static bool serve_one(psmProxyState *state, int socket)
{
    struct request r;
    struct response out = {0};
    int given, fd = -1;
    if (transfer(socket, false, &r, sizeof r, &given) != 0) return false;
    out.status = answer(state, &r, socket, given, &out, &fd);
    if (out.status < 0) snprintf(out.text, sizeof out.text, "%s", psm_last_error()->text);
    bool good = transfer(socket, true, &out, sizeof out, &fd) == 0;
    if (fd >= 0) close(fd);
    return good;
}

static void *service(void *user)
{
    psmProxyState *state = user;
    struct pollfd fds[CLIENTS] = {{.fd = state->stop_pipe[0], .events = POLLIN},
                                  {.fd = state->listener, .events = POLLIN}};
    nfds_t n = 2;
    while (!state->stopping && poll(fds, n, -1) >= 0) {
        if (fds[0].revents) break;
        if (fds[1].revents && n < CLIENTS)
            fds[n++] = (struct pollfd){.fd = accept4(state->listener, NULL, NULL, SOCK_CLOEXEC), .events = POLLIN};
        for (nfds_t i = 2; i < n; i++) {
            if (!fds[i].revents || serve_one(state, fds[i].fd)) continue;
            /* The caller is gone: so are its connections. */
            for (int c = 0; c < CONNECTIONS; c++)
                if (state->connections[c] && state->connections[c]->connState == fds[i].fd)
                    drop(state, state->connections[c]);
            close(fds[i].fd);
            fds[i--] = fds[--n];
        }
    }
    for (int c = 0; c < CONNECTIONS; c++)
        if (state->connections[c]) drop(state, state->connections[c]);
    for (nfds_t i = 2; i < n; i++) close(fds[i].fd);
    return NULL;
}

/* ---- progress ---- */

/* Operations on a connection begin in the order in which they were saved: their streams may come to them in another. */
static bool waits_for_another(const psmProxyState *state, const struct op *op)
{
    for (const struct op *before = state->posted; before != op; before = before->next)
        for (int i = 0; i < before->args.nsubs; i++)
            for (int k = 0; k < op->args.nsubs; k++)
                if (before->args.subs[i].connection == op->args.subs[k].connection) return true;
    return false;
}

static void *progress(void *user)
{
    psmProxyState *state = user;
    state->host.ops->cuda(state)->cudaSetDevice(state->device);
    pthread_mutex_lock(&state->lock);
    while (!state->stopping || state->posted) {
        if (!state->posted) {
            pthread_cond_wait(&state->wake, &state->lock);
            continue;
        }
        bool idle = true;
        for (struct op **at = &state->posted; *at;) {
            struct op *op = *at;
            if (waits_for_another(state, op)) {
                at = &op->next;
                continue;
            }
            pthread_mutex_unlock(&state->lock);
            psm_status status = op->args.progress(state, &op->args);
            if (status != PSM_OK && op->args.state != psmProxyOpNone) abort();
            if (op->args.state == psmProxyOpNone && op->args.sync) {
                if (status != PSM_OK) op->args.sync->failed = (uint32_t)-status;
                __atomic_sub_fetch(&op->args.sync->proxyOpCount, op->args.nsubs, __ATOMIC_ACQ_REL);
            }
            pthread_mutex_lock(&state->lock);
            if (!op->args.idle) idle = false;
            if (op->args.state != psmProxyOpNone) {
                at = &op->next;
                continue;
            }
            *at = op->next;
            free(op);
        }
        pthread_mutex_unlock(&state->lock);
        if (idle) sched_yield();
        pthread_mutex_lock(&state->lock);
    }
    pthread_mutex_unlock(&state->lock);
    return NULL;
}

psm_status psmProxySaveOp(psmProxyState *state, const struct psmProxyOp *op)
{
    pthread_mutex_lock(&state->lock);
    psmProxyConnection *c = find(state, op->connection);
    struct op **last = &state->saved;
    while (*last) last = &(*last)->next;
    /* As NCCL does it: ops of one group and direction are subs of one, where their connections differ. */
    struct op *found = NULL;
    for (struct op *o = state->saved; o && c; o = o->next)
        if (o->args.opCount == op->opCount && o->args.sync == op->sync && o->args.progress == c->tcomm->proxyProgress &&
            o->args.nsubs < PSM_MAX_SUBS)
            found = o;
    for (int s = 0; found && s < found->args.nsubs; s++)
        if (found->args.subs[s].connection == c) found = NULL;
    if (c && !found) {
        found = *last = calloc(1, sizeof *found);
        found->args.state = psmProxyOpReady;
        found->args.progress = c->tcomm->proxyProgress;
        found->args.opCount = op->opCount;
        found->args.sync = op->sync;
    }
    if (found)
        found->args.subs[found->args.nsubs++] = (struct psmProxySubArgs){.connection = c,
                                                                         .sendbuff = op->sendbuff,
                                                                         .recvbuff = op->recvbuff,
                                                                         .nbytes = op->nbytes,
                                                                         .peer = op->peer,
                                                                         .channel = op->channel,
                                                                         .sendHandle = op->sendHandle,
                                                                         .recvHandle = op->recvHandle,
                                                                         .reg = op->reg};
    pthread_mutex_unlock(&state->lock);
    return c ? PSM_OK : psm_fail(PSM_ERR_NOT_FOUND, "saveop", state->rank, op->peer, 0, "no such connection");
}

psm_status psmProxyStart(psmProxyState *state)
{
    pthread_mutex_lock(&state->lock);
    struct op **last = &state->posted;
    while (*last) last = &(*last)->next;
    *last = state->saved;
    state->saved = NULL;
    pthread_cond_broadcast(&state->wake);
    pthread_mutex_unlock(&state->lock);
    return PSM_OK;
}

void psmProxyWake(psmProxyState *state)
{
    (void)state; /* it yields and looks */
}
int psmProxyAborted(const psmProxyState *state)
{
    return state->aborted != 0;
}
int psmProxyRank(const psmProxyState *state)
{
    return state->rank;
}
const struct psm_settings *psmProxySettings(const psmProxyState *state)
{
    return &state->settings;
}
psm_status psmProxyAsyncError(const psmProxyState *state)
{
    return state->error.status ? psm_fail_again(&state->error) : PSM_OK;
}

/* ---- host ---- */

static psm_status ask(struct connector *c, struct request *r, int fd, void *resp, int *got)
{
    struct response out;
    r->connection = c->connection;
    int none = -1;
    if (transfer(c->socket, true, r, sizeof *r, &fd) != 0 ||
        transfer(c->socket, false, &out, sizeof out, got ? got : &none) != 0)
        return psm_fail(PSM_ERR_PEER_DEAD, "call", r->rank, c->rank, 0, "the service of rank %d is gone", c->rank);
    if (out.status < 0) return psm_fail(out.status, "call", r->rank, c->rank, 0, "%s", out.text);
    if (r->type == OP_INIT) c->connection = out.connection;
    if (resp) memcpy(resp, out.resp, (size_t)r->respSize);
    return PSM_OK;
}

static psm_status do_connect(void *host, int transport, int send, int rank, void **out)
{
    psmProxyState *state = host;
    struct sockaddr_un address;
    struct connector *c = calloc(1, sizeof *c);
    socklen_t n = address_of(state->places[rank].name, &address);
    *c = (struct connector){.rank = rank, .socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    struct request r = {.type = OP_INIT, .transport = transport, .send = send, .rank = state->rank};
    psm_status status = connect(c->socket, (struct sockaddr *)&address, n) == 0
                            ? ask(c, &r, -1, NULL, NULL)
                            : psm_fail_errno(errno, "init", state->rank, rank, "connecting to rank %d", rank);
    if (status == PSM_OK) {
        *out = c;
    } else {
        close(c->socket);
        free(c);
    }
    return status;
}

static psm_status do_call(void *host, void *connector, int type, const void *req, int reqSize, void *resp, int respSize)
{
    struct request r = {.type = type, .rank = ((psmProxyState *)host)->rank, .reqSize = reqSize, .respSize = respSize};
    memcpy(r.req, req, (size_t)reqSize);
    return ask(connector, &r, -1, resp, NULL);
}
static psm_status do_get_fd(void *host, void *connector, uint64_t id, int *fd)
{
    struct request r = {.type = OP_GETFD, .rank = ((psmProxyState *)host)->rank};
    memcpy(r.req, &id, sizeof id);
    return ask(connector, &r, -1, NULL, fd);
}
static psm_status do_query_fd(void *host, void *connector, int fd, int *remote)
{
    struct request r = {.type = OP_QUERYFD, .rank = ((psmProxyState *)host)->rank, .respSize = sizeof(int)};
    return ask(connector, &r, fd, remote, NULL);
}
static psm_status do_disconnect(void *host, void *connector)
{
    struct connector *c = connector;
    struct request r = {.type = OP_FREE, .rank = ((psmProxyState *)host)->rank};
    psm_status status = ask(c, &r, -1, NULL, NULL);
    close(c->socket);
    free(c);
    return status == PSM_ERR_PEER_DEAD ? PSM_OK : status;
}
static psm_status do_offer(void *host, uint64_t id, int fd)
{
    psmProxyState *state = host;
    int i = 0;
    pthread_mutex_lock(&state->lock);
    while (state->offers[i].id) i++;
    state->offers[i].id = id;
    state->offers[i].fd = fd;
    pthread_mutex_unlock(&state->lock);
    return PSM_OK;
}
static psm_status do_withdraw(void *host, uint64_t id)
{
    psmProxyState *state = host;
    psm_status status = PSM_ERR_NOT_FOUND;
    pthread_mutex_lock(&state->lock);
    for (int i = 0; i < OFFERS; i++)
        if (state->offers[i].id == id) state->offers[i].id = 0, status = PSM_OK;
    pthread_mutex_unlock(&state->lock);
    return status;
}
static psm_status do_take(void *host, int number, int *fd)
{
    psmProxyState *state = host;
    *fd = -1;
    pthread_mutex_lock(&state->lock);
    for (int i = 0; i < OFFERS; i++)
        if (state->given[i] == number && number > 0) state->given[i] = 0, *fd = number;
    pthread_mutex_unlock(&state->lock);
    return *fd >= 0 ? PSM_OK : psm_fail(PSM_ERR_NOT_FOUND, "queryfd", state->rank, -1, 0, "no such descriptor");
}
static int do_aborted(void *host)
{
    return psmProxyAborted(host);
}
static int do_alive(void *host, int rank)
{
    const struct end_place *place = &((psmProxyState *)host)->places[rank];
    return psm_pid_alive(place->pid, place->start_time);
}
static void do_error(void *host, psm_status status, const char *text)
{
    psmProxyState *state = host;
    if (state->error.status == PSM_OK) state->error = *psm_last_error();
    (void)status;
    (void)text;
}
static int do_rank(void *host)
{
    return ((psmProxyState *)host)->rank;
}
static int do_device(void *host)
{
    return ((psmProxyState *)host)->device;
}
static const struct psm_settings *do_settings(void *host)
{
    return &((psmProxyState *)host)->settings;
}
static const struct psm_cuda *do_cuda(void *host)
{
    (void)host;
    return psm_cuda_get();
}
static uint64_t do_connection(void *host, void *connector)
{
    (void)host;
    return ((struct connector *)connector)->connection;
}
static const struct psm_host_ops ops = {sizeof ops, do_connect,  do_call,     do_get_fd,  do_query_fd,   do_disconnect,
                                        do_offer,   do_withdraw, do_take,     do_aborted, do_alive,      do_error,
                                        do_rank,    do_device,   do_settings, do_cuda,    do_connection, NULL,
                                        NULL,       NULL,        NULL};

psm_status end_open(int rank, int nranks, int device, const struct psm_settings *settings, struct end_place *place,
                    struct end *end)
{
    (void)nranks;
    psmProxyState *state = calloc(1, sizeof *state);
    struct sockaddr_un address;
    *place = (struct end_place){.pid = psm_proc_self()->pid, .start_time = psm_proc_self()->start_time};
    snprintf(place->name, sizeof place->name, "psm-test-%016llx", (unsigned long long)psm_random64());
    socklen_t n = address_of(place->name, &address);
    state->host = (struct psm_host){&ops, state};
    state->rank = rank;
    state->device = device;
    state->settings = *settings;
    state->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    pthread_mutex_init(&state->lock, NULL);
    pthread_cond_init(&state->wake, NULL);
    if (bind(state->listener, (struct sockaddr *)&address, n) != 0 || listen(state->listener, CLIENTS) != 0 ||
        pipe(state->stop_pipe) != 0)
        return psm_fail_errno(errno, "init", rank, -1, "the stand-in's socket");
    end->state = state;
    end->host = state->host;
    return PSM_OK;
}

psm_status end_meet(struct end *end, const struct end_place *places, int nranks)
{
    (void)nranks;
    end->state->places = places;
    pthread_create(&end->state->service, NULL, service, end->state);
    pthread_create(&end->state->progress, NULL, progress, end->state);
    return PSM_OK;
}

psm_status end_close(struct end *end)
{
    psmProxyState *state = end->state;
    pthread_mutex_lock(&state->lock);
    state->stopping = true;
    pthread_cond_broadcast(&state->wake);
    pthread_mutex_unlock(&state->lock);
    close(state->stop_pipe[1]);
    pthread_join(state->progress, NULL);
    pthread_join(state->service, NULL);
    close(state->stop_pipe[0]);
    close(state->listener);
    free(state);
    return PSM_OK;
}

void end_abort(struct end *end)
{
    end->state->aborted = 1;
}
