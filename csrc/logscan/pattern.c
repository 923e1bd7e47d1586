/* Pattern notation to trie: literal text and {name:type} fields. */
#include "catalogue.h"

#include <ctype.h>

static const char *const type_names[LS_TYPES] = {
    [LS_UINT] = "uint", [LS_INT] = "int",   [LS_HEX] = "hex", [LS_PTR] = "ptr",   [LS_FLOAT] = "float",
    [LS_ADDR] = "addr", [LS_WORD] = "word", [LS_STR] = "str", [LS_REST] = "rest",
};

static const struct {
    const char *name;
    const char *fields[LS_ROLE_FIELDS];
} roles[LS_ROLES] = {
    [LS_NO_ROLE] = {"", {0}},
    [LS_RPC_SERVED] = {"rpc.served", {"op", "type", "resp_size"}},
    [LS_RPC_BEGUN] = {"rpc.begun", {"operation", "res"}},
    [LS_RPC_RECEIVED] = {"rpc.received", {"op"}},
    [LS_RPC_MATCHED] = {"rpc.matched", {"op", "expected"}},
    [LS_RPC_QUEUED] = {"rpc.queued", {"op"}},
    [LS_RPC_DEQUEUED] = {"rpc.dequeued", {"op"}},
    [LS_RPC_NEW_CONN] = {"rpc.new_conn", {"dir", "id", "local_rank", "transport"}},
    [LS_RPC_CONNECTED] = {"rpc.connected", {"peer", "conn"}},
    [LS_FD_ASKED] = {"fd.asked", {"op", "rank", "peer", "comm", "handle", "fd"}},
    [LS_FD_RECEIVED] = {"fd.received", {"op", "rank", "peer", "comm", "handle", "fd"}},
    [LS_FD_ANSWERED] = {"fd.answered", {"op", "rank", "peer", "comm", "handle", "fd"}},
    [LS_FD_DONE] = {"fd.done", {"op", "rank", "peer", "comm", "handle", "fd"}},
    [LS_FD_RETURNED] = {"fd.returned", {"op", "rank", "peer", "comm", "handle", "fd"}},
    [LS_COMM_START] = {"comm.start", {"comm", "rank", "nranks", "dev", "nvml", "bus", "commid", "kind"}},
    [LS_COMM_COMPLETE] = {"comm.complete", {"comm", "rank", "nranks", "dev", "nvml", "bus", "commid", "kind"}},
    [LS_COMM_END] = {"comm.end", {"comm", "rank", "nranks", "dev", "nvml", "bus", "commid", "kind"}},
    [LS_COMM_NAMED] = {"comm.named", {"comm", "rank", "nranks", "dev", "nvml", "bus", "commid", "kind"}},
    [LS_SEQ_OP] = {"seq.op", {"coll", "opcount", "count", "datatype", "op", "root", "comm", "nranks"}},
    [LS_LEDGER_OPEN] = {"ledger.open", {0}},
    [LS_LEDGER_IMPORT] = {"ledger.import", {0}},
    [LS_LEDGER_CLOSE] = {"ledger.close", {0}},
    [LS_DATA_PROGRESS] = {"data.progress", {0}},
    [LS_DATA_STREAM] = {"data.stream", {0}},
    [LS_DATA_EVENT] = {"data.event", {0}},
    [LS_DATA_PUBLISHED] = {"data.published", {0}},
    [LS_PROC_BIRTH] = {"proc.birth", {0}},
};

struct token {
    int type; /* -1: literal */
    int slot;
    const unsigned char *s;
    uint32_t n;
};

static uint32_t new_node(struct ls_trie *t)
{
    struct ls_node *node = ls_push(&t->nodes);
    node->accept = -1;
    return t->nodes.n - 1;
}

ls_catalogue *ls_catalogue_new(void)
{
    struct ls_catalogue *cat = ls_zalloc(sizeof *cat);
    for (int i = 0; i < LS_WHERES; i++) new_node(&cat->tries[i]);
    return cat;
}

void ls_catalogue_free(ls_catalogue *cat)
{
    if (!cat) return;
    for (int i = 0; i < LS_WHERES; i++) {
        struct ls_trie *t = &cat->tries[i];
        for (uint32_t k = 0; k < t->nodes.n; k++) {
            free(t->nodes.at[k].lits);
            free(t->nodes.at[k].fields);
            free(t->nodes.at[k].dispatch);
        }
        free(t->nodes.at);
    }
    for (uint32_t i = 0; i < cat->literals.n; i++) free(cat->literals.at[i]);
    LS_FREE(cat->literals.at, cat->tokens.at, cat->token_bytes.at, cat->messages.at, cat->patterns.at, cat);
}

/* Returns the number of the message, -1 for an unknown role. */
int ls_catalogue_message(ls_catalogue *cat, int where, int level, int keep, const char *role)
{
    int r = LS_NO_ROLE;
    while (r < LS_ROLES && strcmp(roles[r].name, role) != 0) r++;
    if (r == LS_ROLES) return -1;
    struct ls_message *m = ls_push(&cat->messages);
    m->where = (uint8_t)where;
    m->level = (uint8_t)level;
    m->keep = (uint8_t)keep;
    m->role = (uint8_t)r;
    memset(m->role_field, -1, sizeof m->role_field);
    if (r == LS_PROC_BIRTH) m->birth = (uint8_t)(cat->births++ % 32);
    return (int)cat->messages.n - 1;
}

static int find_field(const struct ls_message *m, const char *name, size_t n)
{
    for (int i = 0; i < m->fields; i++)
        if (strlen(m->name[i]) == n && memcmp(m->name[i], name, n) == 0) return i;
    return -1;
}

static int column(const char *text, const char *at, char *err, size_t size, const char *what)
{
    snprintf(err, size, "%s", what);
    return (int)(at - text) + 1;
}

/* One {...} at s; returns 0 and advances *s behind it, or a column. */
static int parse_field(const char *text, const char **s, const char *end, struct ls_message *m, struct token *tok,
                       char *err, size_t size)
{
    const char *open = *s, *p = open + 1;
    const char *close = memchr(p, '}', (size_t)(end - p));
    if (!close) return column(text, open, err, size, "'{' without '}' (write '{{' for a brace)");
    tok->slot = -1;
    *s = close + 1;
    if (close == p + 1 && *p == ' ') {
        tok->type = LS_BLANKS;
        return 0;
    }
    const char *colon = memchr(p, ':', (size_t)(close - p));
    if (!colon) return column(text, open, err, size, "a field is written {name:type}");
    size_t n = (size_t)(colon - p), tn = (size_t)(close - colon - 1);
    for (tok->type = LS_UINT; tok->type < LS_TYPES; tok->type++)
        if (strlen(type_names[tok->type]) == tn && memcmp(type_names[tok->type], colon + 1, tn) == 0) break;
    if (tok->type == LS_TYPES)
        return column(text, colon + 1, err, size,
                      "no such type: expected int, uint, hex, ptr, float, word, str, rest or addr");
    if (n == 1 && *p == '_') return 0;
    if (n == 0 || n >= LS_NAME || !islower((unsigned char)*p))
        return column(text, p, err, size, "a field name is [a-z][a-z0-9_]*, at most 63 bytes");
    for (const char *q = p; q < colon; q++)
        if (!islower((unsigned char)*q) && !isdigit((unsigned char)*q) && *q != '_')
            return column(text, q, err, size, "a field name is [a-z][a-z0-9_]*, at most 63 bytes");
    int slot = find_field(m, p, n);
    if (slot < 0) {
        if (m->fields == LS_FIELDS) return column(text, p, err, size, "a message has at most 64 fields");
        slot = m->fields++;
        memcpy(m->name[slot], p, n);
        m->name[slot][n] = 0;
        m->type[slot] = (uint8_t)tok->type;
    } else if (m->type[slot] != tok->type) {
        /* Releases print the same value as a number or as a name, as ptr or as hex: each line says which. */
        int a = m->type[slot], b = tok->type;
        if (ls_is_text(a) || (!ls_is_text(b) && (b == LS_FLOAT || (b == LS_INT && (a == LS_UINT || a == LS_HEX)))))
            m->type[slot] = (uint8_t)b;
    }
    tok->slot = slot;
    return 0;
}

/* Splits the notation into tokens; literal bytes are written to buf. Returns 0 or a column. */
static int tokenize(const char *text, size_t n, struct ls_message *m, struct token *toks, int *ntoks,
                    unsigned char *buf, char *err, size_t size)
{
    const char *s = text, *end = text + n;
    int count = 0, named = 0;
    uint64_t seen = 0;
    while (s < end) {
        if (count == LS_CAPTURES * 2) return column(text, s, err, size, "too many fields");
        struct token *tok = &toks[count];
        if (*s == '{' && !(s + 1 < end && s[1] == '{')) {
            const char *open = s;
            int col = parse_field(text, &s, end, m, tok, err, size);
            if (col) return col;
            if (count && toks[count - 1].type == LS_REST)
                return column(text, open, err, size, "nothing can follow a rest field");
            if (tok->type != LS_BLANKS && ++named > LS_CAPTURES)
                return column(text, open, err, size, "too many fields");
            if (tok->slot >= 0 && (seen & 1ull << tok->slot))
                return column(text, open, err, size, "a field may occur only once in a pattern");
            if (tok->slot >= 0) seen |= 1ull << tok->slot;
            count++;
            continue;
        }
        if (count && toks[count - 1].type == LS_REST)
            return column(text, s, err, size, "nothing can follow a rest field");
        tok->type = -1;
        tok->s = buf;
        while (s < end && (*s != '{' || (s + 1 < end && s[1] == '{'))) {
            if (*s == '{' || *s == '}') {
                if (s + 1 >= end || s[1] != *s)
                    return column(text, s, err, size, "a lone '}' (write '}}' for a brace)");
                s++;
            }
            *buf++ = (unsigned char)*s++;
        }
        tok->n = (uint32_t)(buf - tok->s);
        count++;
    }
    /* Lines are compared without the blanks at their ends. */
    while (count && toks[count - 1].type == -1 && toks[count - 1].n && toks[count - 1].s[toks[count - 1].n - 1] == ' ')
        if (--toks[count - 1].n == 0) count--;
    if (!count) return column(text, text, err, size, "an empty pattern");
    *ntoks = count;
    return 0;
}

static uint32_t add_literal(struct ls_trie *t, uint32_t at, const unsigned char *s, uint32_t n)
{
    while (n) {
        struct ls_node *node = &t->nodes.at[at];
        struct ls_literal *lit = NULL;
        for (int i = 0; i < node->nlits; i++)
            if (node->lits[i].s[0] == *s) lit = &node->lits[i];
        if (!lit) {
            uint32_t child = new_node(t);
            node = &t->nodes.at[at];
            node->lits = ls_realloc(node->lits, (node->nlits + 1u) * sizeof *node->lits);
            node->lits[node->nlits++] = (struct ls_literal){s, n, child};
            return child;
        }
        uint32_t same = 0;
        while (same < n && same < lit->n && lit->s[same] == s[same]) same++;
        if (same < lit->n) { /* split the edge */
            struct ls_literal tail = {lit->s + same, lit->n - same, lit->node};
            uint32_t middle = new_node(t);
            node = &t->nodes.at[at];
            for (int i = 0; i < node->nlits; i++)
                if (node->lits[i].s[0] == *s) lit = &node->lits[i];
            lit->n = same;
            lit->node = middle;
            t->nodes.at[middle].lits = ls_realloc(NULL, sizeof tail);
            t->nodes.at[middle].lits[0] = tail;
            t->nodes.at[middle].nlits = 1;
        }
        at = lit->node;
        s += same;
        n -= same;
    }
    return at;
}

static uint32_t add_field(struct ls_trie *t, uint32_t at, int type, int stop)
{
    struct ls_node *node = &t->nodes.at[at];
    int i = 0;
    for (; i < node->nfields; i++)
        if (node->fields[i].type == type && node->fields[i].stop == stop) return node->fields[i].node;
    uint32_t child = new_node(t);
    node = &t->nodes.at[at];
    node->fields = ls_realloc(node->fields, (node->nfields + 1u) * sizeof *node->fields);
    for (i = node->nfields; i > 0 && node->fields[i - 1].type > type; i--) node->fields[i] = node->fields[i - 1];
    node->fields[i] = (struct ls_field_edge){(uint8_t)type, (int16_t)stop, child};
    node->nfields++;
    return child;
}

int ls_catalogue_pattern(ls_catalogue *cat, int message, const char *text, size_t n, char *err, size_t err_size)
{
    struct ls_message *m = &cat->messages.at[message];
    struct token toks[LS_CAPTURES * 2];
    int count = 0;
    unsigned char *buf = ls_realloc(NULL, n + 1);
    *ls_push(&cat->literals) = buf;
    int col = tokenize(text, n, m, toks, &count, buf, err, err_size);
    if (col) return col;
    struct ls_pattern pat = {.message = (uint32_t)message};
    struct ls_trie *t = &cat->tries[m->where];
    uint32_t at = 0;
    for (int i = 0; i < count; i++) {
        if (toks[i].type < 0) {
            at = add_literal(t, at, toks[i].s, toks[i].n);
            continue;
        }
        int stop = 0;
        if (toks[i].type == LS_WORD || toks[i].type == LS_STR)
            stop = i + 1 == count ? LS_STOP_END : toks[i + 1].type < 0 ? toks[i + 1].s[0] : LS_STOP_ANY;
        at = add_field(t, at, toks[i].type, stop);
        if (toks[i].type != LS_BLANKS) {
            pat.type[pat.captures] = (uint8_t)toks[i].type;
            pat.slot[pat.captures++] = (int8_t)toks[i].slot;
        }
    }
    int last = toks[count - 1].type;
    pat.ends_in_field = last >= 0 && last != LS_REST && last != LS_STR && last != LS_BLANKS;
    if (t->nodes.at[at].accept >= 0) {
        uint32_t other = cat->patterns.at[t->nodes.at[at].accept].message;
        snprintf(err, err_size, "the same pattern as message #%u", other);
        return other == (uint32_t)message ? 0 : 1;
    }
    t->nodes.at[at].accept = (int32_t)cat->patterns.n;
    *ls_push(&cat->patterns) = pat;
    return 0;
}

void ls_catalogue_text_field(ls_catalogue *cat, int message, const char *name)
{
    struct ls_message *m = &cat->messages.at[message];
    if (m->fields == LS_FIELDS) return;
    m->type[m->fields] = LS_REST;
    snprintf(m->name[m->fields++], LS_NAME, "%s", name);
}

int ls_catalogue_fields(const ls_catalogue *cat, int message)
{
    return cat->messages.at[message].fields;
}

const char *ls_catalogue_field_name(const ls_catalogue *cat, int message, int field)
{
    return cat->messages.at[message].name[field];
}

int ls_catalogue_field_type(const ls_catalogue *cat, int message, int field)
{
    return cat->messages.at[message].type[field];
}

void ls_catalogue_complaint(ls_catalogue *cat, int message)
{
    cat->messages.at[message].complaint = true;
}

/* The three below return -1 for a field that the message does not have. */
int ls_catalogue_distinct(ls_catalogue *cat, int message, const char *field)
{
    struct ls_message *m = &cat->messages.at[message];
    int slot = find_field(m, field, strlen(field));
    if (slot < 0) return -1;
    m->distinct |= 1ull << slot;
    return 0;
}

int ls_catalogue_ledger(ls_catalogue *cat, int message, int ledger, int host_scope)
{
    cat->messages.at[message].ledger = (uint32_t)ledger;
    cat->messages.at[message].host_scope = (uint8_t)host_scope;
    return 0;
}

int ls_catalogue_key(ls_catalogue *cat, int message, const char *field)
{
    struct ls_message *m = &cat->messages.at[message];
    int slot = find_field(m, field, strlen(field));
    if (slot < 0 || m->keys == LS_KEYS) return -1;
    m->key[m->keys++] = (uint8_t)slot;
    return 0;
}

static void freeze(struct ls_trie *t)
{
    for (uint32_t i = 0; i < t->nodes.n; i++) {
        struct ls_node *node = &t->nodes.at[i];
        if (node->nlits < 4 || node->nlits > 254 || node->dispatch) continue;
        node->dispatch = ls_zalloc(256);
        for (int k = 0; k < node->nlits; k++) node->dispatch[node->lits[k].s[0]] = (uint8_t)(k + 1);
    }
}

static bool is_in(const struct ls_pattern *pat, int slot)
{
    return slot >= 0 && (pat->present & 1ull << slot);
}

static void find_call(struct ls_pattern *pat, const struct ls_message *m)
{
    if (m->role < LS_RPC_SERVED || m->role > LS_RPC_DEQUEUED || m->role == LS_RPC_BEGUN) return;
    if (!is_in(pat, m->role_field[F_OP])) return;
    pat->call = UINT32_MAX;
    pat->call_op = (uint8_t)m->role_field[F_OP];
    pat->call_type = pat->call_op;
    if (m->role == LS_RPC_SERVED && is_in(pat, m->role_field[F_TYPE])) pat->call_type = (uint8_t)m->role_field[F_TYPE];
}

int ls_catalogue_finish(ls_catalogue *cat)
{
    for (uint32_t i = 0; i < cat->messages.n; i++) {
        struct ls_message *m = &cat->messages.at[i];
        for (int k = 0; k < LS_ROLE_FIELDS && roles[m->role].fields[k]; k++)
            m->role_field[k] = (int8_t)find_field(m, roles[m->role].fields[k], strlen(roles[m->role].fields[k]));
        if (!m->distinct && m->keep != LS_KEEP_LATEST) m->distinct = UINT64_MAX;
    }
    for (uint32_t i = 0; i < cat->patterns.n; i++) {
        struct ls_pattern *pat = &cat->patterns.at[i];
        const struct ls_message *m = &cat->messages.at[pat->message];
        pat->of = m;
        pat->present = pat->texts = 0;
        pat->widened = false;
        for (int k = 0; k < pat->captures; k++) {
            if (pat->slot[k] < 0) continue;
            bool text = ls_is_text(pat->type[k]);
            pat->present |= 1ull << pat->slot[k];
            if (text) pat->texts |= 1ull << pat->slot[k];
            if (!text && m->type[pat->slot[k]] == LS_FLOAT && pat->type[k] != LS_FLOAT) pat->widened = true;
        }
        find_call(pat, m);
    }
    for (int i = 0; i < LS_WHERES; i++) freeze(&cat->tries[i]);
    ls_lay_out(cat, &cat->tries[LS_WHERE_NCCL]);
    ls_find_starts(&cat->tries[LS_WHERE_LINE]);
    ls_find_starts(&cat->tries[LS_WHERE_OTHER]);
    cat->finished = true;
    return 0;
}
