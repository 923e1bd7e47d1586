/* Patterns as tokens that are fitted to a text one after the other, so that most texts need no search.
 *
 * The search tries the edges of a node in order, and takes the first path that leads to an end. A text that fits the
 * tokens of a pattern is what the search would find if at no node an earlier edge also leads to an end. Literals come
 * first and exclude each other, so only fields have such rivals. This file determines their kind; guess.c uses it. */
#include "catalogue.h"

/* STEPS limits the steps that rivals can add to a search and that guesses leave out: it stays below the search's own
 * limit. */
enum { DEPTH = 128, BYTES = 1024, STEPS = 400 };

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

/* Whether an edge of this node leads to an end without a byte of text; blanks may have been stripped. */
static bool ends_empty(const struct ls_trie *trie, const struct ls_node *node)
{
    for (int i = 0; i < node->nlits; i++) {
        const struct ls_node *next = &trie->nodes.at[node->lits[i].node];
        if (blank(&node->lits[i]) && (next->accept >= 0 || ends_empty(trie, next))) return true;
    }
    for (int i = 0; i < node->nfields; i++) {
        int type = node->fields[i].type;
        if (type == LS_BLANKS || type == LS_STR || type == LS_REST) return true;
    }
    return false;
}

static enum ls_rivals rivals(const struct ls_trie *trie, const struct ls_node *node, int edge)
{
    if (!node->nlits && !edge) return LS_RIVALS_NONE;
    /* Most of the root's edges would have to be checked. */
    if (node == trie->nodes.at) return LS_RIVALS_FAR;
    for (int i = 0; i < edge; i++) {
        int type = node->fields[i].type;
        if (type == LS_BLANKS || type >= LS_WORD || trie->nodes.at[node->fields[i].node].nfields) return LS_RIVALS_FAR;
    }
    return LS_RIVALS_CLOSE;
}

/* Whether somebody reads this field of a line that is kept in no event. */
static bool used(const struct ls_message *m, int slot)
{
    if (m->keep != LS_KEEP_COUNT || m->role == LS_RPC_BEGUN) return true; /* failed requests are kept */
    for (int i = 0; i < LS_ROLE_FIELDS; i++)
        if (m->role_field[i] == slot) return true;
    for (int i = 0; i < m->keys; i++)
        if (m->key[i] == slot) return true;
    return false;
}

static uint8_t skipped(int type)
{
    if (type == LS_UINT || type == LS_INT) return LS_SKIP_DIGITS;
    return type == LS_HEX || type == LS_PTR ? LS_SKIP_HEX : (uint8_t)type;
}

static void keep(struct way *w, struct ls_pattern *pat)
{
    struct ls_catalogue *cat = w->cat;
    uint32_t base = cat->token_bytes.n, steps = 0;
    int captures = 0;
    for (uint32_t i = 0; i < w->ntokens; i++) steps += 2u * w->token[i].edge + 2;
    if (steps > STEPS) return;
    pat->first_token = cat->tokens.n;
    pat->tokens = w->ntokens;
    for (uint32_t i = 0; i < w->nbytes; i++) *ls_push(&cat->token_bytes) = w->bytes[i];
    for (uint32_t i = 0; i < w->ntokens; i++) {
        struct ls_token *t = ls_push(&cat->tokens);
        *t = w->token[i];
        int type = t->type[0];
        if (type == LS_STR || type == LS_REST) pat->wide = true;
        if (t->rivals == LS_RIVALS_FAR) pat->far = true;
        int slot = type == LS_TYPES || type == LS_BLANKS ? -1 : pat->slot[captures++];
        t->slot = slot < 0 ? LS_FIELDS : (uint8_t)slot;
        t->type[1] = slot < 0 || !used(&cat->messages.at[pat->message], slot) ? skipped(type) : (uint8_t)type;
        for (int lean = 0; lean < 2; lean++)
            if (slot >= pat->room[lean] && (!lean || used(&cat->messages.at[pat->message], slot)))
                pat->room[lean] = (uint8_t)(slot + 1);
        uint32_t short_n = t->n < LS_HEAD ? t->n : LS_HEAD;
        memcpy(t->head, w->bytes + t->at, short_n);
        t->mask = (1u << short_n) - 1;
        t->at += base;
    }
}

static void walk(struct way *w, const struct ls_node *node);

/* Adds a token for a field, or for a literal. The literal before a field is part of its token. */
static void add(struct way *w, const struct ls_token *next, const struct ls_literal *lit, uint32_t node)
{
    uint32_t ntokens = w->ntokens, nbytes = w->nbytes;
    if (ntokens == DEPTH || (lit && nbytes + lit->n > BYTES)) return;
    struct ls_token *t = &w->token[ntokens ? ntokens - 1 : 0];
    struct ls_token last = *t;
    bool open = ntokens && last.type[0] == LS_TYPES;
    if (!open) {
        t = &w->token[w->ntokens++];
        *t = (struct ls_token){.at = nbytes};
    }
    uint32_t at = t->at, n = t->n;
    *t = *next;
    t->at = at;
    t->n = n;
    if (lit) {
        memcpy(w->bytes + nbytes, lit->s, lit->n);
        w->nbytes += lit->n;
        t->n += lit->n;
    }
    walk(w, &w->trie->nodes.at[node]);
    w->ntokens = ntokens;
    w->nbytes = nbytes;
    if (open) *t = last;
}

static void walk(struct way *w, const struct ls_node *node)
{
    if (w->ntokens && node->accept >= 0 && !ends_empty(w->trie, node)) keep(w, &w->cat->patterns.at[node->accept]);
    for (int i = 0; i < node->nlits; i++) {
        struct ls_token t = {.type = {LS_TYPES}};
        add(w, &t, &node->lits[i], node->lits[i].node);
    }
    for (int i = 0; i < node->nfields; i++) {
        const struct ls_field_edge *f = &node->fields[i];
        /* If nothing limits the length of a text, only a search can find it. */
        if (f->type == LS_STR && f->stop == LS_STOP_ANY) continue;
        struct ls_token t = {.type = {f->type},
                             .rivals = (uint8_t)rivals(w->trie, node, i),
                             .stop = f->stop,
                             .edge = (uint16_t)i,
                             .node = (uint32_t)(node - w->trie->nodes.at)};
        add(w, &t, NULL, f->node);
    }
}

void ls_lay_out(struct ls_catalogue *cat, const struct ls_trie *trie)
{
    struct way *w = ls_zalloc(sizeof *w);
    w->cat = cat;
    w->trie = trie;
    walk(w, &trie->nodes.at[0]);
    free(w);
}
