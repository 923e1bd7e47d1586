/* What the profiler plugin writes and its consumers read: one record file for each communicator of a process (see
 * docs/records.md), with three sections. This header is the contract between csrc/plugins/profiler and csrc/telemetry.
 *
 *   psm.prof.comm     table, 1 row: struct psm_prof_comm. Whose it is, settings, counters, the consumer's heartbeat.
 *   psm.prof.windows  table, PSM_PROF_WINDOWS rows: struct psm_prof_window.
 *   psm.prof.events   table, windows x slots rows: struct psm_prof_event. Window w owns the rows [w * slots, (w+1) *
 * slots).
 *
 * Blocks of the file under psm.prof.events are taken piece by piece, as slots are used: rows that were never reached
 * are holes, and read as zeros.
 *
 * An event is a row of the table: rec_slot.time_ns is its start, rec_slot.tid the thread that started it,
 * rec_slot.sequence is cycle << 2 | state (SLOT_CLAIMED while it is begun, SLOT_LIVE from then on). cycle is that of
 * the window when the row was taken: rows of other cycles are leftovers, and no part of the window. Members after the
 * start are single stores of at most 8 bytes while the row is live; a reader that finds the same sequence before and
 * after its copy has whole members.
 *
 * Times are ns of CLOCK_MONOTONIC of this boot; GPU times are ns of the GPU's global timer.
 */
#ifndef PSM_TELEMETRY_WINDOW_H
#define PSM_TELEMETRY_WINDOW_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PSM_PROF_VERSION = 1, /* of all three schemas */
    PSM_PROF_WINDOWS = 4,
    PSM_PROF_SHARDS = 16,
    PSM_PROF_NAME = 32,
    PSM_PROF_NAMES = 64,         /* names that are not among the known ones */
    PSM_PROF_PAIRS = 64,         /* of clocks */
    PSM_PROF_MAX_SLOTS = 1 << 18 /* of a window */
};

/* ---- handles ---- */

/* What startEvent returns to NCCL: not an address, so that a stale, foreign or invented one does no harm.
 *   63..56  PSM_PROF_HANDLE_TAG
 *   55..44  number of the communicator in its process
 *   43..24  row: window * slots + slot
 *   23..0   the window's cycle, low bits
 * A parent that is not a handle of this communicator (another process's, under PXN) is stored as it is. */
#define PSM_PROF_HANDLE_TAG UINT64_C(0x5e)
#define PSM_PROF_HANDLE(context, row, cycle)                                                                           \
    (PSM_PROF_HANDLE_TAG << 56 | (uint64_t)(context) << 44 | (uint64_t)(row) << 24 | ((uint64_t)(cycle) & 0xffffff))
#define PSM_PROF_HANDLE_CONTEXT(h) ((uint32_t)((h) >> 44 & 0xfff))
#define PSM_PROF_HANDLE_ROW(h)     ((uint32_t)((h) >> 24 & 0xfffff))
#define PSM_PROF_HANDLE_CYCLE(h)   ((uint32_t)((h) & 0xffffff))

/* ---- windows ---- */

/* READY -> FILLING (the plugin, when it needs one) -> CLOSING (the plugin by count or time, a consumer by time) ->
 * PROCESSING (a consumer) -> READY (that consumer, after copying the rows).
 *
 * New events go to the FILLING window; a child of an event that is open in a CLOSING window goes there, while there is
 * room. A starting thread first increments `started` of its shard (sequentially consistent), then reads the state; if
 * it may not write to the window, it increments `stopped` and goes to another. So a consumer may take a CLOSING window
 * if it has read the sum of stopped, then that of started, and both are equal, and likewise completed and awaited, and
 * `pending` is 0; it sets PROCESSING, reads the sums again, and goes back to CLOSING if they differ. After close_ns +
 * force_ns it takes the window as it is: open events are carried over (PSM_PROF_LATE) or counted as incomplete.
 *
 * Without a living consumer (heartbeat_ns older than PSM_PROF_CONSUMER_NS) the plugin takes the oldest CLOSING window
 * for FILLING when it needs one: its events are overwritten, and counted. With a consumer it drops events without room.
 */
enum psm_prof_window_state { PSM_PROF_READY, PSM_PROF_FILLING, PSM_PROF_CLOSING, PSM_PROF_PROCESSING };
#define PSM_PROF_CONSUMER_NS UINT64_C(10000000000)

struct psm_prof_shard {
    _Atomic uint64_t started, stopped;
    /* coll and p2p events, and those of them whose proxy ops and kernel channels have all ended */
    _Atomic uint64_t awaited, completed;
    uint64_t pad[4]; /* one cache line each */
};

struct psm_prof_window {
    _Atomic uint32_t state;   /* enum psm_prof_window_state */
    _Atomic uint32_t cycle;   /* incremented each time it becomes FILLING, from 1; modulo 2^24 it is part of handles */
    _Atomic uint32_t next;    /* slots handed out, in batches to threads; may exceed `slots` */
    _Atomic uint32_t pending; /* further ones that are awaited: 0 by the plugin, which counts in shards */
    _Atomic uint64_t open_ns; /* when it became FILLING */
    _Atomic uint64_t close_ns;
    _Atomic uint64_t forced; /* how often it was taken by force, since the start */
    uint64_t serial;         /* number of the fill, over all windows of the communicator, from 1 */
    uint64_t reserved;
    struct psm_prof_shard shard[PSM_PROF_SHARDS];
};

/* ---- the communicator ---- */

/* Names that NCCL passes as strings; 255: none was given. 128 + i: names[i] of the communicator. */
enum psm_prof_func {
    PSM_PROF_BROADCAST,
    PSM_PROF_REDUCE,
    PSM_PROF_ALLGATHER,
    PSM_PROF_REDUCESCATTER,
    PSM_PROF_ALLREDUCE,
    PSM_PROF_SENDRECV,
    PSM_PROF_SEND,
    PSM_PROF_RECV,
    PSM_PROF_ALLTOALL,
    PSM_PROF_SCATTER,
    PSM_PROF_GATHER,
    PSM_PROF_FUNCS
};
enum psm_prof_algo {
    PSM_PROF_TREE,
    PSM_PROF_RING,
    PSM_PROF_COLLNET_DIRECT,
    PSM_PROF_COLLNET_CHAIN,
    PSM_PROF_NVLS,
    PSM_PROF_NVLS_TREE,
    PSM_PROF_PAT,
    PSM_PROF_ALGOS
};
enum psm_prof_proto { PSM_PROF_LL, PSM_PROF_LL128, PSM_PROF_SIMPLE, PSM_PROF_PROTOS };
/* The names of a kernel's phases are their ids, too. */
enum psm_prof_phase { PSM_PROF_INITIAL_SYNC, PSM_PROF_COMPUTE, PSM_PROF_FINAL_SYNC, PSM_PROF_PHASES };
enum { PSM_PROF_NAME_NONE = 255, PSM_PROF_NAME_OTHER = 128 };
/* Data types are ncclDataType_t: 0 int8, 1 uint8, 2 int32, 3 uint32, 4 int64, 5 uint64, 6 half, 7 float, 8 double,
 * 9 bfloat16, 10 float8e4m3, 11 float8e5m2. */

struct psm_prof_comm {
    uint64_t comm_hash;        /* commHash, or commId from v5 on */
    uint64_t begin_ns, end_ns; /* end_ns 0: finalize was not called */
    int32_t rank, nranks, nnodes;
    uint32_t context; /* number of the communicator in its process, as in handles */
    uint32_t abi;     /* version of the table that NCCL took: 1 to 7 */
    uint32_t slots;   /* of a window */
    uint32_t trigger; /* events that close a window */
    uint32_t clock;   /* 0 clock_gettime, 1 TSC */
    uint64_t interval_ns, force_ns;
    _Atomic uint32_t mask;        /* the mask that NCCL uses now */
    _Atomic uint32_t mask_wanted; /* UINT32_MAX: no request; another process may write it, the plugin applies it */
    /* The consumer, one at a time (flock on the file). */
    _Atomic uint32_t consumer;     /* pid, 0: none */
    _Atomic uint32_t names;        /* of names[] in use */
    _Atomic uint64_t heartbeat_ns; /* of the consumer, each second at least */
    /* Counters since init. begun = events that startEvent was called for and the mask contains; each of them is a row
     * in a window, or counted in one of dropped_*. */
    _Atomic uint64_t begun;        /* updated with each batch of slots and at finalize: the rows of windows are exact */
    _Atomic uint64_t dropped_full; /* no window had room */
    _Atomic uint64_t dropped_memory; /* the cap of the process, or the disk */
    _Atomic uint64_t overwritten;    /* rows of windows that no consumer took in time */
    _Atomic uint64_t carried;        /* PSM_PROF_LATE events */
    /* Breaches of the contract by the caller. */
    _Atomic uint64_t bad_handle;   /* not ours, or of a communicator that is gone */
    _Atomic uint64_t stale_handle; /* ours, of a slot that was given again */
    _Atomic uint64_t stopped_twice;
    _Atomic uint64_t state_after_stop;
    _Atomic uint64_t never_stopped;   /* at finalize */
    _Atomic uint64_t foreign_parents; /* PXN */
    char name[64];                    /* commName */
    char other[PSM_PROF_NAMES][PSM_PROF_NAME];
    /* The last clocks that a kernel channel's event came with, both read at nearly the same moment: pair[n % 64] is the
     * n-th, `pairs` is their number. A pair that is being written can be torn: compare it with its neighbours. */
    _Atomic uint64_t pairs;
    struct {
        _Atomic uint64_t cpu_ns, gpu_ns;
    } pair[PSM_PROF_PAIRS];
};

/* ---- events ---- */

enum psm_prof_type { /* the number of the bit in NCCL's mask */
                     PSM_PROF_GROUP,
                     PSM_PROF_COLL,
                     PSM_PROF_P2P,
                     PSM_PROF_PROXY_OP,
                     PSM_PROF_PROXY_STEP,
                     PSM_PROF_PROXY_CTRL,
                     PSM_PROF_KERNEL_CH,
                     PSM_PROF_NET,
                     PSM_PROF_GROUP_API,
                     PSM_PROF_COLL_API,
                     PSM_PROF_P2P_API,
                     PSM_PROF_KERNEL_LAUNCH,
                     PSM_PROF_CE_COLL,
                     PSM_PROF_CE_SYNC,
                     PSM_PROF_CE_BATCH,
                     PSM_PROF_KERNEL_PHASE,
                     /* Not NCCL's: an event of a window that was taken while it was open has now stopped. parent is its
                      * handle, stop_ns its stop; state and u as the event's. */
                     PSM_PROF_LATE = 31
};

enum psm_prof_flag {
    PSM_PROF_STOPPED = 1 << 0,
    PSM_PROF_FOREIGN = 1 << 1,   /* parent was given by another process: an id, with proxy_op.pid */
    PSM_PROF_SENDS = 1 << 2,     /* proxy op, and its steps: the sending side */
    PSM_PROF_CAPTURED = 1 << 3,  /* API events: the graph is being captured */
    PSM_PROF_COMPLETE = 1 << 4,  /* coll, p2p: as many proxy ops or kernel channels have ended as it has channels */
    PSM_PROF_ORPHAN = 1 << 5,    /* its parent's slot had been reused when it arrived */
    PSM_PROF_CHILD_LOST = 1 << 6 /* coll, p2p: a proxy op or kernel channel of it found no slot */
};

/* With the 24 bytes of rec_slot a row takes 128: two cache lines. */
struct psm_prof_event {
    uint64_t parent;          /* handle, 0: none. For v5 and later coll and p2p: the API event */
    _Atomic uint64_t stop_ns; /* 0: open. For coll and p2p: enqueued; see done_ns */
    uint8_t type;             /* enum psm_prof_type */
    uint8_t abi;
    _Atomic uint8_t flags;
    _Atomic uint8_t state; /* the last one of recordEventState, 255: none */
    uint32_t reserved;     /* the plugin's own, and so is bit 7 of flags */
    union {
        struct {
            uint64_t seq, count, group; /* group: parentGroup of v5 and later, 0 else */
            _Atomic uint64_t done_ns;   /* when the last of its proxy ops or kernel channels ended */
            int32_t root;
            uint8_t func, datatype, algo, proto, channels, warps;
            _Atomic uint16_t ops_begun, ops_ended, kernels_begun, kernels_ended;
            uint64_t send_buff, recv_buff; /* addresses in the caller's process */
        } coll;
        struct {
            uint64_t count, group;
            _Atomic uint64_t done_ns;
            uint64_t pad;
            int32_t peer;
            uint8_t func, datatype, pad2[2], channels, pad3;
            _Atomic uint16_t ops_begun, ops_ended, kernels_begun, kernels_ended;
            uint64_t buff;
        } p2p;
        struct {
            int32_t pid, peer, steps, chunk;
            uint8_t channel, pad[3];
            _Atomic uint32_t steps_ended;
            _Atomic uint64_t bytes;       /* of the steps that ended; v1 to v3: as the state says */
            _Atomic uint64_t progress_ns; /* first InProgress */
            _Atomic uint64_t
                wait_ns[4]; /* sums over its steps that ended, as in proxy_step: GPU, peer, network, flush */
        } proxy_op;
        struct {
            int32_t step;
            int32_t peer; /* of its proxy op, -1: unknown */
            uint64_t bytes;
            /* When it entered each state, 0: never. Sends: GPU wait, peer wait, send wait (the transfer begins).
             * Receives: receive wait, flush wait, GPU wait. */
            _Atomic uint64_t gpu_ns, peer_ns, net_ns, flush_ns;
            uint8_t channel, pad[7];
        } proxy_step;
        struct {
            int32_t appended;
            uint32_t pad;
            _Atomic uint64_t idle_ns, sleep_ns, append_ns; /* when it entered them */
        } proxy_ctrl;
        struct {
            uint64_t gpu_begin_ns;
            _Atomic uint64_t gpu_end_ns; /* ptimers; 0: not given */
            uint8_t channel, pad[7];
        } kernel_ch;
        struct {
            uint64_t
                gpu_begin_ns; /* as in kernel_ch; NCCL reports a phase after its end, so only the GPU's times count */
            _Atomic uint64_t gpu_end_ns;
            uint8_t channel;
            uint8_t phase; /* the id that NCCL gave */
            uint8_t name;  /* enum psm_prof_phase, or as for the other names */
            uint8_t pad[5];
        } kernel_phase;
        struct {
            int64_t id;
            uint32_t size; /* bytes of data, if known for this id */
            uint32_t updates;
            unsigned char data[48];
        } net;
        struct {
            uint64_t count, stream;
            _Atomic uint64_t mark1_ns, mark2_ns; /* group API: GroupStartApiStop, GroupEndApiStart */
            int32_t root, depth;
            uint8_t func, datatype, pad[6];
        } api; /* group API, coll API, p2p API, kernel launch */
        struct {
            uint64_t seq, count, stream, bytes;
            _Atomic uint64_t begin_ns, end_ns; /* CeCollStart/Complete, CeSyncStart/..., CeBatchStart/... */
            int32_t root, ops;
            uint8_t func, datatype, complete, intra;
            uint32_t batches;
        } ce;
        /* Of coll, p2p, coll API, p2p API and CE coll from v7 on: the application's tag of the call, its highest bit is
         * NCCL's. 0: none. Older writers leave 0, older readers ignore it. */
        struct {
            unsigned char others[72];
            uint64_t user_tag;
        } tagged;
        unsigned char raw[80];
    } u;
};
_Static_assert(sizeof(struct psm_prof_event) == 104, "a row of two cache lines");
#define PSM_PROF_BESIDE_TAG(member, last)                                                                              \
    (offsetof(struct psm_prof_event, u.member.last) + sizeof(((struct psm_prof_event *)0)->u.member.last) <=           \
     offsetof(struct psm_prof_event, u.tagged.user_tag))
_Static_assert(PSM_PROF_BESIDE_TAG(coll, recv_buff) && PSM_PROF_BESIDE_TAG(p2p, buff) &&
                   PSM_PROF_BESIDE_TAG(api, pad) && PSM_PROF_BESIDE_TAG(ce, batches),
               "the tag is the last word of each kind that has one");
_Static_assert(sizeof(struct psm_prof_shard) == 64, "a cache line");

#endif
