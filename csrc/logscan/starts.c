/* Where a pattern that may start anywhere in a line can start: a filter that costs a few loads for each byte. It may
 * say yes in vain, and never no where a pattern starts. */
#include "scanner.h"

enum { QUAD = 4 };

static bool has(const uint8_t *bits, unsigned at)
{
    return bits[at >> 3] & 1u << (at & 7);
}

static void set(uint8_t *bits, unsigned at)
{
    bits[at >> 3] |= (uint8_t)(1u << (at & 7));
}

static unsigned pair_of(const char *s)
{
    return (unsigned)(unsigned char)s[0] << 8 | (unsigned char)s[1];
}

static unsigned quad_of(const char *s)
{
    uint32_t x;
    memcpy(&x, s, sizeof x);
    return (uint32_t)(x * 2654435761u) >> 16;
}

static void all_after(uint8_t *bits, unsigned first)
{
    for (unsigned second = 0; second < 256; second++) set(bits, first << 8 | second);
}

/* Notes the literals below a node. path: the len bytes on the way to it. */
static void note_literals(struct ls_trie *t, const struct ls_node *node, char *path, uint32_t len)
{
    if (len == QUAD) {
        set(t->starts.pairs, pair_of(path));
        set(t->starts.quads, quad_of(path));
        return;
    }
    if (len && (node->nfields || node->accept >= 0)) { /* anything may follow */
        if (len == 1) {
            all_after(t->starts.pairs, (unsigned char)path[0]);
            all_after(t->starts.shorts, (unsigned char)path[0]);
        } else {
            set(t->starts.pairs, pair_of(path));
            set(t->starts.shorts, pair_of(path));
        }
    }
    for (int i = 0; i < node->nlits; i++) {
        const struct ls_literal *lit = &node->lits[i];
        uint32_t n = lit->n < QUAD - len ? lit->n : QUAD - len;
        memcpy(path + len, lit->s, n);
        note_literals(t, &t->nodes.at[lit->node], path, len + n);
    }
}

/* The bytes that a text can go on with at a node. false: any byte. */
static bool first_bytes(const struct ls_trie *t, const struct ls_node *node, bool *first)
{
    if (node->accept >= 0) return false;
    for (int i = 0; i < node->nlits; i++) first[node->lits[i].s[0]] = true;
    for (int i = 0; i < node->nfields; i++) {
        const struct ls_field_edge *f = &node->fields[i];
        if (f->type == LS_BLANKS) {
            first[' '] = true;
            if (!first_bytes(t, &t->nodes.at[f->node], first)) return false;
        } else if (f->type == LS_UINT || f->type == LS_INT) {
            for (const char *c = "0123456789-+"; *c; c++) first[(unsigned char)*c] = true;
        } else
            return false;
    }
    return true;
}

static void note_pairs(uint8_t *bits, unsigned byte, const bool *second)
{
    for (unsigned c = 0; c < 256; c++)
        if (second[c]) set(bits, byte << 8 | c);
}

/* Notes the pairs of bytes that can follow a field. number: of digits, so that what follows it needs no blank. false:
 * any pair can. */
static bool note_after(struct ls_trie *t, const struct ls_node *node, bool number)
{
    uint8_t *after = t->starts.after;
    if (node->accept >= 0) return false;
    for (int i = 0; i < node->nlits; i++) {
        const struct ls_literal *lit = &node->lits[i];
        bool second[256] = {false};
        if (lit->n > 1)
            set(after, pair_of((const char *)lit->s));
        else if (first_bytes(t, &t->nodes.at[lit->node], second))
            note_pairs(after, lit->s[0], second);
        else
            all_after(after, lit->s[0]);
    }
    for (int i = 0; i < node->nfields; i++) {
        bool second[256] = {false};
        if (node->fields[i].type != LS_BLANKS || !first_bytes(t, &t->nodes.at[node->fields[i].node], second))
            return false;
        for (unsigned c = 0; number && c < 256; c++)
            if (second[c]) all_after(after, c);
        second[' '] = true;
        note_pairs(after, ' ', second);
    }
    return true;
}

void ls_find_starts(struct ls_trie *t)
{
    char path[QUAD];
    const struct ls_node *root = &t->nodes.at[0];
    memset(&t->starts, 0, sizeof t->starts);
    note_literals(t, root, path, 0);
    for (int i = 0; i < root->nfields; i++) {
        const struct ls_field_edge *f = &root->fields[i];
        bool known = f->type != LS_BLANKS && f->type != LS_STR && f->type != LS_REST;
        t->starts.fields = true;
        if (!known || !note_after(t, &t->nodes.at[f->node], !ls_is_text(f->type))) t->starts.any_field = true;
    }
}

/* A field at the start of a pattern starts a word, and has no blank in it. */
static bool field_may_start(const struct ls_starts *starts, const char *s, uint32_t i, uint32_t n)
{
    if (starts->any_field) return true;
    for (uint32_t k = i + 1; k + 1 < n; k++) {
        if (has(starts->after, pair_of(s + k))) return true;
        if (s[k] == ' ') return false;
    }
    return false;
}

bool ls_may_start(const struct ls_trie *t, const char *s, uint32_t i, uint32_t n)
{
    const struct ls_starts *starts = &t->starts;
    if (has(starts->pairs, pair_of(s + i)) &&
        (n - i < QUAD || has(starts->shorts, pair_of(s + i)) || has(starts->quads, quad_of(s + i))))
        return true;
    return starts->fields && (i == 0 || s[i - 1] == ' ') && field_may_start(starts, s, i, n);
}
