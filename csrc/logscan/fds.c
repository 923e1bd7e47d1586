/* Exchanges of file descriptors over Unix domain sockets, by their 64-bit id: asked, received, answered, done. */
#include "scanner.h"

enum { ASKED = 1, GOT = 2, ANSWERED = 4, DONE = 8, ALL = 15, GONE = 16 };

struct exchange {
    ls_fd fd;
    uint32_t hash, flags;
};

struct ls_fds {
    LS_VEC(struct exchange) at;
    LS_VEC(uint32_t) unused;
    struct ls_index index;
    uint32_t done;  /* finished entries that wait for a line of the other side */
    uint32_t alone; /* finished entries in the result of which only the client printed lines */
    LS_VEC(ls_fd) out;
    uint64_t *recent;         /* ids of complete exchanges, by hash: the newest for each slot */
    LS_VEC(uint32_t) last_of; /* by thread: index + 1 of its newest finished exchange */
    LS_VEC(ls_fd) last;       /* fd is -1 after its handle was printed */
};
enum { RECENT = 1 << 14, MOST_ALONE = 4096 };

struct ls_fds *ls_fds_new(void)
{
    return ls_zalloc(sizeof(struct ls_fds));
}

/* Frees what only reading needs. */
static void forget(struct ls_fds *f)
{
    ls_drop(&f->at);
    ls_drop(&f->unused);
    ls_drop(&f->last_of);
    ls_drop(&f->last);
    ls_index_drop(&f->index);
    free(f->recent);
    f->recent = NULL;
}

void ls_fds_free(struct ls_fds *f)
{
    forget(f);
    free(f->out.at);
    free(f);
}

/* A line that was cut inside a number shows its first digits. */
static bool same_handle(uint64_t a, uint64_t b)
{
    if (!a || !b) return true;
    while (a > b) a >>= 4;
    while (b > a) b >>= 4;
    return a == b;
}

static bool mixed(const ls_fd *d)
{
    return !same_handle(d->wanted, d->read) || !same_handle(d->wanted, d->sent) || !same_handle(d->read, d->sent);
}

static void retire(struct ls_scan *scan, uint32_t at, bool ended)
{
    struct ls_fds *f = scan->fds;
    struct exchange *x = &f->at.at[at];
    const ls_fd *d = &x->fd;
    scan->totals.fds_matched++;
    if (!f->recent) f->recent = ls_zalloc(RECENT * sizeof *f->recent);
    f->recent[x->hash % RECENT] = d->op;
    if (d->asked.line && scan->files.at[d->asked.file].stream == scan->files.at[d->done.file].stream &&
        d->done.seq > d->asked.seq && d->done.seq - d->asked.seq > scan->totals.max_fd_age)
        scan->totals.max_fd_age = d->done.seq - d->asked.seq;
    /* at the end no line of the server can follow: it printed none, or its log lacks them */
    bool alone = ended && (x->flags & ALL) == (ASKED | DONE) && f->alone < MOST_ALONE;
    f->alone += alone;
    if (scan->keep_calls || mixed(d) || alone) *ls_push(&f->out) = *d;
    ls_index_del(&f->index, x->hash, at);
    x->flags = GONE;
    *ls_push(&f->unused) = at;
}

/* Some releases do not print all stages: do not keep finished exchanges for ever for a line that never comes. */
static void purge(struct ls_scan *scan, bool ended)
{
    struct ls_fds *f = scan->fds;
    for (uint32_t i = 0; i < f->at.n; i++)
        if (!(f->at.at[i].flags & GONE) && (f->at.at[i].flags & DONE)) retire(scan, i, ended);
    f->done = 0;
}

static struct exchange *known(struct ls_scan *scan, uint64_t op)
{
    struct ls_fds *f = scan->fds;
    uint32_t hash = ls_fold(ls_mix(20, op));
    for (LS_EACH(&f->index, hash, e))
        if (f->at.at[e].fd.op == op) return &f->at.at[e];
    return NULL;
}

static struct exchange *add(struct ls_scan *scan, uint64_t op)
{
    struct ls_fds *f = scan->fds;
    uint32_t hash = ls_fold(ls_mix(20, op));
    if (f->at.n - f->unused.n >= LS_MAX_ITEMS) {
        scan->totals.dropped_items++;
        return NULL;
    }
    uint32_t at = f->at.n;
    if (f->unused.n)
        at = f->unused.at[--f->unused.n];
    else
        ls_push(&f->at);
    f->at.at[at] = (struct exchange){.hash = hash,
                                     .fd = {.op = op,
                                            .client = -1,
                                            .server = -1,
                                            .rank = -1,
                                            .peer = -1,
                                            .fd = -1,
                                            .began = INT64_MIN,
                                            .ended = INT64_MIN}};
    ls_index_add(&f->index, hash, at);
    return &f->at.at[at];
}

/* A request that is repeated, because its answer was lost or late, is answered again: these lines follow a complete
 * exchange and are not an exchange of their own. A line that asks starts one, even if an id is reused. */
static bool repeats(const struct ls_scan *scan, uint64_t op, int role)
{
    const uint64_t *recent = scan->fds->recent;
    return recent && op != 0 && role != LS_FD_ASKED && recent[ls_fold(ls_mix(20, op)) % RECENT] == op;
}

static void learn(int64_t *to, const struct ls_match *m, int field)
{
    int64_t v = ls_role_int(m, field, -1);
    if (*to == -1) *to = v;
}

/* The client prints the handle after the exchange, without the id: the thread and the descriptor tell which one it was.
 */
static void finished(struct ls_fds *f, const struct ls_record *rec, const ls_fd *d)
{
    while (f->last_of.n <= (uint32_t)rec->thread) *ls_push(&f->last_of) = 0;
    uint32_t *at = &f->last_of.at[rec->thread];
    if (!*at) {
        ls_push(&f->last);
        *at = f->last.n;
    }
    f->last.at[*at - 1] = *d;
}

static void on_returned(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m)
{
    struct ls_fds *f = scan->fds;
    uint64_t handle;
    uint32_t at = (uint32_t)rec->thread < f->last_of.n ? f->last_of.at[rec->thread] : 0;
    if (!at || !ls_role_value(m, F_FD_HANDLE, &handle)) return;
    ls_fd *last = &f->last.at[at - 1];
    int64_t fd = ls_role_int(m, F_FD_FD, -1);
    if (fd < 0 || last->fd != fd || last->peer != ls_role_int(m, F_FD_PEER, -1)) return;
    last->fd = -1;
    struct exchange *x = known(scan, last->op);
    if (x) {
        x->fd.wanted = handle;
        x->fd.returned = rec->ref;
        return;
    }
    if (mixed(last) || scan->keep_calls) return; /* it is in the result already */
    ls_fd done = *last;
    done.fd = fd;
    done.wanted = handle;
    done.returned = rec->ref;
    if (mixed(&done) && f->out.n < LS_MAX_ITEMS) *ls_push(&f->out) = done;
}

void ls_fds_record(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m)
{
    enum { MOST_DONE = 1 << 16 };
    uint64_t op;
    if (m->message->role == LS_FD_RETURNED) {
        on_returned(scan, rec, m);
        return;
    }
    if (!ls_role_value(m, F_OP, &op)) return;
    struct exchange *x = known(scan, op);
    if (!x && repeats(scan, op, m->message->role)) return;
    if (!x) x = add(scan, op);
    if (!x) return;
    ls_fd *d = &x->fd;
    d->ended = ls_stamp_of(scan, rec);
    if (!x->flags) d->began = d->ended;
    switch (m->message->role) {
    case LS_FD_ASKED:
        x->flags |= ASKED;
        d->asked = rec->ref;
        d->client = rec->proc;
        learn(&d->rank, m, F_FD_RANK);
        learn(&d->peer, m, F_FD_PEER);
        break;
    case LS_FD_RECEIVED:
        x->flags |= GOT;
        d->received = rec->ref;
        d->server = rec->proc;
        learn(&d->rank, m, F_FD_RANK);
        ls_role_value(m, F_FD_HANDLE, &d->read);
        break;
    case LS_FD_ANSWERED:
        x->flags |= ANSWERED;
        d->answered = rec->ref;
        d->server = rec->proc;
        learn(&d->rank, m, F_FD_PEER);
        ls_role_value(m, F_FD_HANDLE, &d->sent);
        break;
    default:
        scan->fds->done += !(x->flags & DONE);
        x->flags |= DONE;
        d->done = rec->ref;
        d->client = rec->proc;
        learn(&d->rank, m, F_FD_RANK);
        learn(&d->peer, m, F_FD_PEER);
        d->fd = ls_role_int(m, F_FD_FD, -1);
        finished(scan->fds, rec, d);
    }
    if ((x->flags & ALL) == ALL) {
        scan->fds->done--;
        retire(scan, (uint32_t)(x - scan->fds->at.at), false);
    } else if (scan->fds->done > MOST_DONE)
        purge(scan, false);
}

void ls_fds_finish(struct ls_scan *scan)
{
    struct ls_fds *f = scan->fds;
    purge(scan, true);
    for (uint32_t i = 0; i < f->at.n; i++) {
        if (f->at.at[i].flags & GONE) continue;
        ls_fd *d = ls_push(&f->out);
        *d = f->at.at[i].fd;
        const ls_ref *newest = d->answered.line ? &d->answered : d->received.line ? &d->received : &d->asked;
        d->age = scan->streams.at[scan->files.at[newest->file].stream].seq - newest->seq;
    }
    forget(f);
}

void ls_fds_clear(struct ls_fds *f)
{
    f->out.n = 0;
}

const ls_fd *ls_fds(const ls_scan *scan, size_t *n)
{
    *n = scan->fds->out.n;
    return scan->fds->out.at;
}
