/* Connections of the shm backend: a Unix socket carries the descriptor of the segment, and its end signals the death of
 * the peer. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/internal.h"
#include "net_say.h"
#include "shm/comm.h"

enum {
    BACKLOG = 256,
    SPEED = 100000, /* Mbit/s: about what a core copies */
    LATENCY = 200   /* ns: benchmarks/net.md */
};

struct shm_listener {
    struct net_listener net;
    int fd;
    uint32_t max_recvs;
    uint8_t secret[NET_SECRET];
    struct shm_arrival {
        int fd;
        uint64_t since, deadline;
    } *arrivals;
    uint32_t narrivals;
};
enum { ARRIVALS = 64 };

/* Equal numbers: the same host and boot. */
static uint64_t boot_number(void)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *p = psm_proc_self()->boot_id; *p; p++) hash = (hash ^ (unsigned char)*p) * 0x100000001b3u;
    return hash;
}

static socklen_t address_of(uint64_t name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "psm-net-%016" PRIx64, name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* The text of csrc/psm's last error. */
static ncclResult_t segment_failed(const char *what)
{
    const struct psm_error *error = psm_last_error();
    NET_SAY(PSM_NET_SYSTEM, psm_net_system, NCCL_SHM | NCCL_NET, what, error->text, psm_status_name(error->status));
    return ncclSystemError;
}

static ncclResult_t init(void)
{
    NET_SAY(PSM_NET_USING, psm_net_using, NCCL_INIT | NCCL_NET, "shm", "[0]shm:this host");
    return ncclSuccess;
}

static void fini(void) {}

static int devices(void)
{
    return 1;
}

static void properties(int dev, ncclNetProperties_v12_t *props)
{
    (void)dev;
    props->name = "shm";
    props->pciPath = NULL;
    props->speed = net_settings.speed ? (int)net_settings.speed : SPEED;
    props->latency = (float)(net_settings.latency_ns ? net_settings.latency_ns : LATENCY) / 1e3f;
    props->maxRecvs = net_settings.max_recvs ? (int)net_settings.max_recvs : 1;
}

/* ---- listen ---- */

static void close_listen(struct net_listener *listener)
{
    struct shm_listener *l = (struct shm_listener *)listener;
    for (uint32_t i = 0; i < l->narrivals; i++) close(l->arrivals[i].fd);
    if (l->fd >= 0) psm_stranger_close(l->fd);
    net_say_refused_rest();
    free(l->arrivals);
    free(l);
}

static ncclResult_t listen_shm(const struct net_context *context, int dev, void *handle, struct net_listener **out)
{
    (void)context;
    struct shm_listener *l = calloc(1, sizeof *l);
    if (!l) return net_no_memory("a listener", sizeof *l);
    l->fd = -1;
    l->arrivals = calloc(ARRIVALS, sizeof *l->arrivals);
    l->max_recvs = net_settings.max_recvs ? (uint32_t)net_settings.max_recvs : 1;
    struct shm_handle h = {.magic = SHM_HANDLE_MAGIC,
                           .version = SHM_VERSION,
                           .max_recvs = (uint16_t)l->max_recvs,
                           .boot = boot_number(),
                           .rank = psm_proc_self()->rank,
                           .dev = dev};
    ncclResult_t result = l->arrivals ? ncclSuccess : net_no_memory("a listener", ARRIVALS * sizeof *l->arrivals);
    if (result == ncclSuccess) result = net_random(&h.name, sizeof h.name);
    if (result == ncclSuccess) result = net_random(h.secret, sizeof h.secret);
    struct sockaddr_un address;
    socklen_t n = address_of(h.name, &address);
    if (result == ncclSuccess) {
        l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&address, n) != 0 || listen(l->fd, BACKLOG) != 0)
            result = net_system("listening on a Unix socket", errno);
    }
    if (result != ncclSuccess) {
        close_listen(&l->net);
        return result;
    }
    memcpy(l->secret, h.secret, sizeof l->secret);
    memcpy(handle, &h, sizeof h);
    *out = &l->net;
    return ncclSuccess;
}

/* ---- connect ---- */

static void introduce(struct shm_comm *c, uint64_t id, int rank, int dev, int pid)
{
    c->net.id = id;
    c->net.peer_rank = rank;
    c->net.peer_dev = dev;
    snprintf(c->net.address, sizeof c->net.address, "pid-%d", pid);
    char ring[16];
    snprintf(ring, sizeof ring, "%ux%uK", c->slots, c->slot_bytes >> 10);
    NET_SAY(PSM_NET_CONNECTED, psm_net_connected, NCCL_NET, "shm", id, c->net.sends ? "send" : "recv", c->net.rank,
            c->net.dev, rank, c->net.address, 1, ring);
}

static int peer_pid(int fd, uint32_t *uid)
{
    struct ucred who = {0};
    socklen_t n = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0) return -1;
    *uid = who.uid;
    return who.pid;
}

static ncclResult_t give(int fd, const struct shm_hello *hello, int segment)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)hello, sizeof *hello};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &segment, sizeof segment);
    ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
    return n == (ssize_t)sizeof *hello ? ncclSuccess : net_system("giving a segment to the receiver", errno);
}

static ncclResult_t make_sender(const struct shm_handle *h, int dev, int fd, struct net_comm **out)
{
    struct shm_comm *c = shm_comm_new(true, dev, h->max_recvs);
    if (!c) {
        close(fd);
        return net_no_memory("a connection", sizeof *c);
    }
    c->fd = fd;
    struct shm_hello hello = {.magic = SHM_HELLO_MAGIC,
                              .version = SHM_VERSION,
                              .size = sizeof hello,
                              .rank = c->net.rank,
                              .dev = dev,
                              .slots = (uint32_t)net_settings.shm_slots,
                              .slot_bytes = (uint32_t)net_settings.shm_size};
    memcpy(hello.secret, h->secret, sizeof hello.secret);
    uint64_t bytes = shm_bytes(hello.slots, hello.slot_bytes);
    ncclResult_t result = net_random(&hello.connection, sizeof hello.connection);
    if (result == ncclSuccess && psm_segment_create(&c->segment, PSM_SHARE_MEMFD, bytes, "net") != PSM_OK)
        result = segment_failed("making the ring of a connection");
    if (result == ncclSuccess) {
        struct shm_head *head = c->segment.data;
        head->version = SHM_VERSION;
        head->slots = hello.slots;
        head->slot_bytes = hello.slot_bytes;
        head->magic = SHM_RING_MAGIC;
        shm_use(c, hello.slots, hello.slot_bytes);
        psm_segment_share(&c->segment, &hello.share);
        result = give(fd, &hello, c->segment.fd);
    }
    if (result != ncclSuccess) {
        shm_close(&c->net);
        return result;
    }
    uint32_t uid;
    introduce(c, hello.connection, h->rank, h->dev, peer_pid(fd, &uid));
    *out = &c->net;
    return ncclSuccess;
}

static ncclResult_t connect_shm(const struct net_context *context, int dev, void *handle, struct net_comm **out)
{
    (void)context;
    struct shm_handle h;
    memcpy(&h, handle, sizeof h);
    if (h.magic != SHM_HANDLE_MAGIC) return net_bad_handle("magic", h.magic, SHM_HANDLE_MAGIC);
    if (h.version != SHM_VERSION) return net_bad_handle("version", h.version, SHM_VERSION);
    if (h.max_recvs < 1 || h.max_recvs > NET_RECVS) return net_bad_handle("maxRecvs", h.max_recvs, NET_RECVS);
    if (h.boot != boot_number()) return net_bad_handle("host (PSM_NET=shm is for one host)", h.boot, boot_number());
    struct sockaddr_un address;
    socklen_t n = address_of(h.name, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return net_system("making a Unix socket", errno);
    if (connect(fd, (struct sockaddr *)&address, n) != 0) {
        int error = errno;
        close(fd);
        if (error == EAGAIN || error == EINTR) return ncclSuccess; /* the listener's queue is full */
        char what[128];
        snprintf(what, sizeof what, "connecting to the Unix socket of rank %d (another network namespace?)", h.rank);
        net_system(what, error);
        return error == ECONNREFUSED ? ncclRemoteError : ncclSystemError;
    }
    return make_sender(&h, dev, fd, out);
}

/* ---- accept ---- */

/* The hello and the descriptor; *fd -1: none arrived. Returns the bytes, or -1 as recvmsg. */
static ssize_t take(int from, struct shm_hello *hello, int *fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {hello, sizeof *hello};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    *fd = -1;
    ssize_t n = recvmsg(from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return n;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
            memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return message.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? 0 : n;
}

static const char *wrong_hello(const struct shm_listener *l, const struct shm_hello *h, ssize_t n, int segment)
{
    if (n == 0) return "it closed before it said who it is";
    if (n != (ssize_t)sizeof *h || h->magic != SHM_HELLO_MAGIC) return "it does not speak our protocol";
    if (h->version != SHM_VERSION || h->size != sizeof *h) return "it speaks another version of our protocol";
    if (!net_same_secret(h->secret, l->secret)) return "it does not have the secret of this listener's handle";
    if (segment < 0) return "it gave no descriptor";
    if (!shm_possible(h->slots, h->slot_bytes)) return "it has a ring of impossible size";
    return NULL;
}

static ncclResult_t make_receiver(struct shm_listener *l, const struct shm_hello *h, int fd, int segment,
                                  struct net_comm **out)
{
    struct shm_comm *c = shm_comm_new(false, l->net.dev, (int)l->max_recvs);
    if (!c) {
        close(fd);
        return net_no_memory("a connection", sizeof *c);
    }
    c->fd = fd;
    ncclResult_t result = ncclSuccess;
    if (psm_segment_attach(&c->segment, &h->share, segment) != PSM_OK)
        result = segment_failed("attaching the ring of a connection");
    const struct shm_head *head = c->segment.data;
    if (result == ncclSuccess &&
        (c->segment.size != shm_bytes(h->slots, h->slot_bytes) || head->magic != SHM_RING_MAGIC ||
         head->slots != h->slots || head->slot_bytes != h->slot_bytes))
        result = net_bad_handle("size of a ring", c->segment.size, shm_bytes(h->slots, h->slot_bytes));
    if (result != ncclSuccess) {
        shm_close(&c->net);
        return result;
    }
    shm_use(c, h->slots, h->slot_bytes);
    uint32_t uid;
    introduce(c, h->connection, h->rank, h->dev, peer_pid(fd, &uid));
    *out = &c->net;
    return ncclSuccess;
}

static void turn_away(const struct shm_listener *l, int fd, const char *why)
{
    char who[24];
    uint32_t uid;
    snprintf(who, sizeof who, "pid-%d", peer_pid(fd, &uid));
    net_say_refused(l->net.dev, who, why);
}

/* Whether the arrival is finished. */
static bool hear(struct shm_listener *l, struct shm_arrival *a, struct net_comm **out, ncclResult_t *result)
{
    struct shm_hello hello;
    int segment;
    const char *why = NULL;
    ssize_t n = take(a->fd, &hello, &segment);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (psm_clock_ns() < a->deadline) return false;
        why = "it did not say who it is in time";
    } else {
        why = wrong_hello(l, &hello, n < 0 ? 0 : n, segment);
    }
    if (why) {
        turn_away(l, a->fd, why);
        close(a->fd);
    } else {
        *result = make_receiver(l, &hello, a->fd, segment, out);
    }
    if (segment >= 0) close(segment);
    return true;
}

/* A place for one that waits. What has not said who it is for the longest time gives it up. */
static bool has_place(struct shm_listener *l)
{
    struct pollfd waits = {l->fd, POLLIN, 0};
    if (l->narrivals < ARRIVALS) return true;
    if (poll(&waits, 1, 0) <= 0) return false;
    struct shm_arrival *oldest = l->arrivals;
    for (uint32_t i = 1; i < l->narrivals; i++)
        if (l->arrivals[i].since < oldest->since) oldest = &l->arrivals[i];
    if (psm_clock_ns() - oldest->since < NET_CROWDED_NS) return false;
    turn_away(l, oldest->fd, "it did not say who it is, and others wait for its place");
    close(oldest->fd);
    *oldest = l->arrivals[--l->narrivals];
    return true;
}

static ncclResult_t accept_shm(struct net_listener *listener, struct net_comm **out)
{
    struct shm_listener *l = (struct shm_listener *)listener;
    ncclResult_t result = ncclSuccess;
    while (has_place(l)) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (fd < 0) return net_system("accepting a connection", errno);
        uint32_t uid = 0;
        if (peer_pid(fd, &uid) < 0 || uid != geteuid()) { /* before its descriptors are received */
            turn_away(l, fd, "it runs as another user");
            psm_stranger_close(fd);
            continue;
        }
        uint64_t now = psm_clock_ns();
        l->arrivals[l->narrivals++] = (struct shm_arrival){fd, now, now + net_settings.timeout_ms * 1000000u};
    }
    for (uint32_t i = 0; i < l->narrivals && !*out && result == ncclSuccess;)
        if (hear(l, &l->arrivals[i], out, &result))
            l->arrivals[i] = l->arrivals[--l->narrivals];
        else
            i++;
    return result;
}

const struct net_backend net_shm = {
    .name = "shm",
    .init = init,
    .fini = fini,
    .devices = devices,
    .properties = properties,
    .listen = listen_shm,
    .close_listen = close_listen,
    .connect = connect_shm,
    .accept = accept_shm,
    .post = shm_post,
    .progress = shm_progress,
    .cut = shm_cut,
    .close = shm_close,
};
