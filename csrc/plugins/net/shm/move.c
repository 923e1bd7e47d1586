/* Messages into the ring and out of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/comm.h"

enum { LOOK = 4096 /* unsuccessful looks between two checks of the peer's life */ };

/* The receiver that this thread last polled without success. */
static _Thread_local const struct shm_comm *waits_for;

bool shm_possible(uint32_t slots, uint32_t slot_bytes)
{
    return slots >= 2 && slots <= 64 && slot_bytes >= 4096 && slot_bytes <= 64u << 20;
}

static uint64_t stride_of(uint32_t slot_bytes)
{
    return (sizeof(struct shm_slot) + slot_bytes + PSM_LINE - 1) / PSM_LINE * PSM_LINE;
}

uint64_t shm_bytes(uint32_t slots, uint32_t slot_bytes)
{
    return sizeof(struct shm_head) + slots * stride_of(slot_bytes);
}

struct shm_comm *shm_comm_new(bool sends, int dev, int max_recvs)
{
    struct shm_comm *c = net_comm_new(sizeof *c, &net_shm, sends, dev, max_recvs);
    if (!c) return NULL;
    c->fd = -1;
    if (sends) c->queue = calloc(c->net.mask + 1, sizeof *c->queue);
    if (!sends || c->queue) return c;
    net_comm_free(&c->net);
    return NULL;
}

void shm_use(struct shm_comm *c, uint32_t slots, uint32_t slot_bytes)
{
    c->head = c->segment.data;
    c->ring = (char *)c->head + sizeof *c->head;
    c->slots = slots;
    c->slot_bytes = slot_bytes;
    c->stride = stride_of(slot_bytes);
    c->at = c->ring;
    c->end = c->ring + slots * c->stride;
    c->half = slots / 2;
    if (c->net.sends) c->free_until = slots;
}

void shm_close(struct net_comm *comm)
{
    struct shm_comm *c = (struct shm_comm *)comm;
    psm_segment_close(&c->segment);
    if (c->fd >= 0) close(c->fd);
    free(c->queue);
    net_comm_free(comm);
}

void shm_cut(struct net_comm *comm)
{
    shutdown(((struct shm_comm *)comm)->fd, SHUT_RDWR);
    net_peer_gone(comm, "was lost by a fault");
}

/* After the hello nothing is sent on the Unix socket: readable means closed. */
static bool peer_is_gone(struct shm_comm *c)
{
    char byte;
    ssize_t n = recv(c->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

/* This end is done with the current slot. Without a branch: a processor predicts badly what happens once a round. */
static inline void advance(struct shm_comm *c)
{
    char *at = c->at + c->stride, *ring = c->ring;
    c->step++;
    c->at = at == c->end ? ring : at;
}

/* Small messages without a call: stored in the line of the slot's header. */
static inline void copy(char *to, const char *from, size_t n)
{
    if (n == sizeof(uint64_t))
        memcpy(to, from, sizeof(uint64_t));
    else if (n > 0)
        memcpy(to, from, n);
}

/* ---- sending ---- */

static ncclResult_t stuck(struct shm_comm *c)
{
    struct shm_head *head = c->head;
    if (psm_line_load(&head->refused))
        return net_too_large(&c->net, head->refused_size, head->refused_room, (int)head->refused_tag);
    if (++c->idle % LOOK || !peer_is_gone(c)) return ncclSuccess;
    if (psm_line_load(&head->refused)) return stuck(c);
    return net_peer_gone(&c->net, "closed the connection");
}

static inline uint64_t look(struct shm_comm *c)
{
    return c->free_until = psm_line_load(&c->head->freed) + c->slots;
}

static ncclResult_t push(struct shm_comm *c)
{
    while (c->first < c->begun) {
        if (c->step >= c->free_until && c->step >= look(c)) return stuck(c);
        struct shm_message *m = &c->queue[c->first & c->net.mask];
        struct shm_slot *slot = (struct shm_slot *)c->at;
        size_t rest = m->too_large ? 0 : m->part->size - c->offset;
        uint32_t bytes = rest < c->slot_bytes ? (uint32_t)rest : c->slot_bytes;
        copy(slot->data, m->part->data + c->offset, bytes);
        slot->size = m->part->size;
        slot->group = m->group;
        slot->tag = m->part->tag;
        slot->bytes = bytes;
        slot->part = m->index;
        slot->too_large = m->too_large;
        atomic_store_explicit(&slot->step, c->step + 1, memory_order_release);
        advance(c);
        c->offset += bytes;
        if (m->too_large) return net_too_large(&c->net, m->part->size, m->part->room, m->part->tag);
        if (bytes < rest) continue;
        c->offset = 0;
        c->first++;
        net_part_done(m->request);
    }
    return ncclSuccess;
}

/* The slot in the first group that is not full. */
static ncclResult_t find_slot(struct shm_comm *c, struct shm_message *m, bool *found)
{
    const struct shm_posted *group = &c->head->group[c->group % NET_REQUESTS];
    if (atomic_load_explicit(&group->number, memory_order_acquire) != c->group + 1) return stuck(c);
    uint64_t n = group->n;
    if (n < 1 || n > (uint64_t)c->net.max_recvs)
        return net_protocol(&c->net, "size of a group", n, (uint64_t)c->net.max_recvs);
    for (uint64_t i = 0; i < n; i++) {
        if (c->used >> i & 1 || group->slot[i].tag != m->part->tag) continue;
        *found = true;
        m->group = (uint32_t)c->group;
        m->index = (uint16_t)i;
        m->request->message = c->group;
        m->request->slot = (uint8_t)i;
        m->part->room = group->slot[i].size;
        m->too_large = m->part->size > m->part->room;
        c->used |= UINT64_C(1) << i;
        if (c->used == (UINT64_C(1) << n) - 1) {
            c->used = 0;
            c->group++;
        }
        return ncclSuccess;
    }
    return ncclSuccess;
}

/* A message that fits into one slot, with none before it: does what push does, without its queue. */
static inline bool push_whole(struct shm_comm *c, const struct shm_message *m)
{
    const struct net_part *part = m->part;
    if (c->first < c->begun || c->step >= c->free_until || part->size > c->slot_bytes || m->too_large) return false;
    struct shm_slot *slot = (struct shm_slot *)c->at;
    copy(slot->data, part->data, part->size);
    slot->size = part->size;
    slot->group = m->group;
    slot->tag = part->tag;
    slot->bytes = (uint32_t)part->size;
    slot->part = m->index;
    slot->too_large = 0;
    atomic_store_explicit(&slot->step, c->step + 1, memory_order_release);
    advance(c);
    c->first = ++c->begun;
    net_part_done(m->request);
    /* Behind the message, which so does not wait for the line that the receiver has written. */
    if (c->free_until - c->step < c->slots - c->half) look(c);
    return true;
}

static ncclResult_t post_send(struct shm_comm *c, struct net_request *r, bool *taken)
{
    struct shm_message m = {.request = r, .part = &r->part[0], .group = (uint32_t)c->begun};
    if (psm_line_load(&c->head->refused)) return stuck(c);
    r->message = c->begun;
    bool found = c->net.max_recvs == 1;
    ncclResult_t result = found ? ncclSuccess : find_slot(c, &m, &found);
    if (result != ncclSuccess || !found) return result;
    *taken = true;
    if (push_whole(c, &m)) return ncclSuccess;
    c->queue[c->begun++ & c->net.mask] = m;
    push(c); /* test reports its error */
    return ncclSuccess;
}

/* ---- receiving ---- */

static ncclResult_t post_recv(struct shm_comm *c, struct net_request *r, bool *taken)
{
    r->message = c->nposted;
    c->open[c->nposted % NET_REQUESTS] = r;
    *taken = true;
    if (c->net.max_recvs > 1) {
        struct shm_posted *group = &c->head->group[c->nposted % NET_REQUESTS];
        group->n = r->n;
        for (int i = 0; i < r->n; i++)
            group->slot[i] = (struct shm_posted_slot){.size = r->part[i].room, .tag = r->part[i].tag};
        atomic_store_explicit(&group->number, c->nposted + 1, memory_order_release);
    }
    c->nposted++;
    return ncclSuccess;
}

static ncclResult_t refuse(struct shm_comm *c, uint64_t size, uint64_t room, int tag)
{
    c->head->refused_size = size;
    c->head->refused_room = room;
    c->head->refused_tag = tag;
    psm_line_store(&c->head->refused, 1);
    return net_too_large(&c->net, size, room, tag);
}

/* The first slot of a message. The peer can write to it after our checks: use a copy. */
static ncclResult_t match(struct shm_comm *c, const struct shm_slot *slot)
{
    struct net_comm *net = &c->net;
    uint64_t size = *(volatile const uint64_t *)&slot->size;
    uint32_t group = slot->group;
    uint16_t index = *(volatile const uint16_t *)&slot->part;
    int tag = slot->tag;
    struct net_request *r = c->open[c->first_open % NET_REQUESTS];
    if (group != (uint32_t)c->first_open) return net_protocol(net, "number of a message", group, c->first_open);
    if (index >= r->n || r->part[index].matched) return net_protocol(net, "slot of a message", index, r->n);
    struct net_part *part = &r->part[index];
    if (net->max_recvs > 1 && tag != part->tag)
        return net_protocol(net, "tag of a message", (uint64_t)(int64_t)tag, (uint64_t)(int64_t)part->tag);
    if (size > part->room || slot->too_large) return refuse(c, size, part->room, tag);
    part->size = size;
    part->matched = true;
    c->coming = (struct shm_message){.request = r, .part = part};
    bool all = true;
    for (int i = 0; i < r->n && r->n > 1; i++) all = all && r->part[i].matched;
    c->first_open += all;
    return ncclSuccess;
}

static inline void give_back(struct shm_comm *c)
{
    psm_line_store(&c->head->freed, c->free_until = c->step);
}

/* This end is done with the slot, and notifies the sender once per half round, and while it waits. */
static inline void emptied(struct shm_comm *c)
{
    advance(c);
    if (c->step - c->free_until >= c->half) give_back(c);
}

/* A message in one slot for a receive of one buffer: does what match and pull do. False: it is another kind, or wrong.
 */
static inline bool pull_whole(struct shm_comm *c, const struct shm_slot *slot)
{
    struct net_request *r = c->open[c->first_open % NET_REQUESTS];
    struct net_part *part = &r->part[0];
    uint64_t size = *(volatile const uint64_t *)&slot->size;
    if (r->n != 1 || size > part->room || size > c->slot_bytes || slot->bytes != size || slot->too_large ||
        slot->group != (uint32_t)c->first_open || slot->part != 0 || (slot->tag != part->tag && c->net.max_recvs > 1))
        return false;
    part->size = size;
    part->matched = true;
    copy(part->data, slot->data, size);
    emptied(c);
    c->first_open++;
    net_part_done(r);
    return true;
}

static ncclResult_t pull(struct shm_comm *c)
{
    for (uint32_t budget = 2 * c->slots; budget > 0; budget--) {
        struct shm_slot *slot = (struct shm_slot *)c->at;
        if (!c->coming.request && c->first_open == c->nposted) return ncclSuccess; /* nobody waits for more */
        if (atomic_load_explicit(&slot->step, memory_order_acquire) != c->step + 1) {
            if (c->step != c->free_until) give_back(c);
            if (++c->idle % LOOK || !peer_is_gone(c)) {
                /* A thread that does nothing else reads the line less often, so that the sender gets it sooner;
                 * with more connections each look is that rare anyway. */
                if (waits_for == c) net_record_wait(&c->net);
                waits_for = c;
                return ncclSuccess;
            }
            /* Everything it wrote before it left has arrived. */
            if (atomic_load_explicit(&slot->step, memory_order_acquire) == c->step + 1) continue;
            return net_peer_gone(&c->net, c->coming.request ? "closed the connection inside a message"
                                                            : "closed the connection");
        }
        if (!c->coming.request) {
            if (pull_whole(c, slot)) continue;
            ncclResult_t result = match(c, slot);
            if (result != ncclSuccess) return result;
        }
        struct net_part *part = c->coming.part;
        size_t rest = part->size - c->offset;
        uint32_t meant = rest < c->slot_bytes ? (uint32_t)rest : c->slot_bytes;
        if (slot->bytes != meant) return net_protocol(&c->net, "bytes of a slot", slot->bytes, meant);
        copy(part->data + c->offset, slot->data, meant);
        c->offset += meant;
        emptied(c);
        if (meant < rest) continue;
        c->offset = 0;
        net_part_done(c->coming.request);
        c->coming.request = NULL;
    }
    return ncclSuccess;
}

/* ---- the backend ---- */

ncclResult_t shm_post(struct net_comm *comm, struct net_request *request, bool *taken)
{
    struct shm_comm *c = (struct shm_comm *)comm;
    return comm->sends ? post_send(c, request, taken) : post_recv(c, request, taken);
}

ncclResult_t shm_progress(struct net_comm *comm, struct net_request *request)
{
    (void)request;
    struct shm_comm *c = (struct shm_comm *)comm;
    return comm->sends ? push(c) : pull(c);
}
