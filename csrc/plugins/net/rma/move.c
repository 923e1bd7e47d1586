/* Messages between two ranks. Both ends always have receives open, and what arrives is done at once, without a message
 * in return that must be sent first: so no rank waits for another one that waits for it. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "net_say.h"
#include "rma/rma_comm.h"

enum { MESSAGE = sizeof(struct rma_head) + RMA_CHUNK };

/* ---- requests ---- */

struct rma_request *rma_request_new(struct rma_comm *c, struct rma_peer *p, enum rma_kind kind)
{
    if (!c->free) {
        struct rma_block *b = calloc(1, sizeof *b);
        size_t n = sizeof b->request / sizeof *b->request;
        if (!b || !net_give(b->request, n, sizeof *b->request, NET_GIVEN_RMA_REQUEST)) {
            free(b);
            return NULL;
        }
        b->next = c->blocks;
        c->blocks = b;
        for (size_t i = 0; i < n; i++) {
            b->request[i].next = c->free;
            c->free = &b->request[i];
        }
    }
    struct rma_request *r = c->free;
    c->free = r->next;
    *r = (struct rma_request){.comm = c, .peer = p, .kind = (uint8_t)kind, .used = true};
    return r;
}

void rma_request_forget(struct rma_request *r)
{
    struct rma_comm *c = r->comm;
    r->used = false;
    r->next = c->free;
    c->free = r;
}

static void append(struct rma_queue *q, struct rma_request *r)
{
    r->next = NULL;
    if (q->last)
        q->last->next = r;
    else
        q->first = r;
    q->last = r;
}

static void take(struct rma_queue *q, struct rma_request *r)
{
    struct rma_request **at = &q->first, *before = NULL;
    for (; *at != r; at = &(*at)->next) before = *at;
    *at = r->next;
    if (q->last == r) q->last = before;
}

void rma_post(struct rma_request *r)
{
    struct rma_peer *p = r->peer;
    if (r->kind == RMA_GET) r->number = ++p->gets;
    append(&p->waiting, r);
    if (r->kind != RMA_PUT) return;
    r->number = ++p->puts;
    p->signals += r->head.signal_op != 0;
    rma_record_peer(r->comm, p);
}

/* ---- what went wrong ---- */

static unsigned open_of(const struct rma_queue *q)
{
    unsigned n = 0;
    for (const struct rma_request *r = q->first; r; r = r->next) n += r->kind == RMA_PUT || r->kind == RMA_GET;
    return n;
}

/* A peer may leave as soon as it has what it waited for: an error only if something is under way to it. */
static ncclResult_t lost(struct rma_comm *c, struct rma_peer *p)
{
    unsigned open = open_of(&p->waiting) + open_of(&p->sent);
    p->gone = true;
    if (!open) {
        NET_SAY(PSM_NET_RMA_LEFT, psm_net_rma_left, NCCL_NET, c->rank, p->rank);
        return ncclSuccess;
    }
    NET_SAY(PSM_NET_RMA_LOST, psm_net_rma_lost, NCCL_NET, c->rank, p->rank, open);
    return c->failed = ncclRemoteError;
}

ncclResult_t rma_outside(struct rma_comm *c, const char *call, int peer, uint32_t region, uint64_t offset,
                         uint64_t bytes, uint64_t size)
{
    NET_SAY(PSM_NET_RMA_OUTSIDE, psm_net_rma_outside, NCCL_NET, c->rank, call, bytes, offset, region, peer, size);
    return ncclInvalidUsage;
}

static ncclResult_t wrong(struct rma_comm *c, struct rma_peer *p, const char *what, uint64_t seen, uint64_t meant)
{
    return c->failed = net_protocol(p->recv, what, seen, meant);
}

/* ---- receiving ---- */

static struct rma_region *region_of(const struct rma_comm *c, uint32_t id)
{
    struct rma_region *g = c->first_region;
    while (g && g->id != id) g = g->next;
    return g;
}

static bool fits(const struct rma_region *g, uint64_t offset, uint64_t bytes)
{
    return g && bytes <= g->size && offset <= g->size - bytes;
}

static ncclResult_t not_here(struct rma_comm *c, const struct rma_peer *p, const char *call, uint32_t region,
                             uint64_t offset, uint64_t bytes)
{
    const struct rma_region *g = region_of(c, region);
    return c->failed = rma_outside(c, call, p->rank, region, offset, bytes, g ? g->size : 0);
}

static void acknowledged(struct rma_comm *c, struct rma_peer *p, uint64_t acked)
{
    if (p->acked == acked) return;
    p->acked = acked;
    rma_record_peer(c, p);
    for (struct rma_request *r = p->sent.first, *next; r; r = next) {
        next = r->next;
        if (r->kind != RMA_PUT || r->number > acked) continue;
        take(&p->sent, r);
        r->done = true;
    }
}

static ncclResult_t has_region(struct rma_comm *c, struct rma_peer *p, const struct rma_head *h)
{
    if (h->region != p->regions + 1) return wrong(c, p, "number of a region", h->region, p->regions + 1);
    if (h->region >= p->room) {
        uint32_t room = p->room ? p->room * 2 : 16;
        uint64_t *more = realloc(p->sizes, room * sizeof *more);
        if (!more) return c->failed = net_no_memory("sizes of regions", room * sizeof *more);
        p->sizes = more;
        p->room = room;
    }
    p->sizes[p->regions = h->region] = h->bytes;
    return ncclSuccess;
}

static ncclResult_t put_here(struct rma_comm *c, struct rma_peer *p, const struct rma_head *h, const char *data)
{
    ncclResult_t result = ncclSuccess;
    if (h->number != p->arrived + 1) return wrong(c, p, "number of a put", h->number, p->arrived + 1);
    if (h->bytes) {
        struct rma_region *g = region_of(c, h->region);
        if (!fits(g, h->offset, h->bytes)) return not_here(c, p, "iput", h->region, h->offset, h->bytes);
        result = rma_write(c, g, h->offset, data, h->bytes);
    }
    if (result == ncclSuccess && h->last && h->signal_op) {
        struct rma_region *g = region_of(c, h->signal_region);
        if (!fits(g, h->signal_offset, sizeof(uint64_t)))
            return not_here(c, p, "iputSignal", h->signal_region, h->signal_offset, sizeof(uint64_t));
        result = rma_add(c, g, h->signal_offset, h->signal_value);
        p->notes++;
    }
    if (h->last) {
        p->arrived = h->number;
        rma_record_peer(c, p);
    }
    return result == ncclSuccess ? result : (c->failed = result);
}

static ncclResult_t asked(struct rma_comm *c, struct rma_peer *p, const struct rma_head *h)
{
    struct rma_region *g = region_of(c, h->region);
    if (!fits(g, h->offset, h->bytes)) return not_here(c, p, "iget", h->region, h->offset, h->bytes);
    struct rma_request *r = rma_request_new(c, p, RMA_REPLY);
    if (!r) return c->failed = net_no_memory("a request", sizeof *r);
    r->mine = g;
    r->mine_at = h->offset;
    r->size = h->bytes;
    r->number = h->number;
    rma_post(r);
    return ncclSuccess;
}

static ncclResult_t answered(struct rma_comm *c, struct rma_peer *p, const struct rma_head *h, const char *data)
{
    struct rma_request *r = p->sent.first;
    while (r && (r->kind != RMA_GET || r->number != h->number)) r = r->next;
    if (!r || h->bytes > r->size - r->moved) return wrong(c, p, "number of a get", h->number, r ? r->number : 0);
    ncclResult_t result = h->bytes ? rma_write(c, r->mine, r->mine_at + r->moved, data, h->bytes) : ncclSuccess;
    r->moved += h->bytes;
    if (result == ncclSuccess && h->last) {
        take(&p->sent, r);
        r->done = true;
    }
    return result == ncclSuccess ? result : (c->failed = result);
}

static ncclResult_t handle(struct rma_comm *c, struct rma_peer *p, const char *message, size_t size)
{
    struct rma_head h;
    if (size < sizeof h) return wrong(c, p, "size of a message", size, sizeof h);
    memcpy(&h, message, sizeof h);
    bool data = h.kind == RMA_PUT || h.kind == RMA_REPLY;
    if (h.magic != RMA_MAGIC) return wrong(c, p, "magic of a message", h.magic, RMA_MAGIC);
    if (h.version != RMA_VERSION) return wrong(c, p, "version of a message", h.version, RMA_VERSION);
    if (h.rank != (uint32_t)p->rank) return wrong(c, p, "rank of a message", h.rank, (uint64_t)p->rank);
    if (data && size - sizeof h != h.bytes) return wrong(c, p, "bytes of a message", size - sizeof h, h.bytes);
    if (h.acked < p->acked || h.acked > p->puts) return wrong(c, p, "puts that arrived", h.acked, p->puts);
    acknowledged(c, p, h.acked);
    switch (h.kind) {
    case RMA_REGION:
        return has_region(c, p, &h);
    case RMA_PUT:
        return put_here(c, p, &h, message + sizeof h);
    case RMA_GET:
        return asked(c, p, &h);
    case RMA_REPLY:
        return answered(c, p, &h, message + sizeof h);
    case RMA_ACK:
        return ncclSuccess;
    default:
        return wrong(c, p, "kind of a message", h.kind, RMA_ACK);
    }
}

static char *message_of(const struct rma_slots *s, uint32_t i)
{
    return s->memory + (size_t)(i % RMA_SLOTS) * MESSAGE;
}

static ncclResult_t open_receives(struct rma_peer *p)
{
    struct rma_slots *s = &p->in;
    while (s->n < RMA_SLOTS) {
        uint32_t i = (s->first + s->n) % RMA_SLOTS;
        void *data = message_of(s, i);
        size_t size = MESSAGE;
        int tag = 0;
        s->request[i] = NULL;
        ncclResult_t result = net_irecv(p->recv, 1, &data, &size, &tag, &s->registration, NULL, &s->request[i]);
        if (result != ncclSuccess || !s->request[i]) return result;
        s->n++;
    }
    return ncclSuccess;
}

ncclResult_t rma_slots_make(struct rma_slots *s, void *net_comm)
{
    s->memory = malloc((size_t)MESSAGE * RMA_SLOTS);
    if (!s->memory) return net_no_memory("messages of a peer", (size_t)MESSAGE * RMA_SLOTS);
    return net_reg(net_comm, s->memory, (size_t)MESSAGE * RMA_SLOTS, NCCL_PTR_HOST, &s->registration);
}

static ncclResult_t receive(struct rma_comm *c, struct rma_peer *p)
{
    struct rma_slots *s = &p->in;
    for (;;) {
        ncclResult_t result = open_receives(p);
        int done = 0, size = 0;
        if (result == ncclSuccess && s->n) result = net_test(s->request[s->first], &done, &size);
        if (result != ncclSuccess) return result == ncclRemoteError ? lost(c, p) : (c->failed = result);
        if (!done) return ncclSuccess;
        if ((result = handle(c, p, message_of(s, s->first), (size_t)size)) != ncclSuccess) return result;
        s->first = (s->first + 1) % RMA_SLOTS;
        s->n--;
    }
}

/* ---- sending ---- */

/* The next message of a request into a slot. True: that was its last one. */
static bool build(struct rma_comm *c, struct rma_request *r, struct rma_head *h, char *data, ncclResult_t *result)
{
    bool moves = r->kind == RMA_PUT || r->kind == RMA_REPLY;
    size_t left = r->size - r->moved, size = !moves ? 0 : left < RMA_CHUNK ? left : RMA_CHUNK;
    *h = r->head;
    h->kind = r->kind;
    h->number = r->number;
    h->last = !moves || size == left;
    if (!h->last) h->signal_op = 0;
    if (moves) {
        h->offset = r->head.offset + r->moved;
        h->bytes = size;
        *result = size ? rma_read(c, r->mine, r->mine_at + r->moved, data, size) : ncclSuccess;
        r->moved += size;
    }
    return h->last;
}

static ncclResult_t next_message(struct rma_comm *c, struct rma_peer *p)
{
    struct rma_slots *s = &p->out;
    uint32_t i = (s->first + s->n) % RMA_SLOTS;
    char *message = message_of(s, i);
    struct rma_head h = {.kind = RMA_ACK};
    struct rma_request *r = p->waiting.first;
    ncclResult_t result = ncclSuccess;
    if (r && build(c, r, &h, message + sizeof h, &result)) {
        take(&p->waiting, r);
        if (r->kind == RMA_PUT || r->kind == RMA_GET)
            append(&p->sent, r);
        else
            rma_request_forget(r);
    }
    h.magic = RMA_MAGIC;
    h.version = RMA_VERSION;
    h.rank = (uint32_t)c->rank;
    h.ranks = (uint32_t)c->ranks;
    h.acked = p->told = p->arrived;
    memcpy(message, &h, sizeof h);
    s->size[i] = sizeof h + (h.kind == RMA_PUT || h.kind == RMA_REPLY ? h.bytes : 0);
    s->request[i] = NULL;
    s->n++;
    return result;
}

static ncclResult_t send_messages(struct rma_comm *c, struct rma_peer *p)
{
    struct rma_slots *s = &p->out;
    ncclResult_t result = ncclSuccess;
    for (;;) {
        int done = 1;
        while (done && s->n && s->request[s->first]) {
            if ((result = net_test(s->request[s->first], &done, NULL)) != ncclSuccess) goto failed;
            if (!done) break;
            s->first = (s->first + 1) % RMA_SLOTS;
            s->n--;
        }
        bool more = s->n < RMA_SLOTS && (p->waiting.first || p->told != p->arrived);
        if (more && (result = next_message(c, p)) != ncclSuccess) return c->failed = result;
        uint32_t posted = 0;
        for (uint32_t k = 0; k < s->n; k++) {
            uint32_t i = (s->first + k) % RMA_SLOTS;
            if (s->request[i]) continue;
            result = net_isend(p->send, message_of(s, i), s->size[i], 0, s->registration, NULL, &s->request[i]);
            if (result != ncclSuccess) goto failed;
            if (!s->request[i]) return ncclSuccess;
            posted++;
        }
        if (!posted && !more) return ncclSuccess;
    }
failed:
    return result == ncclRemoteError ? lost(c, p) : (c->failed = result);
}

ncclResult_t rma_move(struct rma_comm *c)
{
    for (int i = 0; i < c->ranks; i++) {
        struct rma_peer *p = &c->peer[i];
        if (i == c->rank || p->gone) continue;
        ncclResult_t result = c->failed;
        if (result == ncclSuccess) result = receive(c, p);
        if (result == ncclSuccess && !p->gone) result = send_messages(c, p);
        if (result != ncclSuccess) return result;
    }
    return c->failed;
}
