/* What both rank programs do alike: read the list of cases, know what goes where, make the data and check it. */
#ifndef PSM_LAB_TASK_H
#define PSM_LAB_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum lab_pattern {
    PATTERN_PAIR,
    PATTERN_RING,
    PATTERN_ALLTOALL,
    PATTERN_RANDOM,
    PATTERN_PUT_SIGNAL,
    PATTERN_TASKS,
    PATTERN_ALLREDUCE, /* this and what follows are collectives */
    PATTERN_ALLGATHER,
    PATTERN_REDUCESCATTER,
    PATTERN_BROADCAST,
    PATTERN_REDUCE,
    PATTERN_ALLTOALL_COLL,
    PATTERN_GATHER,
    PATTERN_SCATTER
};
enum lab_stream { STREAM_LEGACY, STREAM_BLOCKING, STREAM_NONBLOCKING };
enum lab_skip { SKIP_NONE, SKIP_SEND, SKIP_RECV };

/* The keys of a case that both programs have. */
struct lab_task {
    char name[64];
    enum lab_pattern pattern;
    enum lab_stream stream;
    enum lab_skip skip; /* leaves its sends or its recvs out of the last iteration */
    uint64_t size;      /* bytes per peer, or of a rank's part of a collective */
    uint64_t iters, seed, device;
    uint64_t shorter; /* its sends, or its part, have this many bytes less */
    bool registered;  /* buffers are registered on their connectors, or with the communicator */
};

/* ---- the list of cases on standard input: one a line, key=value with blanks between. The runner writes it; a person
 * can ---- */

bool lab_number(const char *text, uint64_t low, uint64_t high, uint64_t *value); /* decimal, and nothing behind it */
bool lab_flag(const char *text, bool *value);                                    /* 0 or 1 */
bool lab_word(const char *text, char *out, size_t size);
/* The place of a word among names, which NULL ends. */
bool lab_choice(const char *text, const char *const *names, unsigned *value);

/* A value of a case: false if there is no such key, or it cannot have this value. */
typedef bool lab_set(void *c, const char *key, const char *value);
/* 1: sets one of the task's keys, with a pattern up to `last`; 0: it has no such key; -1: not with this value. */
int lab_task_set(struct lab_task *task, const char *key, const char *value, enum lab_pattern last);
/* The next case into line. 1: a case; 0: the list has ended; -1: text says what is wrong. */
int lab_case_line(char *line, size_t room, struct lab_task *task, char *text, size_t size);
/* Sets what the line says in the case, whose task it is. false: text says what is wrong. */
bool lab_case_set(char *line, lab_set *set, void *c, const struct lab_task *task, char *text, size_t size);

/* ---- what goes where: the same in every rank ---- */

bool lab_sends(const struct lab_task *task, int from, int to, int ranks);
/* Bytes that `from` sends to `to`. */
uint64_t lab_message(const struct lab_task *task, int from, int to, uint64_t iter);
/* Fills with bytes [at, at + n) of the message; at is a multiple of 8. */
void lab_fill(uint8_t *out, uint64_t n, uint64_t at, uint64_t seed, int from, int to, uint64_t iter);
uint64_t lab_mix(uint64_t x); /* splitmix64 */
uint64_t lab_key(uint64_t seed, int from, int to, uint64_t iter);

/* ---- a look at every byte ---- */

enum { GUARD = 64, UNTOUCHED = 0xa5, PIECE = 1 << 20 };

struct lab_check {
    uint64_t bytes; /* looked at */
    uint64_t wrong; /* bytes that differ; what follows is about the first one */
    int from;       /* -1: from no single rank */
    uint64_t iter, offset;
    unsigned seen, meant;
};
/* n bytes at offset `at` of what came from `from`: the first `data` of them are as in meant, the others are untouched.
 */
void lab_compare(struct lab_check *check, const uint8_t *seen, uint8_t *meant, uint64_t n, uint64_t data, int from,
                 uint64_t iter, uint64_t at);
/* Says which bytes are wrong. */
void lab_wrong(const struct lab_check *check, char *text, size_t size);

#endif
