/* Identity of this process, and the flag that ends waits.
 *
 * psm_base is a static library with hidden symbols: each shared object that links it has its own log, faults and
 * record. Link it into one object per process. */
#ifndef PSM_BASE_H
#define PSM_BASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PSM_HOST_SIZE = 64, PSM_BOOT_ID_SIZE = 40 };

/* start_time is field 22 of /proc/PID/stat; together with the pid it identifies one process of a boot. rank is -1 if no
 * launcher set it. tag is random and never 0; it distinguishes the handles of this process from those of others. pid_ns
 * is the inode of the pid namespace. */
struct psm_proc {
    int pid;
    int rank;
    uint64_t start_time;
    uint64_t pid_ns;
    uint32_t uid;
    uint16_t tag;
    char host[PSM_HOST_SIZE]; /* as NCCL prints it: up to the first dot */
    char boot_id[PSM_BOOT_ID_SIZE];
};

/* This process. Also valid right after fork, where pid, start time and tag change in place: copy what must not change.
 */
const struct psm_proc *psm_proc_self(void);

/* Reads the rank from the environment again: a program may set it after this library is loaded. */
void psm_proc_refresh_rank(void);

/* Id of the calling thread, as NCCL prints it. */
int psm_tid(void);

/* Whether that process is alive. A zombie is not, nor is another process that reused the pid. Works only within the pid
 * namespace of the caller. start_time 0: any process with that pid. */
bool psm_pid_alive(int pid, uint64_t start_time);

uint64_t psm_clock_ns(void); /* CLOCK_MONOTONIC */
uint64_t psm_wall_ns(void);  /* CLOCK_REALTIME */
/* CLOCK_MONOTONIC as of the kernel's last tick: coarse to some ms, and cheap, while the exact clock costs as much as
 * noticing the flag of a peer. Waits read it in every turn, for stalls and looks at the peer. Do not mix it with
 * psm_clock_ns, which is ahead of it. */
uint64_t psm_tick_ns(void);

/* The flag that ends the waits of psm_base, such as a fault's hang. Async-signal-safe. fork does not clear it. */
void psm_abort(void);
bool psm_aborted(void);

#endif
