/* Matching a text against a trie: literals before fields, narrow fields before wide ones, with a bound on the steps. */
#include "catalogue.h"

#include <ctype.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Enough for any real line; a hostile one ends as unmatched. */
enum { STEPS = 3000 };
/* A text that ends inside a pattern counts as torn only after this many literal bytes: less is chance. */
enum { TORN_MIN = 8 };

struct walk {
    const struct ls_catalogue *cat;
    const struct ls_trie *trie;
    const char *text, *end;
    struct ls_capture cap[LS_CAPTURES];
    int ncap;
    int steps;
    uint32_t literal; /* bytes matched by literals on this path */
    int open;         /* str fields on this path */
    bool anywhere, torn;
    int32_t accept;
    const char *accept_end;
};

static bool step(struct walk *w, const struct ls_node *node, const char *p);

static void maybe_torn(struct walk *w, uint32_t more)
{
    if (!w->open && w->literal + more >= TORN_MIN) w->torn = true;
}

/* The value of a hex digit plus one, 0 for other bytes. */
static const uint8_t hex_digit[256] = {
    ['0'] = 1,  ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,  ['6'] = 7,  ['7'] = 8,
    ['8'] = 9,  ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
    ['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16,
};

#ifdef __SSE2__
/* Up to 16 hex digits at p, of which 16 bytes can be read: the number of digits, their value in *value. */
static inline unsigned hex16(const char *p, uint64_t *value)
{
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i low = _mm_or_si128(c, _mm_set1_epi8(0x20));
    /* Signed comparisons: bytes from 0x80 on are negative, and so no digits. */
    __m128i digit = _mm_and_si128(_mm_cmpgt_epi8(c, _mm_set1_epi8('0' - 1)), _mm_cmplt_epi8(c, _mm_set1_epi8('9' + 1)));
    __m128i letter =
        _mm_and_si128(_mm_cmpgt_epi8(low, _mm_set1_epi8('a' - 1)), _mm_cmplt_epi8(low, _mm_set1_epi8('f' + 1)));
    unsigned other = ~(unsigned)_mm_movemask_epi8(_mm_or_si128(digit, letter)) & 0xffffu;
    unsigned n = other ? (unsigned)__builtin_ctz(other) : 16;
    __m128i nibble = _mm_or_si128(_mm_and_si128(digit, _mm_sub_epi8(c, _mm_set1_epi8('0'))),
                                  _mm_and_si128(letter, _mm_sub_epi8(low, _mm_set1_epi8('a' - 10))));
    /* A pair of digits is a byte: the first, in the lower half of its lane, is the higher one. */
    __m128i pair =
        _mm_or_si128(_mm_slli_epi16(_mm_and_si128(nibble, _mm_set1_epi16(0xff)), 4), _mm_srli_epi16(nibble, 8));
    uint64_t v = __builtin_bswap64((uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(pair, pair)));
    *value = n ? v >> (64 - 4 * n) : 0;
    return n;
}
#endif

static inline const char *read_hex(const char *p, const char *e, uint64_t *value)
{
    uint64_t v = 0;
    const char *s = p;
#ifdef __SSE2__
    if (e - p > 16) {
        unsigned n = hex16(p, value);
        return n && !(n == 16 && hex_digit[(unsigned char)p[16]]) ? p + n : NULL;
    }
#endif
    if (e - p > 17) e = p + 17;
    for (uint64_t d; p < e && (d = hex_digit[(unsigned char)*p]) != 0; p++) v = v << 4 | (d - 1);
    *value = v;
    return p > s && p - s <= 16 ? p : NULL;
}

/* Literals are short: a call of memcmp costs more than the comparison. */
static inline bool equal(const char *a, const unsigned char *b, uint32_t n)
{
    uint64_t x, y;
    for (; n >= 8; a += 8, b += 8, n -= 8) {
        memcpy(&x, a, 8);
        memcpy(&y, b, 8);
        if (x != y) return false;
    }
    if (n & 4) {
        uint32_t u, v;
        memcpy(&u, a, 4);
        memcpy(&v, b, 4);
        if (u != v) return false;
        a += 4;
        b += 4;
    }
    for (n &= 3; n; n--)
        if (*a++ != (char)*b++) return false;
    return true;
}

static inline const char *read_digits(const char *p, const char *e, uint64_t *value)
{
    enum { SURE = 19 }; /* digits that cannot overflow */
    uint64_t v = 0;
    const char *s = p, *sure = e - p > SURE ? p + SURE : e;
    for (unsigned d; p < sure && (d = (unsigned char)(*p - '0')) < 10; p++) v = v * 10 + d;
    for (unsigned d; p >= sure && p < e && (d = (unsigned char)(*p - '0')) < 10; p++)
        v = v > (UINT64_MAX - d) / 10 ? UINT64_MAX : v * 10 + d;
    *value = v;
    return p > s ? p : NULL;
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

/* Numbers are read in place; the rare kinds are kept out of the way of the common ones. */
static __attribute__((noinline)) const char *read_rare(int type, const char *p, const char *e, uint64_t *value)
{
    return type == LS_FLOAT ? read_float(p, e, value) : read_addr(p, e);
}

static inline const char *read_value(int type, const char *p, const char *e, uint64_t *value)
{
    if (p == e) return NULL;
    if (type == LS_PTR || type == LS_HEX) {
        if (type == LS_PTR && *p == '(' && e - p >= 5 && memcmp(p, "(nil)", 5) == 0) {
            *value = 0;
            return p + 5;
        }
        if (*p == '0' && e - p > 2 && (p[1] | 32) == 'x') p += 2;
        return read_hex(p, e, value);
    }
    if (type == LS_INT) {
        bool minus = *p == '-';
        const char *q = read_digits(p + (minus || *p == '+'), e, value);
        if (q && minus) *value = 0 - *value;
        return q;
    }
    return type == LS_UINT ? read_digits(p, e, value) : read_rare(type, p, e, value);
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

static bool take_word(struct walk *w, const struct ls_field_edge *f, const char *p)
{
    const char *b = p;
    while (b < w->end && *b != ' ' && *b != '\t') b++;
    if (b == p) {
        if (p == w->end) maybe_torn(w, 0);
        return false;
    }
    if (f->stop < 0 || f->stop == ' ') {
        if (f->stop == ' ' && b == w->end) {
            maybe_torn(w, 0);
            /* The blank after it may be the one that was stripped from the end of the line. */
        }
        return take(w, f, p, b, 0);
    }
    const char *q = p + 1;
    while (q < b && (q = memchr(q, f->stop, (size_t)(b - q))) != NULL) {
        if (take(w, f, p, q, 0)) return true;
        if (w->steps > STEPS) return false;
        q++;
    }
    if (b == w->end) maybe_torn(w, 0);
    return false;
}

static bool take_str(struct walk *w, const struct ls_field_edge *f, const char *p)
{
    if (f->stop == LS_STOP_END) return take(w, f, p, w->end, 0);
    bool found = false;
    w->open++;
    for (const char *q = p; q <= w->end && w->steps <= STEPS; q++) {
        if (f->stop >= 0 && (q == w->end || !(q = memchr(q, f->stop, (size_t)(w->end - q))))) break;
        found = take(w, f, p, q, 0);
        if (found) break;
    }
    w->open--;
    return found;
}

static const struct ls_literal *find_literal(const struct ls_node *node, unsigned char c)
{
    if (node->dispatch) return node->dispatch[c] ? &node->lits[node->dispatch[c] - 1] : NULL;
    for (int i = 0; i < node->nlits; i++)
        if (node->lits[i].s[0] == c) return &node->lits[i];
    return NULL;
}

static bool only_blanks(const unsigned char *s, uint32_t n)
{
    while (n && *s == ' ') s++, n--;
    return n == 0;
}

/* Bytes that the literal of this node takes at p, with the edge in *edge; 0: it does not fit. A blank that was stripped
 * from the end of the line fits too, and takes nothing: then *edge is set. */
static uint32_t take_literal(struct walk *w, const struct ls_node *node, const char *p, const struct ls_literal **edge)
{
    const struct ls_literal *lit = find_literal(node, p < w->end ? (unsigned char)*p : ' ');
    *edge = NULL;
    if (!lit) {
        if (p == w->end) maybe_torn(w, 0);
        return 0;
    }
    uint32_t left = (uint32_t)(w->end - p), n = lit->n < left ? lit->n : left;
    if (!equal(p, lit->s, n)) return 0;
    if (n < lit->n && !only_blanks(lit->s + n, lit->n - n)) {
        maybe_torn(w, n);
        return 0;
    }
    *edge = lit;
    return n;
}

static bool take_wide(struct walk *w, const struct ls_field_edge *f, const char *p)
{
    if (f->type == LS_WORD) return take_word(w, f, p);
    if (f->type == LS_STR) return take_str(w, f, p);
    return take(w, f, p, w->end, 0);
}

/* Tries what node offers at p. The last possibility is not tried by recursion but by going on with it; whoever called
 * this function for one of several possibilities puts back what a failed one has left in w. */
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
            if (take_wide(w, f, p)) return true;
            w->ncap = ncap;
            w->literal = literal;
            continue;
        }
        uint64_t value = 0;
        const char *q = p;
        if (f->type == LS_BLANKS) {
            while (q < w->end && *q == ' ') q++;
        } else {
            q = read_value(f->type, p, w->end, &value);
            if (!q) {
                if (p == w->end) maybe_torn(w, 0);
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

static void deliver(const struct ls_catalogue *cat, uint32_t pattern, const struct ls_capture *cap, const char *text,
                    const char *end, struct ls_match *out)
{
    const struct ls_pattern *pat = &cat->patterns.at[pattern];
    out->torn = false;
    out->pattern = pattern;
    out->index = pat->message;
    out->message = &cat->messages.at[pat->message];
    out->present = pat->present;
    out->texts = pat->texts;
    out->end = (uint32_t)(end - text);
    out->ends_in_field = pat->ends_in_field;
    out->text = text;
    for (int i = 0; i < pat->captures; i++)
        if (pat->slot[i] >= 0) out->field[pat->slot[i]] = cap[i];
    if (!pat->widened) return;
    for (int i = 0; i < pat->captures; i++) {
        /* A message has a field as float where one of its patterns reads it as an integer. */
        if (pat->slot[i] < 0 || pat->type[i] == LS_FLOAT || out->message->type[pat->slot[i]] != LS_FLOAT ||
            ls_is_text(pat->type[i]))
            continue;
        struct ls_capture *c = &out->field[pat->slot[i]];
        double d = (double)(int64_t)c->value;
        memcpy(&c->value, &d, sizeof d);
    }
}

bool ls_match(const struct ls_catalogue *cat, int where, const char *text, size_t n, bool anywhere,
              struct ls_match *out)
{
    struct walk w;
    w.cat = cat;
    w.trie = &cat->tries[where];
    w.text = text;
    w.end = text + n;
    w.ncap = w.steps = w.open = 0;
    w.literal = 0;
    w.anywhere = anywhere;
    w.torn = false;
    w.accept = -1;
    out->torn = false;
    if (!step(&w, &w.trie->nodes.at[0], text)) {
        out->torn = w.torn;
        return false;
    }
    deliver(cat, (uint32_t)w.accept, w.cap, text, w.accept_end, out);
    return true;
}

/* A straight pattern needs no search: its tokens fit one after the other, or the text is left to the trie. */
static bool follow(const struct ls_catalogue *cat, uint32_t pattern, const char *text, size_t n, struct ls_match *out)
{
    const struct ls_pattern *pat = &cat->patterns.at[pattern];
    const struct ls_token *t = &cat->tokens.at[pat->first_token], *last = t + pat->tokens;
    const char *p = text, *e = text + n;
    struct ls_capture cap[LS_CAPTURES];
    int ncap = 0;
    for (; t < last; t++) {
        const char *q;
        uint64_t value = 0;
        switch (t->type) {
        case LS_TYPES:
            if ((size_t)(e - p) < t->n || !equal(p, cat->straight_bytes.at + t->at, t->n)) return false;
            p += t->n;
            continue;
        case LS_WORD:
            q = p;
            while (q < e && *q != ' ' && *q != '\t') q++;
            if (q == p) return false;
            if (t->stop >= 0 && t->stop != ' ') {
                q = q - p > 1 ? memchr(p + 1, t->stop, (size_t)(q - p - 1)) : NULL;
                if (!q) return false;
            }
            break;
        case LS_STR:
            q = t->stop == LS_STOP_END ? e : p < e ? memchr(p, t->stop, (size_t)(e - p)) : NULL;
            if (!q) return false;
            break;
        case LS_REST:
            q = e;
            break;
        default:
            q = read_value(t->type, p, e, &value);
            if (!q) return false;
        }
        cap[ncap++] = (struct ls_capture){value, (uint32_t)(p - text), (uint32_t)(q - p)};
        p = q;
    }
    if (p != e) return false;
    deliver(cat, pattern, cap, text, p, out);
    return true;
}

/* The guesses for a text, by the words before its first number: what stands behind it does not stand still. */
static uint32_t *ways(struct ls_guess *guess, const char *text, size_t n)
{
    uint64_t head = 0;
    if (n > sizeof head) n = sizeof head;
    for (size_t i = 0; i < n && (unsigned char)(text[i] - '0') > 9; i++) head = head << 8 | (unsigned char)text[i];
    return guess->pattern[head * 0x9e3779b97f4a7c15u >> 54];
}

bool ls_match_expected(const struct ls_catalogue *cat, struct ls_guess *guess, const char *text, size_t n,
                       struct ls_match *out)
{
    uint32_t *way = ways(guess, text, n);
    for (int i = 0; i < LS_GUESS_WAYS && way[i]; i++) {
        if (!follow(cat, way[i] - 1, text, n, out)) continue;
        if (i) {
            uint32_t moved = way[i];
            way[i] = way[i - 1];
            way[i - 1] = moved;
        }
        return true;
    }
    return false;
}

void ls_expect(const struct ls_catalogue *cat, struct ls_guess *guess, const char *text, size_t n,
               const struct ls_match *found)
{
    if (!cat->patterns.at[found->pattern].tokens) return;
    uint32_t *way = ways(guess, text, n);
    for (int i = LS_GUESS_WAYS - 1; i; i--) way[i] = way[i - 1];
    way[0] = found->pattern + 1;
}

int ls_match_text(const ls_catalogue *cat, int line, const char *text, size_t n, uint64_t *present, uint64_t *values,
                  uint32_t *starts, uint32_t *lengths)
{
    struct ls_match m;
    bool found = false;
    size_t at = 0;
    if (!line)
        found = ls_match(cat, LS_WHERE_NCCL, text, n, false, &m);
    else
        for (; at < n && !found; at++) found = ls_match(cat, LS_WHERE_LINE, text + at, n - at, true, &m);
    if (!found) return !line && m.torn ? -2 : -1;
    if (line) at--;
    present[0] = m.present;
    present[1] = m.texts;
    for (int i = 0; i < m.message->fields; i++) {
        values[i] = m.field[i].value;
        starts[i] = (uint32_t)at + m.field[i].start;
        lengths[i] = m.field[i].length;
    }
    return (int)m.index;
}
