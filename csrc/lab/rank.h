/* The rank program of the lab: one process of a job, which runs a list of cases and reports each to its runner.
 * psmkit/lab/wire.py is the other end of the socket; docs/lab.md has the messages. */
#ifndef PSM_LAB_RANK_H
#define PSM_LAB_RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "psm/psm_launch.h"
#include "psm/psm_net.h"
#include "psm_cuda.h"

enum pattern { PATTERN_PAIR, PATTERN_RING, PATTERN_ALLTOALL, PATTERN_RANDOM };
enum app_stream { STREAM_LEGACY, STREAM_BLOCKING, STREAM_NONBLOCKING };
enum skip { SKIP_NONE, SKIP_SEND, SKIP_RECV };

/* One line of the list. */
struct lab_case {
    char name[64], variant[64], net_variant[64]; /* of p2p; of the net transport */
    enum pattern pattern;
    enum app_stream stream;
    enum skip skip; /* leaves its sends or its recvs out of the last iteration */
    uint64_t size;  /* bytes per peer */
    uint64_t iters, channels, seed, device;
    uint64_t shorter; /* bytes by which its sends are shorter */
    bool registered;  /* buffers are registered on their connectors */
    bool shared_init; /* each rank sends SharedInit to the next one's proxy, as transports with shared buffers do */
    struct psm_settings settings;
};
/* 1: a case; 0: the list has ended; -1: text says what is wrong. */
int lab_case_read(struct lab_case *c, char *text, size_t size);

/* ---- what goes where: the same in every rank ---- */

bool lab_sends(const struct lab_case *c, int from, int to, int ranks);
/* Bytes that the channel's part of the iteration has, and where it begins. */
uint64_t lab_part(const struct lab_case *c, int from, int to, uint64_t iter, uint64_t channel, uint64_t *begin);
/* Fills with bytes [at, at + n) of the message; at is a multiple of 8. */
void lab_fill(uint8_t *out, uint64_t n, uint64_t at, uint64_t seed, int from, int to, uint64_t iter);

/* ---- the socket to the runner. Every function ends the process where the runner is gone ---- */

void lab_connect(int fd, int rank, int ranks);
void lab_stage(const char *name);
/* Waits for all ranks. Answers how many of them have failed or are dead. */
int lab_meet(const char *name, bool failed);
/* All-gather of `size` bytes a rank; present[r]: rank r sent its part. */
void lab_gather(const char *name, const void *mine, size_t size, void *all, bool *present);
/* out[r], n[r]: what is for rank r. in[r] gets what rank r has for this one, up to n[r] bytes; got[r]: how much. */
void lab_exchange(const char *name, void *const *out, void *const *in, const size_t *n, size_t *got);

/* ---- one case ---- */

/* What became of it. */
struct lab_result {
    const struct lab_case *c;
    int rank;
    psm_status status;
    struct psm_error error;
    char stage[24], by[16]; /* by: libpsm, cuda, data, lab, left */
    uint64_t wrong;         /* bytes that differ */
    int wrong_from;
    uint64_t wrong_iter, wrong_offset;
    unsigned wrong_seen, wrong_meant;
    uint64_t bytes, groups;
    double setup_seconds, move_seconds, seconds;
    int left;            /* sockets and memfds that libpsm left open */
    char left_what[160]; /* the first of them */
};
void lab_run(const struct lab_case *c, int rank, int ranks, struct lab_result *result);
void lab_report(const struct lab_result *result);
void lab_trouble(const struct lab_result *result); /* the first failure of a case, as soon as it is known */
void lab_send_line(const char *text, size_t n);

#endif
