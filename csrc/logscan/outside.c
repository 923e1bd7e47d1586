/* Lines that are not NCCL's: patterns start anywhere in them. Terminals, mails and issue trackers wrap such lines, at a
 * column or between words; a line that ends within a pattern is joined with the ones after it. */
#include "scanner.h"

#include <ctype.h>

/* Attempts on one line, and then as many on its last bytes: launchers print a status behind a long command. */
enum { BUDGET = 400, TAIL = 200 };

/* What a look at a text finds: where the first match starts, where the first pattern starts that more text may finish,
 * and how much of it is there. */
struct look {
    uint32_t match, open, depth;
};

static void set_head(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t n)
{
    struct ls_prefix p = {0};
    ls_parse_noise(s, 0, n, &p);
    if (p.tag_len) rec->tag = ls_tag_id(scan, s + p.tag, p.tag_len);
    rec->time = s + p.time;
    rec->time_len = p.time_len;
}

/* Passes on the matches of a text. open: receives the place after the last match from which on more text may finish a
 * pattern, n if there is none. head: the record lacks the tag and the time of the line. */
static bool pass_on(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t n, bool head, uint32_t *open)
{
    const struct ls_trie *t = &scan->cat->tries[LS_WHERE_LINE];
    struct ls_match m;
    bool found = false;
    uint32_t budget = BUDGET;
    bool tail = false;
    *open = n;
    for (uint32_t i = 0; i + 1 < n;) {
        if (!ls_may_start(t, s, i, n)) {
            i++;
            continue;
        }
        if (!budget && !tail) {
            tail = true;
            budget = TAIL;
            if (n - i > TAIL) {
                i = n - TAIL;
                continue;
            }
        }
        if (!budget) break;
        budget--;
        if (!ls_match(scan->cat, LS_WHERE_LINE, s + i, n - i, true, &m) || m.end == 0) {
            if (m.unfinished && *open == n) *open = i;
            i++;
            continue;
        }
        if (!found && i && head) set_head(scan, rec, s, i);
        rec->level = m.message->level;
        ls_on_match(scan, rec, &m);
        found = true;
        *open = n;
        i += m.end;
    }
    return found;
}

bool ls_match_inside(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t n)
{
    uint32_t open;
    return pass_on(scan, rec, s, n, true, &open);
}

static void match_other(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t n)
{
    const struct ls_trie *t = &scan->cat->tries[LS_WHERE_OTHER];
    struct ls_match m;
    for (uint32_t i = 0, budget = BUDGET; i + 1 < n && budget; i++) {
        if (!ls_may_start(t, s, i, n)) continue;
        budget--;
        if (!ls_match(scan->cat, LS_WHERE_OTHER, s + i, n - i, true, &m) || m.end == 0) continue;
        if (i) set_head(scan, rec, s, i);
        rec->level = m.message->level;
        ls_on_match(scan, rec, &m);
        scan->totals.matched--; /* such a line is not understood */
        return;
    }
}

void ls_match_other(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t n)
{
    struct ls_wrapped *w = &scan->files.at[rec->ref.file].wrapped;
    if (!w->n) {
        match_other(scan, rec, s, n);
    } else if (w->ref.line == rec->ref.line && n <= LS_WRAP_MAX) {
        if (!w->line) w->line = ls_realloc(NULL, LS_WRAP_MAX);
        memcpy(w->line, s, n);
        w->line_n = n;
        w->stream = rec->stream;
    }
}

void ls_end_wrapped(struct ls_scan *scan, struct ls_wrapped *w)
{
    struct ls_record rec = {.ref = w->ref,
                            .stream = w->stream,
                            .proc = -1,
                            .thread = -1,
                            .tag = w->tag,
                            .device = INT32_MIN,
                            .repeated = 1};
    uint32_t n = w->line_n;
    w->n = w->line_n = 0;
    if (n) match_other(scan, &rec, w->line, n);
}

static struct look look_at(const struct ls_scan *scan, const char *s, uint32_t n, uint32_t before)
{
    const struct ls_trie *t = &scan->cat->tries[LS_WHERE_LINE];
    struct ls_match m;
    struct look out = {n, n, 0};
    uint32_t budget = BUDGET;
    for (uint32_t i = 0; i + 1 < n && i < before && budget; i++) {
        if (!ls_may_start(t, s, i, n)) continue;
        budget--;
        if (ls_match(scan->cat, LS_WHERE_LINE, s + i, n - i, true, &m) && m.end) {
            out.match = i;
            break;
        }
        if (m.unfinished > out.depth) out.depth = m.unfinished;
        if (m.unfinished && out.open == n) out.open = i;
    }
    return out;
}

/* Keep the end of a line, with the tag and the time at its start. */
static void begin(struct ls_scan *scan, struct ls_wrapped *w, const struct ls_record *rec, const char *s, uint32_t at,
                  uint32_t n)
{
    struct ls_record head = *rec;
    uint32_t len = n - at;
    set_head(scan, &head, s, at);
    w->n = w->lines = w->line_n = 0;
    if (len + head.time_len > LS_WRAP_MAX) return;
    if (!w->text) w->text = ls_realloc(NULL, LS_WRAP_MAX);
    memcpy(w->text, s + at, len);
    /* the time goes to the end of the buffer, where joined lines do not reach it */
    w->time = LS_WRAP_MAX - head.time_len;
    w->time_len = head.time_len;
    if (head.time_len) memcpy(w->text + w->time, head.time, head.time_len);
    w->n = len;
    w->lines = 1;
    w->tag = head.tag;
    w->ref = rec->ref;
}

/* Where the text of a line begins that continues another one: behind a mark of a quotation, and behind a tag and a time
 * as the other line has them. */
static uint32_t text_start(struct ls_scan *scan, const struct ls_wrapped *w, const char *s, uint32_t n)
{
    struct ls_prefix p = {0};
    ls_parse_noise(s, 0, n, &p);
    bool tag = p.tag_len && ls_tag_id(scan, s + p.tag, p.tag_len) == w->tag, time = p.time_len && w->time_len;
    uint32_t i = 0;
    bool mark = tag || time;
    for (;;) {
        uint32_t before = i;
        for (; i < n && (s[i] == ' ' || s[i] == '>' || s[i] == '\t'); i++) mark |= s[i] == '>' || i > before;
        if (tag && i == p.tag) {
            i += p.tag_len;
            while (i < n && s[i] == '<' && memchr(s + i, '>', n - i))
                i = (uint32_t)((const char *)memchr(s + i, '>', n - i) - s) + 1;
            if (i < n && s[i] == ':') i++;
        }
        if (time && (i == p.time || i + 1 == p.time)) {
            i = p.time + p.time_len;
            if (i < n && s[i] == ']') i++;
        }
        if (i == before) break;
    }
    return mark && i < n ? i : 0;
}

/* Join a line to the text that is open, with a blank or without. Returns whether a pattern that starts in the open text
 * matched; if the joined text is still open, the line stays joined. */
static bool join(struct ls_scan *scan, struct ls_wrapped *w, const struct ls_record *rec, const char *s, uint32_t n)
{
    uint32_t room = LS_WRAP_MAX - w->time_len, before = w->n, open = 0, depth = 0;
    if (w->lines >= LS_WRAP_LINES || before + 1 + n > room) {
        ls_end_wrapped(scan, w);
        return false;
    }
    for (uint32_t blank = 0; blank < 2; blank++) {
        if (blank) w->text[before] = ' ';
        memcpy(w->text + before + blank, s, n);
        uint32_t len = before + blank + n;
        struct look seen = look_at(scan, w->text, len, before);
        if (seen.match < before) {
            struct ls_record whole = *rec;
            whole.ref = w->ref;
            whole.tag = w->tag;
            whole.time = w->text + w->time;
            whole.time_len = w->time_len;
            pass_on(scan, &whole, w->text, len, false, &open);
            w->n = w->line_n = 0;
            if (open < len) { /* the end of the last line may be the start of another wrapped text */
                memmove(w->text, w->text + open, len - open);
                w->n = len - open;
                w->lines = 1;
            }
            return true;
        }
        if (seen.open < before &&
            seen.depth > depth) { /* the way that fits more of a pattern; names rarely have blanks */
            depth = seen.depth;
            w->n = len;
        }
    }
    if (!depth) ls_end_wrapped(scan, w);
    if (w->n == before + n) memmove(w->text + before, s, n);
    w->lines++;
    return false;
}

/* Whether a record of another process begins at i: [rank3]: or (Worker pid=12, ip=10.0.0.1), behind text that ended. */
static bool record_at(const char *s, uint32_t i, uint32_t n)
{
    uint32_t k = i, end = i;
    while (end > 0 && s[end - 1] == ' ') end--;
    if (end == i || end == 0 || strchr("])}|:,>-([", s[end - 1])) {
        static const char folded[] = " across cluster]";
        uint32_t len = sizeof folded - 1;
        if (end == i || end < len || memcmp(s + end - len, folded, len) != 0) return false;
    }
    if (s[k++] == '(') {
        while (k < n && (isalnum((unsigned char)s[k]) || (s[k] && strchr("_.:/-", s[k])))) k++;
        if (k == i + 1 || n - k < 6 || memcmp(s + k, " pid=", 5) != 0) return false;
        for (k += 5; k < n && isdigit((unsigned char)s[k]);) k++;
        return s[k - 1] != '=' && k < n && (s[k] == ')' || s[k] == ',');
    }
    if (n - i < 8 || memcmp(s + k, "rank", 4) != 0) return false;
    for (k += 4; k < n && isdigit((unsigned char)s[k]);) k++;
    return s[k - 1] != 'k' && k + 1 < n && s[k] == ']' && s[k + 1] == ':';
}

/* The next record on a line that lost its line breaks; n if there is none. A head alone is no record. */
static uint32_t next_part(const char *s, uint32_t from, uint32_t n)
{
    enum { LEAST = 40 };
    for (uint32_t i = from + LEAST; i < n; i++)
        if ((s[i] == '[' || s[i] == '(') && s[i - 1] == ' ' && record_at(s, i, n)) return i;
    return n;
}

static bool match_part(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t n)
{
    struct ls_wrapped *w = &scan->files.at[rec->ref.file].wrapped;
    if (w->n && w->ref.line + w->lines != rec->ref.line) ls_end_wrapped(scan, w);
    if (w->n) {
        /* a line that says something by itself continues nothing */
        if (look_at(scan, s, n, n).match == n) {
            uint32_t at = text_start(scan, w, s, n);
            if (join(scan, w, rec, s + at, n - at)) return true;
        } else
            ls_end_wrapped(scan, w);
    }
    uint32_t open;
    bool joined = w->n != 0, found = pass_on(scan, rec, s, n, true, &open);
    if (!joined && open < n) begin(scan, w, rec, s, open, n);
    return found;
}

bool ls_match_outside(struct ls_scan *scan, struct ls_record *rec, const char *s, uint32_t n)
{
    uint32_t end = next_part(s, 0, n);
    struct ls_record first = *rec;
    bool found = match_part(scan, rec, s, end);
    for (uint32_t at = end; at < n; at = end) {
        struct ls_record part = first;
        end = next_part(s, at, n);
        ls_end_wrapped(scan, &scan->files.at[rec->ref.file].wrapped);
        found |= match_part(scan, &part, s + at, end - at);
    }
    return found;
}
