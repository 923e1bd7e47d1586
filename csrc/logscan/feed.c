/* Bytes to lines, lines to the scan. Lines are read in two steps: what a line says by itself (parse.c), then what it
 * means for its process, in the order of the lines. */
#include "lines.h"

enum { LINES = 32 }; /* that are read before they are passed on */

static inline ls_ref next_line(struct ls_scan *scan, struct ls_file *f, uint32_t file, uint64_t offset)
{
    scan->totals.lines++;
    return (ls_ref){.file = file, .line = ++f->line, .offset = offset, .seq = ++scan->streams.at[f->stream].seq};
}

/* A line that was carried over from bytes before. */
static void carried_line(struct ls_scan *scan, struct ls_file *f, uint32_t file, bool cut)
{
    ls_ref ref = next_line(scan, f, file, f->start);
    ls_on_line(scan, &ref, f->stream, f->carry, f->carried, cut);
}

static void carry(struct ls_scan *scan, struct ls_file *f, uint32_t file, const char *s, size_t n)
{
    size_t room = LS_LINE_MAX - f->carried, take = n < room ? n : room;
    if (f->skipping) return;
    if (f->carried + take > f->carry_cap) {
        f->carry_cap = (uint32_t)(f->carried + take + 256);
        f->carry = ls_realloc(f->carry, f->carry_cap);
    }
    if (take) memcpy(f->carry + f->carried, s, take);
    f->carried += (uint32_t)take;
    if (take < n) {
        scan->totals.cut++;
        carried_line(scan, f, file, true);
        f->carried = 0;
        f->skipping = true;
    }
}

/* Loads where the call of a line is noted. Returns the hash of the call, 0: it is about none. */
static uint32_t load_slot(const struct ls_scan *scan, const struct ls_line *line, const struct ls_capture *fields,
                          int32_t proc)
{
    const struct ls_pattern *pat = &scan->cat->patterns.at[line->pattern - 1];
    const struct ls_message *m = &scan->cat->messages.at[pat->message];
    if (m->role < LS_RPC_SERVED || m->role > LS_RPC_DEQUEUED || m->role == LS_RPC_BEGUN) return 0;
    int slot = m->role_field[F_OP];
    if (slot < 0 || !(pat->present & 1ull << slot)) return 0;
    uint32_t hash = ls_rpc_hash(proc, fields[line->fields + (uint32_t)slot].value);
    ls_rpc_load_slot(scan->rpc, hash);
    return hash;
}

/* Of thousands of processes, what is known of one is rarely in a near cache when its next line comes: loads it for all
 * lines before the first is read, so that the processor waits once and not for each. */
static void load_ahead(const struct ls_scan *scan, struct ls_line *lines, uint32_t n, const struct ls_capture *fields)
{
    const struct ls_index *index = &scan->prefix_index;
    if (!index->slot) return;
    for (uint32_t i = 0; i < n; i++) __builtin_prefetch(&index->slot[lines[i].hash & index->mask]);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = lines[i].hash & index->mask;
        lines[i].prefix = lines[i].tag == LS_NONE ? LS_NONE : ls_index_find(index, lines[i].hash, &at);
        if (lines[i].prefix == LS_NONE) continue;
        __builtin_prefetch(&scan->prefixes.at[lines[i].prefix]);
        __builtin_prefetch((const char *)&scan->prefixes.at[lines[i].prefix] + 64);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (lines[i].prefix == LS_NONE) continue;
        const struct ls_remembered *p = &scan->prefixes.at[lines[i].prefix];
        __builtin_prefetch(&scan->threads.at[p->thread], 1);
        __builtin_prefetch((char *)&scan->threads.at[p->thread] + 64, 1);
        __builtin_prefetch(&scan->procs.at[p->proc].lines, 1);
        __builtin_prefetch(&scan->procs.at[p->proc].last, 1);
        __builtin_prefetch(&scan->states.at[p->proc], 1);
        ls_rpc_load_ahead(scan->rpc, p->proc, p->thread);
        if (lines[i].pattern) lines[i].call = load_slot(scan, &lines[i], fields, p->proc);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (lines[i].prefix == LS_NONE || !lines[i].pattern) continue;
        const struct ls_proc_state *state = &scan->states.at[scan->prefixes.at[lines[i].prefix].proc];
        uint32_t place = scan->number_of[scan->cat->patterns.at[lines[i].pattern - 1].message] - 1;
        lines[i].count = place < state->counted ? &state->count_of[place] : NULL;
        if (lines[i].count) __builtin_prefetch(lines[i].count);
        if (lines[i].call) ls_rpc_load_call(scan->rpc, lines[i].call);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (lines[i].prefix == LS_NONE || !lines[i].pattern || !lines[i].count || !*lines[i].count) continue;
        const ls_count *count = &scan->counts.at[*lines[i].count - 1];
        __builtin_prefetch(&count->count, 1);
        __builtin_prefetch(&count->last, 1);
        __builtin_prefetch((const char *)(count + 1) - 1, 1);
    }
}

/* The common line: no escape sequence, a known prefix, a predicted message. Returns false, without any effect, for all
 * others. */
static inline bool common_line(struct ls_scan *scan, const ls_ref *ref, uint32_t stream, const struct ls_line *line,
                               const struct ls_capture *fields)
{
    if (!line->pattern) return false;
    struct ls_record rec;
    rec.stream = stream;
    if (!remembered(scan, &rec, line->s, line->tag, line->hash) || rec.thread < 0) return false;
    rec.ref = *ref;
    rec.level = LS_INFO;
    rec.where = rec.time = NULL;
    rec.where_len = rec.time_len = 0;
    rec.repeated = 1;
    end_torn(scan, &scan->files.at[ref->file]);
    touch(scan, &rec);
    struct ls_match m;
    m.field = fields + line->fields;
    ls_fill_match(scan->cat, &scan->cat->patterns.at[line->pattern - 1], line->s + line->tag + LS_INFO_TAG,
                  line->s + line->end, &m);
    ls_on_match(scan, &rec, &m);
    return true;
}

/* Passes on n lines, which follow each other. offset: of the first. */
static void book_lines(struct ls_scan *scan, struct ls_file *f, uint32_t file, uint64_t offset, struct ls_line *lines,
                       uint32_t n, const struct ls_capture *fields)
{
    enum { FEW = 1024 }; /* prefixes that stay in a near cache */
    if (scan->prefixes.n > FEW) load_ahead(scan, lines, n, fields);
    const char *first = lines->s;
    for (uint32_t i = 0; i < n; i++) {
        const struct ls_line *line = &lines[i];
        ls_ref ref = next_line(scan, f, file, offset + (uint64_t)(line->s - first));
        if (!common_line(scan, &ref, f->stream, line, fields))
            ls_on_line(scan, &ref, f->stream, line->s, line->n, line->cut);
        scan->totals.cut += line->cut;
    }
}

/* Reads the lines that end before e; returns what follows them. */
static const char *whole_lines(struct ls_scan *scan, struct ls_file *f, uint32_t file, const char *p, const char *e)
{
    struct ls_line lines[LINES];
    struct ls_capture fields[LINES * LS_FIELDS + 1];
    struct ls_cursor c;
    uint32_t n;
    ls_cursor_at(&c, p, e);
    while ((n = scan->parser.next(&scan->parser, f->stream, &c, lines, LINES, fields)) != 0)
        book_lines(scan, f, file, f->offset + (uint64_t)(lines->s - p), lines, n, fields);
    return c.line;
}

struct ls_ahead {
    struct ls_parser parser;
    const char *data;
    size_t n, rest; /* bytes, and where the last whole line ends */
    LS_VEC(struct ls_line) lines;
    LS_VEC(struct ls_capture) fields;
    uint64_t taught;
};

ls_ahead *ls_ahead_new(const ls_catalogue *cat, int mode)
{
    struct ls_ahead *a = ls_zalloc(sizeof *a);
    ls_parser_begin(&a->parser, cat, !(mode & 1));
    a->parser.guesses = ls_guesses_new();
    return a;
}

void ls_ahead_free(ls_ahead *a)
{
    if (!a) return;
    ls_guesses_free(a->parser.guesses);
    LS_FREE(a->lines.at, a->fields.at, a);
}

/* The messages that nobody predicted: their next lines will be. A log of unknown lines is not searched twice as a
 * whole.
 */
static void teach(struct ls_ahead *a, const struct ls_line *lines, uint32_t n)
{
    enum { MOST = 1024, SELDOM = 32 };
    for (uint32_t i = 0; i < n; i++) {
        struct ls_match m;
        const struct ls_line *l = &lines[i];
        uint32_t low = l->tag + LS_INFO_TAG;
        if (l->pattern || l->tag == LS_NONE || l->end <= low) continue;
        if (++a->taught > MOST && a->taught % SELDOM) continue;
        if (ls_match(a->parser.cat, LS_WHERE_NCCL, l->s + low, l->end - low, false, &m))
            ls_expect(a->parser.cat, a->parser.guesses, l->s + low, l->end - low, &m);
    }
}

static void make_room(void **at, uint32_t *cap, uint32_t least, size_t size)
{
    if (*cap >= least) return;
    *cap = least + least / 2;
    *at = ls_realloc(*at, *cap * size);
}

void ls_read_ahead(ls_ahead *a, uint32_t stream, const char *data, size_t n)
{
    struct ls_cursor c;
    uint32_t more;
    a->data = data;
    a->n = n;
    a->lines.n = a->fields.n = 0;
    ls_cursor_at(&c, data, data + n);
    do {
        make_room((void **)&a->lines.at, &a->lines.cap, a->lines.n + LINES, sizeof *a->lines.at);
        make_room((void **)&a->fields.at, &a->fields.cap, a->fields.n + LINES * LS_FIELDS + 1, sizeof *a->fields.at);
        struct ls_line *lines = a->lines.at + a->lines.n;
        more = a->parser.next(&a->parser, stream, &c, lines, LINES, a->fields.at + a->fields.n);
        teach(a, lines, more);
        uint32_t used = 0;
        if (more && lines[more - 1].pattern)
            used = a->parser.cat->patterns.at[lines[more - 1].pattern - 1].room[a->parser.lean];
        if (more) used += lines[more - 1].fields;
        for (uint32_t i = 0; i < more; i++) lines[i].fields += a->fields.n;
        a->fields.n += used;
        a->lines.n += more;
    } while (more);
    a->rest = (size_t)(c.line - data);
}

/* Passes on lines that were read; returns what follows them. */
static const char *lines_ahead(struct ls_scan *scan, struct ls_file *f, uint32_t file, const struct ls_ahead *a,
                               const char *p)
{
    for (uint32_t i = p > a->data; i < a->lines.n; i += LINES) { /* the first one was carried over */
        uint32_t n = a->lines.n - i < LINES ? a->lines.n - i : LINES;
        struct ls_line *lines = a->lines.at + i;
        book_lines(scan, f, file, f->offset + (uint64_t)(lines->s - p), lines, n, a->fields.at);
    }
    return a->data + a->rest;
}

/* ahead: the lines of these bytes, NULL: they were not read. */
static void feed(struct ls_scan *scan, uint32_t file, const char *data, size_t n, const struct ls_ahead *ahead)
{
    struct ls_file *f = &scan->files.at[file];
    const char *p = data, *e = data + n;
    scan->totals.bytes += n;
    if (!n) return;
    f->complete = e[-1] == '\n';
    if (f->carried || f->skipping) {
        const char *nl = memchr(p, '\n', n);
        size_t part = nl ? (size_t)(nl - p) : n;
        f->offset += part;
        carry(scan, f, file, p, part);
        if (!nl) return;
        if (!f->skipping) carried_line(scan, f, file, false);
        f->carried = 0;
        f->skipping = false;
        f->offset++;
        p = nl + 1;
    }
    const char *rest = ahead ? lines_ahead(scan, f, file, ahead, p) : whole_lines(scan, f, file, p, e);
    f->offset += (uint64_t)(rest - p);
    if (rest < e) {
        f->start = f->offset;
        f->offset += (uint64_t)(e - rest);
        carry(scan, f, file, rest, (size_t)(e - rest));
    }
}

void ls_feed(ls_scan *scan, uint32_t file, const char *data, size_t n)
{
    feed(scan, file, data, n, NULL);
}

void ls_feed_ahead(ls_scan *scan, uint32_t file, const ls_ahead *ahead)
{
    feed(scan, file, ahead->data, ahead->n, ahead);
}

void ls_end_file(ls_scan *scan, uint32_t file)
{
    struct ls_file *f = &scan->files.at[file];
    if (f->carried) carried_line(scan, f, file, true);
    end_torn(scan, f);
    ls_end_wrapped(scan, &f->wrapped);
    f->carried = 0;
    f->skipping = false;
    free(f->carry);
    f->carry = NULL;
    f->carry_cap = 0;
}
