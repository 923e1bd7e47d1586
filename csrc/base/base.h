/* Who this process is, and the flag that ends waits.
 *
 * psm_base is a static library with hidden symbols: each shared object that links it has its own log, faults and
 * record. Link it into one object of a process. */
#ifndef PSM_BASE_H
#define PSM_BASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PSM_HOST_SIZE = 64, PSM_BOOT_ID_SIZE = 40 };

/* start_time is field 22 of /proc/PID/stat: with it a pid names one process of a boot. rank is -1 when no launcher told
 * it. tag is random and never 0: it tells the handles of this process from those of another. pid_ns is the inode of the
 * pid namespace. */
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

/* This process. Right after fork too, where pid, start time and tag change in place: copy what has to stay. */
const struct psm_proc *psm_proc_self(void);

/* Reads the rank from the environment again: a program may set it after this library was loaded. */
void psm_proc_refresh_rank(void);

/* The calling thread, as NCCL prints it. */
int psm_tid(void);

/* Whether that process lives: a zombie does not, nor does another process that got its pid. Only for the pid namespace
 * of the caller. start_time 0: any process of that pid. */
bool psm_pid_alive(int pid, uint64_t start_time);

uint64_t psm_clock_ns(void); /* CLOCK_MONOTONIC */
uint64_t psm_wall_ns(void);  /* CLOCK_REALTIME */

/* The flag that ends the waits of psm_base, a fault's hang among them. Async-signal-safe. Not cleared by fork. */
void psm_abort(void);
void psm_abort_clear(void);
bool psm_aborted(void);

#endif
