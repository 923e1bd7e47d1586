/* Operations: their keys, their completion, and the assignment of transfers. */
#include <string.h>

#include "consumer.h"

static const uint8_t type_size[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

bool tel_is_op(const struct psm_prof_event *e)
{
    return e->type == PSM_PROF_COLL || e->type == PSM_PROF_P2P || e->type == PSM_PROF_CE_COLL;
}

bool tel_is_open(const struct psm_prof_event *e)
{
    if (!tel_stopped(e)) return true;
    if (e->type == PSM_PROF_COLL)
        return e->u.coll.ops_begun > e->u.coll.ops_ended || e->u.coll.kernels_begun > e->u.coll.kernels_ended;
    if (e->type == PSM_PROF_P2P)
        return e->u.p2p.ops_begun > e->u.p2p.ops_ended || e->u.p2p.kernels_begun > e->u.p2p.kernels_ended;
    return false;
}

struct face {
    uint8_t func, algo, proto, datatype, channels;
    int32_t peer;
    uint64_t count;
};

static struct face face_of(const struct psm_prof_event *e)
{
    struct face f = {255, 255, 255, 255, 0, -1, 0};
    if (e->type == PSM_PROF_COLL)
        f = (struct face){e->u.coll.func, e->u.coll.algo, e->u.coll.proto, e->u.coll.datatype, e->u.coll.channels, -1,
                          e->u.coll.count};
    else if (e->type == PSM_PROF_P2P)
        f = (struct face){e->u.p2p.func, 255, 255, e->u.p2p.datatype, e->u.p2p.channels, e->u.p2p.peer, e->u.p2p.count};
    else
        f = (struct face){e->u.ce.func, 255, 255, e->u.ce.datatype, 0, -1, e->u.ce.count};
    return f;
}

/* The sums of its key; those of "other" if there is no room, then place is TEL_NONE. */
struct psm_tel_op *tel_op_of_key(struct psm_tel *tel, const struct tel_comm *c, const struct psm_prof_event *e,
                                 uint32_t *place)
{
    struct face f = face_of(e);
    struct tel_key key = {(uint64_t)c->seen.id << 32 | (uint32_t)f.peer,
                          (uint64_t)e->type << 32 | (uint32_t)f.func << 24 | (uint32_t)f.algo << 16 |
                              (uint32_t)f.proto << 8 | f.datatype};
    bool fresh;
    *place = tel_table_place(&tel->ops, key, &fresh);
    if (*place == TEL_NONE) return &tel->other_op;
    struct psm_tel_op *op = tel_table_at(&tel->ops, *place);
    if (fresh) {
        op->comm = c->seen.id;
        op->type = e->type;
        op->func = f.func;
        op->algo = f.algo;
        op->proto = f.proto;
        op->datatype = f.datatype;
        op->peer = f.peer;
    }
    return op;
}

uint64_t tel_count_op(struct psm_tel *tel, struct tel_comm *c, struct psm_tel_op *op, const struct psm_prof_event *e,
                      uint32_t transfers, const struct tel_times *times)
{
    struct face f = face_of(e);
    uint32_t *const by[] = {[PSM_TEL_BY_NOTHING] = &op->incomplete,
                            [PSM_TEL_BY_PROXY] = &op->by_proxy,
                            [PSM_TEL_BY_KERNEL] = &op->by_kernel,
                            [PSM_TEL_BY_CE] = &op->by_ce,
                            [PSM_TEL_BY_ENQUEUE] = &op->by_enqueue};
    (void)c;
    if (op == &tel->other_op) tel->losses.other++;
    if (f.channels > op->channels) op->channels = f.channels;
    ++*by[times->by];
    if (!times->end_ns) return 0;
    uint64_t duration = times->end_ns > times->begin_ns ? times->end_ns - times->begin_ns : 0;
    if (f.datatype < sizeof type_size) tel_stat_add(&op->bytes, f.count * type_size[f.datatype]);
    tel_stat_add(&op->duration, duration);
    tel_stat_add(&op->transfers, transfers);
    return duration;
}

static bool is_receive(const struct psm_prof_event *e)
{
    return e->type == PSM_PROF_P2P && e->u.p2p.func == PSM_PROF_RECV;
}

static void sink_in_batch(struct psm_tel *tel, struct tel_batch *b, uint32_t at, struct tel_sink *sink)
{
    bool counts = !sink->again;
    struct tel_side *side = &b->side[at];
    const struct psm_prof_event *e = &b->rows[at].event;
    if (counts && !side->key) {
        uint32_t place;
        tel_op_of_key(tel, b->c, e, &place);
        side->key = place == TEL_NONE ? TEL_NONE : place + 1;
    }
    *sink = (struct tel_sink){.op = side->key == TEL_NONE ? &tel->other_op
                                                          : (struct psm_tel_op *)tel_table_at(&tel->ops, side->key - 1),
                              .transfers = &side->transfers,
                              .receives = is_receive(e)};
}

/* A window that was not taken yet may hold the event of this handle. */
static bool may_come(struct tel_comm *c, const struct tel_batch *b, uint64_t handle)
{
    if (!c->live || handle >> 56 != PSM_PROF_HANDLE_TAG || PSM_PROF_HANDLE_CONTEXT(handle) != (c->context & 0xfff))
        return false;
    uint32_t w = PSM_PROF_HANDLE_ROW(handle) / c->slots, cycle = PSM_PROF_HANDLE_CYCLE(handle);
    if (w >= PSM_PROF_WINDOWS || (b && b->w == w)) return false;
    uint32_t now = atomic_load(&c->window[w]->cycle);
    return (now & 0xffffff) == cycle && now != c->taken_cycle[w];
}

bool tel_sink_of(struct psm_tel *tel, struct tel_comm *c, struct tel_batch *b, uint64_t parent, struct tel_sink *sink)
{
    /* A step's parent is its proxy op, and the parent of that is the operation. */
    for (int depth = 0; depth < 2; depth++) {
        uint32_t at = b ? tel_local(b, parent) : TEL_NONE;
        if (at != TEL_NONE) {
            const struct psm_prof_event *e = &b->rows[at].event;
            if (e->type == PSM_PROF_COLL || e->type == PSM_PROF_P2P) return sink_in_batch(tel, b, at, sink), true;
            /* A parent given by another process may look like a handle of ours. */
            if (e->type != PSM_PROF_PROXY_OP || e->flags & PSM_PROF_FOREIGN) return false;
            struct tel_side *side = &b->side[at];
            if (side->proxied && side->proxied != TEL_NONE) return sink_in_batch(tel, b, side->proxied - 1, sink), true;
            if (!side->proxied) {
                uint32_t op = tel_local(b, e->parent);
                bool known = op != TEL_NONE &&
                             (b->rows[op].event.type == PSM_PROF_COLL || b->rows[op].event.type == PSM_PROF_P2P);
                side->proxied = known ? op + 1 : TEL_NONE;
                if (known) return sink_in_batch(tel, b, op, sink), true;
            }
            parent = e->parent;
            continue;
        }
        struct tel_held *h = tel_held_find(tel, c, parent);
        if (h && h->early) {
            *sink = (struct tel_sink){.early = &tel->holding.early[h->early - 1]};
            return true;
        }
        if (h && (h->event.type == PSM_PROF_COLL || h->event.type == PSM_PROF_P2P)) {
            uint32_t place;
            *sink = (struct tel_sink){.op = tel_op_of_key(tel, c, &h->event, &place),
                                      .transfers = &h->transfers,
                                      .receives = is_receive(&h->event)};
            return true;
        }
        if (h && h->event.type == PSM_PROF_PROXY_OP && !(h->event.flags & PSM_PROF_FOREIGN)) {
            parent = h->event.parent;
            continue;
        }
        if (h || !may_come(c, b, parent)) return false;
        struct tel_early *early = tel_hold_early(tel, c, parent);
        *sink = (struct tel_sink){.early = early};
        return early != NULL;
    }
    return false;
}
