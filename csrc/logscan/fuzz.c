/* Feeds damaged logs and patterns to the scanner. With clang it is a libFuzzer target; otherwise main() below mutates
 * the given files: fuzz RUNS FILE... The result depends only on the arguments. */
#define _GNU_SOURCE
#include "scanner.h"

static const struct {
    const char *pattern, *role;
    int where, level, keep;
    const char *key;
} entries[] = {
    {"proxyProgressAsync opId={op:ptr} op.type={type:int} op.reqBuff={req:ptr} op.respSize={resp_size:int} done",
     "rpc.served", 0, 3, 0, NULL},
    {"Received and initiated operation={operation:word} res={res:int}", "rpc.begun", 0, 3, 0, NULL},
    {"ncclPollProxyResponse Received new opId={op:ptr}", "rpc.received", 0, 3, 0, NULL},
    {"resp.opId={op:ptr} matches expected opId={expected:ptr}", "rpc.matched", 0, 3, 0, NULL},
    {"Queuing opId={op:ptr} respBuff={resp:ptr} respSize={resp_size:int}", "rpc.queued", 0, 3, 0, NULL},
    {"ncclPollProxyResponse Dequeued cached opId={op:ptr}", "rpc.dequeued", 0, 3, 0, NULL},
    {"New proxy {dir:word} connection {id:int} from local rank {local_rank:int}, transport {transport:int}",
     "rpc.new_conn", 0, 3, 0, NULL},
    {"Connected to proxy localRank {peer:int} -> connection {conn:ptr}", "rpc.connected", 0, 3, 0, NULL},
    {"ProxyCall UDS comm {comm:ptr} rank {rank:int} tpRank {peer:int}({hash:hex}) reqSize {a:int} respSize {b:int} "
     "respFd {c:ptr} opId {op:ptr}",
     "fd.asked", 0, 3, 0, NULL},
    {"proxyUDSRecvReq::ncclProxyMsgGetFd rank {rank:int} opId {op:ptr} handle={handle:hex}", "fd.received", 0, 3, 0,
     NULL},
    {"UDS proxyGetFd received handle {handle:hex} peer {peer:int} opId {op:hex}", "fd.answered", 0, 3, 0, NULL},
    {"ProxyCall UDS comm {comm:ptr} rank {rank:int} tpRank {peer:int}({hash:hex}) reqSize {a:int} respSize {b:int} "
     "respFd {fd:int} opId {op:ptr} - DONE",
     "fd.done", 0, 3, 0, NULL},
    {"UDS: ClientGetFd handle {handle:hex} tpRank {peer:int} returned fd {fd:int}", "fd.returned", 0, 3, 0, NULL},
    {"{kind:word} comm {comm:ptr} rank {rank:int} nranks {nranks:int} cudaDev {dev:int} nvmlDev {nvml:int} busId "
     "{bus:hex} commId {commid:hex} - Init START",
     "comm.start", 0, 3, 2, NULL},
    {"{kind:word} comm {comm:ptr} rank {rank:int} nranks {nranks:int} cudaDev {dev:int} busId {bus:word} - Init "
     "COMPLETE",
     "comm.complete", 0, 3, 2, NULL},
    {"comm {comm:ptr} rank {rank:int} nranks {nranks:int} cudaDev {dev:int} busId {bus:hex} - Destroy COMPLETE",
     "comm.end", 0, 3, 2, NULL},
    {"comm {comm:ptr} rank {rank:int} nRanks {nranks:int} nNodes {nodes:int}", "comm.named", 0, 3, 2, NULL},
    {"NET/IB : Got completion from peer {peer:addr} with status={status:int} opcode={opcode:int} len={len:int}", "", 0,
     2, 2, NULL},
    {"{coll:word}: opCount {opcount:hex} sendbuff {s:ptr} recvbuff {r:ptr} count {count:int} datatype {datatype:int} "
     "op {op:int} root {root:int} comm {comm:ptr} [nranks={nranks:int}] stream {st:ptr}",
     "seq.op", 0, 3, 0, NULL},
    {"Allocated shareable buffer {ptr:ptr} size {size:int} ipcDesc {desc:ptr}", "ledger.open", 0, 3, 0, "ptr"},
    {"Imported shareable buffer device {dev:int} size {size:int} ptr {ptr:ptr}", "ledger.import", 0, 3, 0, "ptr"},
    {"Freed shareable buffer {ptr:ptr} of {name:word}", "ledger.close", 0, 3, 0, "ptr"},
    {"Bootstrap: Using {ifname:word}:{addr:addr}", "proc.birth", 0, 3, 2, NULL},
    {"{name:word} set by environment to {value:rest}", "", 0, 3, 1, NULL},
    {"psmP2p{role:word}Progress step=={step:uint} canSend={can_send:word} {_:str}", "data.progress", 0, 3, 3, NULL},
    {"{a:str} and {b:str} or {c:str} but {d:float} of {e:uint}%", "", 0, 2, 2, NULL},
    {"{ }+ {link:word}[{bw:float}] - {rest:rest}", "", 0, 3, 1, NULL},
    {"NCCL version {version:word}", "", 1, 1, 1, NULL},
    {"[Rank {rank:int}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq:int}, OpType={op:word}, "
     "{_:str}) ran for {ran:int}",
     "", 1, 0, 2, NULL},
    {"{comm:word}[{pid:int}]: segfault at {address:hex}", "", 1, 0, 2, NULL},
};

static ls_catalogue *catalogue(void)
{
    ls_catalogue *cat = ls_catalogue_new();
    char err[160];
    ls_catalogue_message(cat, 0, 2, 2, "");
    ls_catalogue_text_field(cat, 0, "text");
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        int m = ls_catalogue_message(cat, entries[i].where, entries[i].level, entries[i].keep, entries[i].role);
        if (m < 0 || ls_catalogue_pattern(cat, m, entries[i].pattern, strlen(entries[i].pattern), err, sizeof err))
            abort();
        if (entries[i].key) {
            ls_catalogue_ledger(cat, m, (int)(i % 2), (int)(i % 2));
            if (ls_catalogue_key(cat, m, entries[i].key)) abort();
        }
    }
    ls_catalogue_finish(cat);
    return cat;
}

static void *room(size_t n)
{
    void *made = malloc(n ? n : 1);
    if (!made) abort();
    return made;
}

/* The columns of all events, each in a copy of exactly its size. */
static void read_columns(const ls_catalogue *cat, const ls_scan *scan, int mode)
{
    size_t n, size, texts, length = 0;
    const ls_event *events = ls_events(scan, &n);
    const uint64_t *values = ls_values(scan, &size);
    const char *text = ls_event_text(scan, &texts);
    int8_t slots[sizeof entries / sizeof *entries + 1];
    uint64_t *column = room(n * sizeof *column);
    int64_t *ms = room(n * sizeof *ms);
    int32_t *ends = room(n * sizeof *ends);
    uint8_t *form = room(n);
    for (int slot = 0; slot < 4; slot++) {
        for (size_t m = 0; m < sizeof slots; m++)
            slots[m] = (int8_t)(slot < ls_catalogue_fields(cat, (int)m) ? slot : -1);
        ls_field_column(events, n, values, slots, column, form);
        size_t known = 0, bytes = 0;
        for (size_t i = 0; i < n; i++) {
            bool is_text = form[i] == 2;
            bytes += is_text ? column[i] & LS_TEXT_MAX : 0;
            if (!is_text) column[i] = 0;
        }
        char *out = room(bytes);
        if (ls_gather(text, column, n, out, ends) != bytes) abort();
        free(out);
        ls_field_column(events, n, values, slots, column, form);
        for (size_t i = 0; i < n; i++) known += form[i] = form[i] == 1;
        out = room(18 * known);
        if (ls_hexes(column, form, n, out, ends) > 18 * known) abort();
        free(out);
    }
    for (size_t i = 0; i < n; i++) {
        column[i] = events[i].time;
        length += events[i].length;
    }
    ls_stamps(text, column, n, ms);
    ls_messages(scan, &size);
    if (mode & 4 && length != (size ? size - 1 : 0)) abort();
    free(column);
    free(ms);
    free(ends);
    free(form);
}

static void read_all(const ls_scan *scan)
{
    size_t n, at;
    const char *text = ls_event_text(scan, &n);
    const ls_event *events = ls_events(scan, &at);
    for (size_t i = 0; i < at; i++)
        if ((events[i].where >> 20) + (events[i].where & LS_TEXT_MAX) > n) abort();
    const ls_call *calls = ls_calls(scan, &at);
    for (size_t i = 0; i < at; i++)
        if (calls[i].state < 1 || calls[i].state > 4) abort();
    (void)text;
    ls_instances(scan, &at);
    ls_pairs(scan, &at);
    ls_ledger(scan, &at);
    ls_tallies(scan, &at);
    ls_fds(scan, &at);
    ls_divergents(scan, &at);
}

/* All ways to mark a text mark the same. */
static void compare_marks(const char *text, size_t n)
{
    struct ls_marks fast, plain;
    size_t at = ls_mark(ls_mark_plain, text, n, &plain);
    for (int wide = 0; wide < 2; wide++) {
        if (ls_mark(ls_best_marker(wide), text, n, &fast) != at || fast.n != plain.n || (plain.odd && !fast.odd) ||
            memcmp(fast.end, plain.end, fast.n * sizeof *fast.end) != 0)
            abort();
    }
}

/* As a scan does it, by means that any processor has, or with lines that are read ahead. */
enum how { FAST, PLAIN, AHEAD };

/* A scan of the bytes in pieces, of three files. */
static ls_scan *scanned(const ls_catalogue *cat, const uint8_t *data, size_t size, int mode, enum how how)
{
    ls_scan *scan = ls_scan_new(cat, mode);
    uint32_t files[3];
    for (int i = 0; i < 3; i++) files[i] = ls_scan_file(scan, ls_scan_stream(scan));
    ls_ahead *ahead = ls_ahead_new(cat, mode);
    if (how == PLAIN) ls_parser_plain(&scan->parser);
    ls_scan_home(scan, 1, "node", 4, 1, 0);
    uint64_t state = size;
    for (size_t at = 0; at < size;) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        size_t part = 1 + (state >> 33) % 3000;
        if (part > size - at) part = size - at;
        /* A copy of exactly its size, so that a read beyond it is detected. */
        char *copy = malloc(part);
        if (!copy) abort();
        memcpy(copy, data + at, part);
        uint32_t file = (state >> 20) % 3;
        if (how == AHEAD) {
            ls_read_ahead(ahead, file, copy, part); /* each file has its stream */
            ls_feed_ahead(scan, files[file], ahead);
        } else
            ls_feed(scan, files[file], copy, part);
        free(copy);
        at += part;
        if (!(state >> 60)) ls_end_round(scan);
        if (mode & 1 && !(state >> 59 & 7)) {
            read_columns(cat, scan, mode);
            ls_clear_events(scan);
            ls_clear_calls(scan);
        }
    }
    for (int i = 0; i < 3; i++) ls_end_file(scan, files[i]);
    ls_finish(scan);
    ls_ahead_free(ahead);
    return scan;
}

/* Both scans found the same. */
#define COMPARE(table)                                                                                                 \
    do {                                                                                                               \
        size_t n_, m_;                                                                                                 \
        const void *a_ = table(a, &n_), *b_ = table(b, &m_);                                                           \
        if (n_ != m_ || (n_ && memcmp(a_, b_, n_ * sizeof *table(a, &n_)) != 0)) abort();                              \
    } while (0)
static void compare(const ls_scan *a, const ls_scan *b)
{
    if (memcmp(ls_get_totals(a), ls_get_totals(b), sizeof(ls_totals)) != 0) abort();
    COMPARE(ls_event_text);
    COMPARE(ls_events);
    COMPARE(ls_values);
    COMPARE(ls_processes);
    COMPARE(ls_threads);
    COMPARE(ls_counts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ls_catalogue *cat;
    if (!cat) cat = catalogue();
    const char *text = (const char *)data;
    compare_marks(text, size);
    /* The first line is a pattern, and is tried on the rest. */
    const char *nl = memchr(text, '\n', size < 400 ? size : 400);
    if (nl) {
        ls_catalogue *own = ls_catalogue_new();
        char err[160];
        for (int where = 0; where < 2; where++) {
            int m = ls_catalogue_message(own, where, 3, 1, "");
            ls_catalogue_pattern(own, m, text, (size_t)(nl - text), err, sizeof err);
        }
        ls_catalogue_finish(own);
        uint64_t present[2], values[LS_FIELDS];
        uint32_t starts[LS_FIELDS], lengths[LS_FIELDS];
        size_t rest = size - (size_t)(nl - text);
        ls_match_text(own, 0, nl, rest < 500 ? rest : 500, present, values, starts, lengths, NULL);
        ls_match_text(own, 1, nl, rest < 500 ? rest : 500, present, values, starts, lengths, NULL);
        uint8_t kinds[2 * (LS_FIELDS + 1)];
        uint32_t places[3 * 256], count;
        memset(kinds, 1, sizeof kinds);
        ls_places(own, kinds, nl, 0, rest, places, 256, &count);
        ls_catalogue_free(own);
    }
    int mode = size ? data[0] & 7 : 0;
    ls_scan *scan = scanned(cat, data, size, mode, FAST);
    for (enum how how = PLAIN; how <= AHEAD; how++) {
        ls_scan *other = scanned(cat, data, size, mode, how);
        compare(scan, other);
        ls_scan_free(other);
    }
    ls_sighting seen[16];
    ls_peek(scan, text, size, seen, 16);
    read_columns(cat, scan, mode);
    read_all(scan);
    ls_scan_free(scan);
    return 0;
}

#ifndef PSMKIT_LIBFUZZER
static uint64_t rng = 88172645463325252ull;

static uint32_t roll(uint32_t below)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return below ? (uint32_t)(rng >> 11) % below : 0;
}

static const char *const tokens[] = {"NCCL INFO ",
                                     "NCCL WARN ",
                                     "node:1:2 [0] ",
                                     ":1:2 [0] NCCL INFO ",
                                     "\x1b[31m",
                                     "^[[0m",
                                     "\r",
                                     "\n",
                                     "0x",
                                     " [repeated 2x across cluster]",
                                     "[1,2]<stdout>:",
                                     "(W pid=1, ip=::1) ",
                                     "\xff\xfe",
                                     "{a:int}",
                                     "{b:str}",
                                     "{{",
                                     "18446744073709551616",
                                     "-",
                                     "[rank2]:",
                                     "\\n",
                                     "\\\\u003c\\\"",
                                     "{\"rank\": 3, ",
                                     "\n\xe2\x94\x82 ",
                                     " \xe2\x94\x82\n",
                                     "\n| ",
                                     " |\n",
                                     "RCCL INFO ",
                                     " WARN ",
                                     "WARN: Function: f Line: 12: NET/OFI ",
                                     "NCCL "};

static size_t mutate(char *buf, size_t n, size_t cap)
{
    for (uint32_t k = 1 + roll(6); k; k--) {
        size_t at = roll((uint32_t)n + 1), len = 1 + roll(200), from = roll((uint32_t)n + 1);
        if (len > n - at) len = n - at;
        switch (roll(8)) {
        case 0: /* a byte */
            if (at < n) buf[at] = (char)roll(256);
            break;
        case 1: /* a piece is lost */
            memmove(buf + at, buf + at + len, n - at - len);
            n -= len;
            break;
        case 2: /* the end is lost */
            if (roll(8) == 0) n = at;
            break;
        case 3: /* a piece stands over another */
            if (len > n - from) len = n - from;
            memmove(buf + at, buf + from, len);
            break;
        case 4: { /* a word is put in */
            const char *t = tokens[roll(sizeof tokens / sizeof *tokens)];
            size_t tn = strlen(t);
            if (n + tn > cap) break;
            memmove(buf + at + tn, buf + at, n - at);
            memcpy(buf + at, t, tn);
            n += tn;
            break;
        }
        case 5: { /* a line end is lost */
            char *nl = memchr(buf + at, '\n', n - at);
            if (nl) *nl = ' ';
            break;
        }
        case 6: /* lines are wrapped at a column */
            for (size_t i = at, column = 20 + roll(180); i < n && i < at + 10 * column; i += column)
                if (buf[i] == ' ') buf[i] = '\n';
            break;
        default: /* a number changes */
            for (size_t i = at; i < at + len; i++)
                if (buf[i] >= '0' && buf[i] <= '9') buf[i] = (char)('0' + roll(10));
        }
    }
    return n;
}

int main(int argc, char **argv)
{
    enum { PIECE = 1 << 14, CAP = PIECE * 2 };
    long runs = argc > 1 ? atol(argv[1]) : 1000;
    char *buf = malloc(CAP);
    if (!buf) return 2;
    for (long run = 0; run < runs; run++) {
        size_t n = 0;
        if (argc > 2) {
            const char *name = argv[2 + run % (argc - 2)];
            FILE *f = fopen(name, "rb");
            if (!f) {
                fprintf(stderr, "cannot read %s\n", name);
                return 2;
            }
            fseek(f, 0, SEEK_END);
            long size = ftell(f);
            fseek(f, size > PIECE ? (long)roll((uint32_t)(size - PIECE)) : 0, SEEK_SET);
            n = fread(buf, 1, PIECE, f);
            fclose(f);
        }
        n = mutate(buf, n, CAP);
        LLVMFuzzerTestOneInput((const uint8_t *)buf, n);
    }
    free(buf);
    printf("%ld runs\n", runs);
    return 0;
}
#endif
