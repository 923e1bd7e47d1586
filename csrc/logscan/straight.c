/* Straight patterns: those whose way through the trie has no choice that the text could decide otherwise.
 *
 * On such a way every literal stands first in its node, and every field is the only thing that can come first in its
 * own. So a text that fits the tokens of a straight pattern one after the other is what the search would find, and the
 * search can be left out. Most lines of a log come from few patterns, and most of those are straight. */
#include "catalogue.h"

enum { DEPTH = 128, BYTES = 1024 };

struct way {
    struct ls_catalogue *cat;
    const struct ls_trie *trie;
    struct ls_token token[DEPTH];
    uint32_t ntokens, nbytes;
    unsigned char bytes[BYTES];
};

static bool blank(const struct ls_literal *lit)
{
    for (uint32_t i = 0; i < lit->n; i++)
        if (lit->s[i] != ' ') return false;
    return true;
}

/* Whether a text that ends at this node is accepted here: no other edge may take an empty text. */
static bool ends_here(const struct ls_node *node)
{
    if (node->accept < 0 || node->nfields) return false;
    for (int i = 0; i < node->nlits; i++)
        if (blank(&node->lits[i])) return false;
    return true;
}

static void keep(struct way *w, struct ls_pattern *pat)
{
    struct ls_catalogue *cat = w->cat;
    uint32_t base = cat->straight_bytes.n;
    pat->first_token = cat->tokens.n;
    pat->tokens = w->ntokens;
    for (uint32_t i = 0; i < w->nbytes; i++) *ls_push(&cat->straight_bytes) = w->bytes[i];
    for (uint32_t i = 0; i < w->ntokens; i++) {
        struct ls_token *t = ls_push(&cat->tokens);
        *t = w->token[i];
        if (t->type == LS_STR || t->type == LS_REST) pat->wide = true;
        t->at += base;
    }
}

static void walk(struct way *w, const struct ls_node *node)
{
    if (w->ntokens && ends_here(node)) keep(w, &w->cat->patterns.at[node->accept]);
    if (w->ntokens == DEPTH) return;
    uint32_t ntokens = w->ntokens, nbytes = w->nbytes;
    for (int i = 0; i < node->nlits; i++) {
        const struct ls_literal *lit = &node->lits[i];
        if (w->nbytes + lit->n > BYTES) continue;
        struct ls_token *t = w->ntokens ? &w->token[w->ntokens - 1] : NULL;
        const struct ls_token last = t ? *t : (struct ls_token){0};
        memcpy(w->bytes + w->nbytes, lit->s, lit->n);
        if (t && t->type == LS_TYPES)
            t->n += lit->n; /* two literals in a row are one */
        else
            w->token[w->ntokens++] = (struct ls_token){.type = LS_TYPES, .at = w->nbytes, .n = lit->n};
        w->nbytes += lit->n;
        walk(w, &w->trie->nodes.at[lit->node]);
        w->ntokens = ntokens;
        w->nbytes = nbytes;
        if (t) *t = last;
    }
    if (node->nlits || !node->nfields) return;
    const struct ls_field_edge *f = &node->fields[0];
    if (f->type == LS_BLANKS || (f->type == LS_STR && f->stop == LS_STOP_ANY)) return;
    w->token[w->ntokens++] = (struct ls_token){.type = f->type, .stop = f->stop};
    walk(w, &w->trie->nodes.at[f->node]);
    w->ntokens = ntokens;
}

void ls_find_straight(struct ls_catalogue *cat, const struct ls_trie *trie)
{
    struct way *w = ls_zalloc(sizeof *w);
    w->cat = cat;
    w->trie = trie;
    walk(w, &trie->nodes.at[0]);
    free(w);
}
