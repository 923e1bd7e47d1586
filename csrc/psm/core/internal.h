/* Shared by all parts of libpsm: errors, deadlines, the log filter, random numbers. Nothing here is exported.
 *
 * Log lines are generated from the catalogue: csrc/psm/messages.list lists entries and their subsystem,
 * psm_lib_messages.h has a function psm_msg_<name> for each. */
#ifndef PSM_CORE_INTERNAL_H
#define PSM_CORE_INTERNAL_H

#include <stdarg.h>
#include <stdbool.h>

#include "base.h"
#include "fault.h"
#include "log.h"
#include "psm/psm.h"

/* ---- errors ---- */

/* Record the failure of the calling thread and return its status, so that a function can end with `return
 * psm_fail(...)`. rank and peer: -1 for none; op_id: 0 for none. The text says what was attempted, what was seen, what
 * to do. */
psm_status psm_fail(psm_status status, const char *stage, int rank, int peer, uint64_t op_id, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
/* The same for a system call: appends ": strerror (name)" to the text. The status depends on the number: NO_MEMORY,
 * NO_RESOURCE (descriptors, space, slots), DENIED, NOT_FOUND, else SYSTEM. */
psm_status psm_fail_errno(int number, const char *stage, int rank, int peer, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The same for a CUDA call: appends ": name (number): CUDA's text" to the text. Always PSM_ERR_CUDA. */
psm_status psm_cuda_fail(int code, const char *stage, int rank, int peer, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* What a status alone says, for a struct psm_error that is filled in by hand; psm_fail does it. */
uint32_t psm_detail_of(psm_status status, int names);
/* The cause where a peer refuses this rank with a status: some statuses are a failure of the peer itself. */
enum psm_cause psm_refusal(psm_status status);
/* Say the cause of the failure that was just noted: return psm_because(psm_fail(...), PSM_CAUSE_PEER_FAILED, peer). */
psm_status psm_because(psm_status status, enum psm_cause cause, int names);
/* The same where the peer of the failure sent or published what breaks the protocol: return
 * psm_peer_sent(psm_fail(...)). */
psm_status psm_peer_sent(psm_status status);
/* Record another thread's failure as this thread's own. Returns its status. */
psm_status psm_fail_again(const struct psm_error *error);
/* Fill in what a lower level did not know: rank, peer, opId and stage if they are empty. Returns the status. */
psm_status psm_fail_at(const char *stage, int rank, int peer, uint64_t op_id);

/* Return the status of a call that failed (and recorded why). */
#define PSM_TRY(call)                                                                                                  \
    do {                                                                                                               \
        psm_status status_ = (call);                                                                                   \
        if (status_ < 0) return status_;                                                                               \
    } while (0)
/* PSM_CUDA(cuda, "setup", rank, peer, cudaMalloc(&p, n)): return when the CUDA call fails. */
#define PSM_CUDA(table, stage, rank, peer, call)                                                                       \
    do {                                                                                                               \
        int code_ = (int)(table)->call;                                                                                \
        if (code_ != 0) return psm_cuda_fail(code_, (stage), (rank), (peer), "%s", #call);                             \
    } while (0)

/* ---- faults ---- */

/* The slow path of psm_fault_before, when a fault hits. */
psm_status psm_fault_strike(struct psm_site *site, const struct psm_fault_args *args, const char *stage,
                            struct psm_fault *fault);
/* Performs what a fault at this site demands before the work: hang, wait or die. An error is recorded and returned;
 * error=ENOSPC and error=TIMEOUT are known. PSM_OK: go on. *fault says what is left: the caller drops, shortens or
 * corrupts what it moves, and calls psm_fault_act_after when the work is done. args may be NULL. */
static inline psm_status psm_fault_before(struct psm_site *site, const struct psm_fault_args *args, const char *stage,
                                          struct psm_fault *fault)
{
    if (__builtin_expect(psm_fault_hit(site, args, fault), 0)) return psm_fault_strike(site, args, stage, fault);
    fault->action = PSM_FAULT_NONE; /* psm_fault_hit may have filled it although it returned false */
    return PSM_OK;
}

/* ---- time ---- */

/* A point in time on CLOCK_MONOTONIC; at_ns 0: none. */
struct psm_deadline {
    uint64_t at_ns;
};
struct psm_deadline psm_deadline_in(uint32_t ms);
bool psm_deadline_passed(struct psm_deadline deadline);
/* Milliseconds left, rounded up, for poll(2): 0 if it has passed, -1 if there is no deadline. */
int psm_deadline_left_ms(struct psm_deadline deadline);

/* ---- the wire audit ---- */

/* PSM_WIRE_AUDIT=1: a message to another process must have no value of this one (psmLocalValue). */
bool psm_wire_audited(void);

/* ---- random ---- */

uint64_t psm_random64(void); /* from getrandom, never 0: for ids and names */

/* ---- what other users send (stranger.c): neither waits for the descriptors that come with it ---- */

/* Removes the first datagram of a queue. */
void psm_stranger_drop(int socket);
/* Closes a socket, with what came over it and nobody received. */
void psm_stranger_close(int fd);

/* ---- the log ---- */

/* NCCL's subsystems and bits. */
enum psm_subsystem {
    PSM_SUB_INIT = 0x1,
    PSM_SUB_COLL = 0x2,
    PSM_SUB_P2P = 0x4,
    PSM_SUB_SHM = 0x8,
    PSM_SUB_NET = 0x10,
    PSM_SUB_GRAPH = 0x20,
    PSM_SUB_TUNING = 0x40,
    PSM_SUB_ENV = 0x80,
    PSM_SUB_ALLOC = 0x100,
    PSM_SUB_CALL = 0x200,
    PSM_SUB_PROXY = 0x400,
    PSM_SUB_NVLS = 0x800,
    PSM_SUB_BOOTSTRAP = 0x1000,
    PSM_SUB_REG = 0x2000,
    PSM_SUB_PROFILE = 0x4000,
    PSM_SUB_RAS = 0x8000,
    PSM_SUB_ALL = 0xffff
};

/* Level in the high half, subsystems in the low one; 0: not read yet. */
extern _Atomic uint32_t psm_log_filter;
/* Read PSM_DEBUG and PSM_DEBUG_SUBSYS, or NCCL_DEBUG and NCCL_DEBUG_SUBSYS if those are not set. psm_settings_read
 * calls it too: a program may set them after it has loaded the library. */
uint32_t psm_log_read_filter(void);

/* Whether lines of this level and any of these subsystems are enabled. Warnings always are. Cheap enough to call per
 * step. */
static inline bool psm_log_on(enum psm_level level, uint32_t subsystems)
{
    if (level == PSM_LEVEL_WARN) return true;
    uint32_t filter = atomic_load_explicit(&psm_log_filter, memory_order_relaxed);
    if (__builtin_expect(filter == 0, 0)) filter = psm_log_read_filter();
    return (uint32_t)level <= filter >> 16 && (filter & subsystems) != 0;
}

#endif
