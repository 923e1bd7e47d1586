/* What a call does to the row of its event, and to the rows of its parents. */
#define _GNU_SOURCE
#include <string.h>

#include "profiler_plugin.h"
#include "psm_abi/profiler_net.h"

enum { WORD = offsetof(struct psm_prof_event, type) };
_Static_assert(WORD % 8 == 0 && offsetof(struct psm_prof_event, reserved) == WORD + 4 &&
                   offsetof(struct psm_prof_event, flags) < WORD + 4 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "end_life uses them as one");

/* The plugin's own flag: the event is one that its window awaits. */
enum { COUNTED = 1 << 7 }; /* in addition to those of window.h */

/* The descriptor of psmkit's own net plugin. */
enum { NET_PSM = 0x5053 << 16 | 1, NET_PSM_SIZE = 40 };

/* The plugin's own word of a row: cycle << 1, plus 1 after it was stopped. */
static _Atomic uint32_t *life_of(struct psm_prof_event *event)
{
    return (_Atomic uint32_t *)&event->reserved;
}

/* A stop must change that word and the flag exactly once, and only if the row still belongs to the event: both are in
 * one word of 8 bytes. Returns the previous value. */
static inline uint32_t end_life(struct psm_prof_event *event, uint32_t life)
{
    _Atomic uint64_t *both = (_Atomic uint64_t *)(void *)&event->type;
    uint64_t flag = (uint64_t)PSM_PROF_STOPPED << (8 * (offsetof(struct psm_prof_event, flags) - WORD));
    uint64_t seen = atomic_load_explicit(both, memory_order_relaxed);
    while (seen >> 32 == life && !atomic_compare_exchange_weak(both, &seen, seen | flag | (uint64_t)1 << 32)) continue;
    return (uint32_t)(seen >> 32);
}

static struct psm_prof_event *event_of(struct rec_slot *slot)
{
    return (struct psm_prof_event *)slot->record;
}

static bool is_ours(const struct prof_comm *comm, uint64_t handle)
{
    return handle >> 56 == PSM_PROF_HANDLE_TAG && PSM_PROF_HANDLE_CONTEXT(handle) == comm->number &&
           prof_row_there(comm, PSM_PROF_HANDLE_ROW(handle));
}

/* The caller is inside its window. The row does not change its owner until the caller leaves. */
static inline struct rec_slot *row_of(const struct prof_comm *comm, uint64_t handle, uint32_t w)
{
    uint32_t row = PSM_PROF_HANDLE_ROW(handle), cycle = PSM_PROF_HANDLE_CYCLE(handle);
    const struct psm_prof_window *window = comm->window[w];
    if (PROF_CYCLE(atomic_load(&window->cycle)) != cycle) return NULL;
    struct rec_slot *slot = prof_slot(comm, row);
    uint64_t sequence = atomic_load_explicit(&slot->sequence, memory_order_acquire);
    return PROF_CYCLE(sequence >> 2) == cycle && (sequence & SLOT_BITS) == SLOT_LIVE ? slot : NULL;
}

/* Before the row is published: no other thread has it. */
static void set_flags(struct psm_prof_event *event, unsigned flags)
{
    atomic_store_explicit(&event->flags, (uint8_t)(atomic_load_explicit(&event->flags, memory_order_relaxed) | flags),
                          memory_order_relaxed);
}

/* Steps of an op belong to one thread: a sum needs only whole stores. */
static void add(_Atomic uint64_t *sum, uint64_t n)
{
    if (n) atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + n, memory_order_relaxed);
}

static void set_once(_Atomic uint64_t *time, uint64_t now)
{
    if (!atomic_load_explicit(time, memory_order_relaxed)) atomic_store_explicit(time, now, memory_order_relaxed);
}

/* ---- start ---- */

static void write_head(const struct prof_new *made, uint64_t now, unsigned abi, unsigned type)
{
    struct rec_slot *slot = made->slot;
    struct psm_prof_event *event = made->event;
    atomic_store_explicit(&slot->sequence, (uint64_t)made->place.cycle << 2 | SLOT_CLAIMED, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    slot->time_ns = now;
    slot->tid = made->thread->tid;
    slot->device = 0;
    atomic_store_explicit(&event->stop_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&event->flags, 0, memory_order_relaxed);
    atomic_store_explicit(&event->state, 255, memory_order_relaxed);
    atomic_store_explicit(life_of(event), PROF_CYCLE(made->place.cycle) << 1, memory_order_relaxed);
    PROF_SET(event->type, (uint8_t)type);
    event->abi = (uint8_t)abi;
    memset(&event->u, 0, sizeof event->u);
}

static uint64_t publish(const struct prof_new *made)
{
    atomic_store_explicit(&made->slot->sequence, (uint64_t)made->place.cycle << 2 | SLOT_LIVE, memory_order_release);
    return PSM_PROF_HANDLE(made->comm->number, made->place.row, made->place.cycle);
}

/* A proxy op or kernel channel found no slot: nobody will see the end of the operation that it belongs to. */
static void lose_child(struct prof_comm *comm, struct prof_local *local, uint64_t parent, uint64_t type)
{
    if (!parent || !(type & (ncclProfileProxyOp | ncclProfileKernelCh))) return;
    uint32_t w = prof_window_of(comm, PSM_PROF_HANDLE_ROW(parent));
    atomic_store(&local->inside, 1u << w);
    struct rec_slot *slot = row_of(comm, parent, w);
    unsigned above = slot ? PROF_GET(event_of(slot)->type) : PSM_PROF_GROUP;
    if (above == PSM_PROF_COLL || above == PSM_PROF_P2P)
        atomic_fetch_or_explicit(&event_of(slot)->flags, PSM_PROF_CHILD_LOST, memory_order_relaxed);
    atomic_store_explicit(&local->inside, 0, memory_order_release);
}

bool prof_begin(struct prof_new *made, void *context, unsigned abi, uint64_t type, uint64_t parent, int pid)
{
    struct prof_comm *comm = prof_comm_of(context);
    if (!comm || !(type & atomic_load_explicit(&comm->mask, memory_order_relaxed)) || type & (type - 1)) {
        /* An empty mask keeps one kind of NCCL's enabled, so this must be checked. */
        if (comm && (made->thread = prof_thread())) {
            bool tick = false;
            prof_now(&made->thread->clock, &tick);
            if (tick) prof_comm_tick(comm);
        }
        return false;
    }
    struct prof_thread *thread = prof_thread();
    struct prof_local *local = thread ? prof_local(thread, comm) : NULL;
    if (__builtin_expect(!local, 0)) {
        prof_count(&comm->shared->begun);
        prof_count(&comm->shared->dropped_memory);
        return false;
    }
    atomic_store_explicit(&local->begun, atomic_load_explicit(&local->begun, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    uint64_t now = prof_now(&thread->clock, &thread->tick);
    bool foreign = pid && pid != psm_proc_self()->pid;
    made->parent = !foreign && is_ours(comm, parent) ? parent : 0;
    if (!prof_take_slot(comm, local, made->parent, now, true, &made->place)) {
        lose_child(comm, local, made->parent, type);
        return false;
    }
    made->comm = comm;
    made->local = local;
    made->thread = thread;
    made->slot = prof_slot(comm, made->place.row);
    made->event = event_of(made->slot);
    write_head(made, now, abi, (unsigned)__builtin_ctzll(type));
    made->event->parent = parent;
    if (foreign) {
        set_flags(made->event, PSM_PROF_FOREIGN);
        prof_count(&comm->shared->foreign_parents);
    }
    return true;
}

/* The op is complete when all that started have ended, and there are as many as it has channels. */
static void child_ends(struct prof_comm *comm, const struct prof_local *local, struct rec_slot *slot, uint64_t parent,
                       bool kernel, uint64_t now)
{
    struct psm_prof_event *event = event_of(slot);
    unsigned type = PROF_GET(event->type);
    bool coll = type == PSM_PROF_COLL;
    if (!coll && type != PSM_PROF_P2P) return;
    _Atomic uint16_t *begun = kernel ? &event->u.coll.kernels_begun : &event->u.coll.ops_begun;
    _Atomic uint16_t *ended = kernel ? &event->u.coll.kernels_ended : &event->u.coll.ops_ended;
    _Atomic uint64_t *done = coll ? &event->u.coll.done_ns : &event->u.p2p.done_ns;
    unsigned n = atomic_fetch_add_explicit(ended, 1, memory_order_acq_rel) + 1u;
    if (atomic_load_explicit(done, memory_order_relaxed) < now) atomic_store_explicit(done, now, memory_order_relaxed);
    if (n < event->u.coll.channels || n < atomic_load_explicit(begun, memory_order_relaxed)) return;
    uint8_t before = atomic_fetch_or_explicit(&event->flags, PSM_PROF_COMPLETE, memory_order_relaxed);
    if (before & PSM_PROF_COMPLETE || !(before & COUNTED)) return;
    struct psm_prof_window *window = comm->window[prof_window_of(comm, PSM_PROF_HANDLE_ROW(parent))];
    prof_sum(local, &window->shard[local->shard].completed);
}
#define SAME_PLACE(member)                                                                                             \
    (offsetof(struct psm_prof_event, u.coll.member) == offsetof(struct psm_prof_event, u.p2p.member))
_Static_assert(SAME_PLACE(ops_begun) && SAME_PLACE(ops_ended) && SAME_PLACE(kernels_begun) &&
                   SAME_PLACE(kernels_ended) && SAME_PLACE(channels),
               "child_ends uses one for the other");

static void pair_clocks(struct psm_prof_comm *shared, uint64_t cpu_ns, uint64_t gpu_ns)
{
    uint64_t n = atomic_fetch_add_explicit(&shared->pairs, 1, memory_order_relaxed) % PSM_PROF_PAIRS;
    atomic_store_explicit(&shared->pair[n].cpu_ns, cpu_ns, memory_order_relaxed);
    atomic_store_explicit(&shared->pair[n].gpu_ns, gpu_ns, memory_order_relaxed);
}

void *prof_commit(struct prof_new *made)
{
    struct prof_comm *comm = made->comm;
    struct psm_prof_event *event = made->event, *parent = NULL;
    if (made->parent) {
        struct rec_slot *slot = row_of(comm, made->parent, prof_window_of(comm, PSM_PROF_HANDLE_ROW(made->parent)));
        if (slot)
            parent = event_of(slot);
        else
            set_flags(event, PSM_PROF_ORPHAN);
    }
    unsigned above = parent ? PROF_GET(parent->type) : PSM_PROF_GROUP;
    bool operation = above == PSM_PROF_COLL || above == PSM_PROF_P2P;
    switch (event->type) {
    case PSM_PROF_COLL:
    case PSM_PROF_P2P:
        /* Without these nothing reports its end. */
        if (atomic_load_explicit(&comm->mask, memory_order_relaxed) & (ncclProfileProxyOp | ncclProfileKernelCh)) {
            set_flags(event, COUNTED);
            prof_sum(made->local, &comm->window[made->place.window]->shard[made->local->shard].awaited);
        }
        break;
    case PSM_PROF_PROXY_OP:
        if (operation) atomic_fetch_add_explicit(&parent->u.coll.ops_begun, 1, memory_order_relaxed);
        break;
    case PSM_PROF_KERNEL_CH:
        if (operation) atomic_fetch_add_explicit(&parent->u.coll.kernels_begun, 1, memory_order_relaxed);
        if (event->u.kernel_ch.gpu_begin_ns)
            pair_clocks(comm->shared, made->slot->time_ns, event->u.kernel_ch.gpu_begin_ns);
        break;
    case PSM_PROF_PROXY_STEP:
        event->u.proxy_step.peer = -1;
        if (above == PSM_PROF_PROXY_OP) {
            event->u.proxy_step.peer = parent->u.proxy_op.peer;
            event->u.proxy_step.channel = parent->u.proxy_op.channel;
            set_flags(event, atomic_load_explicit(&parent->flags, memory_order_relaxed) & PSM_PROF_SENDS);
        }
        break;
    default:
        break;
    }
    uint64_t handle = publish(made);
    atomic_store_explicit(&made->local->inside, 0, memory_order_release);
    if (__builtin_expect(made->place.rotate, 0))
        prof_rotate(comm, made->local, made->place.window, made->slot->time_ns, false);
    if (__builtin_expect(made->thread->tick, 0)) {
        made->thread->tick = false;
        prof_comm_tick(comm);
    }
    return (void *)(uintptr_t)handle;
}

/* ---- handles ---- */

static struct prof_comm *comm_of_handle(uint64_t handle)
{
    struct prof_comm *comm = atomic_load_explicit(&prof_comms[PSM_PROF_HANDLE_CONTEXT(handle)], memory_order_acquire);
    if (comm && atomic_load_explicit(&comm->context, memory_order_acquire) && is_ours(comm, handle)) return comm;
    if (!comm || !atomic_load(&comm->context)) comm = prof_comm_any();
    prof_count(comm ? &comm->shared->bad_handle : &prof_lost_handles);
    return NULL;
}

/* An event whose row was taken or reused has ended: marks the row accordingly. */
static void tell_late(struct prof_comm *comm, struct prof_thread *thread, struct prof_local *local, uint64_t handle,
                      uint64_t now, const struct psm_prof_event *was)
{
    struct prof_new made = {.comm = comm, .thread = thread, .local = local};
    if (!prof_take_slot(comm, local, 0, now, false, &made.place)) return;
    made.slot = prof_slot(comm, made.place.row);
    made.event = event_of(made.slot);
    write_head(&made, now, was ? was->abi : comm->shared->abi, PSM_PROF_LATE);
    made.event->parent = handle;
    if (was) {
        memcpy(&made.event->u, &was->u, sizeof was->u);
        atomic_store_explicit(&made.event->state, was->state, memory_order_relaxed);
        set_flags(made.event, was->flags & (PSM_PROF_SENDS | PSM_PROF_COMPLETE | PSM_PROF_CHILD_LOST));
    }
    set_flags(made.event, PSM_PROF_STOPPED);
    atomic_store_explicit(&made.event->stop_ns, now, memory_order_relaxed);
    atomic_store_explicit(life_of(made.event), PROF_CYCLE(made.place.cycle) << 1 | 1, memory_order_relaxed);
    publish(&made);
    prof_count(&comm->shared->carried);
    atomic_fetch_add(&comm->window[made.place.window]->shard[local->shard].stopped, 1);
    atomic_store_explicit(&local->inside, 0, memory_order_release);
}

/* A handle whose row now belongs to another event. */
static void gone(struct prof_comm *comm, struct prof_thread *thread, struct prof_local *local, uint64_t handle,
                 bool stops)
{
    atomic_store_explicit(&local->inside, 0, memory_order_release);
    uint32_t w = prof_window_of(comm, PSM_PROF_HANDLE_ROW(handle));
    enum prof_fate fate = prof_fate_of(comm, w, PSM_PROF_HANDLE_CYCLE(handle));
    if (fate == PROF_UNKNOWN)
        prof_count(&comm->shared->stale_handle);
    else if (fate == PROF_FORCED_OUT && stops)
        tell_late(comm, thread, local, handle, prof_now(&thread->clock, &thread->tick), NULL);
}

/* ---- stop ---- */

static void end_step(const struct psm_prof_event *event, struct psm_prof_event *op, uint64_t now)
{
    uint64_t gpu = PROF_GET(event->u.proxy_step.gpu_ns), peer = PROF_GET(event->u.proxy_step.peer_ns);
    uint64_t net = PROF_GET(event->u.proxy_step.net_ns), flush = PROF_GET(event->u.proxy_step.flush_ns);
    uint64_t wait[4];
    if (atomic_load_explicit(&op->flags, memory_order_relaxed) & PSM_PROF_SENDS) {
        uint64_t sent = net ? net : now;
        wait[0] = gpu ? (peer ? peer : sent) - gpu : 0;
        wait[1] = peer ? sent - peer : 0;
        wait[2] = net ? now - net : 0;
        wait[3] = 0;
    } else {
        uint64_t given = gpu ? gpu : now;
        wait[0] = gpu ? now - gpu : 0;
        wait[1] = 0;
        wait[2] = net ? (flush ? flush : given) - net : 0;
        wait[3] = flush ? given - flush : 0;
    }
    /* States out of order: do not record a duration of centuries. */
    for (int i = 0; i < 4; i++) add(&op->u.proxy_op.wait_ns[i], wait[i] > now ? 0 : wait[i]);
    add(&op->u.proxy_op.bytes, PROF_GET(event->u.proxy_step.bytes));
    atomic_store_explicit(&op->u.proxy_op.steps_ended,
                          atomic_load_explicit(&op->u.proxy_op.steps_ended, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

static void tell_parent(struct prof_comm *comm, struct prof_local *local, uint32_t w,
                        const struct psm_prof_event *event, uint64_t now)
{
    unsigned type = PROF_GET(event->type);
    uint64_t handle = event->parent;
    if (type != PSM_PROF_PROXY_STEP && type != PSM_PROF_PROXY_OP && type != PSM_PROF_KERNEL_CH) return;
    if (atomic_load_explicit(&event->flags, memory_order_relaxed) & PSM_PROF_FOREIGN || !is_ours(comm, handle)) return;
    uint32_t its = prof_window_of(comm, PSM_PROF_HANDLE_ROW(handle));
    if (its != w) atomic_store(&local->inside, 1u << w | 1u << its);
    struct rec_slot *slot = row_of(comm, handle, its);
    if (!slot) return;
    if (type != PSM_PROF_PROXY_STEP)
        child_ends(comm, local, slot, handle, type == PSM_PROF_KERNEL_CH, now);
    else if (PROF_GET(event_of(slot)->type) == PSM_PROF_PROXY_OP)
        end_step(event, event_of(slot), now);
}

void prof_stop(uint64_t handle)
{
    struct prof_comm *comm = handle ? comm_of_handle(handle) : NULL;
    struct prof_thread *thread = comm ? prof_thread() : NULL;
    struct prof_local *local = thread ? prof_local(thread, comm) : NULL;
    if (!local) return;
    uint32_t row = PSM_PROF_HANDLE_ROW(handle), w = prof_window_of(comm, row), cycle = PSM_PROF_HANDLE_CYCLE(handle);
    struct psm_prof_window *window = comm->window[w];
    struct rec_slot *slot = prof_slot(comm, row);
    struct psm_prof_event *event = event_of(slot);
    atomic_store_explicit(&local->inside, 1u << w, memory_order_release);
    /* Here rather than later: the processor reads it together with the rest. */
    uint64_t now = prof_now(&thread->clock, &thread->tick);
    bool there = row_of(comm, handle, w);
    uint32_t life = there ? end_life(event, cycle << 1) : 0;
    if (__builtin_expect(there && life == (cycle << 1 | 1), 0)) {
        prof_count(&comm->shared->stopped_twice);
        atomic_store_explicit(&local->inside, 0, memory_order_release);
        return;
    }
    /* Check again: only the change of the word made it final. */
    if (__builtin_expect(!there || life != cycle << 1 || PROF_CYCLE(atomic_load(&window->cycle)) != cycle, 0)) {
        gone(comm, thread, local, handle, true);
        return;
    }
    /* Clocks of two threads may differ a little. */
    if (now < slot->time_ns) now = slot->time_ns;
    tell_parent(comm, local, w, event, now);
    atomic_store_explicit(&event->stop_ns, now, memory_order_relaxed);
    atomic_fetch_add(&window->shard[local->shard].stopped, 1);
    uint32_t state = atomic_load(&window->state);
    if (__builtin_expect(state == PSM_PROF_FILLING || state == PSM_PROF_CLOSING, 1)) {
        atomic_store_explicit(&local->inside, 0, memory_order_release);
    } else {
        /* Taken before it ended: the consumer may not have seen the end. */
        struct psm_prof_event was;
        memcpy(&was, event, sizeof was);
        tell_late(comm, thread, local, handle, now, &was);
    }
    if (__builtin_expect(thread->tick, 0)) {
        thread->tick = false;
        prof_comm_tick(comm);
    }
}

/* ---- states ---- */

void prof_net_data(struct psm_prof_event *event, int64_t id, const void *data)
{
    enum {
        IB = NCCL_PROFILER_NET_TYPE_IB | NCCL_PROFILER_NET_IB_VER,
        SOCK = NCCL_PROFILER_NET_TYPE_SOCK | NCCL_PROFILER_NET_SOCKET_VER
    };
    uint64_t words[sizeof event->u.net.data / 8] = {0};
    uint32_t size = id == IB        ? sizeof(ncclProfilerNetIbDescr_v1_t)
                    : id == SOCK    ? sizeof(ncclProfilerNetSockDescr_v1_t)
                    : id == NET_PSM ? NET_PSM_SIZE
                                    : 0;
    if (!data || !size) return;
    memcpy(words, data, size);
    for (uint32_t i = 0; i < (size + 7) / 8; i++) PROF_SET(((uint64_t *)(void *)event->u.net.data)[i], words[i]);
    PROF_SET(event->u.net.size, size);
}
_Static_assert(sizeof(ncclProfilerNetIbDescr_v1_t) <= 48 && sizeof(ncclProfilerNetSockDescr_v1_t) <= 48, "they fit");
_Static_assert(offsetof(struct psm_prof_event, u.net.data) % 8 == 0, "whole words");

/* The time of entering a state, NULL: a state of another event, or one without a time. */
static _Atomic uint64_t *moment(struct psm_prof_event *event, int state)
{
    switch (PROF_GET(event->type) << 8 | state) {
#define TIME(kind, state, at)                                                                                          \
    case kind << 8 | state:                                                                                            \
        return &at;
        PSM_ABI_PROFILER_TIMES(TIME)
#undef TIME
    default:
        return NULL;
    }
}

/* The arguments that a row keeps as they are. */
static void keep_args(struct psm_prof_event *event, int state, const struct prof_args *args)
{
    switch (PROF_GET(event->type) << 8 | state) {
#define KEPT_OF(kind, state, moves)                                                                                    \
    case kind << 8 | state:                                                                                            \
        moves break;
#define KEEP(at, field) PROF_SET(at, (PROF_TYPE(at))args->field);
        PSM_ABI_PROFILER_KEPT_ARGS(KEPT_OF, KEEP)
#undef KEPT_OF
#undef KEEP
    default:
        break;
    }
}

static void take_args(struct psm_prof_event *event, int state, const struct prof_args *args)
{
    switch (PROF_GET(event->type)) {
    case PSM_PROF_PROXY_STEP:
        /* With each state NCCL passes the size of the operation's last transfer: it belongs to this step only when the
         * transfer starts, or has arrived. A transport without a flush passes it when the GPU may read the data. */
        if (state == ncclProfilerProxyStepSendWait || state == ncclProfilerProxyStepRecvFlushWait ||
            (state == ncclProfilerProxyStepRecvGPUWait && PROF_GET(event->u.proxy_step.flush_ns) == 0))
            PROF_SET(event->u.proxy_step.bytes, args->bytes);
        break;
    case PSM_PROF_PROXY_OP:
        if (state > ncclProfilerProxyOpRecvDone) break; /* v1 to v3 in NCCL up to 2.26 */
        PROF_SET(event->u.proxy_op.bytes, args->bytes);
        PROF_SET(event->u.proxy_op.steps_ended, (uint32_t)args->steps);
        break;
    case PSM_PROF_NET:
        if (state != ncclProfilerNetPluginUpdate) break;
        prof_net_data(event, event->u.net.id, args->data);
        PROF_SET(event->u.net.updates, PROF_GET(event->u.net.updates) + 1);
        break;
    default:
        keep_args(event, state, args);
        break;
    }
}

static bool is_sends(unsigned type, int state)
{
    if (type == PSM_PROF_PROXY_OP) return state <= ncclProfilerProxyOpSendDone;
    return type == PSM_PROF_PROXY_STEP &&
           (state == ncclProfilerProxyStepSendGPUWait || state == ncclProfilerProxyStepSendWait ||
            state == ncclProfilerProxyStepSendPeerWait_v4);
}

/* NCCL reports only for operations of its own network transport that they send; the states of a step reveal it for all.
 */
static void learn_side(struct prof_comm *comm, struct prof_local *local, uint32_t w, struct psm_prof_event *event)
{
    atomic_fetch_or_explicit(&event->flags, PSM_PROF_SENDS, memory_order_relaxed);
    uint64_t handle = event->parent;
    if (PROF_GET(event->type) != PSM_PROF_PROXY_STEP || !is_ours(comm, handle)) return;
    uint32_t its = prof_window_of(comm, PSM_PROF_HANDLE_ROW(handle));
    if (its != w) atomic_store(&local->inside, 1u << w | 1u << its);
    struct rec_slot *slot = row_of(comm, handle, its);
    if (slot && PROF_GET(event_of(slot)->type) == PSM_PROF_PROXY_OP)
        atomic_fetch_or_explicit(&event_of(slot)->flags, PSM_PROF_SENDS, memory_order_relaxed);
}

void prof_record(uint64_t handle, int state, const struct prof_args *args)
{
    struct prof_comm *comm = handle ? comm_of_handle(handle) : NULL;
    struct prof_thread *thread = comm ? prof_thread() : NULL;
    struct prof_local *local = thread ? prof_local(thread, comm) : NULL;
    if (!local || state < 0 || state >= PSM_ABI_PROFILER_STATES) return;
    uint32_t w = prof_window_of(comm, PSM_PROF_HANDLE_ROW(handle));
    atomic_store(&local->inside, 1u << w);
    struct rec_slot *slot = row_of(comm, handle, w);
    if (__builtin_expect(!slot, 0)) {
        gone(comm, thread, local, handle, false);
        return;
    }
    struct psm_prof_event *event = event_of(slot);
    if (__builtin_expect(atomic_load_explicit(life_of(event), memory_order_relaxed) & 1, 0)) {
        prof_count(&comm->shared->state_after_stop);
    } else {
        _Atomic uint64_t *time = moment(event, state);
        if (time) set_once(time, prof_now(&thread->clock, &thread->tick));
        if (args) take_args(event, state, args);
        if (is_sends(PROF_GET(event->type), state) &&
            !(atomic_load_explicit(&event->flags, memory_order_relaxed) & PSM_PROF_SENDS))
            learn_side(comm, local, w, event);
        atomic_store_explicit(&event->state, (uint8_t)state, memory_order_relaxed);
    }
    atomic_store_explicit(&local->inside, 0, memory_order_release);
}
