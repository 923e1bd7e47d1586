/* Bytes to lines, lines to records. */
#define _GNU_SOURCE
#include "lines.h"

#include <ctype.h>

static void outside(struct ls_scan *scan, const struct ls_record *at, const char *s, uint32_t n, bool whole)
{
    struct ls_record rec = {.ref = at->ref,
                            .stream = at->stream,
                            .proc = -1,
                            .thread = -1,
                            .tag = at->tag,
                            .device = INT32_MIN,
                            .repeated = at->repeated};
    bool found = whole ? ls_match_outside(scan, &rec, s, n) : ls_match_inside(scan, &rec, s, n);
    if (!whole || found) return;
    scan->totals.other++;
    ls_match_other(scan, &rec, s, n);
}

static void damaged(struct ls_scan *scan, const struct ls_record *rec)
{
    if (rec->proc >= 0) scan->procs.at[rec->proc].damaged++;
}

/* The end of a text without Markdown's marks for bold, code and a line break. */
static uint32_t unmark(const char *s, uint32_t low, uint32_t high)
{
    while (high > low && (s[high - 1] == '*' || s[high - 1] == '`' || s[high - 1] == '\\')) high--;
    return ls_trim(s, low, high);
}

/* Ray folds equal lines of its workers: " [repeated 3x across cluster]". Returns the new end. */
static uint32_t repetition(const char *s, uint32_t low, uint32_t high, uint32_t *times)
{
    *times = 1;
    if (high - low < 26 || s[high - 1] != ']') return high;
    const char *at = memmem(s + low, high - low, " [repeated ", 11);
    if (!at) return high;
    uint32_t n = 0, k = (uint32_t)(at - s) + 11;
    while (k < high && isdigit((unsigned char)s[k]) && n < 1000000) n = n * 10 + (uint32_t)(s[k++] - '0');
    if (n == 0 || k >= high || s[k] != 'x') return high;
    *times = n;
    return ls_trim(s, low, (uint32_t)(at - s));
}

/* A record that ends within a pattern. The line after it may hold the rest: issue trackers and terminals wrap lines. */
struct ls_torn {
    struct ls_record rec; /* its texts are behind the message */
    uint32_t n, lines;    /* n == 0: no record waits */
    uint32_t first;       /* length of its own line */
    char text[LS_WRAP_MAX];
};

static void keep_torn(struct ls_scan *scan, const struct ls_record *rec, const char *s, uint32_t n)
{
    struct ls_file *f = &scan->files.at[rec->ref.file];
    size_t texts = (size_t)rec->where_len + rec->time_len;
    if (n + texts > LS_WRAP_MAX) return;
    if (!f->torn) f->torn = ls_zalloc(sizeof *f->torn);
    struct ls_torn *t = f->torn;
    t->rec = *rec;
    t->n = t->first = n;
    t->lines = 1;
    memcpy(t->text, s, n);
    char *end = t->text + LS_WRAP_MAX - texts;
    t->rec.where = rec->where_len ? memcpy(end, rec->where, rec->where_len) : NULL;
    t->rec.time = rec->time_len ? memcpy(end + rec->where_len, rec->time, rec->time_len) : NULL;
}

/* No line completes the torn record. A warning says what failed before it is cut; a tracker needs all of its fields. */
static void cut_short(struct ls_scan *scan, struct ls_torn *t)
{
    struct ls_match m;
    if (t->rec.level == LS_WARN && ls_match_cut(scan->cat, t->text, t->first, &m) && m.message->role == LS_NO_ROLE &&
        m.message->keep == LS_KEEP_ALL)
        ls_on_match(scan, &t->rec, &m);
    t->n = 0;
}

void ls_cut_torn(struct ls_scan *scan, struct ls_torn *torn)
{
    if (torn->n) cut_short(scan, torn);
}

/* Whether a line without a prefix completes the torn record above it: joined with or without a blank. */
static bool completes(struct ls_scan *scan, const ls_ref *ref, const char *s, uint32_t n)
{
    struct ls_torn *t = scan->files.at[ref->file].torn;
    if (!t || !t->n) return false;
    uint32_t before = t->n, room = LS_WRAP_MAX - t->rec.where_len - t->rec.time_len;
    n = ls_trim(s, 0, n);
    t->n = 0;
    if (!n || t->rec.ref.line + t->lines != ref->line || t->lines >= LS_WRAP_LINES || before + 1 + n > room) {
        cut_short(scan, t);
        return false;
    }
    for (uint32_t blank = 0; blank < 2; blank++) {
        struct ls_match m;
        if (blank) t->text[before] = ' ';
        memcpy(t->text + before + blank, s, n);
        uint32_t len = before + blank + n;
        if (ls_match(scan->cat, LS_WHERE_NCCL, t->text, len, false, &m)) {
            t->n = 0; /* without the blank it may have been torn */
            scan->totals.torn--;
            if (t->rec.proc >= 0) scan->procs.at[t->rec.proc].damaged--;
            ls_on_match(scan, &t->rec, &m);
            return true;
        }
        if (m.torn && !t->n) t->n = len, t->lines++;
    }
    if (t->n == before + n) memmove(t->text + before, s, n);
    if (!t->n) cut_short(scan, t);
    return false;
}

/* One message, s[low, high). glued: another record follows on the line. cut: the file ends here without a line end. */
static void on_message(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t low, uint32_t high,
                       bool glued, bool cut)
{
    struct ls_match m;
    const struct ls_file *f = &scan->files.at[rec->ref.file];
    end_torn(scan, f);
    high = ls_trim(s, low, high);
    high = repetition(s, low, high, &rec->repeated);
    if (rec->thread >= 0) touch(scan, f, rec);
    if (low == high) {
        scan->totals.torn++;
        damaged(scan, rec);
        return;
    }
    bool found = ls_match(scan->cat, LS_WHERE_NCCL, s + low, high - low, false, &m);
    if (found) ls_expect(scan->cat, scan->parser.guesses, s + low, high - low, &m);
    if (!found) {
        /* A line of a posted log ends with the marks of its emphasis. */
        uint32_t end = unmark(s, low, high);
        if (end < high && (found = ls_match(scan->cat, LS_WHERE_NCCL, s + low, end - low, false, &m))) high = end;
    }
    bool torn = !found && m.torn;
    if (!found && memchr(s + low, '[', high - low)) {
        /* Colours spelled in letters may be anywhere; look for them only if nothing else explains the line. */
        char *clean = ls_realloc(NULL, high - low);
        uint32_t n = ls_strip_ansi(clean, s + low, high - low, true);
        if (n < high - low) {
            n = ls_trim(clean, 0, n);
            found = ls_match(scan->cat, LS_WHERE_NCCL, clean, n, false, &m);
            if (found) ls_on_match(scan, rec, &m);
        }
        free(clean);
        if (found) return;
    }
    if (!found && glued && !torn) found = ls_match(scan->cat, LS_WHERE_NCCL, s + low, high - low, true, &m);
    if (found && cut && m.ends_in_field && low + m.end == high) {
        /* A number that is cut by the end of the file may be incomplete: no value is better than a wrong one. */
        found = false;
        torn = true;
    }
    if (!found && (torn || glued)) damaged(scan, rec);
    if (found) {
        ls_on_match(scan, rec, &m);
    } else if (torn) {
        scan->totals.torn++;
        if (!glued) keep_torn(scan, rec, s + low, high - low);
    } else
        ls_on_unmatched(scan, rec, s + low, high - low);
    if (found && low + m.end < high) outside(scan, rec, s + low + m.end, high - low - m.end, false);
}

/* The next record in s[from, n) with a complete prefix. */
static bool next_record(struct ls_scan *scan, const char *s, uint32_t from, uint32_t n, bool forks, uint32_t *body,
                        int *level, struct ls_prefix *p)
{
    uint32_t at = from;
    for (int tries = 0; tries < 8; tries++) {
        int64_t tag = ls_find_tag(s, at, n, forks, level, body);
        if (tag < 0) return false;
        if (ls_parse_prefix(scan, s, from, (uint32_t)tag, *level, true, p)) return true;
        at = *body;
    }
    return false;
}

static void set_thread(struct ls_scan *scan, struct ls_record *rec, const char *s, const struct ls_prefix *p)
{
    rec->thread = ls_thread_of(scan, rec->stream, s, p);
    rec->proc = rec->thread >= 0 ? scan->threads.at[rec->thread].proc : -1;
    rec->tag = ls_tag_id(scan, s + p->tag, p->tag_len);
    rec->device = p->device;
    rec->where = s + p->where;
    rec->where_len = p->where_len;
    rec->time = s + p->time;
    rec->time_len = p->time_len;
}

static bool spelled_escape(const char *s, uint32_t n)
{
    return n && (s[n - 1] == 'm' || *s == 'E' || *s == '^' || *s == '\\');
}

static void remember(struct ls_scan *scan, const struct ls_record *rec, const char *s, uint32_t tag, uint32_t hash)
{
    if (scan->prefixes.at.n == LS_PREFIXES) ls_forget_prefixes(scan);
    struct ls_remembered p = {
        .len = tag, .stream = rec->stream, .who = {rec->proc, rec->thread, rec->device, rec->tag}};
    memcpy(p.text, s, tag);
    ls_remember(&scan->prefixes, &p, hash);
}

/* The prefix of the first record of a line, remembered if possible. */
static bool first_prefix(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t tag, int level)
{
    bool plain = tag <= LS_PREFIX_MAX && (level == LS_INFO || level == LS_CALL) && !spelled_escape(s, tag);
    uint32_t hash = plain ? scan->parser.hash(rec->stream, s, tag) : 0;
    const struct ls_remembered *known = plain ? ls_recall(&scan->prefixes, rec->stream, s, tag, hash) : NULL;
    if (known) {
        ls_take_who(rec, &known->who);
        return true;
    }
    struct ls_prefix p = {0};
    if (!ls_parse_prefix(scan, s, 0, tag, level, false, &p)) return false;
    set_thread(scan, rec, s, &p);
    if (p.dirty) outside(scan, rec, s, p.start, false);
    if (plain && !p.dirty && !p.time_len && rec->thread >= 0) remember(scan, rec, s, tag, hash);
    return true;
}

/* One record of a predicted message. forks: another one may be of a fork of NCCL. */
static bool expected(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t low, uint32_t n, bool forks)
{
    struct ls_match m;
    uint32_t high = ls_trim(s, low, n);
    if (rec->thread < 0 ||
        !ls_match_expected(scan->cat, scan->parser.guesses, s + low, high - low, scan->parser.lean, forks, &m))
        return false;
    const struct ls_file *f = &scan->files.at[rec->ref.file];
    end_torn(scan, f);
    touch(scan, f, rec);
    ls_on_match(scan, rec, &m);
    return true;
}

/* A copy of a line that may be changed. */
static const char *scratch(struct ls_scan *scan, const char *s, uint32_t n)
{
    if (n > scan->scratch_cap) {
        char *old = scan->scratch;
        scan->scratch = ls_realloc(NULL, scan->scratch_cap = n);
        memcpy(scan->scratch, s, n);
        free(old);
    } else if (s != scan->scratch)
        memcpy(scan->scratch, s, n);
    return scan->scratch;
}

/* Whether a line ends within "NCCL INFO", behind a whole prefix: its process prints, too. */
static bool cut_in_name(const struct ls_scan *scan, const char *s, uint32_t n, struct ls_prefix *p)
{
    static const char name[] = " NCCL INFO";
    n = ls_trim(s, 0, n);
    for (uint32_t len = 5; len < sizeof name - 1; len++) {
        if (n <= len || memcmp(s + n - len, name, len) != 0) continue;
        return ls_parse_prefix(scan, s, 0, n - len + 1, LS_INFO, false, p) && p->device >= 0;
    }
    return false;
}

/* tag: that of a line that holds this one with others, -1 if there is none. */
static void on_text(struct ls_scan *scan, const ls_ref *ref, uint32_t stream, const char *s, uint32_t n, bool cut,
                    int32_t line_tag)
{
    int level;
    uint32_t body;
    struct ls_record rec = {
        .ref = *ref, .stream = stream, .proc = -1, .thread = -1, .tag = line_tag, .device = INT32_MIN, .repeated = 1};
    uint32_t from, end;
    /* The left border of a box is before the record; behind its tag it is the text's own. */
    if (n && ls_boxed(s, n, &from, &end) && ls_find_tag(s, 0, from, true, &level, &body) < 0) {
        bool own = scan->scratch && s >= scan->scratch && s < scan->scratch + scan->scratch_cap;
        if (!own) s = scratch(scan, s, end);
        ls_unbox(scan->scratch + (s - scan->scratch), from);
        n = end;
    }
    int64_t tag = n >= 9 ? ls_find_tag(s, 0, n, true, &level, &body) : -1;
    if (tag < 0 && n >= 9) tag = ls_find_nameless(scan, s, n, &level, &body);
    if (tag < 0 && n >= 9) tag = ls_find_ofi(s, n, &level, &body);
    if (tag < 0) {
        struct ls_prefix p = {0};
        if (completes(scan, ref, s, n)) return;
        if (memmem(s, n, "] NCCL", 6) && cut_in_name(scan, s, n, &p)) {
            rec.level = LS_INFO;
            set_thread(scan, &rec, s, &p);
            on_message(scan, &rec, s, n, n, false, cut);
            return;
        }
        n = repetition(s, 0, ls_trim(s, 0, n), &rec.repeated);
        if (n)
            outside(scan, &rec, s, n, true);
        else
            scan->totals.blank++;
        return;
    }
    rec.level = level;
    if (!first_prefix(scan, &rec, s, (uint32_t)tag, level) && tag > 0) {
        outside(scan, &rec, s, (uint32_t)tag, false);
        /* Without host and pid the launcher's tag is all that can name the process. */
        struct ls_prefix p = {0};
        ls_parse_noise(s, 0, (uint32_t)tag, &p);
        rec.tag = ls_tag_id(scan, s + p.tag, p.tag_len);
        rec.device = ls_bare_device(s, (uint32_t)tag, level);
    }
    bool forks = s[tag] != 'N' || s[tag + 4] != ' ';
    if (!cut && expected(scan, &rec, s, body, n, forks)) return;
    for (;;) {
        struct ls_prefix p = {0};
        uint32_t next_body;
        int next_level;
        bool more = next_record(scan, s, body, n, forks, &next_body, &next_level, &p);
        on_message(scan, &rec, s, body, more ? p.start : n, more, cut && !more);
        if (!more) return;
        scan->totals.glued++;
        rec = (struct ls_record){.ref = *ref, .stream = stream, .level = next_level, .repeated = 1};
        set_thread(scan, &rec, s, &p);
        if (p.host && isalnum((unsigned char)s[p.host - 1])) damaged(scan, &rec); /* the word before it was cut */
        body = next_body;
    }
}

/* A text of several lines that a structured log holds on one. Each is read by itself, in this order, with the tag of
 * the line. */
static void on_folded(struct ls_scan *scan, const ls_ref *ref, uint32_t stream, const char *s, uint32_t n, bool cut,
                      int32_t tag)
{
    uint64_t other = scan->totals.other, blank = scan->totals.blank, matched = scan->totals.matched;
    ls_ref at = *ref;
    for (const char *e = s + n; s < e;) {
        const char *nl = memchr(s, '\n', (size_t)(e - s)), *end = nl ? nl : e;
        if (end > s) on_text(scan, &at, stream, s, (uint32_t)(end - s), cut && !nl, tag);
        if (!nl) break;
        s = nl + 1;
        at.seq = ++scan->streams.at[stream].seq;
    }
    /* One line: it counts as understood if a part of it is. */
    bool found = scan->totals.matched > matched;
    if (scan->totals.other > other) scan->totals.other = other + !found;
    scan->totals.blank = blank;
}

void ls_on_line(struct ls_scan *scan, const ls_ref *ref, uint32_t stream, const char *s, uint32_t n, bool cut)
{
    if ((n && memchr(s, 0x1b, n)) || spelled_escape(s, n)) {
        s = scratch(scan, s, n);
        n = ls_strip_ansi(scan->scratch, s, n, true);
    }
    if (memmem(s, n, LS_LINK, sizeof LS_LINK - 1)) {
        s = scratch(scan, s, n);
        n = ls_unlink(scan->scratch, s, n);
    }
    int32_t tag = -1;
    uint32_t at, len;
    if (n && *s == '{' && ls_json_rank(s, n, &at, &len)) tag = ls_tag_id(scan, s + at, len);
    if (!memmem(s, n, "\\n", 2)) {
        on_text(scan, ref, stream, s, n, cut, tag);
        return;
    }
    s = scratch(scan, s, n);
    if (tag < 0) {
        struct ls_prefix p = {0};
        ls_parse_noise(s, 0, n, &p);
        tag = ls_tag_id(scan, s + p.tag, p.tag_len);
    }
    n = ls_unfold(scan->scratch, n);
    on_folded(scan, ref, stream, s, n, cut, tag);
}
