/* psm_profiler_drive plays NCCL towards a profiler, without NCCL. psmkit/plugins/drive_profiler.py runs it once per
 * check. */
#ifndef PSM_PROFILER_DRIVE_H
#define PSM_PROFILER_DRIVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "contract.h"

enum { MAX_STEPS = 8, MAX_THREADS = 64, TIMED = 1024 };

struct drive {
    int version;
    const char *path, *check, *stream;
    void *library;
    const void *table;
    struct contract *contract;
    uint64_t timeout_ns, begun;
    bool leave_open;
    int mask;     /* NCCL's int, one per process */
    bool adapted; /* called as by NCCL 2.30's adapter for an older version, not as by the release that introduced it */
    bool trap;    /* descriptors and arguments are invalid after the call */
    bool trap_strings;  /* the strings of descriptors are */
    bool open_at_end;   /* this check leaves events open */
    bool foreign_calls; /* the replayed calls may be wrong */
    bool unchecked;     /* without the checker, which allocates memory itself */
    _Atomic uint64_t starts, nulls;
};
extern struct drive d;

/* ---- reports: each ends the process, except note ---- */

/* kind: contract, died, blocked, leak, weak */
_Noreturn void failed(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void skipped(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A weakness: the check continues, and fails at its end unless something worse happens. */
void weak(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t now_ns(void);
void watch_start(void);

/* ---- the calls, in any version ---- */

bool table_find(int version);
const char *table_name(void);
const char *table_empty(void); /* the first slot that is NULL */

struct comm {
    void *context;
    uint64_t hash, seq;
    int rank, ranks, nodes;
    char name[64];
    bool unnamed;
};
/* False: init failed; NCCL then continues without a profiler. */
bool p_init(struct comm *c);
void p_finalize(struct comm *c);
/* *handle is NCCL's value before the call; afterwards the profiler's result. */
void p_start(void *context, void **handle, const struct event *e);
void p_stop(void *handle);
/* args NULL: none are passed. */
void p_state(void *handle, int state, const struct event_args *args);
/* Without the checker and traps: for timing. */
uint64_t p_time_pairs(struct comm *c);
uint64_t p_time_states(struct comm *c);
void load_again(void);
void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Addresses of another process: reading them is a fault, which is reported. */
void *foreign_parent(unsigned n);
void *foreign_context(void);
/* A GPU's memory, which the host cannot read. */
void *user_buffer(void);

/* ---- NCCL ---- */

bool asked(uint64_t mask, int kind);

/* An operation of a collective or a send/recv, with what NCCL keeps for the proxy. */
struct task {
    struct comm *comm;
    uint64_t mask; /* as it was when the operation was called */
    void *group_api, *api, *handle;
    struct event e;
    int channels;
    bool ce; /* by the copy engine */
};
/* A proxy operation, on its way to the progress thread. */
struct op {
    void *context, *parent;
    uint64_t mask;
    int rank, pid, channel, peer, steps;
    bool is_send, kernel; /* kernel: a channel of the kernel, not of the network */
    void *handle, *step[MAX_STEPS];
};

struct plan {
    struct comm *comm;
    struct task tasks[256];
    int n;
    void *group_api;
    bool api; /* v5 and later: within a group call */
};
/* A group call: begin, colls and p2ps, launch, which returns the proxy operations, end. */
void plan_begin(struct plan *p, struct comm *c);
void plan_coll(struct plan *p, const char *func, uint64_t count, int channels);
void plan_p2p(struct plan *p, bool send, int peer, uint64_t count);
void plan_ce(struct plan *p, uint64_t count);
/* tasks run again with graph: their API events were stopped long ago. */
int plan_launch(struct plan *p, struct op *ops, int most);
void plan_end(struct plan *p);

/* The progress thread: one operation, or several at the same time. */
void op_run(struct op *op);
void ops_run(struct op *ops, int n);
void control(struct comm *c, bool sleeps, int appended);

/* Kinds that none of these functions plays (others.c): what is known of them, an event of one, and a call that starts,
 * updates and stops those that belong below an event that is open. above 0: those without a parent. */
uint64_t others_known(void);
struct event others_event(int kind, int rank);
void others_play(void *context, int rank, uint64_t mask, uint64_t above, void *parent);

/* Runs on another thread; all end before join returns. */
typedef void work(void *);
void in_thread(work *w, void *argument);
void join_all(void);

/* ---- checks ---- */

struct check {
    const char *name;
    void (*run)(void);
    int since;
};
extern const struct check checks[];
void play_stream(void);
void check_leaks(void);
void check_growth(void);
void check_unload(void);

/* A communicator that init has not seen yet. */
struct comm check_comm(int number, int rank, int ranks);
/* A communicator that init accepted; fails the check otherwise. */
struct comm check_opened(int number);
/* Skips the check if the mask enables none of these kinds. */
void check_need(uint64_t kinds, const char *what);
/* Room for OPS operations. */
enum { OPS = 4096 };
struct op *check_room(void);
/* A group call with colls and p2ps, and its proxy operations, one after the other. */
void check_whole(struct comm *c, int colls, int p2ps, struct op *ops);

#endif
