/* Bytes: messages out of requests, and into them. Every call is non-blocking and goes as far as the kernel takes or has
 * bytes, within a budget: the caller's thread has other connections to look after.
 *
 * Messages go one way, so the receiver's TCP has nothing to send its acknowledgement with: it sends one when a read
 * empties the socket, before the read returns, and half of the latency of a small message is that. So there is a byte
 * behind a small message, which the receiver leaves where it is; its next look, which has nothing else to do, takes it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libc.h"
#include "socket/socket.h"

enum {
    BUDGET = 16,    /* system calls on a stream */
    LOOK_BACK = 32, /* tries of a full stream */
    SMALL = 512,    /* bytes: a copy is cheaper than a vector */
    PADDED = 1024
};

struct socket_comm *socket_comm_new(bool sends, int dev, int max_recvs, uint32_t streams)
{
    struct socket_comm *c = net_comm_new(sizeof *c, &net_socket, sends, dev, max_recvs);
    if (!c) return NULL;
    c->streams = streams;
    for (int i = 0; i < SOCKET_STREAMS; i++) c->stream[i].fd = -1;
    c->notices = -1;
    /* A receiver has a place for each part of its requests. */
    c->capacity = 1;
    while (c->capacity < NET_REQUESTS * (uint32_t)max_recvs) c->capacity *= 2;
    c->moving = calloc(c->capacity, sizeof *c->moving);
    if (c->moving) return c;
    net_comm_free(&c->net);
    return NULL;
}

void socket_close(struct net_comm *comm)
{
    struct socket_comm *c = (struct socket_comm *)comm;
    for (uint32_t i = 0; i < c->streams; i++)
        if (c->stream[i].fd >= 0) close(c->stream[i].fd);
    if (c->notices >= 0) close(c->notices);
    free(c->moving);
    net_comm_free(comm);
}

static void socket_cut(struct net_comm *comm)
{
    struct socket_comm *c = (struct socket_comm *)comm;
    for (uint32_t i = 0; i < c->streams; i++) shutdown(c->stream[i].fd, SHUT_RDWR);
    if (c->notices >= 0) shutdown(c->notices, SHUT_RDWR);
}

static ncclResult_t gone(struct socket_comm *c, const char *what, int number)
{
    char text[96];
    const char *name = psm_errno_name(number);
    snprintf(text, sizeof text, "%s: %s (%s)", what, psm_errno_text(number), name ? name : "?");
    return net_peer_gone(&c->net, text);
}

/* ---- how a message is spread ---- */

struct share {
    size_t begin, size;
};

/* All but the last are equal, and of whole cache lines. */
static inline struct share share_of(const struct socket_message *m, uint32_t i)
{
    if (m->shares <= 1) return (struct share){0, i == 0 ? m->size : 0};
    size_t each = (m->size / m->shares + 64) & ~(size_t)63, begin = each * i;
    if (begin >= m->size) return (struct share){m->size, 0};
    return (struct share){begin, m->size - begin < each ? m->size - begin : each};
}

static uint32_t shares_for(const struct socket_comm *c, size_t size)
{
    uint64_t n = size / net_settings.min_share;
    return n < 2 ? 1 : n < c->streams ? (uint32_t)n : c->streams;
}

static inline struct socket_moving *moving(struct socket_comm *c, uint64_t number)
{
    return &c->moving[number & (c->capacity - 1)];
}

/* The next message that has a share on this stream; NULL: none. */
static struct socket_moving *next_of(struct socket_comm *c, uint32_t i)
{
    struct socket_stream *s = &c->stream[i];
    for (; s->at < c->begun; s->at++)
        if (i == 0 || moving(c, s->at)->header.shares > i) return moving(c, s->at);
    return NULL;
}

/* Whether moving[] has room: streams that lag keep their messages there. */
static bool has_room(struct socket_comm *c)
{
    for (uint32_t i = 0; i < c->streams; i++) {
        next_of(c, i);
        if (c->begun - c->stream[i].at >= c->capacity) return false;
    }
    return true;
}

static bool all_moved(struct socket_comm *c)
{
    for (uint32_t i = 0; i < c->streams; i++)
        if (next_of(c, i)) return false;
    return true;
}

static void share_moved(struct socket_comm *c, uint32_t i)
{
    struct socket_moving *m = moving(c, c->stream[i].at);
    c->stream[i].at++;
    c->stream[i].offset = 0;
    if (--m->part->left == 0) net_part_done(m->request);
}

/* ---- sending ---- */

/* What the receiver says against the direction of the messages: that it cannot take one, or nothing any more. */
static ncclResult_t look_back(struct socket_comm *c)
{
    struct socket_refused no;
    ssize_t n = recv(c->stream[0].fd, &no, sizeof no, MSG_DONTWAIT | MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return ncclSuccess;
    if (n < 0) return gone(c, "is gone", errno);
    if (n == 0) return net_peer_gone(&c->net, "closed the connection");
    if ((size_t)n < sizeof no) return ncclSuccess;
    if (no.magic != SOCKET_REFUSED_MAGIC) return net_protocol(&c->net, "answer", no.magic, SOCKET_REFUSED_MAGIC);
    return net_too_large(&c->net, no.size, no.room, no.tag);
}

static ncclResult_t send_failed(struct socket_comm *c, int number)
{
    if (number == EAGAIN || number == EINTR) {
        if (++c->full % LOOK_BACK) return ncclSuccess;
        return look_back(c);
    }
    ncclResult_t result = look_back(c); /* it may have said why */
    return result != ncclSuccess ? result : gone(c, "is gone", number);
}

/* Headers and bytes of as many messages as there are, in one call. */
static ncclResult_t push_first(struct socket_comm *c)
{
    static char pad;
    struct socket_stream *s = &c->stream[0];
    for (int budget = BUDGET; budget > 0 && s->at < c->begun; budget--) {
        struct iovec iov[SOCKET_IOV];
        int n = 0;
        size_t wanted = 0, skip = s->offset;
        for (uint64_t k = s->at; k < c->begun && n + 3 <= SOCKET_IOV; k++) {
            struct socket_moving *m = moving(c, k);
            struct share share = share_of(&m->header, 0);
            size_t header = sizeof m->header;
            if (skip < header) iov[n++] = (struct iovec){(char *)&m->header + skip, header - skip};
            skip = skip > header ? skip - header : 0;
            if (share.size > skip) iov[n++] = (struct iovec){m->part->data + skip, share.size - skip};
            skip = skip > share.size ? skip - share.size : 0;
            if (m->header.pad > skip) iov[n++] = (struct iovec){&pad, 1};
            skip = 0;
        }
        for (int i = 0; i < n; i++) wanted += iov[i].iov_len;
        ssize_t sent;
        if (wanted <= SMALL) {
            char whole[SMALL];
            size_t at = 0;
            for (int i = 0; i < n; at += iov[i++].iov_len) memcpy(whole + at, iov[i].iov_base, iov[i].iov_len);
            sent = send(s->fd, whole, wanted, MSG_DONTWAIT | MSG_NOSIGNAL);
        } else {
            struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)n};
            sent = sendmsg(s->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        }
        if (sent < 0) return send_failed(c, errno);
        size_t left = (size_t)sent;
        while (s->at < c->begun) {
            struct socket_moving *m = moving(c, s->at);
            size_t whole = sizeof m->header + share_of(&m->header, 0).size + m->header.pad;
            if (left < whole - s->offset) break;
            left -= whole - s->offset;
            if (m->header.shares == 0) return net_too_large(&c->net, m->header.size, m->part->room, m->header.tag);
            share_moved(c, 0);
        }
        s->offset += left;
        if ((size_t)sent < wanted) break; /* full */
    }
    return ncclSuccess;
}

static ncclResult_t push_other(struct socket_comm *c, uint32_t i)
{
    struct socket_stream *s = &c->stream[i];
    struct socket_moving *m;
    for (int budget = BUDGET; budget > 0 && (m = next_of(c, i)); budget--) {
        struct share share = share_of(&m->header, i);
        if (share.size > s->offset) {
            size_t rest = share.size - s->offset;
            ssize_t sent = send(s->fd, m->part->data + share.begin + s->offset, rest, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent < 0) return send_failed(c, errno);
            s->offset += (size_t)sent;
            if ((size_t)sent < rest) break;
        }
        share_moved(c, i);
    }
    return ncclSuccess;
}

static ncclResult_t push(struct socket_comm *c)
{
    ncclResult_t result = push_first(c);
    for (uint32_t i = 1; i < c->streams && result == ncclSuccess; i++) result = push_other(c, i);
    return result;
}

/* Read what the receiver says to be posted. */
static ncclResult_t read_notices(struct socket_comm *c)
{
    ssize_t n = recv(c->notices, c->notice + c->notice_n, sizeof c->notice - c->notice_n, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return ncclSuccess;
    if (n < 0) return gone(c, "is gone", errno);
    if (n == 0) return net_peer_gone(&c->net, "closed the connection");
    c->notice_n += (uint32_t)n;
    uint32_t at = 0;
    while (c->known_n < NET_REQUESTS) {
        struct socket_posted posted;
        if (c->notice_n - at < sizeof posted) break;
        memcpy(&posted, c->notice + at, sizeof posted);
        uint64_t meant = c->known_first + c->known_n;
        if (posted.magic != SOCKET_POSTED_MAGIC)
            return net_protocol(&c->net, "notice of a receive", posted.magic, SOCKET_POSTED_MAGIC);
        if (posted.group != meant) return net_protocol(&c->net, "number of a receive", posted.group, meant);
        if (posted.n < 1 || posted.n > (uint32_t)c->net.max_recvs)
            return net_protocol(&c->net, "size of a group", posted.n, (uint64_t)c->net.max_recvs);
        size_t size = sizeof posted + posted.n * sizeof(struct socket_slot);
        if (c->notice_n - at < size) break;
        struct socket_known *known = &c->known[meant % NET_REQUESTS];
        *known = (struct socket_known){.group = meant, .n = posted.n};
        memcpy(known->slot, c->notice + at + sizeof posted, posted.n * sizeof(struct socket_slot));
        c->known_n++;
        at += (uint32_t)size;
    }
    memmove(c->notice, c->notice + at, c->notice_n - at);
    c->notice_n -= at;
    return ncclSuccess;
}

/* The slot of the first receive that is posted and not full; tags choose there, and nowhere else. */
static ncclResult_t find_slot(struct socket_comm *c, struct net_part *part, struct socket_message *header, bool *found)
{
    if (c->known_n == 0) {
        ncclResult_t result = read_notices(c);
        if (result != ncclSuccess || c->known_n == 0) return result;
    }
    struct socket_known *known = &c->known[c->known_first % NET_REQUESTS];
    for (uint32_t i = 0; i < known->n; i++) {
        if (known->used >> i & 1 || known->slot[i].tag != part->tag) continue;
        *found = true;
        header->group = known->group;
        header->part = (uint16_t)i;
        part->room = known->slot[i].size;
        if (part->size > part->room) header->shares = header->pad = 0;
        known->used |= 1u << i;
        if (known->used == (1u << known->n) - 1) {
            c->known_first++;
            c->known_n--;
        }
        return ncclSuccess;
    }
    return ncclSuccess;
}

static ncclResult_t post_send(struct socket_comm *c, struct net_request *r, bool *taken)
{
    struct net_part *part = &r->part[0];
    if (!has_room(c)) return push(c);
    struct socket_message header = {.magic = SOCKET_MESSAGE_MAGIC,
                                    .shares = (uint16_t)shares_for(c, part->size),
                                    .group = c->begun,
                                    .size = part->size,
                                    .tag = part->tag,
                                    .pad = part->size <= PADDED};
    bool found = c->net.max_recvs == 1;
    ncclResult_t result = found ? ncclSuccess : find_slot(c, part, &header, &found);
    if (result != ncclSuccess || !found) return result;
    r->message = header.group;
    r->slot = (uint8_t)header.part;
    part->left = header.shares ? header.shares : 1;
    *moving(c, c->begun) = (struct socket_moving){r, part, header};
    c->begun++;
    *taken = true;
    /* An error of it is told by test: the request is there. */
    push(c);
    return ncclSuccess;
}

/* ---- receiving ---- */

static ncclResult_t flush_notices(struct socket_comm *c)
{
    while (c->notice_at < c->notice_n) {
        ssize_t n = send(c->notices, c->notice + c->notice_at, c->notice_n - c->notice_at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return ncclSuccess;
        if (n < 0) n = c->notice_n - c->notice_at; /* the sender is gone; its messages may still come */
        c->notice_at += (uint32_t)n;
    }
    c->notice_at = c->notice_n = 0;
    return ncclSuccess;
}

static ncclResult_t post_recv(struct socket_comm *c, struct net_request *r, bool *taken)
{
    struct socket_posted posted = {SOCKET_POSTED_MAGIC, r->n, c->posted};
    r->message = c->posted;
    c->group[c->posted++ % NET_REQUESTS] = r;
    *taken = true;
    if (c->net.max_recvs == 1) return ncclSuccess;
    /* Those that are not told yet are not more than those that can be open: they fit. */
    memmove(c->notice, c->notice + c->notice_at, c->notice_n - c->notice_at);
    c->notice_n -= c->notice_at;
    c->notice_at = 0;
    memcpy(c->notice + c->notice_n, &posted, sizeof posted);
    c->notice_n += sizeof posted;
    for (int i = 0; i < r->n; i++) {
        struct socket_slot slot = {.size = r->part[i].room, .tag = r->part[i].tag};
        memcpy(c->notice + c->notice_n, &slot, sizeof slot);
        c->notice_n += sizeof slot;
    }
    return flush_notices(c);
}

static ncclResult_t refuse(struct socket_comm *c, const struct socket_message *m, const struct net_part *part)
{
    struct socket_refused no = {SOCKET_REFUSED_MAGIC, m->tag, m->size, part->room};
    /* Nothing was ever sent this way: it fits. */
    ssize_t n = send(c->stream[0].fd, &no, sizeof no, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)n;
    socket_cut(&c->net);
    return net_too_large(&c->net, m->size, part->room, m->tag);
}

/* A header has come. *matched stays false where no receive is posted for it yet. */
static ncclResult_t match(struct socket_comm *c, const struct socket_message *m, bool *matched)
{
    struct net_comm *net = &c->net;
    if (m->magic != SOCKET_MESSAGE_MAGIC)
        return net_protocol(net, "header of a message", m->magic, SOCKET_MESSAGE_MAGIC);
    if (c->first_open == c->posted || !has_room(c)) return ncclSuccess;
    struct net_request *r = c->group[c->first_open % NET_REQUESTS];
    if (m->group != c->first_open) return net_protocol(net, "number of a message", m->group, c->first_open);
    if (m->part >= r->n || r->part[m->part].matched) return net_protocol(net, "slot of a message", m->part, r->n);
    struct net_part *part = &r->part[m->part];
    if (net->max_recvs > 1 && m->tag != part->tag)
        return net_protocol(net, "tag of a message", (uint64_t)(int64_t)m->tag, (uint64_t)(int64_t)part->tag);
    if (m->pad > 1) return net_protocol(net, "padding of a message", m->pad, 1);
    if (m->shares > c->streams) return net_protocol(net, "number of shares", m->shares, c->streams);
    if (m->size > part->room || m->shares == 0) return refuse(c, m, part);
    part->size = m->size;
    part->left = m->shares;
    part->matched = true;
    *moving(c, c->begun) = (struct socket_moving){r, part, *m};
    c->begun++;
    bool all = true;
    for (int i = 0; i < r->n; i++) all = all && r->part[i].matched;
    c->first_open += all;
    return *matched = true, ncclSuccess;
}

/* *ended: nothing comes any more on stream 0. */
static ncclResult_t read_first(struct socket_comm *c, struct iovec *iov, int n, size_t *got)
{
    ssize_t bytes =
        n == 1 ? recv(c->stream[0].fd, iov->iov_base, iov->iov_len, MSG_DONTWAIT) : readv(c->stream[0].fd, iov, n);
    *got = bytes > 0 ? (size_t)bytes : 0;
    if (bytes > 0) return ncclSuccess;
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return ncclSuccess;
    if (bytes < 0) return gone(c, "is gone", errno);
    c->ended = true;
    if (c->ahead_n > 0 || next_of(c, 0)) return net_peer_gone(&c->net, "closed the connection inside a message");
    return ncclSuccess;
}

/* Where the next message can only be a small one: up to the byte behind it. */
static size_t length_to_read(const struct socket_comm *c)
{
    const struct net_request *next = c->group[c->first_open % NET_REQUESTS];
    if (next->n > 1 || next->part[0].room > PADDED) return sizeof c->ahead;
    return c->pads + sizeof(struct socket_message) + next->part[0].room;
}

/* Until wanted is done: what comes after it is for the next call. */
static ncclResult_t pull_first(struct socket_comm *c, const struct net_request *wanted)
{
    struct socket_stream *s = &c->stream[0];
    ncclResult_t result = ncclSuccess;
    for (int budget = BUDGET; budget > 0 && result == ncclSuccess && wanted->left > 0;) {
        struct socket_moving *m = next_of(c, 0);
        size_t got = 0;
        if (m) {
            size_t rest = share_of(&m->header, 0).size - s->offset;
            char *to = m->part->data + s->offset;
            if (rest > 0 && c->ahead_n > 0) {
                got = rest < c->ahead_n ? rest : c->ahead_n;
                memcpy(to, c->ahead + c->ahead_at, got);
                c->ahead_at += (uint32_t)got;
                c->ahead_n -= (uint32_t)got;
            } else if (rest > 0) {
                struct iovec iov[2] = {{to, rest}, {c->ahead, sizeof c->ahead}};
                budget--;
                if (c->ended) return ncclSuccess;
                result = read_first(c, iov, 2, &got);
                if (got == 0) return result;
                c->ahead_at = 0;
                c->ahead_n = got > rest ? (uint32_t)(got - rest) : 0;
                got -= c->ahead_n;
            }
            s->offset += got;
            if (got < rest) continue;
            c->pads = m->header.pad;
            share_moved(c, 0);
        } else if (c->pads && c->ahead_n) {
            c->ahead_at++;
            c->ahead_n--;
            c->pads = 0;
        } else if (c->ahead_n >= sizeof(struct socket_message)) {
            struct socket_message header;
            bool matched = false;
            memcpy(&header, c->ahead + c->ahead_at, sizeof header);
            result = match(c, &header, &matched);
            if (!matched) return result;
            c->ahead_at += sizeof header;
            c->ahead_n -= sizeof header;
        } else {
            if (c->first_open == c->posted || c->ended) return ncclSuccess; /* nobody asks for more */
            memmove(c->ahead, c->ahead + c->ahead_at, c->ahead_n);
            c->ahead_at = 0;
            struct iovec iov = {c->ahead + c->ahead_n, length_to_read(c) - c->ahead_n};
            budget--;
            result = read_first(c, &iov, 1, &got);
            if (got == 0) return result;
            c->ahead_n += (uint32_t)got;
        }
    }
    return result;
}

static ncclResult_t pull_other(struct socket_comm *c, uint32_t i)
{
    struct socket_stream *s = &c->stream[i];
    struct socket_moving *m;
    for (int budget = BUDGET; budget > 0 && (m = next_of(c, i)); budget--) {
        struct share share = share_of(&m->header, i);
        if (share.size > s->offset) {
            ssize_t got = recv(s->fd, m->part->data + share.begin + s->offset, share.size - s->offset, MSG_DONTWAIT);
            if (got < 0 && (errno == EAGAIN || errno == EINTR)) return ncclSuccess;
            if (got < 0) return gone(c, "is gone", errno);
            if (got == 0) return net_peer_gone(&c->net, "closed the connection inside a message");
            s->offset += (size_t)got;
            if (s->offset < share.size) continue;
        }
        share_moved(c, i);
    }
    return ncclSuccess;
}

static ncclResult_t pull(struct socket_comm *c, const struct net_request *wanted)
{
    ncclResult_t result = c->notice_n ? flush_notices(c) : ncclSuccess;
    if (result == ncclSuccess) result = pull_first(c, wanted);
    for (uint32_t i = 1; i < c->streams && result == ncclSuccess; i++) result = pull_other(c, i);
    if (result == ncclSuccess && c->ended && c->first_open < c->posted && all_moved(c))
        result = net_peer_gone(&c->net, "closed the connection");
    return result;
}

/* ---- the backend ---- */

static ncclResult_t socket_post(struct net_comm *comm, struct net_request *request, bool *taken)
{
    struct socket_comm *c = (struct socket_comm *)comm;
    return comm->sends ? post_send(c, request, taken) : post_recv(c, request, taken);
}

static ncclResult_t socket_progress(struct net_comm *comm, struct net_request *request)
{
    struct socket_comm *c = (struct socket_comm *)comm;
    return comm->sends ? push(c) : pull(c, request);
}

static void fini(void)
{
    socket_forget_pending();
    socket_forget_devices();
}

const struct net_backend net_socket = {
    .name = "socket",
    .init = socket_find_devices,
    .fini = fini,
    .devices = socket_devices,
    .properties = socket_properties,
    .listen = socket_listen,
    .close_listen = socket_close_listen,
    .connect = socket_connect,
    .accept = socket_accept,
    .post = socket_post,
    .progress = socket_progress,
    .cut = socket_cut,
    .close = socket_close,
};
