/* Sums up the rows of a window. */
#include <string.h>

#include "consumer.h"

static void count_time(struct psm_tel *tel, const struct tel_comm *c, uint32_t what, int64_t sub, uint64_t bytes,
                       uint64_t duration)
{
    struct tel_key key = {(uint64_t)c->seen.id << 32 | what, (uint64_t)sub};
    bool fresh;
    uint32_t place = tel_table_place(&tel->times, key, &fresh);
    struct psm_tel_span_stat *s = place == TEL_NONE ? &tel->other_time : tel_table_at(&tel->times, place);
    if (place == TEL_NONE) tel->losses.other++;
    if (fresh) {
        s->comm = c->seen.id;
        s->what = what;
        s->sub = sub;
    }
    s->bytes += bytes;
    tel_stat_add(&s->duration, duration);
}

static uint64_t span_of(uint64_t begin, uint64_t end)
{
    return end > begin ? end - begin : 0;
}

/* The data of network events comes from the network plugin. NCCL's own plugins are known by id (type << 16 | version):
 * the size of an IB work request, or of a socket's transfer. */
static uint64_t net_bytes(const struct psm_prof_event *e)
{
    uint64_t bytes = 0;
    uint32_t id = (uint32_t)e->u.net.id;
    size_t at = id == (1u << 16 | 1) ? 32 : id == (2u << 16 | 1) ? 16 : 0;
    if (at && e->u.net.size >= at + sizeof bytes) memcpy(&bytes, e->u.net.data + at, sizeof bytes);
    return bytes;
}

enum { IDLE, ACTIVE, SLEEP, APPEND };

/* NCCL's proxy thread marks when it becomes idle and when it becomes active; sleeping and appending have a duration. */
static void count_ctrl(struct psm_tel *tel, struct tel_comm *c, uint64_t start_ns, int32_t tid,
                       const struct psm_prof_event *e)
{
    if (e->u.proxy_ctrl.sleep_ns) {
        count_time(tel, c, PSM_PROF_PROXY_CTRL, SLEEP, 0, span_of(e->u.proxy_ctrl.sleep_ns, e->stop_ns));
        return;
    }
    if (e->u.proxy_ctrl.append_ns) {
        uint64_t appended = e->u.proxy_ctrl.appended > 0 ? (uint64_t)e->u.proxy_ctrl.appended : 0;
        count_time(tel, c, PSM_PROF_PROXY_CTRL, APPEND, appended, span_of(e->u.proxy_ctrl.append_ns, e->stop_ns));
        return;
    }
    int32_t mark = e->u.proxy_ctrl.idle_ns ? IDLE : ACTIVE;
    if (c->mark_ns && c->mark_tid == tid && c->mark != mark && start_ns > c->mark_ns)
        count_time(tel, c, PSM_PROF_PROXY_CTRL, c->mark, 0, start_ns - c->mark_ns);
    if (c->mark_ns && c->mark_tid == tid && (c->mark == mark || start_ns < c->mark_ns)) return;
    c->mark_ns = start_ns;
    c->mark_tid = tid;
    c->mark = mark;
}

static void count_kernel(struct psm_tel *tel, const struct tel_comm *c, uint64_t start_ns,
                         const struct psm_prof_event *e)
{
    uint64_t begin = e->u.kernel_ch.gpu_begin_ns, end = e->u.kernel_ch.gpu_end_ns;
    bool timed = begin && end >= begin;
    count_time(tel, c, PSM_PROF_KERNEL_CH, 0, 0, timed ? end - begin : span_of(start_ns, e->stop_ns));
}

/* Only the GPU's timer says how long a phase took: NCCL starts and stops its event after the kernel's end. */
static void count_phase(struct psm_tel *tel, const struct tel_comm *c, const struct psm_prof_event *e)
{
    uint64_t begin = e->u.kernel_phase.gpu_begin_ns, end = e->u.kernel_phase.gpu_end_ns;
    if (begin && end >= begin) count_time(tel, c, PSM_PROF_KERNEL_PHASE, e->u.kernel_phase.phase, 0, end - begin);
}

/* Steps of tables before v4 have no size: their op says how much they moved together. */
static bool lacks_size(const struct psm_prof_event *step)
{
    return step->abi && step->abi < 4 && !step->u.proxy_step.bytes;
}

/* Completes a step from its proxy op, among these rows or held: its size, and its owner if the plugin could not see the
 * op any more because its window was taken. */
static void adopt(struct psm_tel *tel, const struct tel_comm *c, const struct tel_batch *b, struct psm_prof_event *step)
{
    uint32_t at = b ? tel_local(b, step->parent) : TEL_NONE;
    const struct tel_held *h = at == TEL_NONE ? tel_held_find(tel, c, step->parent) : NULL;
    const struct psm_prof_event *op = at != TEL_NONE ? &b->rows[at].event : h && !h->early ? &h->event : NULL;
    if (!op || op->type != PSM_PROF_PROXY_OP) return;
    if (lacks_size(step) && op->u.proxy_op.steps_ended)
        step->u.proxy_step.bytes = op->u.proxy_op.bytes / op->u.proxy_op.steps_ended;
    if (step->u.proxy_step.peer != -1) return;
    step->flags |= op->flags & PSM_PROF_SENDS;
    step->u.proxy_step.peer = op->u.proxy_op.peer;
    step->u.proxy_step.channel = op->u.proxy_op.channel;
}

static void count_transfer(struct psm_tel *tel, struct tel_comm *c, struct tel_batch *b, const struct psm_prof_event *e,
                           bool again)
{
    struct psm_prof_event adopted;
    if (__builtin_expect(e->u.proxy_step.peer == -1 || lacks_size(e), 0)) {
        adopted = *e;
        adopt(tel, c, b, &adopted);
        e = &adopted;
    }
    uint64_t time = UINT64_MAX;
    struct tel_sink sink = {.again = again};
    if (!again) tel_count_step(tel, c, e, &time);
    bool sends = e->flags & PSM_PROF_SENDS, moved = e->u.proxy_step.net_ns && e->stop_ns >= e->u.proxy_step.net_ns;
    if (!moved) return;
    if (!tel_sink_of(tel, c, b, e->parent, &sink)) {
        tel->losses.orphans += !again;
        return;
    }
    if (sink.early) {
        sink.early->transfers[sends]++;
        tel_stat_add(&sink.early->bytes[sends], e->u.proxy_step.bytes);
        tel_stat_add(&sink.early->time[sends], time);
        return;
    }
    if (sends == sink.receives) return;
    ++*sink.transfers;
    if (again) return;
    tel_stat_add(&sink.op->transfer_bytes, e->u.proxy_step.bytes);
    tel_stat_add(&sink.op->transfer_time, time);
}

/* Counts a row that has ended, except for operations; batch NULL: it was held. */
static void count_row(struct psm_tel *tel, struct tel_comm *c, struct tel_batch *b, uint64_t start_ns, int32_t tid,
                      const struct psm_prof_event *e, bool again)
{
    switch (e->type) {
    case PSM_PROF_PROXY_STEP:
        count_transfer(tel, c, b, e, again);
        return;
    case PSM_PROF_KERNEL_CH:
        if (!again) count_kernel(tel, c, start_ns, e);
        c->children = true;
        return;
    case PSM_PROF_PROXY_OP:
        c->children = true;
        break;
    case PSM_PROF_PROXY_CTRL:
        if (!again) count_ctrl(tel, c, start_ns, tid, e);
        return;
    case PSM_PROF_NET:
        if (!again) count_time(tel, c, PSM_PROF_NET, e->u.net.id, net_bytes(e), span_of(start_ns, e->stop_ns));
        return;
    case PSM_PROF_KERNEL_PHASE:
        if (!again) count_phase(tel, c, e);
        return;
    case PSM_PROF_CE_SYNC:
    case PSM_PROF_CE_BATCH:
        if (again) return;
        count_time(tel, c, e->type, 0, e->u.ce.bytes,
                   e->u.ce.begin_ns && e->u.ce.end_ns ? span_of(e->u.ce.begin_ns, e->u.ce.end_ns)
                                                      : span_of(start_ns, e->stop_ns));
        return;
    default:
        break;
    }
    if (!again) count_time(tel, c, e->type, 0, 0, span_of(start_ns, e->stop_ns));
}

/* Children that arrived before their parent have waited for it. */
static void meet_early(struct psm_tel *tel, struct tel_batch *b)
{
    for (uint32_t i = 0; i < b->n && b->c->early; i++) {
        uint8_t type = b->rows[i].event.type;
        if (!tel_live(b, i) || (type != PSM_PROF_PROXY_OP && type != PSM_PROF_COLL && type != PSM_PROF_P2P)) continue;
        struct tel_held *h = tel_held_find(tel, b->c, tel_handle(b, i));
        if (!h || !h->early) continue;
        struct tel_early early = tel->holding.early[h->early - 1];
        struct tel_sink sink = {0};
        tel_held_drop(tel, b->c, h);
        if (!tel_sink_of(tel, b->c, b, tel_handle(b, i), &sink)) {
            tel->losses.orphans += (uint64_t)early.transfers[0] + early.transfers[1];
            continue;
        }
        if (sink.early) {
            for (int side = 0; side < 2; side++) {
                sink.early->transfers[side] += early.transfers[side];
                tel_stat_merge(&sink.early->bytes[side], &early.bytes[side]);
                tel_stat_merge(&sink.early->time[side], &early.time[side]);
            }
            continue;
        }
        int side = !sink.receives;
        *sink.transfers += early.transfers[side];
        tel_stat_merge(&sink.op->transfer_bytes, &early.bytes[side]);
        tel_stat_merge(&sink.op->transfer_time, &early.time[side]);
    }
}

static uint64_t done_of(uint8_t type, const struct psm_prof_event *e)
{
    return type == PSM_PROF_COLL ? e->u.coll.done_ns : type == PSM_PROF_P2P ? e->u.p2p.done_ns : 0;
}

static struct tel_held *hold_row(struct psm_tel *tel, struct tel_batch *b, uint32_t i, uint64_t until)
{
    struct tel_held *h = tel_hold(tel, b->c, tel_handle(b, i));
    if (!h) return NULL;
    h->start_ns = b->rows[i].start_ns;
    h->tid = b->rows[i].tid;
    h->event = b->rows[i].event;
    h->transfers = b->side[i].transfers;
    h->kernels = b->side[i].kernels;
    h->deadline = until;
    h->taken_done = done_of(h->event.type, &h->event);
    return h;
}

static bool was_counted(const struct tel_batch *b, uint32_t i)
{
    return b->counted && b->counted[i / 64] >> (i % 64) & 1;
}

static void note_counted(struct tel_batch *b, uint32_t i)
{
    b->c->seen.events++;
    if (b->counted) b->counted[i / 64] |= UINT64_C(1) << (i % 64);
}

/* No proxy op or kernel channel of it has arrived, but others of the communicator have some: they may still come. */
static bool may_have_children(const struct tel_batch *b, const struct psm_prof_event *e)
{
    if (!b->forced || b->ended || b->counted || !b->c->children || e->flags & PSM_PROF_COMPLETE) return false;
    if (e->type == PSM_PROF_COLL) return e->u.coll.channels && !e->u.coll.ops_begun && !e->u.coll.kernels_begun;
    if (e->type == PSM_PROF_P2P) return e->u.p2p.channels && !e->u.p2p.ops_begun && !e->u.p2p.kernels_begun;
    return false;
}

static void count_ops(struct psm_tel *tel, struct tel_batch *b, uint32_t n)
{
    struct tel_comm *c = b->c;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = tel->ops_at[k], place;
        const struct psm_prof_event *e = &b->rows[i].event;
        if (was_counted(b, i)) continue;
        bool open = tel_is_open(e);
        if (open && !b->ended && b->counted) continue;
        note_counted(b, i);
        if (open && !b->ended) {
            if (hold_row(tel, b, i, b->now + TEL_HOLD_NS)) {
                tel_span_op(tel, b, i, TEL_NONE, span_of(b->rows[i].start_ns, b->now), TEL_OPEN);
                continue;
            }
        } else if (may_have_children(b, e) && hold_row(tel, b, i, b->now + c->head.force_ns)) {
            continue;
        }
        struct psm_tel_op *op = tel_op_of_key(tel, c, e, &place);
        struct tel_times times = tel_times_at(b, i);
        uint64_t duration = tel_count_op(tel, c, op, e, b->side[i].transfers, &times);
        c->seen.incomplete += open;
        if (times.end_ns)
            tel_span_op(tel, b, i, place, duration, TEL_SLOWEST);
        else
            tel_span_op(tel, b, i, place, span_of(b->rows[i].start_ns, b->now), TEL_INCOMPLETE);
    }
}

static void count_one(struct psm_tel *tel, struct tel_batch *b, uint32_t i)
{
    const struct psm_prof_event *e = &b->rows[i].event;
    bool again = was_counted(b, i);
    if (!tel_stopped(e)) {
        if (again || (b->counted && !b->ended)) return;
        note_counted(b, i);
        if (b->ended || !hold_row(tel, b, i, b->now + TEL_HOLD_NS)) b->c->seen.incomplete++;
        return;
    }
    if (!again) note_counted(b, i);
    count_row(tel, b->c, b, b->rows[i].start_ns, b->rows[i].tid, e, again);
}

/* ---- events that were open, and have ended now ---- */

static uint16_t most(uint16_t a, uint16_t b)
{
    return a > b ? a : b;
}

static void update_op(struct psm_prof_event *e, const struct psm_prof_event *late)
{
    struct psm_prof_event old = *e;
    e->u = late->u;
    /* Ends of its children that arrived here may be newer than its own data. */
    if (e->type == PSM_PROF_COLL) {
        e->u.coll.ops_ended = most(old.u.coll.ops_ended, late->u.coll.ops_ended);
        e->u.coll.kernels_ended = most(old.u.coll.kernels_ended, late->u.coll.kernels_ended);
        if (old.u.coll.done_ns > late->u.coll.done_ns) e->u.coll.done_ns = old.u.coll.done_ns;
    } else if (e->type == PSM_PROF_P2P) {
        e->u.p2p.ops_ended = most(old.u.p2p.ops_ended, late->u.p2p.ops_ended);
        e->u.p2p.kernels_ended = most(old.u.p2p.kernels_ended, late->u.p2p.kernels_ended);
        if (old.u.p2p.done_ns > late->u.p2p.done_ns) e->u.p2p.done_ns = old.u.p2p.done_ns;
    }
}

static void end_held_op(struct psm_tel *tel, struct tel_comm *c, struct tel_held *h)
{
    uint32_t place;
    struct psm_tel_op *op = tel_op_of_key(tel, c, &h->event, &place);
    struct tel_times times = tel_times_held(c, h);
    tel_count_op(tel, c, op, &h->event, h->transfers, &times);
    tel_span_held(tel, c, h, times.end_ns ? TEL_OPEN : TEL_INCOMPLETE);
    tel_held_drop(tel, c, h);
}

/* Whether a held operation has ended now. If fewer of its channels ended than it announced, others may come: do not
 * wait for ever, because the announced number may be wrong. */
static void settle(struct psm_tel *tel, struct tel_comm *c, struct tel_held *h, uint64_t now)
{
    const struct psm_prof_event *e = &h->event;
    if (tel_is_open(e)) return;
    bool whole = e->type == PSM_PROF_CE_COLL || e->flags & PSM_PROF_COMPLETE ||
                 e->u.coll.ops_ended >= e->u.coll.channels || e->u.coll.kernels_ended >= e->u.coll.channels;
    if (whole)
        end_held_op(tel, c, h);
    else
        h->deadline = now + c->head.force_ns;
}
#define SAME_PLACE(member)                                                                                             \
    (offsetof(struct psm_prof_event, u.coll.member) == offsetof(struct psm_prof_event, u.p2p.member))
_Static_assert(SAME_PLACE(ops_begun) && SAME_PLACE(ops_ended) && SAME_PLACE(kernels_begun) &&
                   SAME_PLACE(kernels_ended) && SAME_PLACE(channels),
               "one is taken for the other");

static bool is_child(const struct psm_prof_event *e)
{
    return (e->type == PSM_PROF_PROXY_OP || e->type == PSM_PROF_KERNEL_CH) && !(e->flags & PSM_PROF_FOREIGN);
}

/* A proxy op or kernel channel of a held operation: it has arrived, or (late) it has ended. The operation counts starts
 * while the plugin could see its row, and ends until it was taken. */
static void join_child(struct psm_tel *tel, struct tel_comm *c, const struct psm_prof_event *e, bool late, uint64_t now)
{
    struct tel_held *h = tel_held_find(tel, c, e->parent);
    if (!h || h->early || (h->event.type != PSM_PROF_COLL && h->event.type != PSM_PROF_P2P)) return;
    bool kernel = e->type == PSM_PROF_KERNEL_CH, unseen = e->flags & PSM_PROF_ORPHAN;
    struct psm_prof_event *op = &h->event;
    tel_kernel_ended(&h->kernels, e);
    if (unseen && !late) ++*(kernel ? &op->u.coll.kernels_begun : &op->u.coll.ops_begun);
    if (tel_stopped(e) && (unseen || e->stop_ns > h->taken_done)) {
        _Atomic uint64_t *done = op->type == PSM_PROF_COLL ? &op->u.coll.done_ns : &op->u.p2p.done_ns;
        ++*(kernel ? &op->u.coll.kernels_ended : &op->u.coll.ops_ended);
        if (e->stop_ns > *done) *done = e->stop_ns;
    }
    settle(tel, c, h, now);
}

/* The row was reused before the stop arrived: only its time is known. */
static bool tells_nothing(const struct psm_prof_event *late)
{
    static const unsigned char nothing[sizeof late->u];
    return memcmp(&late->u, nothing, sizeof nothing) == 0;
}

static void end_late(struct psm_tel *tel, struct tel_comm *c, const struct psm_prof_event *late, uint64_t now)
{
    struct tel_held *h = tel_held_find(tel, c, late->parent);
    if (!h || h->early) return;
    h->event.stop_ns = late->stop_ns;
    h->event.state = late->state;
    h->event.flags |= late->flags | PSM_PROF_STOPPED;
    if (tel_is_op(&h->event)) {
        if (!tells_nothing(late)) {
            uint64_t done = done_of(h->event.type, late);
            if (done > h->taken_done) h->taken_done = done;
            update_op(&h->event, late);
        }
        settle(tel, c, h, now);
        return;
    }
    if (!tells_nothing(late)) h->event.u = late->u;
    struct tel_held ended = *h;
    tel_held_drop(tel, c, h);
    count_row(tel, c, NULL, ended.start_ns, ended.tid, &ended.event, false);
    if (is_child(&ended.event)) join_child(tel, c, &ended.event, true, now);
}

/* ---- a window ---- */

void tel_aggregate(struct psm_tel *tel, struct tel_batch *b)
{
    uint32_t ops = 0, late = 0; /* both in one list, from its two ends */
    uint64_t last = b->c->seen.last_ns;
    if (!b->n) return;
    tel->batch++;
    meet_early(tel, b);
    for (uint32_t i = 0; i < b->n; i++) {
        if (!tel_live(b, i)) continue;
        const struct psm_prof_event *e = &b->rows[i].event;
        if (b->rows[i].start_ns > last) last = b->rows[i].start_ns;
        if (e->stop_ns > last) last = e->stop_ns;
        if (e->type == PSM_PROF_LATE) {
            tel->ops_at[b->n - ++late] = i;
        } else if (tel_is_op(e)) {
            tel->ops_at[ops++] = i;
        } else {
            count_one(tel, b, i);
            if (b->c->held && is_child(e) && !b->counted && tel_local(b, e->parent) == TEL_NONE)
                tel->ops_at[b->n - ++late] = i;
        }
    }
    b->c->seen.last_ns = last;
    /* After the others: children of what has ended are among them. */
    for (uint32_t k = 1; k <= late; k++) {
        uint32_t i = tel->ops_at[b->n - k];
        const struct psm_prof_event *e = &b->rows[i].event;
        if (e->type != PSM_PROF_LATE) {
            join_child(tel, b->c, e, false, b->now);
            continue;
        }
        if (!was_counted(b, i)) end_late(tel, b->c, e, b->now);
        if (b->counted) b->counted[i / 64] |= UINT64_C(1) << (i % 64);
    }
    tel->nops = ops;
    count_ops(tel, b, ops);
    tel_spans_of_batch(tel, b);
}
