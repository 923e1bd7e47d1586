/* The rank program of the lab: one process of a job, which runs a list of cases and reports each to its runner.
 * docs/lab.md has the keys of a case and of a report. */
#ifndef PSM_LAB_RANK_H
#define PSM_LAB_RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap.h"
#include "outcome.h"
#include "psm/psm_launch.h"
#include "psm/psm_net.h"
#include "psm_cuda.h"
#include "task.h"

/* One line of the list. */
struct lab_case {
    struct lab_task task;
    char variant[64], net_variant[64]; /* of p2p; of the net transport */
    uint64_t channels;
    bool via;         /* ranks whose devices do not reach each other use the memory of a third one's */
    bool shared_init; /* each rank sends SharedInit to the next one's proxy, as transports with shared buffers do */
    struct psm_settings settings;
};
/* 1: a case; 0: the list has ended; -1: text says what is wrong. */
int lab_case_read(struct lab_case *c, char *text, size_t size);

/* Bytes that the channel's part of the message has, and where it begins. */
uint64_t lab_part(const struct lab_case *c, int from, int to, uint64_t iter, uint64_t channel, uint64_t *begin);

/* ---- one case ---- */

/* What became of it. */
struct lab_result {
    struct lab_outcome o;
    psm_status status;
    struct psm_error error;
    int ends[2];         /* of connections that were set up: within the node, to other nodes */
    int peers[2];        /* with such connections */
    int held;            /* what this took: sockets and memfds of libpsm, */
    int64_t kept;        /* bytes of private memory */
    int left;            /* sockets and memfds that libpsm left open */
    char left_what[160]; /* the first of them */
};
void lab_run(const struct lab_case *c, int rank, int ranks, struct lab_result *result);
void lab_report(const struct lab_result *result);
void lab_trouble(const struct lab_result *result); /* the first failure of a case, as soon as it is known */

/* The program, also for a process that is one already: libpsm_rank.so exports it. */
__attribute__((visibility("default"))) int psm_rank_main(int argc, char **argv);

/* Sockets and memfds of this process, but for those that CUDA has for itself, emulated or real; what: the last one. */
int lab_descriptors(char *what, size_t size);
/* The private memory of this process in bytes; 0: unknown. */
int64_t lab_private(void);

#endif
