/* Guesses: most lines of a log come from few patterns, and the start of a text predicts which.
 *
 * A guess is correct if the text fits the tokens of the pattern and the search would have found the same: if no rival
 * of a field (see straight.c) leads to an end. Close rivals are checked in the text itself. For far ones a guess stores
 * the bytes that were read to see that they fail; they fail for all texts that start with these bytes. */
#include "scanner.h"
#include "values.h"

enum {
    PROOF_STEPS = 600, /* of the search for an end behind rivals */
    FUTILE = 32,       /* number of unsuccessful guesses with known bytes after which no more are made */
};

/* Whether the literal that could be at p is not there. If less than the whole text is known: unknown. */
static inline bool literal_fails(const struct ls_node *node, const char *p, const char *e)
{
    const struct ls_literal *lit = ls_find_literal(node, (unsigned char)*p);
    return !lit || ((size_t)(e - p) >= lit->n && !ls_equal(p, lit->s, lit->n));
}

/* Whether the close rivals of a field fail here. */
static bool close_rivals_fail(const struct ls_trie *trie, const struct ls_token *t, const char *p, const char *e)
{
    const struct ls_node *node = &trie->nodes.at[t->node];
    if (p == e || !literal_fails(node, p, e)) return false;
    for (int i = 0; i < t->edge; i++) {
        uint64_t value;
        const char *q = ls_read_value(node->fields[i].type, p, e, &value);
        if (!q) continue;
        if (q == e || !literal_fails(&trie->nodes.at[node->fields[i].node], q, e)) return false;
    }
    return true;
}

/* The readers below are for texts followed by ROOM readable bytes, the first of which is not part of a word, so they
 * need not check for the end. They leave uncommon cases to the readers that do. They have no loops over digits, whose
 * length no processor predicts. */
enum { WORD = 8, ROOM = LS_LAYOUT_BEHIND };

static inline bool literal_fits(const struct ls_token *t, const unsigned char *s, const char *p, const char *e)
{
    if ((size_t)(e - p) < t->n) return false;
#ifdef __SSE2__
    __m128i head = _mm_loadu_si128((const __m128i *)(const void *)t->head);
    __m128i same = _mm_cmpeq_epi8(head, _mm_loadu_si128((const __m128i *)(const void *)p));
    if (~(unsigned)_mm_movemask_epi8(same) & t->mask) return false;
    return t->n <= LS_HEAD || ls_same_bytes(p + LS_HEAD, s + LS_HEAD, t->n - LS_HEAD);
#else
    return ls_same_bytes(p, s, t->n);
#endif
}

static inline const char *few_digits(int type, const char *p, const char *e, uint64_t *value)
{
    uint64_t v;
    memcpy(&v, p, WORD);
    v ^= 0x3030303030303030u;
    /* The highest bit of a byte greater than 9; exact up to the first one. */
    uint64_t other = ((v + 0x7676767676767676u) | v) & 0x8080808080808080u;
    unsigned n = other ? (unsigned)__builtin_ctzll(other) >> 3 : 0;
    if (!n) return ls_read_value(type, p, e, value);
    /* The first digit is the lowest byte: zeros before it, then pairs, fours, and all eight. */
    v <<= 64 - 8 * n;
    v = v * 10 + (v >> 8);
    v = ((v & 0x00ff00ff00ff00ffu) * (1 + (100ull << 16))) >> 16;
    *value = ((v & 0x0000ffff0000ffffu) * (1 + (10000ull << 32))) >> 32;
    return p + n;
}

static inline const char *pointer(int type, const char *p, const char *e, uint64_t *value)
{
#ifdef __SSE2__
    uint16_t zero_x;
    memcpy(&zero_x, p, 2);
    const char *s = (zero_x | 0x2000) == ('0' | 'x' << 8) ? p + 2 : p;
    if (e - s >= 0) {
        unsigned n = hex16(_mm_loadu_si128((const __m128i *)(const void *)s), value);
        if (n - 1 < 15) return s + n;
    }
#endif
    return ls_read_value(type, p, e, value);
}

/* As few_digits() and pointer(), without the value. */
static inline const char *skip_digits(int type, const char *p, const char *e)
{
    uint64_t v;
    memcpy(&v, p, WORD);
    v ^= 0x3030303030303030u;
    uint64_t other = ((v + 0x7676767676767676u) | v) & 0x8080808080808080u;
    unsigned n = other ? (unsigned)__builtin_ctzll(other) >> 3 : 0;
    return n ? p + n : ls_read_value(type, p, e, &v);
}

static inline const char *skip_pointer(int type, const char *p, const char *e)
{
    uint64_t value;
#ifdef __SSE2__
    uint16_t zero_x;
    memcpy(&zero_x, p, 2);
    const char *s = (zero_x | 0x2000) == ('0' | 'x' << 8) ? p + 2 : p;
    if (e - s >= 0) {
        unsigned n = hex_digits(_mm_loadu_si128((const __m128i *)(const void *)s));
        if (n - 1 < 15) return s + n;
    }
#endif
    return ls_read_value(type, p, e, &value);
}

static inline const char *word(int stop, const char *p, const char *e)
{
    const char *q = p;
#ifdef __SSE2__
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i blank = _mm_or_si128(_mm_cmpeq_epi8(c, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(c, _mm_set1_epi8('\t')));
    unsigned n = (unsigned)__builtin_ctz((unsigned)_mm_movemask_epi8(blank) | 1u << 16);
    if ((size_t)(e - p) < n) n = (unsigned)(e - p);
    q += n;
    if (n == 16)
#endif
        while (q < e && *q != ' ' && *q != '\t') q++;
    if (q == p) return NULL;
    return stop < 0 || stop == ' ' ? q : q - p > 1 ? memchr(p + 1, stop, (size_t)(q - p - 1)) : NULL;
}

/* Fits the tokens of a pattern to a text, one after the other, and writes the fields. starts, if given, receives the
 * position of each field. */
static inline __attribute__((always_inline)) bool follow(const struct ls_catalogue *cat, uint32_t pattern,
                                                         const char *text, const char *e, bool lean,
                                                         struct ls_capture *fields, uint32_t *starts)
{
    const struct ls_pattern *pat = &cat->patterns.at[pattern];
    const struct ls_token *t = &cat->tokens.at[pat->first_token], *last = t + pat->tokens;
    const unsigned char *bytes = cat->token_bytes.at;
    const char *p = text;
    for (; t < last; t++) {
        const char *q;
        uint64_t value = 0;
        if (!literal_fits(t, bytes + t->at, p, e)) return false;
        p += t->n;
        if (starts) *starts++ = (uint32_t)(p - text);
        if (t->rivals == LS_RIVALS_CLOSE && !close_rivals_fail(&cat->tries[LS_WHERE_NCCL], t, p, e)) return false;
        switch (t->type[lean]) {
        case LS_TYPES:
            continue;
        case LS_BLANKS:
            while (p < e && *p == ' ') p++;
            continue;
        case LS_UINT:
        case LS_INT:
            q = few_digits(t->type[0], p, e, &value);
            break;
        case LS_HEX:
        case LS_PTR:
            q = pointer(t->type[0], p, e, &value);
            break;
        case LS_SKIP_DIGITS:
            p = skip_digits(t->type[0], p, e);
            if (!p) return false;
            continue;
        case LS_SKIP_HEX:
            p = skip_pointer(t->type[0], p, e);
            if (!p) return false;
            continue;
        case LS_WORD:
            q = word(t->stop, p, e);
            break;
        case LS_STR:
            q = t->stop == LS_STOP_END ? e : memchr(p, t->stop, (size_t)(e - p));
            break;
        case LS_REST:
            q = e;
            break;
        default:
            q = ls_read_value(t->type[0], p, e, &value);
        }
        if (!q) return false;
        struct ls_capture *c = &fields[t->slot];
        c->value = value;
        c->start = (uint32_t)(p - text);
        c->length = (uint32_t)(q - p);
        p = q;
    }
    if (p != e) return false;
    if (pat->widened) ls_widen(pat, &cat->messages.at[pat->message], fields);
    return true;
}

/* The row of guesses for a text: by the words before its first number, because what follows varies, and by its last
 * byte, because patterns with the same start mostly end differently. */
static uint32_t row_of(const char *text, size_t n)
{
    uint64_t head;
    memcpy(&head, text, sizeof head);
    /* The highest bit of each byte that is a digit: exact up to the first one; the bytes before it are kept. */
    uint64_t t = head ^ 0x3030303030303030u, number = (t - 0x0a0a0a0a0a0a0a0au) & ~t & 0x8080808080808080u;
    if (number) head &= ((number & (0 - number)) >> 7) - 1;
    unsigned char end = (unsigned char)text[n - 1];
    if ((unsigned)(end - '0') < 10 || (unsigned)(end - 'a') < 6) end = '0';
    return (uint32_t)((head ^ (uint64_t)end << 57) * 0x9e3779b97f4a7c15u >> 54);
}

/* Whether a second record may follow on the line: forks, also one of a fork of NCCL. Only fields that may contain
 * blanks can hold it. */
static bool may_hold_more(const struct ls_pattern *pat, const char *text, uint32_t n, bool forks)
{
    int level;
    uint32_t body;
    return pat->wide && (text[n - 1] == ']' || ls_find_tag(text, 0, n, forks, &level, &body) >= 0);
}

static const struct ls_guess *guess(const struct ls_catalogue *cat, struct ls_guesses *guesses, uint32_t row,
                                    const char *text, size_t n, bool lean, bool forks, struct ls_capture *fields)
{
    for (int i = 0; i < LS_GUESS_WAYS; i++) {
        const struct ls_guess *g = &guesses->guess[row][i];
        if (!g->pattern) return NULL;
        if (g->known && (n < g->known || !ls_equal(text, g->bytes, g->known))) continue;
        if (!follow(cat, g->pattern - 1, text, text + n, lean, fields, NULL)) continue;
        if (may_hold_more(&cat->patterns.at[g->pattern - 1], text, (uint32_t)n, forks)) return NULL;
        guesses->futile[row] = 0;
        return g;
    }
    return NULL;
}

/* A copy of a text with room after it, if it is not too long. */
struct roomy {
    char text[2048 + ROOM];
};

static bool make_room(struct roomy *to, const char *text, size_t n)
{
    if (n > sizeof to->text - ROOM) return false;
    memcpy(to->text, text, n);
    memset(to->text + n, 0, ROOM);
    return true;
}

static inline uint32_t expected(const struct ls_catalogue *cat, struct ls_guesses *guesses, const char *text, size_t n,
                                bool lean, bool forks, struct ls_capture *fields)
{
    uint32_t pattern = guesses->fitter ? guesses->fitter(guesses->layouts, text, n, fields) : 0;
    if (pattern) return pattern;
    const struct ls_guess *g = guess(cat, guesses, row_of(text, n), text, n, lean, forks, fields);
    if (!g) return 0;
    if (guesses->fitter) ls_add_layout(cat, guesses->layouts, g, text, n, lean);
    return g->pattern;
}

static __attribute__((noinline)) uint32_t expected_copy(const struct ls_catalogue *cat, struct ls_guesses *guesses,
                                                        const char *text, size_t n, bool lean, bool forks,
                                                        struct ls_capture *fields)
{
    struct roomy copy;
    return make_room(&copy, text, n) ? expected(cat, guesses, copy.text, n, lean, forks, fields) : 0;
}

uint32_t ls_expected(const struct ls_catalogue *cat, struct ls_guesses *guesses, const char *text, size_t n,
                     size_t room, bool lean, bool forks, struct ls_capture *fields)
{
    if (n < WORD) return 0;
    return room >= ROOM ? expected(cat, guesses, text, n, lean, forks, fields)
                        : expected_copy(cat, guesses, text, n, lean, forks, fields);
}

bool ls_match_expected(const struct ls_catalogue *cat, struct ls_guesses *guesses, const char *text, size_t n,
                       bool lean, bool forks, struct ls_match *out)
{
    uint32_t pattern = ls_expected(cat, guesses, text, n, 0, lean, forks, out->own);
    if (!pattern) return false;
    out->field = out->own;
    ls_fill_match(cat, pattern - 1, text, text + n, out);
    return true;
}

bool ls_follow(const struct ls_catalogue *cat, uint32_t pattern, const char *text, size_t n, struct ls_match *out,
               uint32_t *starts)
{
    struct roomy copy;
    if (!make_room(&copy, text, n) || !follow(cat, pattern, copy.text, copy.text + n, false, out->own, starts))
        return false;
    out->field = out->own;
    ls_fill_match(cat, pattern, text, text + n, out);
    return true;
}

struct ls_guesses *ls_guesses_new(void)
{
    enum { LINE = 64 }; /* of the cache */
    struct ls_guesses *g = ls_zalloc(sizeof *g);
    g->fitter = ls_best_fitter();
    if (g->fitter) { /* only those that are used get memory */
        g->room = ls_zalloc(sizeof *g->layouts + LINE);
        g->layouts = (struct ls_layouts *)(((uintptr_t)g->room + LINE - 1) & ~(uintptr_t)(LINE - 1));
    }
    return g;
}

void ls_guesses_free(struct ls_guesses *guesses)
{
    if (guesses) free(guesses->room);
    free(guesses);
}

/* A search that knows only the start of a text. */
struct proof {
    const struct ls_trie *trie;
    const char *text;
    uint32_t n;    /* bytes that may be read */
    uint32_t read; /* bytes that were */
    int steps;
};

/* Whether byte i may be read; if so the text does not end before it. */
static bool see(struct proof *p, uint32_t i)
{
    if (i >= p->n) return false;
    if (p->read <= i) p->read = i + 1;
    return true;
}

static bool of_number(int type, char c)
{
    const char *others = type == LS_FLOAT ? "+-.infaeE" : type == LS_INT ? "+-" : type == LS_PTR ? "(nil)" : "";
    if ((unsigned)(c - '0') < 10) return true;
    if ((type == LS_HEX || type == LS_PTR) && ((unsigned)((c | 32) - 'a') < 6 || (c | 32) == 'x')) return true;
    return c && strchr(others, c);
}

static bool fails(struct proof *p, const struct ls_node *node, int edges, uint32_t at);

/* Whether no path through this edge leads to an end. */
static bool edge_fails(struct proof *p, const struct ls_field_edge *f, uint32_t at)
{
    const struct ls_node *next = &p->trie->nodes.at[f->node];
    uint32_t q = at;
    switch (f->type) {
    case LS_STR:
    case LS_REST:
        return false;
    case LS_BLANKS:
        do
            if (!see(p, q)) return false;
        while (p->text[q++] == ' ');
        return fails(p, next, next->nfields, q - 1);
    case LS_WORD:
        do
            if (!see(p, q)) return false;
        while (p->text[q] != ' ' && p->text[q] != '\t' && ++q);
        if (q == at) return true;
        if (f->stop < 0 || f->stop == ' ') return fails(p, next, next->nfields, q);
        for (uint32_t k = at + 1; k < q; k++)
            if ((unsigned char)p->text[k] == f->stop && !fails(p, next, next->nfields, k)) return false;
        return true;
    case LS_ADDR:
        do
            if (!see(p, q)) return false;
        while (p->text[q] != '<' && p->text[q] != ' ' && ++q);
        if (p->text[q++] == ' ') return true;
        do
            if (!see(p, q)) return false;
        while ((unsigned)(p->text[q++] - '0') < 10);
        break;
    default:
        /* A number depends on its possible bytes, and on the first that is not one. */
        do
            if (!see(p, q)) return false;
        while (of_number(f->type, p->text[q++]));
    }
    uint64_t value;
    const char *end = ls_read_value(f->type, p->text + at, p->text + q, &value);
    return !end || fails(p, next, next->nfields, (uint32_t)(end - p->text));
}

/* Whether neither a literal nor one of the first edges of node leads to an end, nor a text that ends here. */
static bool fails(struct proof *p, const struct ls_node *node, int edges, uint32_t at)
{
    if (++p->steps > PROOF_STEPS) return false;
    if ((node->nlits || node->accept >= 0) && !see(p, at)) return false;
    const struct ls_literal *lit = node->nlits ? ls_find_literal(node, (unsigned char)p->text[at]) : NULL;
    if (lit) {
        uint32_t k = 0;
        while (k < lit->n && see(p, at + k) && p->text[at + k] == (char)lit->s[k]) k++;
        const struct ls_node *next = &p->trie->nodes.at[lit->node];
        if (k == lit->n ? !fails(p, next, next->nfields, at + k) : at + k >= p->n) return false;
    }
    for (int i = 0; i < edges; i++)
        if (!edge_fails(p, &node->fields[i], at)) return false;
    return true;
}

/* How many bytes show that the far rivals of a pattern fail; LS_KNOWN + 1: not so few. */
static uint32_t bytes_to_know(const struct ls_catalogue *cat, uint32_t pattern, const char *text, size_t n)
{
    const struct ls_pattern *pat = &cat->patterns.at[pattern];
    struct ls_match m;
    uint32_t starts[2 * LS_CAPTURES];
    struct proof p = {
        .trie = &cat->tries[LS_WHERE_NCCL], .text = text, .n = n < LS_KNOWN ? (uint32_t)n : (uint32_t)LS_KNOWN};
    if (!ls_follow(cat, pattern, text, n, &m, starts)) return LS_KNOWN + 1;
    for (uint32_t i = 0; i < pat->tokens; i++) {
        const struct ls_token *t = &cat->tokens.at[pat->first_token + i];
        if (t->rivals != LS_RIVALS_FAR) continue;
        if (!fails(&p, &p.trie->nodes.at[t->node], t->edge, starts[i])) return LS_KNOWN + 1;
        /* The field itself must be at its current position. */
        if (starts[i] && !see(&p, starts[i])) return LS_KNOWN + 1;
    }
    return p.read;
}

void ls_expect(const struct ls_catalogue *cat, struct ls_guesses *guesses, const char *text, size_t n,
               const struct ls_match *found)
{
    const struct ls_pattern *pat = &cat->patterns.at[found->pattern];
    if (!pat->tokens || n < WORD) return;
    uint32_t row = row_of(text, n), known = 0;
    if (pat->far) {
        if (guesses->futile[row] == FUTILE) return;
        guesses->futile[row]++;
        known = bytes_to_know(cat, found->pattern, text, n);
        if (known > LS_KNOWN) return;
    }
    for (int i = 0; i < LS_GUESS_WAYS; i++) {
        const struct ls_guess *old = &guesses->guess[row][i];
        if (old->pattern == found->pattern + 1 && old->known == known && memcmp(old->bytes, text, known) == 0) return;
    }
    struct ls_guess *g = &guesses->guess[row][guesses->next[row]++ % LS_GUESS_WAYS];
    *g = (struct ls_guess){.pattern = found->pattern + 1, .known = (uint16_t)known};
    memcpy(g->bytes, text, known);
}

int ls_guess_text(const ls_catalogue *cat, const char *seen, size_t seen_n, const char *text, size_t n,
                  uint64_t *present, uint64_t *values, uint32_t *starts, uint32_t *lengths)
{
    struct ls_match m;
    struct ls_guesses *guesses = ls_guesses_new();
    if (seen_n && ls_match(cat, LS_WHERE_NCCL, seen, seen_n, false, &m)) {
        ls_expect(cat, guesses, seen, seen_n, &m);
        ls_match_expected(cat, guesses, seen, seen_n, false, true, &m); /* its layout */
    }
    bool right = ls_match_expected(cat, guesses, text, n, false, true, &m);
    ls_guesses_free(guesses);
    if (!right) return -1;
    ls_show_match(&m, 0, present, values, starts, lengths);
    return (int)m.index;
}
