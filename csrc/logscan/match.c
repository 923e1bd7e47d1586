/* Matching a text against a trie: literals before fields, narrow fields before wide ones, with a limit on the steps. */
#include "values.h"

#include <ctype.h>

/* Enough for any real line; a hostile one counts as unmatched. */
enum { STEPS = 3000 };
/* A text that ends inside a pattern counts as torn only after this many literal bytes: less is chance. */
enum { TORN_MIN = 8 };
/* So many literal bytes tell the message of a text that ends before its first field does. */
enum { TELLING = 12 };

struct walk {
    const struct ls_catalogue *cat;
    const struct ls_trie *trie;
    const char *text, *end;
    struct ls_capture cap[LS_CAPTURES];
    int ncap;
    int steps;
    uint32_t literal; /* bytes matched by literals on this path */
    int open;         /* str fields on this path */
    uint32_t unfinished;
    bool anywhere, torn;
    int32_t accept;
    const char *accept_end;
    /* Where the text ends inside a pattern, on the path with the most literal bytes. Only a search for it sets cut. */
    struct ls_capture *cut;
    const struct ls_node *cut_node;
    uint32_t cut_literal;
    int ncut;
};

static bool step(struct walk *w, const struct ls_node *node, const char *p);

static void maybe_torn(struct walk *w, const struct ls_node *node, uint32_t more)
{
    if (w->literal + more < TORN_MIN) return;
    if (w->unfinished < w->literal + more) w->unfinished = w->literal + more;
    if (w->open) return;
    w->torn = true;
    if (!w->cut || w->literal + more <= w->cut_literal) return;
    w->cut_literal = w->literal + more;
    w->cut_node = node;
    w->ncut = w->ncap;
    memcpy(w->cut, w->cap, sizeof *w->cut * (size_t)w->ncap);
}

static const char *read_float(const char *p, const char *e, uint64_t *value)
{
    char buf[64];
    size_t n = 0, max = (size_t)(e - p) < sizeof buf - 1 ? (size_t)(e - p) : sizeof buf - 1;
    bool digit = false, dot = false, mark = false;
    if (max && (*p == '-' || *p == '+')) n = 1;
    if (max - n >= 3 && (memcmp(p + n, "inf", 3) == 0 || memcmp(p + n, "nan", 3) == 0)) {
        n += 3;
        digit = true;
    } else {
        for (; n < max; n++) {
            int c = (unsigned char)p[n];
            if (c >= '0' && c <= '9')
                digit = true;
            else if (c == '.' && !dot && !mark && n + 1 <= max)
                dot = true;
            else if ((c == 'e' || c == 'E') && digit && !mark && n + 1 < max &&
                     (isdigit((unsigned char)p[n + 1]) ||
                      ((p[n + 1] == '-' || p[n + 1] == '+') && n + 2 < max && isdigit((unsigned char)p[n + 2])))) {
                mark = true;
                n++;
            } else
                break;
        }
    }
    if (!digit) return NULL;
    memcpy(buf, p, n);
    buf[n] = 0;
    double d = strtod(buf, NULL);
    memcpy(value, &d, 8);
    return p + n;
}

/* 1.2.3.4<5000>, [fe80::1%eth0]<5000>, host<5000> */
static const char *read_addr(const char *p, const char *e)
{
    while (p < e && *p != '<' && *p != ' ') p++;
    if (p == e || *p != '<') return NULL;
    const char *digits = ++p;
    while (p < e && isdigit((unsigned char)*p)) p++;
    return p > digits && p < e && *p == '>' ? p + 1 : NULL;
}

const char *ls_read_rare(int type, const char *p, const char *e, uint64_t *value)
{
    return type == LS_FLOAT ? read_float(p, e, value) : read_addr(p, e);
}

static bool take(struct walk *w, const struct ls_field_edge *f, const char *p, const char *q, uint64_t value)
{
    if (w->ncap == LS_CAPTURES) return false;
    int ncap = w->ncap;
    uint32_t literal = w->literal;
    w->cap[w->ncap++] = (struct ls_capture){value, (uint32_t)(p - w->text), (uint32_t)(q - p)};
    if (step(w, &w->trie->nodes.at[f->node], q)) return true;
    w->ncap = ncap;
    w->literal = literal;
    return false;
}

static bool take_word(struct walk *w, const struct ls_node *node, const struct ls_field_edge *f, const char *p)
{
    const char *b = p;
    while (b < w->end && *b != ' ' && *b != '\t') b++;
    if (b == p) {
        if (p == w->end) maybe_torn(w, node, 0);
        return false;
    }
    if (f->stop < 0 || f->stop == ' ') {
        if (f->stop == ' ' && b == w->end) {
            maybe_torn(w, &w->trie->nodes.at[f->node], 0);
            /* The blank after it may have been stripped from the end of the line. */
        }
        return take(w, f, p, b, 0);
    }
    const char *q = p + 1;
    while (q < b && (q = memchr(q, f->stop, (size_t)(b - q))) != NULL) {
        if (take(w, f, p, q, 0)) return true;
        if (w->steps > STEPS) return false;
        q++;
    }
    if (b == w->end) maybe_torn(w, &w->trie->nodes.at[f->node], 0);
    return false;
}

static bool take_str(struct walk *w, const struct ls_node *node, const struct ls_field_edge *f, const char *p)
{
    if (f->stop == LS_STOP_END) return take(w, f, p, w->end, 0);
    bool found = false;
    w->open++;
    for (const char *q = p; q <= w->end && w->steps <= STEPS; q++) {
        if (f->stop >= 0 && (q == w->end || !(q = memchr(q, f->stop, (size_t)(w->end - q))))) break;
        found = take(w, f, p, q, 0);
        if (found) break;
    }
    if (!found) maybe_torn(w, node, 0);
    w->open--;
    return found;
}

static bool only_blanks(const unsigned char *s, uint32_t n)
{
    while (n && *s == ' ') s++, n--;
    return n == 0;
}

/* Number of bytes that the literal of this node matches at p, with the edge in *edge; 0: it does not match. A blank
 * that was stripped from the end of the line also matches, with 0 bytes: then *edge is set. */
static uint32_t take_literal(struct walk *w, const struct ls_node *node, const char *p, const struct ls_literal **edge)
{
    const struct ls_literal *lit = ls_find_literal(node, p < w->end ? (unsigned char)*p : ' ');
    *edge = NULL;
    if (!lit) {
        if (p == w->end) maybe_torn(w, node, 0);
        return 0;
    }
    uint32_t left = (uint32_t)(w->end - p), n = lit->n < left ? lit->n : left;
    if (!ls_equal(p, lit->s, n)) return 0;
    if (n < lit->n && !only_blanks(lit->s + n, lit->n - n)) {
        maybe_torn(w, n ? &w->trie->nodes.at[lit->node] : node, n);
        return 0;
    }
    *edge = lit;
    return n;
}

static bool take_wide(struct walk *w, const struct ls_node *node, const struct ls_field_edge *f, const char *p)
{
    if (f->type == LS_WORD) return take_word(w, node, f, p);
    if (f->type == LS_STR) return take_str(w, node, f, p);
    return take(w, f, p, w->end, 0);
}

/* Tries the edges of node at p. The last one is not tried by recursion but by continuing with it; a caller that tries
 * several restores what a failed one has left in w. */
static bool step(struct walk *w, const struct ls_node *node, const char *p)
{
    const struct ls_node *nodes = w->trie->nodes.at;
again:
    if (++w->steps > STEPS) return false;
    bool accepts = node->accept >= 0 && (w->anywhere || p == w->end);
    if (node->nlits) {
        const struct ls_literal *lit;
        uint32_t n = take_literal(w, node, p, &lit);
        if (lit) {
            w->literal += n;
            if (!node->nfields && !accepts) {
                p += n;
                node = &nodes[lit->node];
                goto again;
            }
            int ncap = w->ncap;
            uint32_t literal = w->literal - n;
            if (step(w, &nodes[lit->node], p + n)) return true;
            w->ncap = ncap;
            w->literal = literal;
        }
    }
    for (int i = 0; i < node->nfields; i++) {
        const struct ls_field_edge *f = &node->fields[i];
        if (f->type >= LS_WORD) {
            int ncap = w->ncap;
            uint32_t literal = w->literal;
            if (take_wide(w, node, f, p)) return true;
            w->ncap = ncap;
            w->literal = literal;
            continue;
        }
        uint64_t value = 0;
        const char *q = p;
        if (f->type == LS_BLANKS) {
            while (q < w->end && *q == ' ') q++;
        } else {
            q = ls_read_value(f->type, p, w->end, &value);
            if (!q) {
                if (p == w->end) maybe_torn(w, node, 0);
                continue;
            }
            if (w->ncap == LS_CAPTURES) return false;
        }
        int ncap = w->ncap;
        uint32_t literal = w->literal;
        if (f->type != LS_BLANKS)
            w->cap[w->ncap++] = (struct ls_capture){value, (uint32_t)(p - w->text), (uint32_t)(q - p)};
        if (i + 1 == node->nfields && !accepts) {
            p = q;
            node = &nodes[f->node];
            goto again;
        }
        if (step(w, &nodes[f->node], q)) return true;
        w->ncap = ncap;
        w->literal = literal;
    }
    if (!accepts) return false;
    w->accept = node->accept;
    w->accept_end = p;
    return true;
}

/* A message has a float field if one of its patterns reads the field as an integer. */
void ls_widen(const struct ls_pattern *pat, const struct ls_message *message, struct ls_capture *fields)
{
    for (int i = 0; i < pat->captures; i++) {
        if (pat->slot[i] < 0 || pat->type[i] == LS_FLOAT || message->type[pat->slot[i]] != LS_FLOAT ||
            ls_is_text(pat->type[i]))
            continue;
        struct ls_capture *c = &fields[pat->slot[i]];
        double d = (double)(int64_t)c->value;
        memcpy(&c->value, &d, sizeof d);
    }
}

static void deliver(const struct ls_catalogue *cat, uint32_t pattern, const struct ls_capture *cap, const char *text,
                    const char *end, struct ls_match *out)
{
    const struct ls_pattern *pat = &cat->patterns.at[pattern];
    for (int i = 0; i < pat->captures; i++)
        if (pat->slot[i] >= 0) out->own[pat->slot[i]] = cap[i];
    out->field = out->own;
    ls_fill_match(cat, pattern, text, end, out);
    if (pat->widened) ls_widen(pat, out->message, out->own);
}

static void begin(struct walk *w, const struct ls_catalogue *cat, int where, const char *text, size_t n, bool anywhere)
{
    w->cat = cat;
    w->trie = &cat->tries[where];
    w->text = text;
    w->end = text + n;
    w->ncap = w->steps = w->open = 0;
    w->literal = 0;
    w->anywhere = anywhere;
    w->torn = false;
    w->unfinished = 0;
    w->accept = -1;
    w->cut = NULL;
    w->cut_literal = 0;
}

bool ls_match(const struct ls_catalogue *cat, int where, const char *text, size_t n, bool anywhere,
              struct ls_match *out)
{
    struct walk w;
    begin(&w, cat, where, text, n, anywhere);
    out->torn = false;
    out->unfinished = 0;
    if (!step(&w, &w.trie->nodes.at[0], text)) {
        out->torn = w.torn;
        out->unfinished = w.unfinished;
        return false;
    }
    deliver(cat, (uint32_t)w.accept, w.cap, text, w.accept_end, out);
    return true;
}

/* A pattern that ends at the node or below it, of the message of *found, or of any message while that is negative.
 * false: there are several messages. */
static bool only_message(const struct ls_catalogue *cat, const struct ls_node *node, int32_t *found)
{
    const struct ls_node *nodes = cat->tries[LS_WHERE_NCCL].nodes.at;
    if (node->accept >= 0) {
        if (*found < 0) *found = node->accept;
        if (cat->patterns.at[*found].message != cat->patterns.at[node->accept].message) return false;
    }
    for (int i = 0; i < node->nlits; i++)
        if (!only_message(cat, &nodes[node->lits[i].node], found)) return false;
    for (int i = 0; i < node->nfields; i++)
        if (!only_message(cat, &nodes[node->fields[i].node], found)) return false;
    return true;
}

static void keep_first(const struct ls_pattern *pat, int captures, struct ls_match *out)
{
    uint64_t kept = 0;
    for (int i = 0; i < captures; i++)
        if (pat->slot[i] >= 0) kept |= 1ull << pat->slot[i];
    out->present &= kept;
    out->texts &= kept;
}

bool ls_match_cut(const struct ls_catalogue *cat, const char *text, size_t n, struct ls_match *out)
{
    struct walk w;
    struct ls_capture cut[LS_CAPTURES];
    int32_t found = -1;
    begin(&w, cat, LS_WHERE_NCCL, text, n, false);
    w.cut = cut;
    if (step(&w, &w.trie->nodes.at[0], text)) {
        /* Its last number may be incomplete. */
        deliver(cat, (uint32_t)w.accept, w.cap, text, w.accept_end, out);
        const struct ls_pattern *pat = &cat->patterns.at[w.accept];
        if (pat->ends_in_field) keep_first(pat, pat->captures - 1, out);
        return out->present != 0;
    }
    if (!w.torn || !(w.ncut || w.cut_literal >= TELLING)) return false;
    if (!only_message(cat, w.cut_node, &found) || found < 0) return false;
    const struct ls_pattern *pat = &cat->patterns.at[found];
    memset(cut + w.ncut, 0, sizeof *cut * (size_t)(LS_CAPTURES - w.ncut));
    deliver(cat, (uint32_t)found, cut, text, text + n, out);
    keep_first(pat, w.ncut, out);
    return out->present != 0 || w.cut_literal >= TELLING;
}

/* Return the fields of a match; the text starts at byte at of the buffer that they refer to. */
void ls_show_match(const struct ls_match *m, size_t at, uint64_t *present, uint64_t *values, uint32_t *starts,
                   uint32_t *lengths)
{
    present[0] = m->present;
    present[1] = m->texts;
    for (int i = 0; i < m->message->fields; i++) {
        if (!(m->present & 1ull << i)) continue;
        values[i] = m->field[i].value;
        starts[i] = (uint32_t)at + m->field[i].start;
        lengths[i] = m->field[i].length;
    }
}

int ls_match_text(const ls_catalogue *cat, int where, const char *text, size_t n, uint64_t *present, uint64_t *values,
                  uint32_t *starts, uint32_t *lengths, uint32_t *span)
{
    struct ls_match m;
    bool found = false;
    size_t at = 0;
    if (where == LS_WHERE_NCCL)
        found = ls_match(cat, LS_WHERE_NCCL, text, n, false, &m);
    else
        for (; at < n && !found; at++) found = ls_match(cat, where, text + at, n - at, true, &m);
    if (!found) return where == LS_WHERE_NCCL && m.torn ? -2 : -1;
    if (where != LS_WHERE_NCCL) at--;
    ls_show_match(&m, at, present, values, starts, lengths);
    if (span) {
        span[0] = (uint32_t)at;
        span[1] = (uint32_t)at + m.end;
    }
    return (int)m.index;
}
