/* Bytes to lines, lines to the scan. Lines are read in two steps: what a line says by itself (parse.c), then what it
 * means for its process, in the order of the lines. */
#include "lines.h"
#include "matched.h"

enum { LINES = 32 }; /* that are read before they are passed on */

/* The place of the next line. It is copied soon, 16 bytes at a time: the processor would wait for smaller pieces to be
 * in memory, so the first 16 are written as one. */
static inline void next_line(struct ls_scan *scan, struct ls_file *f, uint32_t file, uint64_t offset, ls_ref *to)
{
    typedef uint64_t pair __attribute__((vector_size(16)));
    const uint32_t place[2] = {file, ++f->line};
    uint64_t low;
    scan->totals.lines++;
    memcpy(&low, place, sizeof low);
    pair both = {low, offset};
    memcpy(to, &both, sizeof both);
    to->seq = ++scan->streams.at[f->stream].seq;
}

/* A line that was carried over from bytes before. */
static void carried_line(struct ls_scan *scan, struct ls_file *f, uint32_t file, bool cut)
{
    ls_ref ref;
    next_line(scan, f, file, f->start, &ref);
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

/* Of thousands of processes, what is known of one is rarely in a near cache when its next line comes: loads it for all
 * lines before the first is booked, so that the processor waits once and not for each. */
static void load_ahead(const struct ls_scan *scan, const struct ls_line *lines, uint32_t n)
{
    const uint32_t *count[LINES];
    for (uint32_t i = 0; i < n; i++) {
        const struct ls_who *who = &lines[i].who;
        if (who->thread < 0) continue;
        __builtin_prefetch(&scan->threads.at[who->thread], 1);
        __builtin_prefetch(&scan->threads.at[who->thread].stream, 1);
        __builtin_prefetch(&scan->procs.at[who->proc], 1);
        __builtin_prefetch(&scan->procs.at[who->proc].stamp_seq, 1);
        __builtin_prefetch(&scan->states.at[who->proc], 1);
        ls_rpc_load_ahead(scan->rpc, who, lines[i].call, lines[i].type);
    }
    for (uint32_t i = 0; i < n; i++) {
        count[i] = NULL;
        if (lines[i].who.thread < 0) continue;
        const struct ls_proc_state *state = &scan->states.at[lines[i].who.proc];
        uint32_t place = scan->number_of[scan->cat->patterns.at[lines[i].pattern - 1].message] - 1;
        if (place < state->counted) __builtin_prefetch(count[i] = &state->count_of[place]);
        ls_rpc_load_call(scan->rpc, lines[i].call);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!count[i] || !*count[i]) continue;
        const ls_count *at = &scan->counts.at[*count[i] - 1];
        __builtin_prefetch(at, 1);
        __builtin_prefetch(&at->message, 1);
    }
}

/* Lines that were read, and with which prefixes. */
struct batch {
    struct ls_line *lines;
    uint32_t n;
    const struct ls_capture *fields;
    uint32_t age; /* of the prefixes */
};

/* A line of a prefix that was not known when it was read. */
static __attribute__((noinline)) const struct ls_who *recall(struct ls_scan *scan, uint32_t stream,
                                                             const struct ls_line *line)
{
    const struct ls_remembered *p = ls_recall(&scan->prefixes, stream, line->s, line->tag, line->hash);
    scan->missed += p != NULL;
    return p ? &p->who : NULL;
}

/* The common line: no escape sequence, a known prefix, a predicted message. Returns false, without any effect, for all
 * others. rec: its place, and what is the same in all common lines. */
static inline __attribute__((always_inline)) bool common_line(struct ls_scan *scan, const struct ls_file *f,
                                                              struct ls_record *rec, const struct batch *b,
                                                              const struct ls_line *line)
{
    if (!line->pattern) return false;
    const struct ls_who *who = &line->who;
    if ((who->thread < 0 || b->age != scan->prefixes.age) && !(who = recall(scan, rec->stream, line))) return false;
    ls_take_who(rec, who);
    end_torn(scan, f);
    touch(scan, f, rec);
    struct ls_match m;
    m.field = b->fields + line->fields;
    ls_fill_match(scan->cat, line->pattern - 1, line->s + line->tag + LS_INFO_TAG, line->s + line->end, &m);
    on_match(scan, rec, &m);
    return true;
}

/* Passes on lines that follow each other. offset: of the first. */
static void book_lines(struct ls_scan *scan, struct ls_file *f, uint32_t file, uint64_t offset, const struct batch *b)
{
    struct ls_record rec = {.stream = f->stream, .level = LS_INFO, .repeated = 1};
    if (scan->prefixes.at.n > LS_NEAR && b->age == scan->prefixes.age) load_ahead(scan, b->lines, b->n);
    const char *first = b->lines->s;
    for (uint32_t i = 0; i < b->n; i++) {
        const struct ls_line *line = &b->lines[i];
        next_line(scan, f, file, offset + (uint64_t)(line->s - first), &rec.ref);
        if (!common_line(scan, f, &rec, b, line)) ls_on_line(scan, &rec.ref, f->stream, line->s, line->n, line->cut);
        scan->totals.cut += line->cut;
    }
}

/* Reads the lines that end before e; returns what follows them. */
static const char *whole_lines(struct ls_scan *scan, struct ls_file *f, uint32_t file, const char *p, const char *e)
{
    struct ls_line lines[LINES];
    struct ls_capture fields[LINES * LS_FIELDS + 1];
    struct ls_cursor c;
    struct batch b = {.lines = lines, .fields = fields};
    ls_cursor_at(&c, p, e);
    for (;;) {
        b.age = scan->prefixes.age;
        b.n = scan->parser.next(&scan->parser, f->stream, &c, lines, LINES, fields);
        if (!b.n) return c.line;
        book_lines(scan, f, file, f->offset + (uint64_t)(lines->s - p), &b);
    }
}

struct ls_ahead {
    struct ls_parser parser;
    const char *data;
    size_t n, rest; /* bytes, and where the last whole line ends */
    LS_VEC(struct ls_line) lines;
    LS_VEC(struct ls_capture) fields;
    struct ls_prefixes none, *known; /* of the scan that gets the lines; NULL: none */
    uint64_t taught;
};

ls_ahead *ls_ahead_new(const ls_catalogue *cat, int mode)
{
    struct ls_ahead *a = ls_zalloc(sizeof *a);
    ls_parser_begin(&a->parser, cat, &a->none, !(mode & 1));
    a->parser.guesses = ls_guesses_new();
    return a;
}

void ls_ahead_free(ls_ahead *a)
{
    if (!a) return;
    ls_guesses_free(a->parser.guesses);
    ls_prefixes_leave(a->known);
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
    struct batch b = {.fields = a->fields.at, .age = a->parser.prefixes->age};
    for (uint32_t i = p > a->data; i < a->lines.n; i += LINES) { /* the first one was carried over */
        b.n = a->lines.n - i < LINES ? a->lines.n - i : LINES;
        b.lines = a->lines.at + i;
        book_lines(scan, f, file, f->offset + (uint64_t)(b.lines->s - p), &b);
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

/* Gives the prefixes to the lines that are read next: a new copy of them as soon as the old one has cost as much. */
static void share_prefixes(struct ls_scan *scan, struct ls_ahead *a)
{
    if (scan->missed > scan->prefixes.at.n / 2) {
        ls_prefixes_leave(scan->copy);
        scan->copy = ls_prefixes_copy(&scan->prefixes);
        scan->missed = 0;
    }
    if (!scan->copy || a->known == scan->copy) return;
    ls_prefixes_leave(a->known);
    a->parser.prefixes = a->known = scan->copy;
    __atomic_add_fetch(&scan->copy->users, 1, __ATOMIC_RELAXED);
}

void ls_feed_ahead(ls_scan *scan, uint32_t file, ls_ahead *ahead)
{
    feed(scan, file, ahead->data, ahead->n, ahead);
    share_prefixes(scan, ahead);
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
