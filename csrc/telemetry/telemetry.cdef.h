/* cffi reads this file as it is: declarations only, no preprocessor lines.
 *
 * The consumer of the profiler's windows: finds the record files of a directory, takes windows, aggregates.
 * Single-threaded. Sums cover the time since the last psm_tel_take_*; callers that need totals add them up. All times
 * are ns (points in time: CLOCK_MONOTONIC), sizes are bytes. Ranks are those of the communicator; -1 means "unknown"
 * everywhere. */

struct psm_tel;

/* consume 1: takes windows (files are locked: one consumer each; files of another consumer are skipped and counted). 0:
 * only looks and changes nothing: each poll sees every live row once. directory NULL: the record directory of this
 * user. Returns NULL on failure; error says why. */
struct psm_tel *psm_tel_open(const char *directory, int consume, char *error, size_t size);
void psm_tel_close(struct psm_tel *tel);

struct psm_tel_settings {
    uint64_t interval_ns; /* a FILLING window older than this is closed; 0: the plugin's setting */
    uint64_t force_ns;    /* a CLOSING one older than this is taken as it is; 0: the plugin's setting */
    /* Operations kept for spans, per take (at most 1024): first the slowest of their kind, failed and open ones; a
     * quarter is a random sample. If possible, all ranks of this host are kept for a collective. */
    uint32_t spans;
    uint32_t rows; /* raw rows kept per take (psm_tel_take_rows); 0: none */
    uint32_t keys; /* maximum number of keys of each aggregate; the rest is summed under the key "other"; 0: 4096 */
    uint32_t reserved;
};
void psm_tel_set(struct psm_tel *tel, const struct psm_tel_settings *settings);

/* Looks for new files, dead owners and windows that are ready, and takes them. final 1: takes everything, by force.
 * Returns the number of windows taken, -1: no memory. Never blocks; final 1 waits up to 0.2 s for a thread that is
 * starting an event in a window that is taken by force. */
int psm_tel_poll(struct psm_tel *tel, int final);

/* ---- communicators ---- */

struct psm_tel_comm {
    uint64_t comm_hash, begin_ns, end_ns;
    uint64_t windows, forced; /* taken since the start */
    uint64_t events;          /* rows taken since the start, except PSM_PROF_LATE: begun minus lost */
    uint64_t begun, dropped_full, dropped_memory, overwritten, carried, incomplete;
    uint64_t bad_handle, stale_handle, stopped_twice, state_after_stop, never_stopped, foreign_parents;
    uint64_t
        torn; /* rows that were being started when their window was taken: their process died, or was not running */
    uint64_t last_ns; /* the newest start or stop seen */
    int32_t rank, nranks, nnodes, pid;
    uint32_t abi, mask, context, owner; /* owner: 0 alive, 1 dead, 2 unknown, 3 ended and closed its record */
    uint32_t busy;                      /* 1: another consumer has it */
    uint32_t id;                        /* number of the communicator here: the key of everything below */
    char name[64];
    char host[64];
    char file[256];
};
/* Lists the communicators; writes at most n, returns their number. Ended ones are returned once more by the next call
 * that has room for all after their last window, then dropped. */
size_t psm_tel_comms(struct psm_tel *tel, struct psm_tel_comm *out, size_t n);

/* What is missing from the results, since the start. */
struct psm_tel_losses {
    uint64_t spans;     /* operations that should be kept, without room */
    uint64_t span_rows; /* rows of kept operations beyond the limit per operation */
    uint64_t rows;      /* raw rows beyond settings.rows */
    uint64_t other;     /* events that were summed under "other" */
    uint64_t held;      /* open events without room to wait for their end */
    uint64_t files;     /* record files that are damaged */
    uint64_t orphans;   /* transfers of an unknown operation: they are counted in the links only */
    uint64_t sizes;     /* sizes of transfers without room: mode MIN of their link lacks them */
};
void psm_tel_losses(const struct psm_tel *tel, struct psm_tel_losses *out);

/* ---- aggregates ---- */

/* All psm_tel_take_* and psm_tel_open_now: n is the room; they return the total number, and if that is more than n,
 * they write nothing and take nothing. The entry that sums up those without a key has comm UINT32_MAX. */

/* count, sum, least, most, sum of squares (about 0) and buckets: bucket i counts values of 2^i .. 2^(i+1)-1; 0 is in
 * bucket 0. */
struct psm_tel_stat {
    uint64_t count;
    double sum, squares;
    uint64_t least, most;
    uint32_t bucket[48];
};

/* Collectives and p2p. How their end was detected: by proxy ops (libpsm reports its copies as such), kernel channels,
 * CE events, or only that they were enqueued. */
struct psm_tel_op {
    uint32_t comm, type;                             /* 1 coll, 2 p2p, 12 CE coll */
    uint8_t func, algo, proto, datatype;             /* enum psm_prof_func ...; 255: not given */
    int32_t peer;                                    /* p2p; otherwise -1 */
    uint32_t by_proxy, by_kernel, by_ce, by_enqueue; /* number of ends by each way of detection */
    uint32_t incomplete;                             /* never ended, or the events of their parts were lost */
    uint32_t channels;                               /* maximum */
    uint32_t other;                                  /* 1: the sum of those without a key */
    uint32_t pad;
    struct psm_tel_stat bytes;    /* count times the size of the type; 0 if the type is unknown */
    struct psm_tel_stat duration; /* START -> completion */
    /* Steps per op; duration of each step. Of the sending side; of the receiving one if the op is a Recv. */
    struct psm_tel_stat transfers, transfer_bytes, transfer_time;
};
size_t psm_tel_take_ops(struct psm_tel *tel, struct psm_tel_op *out, size_t n);

/* Transfers of one direction between two ranks over one channel (channel -1: all). A transfer is a step of a send, from
 * the start of its send wait to its stop; on the receiving side from its receive wait to its stop. x: bytes, y: ns. */
struct psm_tel_link {
    uint32_t comm;
    int32_t rank, peer, channel;
    uint32_t sends; /* 1: rank sends to peer */
    uint32_t other;
    uint64_t count, bytes, time;
    double sx, sy, sxx, sxy, syy; /* mode AVG: all points; mergeable by addition */
    double mx, my, mxx, mxy, myy; /* mode MIN: for each size the least time; only over all channels */
    uint64_t mcount;
    uint64_t wait[4];            /* ns in GPU, peer, network, flush states */
    struct psm_tel_stat latency; /* of transfers, ns */
};
size_t psm_tel_take_links(struct psm_tel *tel, struct psm_tel_link *out, size_t n);

/* latency ns (intercept), rate bytes/ns (1 / slope), r2. why: what makes the line implausible, see psm_tel_fit_why. */
struct psm_tel_fit {
    double latency, rate, r2;
    int why;
};
enum psm_tel_fit_why {
    PSM_TEL_FIT_GOOD,
    PSM_TEL_FIT_ONE_SIZE, /* fewer than two sizes: there is no line, and all numbers are 0. Of the others: */
    PSM_TEL_FIT_FALLING,  /* larger transfers take no longer */
    PSM_TEL_FIT_RATE,     /* the slope is that of more than 4 TB/s: no link has that */
    PSM_TEL_FIT_LATENCY,  /* below 0 */
    PSM_TEL_FIT_SCATTER,  /* r2 is below 0.5: the size explains less than half of the differences */
    PSM_TEL_FIT_WHYS
};
void psm_tel_fit(double n, double sx, double sy, double sxx, double sxy, double syy, struct psm_tel_fit *fit);

/* Proxy thread, kernel channels, network events, groups, API events: how long, how often. what: enum psm_prof_type
 * (UINT32_MAX: other); sub: for proxy ctrl 0 idle, 1 active, 2 sleep, 3 append; for net the id; for a phase of a kernel
 * its id; else 0. NCCL marks only
 * when the proxy thread becomes idle and active: the times are those between the marks. Kernel channels: by the GPU's
 * timer, if it was given. Phases of kernels: by the GPU's timer only. bytes: of network events of NCCL's own plugins;
 * the appended bytes for append. */
struct psm_tel_span_stat {
    uint32_t comm, what;
    int64_t sub;
    uint64_t bytes;
    struct psm_tel_stat duration;
};
size_t psm_tel_take_times(struct psm_tel *tel, struct psm_tel_span_stat *out, size_t n);

/* ---- single operations ---- */

enum psm_tel_by {
    PSM_TEL_BY_NOTHING, /* it is open, or some of its parts were lost */
    PSM_TEL_BY_PROXY,
    PSM_TEL_BY_KERNEL,
    PSM_TEL_BY_CE,
    PSM_TEL_BY_ENQUEUE
};

/* A row as the plugin wrote it, with what the consumer knows about it. Rows of one operation are contiguous, parents
 * before children; root is the index of its first row.
 *
 * begin_ns, end_ns: when the event began and ended; end_ns 0: it is open, or its end is not known. A collective, send
 * or receive ends with its kernel channels, by the GPU's timer if all of them have it; else with the last proxy op or
 * kernel channel, as the host saw it; one that has neither when it was enqueued. Kernel channels and their phases begin
 * and end by the GPU's timer, or by the host's clock if it gave none. */
struct psm_tel_row {
    uint64_t handle, start_ns;
    uint32_t comm, root;
    int32_t tid;
    uint32_t why; /* spans: 1 slowest, 2 open for too long, 3 sampled at random, 4 incomplete */
    uint64_t begin_ns, end_ns;
    uint32_t by; /* enum psm_tel_by, of operations */
    uint32_t reserved;
    unsigned char event[104]; /* struct psm_prof_event */
};
/* Fills in these three of rows that an older reader has kept, by the rows alone. */
void psm_tel_row_times(struct psm_tel_row *rows, size_t n);
/* Operations kept for spans: trees from group (or API event) down to steps. */
size_t psm_tel_take_spans(struct psm_tel *tel, struct psm_tel_row *out, size_t n);
/* All rows of the windows that were taken, up to settings.rows; adds the number of further ones to *dropped. */
size_t psm_tel_take_rows(struct psm_tel *tel, struct psm_tel_row *out, size_t n, uint64_t *dropped);

/* Open events, in windows that are not taken yet and among the held ones: the oldest first. */
size_t psm_tel_open_now(struct psm_tel *tel, struct psm_tel_row *out, size_t n);

/* Writes the event mask that NCCL should use into the communicator's file; -1: the file is gone or not ours. */
int psm_tel_set_mask(struct psm_tel *tel, uint32_t comm, uint32_t mask);
