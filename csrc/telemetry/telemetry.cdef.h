/* Read by cffi as it stands: declarations only and no preprocessor lines.
 *
 * The consumer of the profiler's windows: finds the record files of a directory, takes windows, aggregates. One thread.
 * Sums are since the last psm_tel_take_*; whoever wants totals adds them up. All times are ns (CLOCK_MONOTONIC for
 * points), sizes bytes. Ranks are of the communicator; -1 is "not known" everywhere. */

struct psm_tel;

/* consume 1: windows are taken (the files are locked: one consumer each; those that another has are passed over and
 * counted). 0: looks at what is there, changes nothing: each poll sees every live row once. directory NULL: the record
 * directory of this user. NULL: no; error says why. */
struct psm_tel *psm_tel_open(const char *directory, int consume, char *error, size_t size);
void psm_tel_close(struct psm_tel *tel);

struct psm_tel_settings {
    uint64_t interval_ns; /* a FILLING window that is older is closed; 0: as the plugin's setting */
    uint64_t force_ns;    /* a CLOSING one that is older is taken as it is; 0: as the plugin's setting */
    /* Operations that are kept for spans, a take (at most 1024): the slowest of their kind, failing and open ones
     * first; a quarter of them at random. Of a collective all ranks of this host are kept where that can be. */
    uint32_t spans;
    uint32_t rows; /* raw rows that are kept, a take (psm_tel_take_rows); 0: none */
    uint32_t keys; /* most keys of each aggregate; what is beyond them is summed under the key "other"; 0: 4096 */
    uint32_t reserved;
};
void psm_tel_set(struct psm_tel *tel, const struct psm_tel_settings *settings);

/* Looks for new files, dead owners and windows that are ready, and takes them. final 1: takes all that is there, by
 * force. Returns how many windows were taken, -1: no memory. Never blocks; final 1 waits up to 0.2 s for a thread that
 * is starting an event in a window that is taken by force. */
int psm_tel_poll(struct psm_tel *tel, int final);

/* ---- communicators ---- */

struct psm_tel_comm {
    uint64_t comm_hash, begin_ns, end_ns;
    uint64_t windows, forced; /* taken since the start */
    uint64_t events;          /* rows taken since the start, but for PSM_PROF_LATE: begun less what was lost */
    uint64_t begun, dropped_full, dropped_memory, overwritten, carried, incomplete;
    uint64_t bad_handle, stale_handle, stopped_twice, state_after_stop, never_stopped, foreign_parents;
    uint64_t torn;    /* rows that were being begun when their window was taken: their process died, or did not run */
    uint64_t last_ns; /* the newest start or stop that was seen */
    int32_t rank, nranks, nnodes, pid;
    uint32_t abi, mask, context, owner; /* owner: 0 alive, 1 dead, 2 unknown, 3 ended and closed its record */
    uint32_t busy;                      /* 1: another consumer has it */
    uint32_t id;                        /* number of the communicator here: the key of all below */
    char name[64];
    char host[64];
    char file[256];
};
/* Those that there are; at most n are written, the number there are is returned. Those that ended are told once more by
 * the next call that has room for all after their last window, then forgotten. */
size_t psm_tel_comms(struct psm_tel *tel, struct psm_tel_comm *out, size_t n);

/* What was not told, since the start. */
struct psm_tel_losses {
    uint64_t spans;     /* operations that were to be kept, and found no place */
    uint64_t span_rows; /* rows of kept operations beyond the most of one */
    uint64_t rows;      /* raw rows beyond settings.rows */
    uint64_t other;     /* events that were summed under "other" */
    uint64_t held;      /* open events that found no place to wait for their end */
    uint64_t files;     /* record files that are damaged */
    uint64_t orphans;   /* transfers whose operation is not known: they are in the links only */
};
void psm_tel_losses(const struct psm_tel *tel, struct psm_tel_losses *out);

/* ---- aggregates ---- */

/* All psm_tel_take_* and psm_tel_open_now: n is the room; how many there are is returned, and where that is more than
 * n, nothing is written and nothing is taken. The one that is the sum of those without a key has comm UINT32_MAX. */

/* count, sum, least, most, sum of squares (about 0) and buckets: bucket i counts values of 2^i .. 2^(i+1)-1; 0 is in
 * bucket 0. */
struct psm_tel_stat {
    uint64_t count;
    double sum, squares;
    uint64_t least, most;
    uint32_t bucket[48];
};

/* Collectives and p2p. How their end was known: by proxy ops (libpsm tells its copies as such), kernel channels, CE
 * events, or only that they were enqueued. */
struct psm_tel_op {
    uint32_t comm, type;                             /* 1 coll, 2 p2p, 12 CE coll */
    uint8_t func, algo, proto, datatype;             /* enum psm_prof_func ...; 255: not given */
    int32_t peer;                                    /* p2p; -1 else */
    uint32_t by_proxy, by_kernel, by_ce, by_enqueue; /* how many ended how */
    uint32_t incomplete;                             /* were open when they were taken and did not come back */
    uint32_t channels;                               /* most */
    uint32_t other;                                  /* 1: the sum of those for which there was no key */
    uint32_t pad;
    struct psm_tel_stat bytes;    /* count times the size of the type; nothing where the type is not known */
    struct psm_tel_stat duration; /* START -> completion */
    /* Steps of an op; of each step. Of the sending side; of the receiving one where the op is a Recv. */
    struct psm_tel_stat transfers, transfer_bytes, transfer_time;
};
size_t psm_tel_take_ops(struct psm_tel *tel, struct psm_tel_op *out, size_t n);

/* Transfers of one direction between two ranks over one channel (channel -1: all). A transfer is a step of a send: from
 * the begin of its send wait to its stop; on the receiving side from its receive wait to its stop. x: bytes, y: ns. */
struct psm_tel_link {
    uint32_t comm;
    int32_t rank, peer, channel;
    uint32_t sends; /* 1: rank sends to peer */
    uint32_t other;
    uint64_t count, bytes, time;
    double sx, sy, sxx, sxy, syy; /* mode AVG: all points; mergeable by addition */
    double mx, my, mxx, mxy, myy; /* mode MIN: for each size (log2 eighths) the least time */
    uint64_t mcount;
    uint64_t wait[4];            /* ns in GPU, peer, network, flush states */
    struct psm_tel_stat latency; /* of transfers, ns */
};
size_t psm_tel_take_links(struct psm_tel *tel, struct psm_tel_link *out, size_t n);

/* latency ns (intercept), rate bytes/ns (1 / slope), r2; 0: fewer than two sizes, or a slope that is not positive. */
struct psm_tel_fit {
    double latency, rate, r2;
    int good;
};
void psm_tel_fit(double n, double sx, double sy, double sxx, double sxy, double syy, struct psm_tel_fit *fit);

/* Proxy thread, kernel channels, network events, groups, API events: how long, how often. what: enum psm_prof_type
 * (UINT32_MAX: other); sub: for proxy ctrl 0 idle, 1 active, 2 sleep, 3 append; for net the id; else 0. NCCL marks only
 * when the proxy thread becomes idle and active: their times are those between the marks. Kernel channels: by the GPU's
 * timer, where it was given. bytes: of network events of NCCL's own plugins; what was appended for append. */
struct psm_tel_span_stat {
    uint32_t comm, what;
    int64_t sub;
    uint64_t bytes;
    struct psm_tel_stat duration;
};
size_t psm_tel_take_times(struct psm_tel *tel, struct psm_tel_span_stat *out, size_t n);

/* ---- single operations ---- */

/* A row as the plugin wrote it, with what the consumer knows of it. Rows of one operation stand together, parents
 * before children; root is the index of the first row of it. */
struct psm_tel_row {
    uint64_t handle, start_ns;
    uint32_t comm, root;
    int32_t tid;
    uint32_t why;             /* spans: 1 slowest, 2 open for too long, 3 sampled at random, 4 incomplete */
    unsigned char event[104]; /* struct psm_prof_event */
};
/* Operations that were kept for spans: trees from group (or API event) down to steps. */
size_t psm_tel_take_spans(struct psm_tel *tel, struct psm_tel_row *out, size_t n);
/* All rows of the windows that were taken, up to settings.rows; how many more there were is added to *dropped. */
size_t psm_tel_take_rows(struct psm_tel *tel, struct psm_tel_row *out, size_t n, uint64_t *dropped);

/* What is open now, in windows that are not taken yet and among the carried: the oldest first. */
size_t psm_tel_open_now(struct psm_tel *tel, struct psm_tel_row *out, size_t n);

/* Writes what NCCL shall be asked for into the communicator's file; -1: it is gone or not ours. */
int psm_tel_set_mask(struct psm_tel *tel, uint32_t comm, uint32_t mask);
