/* A scan: its beginning, its end, and the tables that it returns. */
#include "scanner.h"

ls_scan *ls_scan_new(const ls_catalogue *cat, int mode)
{
    struct ls_scan *scan = ls_zalloc(sizeof *scan);
    scan->cat = cat;
    scan->emit_all = mode & 1;
    ls_parser_begin(&scan->parser, cat, &scan->prefixes, !scan->emit_all);
    scan->keep_calls = mode & 2;
    scan->keep_messages = mode & 4;
    if (mode & 8) ls_part_begin(scan);
    scan->outside_counts = ls_zalloc((cat->messages.n + 1) * sizeof *scan->outside_counts);
    scan->number_of = ls_zalloc((cat->messages.n + 1) * sizeof *scan->number_of);
    scan->kept_of = ls_zalloc((cat->messages.n + 1) * sizeof *scan->kept_of);
    scan->rpc = ls_rpc_new();
    scan->fds = ls_fds_new();
    scan->comms = ls_comms_new();
    scan->book = ls_book_new();
    return scan;
}

/* Frees what only reading needs. */
static void forget(ls_scan *scan)
{
    for (uint32_t i = 0; i < scan->states.n; i++) free(scan->states.at[i].count_of);
    ls_drop(&scan->states);
    ls_drop(&scan->homes);
    ls_drop(&scan->event_hash);
    LS_INDEX_DROP(&scan->tag_index, &scan->word_index, &scan->host_index, &scan->proc_index, &scan->pid_index,
                  &scan->thread_index, &scan->event_index, &scan->shape_index);
    ls_prefixes_drop(&scan->prefixes);
    ls_prefixes_leave(scan->copy);
    scan->copy = NULL;
    LS_FREE(scan->shared, scan->scratch);
    ls_guesses_free(scan->parser.guesses);
    scan->shared = NULL;
    scan->parser.guesses = NULL;
    scan->scratch = NULL;
}

void ls_scan_free(ls_scan *scan)
{
    if (!scan) return;
    for (uint32_t i = 0; i < scan->files.n; i++) {
        free(scan->files.at[i].carry);
        free(scan->files.at[i].wrapped.text);
        free(scan->files.at[i].wrapped.line);
        free(scan->files.at[i].torn);
    }
    forget(scan);
    ls_rpc_free(scan->rpc);
    ls_fds_free(scan->fds);
    ls_comms_free(scan->comms);
    ls_book_free(scan->book);
    ls_part_free(scan);
    LS_FREE(scan->texts.at, scan->event_texts.at, scan->messages.at, scan->files.at, scan->streams.at, scan->tags.at,
            scan->words.at, scan->hosts.at, scan->procs.at, scan->threads.at, scan->counts.at, scan->outside_counts,
            scan->number_of, scan->kept_of, scan->events.at, scan->values.at, scan->shapes.at, scan);
}

uint32_t ls_scan_stream(ls_scan *scan)
{
    ls_push(&scan->streams);
    return scan->streams.n - 1;
}

uint32_t ls_scan_file(ls_scan *scan, uint32_t stream)
{
    struct ls_file *f = ls_push(&scan->files);
    if (!scan->parser.guesses) /* a scan that only peeks has no files: there is one for each log of a job */
        scan->parser.guesses = ls_guesses_new();
    f->stream = stream;
    f->complete = true;
    return scan->files.n - 1;
}

void ls_scan_record(ls_scan *scan, uint32_t file)
{
    scan->files.at[file].record = true;
}

void ls_scan_home(ls_scan *scan, uint32_t stream, const char *host, size_t n, int32_t pid, uint32_t home)
{
    uint32_t id = ls_host_id(scan, host, (uint32_t)n, true);
    *ls_push(&scan->homes) = (struct ls_home){.stream = stream, .host_id = id, .home = home, .pid = pid};
}

void ls_end_round(ls_scan *scan)
{
    ls_rpc_round(scan);
}

void ls_finish(ls_scan *scan)
{
    ls_rpc_finish(scan);
    ls_fds_finish(scan);
    ls_comms_finish(scan);
    ls_book_finish(scan);
    forget(scan);
}

void ls_clear_events(ls_scan *scan)
{
    scan->events.n = 0;
    scan->values.n = 0;
    scan->event_texts.n = 0;
    scan->messages.n = 0;
}

void ls_clear_calls(ls_scan *scan)
{
    ls_rpc_clear(scan->rpc);
    ls_fds_clear(scan->fds);
}

uint64_t ls_file_lines(const ls_scan *scan, uint32_t file)
{
    return scan->files.at[file].line;
}

uint64_t ls_file_bytes(const ls_scan *scan, uint32_t file)
{
    return scan->files.at[file].offset;
}

uint64_t ls_stream_lines(const ls_scan *scan, uint32_t stream)
{
    return scan->streams.at[stream].seq;
}

int ls_file_complete(const ls_scan *scan, uint32_t file)
{
    return scan->files.at[file].complete;
}

/* The threads that the start of a file names, each once, and whether their process begins there. */
size_t ls_peek(ls_scan *scan, const char *data, size_t n, ls_sighting *out, size_t max)
{
    size_t count = 0;
    const char *p = data, *e = data + n, *nl;
    while (p < e && (nl = memchr(p, '\n', (size_t)(e - p))) != NULL) {
        uint32_t len = (uint32_t)(nl - p < LS_LINE_MAX ? nl - p : LS_LINE_MAX), body;
        int level;
        struct ls_prefix pre = {0};
        int64_t tag = ls_find_tag(p, 0, len, true, &level, &body);
        if (tag >= 0 && ls_parse_prefix(scan, p, 0, (uint32_t)tag, level, false, &pre)) {
            uint32_t host = ls_host_id(scan, p + pre.host, pre.host_len, true), end = ls_trim(p, body, len);
            struct ls_match m;
            uint64_t text = scan->hosts.at[host];
            int32_t t = ls_tag_id(scan, p + pre.tag, pre.tag_len);
            size_t i = 0;
            while (i < count &&
                   !(out[i].host == text && out[i].pid == pre.pid && out[i].tid == pre.tid && out[i].tag == t))
                i++;
            if (i == count && count < max)
                out[count++] = (ls_sighting){.host = text, .pid = pre.pid, .tid = pre.tid, .tag = t};
            if (i < count && !out[i].born)
                out[i].born = ls_match(scan->cat, LS_WHERE_NCCL, p + body, end - body, false, &m) &&
                              m.message->role == LS_PROC_BIRTH;
        }
        p = nl + 1;
    }
    return count;
}

const char *ls_text(const ls_scan *scan, size_t *n)
{
    *n = scan->texts.n;
    return scan->texts.at;
}

const char *ls_event_text(const ls_scan *scan, size_t *n)
{
    *n = scan->event_texts.n;
    return scan->event_texts.at;
}

const char *ls_messages(const ls_scan *scan, size_t *n)
{
    *n = scan->messages.n;
    return scan->messages.at;
}

const ls_totals *ls_get_totals(const ls_scan *scan)
{
    return &scan->totals;
}

LS_TABLE(ls_event, ls_events, events)
LS_TABLE(uint64_t, ls_values, values)
LS_TABLE(uint64_t, ls_tags, tags)
LS_TABLE(ls_process, ls_processes, procs)
LS_TABLE(ls_thread, ls_threads, threads)
LS_TABLE(ls_count, ls_counts, counts)
LS_TABLE(ls_shape, ls_shapes, shapes)
