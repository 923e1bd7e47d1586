/* The receiver posts its irecvs to the sender, over the same connection; a sender matches an isend with the oldest post
   that has a free slot, and answers NULL where there is none. So nothing is buffered, and the order is that of posts.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net.h"

enum { IN_FLIGHT = 32, REQUESTS = IN_FLIGHT * MAX_RECVS + 8 };

struct header {
    uint32_t group, slot;
    uint64_t size;
};

struct post {
    uint32_t n, tag[MAX_RECVS], size[MAX_RECVS], taken[MAX_RECVS];
};

struct listener {
    int fd, open;
};

struct request {
    struct comm *comm;
    bool used, done, flush;
    unsigned number; /* the how manieth of its comm */
    int n, left;
    uint8_t *data[MAX_RECVS];
    uint8_t *gpu[MAX_RECVS]; /* where the data goes from there, which is then a buffer of its own */
    size_t posted[MAX_RECVS], got[MAX_RECVS];
    struct header header;
    size_t sent; /* of header and data */
    void *event[MAX_RECVS];
    bool eventful[MAX_RECVS];
};

struct comm {
    int fd;
    bool sending, swapped;
    struct listener *listener;
    struct request request[REQUESTS];
    unsigned requests;
    struct request *queue[REQUESTS]; /* sends in order */
    unsigned first, last;
    struct post post[IN_FLIGHT]; /* of the sender: what it knows of; of the receiver: what is to be told */
    unsigned post_first, post_last;
    size_t post_bytes; /* of the post that is read or written */
    struct request *group[IN_FLIGHT];
    unsigned group_first, group_last;
    struct header header; /* that is read */
    size_t got;           /* of it and its data */
};

struct handle {
    uint32_t port, mode;
    struct comm *connecting; /* the sender's own note: the same memory in each call */
};

static ncclDebugLogger_t log_line;
static int lives; /* contexts */
static int virtuals;
static ncclProfilerCallback_t profiler;
static bool torn; /* BROKEN=context */

bool broken(const char *name)
{
    const char *what = getenv("BROKEN");
    return what && strcmp(what, name) == 0;
}

ncclResult_t net_fail(ncclResult_t result, const char *what)
{
    if (log_line) log_line(NCCL_LOG_WARN, NCCL_NET, __FILE__, __LINE__, "NET/Broken : %s: %s", what, strerror(errno));
    return result;
}

/* Starts a thread that never ends. It runs code of the C library only, and no signal ends its pause(): once the plugin
 * is unmapped, code of the plugin would crash, earlier or later as the machine is busy or not. */
static void start_thread(void)
{
    pthread_t thread;
    int (*code)(void) = pause;
    void *(*start)(void *);
    memcpy(&start, &code, sizeof start);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    if (pthread_create(&thread, NULL, start, NULL) == 0) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

ncclResult_t net_init(void **context, ncclDebugLogger_t logger)
{
    log_line = logger;
    if (broken("init-fails")) return net_fail(ncclSystemError, "there is no network");
    if (broken("init-exits")) exit(3);
    if (broken("init-thread") && lives == 0) start_thread();
    lives++;
    torn = false;
    if (context) *context = malloc(1);
    return ncclSuccess;
}

ncclResult_t net_finalize(void *context)
{
    free(context);
    lives--;
    if (broken("context")) torn = true;
    if (broken("finalize-fails")) return ncclInternalError;
    return ncclSuccess;
}

ncclResult_t net_devices(int *n)
{
    const char *text = getenv("DEVICES"); /* all are the loopback interface */
    *n = broken("no-devices") ? 0 : text ? atoi(text) : 1;
    if (!broken("vdevice-uncounted")) *n += virtuals;
    return ncclSuccess;
}

/* ---- connections ---- */

static void not_blocking(int fd)
{
    int one = 1;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static struct handle *kept_handle;

ncclResult_t net_listen(void *context, int dev, void *handle, void **listener)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    struct listener *l = calloc(1, sizeof *l);
    struct handle *h = handle;
    (void)context, (void)dev;
    if (torn) return net_fail(ncclInternalError, "listen after finalize of another context");
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(l->fd, (struct sockaddr *)&address, n) != 0 || listen(l->fd, 64) != 0 ||
        getsockname(l->fd, (struct sockaddr *)&address, &n) != 0)
        return net_fail(ncclSystemError, "listen");
    not_blocking(l->fd);
    memset(h, 0, sizeof *h);
    h->port = ntohs(address.sin_port);
    if (broken("long-handle")) memset(handle, 1, 200);
    kept_handle = h;
    if (broken("no-listener")) return ncclSuccess;
    *listener = l;
    return ncclSuccess;
}

static struct comm *comm_of(int fd, bool sending)
{
    struct comm *c = calloc(1, sizeof *c);
    c->fd = fd;
    c->sending = sending;
    return c;
}

ncclResult_t net_connect(void *context, int dev, void *handle, void **comm)
{
    struct handle *h = handle;
    (void)context, (void)dev;
    *comm = NULL;
    if (!h->connecting) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        to.sin_port = htons((uint16_t)h->port);
        not_blocking(fd);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS)
            return net_fail(ncclSystemError, "connect");
        h->connecting = comm_of(fd, true);
        if (!broken("connect-blocks")) return ncclSuccess;
    }
    struct comm *c = h->connecting;
    struct pollfd wait = {c->fd, broken("connect-blocks") ? POLLIN : POLLOUT, 0};
    if (poll(&wait, 1, broken("connect-blocks") ? -1 : 0) == 0) return ncclSuccess;
    if (broken("connect-never")) return ncclSuccess;
    if (broken("connect-fails")) return net_fail(ncclRemoteError, "connect");
    if (broken("thread-leak")) start_thread();
    *comm = c;
    h->connecting = NULL;
    return ncclSuccess;
}

ncclResult_t net_accept(void *listener, void **comm)
{
    struct listener *l = listener;
    *comm = NULL;
    if (broken("keeps-handle")) kept_handle->mode = 1;
    struct pollfd wait = {l->fd, POLLIN, 0};
    if (broken("accept-blocks")) poll(&wait, 1, -1);
    int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && broken("accept-early")) return net_fail(ncclSystemError, "accept");
    if (fd < 0) return errno == EAGAIN ? ncclSuccess : net_fail(ncclSystemError, "accept");
    not_blocking(fd);
    struct comm *c = comm_of(fd, false);
    c->listener = l;
    l->open++;
    *comm = c;
    return ncclSuccess;
}

ncclResult_t net_close_send(void *comm)
{
    struct comm *c = comm;
    struct pollfd wait = {c->fd, POLLIN, 0};
    char byte;
    if (broken("close-waits")) /* until the other side has closed: posts may be there */
        while (poll(&wait, 1, -1) > 0 && read(c->fd, &byte, 1) > 0) {
        }
    close(c->fd);
    free(c);
    return ncclSuccess;
}

ncclResult_t net_close_recv(void *comm)
{
    struct comm *c = comm;
    if (broken("close-order")) {
        if (c->listener->open < 0) abort(); /* closeListen was first */
        c->listener->open--;
    }
    if (!broken("fd-leak")) close(c->fd);
    free(c);
    return ncclSuccess;
}

ncclResult_t net_close_listen(void *listener)
{
    struct listener *l = listener;
    if (broken("close-busy") && l->open) return net_fail(ncclInternalError, "closeListen with connections");
    close(l->fd);
    l->open = -1;
    if (!broken("close-order")) free(l);
    return ncclSuccess;
}

/* ---- data ---- */

static struct request *new_request(struct comm *c)
{
    for (int i = 0; i < REQUESTS; i++) {
        struct request *r = &c->request[i];
        if (r->used && !(broken("same-request") && c->sending)) continue;
        *r = (struct request){.comm = c, .used = true, .n = 1, .number = c->requests++};
        return r;
    }
    return NULL;
}

/* Up to n bytes from `at` on; -1: an error. */
static ssize_t some(struct comm *c, bool write_it, void *data, size_t n)
{
    ssize_t k = write_it ? send(c->fd, data, n, MSG_NOSIGNAL) : recv(c->fd, data, n, 0);
    if (k < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (k == 0 && n && !write_it) errno = ECONNRESET;
    return k <= 0 && n ? -1 : k;
}

static ncclResult_t progress_sender(struct comm *c)
{
    enum { POST = sizeof(uint32_t) * (1 + 2 * MAX_RECVS) };
    ssize_t k;
    while (c->post_last - c->post_first < IN_FLIGHT) {
        struct post *p = &c->post[c->post_last % IN_FLIGHT];
        if ((k = some(c, false, (char *)p + c->post_bytes, POST - c->post_bytes)) < 0) break; /* told by the writes */
        if (k == 0) break;
        if ((c->post_bytes += (size_t)k) < POST) continue;
        memset(p->taken, 0, sizeof p->taken);
        c->post_bytes = 0;
        c->post_last++;
    }
    while (c->first != c->last) {
        struct request *r = c->queue[c->first % REQUESTS];
        size_t head = sizeof r->header, size = r->header.size;
        if (r->sent < head)
            k = some(c, true, (char *)&r->header + r->sent, head - r->sent);
        else
            k = some(c, true, r->data[0] + (r->sent - head), size - (r->sent - head));
        if (k < 0) return net_fail(ncclRemoteError, "send");
        r->sent += (size_t)k;
        if (r->sent == head + size) {
            if (r->gpu[0]) free(r->data[0]);
            r->done = true;
            r->got[0] = size;
            c->first++;
        } else if (k == 0) {
            break;
        }
    }
    return ncclSuccess;
}

static void complete(struct comm *c, struct request *r, uint32_t slot, size_t size)
{
    uint8_t *data = r->data[slot];
    if (!r->done) r->got[slot] = broken("posted-size") ? r->posted[slot] : size;
    if (broken("wrong-data") && size > 1 << 20) data[size / 2] ^= 0x40;
    if (r->gpu[slot]) {
        net_unstage(r->gpu[slot], data, size);
    }
    if (--r->left == 0) {
        r->done = true;
        c->group_first++;
        if (broken("done-twice") && c->group_first != c->group_last) {
            c->group[c->group_first % IN_FLIGHT]->done = true;
            memcpy(c->group[c->group_first % IN_FLIGHT]->got, r->got, sizeof r->got);
        }
    }
}

/* Which request the header that has come is for. */
static struct request *target(struct comm *c)
{
    uint32_t g = c->header.group;
    if (broken("reorder") && c->header.slot == 0) {
        if (g % 2 == 0) c->swapped = c->group_last > g + 1 && c->group[g % IN_FLIGHT]->n == 1;
        if (c->swapped) g ^= 1;
    }
    return c->group[g % IN_FLIGHT];
}

static ncclResult_t progress_receiver(struct comm *c)
{
    enum { POST = sizeof(uint32_t) * (1 + 2 * MAX_RECVS) };
    ssize_t k;
    while (c->post_first != c->post_last) {
        struct post *p = &c->post[c->post_first % IN_FLIGHT];
        if ((k = some(c, true, (char *)p + c->post_bytes, POST - c->post_bytes)) < 0) break; /* told by the reads */
        if (k == 0) break;
        if ((c->post_bytes += (size_t)k) < POST) continue;
        c->post_bytes = 0;
        c->post_first++;
    }
    while (c->group_first != c->group_last) {
        size_t head = sizeof c->header;
        if (c->got < head) {
            if ((k = some(c, false, (char *)&c->header + c->got, head - c->got)) < 0)
                return net_fail(ncclRemoteError, "recv");
            c->got += (size_t)k;
            if (c->got < head) break;
            if (broken("recv-early")) {
                struct request *r = target(c);
                r->got[c->header.slot] = c->header.size;
                r->done = true;
                break;
            }
        }
        struct request *r = target(c);
        size_t at = c->got - head;
        if ((k = some(c, false, r->data[c->header.slot] + at, c->header.size - at)) < 0)
            return net_fail(ncclRemoteError, "recv");
        c->got += (size_t)k;
        if (c->got < head + c->header.size) {
            if (k == 0) break;
            continue;
        }
        c->got = 0;
        complete(c, r, c->header.slot, c->header.size);
        if (broken("done-twice")) break; /* else the bytes of the other one may come before anybody looks at them */
    }
    return ncclSuccess;
}

/* The slot of the oldest post that has one free; its group, or -1. */
static int match(struct comm *c, int tag, uint32_t *group)
{
    for (unsigned g = c->post_first; g != c->post_last; g++) {
        struct post *p = &c->post[g % IN_FLIGHT];
        for (uint32_t i = 0; i < p->n; i++) {
            if (p->taken[i] || ((int)p->tag[i] != tag && !broken("tag-ignored"))) continue;
            *group = g;
            return (int)i;
        }
        if (!broken("tags-anywhere")) return -1;
    }
    return -1;
}

ncclResult_t net_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
    static unsigned calls;
    const char *rank = getenv("PSM_RANK");
    struct comm *c = comm;
    if (broken("second-dies") && rank && strcmp(rank, "1") == 0) abort();
    uint8_t *bytes = data;
    uint32_t group;
    *request = NULL;
    ncclResult_t result = net_within(c, mhandle, &bytes, size);
    if (result == ncclSuccess) result = progress_sender(c);
    if (result != ncclSuccess) return result;
    int used = 0;
    for (int i = 0; i < REQUESTS && broken("few-sends"); i++) used += c->request[i].used;
    if (used >= 8) return ncclSuccess;
    if (broken("crash-large") && size > 1 << 20) raise(SIGSEGV);
    int slot = match(c, tag, &group);
    if (slot < 0) return ncclSuccess;
    struct post *p = &c->post[group % IN_FLIGHT];
    if (size > p->size[slot]) {
        if (broken("truncates"))
            size = p->size[slot];
        else if (!broken("overflows"))
            return net_fail(ncclInvalidUsage, "isend of more than the irecv has room for");
    }
    struct request *r = new_request(c);
    if (!r) return ncclSuccess;
    if (size == 0 && broken("zero-swallowed")) {
        r->done = true;
        *request = r;
        return ncclSuccess;
    }
    r->data[0] = bytes;
    uint8_t *buffer = net_staged(mhandle, bytes, size, true);
    if (buffer) r->gpu[0] = bytes, r->data[0] = buffer;
    r->header = (struct header){group, (uint32_t)slot, size};
    p->taken[slot] = 1;
    for (unsigned i = 0, full = 1; full && c->post_first != c->post_last; i = 0) {
        struct post *head = &c->post[c->post_first % IN_FLIGHT];
        while (i < head->n && head->taken[i]) i++;
        full = i == head->n;
        c->post_first += full;
    }
    c->queue[c->last++ % REQUESTS] = r;
    *request = r;
    if (broken("lost-retry") && calls++ % 5 == 4) {
        /* It is on its way, and NCCL is told to try again. */
        *request = NULL;
    }
    return progress_sender(c);
}

ncclResult_t net_irecv(void *comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **request)
{
    struct comm *c = comm;
    unsigned limit = broken("few-requests") ? 4 : IN_FLIGHT;
    if (*request == (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION) {
        if (broken("hint-is-request")) return ((struct request *)*request)->done ? ncclSuccess : ncclInternalError;
        if (broken("hint-answered")) return ncclSuccess;
    }
    ncclResult_t result = progress_receiver(c);
    if (result != ncclSuccess) return result;
    bool full = c->group_last - c->group_first >= limit || c->post_last - c->post_first >= IN_FLIGHT;
    if (c->group_last - c->group_first >= 4 && broken("hint-left")) return ncclSuccess;
    *request = NULL;
    if (full) return ncclSuccess;
    struct request *r = new_request(c);
    if (!r) return ncclSuccess;
    struct post *p = &c->post[c->post_last++ % IN_FLIGHT];
    *p = (struct post){.n = (uint32_t)n};
    r->n = r->left = n;
    for (int i = 0; i < n; i++) {
        r->data[i] = data[i];
        r->posted[i] = sizes[i];
        if ((result = net_within(c, mhandles[i], &r->data[i], sizes[i])) != ncclSuccess) return result;
        uint8_t *buffer = net_staged(mhandles[i], r->data[i], sizes[i], false);
        if (buffer) r->gpu[i] = r->data[i], r->data[i] = buffer;
        p->tag[i] = (uint32_t)tags[i], p->size[i] = (uint32_t)sizes[i];
    }
    c->group[c->group_last++ % IN_FLIGHT] = r;
    *request = r;
    return progress_receiver(c);
}

ncclResult_t net_iflush(void *comm, void **request)
{
    struct request *r = new_request(comm);
    if (!r) return ncclInternalError;
    r->flush = true;
    r->done = !broken("flush-never");
    *request = r;
    return ncclSuccess;
}

/* ---- what may be left out ---- */

ncclResult_t net_make_device(int *dev, int n)
{
    int devices;
    if (n < 1 && !broken("vdevice-none")) return ncclInvalidUsage;
    net_devices(&devices);
    *dev = broken("vdevice-index") ? 0 : devices;
    virtuals++;
    return ncclSuccess;
}

bool net_is_virtual(int dev)
{
    int devices;
    net_devices(&devices);
    return dev >= devices - virtuals;
}

ncclResult_t net_consumed(void *comm, int n, void *request)
{
    (void)comm, (void)n, (void)request;
    return broken("consumed-fails") ? net_fail(ncclInternalError, "irecvConsumed") : ncclSuccess;
}

enum { EVENT_ID = 0x42 << 16 | 1 };

void net_profiler(ncclProfilerCallback_t callback)
{
    profiler = callback;
}

void net_event(void *request, int i, void *parent)
{
    struct request *r = request;
    char other = 0;
    if (!profiler || !r) return;
    if (broken("events-parent") && parent) parent = &other;
    r->event[i] = NULL;
    r->eventful[i] = true;
    profiler(&r->event[i], ncclProfilerNetEventStart, parent, broken("events-id") ? 1 : EVENT_ID, NULL);
}

static void stop(struct request *r, int i)
{
    void *other = &profiler;
    if (!r->eventful[i]) return;
    r->eventful[i] = broken("events-twice");
    profiler(broken("events-handle") ? &other : &r->event[i], ncclProfilerNetEventStop, NULL, EVENT_ID, NULL);
    if (broken("events-twice")) profiler(&r->event[i], ncclProfilerNetEventStop, NULL, EVENT_ID, NULL);
    r->eventful[i] = false;
}

ncclResult_t net_test(void *request, int *done, int *sizes)
{
    struct request *r = request;
    struct comm *c = r->comm;
    *done = 0;
    for (int i = 0; i < REQUESTS && broken("oldest-only"); i++)
        if (c->request[i].used && c->request[i].number < r->number)
            return net_fail(ncclInternalError, "test of another request than the oldest");
    do {
        if (broken("done-twice") && r->done) break;
        ncclResult_t result = c->sending ? progress_sender(c) : progress_receiver(c);
        if (result != ncclSuccess) return result;
    } while (broken("test-blocks") && !r->done);
    if (!r->done) return ncclSuccess;
    if (!broken("events-open"))
        for (int i = 0; i < MAX_RECVS; i++) stop(r, i);
    if (broken("test-never") && !c->sending && r->got[0] == 77) return ncclSuccess;
    *done = 1;
    for (int i = 0; i < r->n && sizes; i++) {
        if (broken("no-sizes") || (broken("one-size") && i > 0)) break;
        sizes[i] = (int)r->got[i];
    }
    if (broken("sizes-overrun") && sizes) sizes[r->n] = 0;
    r->used = broken("done-twice");
    return ncclSuccess;
}
