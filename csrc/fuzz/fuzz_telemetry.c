/* Fuzz target of the consumer of the profiler's windows: a damaged file is passed over, or what it gives is bounded. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "record_format.h"
#include "telemetry.cdef.h"
#include "window.h"

enum { SLOTS = 64, ROW = REC_SLOT_HEADER + sizeof(struct psm_prof_event), KEYS = 16, RAW = 100 };
enum {
    COMM_AT = 2 * REC_HEADER,
    COMM_SLOT = REC_SLOT_HEADER + sizeof(struct psm_prof_comm),
    WINDOWS_AT = COMM_AT + (COMM_SLOT + REC_ALIGN - 1) / REC_ALIGN * REC_ALIGN,
    WINDOW_SLOT = REC_SLOT_HEADER + sizeof(struct psm_prof_window),
    EVENTS_AT = WINDOWS_AT + (PSM_PROF_WINDOWS * WINDOW_SLOT + REC_ALIGN - 1) / REC_ALIGN * REC_ALIGN,
    FILE_SIZE = EVENTS_AT + PSM_PROF_WINDOWS * SLOTS * ROW
};
#define NAME "psm-fuzz-1-3.rec"

static char folder[] = "/tmp/psm-fuzz-XXXXXX"; /* records are never in /dev/shm */
static int folder_fd = -1;

static void clean_up(void)
{
    unlinkat(folder_fd, NAME, 0);
    rmdir(folder);
}

static void begin(void)
{
    if (folder_fd >= 0) return;
    fuzz_need(mkdtemp(folder) != NULL, "no folder in /tmp");
    folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    atexit(clean_up);
}

static void check_comms(struct psm_tel *tel)
{
    static struct psm_tel_comm comm;
    size_t n = psm_tel_comms(tel, &comm, 1);
    fuzz_need(n <= 1, "more communicators than files");
    if (!n) return;
    FUZZ_TAKEN();
    fuzz_need(memchr(comm.name, 0, sizeof comm.name) && memchr(comm.host, 0, sizeof comm.host) &&
                  memchr(comm.file, 0, sizeof comm.file),
              "a text has no end");
    fuzz_need(comm.owner <= 3 && comm.windows <= 16, "an owner of no kind, or windows that were taken again");
    psm_tel_set_mask(tel, comm.id, 1);
}

static void check_sums(struct psm_tel *tel)
{
    static struct psm_tel_op ops[KEYS + 1];
    static struct psm_tel_link links[KEYS + 1];
    static struct psm_tel_span_stat times[KEYS + 1];
    size_t n = psm_tel_take_ops(tel, ops, KEYS + 1);
    fuzz_need(n <= KEYS + 1, "more operations than keys");
    for (size_t i = 0; i < n; i++)
        fuzz_need(ops[i].bytes.least <= ops[i].bytes.most, "the least is more than the most");
    n = psm_tel_take_links(tel, links, KEYS + 1);
    fuzz_need(n <= KEYS + 1, "more links than keys");
    for (size_t i = 0; i < n; i++) {
        const struct psm_tel_link *l = &links[i];
        struct psm_tel_fit fit;
        psm_tel_fit((double)l->count, l->sx, l->sy, l->sxx, l->sxy, l->syy, &fit);
        fuzz_need(fit.why != PSM_TEL_FIT_GOOD || (fit.r2 >= 0 && fit.r2 <= 1 && fit.rate > 0), "a line that is none");
    }
    fuzz_need(psm_tel_take_times(tel, times, KEYS + 1) <= KEYS + 1, "more times than keys");
}

static void check_rows(struct psm_tel *tel)
{
    enum { MOST = 8 * 1024 };
    static struct psm_tel_row rows[MOST];
    uint64_t dropped = 0;
    size_t n = psm_tel_take_spans(tel, rows, MOST);
    fuzz_need(n <= MOST, "more rows of spans than 8 trees have");
    for (size_t i = 0; i < n; i++)
        fuzz_need(rows[i].root <= i && rows[i].why >= 1 && rows[i].why <= 4, "a row of no tree");
    fuzz_need(psm_tel_take_rows(tel, rows, MOST, &dropped) <= RAW, "more rows than were asked for");
    fuzz_need(psm_tel_open_now(tel, rows, MOST) <= MOST, "more that is open than there is");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    begin();
    unlinkat(folder_fd, NAME, 0);
    int fd = openat(folder_fd, NAME, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    fuzz_need(fd >= 0 && write(fd, data, size) == (ssize_t)size, "cannot write the file");
    close(fd);
    char error[256];
    struct psm_tel *tel = psm_tel_open(folder, size % 4 != 3, error, sizeof error);
    fuzz_need(tel != NULL, error);
    struct psm_tel_settings settings = {.spans = 8, .rows = RAW, .keys = KEYS};
    psm_tel_set(tel, &settings);
    for (int i = 0; i < 3; i++) {
        fuzz_need(psm_tel_poll(tel, i == 2) >= 0, "no memory");
        check_rows(tel);
        if (i) check_sums(tel);
        check_comms(tel);
    }
    psm_tel_close(tel);
    return 0;
}

#ifndef PSMKIT_LIBFUZZER
static void put_event(uint8_t *out, uint32_t w, uint32_t at)
{
    static const uint8_t types[] = {0, 1, 1, 2, 3, 3, 4, 4, 4, 4, 5, 6, 7, 8, 9, 12, 13, PSM_PROF_LATE};
    struct rec_slot *slot = (struct rec_slot *)(out + EVENTS_AT + (w * SLOTS + at) * ROW);
    struct psm_prof_event *e = (struct psm_prof_event *)slot->record;
    slot->sequence = 1 << 2 | (fuzz_below(4000) ? SLOT_LIVE : SLOT_CLAIMED);
    slot->time_ns = 1000 + fuzz_below(100000);
    slot->tid = (int32_t)fuzz_below(3);
    e->parent = PSM_PROF_HANDLE(1, fuzz_below(4) ? w * SLOTS + fuzz_below(SLOTS) : fuzz_below(4 * SLOTS), 1);
    e->type = types[fuzz_below(sizeof types)];
    e->stop_ns = fuzz_below(8) ? slot->time_ns + fuzz_below(10000) : 0;
    e->flags = (uint8_t)((e->stop_ns ? PSM_PROF_STOPPED : 0) | (fuzz_below(2) ? PSM_PROF_SENDS : 0) |
                         (fuzz_below(20) ? 0 : PSM_PROF_FOREIGN));
    if (e->type == PSM_PROF_COLL) {
        e->u.coll.count = fuzz_below(1 << 20);
        e->u.coll.func = (uint8_t)fuzz_below(12);
        e->u.coll.datatype = (uint8_t)fuzz_below(13);
        e->u.coll.channels = 2;
        e->u.coll.ops_begun = (uint16_t)fuzz_below(3);
        e->u.coll.ops_ended = (uint16_t)fuzz_below(3);
        e->u.coll.done_ns = slot->time_ns + fuzz_below(10000);
    } else if (e->type == PSM_PROF_PROXY_STEP) {
        e->u.proxy_step.peer = (int32_t)fuzz_below(4) - 1;
        e->u.proxy_step.channel = (uint8_t)fuzz_below(3);
        e->u.proxy_step.bytes = fuzz_below(1 << 20);
        e->u.proxy_step.net_ns = slot->time_ns + fuzz_below(500);
    } else if (e->type == PSM_PROF_KERNEL_CH) {
        e->u.kernel_ch.gpu_begin_ns = 5000 + fuzz_below(100000);
        e->u.kernel_ch.gpu_end_ns = e->u.kernel_ch.gpu_begin_ns + fuzz_below(1000);
    }
}

static void put_section(struct rec_section *s, const char *name, uint32_t record, uint64_t at, uint64_t capacity)
{
    *s = (struct rec_section){.ready = 1,
                              .kind = PSM_TABLE,
                              .version = PSM_PROF_VERSION,
                              .record_size = record,
                              .slot_size = REC_SLOT_HEADER + record,
                              .control_offset = REC_HEADER,
                              .data_offset = at,
                              .capacity = capacity};
    snprintf(s->name, sizeof s->name, "%s", name);
}

static size_t fuzz_right(uint8_t *out, size_t room)
{
    fuzz_need(FILE_SIZE + 3 <= room, "no room");
    memset(out, 0, FILE_SIZE + 3);
    struct rec_header *h = (struct rec_header *)out;
    const struct psm_proc *self = psm_proc_self();
    memcpy(h->magic, REC_MAGIC, sizeof h->magic);
    h->order = REC_ORDER;
    h->version = REC_VERSION;
    h->header_size = REC_HEADER;
    h->section_size = sizeof(struct rec_section);
    h->file_size = FILE_SIZE;
    h->pid = fuzz_below(3) ? self->pid : 1 << 22;
    h->start_time = self->start_time;
    h->pid_ns = self->pid_ns;
    memcpy(h->boot_id, self->boot_id, sizeof h->boot_id);
    h->sections = REC_SECTIONS;
    h->state = fuzz_below(4) ? REC_RUNNING : REC_CLEAN;
    put_section(&h->section[0], "psm.prof.comm", sizeof(struct psm_prof_comm), COMM_AT, 1);
    put_section(&h->section[1], "psm.prof.windows", sizeof(struct psm_prof_window), WINDOWS_AT, PSM_PROF_WINDOWS);
    put_section(&h->section[2], "psm.prof.events", sizeof(struct psm_prof_event), EVENTS_AT, PSM_PROF_WINDOWS * SLOTS);
    struct rec_slot *slot = (struct rec_slot *)(out + COMM_AT);
    struct psm_prof_comm *comm = (struct psm_prof_comm *)slot->record;
    slot->sequence = SLOT_LIVE;
    comm->nranks = 4;
    comm->context = 1;
    comm->slots = SLOTS;
    comm->interval_ns = fuzz_below(2) ? 1 : UINT64_C(1) << 60;
    comm->force_ns = fuzz_below(2) ? 1 : UINT64_C(1) << 60;
    for (uint32_t w = 0; w < PSM_PROF_WINDOWS; w++) {
        struct psm_prof_window *window =
            (struct psm_prof_window *)(out + WINDOWS_AT + w * WINDOW_SLOT + REC_SLOT_HEADER);
        uint32_t n = (uint32_t)fuzz_below(SLOTS + 1);
        window->state = (uint32_t)fuzz_below(4);
        window->cycle = 1;
        window->next = n;
        window->serial = w + 1;
        window->shard[0].started = n;
        for (uint32_t i = 0; i < n; i++) {
            put_event(out, w, i);
            slot = (struct rec_slot *)(out + EVENTS_AT + (w * SLOTS + i) * ROW);
            window->shard[0].stopped += ((struct psm_prof_event *)slot->record)->flags & PSM_PROF_STOPPED;
        }
    }
    /* Damage likes the first bytes: what lies behind gets its share here. */
    for (size_t k = fuzz_below(4); k > 0; k--) {
        size_t at = COMM_AT + fuzz_below(fuzz_below(2) ? EVENTS_AT - COMM_AT : FILE_SIZE - COMM_AT);
        out[at] = (uint8_t)fuzz_draw();
    }
    return FILE_SIZE + (fuzz_below(4) ? 0 : 3); /* who looks, and who consumes: by the size */
}
#endif
