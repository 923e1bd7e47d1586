/* What happens to a matched line: counted, kept, passed to a tracker. And the shapes of unmatched lines. */
#include "matched.h"

#include <ctype.h>

enum { LATEST_TEXT = 64 }; /* bytes of a text of an event that keeps the latest state */

/* The first line of a message, of a process or of no process: its count begins. */
ls_count *ls_new_count(struct ls_scan *scan, const struct ls_record *rec, uint32_t message)
{
    uint32_t number = scan->number_of[message], *slot = &scan->outside_counts[message];
    if (rec->proc >= 0) {
        struct ls_proc_state *state = &scan->states.at[rec->proc];
        if (!number) number = scan->number_of[message] = ++scan->numbered;
        if (number > state->counted) {
            uint32_t more = (number + 15) & ~15u;
            state->count_of = ls_realloc(state->count_of, more * sizeof *state->count_of);
            memset(state->count_of + state->counted, 0, (more - state->counted) * sizeof *state->count_of);
            state->counted = more;
        }
        slot = &state->count_of[number - 1];
    }
    ls_count *c = ls_push(&scan->counts);
    *c = (ls_count){.message = message, .proc = rec->proc, .first = rec->ref};
    *slot = scan->counts.n;
    return c;
}

static uint64_t distinct_hash(const struct ls_record *rec, const struct ls_match *m)
{
    uint64_t h = ls_mix(ls_mix(7, m->index), (uint64_t)rec->proc);
    if (rec->proc < 0) h = ls_mix(h, (uint64_t)rec->stream << 32 | (uint32_t)rec->tag);
    for (int i = 0; i < m->message->fields; i++) {
        if (!(m->message->distinct & 1ull << i) || !(m->present & 1ull << i)) continue;
        h = ls_mix(h, (uint64_t)i);
        const struct ls_capture *c = &m->field[i];
        h = (m->texts & 1ull << i) ? ls_hash_bytes(h, m->text + c->start, c->length) : ls_mix(h, c->value);
    }
    return h;
}

/* Whether a scan has too many events to keep one more of a message. Complaints and rare messages have bounds of their
 * own: thousands of ranks print enough at their start to take all the room, and the first error comes after that. */
static bool is_full(const struct ls_scan *scan, const struct ls_match *m)
{
    if (scan->kept_of[m->index] < LS_RARE_EVENTS && scan->events.n < LS_MOST_EVENTS) return false;
    return scan->kept[m->message->complaint] >= LS_MAX_EVENTS;
}

/* Keeps a text of an event. Thousands of ranks print the same ones: those kept last are shared, so that a reader
 * decodes them once. Nobody writes into a shared text: rewrite_text() has a place of its own. */
static uint64_t share_text(struct ls_scan *scan, const char *s, size_t n)
{
    if (scan->emit_all) return ls_keep_text(&scan->event_texts, s, n); /* ls_clear_events() drops the texts */
    if (n > LS_TEXT_MAX) n = LS_TEXT_MAX;
    if (!scan->shared) scan->shared = ls_zalloc(LS_SHARED_TEXTS * sizeof *scan->shared);
    uint64_t *known = &scan->shared[ls_fold(ls_hash_bytes(8, s, n)) & (LS_SHARED_TEXTS - 1)];
    if (!*known || !ls_same_text(&scan->event_texts, *known, s, n)) *known = ls_keep_text(&scan->event_texts, s, n);
    return *known;
}

/* Keeps an event as long as neither its message nor the scan has too many. Returns whether it was kept. */
static bool keep_event(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m, ls_count *c,
                       uint32_t most)
{
    if (!scan->emit_all && (c->kept >= most || is_full(scan, m))) {
        scan->totals.dropped_events++;
        return false;
    }
    c->kept++;
    scan->kept_of[m->index]++;
    scan->kept[m->message->complaint]++;
    ls_event *e = ls_push(&scan->events);
    *e = (ls_event){.message = m->index,
                    .level = (uint32_t)rec->level,
                    .proc = rec->proc,
                    .thread = rec->thread,
                    .device = rec->device,
                    .tag = rec->tag,
                    .stream = rec->stream,
                    .present = m->present,
                    .texts = m->texts,
                    .first_value = scan->values.n,
                    .count = rec->repeated,
                    .first = rec->ref,
                    .last = rec->ref};
    if (scan->keep_messages) {
        ls_keep_text(&scan->messages, m->text, m->end);
        e->length = m->end < LS_TEXT_MAX ? m->end : LS_TEXT_MAX;
    }
    if (rec->where_len) e->where = share_text(scan, rec->where, rec->where_len);
    if (rec->time_len) e->time = share_text(scan, rec->time, rec->time_len);
    for (int i = 0; i < m->message->fields; i++) {
        uint64_t v = 0;
        if (m->present & 1ull << i) {
            const struct ls_capture *f = &m->field[i];
            v = (m->texts & 1ull << i) ? share_text(scan, m->text + f->start, f->length) : f->value;
        }
        *ls_push(&scan->values) = v;
    }
    return true;
}

static void keep_distinct(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m, ls_count *c)
{
    uint64_t h = distinct_hash(rec, m);
    for (LS_EACH(&scan->event_index, ls_fold(h), at)) {
        if (scan->event_hash.at[at] != h) continue;
        ls_event *e = &scan->events.at[at];
        e->count += rec->repeated;
        e->last = rec->ref;
        if (scan->part) ls_part_again(scan, at);
        return;
    }
    if (!keep_event(scan, rec, m, c, LS_MAX_DISTINCT)) return;
    while (scan->event_hash.n < scan->events.n) *ls_push(&scan->event_hash) = 0;
    scan->event_hash.at[scan->events.n - 1] = h;
    ls_index_add(&scan->event_index, ls_fold(h), scan->events.n - 1);
}

/* Stores a text of an event that is written again and again: in LATEST_TEXT bytes of its own, so that memory does not
 * grow with the log. */
static uint64_t rewrite_text(struct ls_scan *scan, uint64_t old, const char *s, size_t n)
{
    static const char blank[LATEST_TEXT];
    uint64_t at = old >> 20;
    if (!at) at = ls_keep_text(&scan->event_texts, blank, sizeof blank) >> 20;
    if (n > LATEST_TEXT) n = LATEST_TEXT;
    memcpy(scan->event_texts.at + at, s, n);
    return at << 20 | n;
}

static bool same_value(const struct ls_scan *scan, const struct ls_match *m, int i, uint64_t kept)
{
    const struct ls_capture *c = &m->field[i];
    if (!(m->texts & 1ull << i)) return kept == c->value;
    size_t n, length = c->length > LATEST_TEXT ? LATEST_TEXT : c->length;
    const char *text = ls_text_at(&scan->event_texts, kept, &n);
    return n == length && memcmp(text, m->text + c->start, n) == 0;
}

/* Writes the fields of a line into the event. Returns whether one of them, or which of them there are, has changed. */
static bool rewrite(struct ls_scan *scan, ls_event *e, const struct ls_match *m)
{
    bool changed = e->present != m->present;
    for (int i = 0; i < m->message->fields; i++) {
        uint64_t *v = &scan->values.at[e->first_value + (uint32_t)i], bit = 1ull << i;
        if (!(m->present & bit)) continue;
        if (!changed && same_value(scan, m, i, *v)) continue;
        changed = true;
        const struct ls_capture *c = &m->field[i];
        *v = (m->texts & bit) ? rewrite_text(scan, *v, m->text + c->start, c->length) : c->value;
    }
    e->present = m->present;
    e->texts = m->texts;
    return changed;
}

/* Keeps the newest state of what the distinct fields name: the fields of the last line, and the lines since they last
 * changed. */
static void keep_latest(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m, ls_count *c)
{
    /* with the types, so that a field of an event never changes its type */
    uint64_t h = ls_mix(ls_mix(distinct_hash(rec, m), (uint32_t)rec->device), m->texts);
    ls_event *e = NULL;
    for (LS_EACH(&scan->event_index, ls_fold(h), at))
        if (scan->event_hash.at[at] == h && scan->events.at[at].message == m->index) e = &scan->events.at[at];
    if (!e) {
        struct ls_match bare = *m;
        bare.present = bare.texts = 0; /* rewrite() stores the fields */
        if (!keep_event(scan, rec, &bare, c, LS_MAX_DISTINCT)) return;
        e = &scan->events.at[scan->events.n - 1];
        e->time = 0;
        while (scan->event_hash.n < scan->events.n) *ls_push(&scan->event_hash) = 0;
        scan->event_hash.at[scan->events.n - 1] = h;
        ls_index_add(&scan->event_index, ls_fold(h), scan->events.n - 1);
    } else if (scan->part)
        ls_part_again(scan, (uint32_t)(e - scan->events.at));
    if (rewrite(scan, e, m)) {
        e->first = rec->ref;
        e->count = 0;
        e->thread = rec->thread;
        e->time = rec->time_len ? rewrite_text(scan, e->time, rec->time, rec->time_len) : 0;
    }
    e->count += rec->repeated;
    e->last = rec->ref;
    e->until = rec->time_len ? rewrite_text(scan, e->until, rec->time, rec->time_len) : e->until;
}

void ls_keep_line(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m, ls_count *c, int how)
{
    if (scan->emit_all)
        keep_event(scan, rec, m, c, 0);
    else if (how == LS_KEEP_DISTINCT)
        keep_distinct(scan, rec, m, c);
    else if (how == LS_KEEP_LATEST)
        keep_latest(scan, rec, m, c);
    else
        keep_event(scan, rec, m, c, LS_MAX_ALL);
}

void ls_on_match(struct ls_scan *scan, struct ls_record *rec, const struct ls_match *m)
{
    on_match(scan, rec, m);
}

/* The shape of a text: numbers and addresses replaced, so that lines of one kind count together. */
static uint32_t shape_of(char *to, uint32_t max, const char *s, uint32_t n)
{
    uint32_t out = 0;
    for (uint32_t i = 0; i < n && out < max;) {
        unsigned char c = (unsigned char)s[i];
        if (c == '0' && i + 2 < n && (s[i + 1] | 32) == 'x' && isxdigit((unsigned char)s[i + 2])) {
            for (i += 2; i < n && isxdigit((unsigned char)s[i]);) i++;
            to[out++] = 'X';
        } else if (isalnum(c)) {
            /* A word of hex digits with a number in it is an address or a hash; digits in other words are numbers. */
            uint32_t k = i, digits = 0, hex = 0;
            for (; k < n && isalnum((unsigned char)s[k]); k++) {
                digits += isdigit((unsigned char)s[k]) != 0;
                hex += isxdigit((unsigned char)s[k]) != 0;
            }
            if (digits && hex == k - i && k - i >= 8 && digits < hex) {
                to[out++] = 'X';
                i = k;
                continue;
            }
            while (i < k && out < max) {
                if (isdigit((unsigned char)s[i])) {
                    while (i < k && isdigit((unsigned char)s[i])) i++;
                    to[out++] = 'N';
                } else
                    to[out++] = s[i++];
            }
        } else {
            to[out++] = s[i++];
        }
    }
    return out;
}

static void add_shape(struct ls_scan *scan, const struct ls_record *rec, const char *text, uint32_t n)
{
    char shape[160];
    uint32_t len = shape_of(shape, sizeof shape, text, n);
    uint32_t hash = ls_fold(ls_hash_bytes(5, shape, len));
    for (LS_EACH(&scan->shape_index, hash, at)) {
        if (!ls_same_text(&scan->texts, scan->shapes.at[at].text, shape, len)) continue;
        scan->shapes.at[at].count += rec->repeated;
        return;
    }
    if (scan->shapes.n >= LS_MAX_SHAPES) return;
    uint64_t kept = ls_keep_text(&scan->texts, shape, len);
    *ls_push(&scan->shapes) = (ls_shape){.text = kept, .count = rec->repeated, .first = rec->ref};
    ls_index_add(&scan->shape_index, hash, scan->shapes.n - 1);
}

/* A NCCL line that matches no pattern. A warning is kept as message 0 of every catalogue, "unmatched.warn". */
void ls_on_unmatched(struct ls_scan *scan, struct ls_record *rec, const char *text, uint32_t n)
{
    scan->totals.unmatched++;
    if (rec->proc >= 0) scan->threads.at[rec->thread].last_message = UINT32_MAX;
    add_shape(scan, rec, text, n);
    if (rec->level != LS_WARN && rec->level != LS_ABORT) return;
    struct ls_match m = {
        .message = &scan->cat->messages.at[0], .index = 0, .present = 1, .texts = 1, .text = text, .end = n};
    m.own[0] = (struct ls_capture){.length = n};
    m.field = m.own;
    ls_count *c = count_of(scan, rec, 0);
    c->count += rec->repeated;
    c->last = rec->ref;
    if (scan->part && rec->proc < 0) ls_part_outside(scan, 0);
    keep_event(scan, rec, &m, c, LS_MAX_ALL);
}
