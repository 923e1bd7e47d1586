/* Layouts: lines of one kind differ in the digits of their numbers and in little else, so that most texts of a pattern
 * have their fields at the same places. A layout holds such a text: the bytes that do not change, and of each other
 * byte which digits may stand there. A text that has its bytes needs no step through the tokens of a pattern.
 *
 * A layout is made from a text that fits a pattern. It may be used for another one only if the tokens of the pattern
 * fit that, too, and with the same ends: the digits of a number end where they did, because the byte behind them is one
 * of those that do not change. Words are bytes that do not change. Close rivals (see straight.c) are looked at when the
 * layout is made: only bytes that do not change may show that they fail. Far ones fail for all texts that begin with
 * the known bytes of a guess, and these do not change either. */
#define _GNU_SOURCE
#include "layout.h"
#include "values.h"

enum { PATIENCE = 16, SELDOM = 64, LANE = LS_LAYOUT_LANE };
enum kind { SAME, DECIMAL, HEXADECIMAL };

/* A text, and what may change in it. */
struct draft {
    const struct ls_trie *trie;
    const char *text;
    uint32_t n;
    uint8_t kind[LS_LAYOUT_MOST];
};

/* Whether no literal of a node is at byte i of any text of this layout. */
static bool no_literal(const struct draft *d, const struct ls_node *node, uint32_t i)
{
    if (i >= d->n) return false;
    if (d->kind[i] != SAME) {
        for (int k = 0; k < node->nlits; k++)
            if (hex_digit[node->lits[k].s[0]]) return false;
        return true;
    }
    const struct ls_literal *lit = ls_find_literal(node, (unsigned char)d->text[i]);
    if (!lit) return true;
    for (uint32_t k = 0; k < lit->n && i + k < d->n; k++)
        if (d->kind[i + k] == SAME && d->text[i + k] != (char)lit->s[k]) return true;
    return false;
}

/* The last byte that a reader of numbers looks at, from byte i on. end: of the number, NULL: there is none. */
static uint32_t last_byte(const struct draft *d, int type, uint32_t i, const char *end)
{
    enum { MOST_DIGITS = 20 };
    if (end) return (uint32_t)(end - d->text);
    if (type == LS_UINT || type == LS_INT) return i + 1;
    if (type == LS_FLOAT) return i + 4;
    uint32_t k = i + 2; /* 0x */
    while (k < d->n && k < i + MOST_DIGITS && hex_digit[(unsigned char)d->text[k]]) k++;
    return k;
}

/* Whether a reader of numbers reads as far in all texts of this layout as in this one. */
static bool reads_alike(const struct draft *d, int type, uint32_t i, const char *end)
{
    bool hex = type == LS_HEX || type == LS_PTR;
    if (type == LS_ADDR) return false;
    if (hex && d->kind[i] != SAME && i + 1 < d->n && (d->text[i + 1] | 32) == 'x') return false;
    for (uint32_t k = i, last = last_byte(d, type, i, end); k <= last && k < d->n; k++)
        if (d->kind[k] == HEXADECIMAL && !hex) return false;
    return true;
}

/* Whether the close rivals of a field at byte i fail in all texts of this layout. */
static bool rivals_fail(const struct draft *d, const struct ls_token *t, uint32_t i)
{
    const struct ls_node *node = &d->trie->nodes.at[t->node];
    if (!no_literal(d, node, i)) return false;
    for (int k = 0; k < t->edge; k++) {
        uint64_t value;
        const struct ls_field_edge *f = &node->fields[k];
        const char *end = ls_read_value(f->type, d->text + i, d->text + d->n, &value);
        if (!reads_alike(d, f->type, i, end)) return false;
        if (end && !no_literal(d, &d->trie->nodes.at[f->node], (uint32_t)(end - d->text))) return false;
    }
    return true;
}

/* Marks the digits of a number, d->text[low, high). What else it has, such as 0x, stays. Returns where the digits
 * start; high: all of it stays. */
static uint32_t mark_number(struct draft *d, int type, uint32_t low, uint32_t high)
{
    bool hex = type == LS_HEX || type == LS_PTR;
    if (!hex && type != LS_UINT && type != LS_INT) return high;
    if (hex && high - low > 2 && d->text[low] == '0' && (d->text[low + 1] | 32) == 'x') low += 2;
    if (high == low || high - low > 16) return high;
    for (uint32_t k = low; k < high; k++) {
        unsigned digit = hex_digit[(unsigned char)d->text[k]];
        if (!digit || (!hex && digit > 10)) return high;
    }
    memset(d->kind + low, hex ? HEXADECIMAL : DECIMAL, high - low);
    return low;
}

static bool add_number(struct ls_layout *l, bool hex, uint8_t slot, uint32_t low, uint32_t high)
{
    if (l->hexes + l->decimals == LS_LAYOUT_NUMBERS) return false;
    struct ls_number n = {slot, (uint8_t)low, (uint8_t)(high - low)};
    if (hex) { /* these come first */
        l->number[l->hexes + l->decimals] = l->number[l->hexes];
        l->number[l->hexes++] = n;
    } else
        l->number[l->hexes + l->decimals++] = n;
    return true;
}

static void draw(struct ls_layout *l, const struct draft *d)
{
    static const uint8_t allowed[] = {[DECIMAL] = LS_DIGIT, [HEXADECIMAL] = LS_DIGIT | LS_LETTER};
    for (uint32_t i = 0; i < d->n; i++) {
        struct ls_layout_block *b = &l->block[i / LANE];
        /* No byte of a line is a line end. */
        b->same[i % LANE] = d->kind[i] == SAME ? d->text[i] : '\n';
        b->allowed[i % LANE] = allowed[d->kind[i]];
    }
}

/* Text in Markdown's links and escape sequences are read with more care. */
static bool is_odd(const char *text, uint32_t n)
{
    return memchr(text, 0x1b, n) || memmem(text, n, "](http", 6);
}

/* The layout of a text that fits a pattern. starts: of its fields. known: bytes at its start that may not change.
 * false: there is none. */
static bool make(const struct ls_catalogue *cat, uint32_t pattern, const char *text, uint32_t n, uint32_t known,
                 bool lean, const struct ls_match *m, const uint32_t *starts, struct ls_layout *l)
{
    const struct ls_pattern *pat = &cat->patterns.at[pattern];
    const struct ls_token *t = &cat->tokens.at[pat->first_token];
    struct draft d = {.trie = &cat->tries[LS_WHERE_NCCL], .text = text, .n = n};
    *l = (struct ls_layout){.pattern = pattern + 1,
                            .n = (uint16_t)n,
                            .room = pat->room[lean],
                            .last = (uint8_t)((n - 1) / LANE),
                            .behind = (uint8_t)(LANE - 1 - (n - 1) % LANE)};
    if (pat->widened || l->room > LS_LAYOUT_ROOM || is_odd(text, n)) return false;
    for (uint32_t i = 0; i < pat->tokens; i++) {
        int type = t[i].type[0];
        uint32_t low = starts[i], high = i + 1 < pat->tokens ? starts[i + 1] - t[i + 1].n : n;
        bool used = t[i].slot < l->room && t[i].type[lean] < LS_TYPES;
        uint32_t digits = low < known ? high : mark_number(&d, type, low, high);
        if (used) l->field[t[i].slot] = m->field[t[i].slot];
        if (used && digits < high && !add_number(l, d.kind[digits] == HEXADECIMAL, t[i].slot, digits, high))
            return false;
    }
    for (uint32_t i = 0; i < pat->tokens; i++)
        if (t[i].rivals == LS_RIVALS_CLOSE && !rivals_fail(&d, &t[i], starts[i])) return false;
    draw(l, &d);
    return true;
}

void ls_add_layout(const struct ls_catalogue *cat, struct ls_layouts *all, const struct ls_guess *g, const char *text,
                   size_t n, bool lean)
{
    struct ls_match m;
    uint32_t starts[2 * LS_CAPTURES], key = ls_layout_key(text, n), set = ls_layout_set(key);
    if (n > LS_LAYOUT_MOST) return;
    /* A log whose lines have ever new layouts gains nothing from them. */
    if (all->tries[set] >= PATIENCE && ++all->missed % SELDOM) return;
    if (all->tries[set] < PATIENCE) all->tries[set]++;
    if (!ls_follow(cat, g->pattern - 1, text, n, &m, starts)) return;
    struct ls_layout *l = &all->layout[set][all->next[set]++ % LS_LAYOUT_WAYS];
    if (!make(cat, g->pattern - 1, text, (uint32_t)n, g->known, lean, &m, starts, l))
        l->n = 0;
    else
        l->key = key;
}

#ifdef __x86_64__
LS_AVX2 static uint32_t fit_avx2(const struct ls_layouts *all, const char *text, size_t n, struct ls_capture *fields)
{
    const struct ls_layout *l = ls_fit_avx2(all, text, n, fields);
    return l ? l->pattern : 0;
}
#endif

ls_fitter ls_best_fitter(void)
{
#ifdef __x86_64__
    if (ls_has_avx2()) return fit_avx2;
#endif
    return NULL;
}
