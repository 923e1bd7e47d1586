/* Rules of the tuner: the contents of a file, and the decision for one collective. No state, and nothing of NCCL except
 * its numbers: the plugin and `psmkit tune` share the code. docs/tuner.md has the grammar. */
#ifndef PSM_TUNER_RULES_H
#define PSM_TUNER_RULES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "psm_abi/tuner.h"

enum {
    TUNER_OPS = NCCL_NUM_FUNCTIONS,
    TUNER_MAX_RULES = 4096,
    TUNER_MAX_FILE = 1 << 20,
    TUNER_MAX_CHANNELS = 64,
    TUNER_NOTE = 48,
    TUNER_UNKNOWN = -1 /* in a query: this version of the table does not pass it */
};

struct tuner_range {
    uint64_t low, high; /* both inclusive */
};
#define TUNER_ALL ((struct tuner_range){0, UINT64_MAX})

struct tuner_rule {
    uint32_t ops; /* one bit each */
    struct tuner_range bytes, ranks, nodes, domains, pipe_ops;
    int8_t registered;          /* -1: either */
    int8_t algorithm, protocol; /* -1: NCCL's choice */
    int32_t channels;           /* 0: NCCL's */
    uint64_t chunk;             /* 0: NCCL's */
    uint32_t line;
    char note[TUNER_NOTE];
};

struct tuner_constant {
    uint16_t at; /* the index of the double in ncclTunerConstants_v5_t */
    uint32_t line;
    double value;
};

struct tuner_rules {
    struct tuner_rule *rule;
    uint32_t n;
    uint64_t from_call; /* running communicators take the rules from this decision on; 0: at once */
    struct tuner_constant *constant;
    uint32_t nconstants;
};

struct tuner_error {
    uint32_t line; /* 0: the file as a whole */
    char text[200];
};

bool tuner_rules_read(const char *path, struct tuner_rules *out, struct tuner_error *error);
void tuner_rules_free(struct tuner_rules *rules);

extern const char *const tuner_ops[TUNER_OPS], *const tuner_algorithms[NCCL_NUM_ALGORITHMS],
                                                   *const tuner_protocols[NCCL_NUM_PROTOCOLS];
const char *tuner_algorithm_name(int algorithm); /* "default" for unknown ones */
const char *tuner_protocol_name(int protocol);

/* ---- used by both grammars ---- */

enum tuner_column {
    TUNER_OP,
    TUNER_MIN_BYTES,
    TUNER_MAX_BYTES,
    TUNER_ALGORITHM,
    TUNER_PROTOCOL,
    TUNER_CHANNELS,
    TUNER_NODES,
    TUNER_RANKS,
    TUNER_PIPE_OPS,
    TUNER_REGISTERED, /* up to here in the order of NVIDIA's example */
    TUNER_BYTES,
    TUNER_DOMAINS,
    TUNER_CHUNK,
    TUNER_NOTES,
    TUNER_COLUMNS
};
#define TUNER_ERROR __attribute__((format(printf, 3, 4)))
bool tuner_fail(struct tuner_error *error, uint32_t line, const char *format, ...) TUNER_ERROR; /* false */
/* -1: no column has the name. */
int tuner_column_of(const char *name);
struct tuner_rule tuner_rule_any(uint32_t line);
bool tuner_rule_set(struct tuner_rule *rule, int column, const char *text, uint32_t line, struct tuner_error *error);
bool tuner_rule_add(struct tuner_rules *rules, const struct tuner_rule *rule, struct tuner_error *error);
bool tuner_constant_add(struct tuner_rules *rules, const char *name, double value, uint32_t line,
                        struct tuner_error *error);
bool tuner_parse_csv(char *text, struct tuner_rules *rules, struct tuner_error *error);
bool tuner_parse_toml(char *text, struct tuner_rules *rules, struct tuner_error *error);
bool tuner_number(const char *text, uint64_t *value);

/* ---- decisions ---- */

struct tuner_shape {
    int64_t ranks, nodes, domains; /* TUNER_UNKNOWN: skips rules that depend on it */
};

struct tuner_query {
    int op;
    uint64_t bytes;
    int64_t pipe_ops; /* TUNER_UNKNOWN: rules that depend on it do not match */
    int registered;
    /* What is available: by costs, else by what is supported (v1, v2), else everything. */
    const float *costs;
    int algorithms, protocols;
    bool by_support, collnet, nvls;
};

struct tuner_choice {
    const struct tuner_rule *rule;   /* NULL: NCCL decides */
    int algorithm, protocol;         /* -1: NCCL's */
    const struct tuner_rule *passed; /* the first that matched but was not available; NULL: none */
};

struct tuner_candidate {
    struct tuner_range pipe_ops;
    uint32_t rule;
    int8_t registered, algorithm, protocol;
};

struct tuner_intervals {
    uint32_t n;
    uint64_t *start; /* start of each interval of sizes; the first is 0 */
    uint32_t *first; /* its candidates: first[i] to first[i + 1] */
    struct tuner_candidate *candidate;
};

/* The rules of one communicator, compiled: sizes are divided into intervals, each with the rules that can match, in the
 * order of the file. Immutable except for said. */
struct tuner_table {
    struct tuner_table *next; /* for the owner of the table */
    uint64_t from_call;
    uint32_t nrules;
    struct tuner_rule *rule;
    struct tuner_intervals op[TUNER_OPS];
    _Atomic unsigned char *said; /* nrules + 1 times TUNER_OPS: that decision was logged */
};

/* NULL: no memory. */
struct tuner_table *tuner_table_make(const struct tuner_rules *rules, const struct tuner_shape *shape);
void tuner_table_free(struct tuner_table *table);
/* What a rule names and the table's version does not pass, so that the rule never matches; NULL: nothing. */
const char *tuner_unmet(const struct tuner_rule *rule, const struct tuner_shape *shape, int version);
/* No lock, no allocation, no system call. */
void tuner_decide(const struct tuner_table *table, const struct tuner_query *query, struct tuner_choice *choice);
/* 0: NCCL's. algorithm and protocol are those that run. */
uint64_t tuner_chunk(const struct tuner_table *table, int op, uint64_t bytes, int algorithm, int protocol,
                     const struct tuner_rule **rule);

#endif
