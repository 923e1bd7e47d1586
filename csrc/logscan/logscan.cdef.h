/* The interface of the log scanner. cffi reads this file as it is: declarations only, no preprocessor lines. */

typedef struct ls_catalogue ls_catalogue;
typedef struct ls_scan ls_scan;
typedef struct ls_ahead ls_ahead;

/* A line of an input. line counts from 1, 0 if there is none; seq counts the lines of the stream. */
typedef struct {
    uint32_t file;
    uint32_t line;
    uint64_t offset;
    uint64_t seq;
} ls_ref;

/* A matched line. Its fields are values[first_value .. + slots of the message]; bit i of present says whether field i
 * was there, bit i of texts whether it is a text. A text is packed as offset << 20 | length, for an event into
 * ls_event_text() and elsewhere into ls_text(). */
typedef struct {
    uint32_t message;
    uint32_t level;
    int32_t proc;
    int32_t thread;
    int32_t device; /* INT32_MIN: none */
    int32_t tag;    /* -1: none */
    uint32_t stream;
    uint32_t first_value;
    uint32_t count;
    uint32_t length; /* of its message in ls_messages(), where the scan keeps these */
    uint64_t present;
    uint64_t texts;
    uint64_t where; /* texts; 0: none */
    uint64_t time;
    uint64_t until; /* time of the last line, of an event that keeps the latest state */
    ls_ref first;
    ls_ref last;
} ls_event;

/* What each line changes stands together at the start of this and of the next structs: a line of another process is
 * rarely in a near cache. */
typedef struct {
    uint64_t lines;
    ls_ref last;
    /* Time stamps of its lines in milliseconds, since 1970 with a date, else since midnight; time zones do not count.
     */
    uint64_t stamp_seq; /* the line of stamp, 0: none */
    int64_t stamp;      /* of the last line with one */
    uint32_t stream;
    int32_t tag;
    uint64_t host; /* text */
    int32_t pid;
    uint32_t incarnation;
    uint32_t births;
    uint32_t aliased;
    uint64_t damaged;    /* lines that are torn, or glued to other text so that a part of them is lost */
    int64_t pause;       /* the longest time between two stamps */
    uint32_t stamp_date; /* stamp has a date */
    uint32_t backward;   /* lines whose stamp is earlier than that before, or has another form */
    ls_ref first;
} ls_process;

typedef struct {
    uint64_t lines;
    ls_ref last;
    uint32_t last_message; /* UINT32_MAX: unmatched */
    uint32_t stream;
    int32_t proc;
    int32_t tid;
    ls_ref first;
} ls_thread;

typedef struct {
    uint64_t count;
    ls_ref last;
    uint32_t message;
    int32_t proc;
    uint64_t kept; /* as events */
    ls_ref first;
} ls_count;

typedef struct {
    uint64_t text;
    uint64_t count;
    ls_ref first;
} ls_shape;

typedef struct {
    uint64_t lines, bytes, matched, unmatched, other, torn, glued, cut, blank;
    uint64_t calls_matched, fds_matched, seq_matched, pairs_matched;
    uint64_t max_call_age, max_fd_age;
    uint64_t dropped_events, dropped_items, dropped_lines; /* lines: of processes beyond the first ones */
} ls_totals;

/* state: 1 begun, 2 served, 3 received, 4 matched. Unknown processes, threads, types and sizes are -1. */
typedef struct {
    uint64_t op;
    uint32_t state;
    int32_t type;
    uint64_t stage; /* text, 0: none */
    int32_t service;
    int32_t caller;
    uint32_t generation;
    int32_t peer_local_rank;
    int64_t resp_size;
    int32_t service_thread;
    int32_t caller_thread;
    uint64_t age;
    uint64_t expected; /* the opId that the caller waited for, if it is another one, else 0 */
    uint32_t again;    /* 1: its process printed nothing between another answer with this opId and this one, or between
                        * another begin of such a call and this one; 2: the line that another answer with this opId
                        * matches is missing */
    int64_t began, ended; /* stamps of its first and its last line in milliseconds, INT64_MIN: none */
    ls_ref begun, served, received, matched;
} ls_call;

typedef struct {
    uint64_t op;
    int32_t client;
    int32_t server;
    int64_t rank;
    int64_t peer;
    int64_t fd;
    uint64_t age;
    uint64_t wanted, read,
        sent;             /* the handle as the client names it, as the server reads it and answers it; 0: unknown */
    int64_t began, ended; /* as those of a call */
    ls_ref asked, received, answered, done, returned;
} ls_fd;

typedef struct {
    int32_t proc;
    uint32_t group;
    uint64_t comm;
    int64_t rank;
    int64_t nranks;
    uint64_t commid;
    uint32_t has_commid;
    uint32_t guessed;
    int64_t dev;  /* -1: unknown */
    uint64_t bus; /* text, 0: unknown */
    uint64_t ops, sends, recvs;
    ls_ref start, complete, end, last_op;
    ls_ref last_coll_ref; /* the last collective and its fields; -1: unknown */
    uint32_t last_coll;   /* index in ls_colls() */
    int64_t last_opcount, last_count, last_datatype, last_redop, last_root;
} ls_instance;

/* One member's call at the position where a group's calls first differ. */
typedef struct {
    uint32_t group;
    uint32_t instance;
    uint64_t index;
    uint32_t coll;
    int64_t opcount, count, datatype, redop, root;
    ls_ref ref;
} ls_divergent;

typedef struct {
    uint64_t commid;
    uint32_t has_commid;
    uint32_t members;
    int64_t nranks;
    uint64_t matched;
    uint32_t diverged;
} ls_group;

typedef struct {
    uint32_t group;
    int64_t src;
    int64_t dst;
    uint64_t matched;
    uint64_t pending_sends;
    uint64_t pending_recvs;
    uint32_t first_ref; /* in ls_pair_refs(): the kept sends, then the kept recvs */
    uint32_t kept_sends;
    uint32_t kept_recvs;
    uint32_t mismatch;
    ls_ref mismatch_send, mismatch_recv;
    uint64_t mismatch_send_bytes, mismatch_recv_bytes;
    uint32_t retyped; /* a pair of equal bytes has two types; the first such pair: */
    int32_t retyped_send_type, retyped_recv_type;
    ls_ref retyped_send, retyped_recv;
} ls_pair;

typedef struct {
    uint32_t ledger;
    int32_t proc;
    int32_t importer;
    uint32_t opens, closes, imports;
    uint32_t nkeys;
    uint32_t key_is_text; /* bit i: key i is a text */
    uint64_t key[4];
    ls_ref opened, closed, imported;
} ls_entry;

typedef struct {
    uint64_t opens, closes, imports;
} ls_ledger_total;

/* What one proxy service thread did. */
typedef struct {
    ls_ref last_begun;
    uint64_t begun_operation; /* text, 0: none */
    int64_t begun_res;
    uint64_t begun; /* calls that it took and that have an answer */
    ls_ref last_served;
    int64_t served_type;
    uint64_t opened_dir; /* text, 0: none */
    int64_t opened_transport, opened_rank;
    ls_ref last_opened;
    int32_t proc;
    int32_t thread;
    uint64_t gaps; /* connections whose number does not follow that of the one before */
    int64_t opened_id;
} ls_service;

typedef struct {
    uint32_t service; /* index of the ls_service */
    uint32_t served;  /* 1: key is the type of a served call, 0: a connection was opened, 2: a Setup was served, its key
                       * the dir of the newest connection and, as type, the size of the answer */
    uint64_t dir;
    int64_t transport, rank, type;
    uint64_t count;
    ls_ref first;
} ls_tally;

/* What the start of a file says about a process: see ls_peek. */
typedef struct {
    uint64_t host; /* text */
    int32_t pid;
    int32_t tid;
    int32_t tag;
    uint32_t born; /* a line of the thread is the first of its process */
} ls_sighting;

/* What a turn of a stream added to the tables of a scan of some files: their lengths after it. Turns of one round
 * follow each other by the number of the stream, so the tables of several such scans, joined turn by turn, have the
 * order that one scan of all files would have given them. */
typedef struct {
    uint32_t round, stream;
    uint64_t seq;   /* lines of the stream */
    uint64_t later; /* records in ls_later() */
    uint32_t tags, hosts, procs, threads, counts, events, shapes, services, tallies;
} ls_turn;

/* What of a part would differ if other files were read with it. */
typedef struct {
    uint32_t calls, underway, words, asked; /* the most that were open or kept at a time; hosts that were asked for */
    uint32_t learned_in[32];                /* the turn that named a type of calls last */
    uint64_t learned[32];                   /* its name, text */
} ls_bounds;

/* Catalogue. Patterns are added to messages, then ls_catalogue_finish freezes it. */
ls_catalogue *ls_catalogue_new(void);
void ls_catalogue_free(ls_catalogue *cat);
int ls_catalogue_message(ls_catalogue *cat, int where, int level, int keep, const char *role);
int ls_catalogue_pattern(ls_catalogue *cat, int message, const char *text, size_t n, char *err, size_t err_size);
/* A field without a pattern: for lines that are returned without one. */
void ls_catalogue_text_field(ls_catalogue *cat, int message, const char *name);
int ls_catalogue_fields(const ls_catalogue *cat, int message);
const char *ls_catalogue_field_name(const ls_catalogue *cat, int message, int field);
int ls_catalogue_field_type(const ls_catalogue *cat, int message, int field);
/* The message is a complaint: the scan keeps room for it. */
void ls_catalogue_complaint(ls_catalogue *cat, int message);
int ls_catalogue_distinct(ls_catalogue *cat, int message, const char *field);
int ls_catalogue_ledger(ls_catalogue *cat, int message, int ledger, int host_scope);
int ls_catalogue_key(ls_catalogue *cat, int message, const char *field);
int ls_catalogue_finish(ls_catalogue *cat);

/* Match one text without a scan: the message index or -1, -2 for a torn one. The arrays have one element per field,
 * present two words: fields, and which of them are texts. span takes where the match starts and ends; it may be NULL.
 */
int ls_match_text(const ls_catalogue *cat, int where, const char *text, size_t n, uint64_t *present, uint64_t *values,
                  uint32_t *starts, uint32_t *lengths, uint32_t *span);

/* Where names may stand in the lines of text[low, n): (start, end, kind) for what precedes a NCCL message (kind 1) and
 * for its fields, and for each other line as a whole (kind 0). kinds has for each message the kinds of its 64 fields, 0
 * for a field without a name, and whether the message is searched as a whole. Returns where it stopped for want of
 * room. */
size_t ls_places(const ls_catalogue *cat, const uint8_t *kinds, const char *text, size_t low, size_t n,
                 uint32_t *places, uint32_t most, uint32_t *count);

/* Match one text that an earlier one predicts, as ls_match_text; -1 means nothing. */
int ls_guess_text(const ls_catalogue *cat, const char *seen, size_t seen_n, const char *text, size_t n,
                  uint64_t *present, uint64_t *values, uint32_t *starts, uint32_t *lengths);

/* Scan. mode: bit 0 return every matched line, bit 1 keep matched calls, bit 2 keep the messages of events, bit 3 the
 * files are a part of those of a job: matches only what no other file has a part in, and keeps the rest for
 * ls_replay(). */
ls_scan *ls_scan_new(const ls_catalogue *cat, int mode);
void ls_scan_free(ls_scan *scan);
uint32_t ls_scan_stream(ls_scan *scan);
uint32_t ls_scan_file(ls_scan *scan, uint32_t stream);
/* The file is a record. The last line of a process is one of its log, if it has one. */
void ls_scan_record(ls_scan *scan, uint32_t file);
/* Lines of host:pid in this stream belong to the process of the same name in the home stream. */
void ls_scan_home(ls_scan *scan, uint32_t stream, const char *host, size_t n, int32_t pid, uint32_t home);
void ls_feed(ls_scan *scan, uint32_t file, const char *data, size_t n);
/* Lines that are read ahead: what they say by themselves. One thread may read while another one feeds what was read
 * before; the result of the scan is that of ls_feed. mode: as that of the scan. */
ls_ahead *ls_ahead_new(const ls_catalogue *cat, int mode);
void ls_ahead_free(ls_ahead *ahead);
/* Reads the lines of the next bytes of a file in this stream. The bytes stay where they are until they are fed. */
void ls_read_ahead(ls_ahead *ahead, uint32_t stream, const char *data, size_t n);
/* As ls_feed of the bytes that were read. */
void ls_feed_ahead(ls_scan *scan, uint32_t file, ls_ahead *ahead);
void ls_end_file(ls_scan *scan, uint32_t file);
/* Copies a line with its links as their texts, where an issue tracker took a name or an address for a link: 10.0.0.1
 * for [10.0.0.1](http://10.0.0.1/). Links of an author stay. Returns the length; to may be s. */
uint32_t ls_unlink(char *to, const char *s, uint32_t n);
void ls_end_round(ls_scan *scan);
/* No file follows: frees what only reading needs. The tables are complete. */
void ls_finish(ls_scan *scan);
void ls_clear_events(ls_scan *scan);
/* Forgets the complete calls and exchanges that ls_calls() and ls_fds() return, for a scan that keeps all of them. */
void ls_clear_calls(ls_scan *scan);
/* The milliseconds of time stamps, which are texts of events: since 1970 with a date, else since midnight; INT64_MIN
 * for none. */
void ls_stamps(const char *texts, const uint64_t *packed, size_t n, int64_t *ms);
uint64_t ls_file_lines(const ls_scan *scan, uint32_t file);
uint64_t ls_file_bytes(const ls_scan *scan, uint32_t file);
uint64_t ls_stream_lines(const ls_scan *scan, uint32_t stream);
int ls_file_complete(const ls_scan *scan, uint32_t file);
size_t ls_peek(ls_scan *scan, const char *data, size_t n, ls_sighting *out, size_t max);

const char *ls_text(const ls_scan *scan, size_t *n);
const char *ls_event_text(const ls_scan *scan, size_t *n);
/* Columns of many events. slots: the place of a field in each message, -1: none. form: 0 the line lacks it, 1 a number,
 * 2 a text. */
void ls_field_column(const ls_event *events, size_t n, const uint64_t *values, const int8_t *slots, uint64_t *out,
                     uint8_t *form);
/* Known numbers as 0x7f0215c09cc0, one after another; out has room for 18 bytes of each. ends: where each ends. Returns
 * the length. */
size_t ls_hexes(const uint64_t *values, const uint8_t *known, size_t n, char *out, int32_t *ends);
/* Packed texts, one after another; out has room for them. */
size_t ls_gather(const char *texts, const uint64_t *packed, size_t n, char *out, int32_t *ends);
/* The messages of the events, one after another: what stands behind the prefix of a line. */
const char *ls_messages(const ls_scan *scan, size_t *n);
const ls_event *ls_events(const ls_scan *scan, size_t *n);
const uint64_t *ls_values(const ls_scan *scan, size_t *n);
const uint64_t *ls_tags(const ls_scan *scan, size_t *n);
const ls_process *ls_processes(const ls_scan *scan, size_t *n);
const ls_thread *ls_threads(const ls_scan *scan, size_t *n);
const ls_count *ls_counts(const ls_scan *scan, size_t *n);
const ls_shape *ls_shapes(const ls_scan *scan, size_t *n);
const ls_totals *ls_get_totals(const ls_scan *scan);
const ls_call *ls_calls(const ls_scan *scan, size_t *n);
const ls_fd *ls_fds(const ls_scan *scan, size_t *n);
const ls_instance *ls_instances(const ls_scan *scan, size_t *n);
const ls_group *ls_groups(const ls_scan *scan, size_t *n);
const ls_divergent *ls_divergents(const ls_scan *scan, size_t *n);
const uint64_t *ls_colls(const ls_scan *scan, size_t *n);
const ls_pair *ls_pairs(const ls_scan *scan, size_t *n);
const ls_ref *ls_pair_refs(const ls_scan *scan, size_t *n);
const ls_entry *ls_ledger(const ls_scan *scan, size_t *n);
const ls_ledger_total *ls_ledger_totals(const ls_scan *scan, size_t *n);
const ls_service *ls_services(const ls_scan *scan, size_t *n);
const ls_tally *ls_tallies(const ls_scan *scan, size_t *n);

/* Parts of a job. A part is a scan of some of its streams with bit 3 of its mode. */
/* The first line of the part is not that of the job. */
void ls_part_continues(ls_scan *scan);
/* A stream had its turn; call it for each one, in the order of ls_feed(). */
void ls_end_turn(ls_scan *scan, uint32_t round, uint32_t stream);
const ls_turn *ls_turns(const ls_scan *scan, size_t *n);
const ls_bounds *ls_part_bounds(ls_scan *scan);
/* The lines of each event, as far as they were kept. */
const uint32_t *ls_event_lines(const ls_scan *scan, size_t *n);
/* For each message the turn of its last line of no process. */
const uint32_t *ls_outside_turns(const ls_scan *scan, size_t *n);
/* Hosts with an answer whose call is not in these files: texts. Hosts that were looked for in vain: texts, each may be
 * the end of one. */
const uint64_t *ls_words(const ls_scan *scan, size_t *n);
const uint64_t *ls_hosts(const ls_scan *scan, size_t *n);
const uint64_t *ls_orphans(ls_scan *scan, size_t *n);
const uint64_t *ls_asked(const ls_scan *scan, size_t *n);
/* The records of trackers that see all files, packed. */
const char *ls_later(const ls_scan *scan, size_t *n);

/* The scan of all files is made from the parts of it: a new scan, with its files and streams, takes over their tables,
 * whose numbers and texts already are those of the whole, then replays the records of the trackers, then ends. */
enum ls_tables {
    LS_TEXTS,
    LS_EVENT_TEXTS,
    LS_TAGS,
    LS_PROCS,
    LS_THREADS,
    LS_COUNTS,
    LS_EVENTS,
    LS_VALUES,
    LS_SHAPES,
    LS_CALLS,
    LS_SERVICES,
    LS_TALLIES
};
void ls_adopt(ls_scan *scan, int table, const void *rows, size_t n);
void ls_adopt_totals(ls_scan *scan, const ls_totals *add);
void ls_adopt_file(ls_scan *scan, uint32_t file, uint32_t lines, uint64_t bytes, int complete);
void ls_adopt_stream(ls_scan *scan, uint32_t stream, uint64_t lines);
/* The host of each process: equal numbers are the same host. */
void ls_adopt_hosts(ls_scan *scan, const uint32_t *host_of, size_t n);
/* Which of these events, in their order, a scan of all files keeps; lines: of each. Counts those that it drops. */
void ls_admit(ls_scan *scan, const ls_event *events, const uint32_t *lines, size_t n, uint8_t *kept);
typedef struct ls_replay ls_replay;
/* The numbers in a part's records, and what they are in the whole. data and the arrays must live as long. */
ls_replay *ls_replay_new(ls_scan *scan, const char *data, size_t n, const int32_t *procs, size_t nprocs,
                         const int32_t *threads, size_t nthreads, const uint32_t *files, size_t nfiles);
void ls_replay_free(ls_replay *replay);
/* Replays up to a number of records since the beginning. Returns 0, -1 if the data are no such records. */
int ls_replay_to(ls_replay *replay, uint64_t records);
