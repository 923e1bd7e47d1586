/* Hosts, launcher tags, processes and threads. */
#include <ctype.h>

#include "scanner.h"

static uint32_t intern(struct ls_scan *scan, struct ls_index *index, uint64_t *texts, uint32_t hash, const char *s,
                       size_t n)
{
    for (LS_EACH(index, hash, e))
        if (ls_same_text(&scan->texts, texts[e], s, n)) return e;
    return LS_NONE;
}

uint32_t ls_host_id(struct ls_scan *scan, const char *s, uint32_t n, bool add)
{
    uint32_t hash = ls_fold(ls_hash_bytes(1, s, n));
    uint32_t id = intern(scan, &scan->host_index, scan->hosts.at, hash, s, n);
    if (id != LS_NONE || !add) return id;
    uint64_t text = ls_keep_text(&scan->texts, s, n);
    *ls_push(&scan->hosts) = text;
    ls_index_add(&scan->host_index, hash, scan->hosts.n - 1);
    return scan->hosts.n - 1;
}

uint64_t ls_word(struct ls_scan *scan, const char *s, uint32_t n)
{
    uint32_t hash = ls_fold(ls_hash_bytes(6, s, n));
    uint32_t id = intern(scan, &scan->word_index, scan->words.at, hash, s, n);
    if (id != LS_NONE) return scan->words.at[id];
    if (scan->words.n >= 4096) return 0;
    uint64_t text = ls_keep_text(&scan->texts, s, n);
    *ls_push(&scan->words) = text;
    ls_index_add(&scan->word_index, hash, scan->words.n - 1);
    return text;
}

int32_t ls_tag_id(struct ls_scan *scan, const char *s, uint32_t n)
{
    if (!n) return -1;
    uint32_t hash = ls_fold(ls_hash_bytes(2, s, n));
    uint32_t id = intern(scan, &scan->tag_index, scan->tags.at, hash, s, n);
    if (id != LS_NONE) return (int32_t)id;
    /* Something that looks like a tag but never repeats is not a tag: it must not fill the memory. */
    if (scan->tags.n >= 65536) return -1;
    uint64_t text = ls_keep_text(&scan->texts, s, n);
    *ls_push(&scan->tags) = text;
    ls_index_add(&scan->tag_index, hash, scan->tags.n - 1);
    return (int32_t)scan->tags.n - 1;
}

static uint32_t proc_hash(uint32_t stream, int32_t tag, uint32_t host, int32_t pid)
{
    return ls_fold(ls_mix(ls_mix(ls_mix(3, (uint64_t)stream << 32 | (uint32_t)tag), host), (uint32_t)pid));
}

static uint32_t pid_hash(uint32_t stream, int32_t pid)
{
    return ls_fold(ls_mix(ls_mix(7, stream), (uint32_t)pid));
}

static uint32_t new_proc(struct ls_scan *scan, uint32_t stream, int32_t tag, uint32_t host, int32_t pid,
                         uint32_t incarnation)
{
    ls_process *p = ls_push(&scan->procs);
    *p = (ls_process){
        .stream = stream, .tag = tag, .host = scan->hosts.at[host], .pid = pid, .incarnation = incarnation};
    struct ls_proc_state *state = ls_push(&scan->states);
    state->host_id = host;
    ls_index_add(&scan->pid_index, pid_hash(stream, pid), scan->procs.n - 1);
    return scan->procs.n - 1;
}

static uint32_t home_of(const struct ls_scan *scan, uint32_t stream, uint32_t host, int32_t pid)
{
    for (uint32_t i = 0; i < scan->homes.n; i++) {
        const struct ls_home *h = &scan->homes.at[i];
        if (h->stream == stream && h->host_id == host && h->pid == pid) return h->home;
    }
    return stream;
}

static bool known_thread(const struct ls_scan *scan, uint32_t proc, int32_t tid)
{
    uint32_t hash = ls_fold(ls_mix(ls_mix(4, proc), (uint32_t)tid));
    for (LS_EACH(&scan->thread_index, hash, e))
        if (scan->threads.at[e].proc == (int32_t)proc && scan->threads.at[e].tid == tid) return true;
    return false;
}

/* Whether a host is another one with text glued to it, which then is this one without its head. A name such as
 * pod-worker-0 beside worker-0 is a host of its own. */
static bool glued_to(const struct ls_scan *scan, uint64_t longer, uint64_t shorter)
{
    uint32_t n = longer & LS_TEXT_MAX, m = shorter & LS_TEXT_MAX;
    if (!m || n <= m) return false;
    const char *s = scan->texts.at + (longer >> 20);
    return memcmp(s + n - m, scan->texts.at + (shorter >> 20), m) == 0 && isalnum((unsigned char)s[n - m - 1]);
}

/* The process of a new name, if one of the two is the other with text glued to its host, or the new one lost the head
 * of its host: both have the pid and the thread, or a pid that does not recur in each container. LS_NONE: there is
 * none. */
static uint32_t unglued(struct ls_scan *scan, uint32_t stream, int32_t tag, uint32_t host, int32_t pid, int32_t tid)
{
    enum { RECURRING_PIDS = 1000, GHOST_LINES = 3, SURE_LINES = 16, MOST_TRIES = 256 };
    uint64_t name = scan->hosts.at[host];
    uint32_t found = LS_NONE, ghost = LS_NONE; /* the newest incarnations */
    uint32_t tries = 0;
    for (LS_EACH(&scan->pid_index, pid_hash(stream, pid), e)) {
        const ls_process *p = &scan->procs.at[e];
        if (++tries > MOST_TRIES) break; /* containers, whose processes share a pid */
        if (p->stream != stream || p->pid != pid) continue;
        bool longer = glued_to(scan, p->host, name);
        /* an excerpt may begin within the first name of its file; text glued to a name is a number most often */
        bool first = p->lines ? p->lines == 1 && p->first.line == 1 : ls_first_line(scan);
        bool begun_inside = first && p->tag == tag && isalpha((unsigned char)scan->texts.at[name >> 20]) &&
                            known_thread(scan, e, tid) && glued_to(scan, name, p->host);
        uint32_t *as = (longer && p->lines <= GHOST_LINES && p->tag == tag) || begun_inside ? &ghost
                       : longer ? (p->lines >= SURE_LINES ? &found : NULL)
                                : (glued_to(scan, name, p->host) ? &found : NULL);
        if (as && (*as == LS_NONE || e > *as) && (pid >= RECURRING_PIDS || known_thread(scan, e, tid))) *as = e;
    }
    bool ghost_came_first = found == LS_NONE;
    if (ghost_came_first) found = ghost;
    if (found == LS_NONE) return found;
    ls_process *p = &scan->procs.at[found];
    if (ghost_came_first) { /* it gets the right name */
        ls_index_del(&scan->proc_index, proc_hash(stream, tag, scan->states.at[found].host_id, pid), found);
        ls_index_add(&scan->proc_index, proc_hash(stream, tag, host, pid), found);
        scan->states.at[found].host_id = host;
        p->host = name;
    }
    p->damaged++;
    scan->totals.glued++;
    return found;
}

/* LS_NONE: there are too many to add one. */
static uint32_t find_proc(struct ls_scan *scan, uint32_t stream, int32_t tag, uint32_t host, int32_t pid, int32_t tid)
{
    uint32_t hash = proc_hash(stream, tag, host, pid);
    for (LS_EACH(&scan->proc_index, hash, e)) {
        const ls_process *p = &scan->procs.at[e];
        if (p->stream == stream && p->tag == tag && p->pid == pid && scan->states.at[e].host_id == host) return e;
    }
    uint32_t e = unglued(scan, stream, tag, host, pid, tid);
    if (e != LS_NONE) return e;
    if (scan->procs.n >= LS_MAX_PROCS) return LS_NONE;
    e = new_proc(scan, stream, tag, host, pid, 0);
    ls_index_add(&scan->proc_index, hash, e);
    return e;
}

static int32_t find_thread(struct ls_scan *scan, uint32_t proc, int32_t tid, uint32_t stream)
{
    uint32_t hash = ls_fold(ls_mix(ls_mix(4, proc), (uint32_t)tid));
    for (LS_EACH(&scan->thread_index, hash, e))
        if (scan->threads.at[e].proc == (int32_t)proc && scan->threads.at[e].tid == tid) return (int32_t)e;
    if (scan->threads.n >= LS_MAX_THREADS) return -1;
    *ls_push(&scan->threads) =
        (ls_thread){.proc = (int32_t)proc, .tid = tid, .last_message = UINT32_MAX, .stream = stream};
    ls_index_add(&scan->thread_index, hash, scan->threads.n - 1);
    return (int32_t)scan->threads.n - 1;
}

/* The thread of a prefix, or -1 for a new one if there are absurdly many. */
int32_t ls_thread_of(struct ls_scan *scan, uint32_t stream, const char *line, const struct ls_prefix *p)
{
    int32_t tag = ls_tag_id(scan, line + p->tag, p->tag_len), thread = -1;
    uint32_t host = ls_host_id(scan, line + p->host, p->host_len, scan->procs.n < LS_MAX_PROCS);
    if (host != LS_NONE) {
        uint32_t home = scan->homes.n ? home_of(scan, stream, host, p->pid) : stream;
        uint32_t proc = find_proc(scan, home, tag, host, p->pid, p->tid);
        if (proc != LS_NONE) thread = find_thread(scan, proc, p->tid, stream);
    }
    scan->totals.dropped_lines += thread < 0;
    return thread;
}

void ls_forget_prefixes(struct ls_scan *scan)
{
    scan->prefixes.at.n = 0;
    scan->prefixes.age++;
    ls_index_drop(&scan->prefixes.index);
}

struct ls_prefixes *ls_prefixes_copy(const struct ls_prefixes *p)
{
    struct ls_prefixes *to = ls_zalloc(sizeof *to);
    size_t slots = (p->index.mask + 1) * sizeof *p->index.slot;
    to->age = p->age;
    to->users = 1;
    if (!p->at.n) return to;
    to->at.n = to->at.cap = p->at.n;
    to->at.at =
        memcpy(ls_need(aligned_alloc(LS_CACHE_LINE, p->at.n * sizeof *p->at.at)), p->at.at, p->at.n * sizeof *p->at.at);
    to->index = p->index;
    to->index.slot = memcpy(ls_realloc(NULL, slots), p->index.slot, slots);
    return to;
}

void ls_prefixes_leave(struct ls_prefixes *copy)
{
    if (!copy || __atomic_sub_fetch(&copy->users, 1, __ATOMIC_ACQ_REL)) return;
    ls_prefixes_drop(copy);
    free(copy);
}

/* A message that a process prints once, early. Printed again after work was done, it is the start of another process
 * with the same pid; printed again at once, several processes (containers) share the name. */
void ls_birth(struct ls_scan *scan, struct ls_record *rec, const struct ls_message *m, int32_t tid)
{
    uint32_t at = (uint32_t)rec->proc;
    struct ls_proc_state *state = &scan->states.at[at];
    uint32_t bit = 1u << m->birth;
    if ((state->births_seen & bit) && state->worked) {
        ls_process old = scan->procs.at[at];
        uint32_t host = state->host_id, hash = proc_hash(old.stream, old.tag, host, old.pid);
        ls_index_del(&scan->proc_index, hash, at);
        uint32_t e = new_proc(scan, old.stream, old.tag, host, old.pid, old.incarnation + 1);
        ls_index_add(&scan->proc_index, hash, e);
        ls_forget_prefixes(scan);
        ls_thread *t = &scan->threads.at[rec->thread];
        t->lines--;
        scan->procs.at[at].lines--;
        rec->proc = (int32_t)e;
        rec->thread = find_thread(scan, e, tid, rec->stream);
        t = &scan->threads.at[rec->thread];
        t->lines++;
        t->first = t->last = rec->ref;
        ls_process *p = &scan->procs.at[e];
        p->lines = 1;
        p->first = p->last = rec->ref;
        state = &scan->states.at[e];
        at = e;
    } else if (state->births_seen & bit) {
        scan->procs.at[at].aliased = 1;
    }
    state->births_seen |= bit;
    scan->procs.at[at].births++;
}
