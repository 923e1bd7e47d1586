/* The state of a scan, shared by the files of the scanner. */
#ifndef LOGSCAN_SCANNER_H
#define LOGSCAN_SCANNER_H

#include "catalogue.h"

enum {
    LS_LINE_MAX = 1 << 20, /* longer lines are cut and counted */
    LS_PREFIXES = 1 << 17, /* prefixes remembered: a rank prints by two or three threads */
    LS_PREFIX_MAX = 104,   /* bytes of a remembered prefix */
    LS_CACHE_LINE = 64,
    LS_NEAR = 1024, /* prefixes up to which what is known of them stays in a near cache */
    LS_MAX_SHAPES = 4096,
    LS_MAX_EVENTS = 150000, /* events kept in one scan of complaints, and of all other messages */
    LS_RARE_EVENTS = 2048,  /* events of each message that are kept beyond these bounds */
    LS_MOST_EVENTS = 600000,
    LS_MAX_DISTINCT = 2048, /* distinct events of one message and process */
    LS_MAX_ALL = 20000,     /* events kept per message and process */
    LS_MAX_PROCS = 1 << 17, /* processes, and so ranks, of one scan */
    LS_MAX_THREADS = 1 << 20,
    LS_MAX_ITEMS = 400000, /* entries of one tracker */
    LS_SHARED_TEXTS = 1 << 15,
    LS_WRAP_MAX = 4096, /* bytes of a text that is wrapped over lines */
    LS_WRAP_LINES = 12,
};

/* marks.c: the line ends of up to LS_SPAN bytes, and whether an escape character or the start of a link is among them.
 */
enum { LS_SPAN = 4096 };
struct ls_marks {
    uint32_t n;
    bool odd;
    uint32_t end[LS_SPAN + 2]; /* two are written in advance */
};
/* Adds the marks of blocks of 64 bytes, of which the first is byte base. */
typedef void (*ls_marker)(const char *s, uint32_t blocks, uint32_t base, struct ls_marks *to);
void ls_mark_plain(const char *s, uint32_t blocks, uint32_t base, struct ls_marks *to);
/* The fastest one of this processor; wide: it may need more than every processor of its kind has. */
ls_marker ls_best_marker(bool wide);
/* Marks the first bytes of n; returns how many. */
size_t ls_mark(ls_marker marker, const char *s, size_t n, struct ls_marks *to);

struct ls_line;
struct ls_cursor;

/* Whose line it is. */
struct ls_who {
    int32_t proc, thread, device, tag;
};

/* A prefix that was seen before, and what it means. */
struct ls_remembered {
    uint32_t len, stream;
    struct ls_who who;
    char text[LS_PREFIX_MAX];
};

struct ls_prefixes {
    LS_VEC(struct ls_remembered) at;
    struct ls_index index;
    uint32_t age;   /* how often the scan had forgotten all of them */
    uint32_t users; /* of a copy */
};

/* What is needed to read lines, apart from what the lines before said: it decides how fast a line is read, not what is
 * read. */
struct ls_parser {
    const struct ls_catalogue *cat;
    ls_marker marker;
    /* Reads the next lines, up to most; returns how many, 0 at the end. fields: has room for LS_FIELDS of each, and one
     * more. */
    uint32_t (*next)(const struct ls_parser *p, uint32_t stream, struct ls_cursor *c, struct ls_line *lines,
                     uint32_t most, struct ls_capture *fields);
    /* Of a prefix. */
    uint32_t (*hash)(uint32_t stream, const char *s, uint32_t n);
    struct ls_guesses *guesses;
    const struct ls_prefixes *prefixes;
    bool lean; /* fields that nobody uses are left out */
};

/* parse.c */
/* By the best means of this processor. The guesses are the caller's, and so are the prefixes. */
void ls_parser_begin(struct ls_parser *p, const struct ls_catalogue *cat, const struct ls_prefixes *prefixes,
                     bool lean);
/* By means that any processor has, before anything is read. */
void ls_parser_plain(struct ls_parser *p);

/* The end of a line that may go on in the next one. */
struct ls_wrapped {
    char *text; /* LS_WRAP_MAX bytes */
    uint32_t n, lines;
    int32_t tag;
    uint32_t time, time_len; /* in text, behind the n bytes */
    ls_ref ref;
    char *line; /* the whole first line, if nothing in it is known: LS_WRAP_MAX bytes */
    uint32_t line_n, stream;
};

struct ls_torn;

struct ls_file {
    uint32_t stream;
    uint32_t line;
    uint64_t offset; /* offset of the next byte */
    uint64_t start;  /* offset of the line that is carried over */
    char *carry;
    uint32_t carried, carry_cap;
    bool skipping; /* within a truncated line */
    bool complete;
    bool record; /* lines made from a record, beside the log of the process */
    struct ls_wrapped wrapped;
    struct ls_torn *torn; /* NULL: no record ended within a pattern so far */
};

struct ls_stream {
    uint64_t seq;
};

/* What stands before a message. */
struct ls_prefix {
    uint32_t start; /* of the host, or of the time before it */
    uint32_t host, host_len;
    uint32_t where, where_len;
    uint32_t time, time_len;
    uint32_t tag, tag_len;
    int32_t pid, tid, device;
    bool dirty; /* the text before it contains unknown words */
};

/* One record: a message with its place and its thread. */
struct ls_record {
    ls_ref ref;
    int32_t proc, thread, device, tag;
    uint32_t stream;
    int level;
    const char *where, *time;
    uint32_t where_len, time_len;
    uint32_t repeated;
};

struct ls_proc_state {
    uint32_t host_id;
    uint32_t births_seen; /* bits by message */
    bool worked;
    uint32_t *count_of; /* by the number of the message in its scan: index into counts + 1 */
    uint32_t counted;   /* elements of count_of */
    uint32_t comms_made;
};

struct ls_home {
    uint32_t stream, host_id, home;
    int32_t pid;
};

struct ls_event_key {
    uint64_t hash;
    uint32_t event;
    uint32_t hash32;
};

struct ls_rpc;
struct ls_fds;
struct ls_comms;
struct ls_book;
struct ls_part;

struct ls_scan {
    const struct ls_catalogue *cat;
    struct ls_parser parser;
    bool emit_all, keep_calls, keep_messages;
    bool continued;       /* its first line is not the first one of the job */
    struct ls_part *part; /* of a scan of some files of a job, else NULL */
    ls_totals totals;
    struct ls_arena texts, event_texts, messages;
    LS_VEC(struct ls_file) files;
    LS_VEC(struct ls_stream) streams;
    LS_VEC(uint64_t) tags; /* texts */
    struct ls_index tag_index;
    LS_VEC(uint64_t) words;
    struct ls_index word_index;
    LS_VEC(uint64_t) hosts;
    struct ls_index host_index;
    LS_VEC(struct ls_home) homes;
    LS_VEC(ls_process) procs;
    LS_VEC(struct ls_proc_state) states;
    struct ls_index proc_index;
    struct ls_index pid_index;
    LS_VEC(ls_thread) threads;
    struct ls_index thread_index;
    struct ls_prefixes prefixes, *copy; /* for lines that are read ahead; NULL: none so far */
    uint32_t missed;                    /* such lines whose prefix was not in the copy */
    LS_VEC(ls_count) counts;
    uint32_t *number_of; /* by message: a number from 1 in the order of the first lines, since a log has few of all
                          * messages */
    uint32_t numbered;
    uint32_t *outside_counts; /* for lines of no process, by message */
    LS_VEC(ls_event) events;
    uint32_t kept[2];  /* events that are no complaints, and complaints */
    uint32_t *kept_of; /* events by message */
    LS_VEC(uint64_t) values;
    uint64_t *shared; /* by hash: a text of an event that never changes, 0: none */
    struct ls_index event_index;
    LS_VEC(uint64_t) event_hash;
    LS_VEC(ls_shape) shapes;
    struct ls_index shape_index;
    char *scratch;
    uint32_t scratch_cap;
    struct ls_rpc *rpc;
    struct ls_fds *fds;
    struct ls_comms *comms;
    struct ls_book *book;
};

static inline bool ls_same_text(const struct ls_arena *a, uint64_t packed, const char *s, size_t n)
{
    return (packed & LS_TEXT_MAX) == n && ls_same_bytes(a->at + (packed >> 20), s, n);
}

/* The end of a text without the blanks at its end. */
static inline uint32_t ls_trim(const char *s, uint32_t low, uint32_t high)
{
    if (high > low && (unsigned char)s[high - 1] > ' ') return high;
    while (high > low && (s[high - 1] == ' ' || s[high - 1] == '\r' || s[high - 1] == '\t' || s[high - 1] == 0)) high--;
    return high;
}

/* prefix.c */
/* The position of the first tag if it is "NCCL INFO " and early; LS_NONE means nothing. */
uint32_t ls_find_info(const char *s, uint32_t n);
/* The tag of a record ("NCCL INFO ") at or after from: its position, its end in *body, its level; -1: none. forks:
 * include those of NCCL's forks. */
int64_t ls_find_tag(const char *s, uint32_t from, uint32_t n, bool forks, int *level, uint32_t *body);
/* As ls_find_tag, of a line of NCCL 2.0 to 2.2. */
int64_t ls_find_nameless(const struct ls_scan *scan, const char *s, uint32_t n, int *level, uint32_t *body);
int64_t ls_find_ofi(const char *s, uint32_t n, int *level, uint32_t *body);
/* The device in a prefix whose host and pid are lost or unreadable; INT32_MIN if there is none. */
int32_t ls_bare_device(const char *s, uint32_t tag, int level);
bool ls_parse_prefix(const struct ls_scan *scan, const char *s, uint32_t low, uint32_t tag, int level, bool glued,
                     struct ls_prefix *out);
void ls_parse_noise(const char *s, uint32_t low, uint32_t high, struct ls_prefix *out);
uint32_t ls_strip_ansi(char *to, const char *s, uint32_t n, bool literal);

/* identity.c */
uint32_t ls_host_id(struct ls_scan *scan, const char *s, uint32_t n, bool add);
int32_t ls_tag_id(struct ls_scan *scan, const char *s, uint32_t n);
void ls_note_stamp(ls_process *p, uint64_t seq, const char *s, uint32_t n);
/* A prefix may belong to another process from now on. */
void ls_forget_prefixes(struct ls_scan *scan);
/* A copy that does not change, for its first user; the last one frees it. */
struct ls_prefixes *ls_prefixes_copy(const struct ls_prefixes *p);
void ls_prefixes_leave(struct ls_prefixes *copy);
static inline void ls_prefixes_drop(struct ls_prefixes *p)
{
    ls_drop(&p->at);
    ls_index_drop(&p->index);
}
/* An entry begins with a line of the cache: most are not longer. */
static inline void ls_remember(struct ls_prefixes *to, const struct ls_remembered *p, uint32_t hash)
{
    enum { FEW = 64 };
    if (to->at.n == to->at.cap) {
        to->at.cap = to->at.cap ? to->at.cap * 2 : FEW;
        struct ls_remembered *more = ls_need(aligned_alloc(LS_CACHE_LINE, to->at.cap * sizeof *more));
        if (to->at.n) memcpy(more, to->at.at, to->at.n * sizeof *more);
        free(to->at.at);
        to->at.at = more;
    }
    to->at.at[to->at.n++] = *p;
    ls_index_add(&to->index, hash, to->at.n - 1);
}
/* The stamp of a record in milliseconds, INT64_MIN if it has none. */
static inline int64_t ls_stamp_of(const struct ls_scan *scan, const struct ls_record *rec)
{
    const ls_process *p = rec->proc >= 0 ? &scan->procs.at[rec->proc] : NULL;
    return p && p->stamp_seq == rec->ref.seq ? p->stamp : INT64_MIN;
}
int32_t ls_thread_of(struct ls_scan *scan, uint32_t stream, const char *line, const struct ls_prefix *p);
void ls_birth(struct ls_scan *scan, struct ls_record *rec, const struct ls_message *m, int32_t tid);
/* The single, packed copy of a word that lines use often. */
uint64_t ls_word(struct ls_scan *scan, const char *s, uint32_t n);

/* unfold.c */
/* Whether a line stands in a box: the place of its left border, and where the text ends before the right one. */
bool ls_boxed(const char *s, uint32_t n, uint32_t *from, uint32_t *end);
/* Replaces the left border by blanks. */
void ls_unbox(char *s, uint32_t from);
/* Writes line breaks, tabs and quotes that are spelled with backslashes as they are. Returns the new length. */
uint32_t ls_unfold(char *s, uint32_t n);
/* The member "rank": 3 of a JSON object. */
bool ls_json_rank(const char *s, uint32_t n, uint32_t *at, uint32_t *len);

/* outside.c: lines that are not NCCL's. Both return whether a pattern matched. */
bool ls_match_inside(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t n);
/* As ls_match_inside, of a whole line: it may continue the one before. */
bool ls_match_outside(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t n);
/* A line of which no other pattern knows a part: whether it speaks of an error. If a wrapped text begins in it, that
 * waits for the lines below. */
void ls_match_other(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t n);
/* Nothing completes the wrapped text: its first line is one that nothing else knows. */
void ls_end_wrapped(struct ls_scan *scan, struct ls_wrapped *w);

/* events.c */
void ls_on_match(struct ls_scan *scan, struct ls_record *rec, const struct ls_match *m);
void ls_on_unmatched(struct ls_scan *scan, struct ls_record *rec, const char *text, uint32_t n);

/* trackers: each gets the records of its roles, and has its own start and end */
struct ls_rpc *ls_rpc_new(void);
void ls_rpc_free(struct ls_rpc *rpc);
void ls_rpc_record(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m);
/* Of a call of a process. */
static inline uint32_t ls_rpc_hash(int32_t proc, uint64_t op)
{
    return ls_fold(ls_mix(ls_mix(10, (uint32_t)proc), op));
}
/* A line about a call with this hash and type, or about none, follows soon: loads what is known of the thread, then the
 * call. */
void ls_rpc_load_ahead(const struct ls_rpc *rpc, const struct ls_who *who, uint32_t hash, uint8_t type);
void ls_rpc_load_call(const struct ls_rpc *rpc, uint32_t hash);
void ls_rpc_round(struct ls_scan *scan);
void ls_rpc_finish(struct ls_scan *scan);
void ls_rpc_clear(struct ls_rpc *rpc);
struct ls_fds *ls_fds_new(void);
void ls_fds_free(struct ls_fds *fds);
void ls_fds_record(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m);
void ls_fds_finish(struct ls_scan *scan);
void ls_fds_clear(struct ls_fds *fds);
struct ls_comms *ls_comms_new(void);
void ls_comms_free(struct ls_comms *comms);
void ls_comms_record(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m);
void ls_comms_finish(struct ls_scan *scan);
struct ls_book *ls_book_new(void);
void ls_book_free(struct ls_book *book);
void ls_book_record(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m);
void ls_book_finish(struct ls_scan *scan);

/* part.c: what a scan of some files of a job keeps for the scan of all: see logscan.cdef.h. All do nothing in other
 * scans. */
void ls_part_begin(struct ls_scan *scan);
void ls_part_free(struct ls_scan *scan);
/* The turn in which a line is read. */
uint32_t ls_part_turn(const struct ls_scan *scan);
/* An answer on this host has no call in the files so far. */
void ls_part_orphan(struct ls_scan *scan, uint32_t host);
/* The start of a line may be one of these names of hosts with text glued to it, and is none that is known. */
void ls_part_asked(struct ls_scan *scan, const char *s, uint32_t n);
/* A line was counted for an event that is kept, the one with this number. */
void ls_part_again(struct ls_scan *scan, uint32_t event);
void ls_part_outside(struct ls_scan *scan, uint32_t message);
/* Keeps a record of a tracker that sees all files. */
void ls_part_later(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m);

/* Whether the line at hand is the first of all. */
static inline bool ls_first_line(const struct ls_scan *scan)
{
    return scan->totals.lines <= 1 && !scan->continued;
}

/* A role's field of a match: false if the message or the line does not have it. */
static inline bool ls_role_value(const struct ls_match *m, int field, uint64_t *value)
{
    int slot = m->message->role_field[field];
    if (slot < 0 || !(m->present & 1ull << slot)) return false;
    *value = m->field[slot].value;
    return true;
}

static inline int64_t ls_role_int(const struct ls_match *m, int field, int64_t missing)
{
    uint64_t v;
    return ls_role_value(m, field, &v) ? (int64_t)v : missing;
}

static inline const char *ls_role_text(const struct ls_match *m, int field, uint32_t *n)
{
    int slot = m->message->role_field[field];
    if (slot < 0 || !(m->present & 1ull << slot)) {
        *n = 0;
        return NULL;
    }
    *n = m->field[slot].length;
    return m->text + m->field[slot].start;
}

#endif
