/* Ledgers: resources that are opened, imported and closed, by a key of fields, per process or per host. */
#include "scanner.h"

enum { GONE = 1, HOST_SCOPE = 2 };

struct account {
    ls_entry entry;
    uint64_t hash;
    uint32_t scope, flags; /* process or host */
};

struct ls_book {
    LS_VEC(struct account) at;
    LS_VEC(uint32_t) unused;
    struct ls_index index;
    uint32_t balanced; /* host-wide entries are kept, because another file may have a later import */
    LS_VEC(ls_ledger_total) totals;
    LS_VEC(ls_entry) out;
};

struct ls_book *ls_book_new(void)
{
    return ls_zalloc(sizeof(struct ls_book));
}

/* Frees what only reading needs. */
static void forget(struct ls_book *b)
{
    ls_drop(&b->at);
    ls_drop(&b->unused);
    ls_index_drop(&b->index);
}

void ls_book_free(struct ls_book *b)
{
    forget(b);
    free(b->totals.at);
    free(b->out.at);
    free(b);
}

static uint64_t key_hash(const struct ls_match *m, uint32_t scope, const uint8_t *keys, int nkeys)
{
    uint64_t h = ls_mix(ls_mix(30, m->message->ledger), (uint64_t)scope << 1 | m->message->host_scope);
    for (int i = 0; i < nkeys; i++) {
        const struct ls_capture *c = &m->field[keys[i]];
        if (!(m->present & 1ull << keys[i])) continue;
        h = (m->texts & 1ull << keys[i]) ? ls_hash_bytes(h, m->text + c->start, c->length) : ls_mix(h, c->value);
    }
    return h;
}

static bool same_key(const struct ls_scan *scan, const struct account *a, const struct ls_match *m, uint32_t scope)
{
    const struct ls_message *msg = m->message;
    if (a->scope != scope || !(a->flags & HOST_SCOPE) != !msg->host_scope || a->entry.ledger != msg->ledger ||
        a->entry.nkeys != msg->keys)
        return false;
    for (int i = 0; i < msg->keys; i++) {
        const struct ls_capture *c = &m->field[msg->key[i]];
        bool there = m->present & 1ull << msg->key[i], text = m->texts & 1ull << msg->key[i];
        if (text != !!(a->entry.key_is_text & 1u << i)) return false;
        if (text ? !ls_same_text(&scan->texts, a->entry.key[i], m->text + c->start, c->length)
                 : a->entry.key[i] != (there ? c->value : 0))
            return false;
    }
    return true;
}

static void release(struct ls_book *b, uint32_t at)
{
    ls_index_del(&b->index, ls_fold(b->at.at[at].hash), at);
    b->at.at[at].flags = GONE;
    *ls_push(&b->unused) = at;
}

static void purge(struct ls_book *b)
{
    for (uint32_t i = 0; i < b->at.n; i++) {
        struct account *a = &b->at.at[i];
        if (!(a->flags & GONE) && a->entry.opens && a->entry.opens == a->entry.closes) release(b, i);
    }
    b->balanced = 0;
}

static struct account *find(struct ls_scan *scan, const struct ls_match *m, uint32_t scope)
{
    struct ls_book *b = scan->book;
    const struct ls_message *msg = m->message;
    uint64_t h = key_hash(m, scope, msg->key, msg->keys);
    for (LS_EACH(&b->index, ls_fold(h), e))
        if (b->at.at[e].hash == h && same_key(scan, &b->at.at[e], m, scope)) return &b->at.at[e];
    if (b->at.n - b->unused.n >= LS_MAX_ITEMS / 2) {
        scan->totals.dropped_items++;
        return NULL;
    }
    uint32_t at = b->at.n;
    if (b->unused.n)
        at = b->unused.at[--b->unused.n];
    else
        ls_push(&b->at);
    struct account *a = &b->at.at[at];
    *a = (struct account){.hash = h, .scope = scope, .flags = msg->host_scope ? HOST_SCOPE : 0};
    a->entry.ledger = msg->ledger;
    a->entry.proc = a->entry.importer = -1;
    a->entry.nkeys = msg->keys;
    for (int i = 0; i < msg->keys; i++) {
        const struct ls_capture *c = &m->field[msg->key[i]];
        if (!(m->present & 1ull << msg->key[i])) continue;
        if (m->texts & 1ull << msg->key[i]) {
            a->entry.key[i] = ls_keep_text(&scan->texts, m->text + c->start, c->length);
            a->entry.key_is_text |= 1u << i;
        } else
            a->entry.key[i] = c->value;
    }
    ls_index_add(&b->index, ls_fold(h), at);
    return a;
}

void ls_book_record(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m)
{
    enum { MOST_BALANCED = 1 << 16 };
    struct ls_book *b = scan->book;
    const struct ls_message *msg = m->message;
    while (b->totals.n <= msg->ledger) ls_push(&b->totals);
    ls_ledger_total *t = &b->totals.at[msg->ledger];
    struct account *a = find(scan, m, msg->host_scope ? scan->states.at[rec->proc].host_id : (uint32_t)rec->proc);
    bool was = a && a->entry.opens && a->entry.opens == a->entry.closes;
    switch (msg->role) {
    case LS_LEDGER_OPEN:
        t->opens++;
        if (!a) return;
        a->entry.opens++;
        a->entry.opened = rec->ref;
        a->entry.proc = rec->proc;
        break;
    case LS_LEDGER_CLOSE:
        t->closes++;
        if (!a) return;
        a->entry.closes++;
        a->entry.closed = rec->ref;
        if (a->entry.proc < 0) a->entry.proc = rec->proc;
        break;
    default:
        t->imports++;
        if (!a) return;
        a->entry.imports++;
        a->entry.imported = rec->ref;
        a->entry.importer = rec->proc;
    }
    bool is = a->entry.opens && a->entry.opens == a->entry.closes;
    if (is && !msg->host_scope) {
        /* Within one process lines are in order: a balanced entry is finished. */
        release(b, (uint32_t)(a - b->at.at));
        return;
    }
    if (is && !was && ++b->balanced > MOST_BALANCED) purge(b);
}

void ls_book_finish(struct ls_scan *scan)
{
    struct ls_book *b = scan->book;
    for (uint32_t i = 0; i < b->at.n; i++) {
        const struct account *a = &b->at.at[i];
        if (a->flags & GONE || (a->entry.opens && a->entry.opens == a->entry.closes)) continue;
        ls_entry *e = ls_push(&b->out);
        *e = a->entry;
        if (e->proc < 0) e->proc = e->importer;
    }
    forget(b);
}

const ls_entry *ls_ledger(const ls_scan *scan, size_t *n)
{
    *n = scan->book->out.n;
    return scan->book->out.at;
}

const ls_ledger_total *ls_ledger_totals(const ls_scan *scan, size_t *n)
{
    *n = scan->book->totals.n;
    return scan->book->totals.at;
}
