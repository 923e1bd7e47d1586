/* Connections: listen, connect, accept. The sender opens all streams and says on each who it is; the receiver takes
 * them together by the number of the connection. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net_say.h"
#include "socket/socket.h"

enum { ARRIVALS = 64, PARTIALS = 64, BACKLOG = 1024 };

struct socket_arrival {
    int fd;
    uint32_t got;
    uint64_t since, deadline;
    union socket_address from;
    struct socket_hello hello;
};

struct socket_partial {
    struct socket_hello hello; /* of its first stream */
    union socket_address from;
    uint64_t deadline;
    uint32_t have;
    int fd[SOCKET_STREAMS + 1]; /* -1: not here yet */
};

struct pending {
    struct pending *next;
    uint64_t id, deadline;
    struct socket_comm *comm;
    union socket_address to;
    uint32_t said[SOCKET_STREAMS + 1]; /* bytes of the hello */
    bool connected[SOCKET_STREAMS + 1];
    struct socket_hello hello;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending *pendings;

static uint64_t deadline(void)
{
    return psm_clock_ns() + net_settings.timeout_ms * 1000000u;
}

/* ---- options ---- */

static bool congestion(int fd, const char *name)
{
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}

/* Options of a connected socket. local: both ends are on this host. Writes the congestion control that it has. */
static ncclResult_t socket_options(int fd, bool local, int traffic_class, char name[16])
{
    int one = 1, family = 0;
    socklen_t n = sizeof family;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        return net_system("setting TCP_NODELAY", errno);
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &n);
    if (traffic_class != NCCL_NET_TRAFFIC_CLASS_UNDEF)
        setsockopt(fd, family == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP, family == AF_INET6 ? IPV6_TCLASS : IP_TOS,
                   &traffic_class, sizeof traffic_class);
    if (net_settings.congestion == NET_CONGESTION_NAMED && !congestion(fd, net_settings.congestion_name)) {
        char what[64];
        snprintf(what, sizeof what, "setting congestion control %s", net_settings.congestion_name);
        return net_system(what, errno);
    }
    /* One that paces or measures delays has nothing to gain inside a host, and loses a third there. */
    if (net_settings.congestion == NET_CONGESTION_AUTO && local && !congestion(fd, "cubic")) congestion(fd, "reno");
    n = 15;
    memset(name, 0, 16);
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &n) != 0) strcpy(name, "?");
    return ncclSuccess;
}

/* Before connect or listen: the window is agreed on then. */
static ncclResult_t buffers(int fd)
{
    int size = (int)net_settings.buffer;
    if (size && (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) != 0 ||
                 setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) != 0))
        return net_system("setting the sizes of socket buffers", errno);
    return ncclSuccess;
}

static bool same_host(int fd)
{
    union socket_address a = {0}, b = {0};
    socklen_t na = sizeof a, nb = sizeof b;
    if (getsockname(fd, &a.any, &na) != 0 || getpeername(fd, &b.any, &nb) != 0) return false;
    if (a.any.sa_family == AF_INET) return a.v4.sin_addr.s_addr == b.v4.sin_addr.s_addr;
    return memcmp(&a.v6.sin6_addr, &b.v6.sin6_addr, sizeof a.v6.sin6_addr) == 0;
}

static int *descriptor(struct socket_comm *c, uint32_t i)
{
    return i < c->streams ? &c->stream[i].fd : &c->notices;
}

static uint32_t descriptors(uint32_t streams, uint32_t max_recvs)
{
    return streams + (max_recvs > 1);
}

static ncclResult_t ready(struct socket_comm *c, int traffic_class)
{
    char name[16] = "";
    bool local = same_host(c->stream[0].fd);
    for (uint32_t i = 0; i < descriptors(c->streams, (uint32_t)c->net.max_recvs); i++) {
        ncclResult_t result = socket_options(*descriptor(c, i), local, traffic_class, name);
        if (result != ncclSuccess) return result;
    }
    NET_SAY(PSM_NET_CONNECTED, psm_net_connected, NCCL_NET, "socket", c->net.id, c->net.sends ? "send" : "recv",
            c->net.rank, c->net.dev, c->net.peer_rank, c->net.address, c->streams, name);
    return ncclSuccess;
}

/* ---- listen ---- */

ncclResult_t socket_listen(const struct net_context *context, int dev, void *handle, struct net_listener **out)
{
    struct socket_listener *l = calloc(1, sizeof *l);
    if (!l) return net_no_memory("a listener", sizeof *l);
    l->arrivals = calloc(ARRIVALS, sizeof *l->arrivals);
    l->partials = calloc(PARTIALS, sizeof *l->partials);
    l->streams = (uint32_t)net_settings.streams;
    l->max_recvs = net_settings.max_recvs ? (uint32_t)net_settings.max_recvs : 1;
    l->traffic_class = context->traffic_class;
    union socket_address address = socket_device(dev)->address;
    socklen_t length = socket_length(&address);
    ncclResult_t result = net_random(l->secret, sizeof l->secret);
    l->fd = -1;
    if (!l->arrivals || !l->partials)
        result = net_no_memory("a listener", ARRIVALS * sizeof *l->arrivals + PARTIALS * sizeof *l->partials);
    if (result == ncclSuccess) {
        l->fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (l->fd >= 0) result = buffers(l->fd);
        if (result == ncclSuccess && (l->fd < 0 || bind(l->fd, &address.any, length) != 0 ||
                                      listen(l->fd, BACKLOG) != 0 || getsockname(l->fd, &address.any, &length) != 0)) {
            char text[NET_ADDRESS], what[128];
            socket_text(&address, text);
            snprintf(what, sizeof what, "listening on %s of %s", text, socket_device(dev)->name);
            result = net_system(what, errno);
        }
    }
    if (result != ncclSuccess) {
        socket_close_listen(&l->net);
        return result;
    }
    struct socket_handle h = {
        .magic = SOCKET_HANDLE_MAGIC,
        .version = SOCKET_VERSION,
        .family = address.any.sa_family == AF_INET ? 4 : 6,
        .streams = (uint8_t)l->streams,
        .max_recvs = (uint8_t)l->max_recvs,
        .rank = psm_proc_self()->rank,
        .dev = dev,
    };
    memcpy(h.secret, l->secret, sizeof h.secret);
    if (h.family == 4) {
        h.port = address.v4.sin_port;
        memcpy(h.address, &address.v4.sin_addr, 4);
    } else {
        h.port = address.v6.sin6_port;
        memcpy(h.address, &address.v6.sin6_addr, 16);
    }
    memcpy(handle, &h, sizeof h);
    *out = &l->net;
    return ncclSuccess;
}

void socket_close_listen(struct net_listener *listener)
{
    struct socket_listener *l = (struct socket_listener *)listener;
    for (uint32_t i = 0; i < l->narrivals; i++) close(l->arrivals[i].fd);
    for (uint32_t i = 0; i < l->npartials; i++)
        for (int k = 0; k <= SOCKET_STREAMS; k++)
            if (l->partials[i].fd[k] >= 0) close(l->partials[i].fd[k]);
    if (l->fd >= 0) close(l->fd);
    net_say_refused_rest();
    free(l->arrivals);
    free(l->partials);
    free(l);
}

/* ---- connect ---- */

static ncclResult_t read_handle(const struct socket_handle *h, int dev, union socket_address *to)
{
    if (h->magic != SOCKET_HANDLE_MAGIC) return net_bad_handle("magic", h->magic, SOCKET_HANDLE_MAGIC);
    if (h->version != SOCKET_VERSION) return net_bad_handle("version", h->version, SOCKET_VERSION);
    if (h->streams < 1 || h->streams > SOCKET_STREAMS)
        return net_bad_handle("number of streams", h->streams, SOCKET_STREAMS);
    if (h->max_recvs < 1 || h->max_recvs > NET_RECVS) return net_bad_handle("maxRecvs", h->max_recvs, NET_RECVS);
    if (h->family != 4 && h->family != 6) return net_bad_handle("address family", h->family, 4);
    *to = (union socket_address){0};
    if (h->family == 4) {
        to->v4.sin_family = AF_INET;
        to->v4.sin_port = h->port;
        memcpy(&to->v4.sin_addr, h->address, 4);
        return ncclSuccess;
    }
    to->v6.sin6_family = AF_INET6;
    to->v6.sin6_port = h->port;
    memcpy(&to->v6.sin6_addr, h->address, 16);
    /* Which link it is has another number on each host. */
    const union socket_address *own = &socket_device(dev)->address;
    if (IN6_IS_ADDR_LINKLOCAL(&to->v6.sin6_addr) && own->any.sa_family == AF_INET6)
        to->v6.sin6_scope_id = own->v6.sin6_scope_id;
    return ncclSuccess;
}

static void give_up(struct pending *p)
{
    if (p->comm) socket_close(&p->comm->net);
    free(p);
}

static struct pending *take_pending(uint64_t id)
{
    pthread_mutex_lock(&lock);
    struct pending **at = &pendings;
    while (*at && (id == 0 || (*at)->id != id)) at = &(*at)->next;
    struct pending *p = *at;
    if (p) *at = p->next;
    pthread_mutex_unlock(&lock);
    return p;
}

static void keep_pending(struct pending *p)
{
    pthread_mutex_lock(&lock);
    p->next = pendings;
    pendings = p;
    pthread_mutex_unlock(&lock);
}

void socket_forget_pending(void)
{
    while (pendings) give_up(take_pending(pendings->id));
}

static ncclResult_t begin(const struct socket_handle *h, int dev, struct pending **out)
{
    struct pending *p = calloc(1, sizeof *p);
    if (!p) return net_no_memory("a connection", sizeof *p);
    p->comm = socket_comm_new(true, dev, h->max_recvs, h->streams);
    ncclResult_t result = read_handle(h, dev, &p->to);
    if (!p->comm) result = net_no_memory("a connection", sizeof *p->comm);
    uint64_t numbers[2];
    if (result == ncclSuccess) result = net_random(numbers, sizeof numbers);
    if (result != ncclSuccess) {
        give_up(p);
        return result;
    }
    struct socket_comm *c = p->comm;
    c->net.id = numbers[0];
    p->id = numbers[1] | 1;
    p->deadline = deadline();
    c->net.peer_rank = h->rank;
    c->net.peer_dev = h->dev;
    socket_text(&p->to, c->net.address);
    p->hello = (struct socket_hello){
        .magic = SOCKET_HELLO_MAGIC,
        .version = SOCKET_VERSION,
        .size = sizeof p->hello,
        .connection = c->net.id,
        .streams = (uint16_t)descriptors(h->streams, h->max_recvs),
        .rank = c->net.rank,
        .dev = dev,
        .pid = (uint32_t)psm_proc_self()->pid,
        .max_recvs = h->max_recvs,
    };
    memcpy(p->hello.secret, h->secret, sizeof p->hello.secret);
    *out = p;
    return ncclSuccess;
}

static ncclResult_t failed(const struct pending *p, const char *doing, int number)
{
    char what[160];
    snprintf(what, sizeof what, "%s %s, where rank %d listens", doing, p->comm->net.address, p->comm->net.peer_rank);
    net_system(what, number);
    return number == ECONNREFUSED || number == ECONNRESET || number == EPIPE ? ncclRemoteError : ncclSystemError;
}

/* One stream, as far as it goes now. */
static ncclResult_t go_on(struct pending *p, uint32_t i, bool *done)
{
    int *fd = descriptor(p->comm, i);
    *done = false;
    if (*fd < 0) {
        *fd = socket(p->to.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (*fd < 0) return failed(p, "making a socket for", errno);
        ncclResult_t result = buffers(*fd);
        if (result != ncclSuccess) return result;
        if (connect(*fd, &p->to.any, socket_length(&p->to)) == 0)
            p->connected[i] = true;
        else if (errno != EINPROGRESS)
            return failed(p, "connecting to", errno);
    }
    if (!p->connected[i]) {
        struct pollfd now = {*fd, POLLOUT, 0};
        if (poll(&now, 1, 0) <= 0) return ncclSuccess;
        int error = 0;
        socklen_t n = sizeof error;
        if (getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0) error = errno;
        if (error) return failed(p, "connecting to", error);
        p->connected[i] = true;
    }
    struct socket_hello hello = p->hello;
    hello.stream = (uint16_t)i;
    while (p->said[i] < sizeof hello) {
        ssize_t n = send(*fd, (char *)&hello + p->said[i], sizeof hello - p->said[i], MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return ncclSuccess;
        if (n < 0) return failed(p, "greeting", errno);
        p->said[i] += (uint32_t)n;
    }
    *done = true;
    return ncclSuccess;
}

ncclResult_t socket_connect(const struct net_context *context, int dev, void *handle, struct net_comm **out)
{
    struct socket_handle h;
    memcpy(&h, handle, sizeof h);
    ncclResult_t result = ncclSuccess;
    struct pending *p = take_pending(h.pending);
    if (!p && (result = begin(&h, dev, &p)) != ncclSuccess) return result;
    bool all = true, done;
    uint32_t count = descriptors(p->comm->streams, (uint32_t)p->comm->net.max_recvs);
    for (uint32_t i = 0; i < count && result == ncclSuccess; i++) {
        result = go_on(p, i, &done);
        all = all && done;
    }
    if (result == ncclSuccess && !all && psm_clock_ns() > p->deadline) result = failed(p, "connecting to", ETIMEDOUT);
    if (result == ncclSuccess && all) result = ready(p->comm, context->traffic_class);
    h.pending = result == ncclSuccess && !all ? p->id : 0;
    memcpy(handle, &h, sizeof h);
    if (result != ncclSuccess) {
        give_up(p);
    } else if (all) {
        *out = &p->comm->net;
        free(p);
    } else {
        keep_pending(p);
    }
    return result;
}

/* ---- accept ---- */

static void turn_away(const struct socket_listener *l, int fd, const union socket_address *from, const char *why)
{
    char text[NET_ADDRESS];
    socket_text(from, text);
    net_say_refused(l->net.dev, text, why);
    close(fd);
}

static const char *wrong_hello(const struct socket_listener *l, const struct socket_hello *h)
{
    if (h->magic != SOCKET_HELLO_MAGIC) return "it does not speak our protocol";
    if (h->version != SOCKET_VERSION || h->size != sizeof *h) return "it speaks another version of our protocol";
    if (!net_same_secret(h->secret, l->secret)) return "it does not have the secret of this listener's handle";
    if (h->max_recvs != l->max_recvs || h->streams != descriptors(l->streams, l->max_recvs) || h->stream >= h->streams)
        return "it has not the streams that the handle says";
    return NULL;
}

static const char *join(struct socket_listener *l, const struct socket_arrival *a)
{
    struct socket_partial *p = l->partials, *end = p + l->npartials;
    while (p < end && p->hello.connection != a->hello.connection) p++;
    if (p == end) {
        if (l->npartials == PARTIALS) return "too many connections of which streams are missing";
        *p = (struct socket_partial){.hello = a->hello, .from = a->from, .deadline = deadline()};
        for (int i = 0; i <= SOCKET_STREAMS; i++) p->fd[i] = -1;
        l->npartials++;
    }
    if (p->fd[a->hello.stream] >= 0) return "this stream of the connection is here already";
    p->fd[a->hello.stream] = a->fd;
    p->have++;
    return NULL;
}

/* Whether the arrival is through with: joined or turned away. */
static bool hear(struct socket_listener *l, struct socket_arrival *a)
{
    ssize_t n = recv(a->fd, (char *)&a->hello + a->got, sizeof a->hello - a->got, 0);
    const char *why = NULL;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (psm_clock_ns() < a->deadline) return false;
        why = "it did not say who it is in time";
    } else if (n <= 0) {
        why = "it closed before it said who it is";
    } else {
        a->got += (uint32_t)n;
        if (a->got < sizeof a->hello) return false;
        why = wrong_hello(l, &a->hello);
        if (!why) why = join(l, a);
    }
    if (why) turn_away(l, a->fd, &a->from, why);
    return true;
}

static void hear_all(struct socket_listener *l)
{
    for (uint32_t i = 0; i < l->narrivals;)
        if (hear(l, &l->arrivals[i]))
            l->arrivals[i] = l->arrivals[--l->narrivals];
        else
            i++;
}

/* A place for one that waits. What has not said who it is for the longest time gives it up. */
static bool has_place(struct socket_listener *l)
{
    struct pollfd waits = {l->fd, POLLIN, 0};
    if (l->narrivals < ARRIVALS) return true;
    if (poll(&waits, 1, 0) <= 0) return false;
    struct socket_arrival *oldest = l->arrivals;
    for (uint32_t i = 1; i < l->narrivals; i++)
        if (l->arrivals[i].since < oldest->since) oldest = &l->arrivals[i];
    if (psm_clock_ns() - oldest->since < NET_CROWDED_NS) return false;
    turn_away(l, oldest->fd, &oldest->from, "it did not say who it is, and others wait for its place");
    *oldest = l->arrivals[--l->narrivals];
    return true;
}

static ncclResult_t let_in(struct socket_listener *l)
{
    while (has_place(l)) {
        struct socket_arrival *a = &l->arrivals[l->narrivals];
        *a = (struct socket_arrival){.fd = -1};
        socklen_t n = sizeof a->from;
        a->fd = accept4(l->fd, &a->from.any, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (a->fd < 0 && (errno == EAGAIN || errno == EINTR)) return ncclSuccess;
        if (a->fd < 0 && errno == ECONNABORTED) continue;
        if (a->fd < 0) return net_system("accepting a connection", errno);
        a->since = psm_clock_ns();
        a->deadline = deadline();
        l->narrivals++;
    }
    return ncclSuccess;
}

static ncclResult_t make(struct socket_listener *l, struct socket_partial *p, struct net_comm **out)
{
    struct socket_comm *c = socket_comm_new(false, l->net.dev, (int)l->max_recvs, l->streams);
    if (!c) return net_no_memory("a connection", sizeof *c);
    for (uint32_t i = 0; i < p->hello.streams; i++) {
        *descriptor(c, i) = p->fd[i];
        p->fd[i] = -1;
    }
    c->net.id = p->hello.connection;
    c->net.peer_rank = p->hello.rank;
    c->net.peer_dev = p->hello.dev;
    socket_text(&p->from, c->net.address);
    ncclResult_t result = ready(c, l->traffic_class);
    if (result != ncclSuccess)
        socket_close(&c->net);
    else
        *out = &c->net;
    return result;
}

ncclResult_t socket_accept(struct net_listener *listener, struct net_comm **out)
{
    struct socket_listener *l = (struct socket_listener *)listener;
    /* Those that are here first: what they have said makes room. */
    hear_all(l);
    ncclResult_t result = let_in(l);
    hear_all(l);
    for (uint32_t i = 0; i < l->npartials && result == ncclSuccess && !*out;) {
        struct socket_partial *p = &l->partials[i];
        bool whole = p->have == p->hello.streams;
        if (whole) {
            result = make(l, p, out);
        } else if (psm_clock_ns() < p->deadline) {
            i++;
            continue;
        }
        for (uint32_t k = 0; k < p->hello.streams; k++) /* what make did not take */
            if (p->fd[k] >= 0) turn_away(l, p->fd[k], &p->from, "other streams of its connection did not come");
        *p = l->partials[--l->npartials];
    }
    return result;
}
