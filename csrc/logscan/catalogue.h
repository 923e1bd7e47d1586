/* A compiled catalogue: messages, and the tries of their patterns. */
#ifndef LOGSCAN_CATALOGUE_H
#define LOGSCAN_CATALOGUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "table.h"

#include "logscan.cdef.h"

enum { LS_FIELDS = 64, LS_CAPTURES = 64, LS_KEYS = 4, LS_NAME = 64 };

/* Order is precedence: if several kinds of field are possible, the narrower one is tried first. */
enum ls_type { LS_BLANKS, LS_UINT, LS_INT, LS_HEX, LS_PTR, LS_FLOAT, LS_ADDR, LS_WORD, LS_STR, LS_REST, LS_TYPES };

/* In the order of LEVELS in psmkit/catalogue/entries.py. */
enum ls_level { LS_LEVEL_NONE, LS_VERSION, LS_WARN, LS_INFO, LS_ABORT, LS_TRACE, LS_CALL, LS_ATTN, LS_DIAG };
enum ls_where { LS_WHERE_NCCL, LS_WHERE_LINE, LS_WHERE_OTHER, LS_WHERES };
enum ls_keep { LS_KEEP_COUNT, LS_KEEP_DISTINCT, LS_KEEP_ALL, LS_KEEP_LATEST };

enum ls_role {
    LS_NO_ROLE,
    LS_RPC_SERVED,
    LS_RPC_BEGUN,
    LS_RPC_RECEIVED,
    LS_RPC_MATCHED,
    LS_RPC_QUEUED,
    LS_RPC_DEQUEUED,
    LS_RPC_NEW_CONN,
    LS_RPC_CONNECTED,
    LS_FD_ASKED,
    LS_FD_RECEIVED,
    LS_FD_ANSWERED,
    LS_FD_DONE,
    LS_FD_RETURNED,
    LS_COMM_START,
    LS_COMM_COMPLETE,
    LS_COMM_END,
    LS_COMM_NAMED,
    LS_SEQ_OP,
    LS_LEDGER_OPEN,
    LS_LEDGER_IMPORT,
    LS_LEDGER_CLOSE,
    LS_DATA_PROGRESS,
    LS_DATA_STREAM,
    LS_DATA_EVENT,
    LS_DATA_PUBLISHED,
    LS_PROC_BIRTH,
    LS_ROLES
};

/* Indices of the fields of a role in ls_message.role_field. */
enum { F_OP = 0, F_TYPE = 1, F_RESP_SIZE = 2, F_EXPECTED = 1 };
enum { F_OPERATION = 0, F_RES = 1 };
enum { F_DIR = 0, F_ID = 1, F_LOCAL_RANK = 2, F_TRANSPORT = 3 };
enum { F_FD_RANK = 1, F_FD_PEER = 2, F_FD_COMM = 3, F_FD_HANDLE = 4, F_FD_FD = 5 };
enum { F_COMM = 0, F_RANK, F_NRANKS, F_DEV, F_NVML, F_BUS, F_COMMID, F_KIND };
enum { F_COLL = 0, F_OPCOUNT, F_COUNT, F_DATATYPE, F_REDOP, F_ROOT, F_SEQ_COMM, F_SEQ_NRANKS };
enum { LS_ROLE_FIELDS = 8 };

struct ls_message {
    uint8_t where, level, keep, role;
    uint8_t fields;                    /* number of fields */
    int8_t role_field[LS_ROLE_FIELDS]; /* field for each role field, -1: the message has none */
    uint64_t distinct;                 /* fields that distinguish two events, as bits */
    uint8_t keys, key[LS_KEYS];
    uint8_t host_scope;
    uint8_t birth; /* index of the proc.birth message */
    bool complaint;
    uint32_t ledger;
    uint8_t type[LS_FIELDS];
    char name[LS_FIELDS][LS_NAME]; /* last: keeps together what is read for every line */
};

struct ls_literal {
    const unsigned char *s;
    uint32_t n;
    uint32_t node;
};

/* A typed edge. stop is the byte that follows the field in its pattern, or one of the two below. */
enum { LS_STOP_END = -1, LS_STOP_ANY = -2 };
struct ls_field_edge {
    uint8_t type;
    int16_t stop;
    uint32_t node;
};

struct ls_node {
    struct ls_literal *lits;
    struct ls_field_edge *fields;
    uint8_t *dispatch; /* 256 numbers of literals + 1, for nodes with many */
    uint16_t nlits, nfields;
    int32_t accept; /* pattern, -1: none */
};

/* Rivals of a field: other edges of its node that the search tries first. What must be known about them before the
 * field may be taken. */
enum ls_rivals {
    LS_RIVALS_NONE,  /* there are none */
    LS_RIVALS_CLOSE, /* each fails at once or after one number: checked in each text */
    LS_RIVALS_FAR,   /* more bytes are needed to see it: proved once, for all texts that start with the same bytes */
};

/* Ways to read a field whose value nobody uses: only its end matters. */
enum { LS_SKIP_DIGITS = LS_TYPES + 1, LS_SKIP_HEX };

/* A step of a pattern: a literal, which may be empty, and the field after it, of type LS_TYPES if there is none. The
 * first bytes of the literal are in head; all n are at ls_catalogue.token_bytes + at. */
enum { LS_HEAD = 16 };
struct ls_token {
    unsigned char head[LS_HEAD];
    uint32_t mask; /* of the bytes of the head, as bits */
    uint32_t at, n;
    uint32_t node;
    uint16_t edge; /* which field of the node */
    int16_t stop;
    uint8_t type[2]; /* how the field is read; the second: by a scan that keeps no line of which nothing is used */
    uint8_t rivals;
    uint8_t slot; /* field of the message, LS_FIELDS: not stored */
};

struct ls_pattern {
    const struct ls_message *of;
    uint32_t message;             /* its index */
    uint32_t first_token, tokens; /* 0 tokens: only a search finds the pattern */
    uint64_t present, texts;      /* fields that a match fills, and those of them that are texts, as bits */
    bool widened;                 /* it reads an integer where the message has a float */
    bool wide;                    /* it has fields that may contain blanks, and so another record */
    bool far;                     /* it has tokens with far rivals */
    uint8_t captures;
    uint8_t room[2]; /* fields of the message up to the last one that is stored; the second: by such a scan as above */
    uint8_t call_op, call_type; /* fields with the opId and the type of the call that it is about */
    uint32_t call;              /* all bits, 0: it is about none, and both are 0 */
    bool ends_in_field;         /* the last token is a field whose value could be cut off without notice */
    uint8_t type[LS_CAPTURES];  /* capture offsets */
    int8_t slot[LS_CAPTURES];   /* field of each capture, -1: not stored */
};

/* For patterns that may start anywhere: the bytes at the start of their literals, as bits. */
struct ls_starts {
    uint8_t pairs[65536 / 8];  /* the first two */
    uint8_t shorts[65536 / 8]; /* those that a literal of fewer than four bytes starts with */
    uint8_t quads[65536 / 8];  /* hashes of the first four */
    uint8_t after[65536 / 8];  /* two bytes behind a field at the start of a pattern */
    bool fields, any_field;    /* some patterns start with a field; with one that anything may follow */
};

struct ls_trie {
    LS_VEC(struct ls_node) nodes;
    struct ls_starts starts;
};

struct ls_catalogue {
    LS_VEC(struct ls_message) messages;
    LS_VEC(struct ls_pattern) patterns;
    struct ls_trie tries[LS_WHERES];  /* by ls_where */
    LS_VEC(unsigned char *) literals; /* owned bytes */
    LS_VEC(struct ls_token) tokens;
    LS_VEC(unsigned char) token_bytes;
    uint32_t births;
    bool finished;
};

/* One field of a matched text. start is an offset into the text. */
struct ls_capture {
    uint64_t value;
    uint32_t start, length;
};

struct ls_match {
    const struct ls_message *message;
    uint32_t index;      /* of the message */
    uint32_t pattern;    /* of the catalogue */
    uint64_t present;    /* fields as bits */
    uint64_t texts;      /* those of them that are texts */
    uint32_t end;        /* where the match ends in the text */
    bool torn;           /* no match, and the text ends in the middle of a pattern */
    uint32_t unfinished; /* no match, and more text may finish a pattern: literal bytes of it that are there. As torn,
                            but also within a field of any text */
    bool ends_in_field;
    const char *text;
    const struct ls_capture *field;       /* by their place in the message: own, or those of a parsed line */
    struct ls_capture own[LS_FIELDS + 1]; /* the last entry receives what is not stored */
};

/* Match text at its start; anywhere: the match may end before the text does. */
bool ls_match(const struct ls_catalogue *cat, int where, const char *text, size_t n, bool anywhere,
              struct ls_match *out);

/* Match a NCCL message whose end is cut off, if what is left belongs to one message only, and holds one of its fields
 * or enough of its words. The fields at and behind the cut are not present. */
bool ls_match_cut(const struct ls_catalogue *cat, const char *text, size_t n, struct ls_match *out);

/* What the start of a text predicts: patterns that matched such texts. A guess is valid for texts that start with the
 * known bytes. */
enum { LS_GUESSES = 1024, LS_GUESS_WAYS = 4, LS_KNOWN = 56 };
struct ls_guess {
    uint32_t pattern; /* + 1, 0: none */
    uint16_t known;
    unsigned char bytes[LS_KNOWN];
};
/* layout.c: texts of a pattern whose fields are at the same places. */
enum {
    LS_LAYOUT_SETS = 512,
    LS_LAYOUT_WAYS = 2,
    LS_LAYOUT_MOST = 192,   /* bytes of a text */
    LS_LAYOUT_ROOM = 16,    /* fields of a message */
    LS_LAYOUT_NUMBERS = 14, /* of which the value is read */
    LS_LAYOUT_BEHIND = 32,  /* bytes behind a text that are read with it */
};
struct ls_number {
    uint8_t slot, start, n;
};
struct ls_layout_block {
    char same[32];       /* the bytes of all texts, a line end where they differ */
    uint8_t allowed[32]; /* which bytes may stand there */
};
struct ls_layout {
    uint32_t key;
    uint32_t pattern; /* + 1 */
    uint16_t n;       /* bytes of a text; 0: there is no layout */
    uint8_t room, hexes, decimals;
    uint8_t last, behind;                       /* its last block, and how much of that is behind the text */
    struct ls_number number[LS_LAYOUT_NUMBERS]; /* the hexadecimal ones, then the others */
    _Alignas(64) struct ls_capture field[LS_LAYOUT_ROOM];
    _Alignas(64) struct ls_layout_block block[LS_LAYOUT_MOST / 32];
};
struct ls_layouts {
    struct ls_layout layout[LS_LAYOUT_SETS][LS_LAYOUT_WAYS];
    uint8_t next[LS_LAYOUT_SETS]; /* the one to replace next */
    uint8_t tries[LS_LAYOUT_SETS];
    uint32_t missed;
};
/* Reads a text of n bytes if it has a known layout: returns the pattern + 1, else 0. LS_LAYOUT_BEHIND bytes after it
 * may be read. fields: has room for LS_LAYOUT_ROOM. */
typedef uint32_t (*ls_fitter)(const struct ls_layouts *all, const char *text, size_t n, struct ls_capture *fields);
/* The fitter of this processor, NULL if it has none. */
ls_fitter ls_best_fitter(void);
/* Adds the layout of a text that a guess fits. */
void ls_add_layout(const struct ls_catalogue *cat, struct ls_layouts *all, const struct ls_guess *g, const char *text,
                   size_t n, bool lean);

struct ls_guesses {
    struct ls_guess guess[LS_GUESSES][LS_GUESS_WAYS];
    uint8_t next[LS_GUESSES];   /* the guess to replace next */
    uint8_t futile[LS_GUESSES]; /* guesses made since one was correct */
    ls_fitter fitter;
    struct ls_layouts *layouts;
    void *room; /* what they are in */
};
struct ls_guesses *ls_guesses_new(void);
void ls_guesses_free(struct ls_guesses *guesses);

/* The pattern + 1 of a whole NCCL message, if it is a predicted one and no second record may follow it, else 0. room
 * bytes after the text may be read; the first of them, if any, is a line end or a blank. lean: fields that no tracker
 * and no event uses may be left out. forks: the second record may be of a fork of NCCL. fields: has room for LS_FIELDS
 * + 1; those of the message are written to the first ls_pattern.room[lean]. */
uint32_t ls_expected(const struct ls_catalogue *cat, struct ls_guesses *guesses, const char *text, size_t n,
                     size_t room, bool lean, bool forks, struct ls_capture *fields);
/* As ls_match, but only for predicted patterns: false means nothing. */
bool ls_match_expected(const struct ls_catalogue *cat, struct ls_guesses *guesses, const char *text, size_t n,
                       bool lean, bool forks, struct ls_match *out);
/* Predict the pattern of a match for the next such text. */
void ls_expect(const struct ls_catalogue *cat, struct ls_guesses *guesses, const char *text, size_t n,
               const struct ls_match *found);
/* Fits the tokens of a pattern to a text. starts: receives the place of each field. */
bool ls_follow(const struct ls_catalogue *cat, uint32_t pattern, const char *text, size_t n, struct ls_match *out,
               uint32_t *starts);
void ls_show_match(const struct ls_match *m, size_t at, uint64_t *present, uint64_t *values, uint32_t *starts,
                   uint32_t *lengths);

/* starts.c: a filter for the places of a text where a pattern that may start anywhere can start. */
void ls_find_starts(struct ls_trie *trie);
/* Whether a pattern may start at byte i of the n bytes of a text; there are two bytes at least from there. */
bool ls_may_start(const struct ls_trie *trie, const char *s, uint32_t i, uint32_t n);

/* straight.c: stores the patterns of a trie as tokens, if their texts can be found without a search. */
void ls_lay_out(struct ls_catalogue *cat, const struct ls_trie *trie);

static inline bool ls_is_text(int type)
{
    return type == LS_ADDR || type == LS_WORD || type == LS_STR || type == LS_REST;
}

void ls_widen(const struct ls_pattern *pat, const struct ls_message *message, struct ls_capture *fields);

/* Fill in the data of a match besides its fields, which the caller has. */
static inline void ls_fill_match(const struct ls_catalogue *cat, uint32_t pattern, const char *text, const char *end,
                                 struct ls_match *out)
{
    const struct ls_pattern *pat = &cat->patterns.at[pattern];
    out->torn = false;
    out->pattern = pattern;
    out->index = pat->message;
    out->message = pat->of;
    out->present = pat->present;
    out->texts = pat->texts;
    out->end = (uint32_t)(end - text);
    out->ends_in_field = pat->ends_in_field;
    out->text = text;
}

#endif
