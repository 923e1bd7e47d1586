/* The consumer's interface: opening, polling, and returning the sums. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "consumer.h"

uint64_t tel_now(void)
{
    return psm_clock_ns();
}

static int open_folder(const char *directory, char *path, size_t size, const char **why)
{
    if (!directory) return psm_record_directory(false, path, size, why);
    snprintf(path, size, "%s", directory);
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat st;
    *why = NULL;
    if (fd < 0 || fstat(fd, &st) != 0)
        *why = strerror(errno);
    else if (st.st_uid != geteuid())
        *why = "owned by another user";
    else if ((st.st_mode & 022) && !(st.st_mode & S_ISVTX))
        *why = "other users can write to it; set its mode to 0700";
    if (!*why) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static bool make_tables(struct psm_tel *tel)
{
    uint32_t keys = tel->settings.keys;
    return tel_table_make(&tel->ops, sizeof(struct psm_tel_op), keys) &&
           tel_table_make(&tel->links, sizeof(struct tel_link), keys) &&
           tel_table_make(&tel->leasts, sizeof(struct tel_least), keys * 8) &&
           tel_table_make(&tel->times, sizeof(struct psm_tel_span_stat), keys) &&
           (tel->picks = calloc(keys, sizeof *tel->picks)) != NULL &&
           (tel->trees = calloc(TEL_MOST_SPANS, sizeof *tel->trees)) != NULL &&
           (tel->holding.early = calloc(TEL_MOST_EARLY, sizeof *tel->holding.early)) != NULL &&
           (tel->comms = calloc(TEL_MOST_COMMS, sizeof(struct tel_comm *))) != NULL;
}

struct psm_tel *psm_tel_open(const char *directory, int consume, char *error, size_t size)
{
    struct psm_tel *tel = calloc(1, sizeof *tel);
    const char *why = "no memory";
    if (size) error[0] = 0;
    if (tel) {
        tel->consume = consume != 0;
        tel->random_bar = UINT64_MAX;
        tel->last_link_at = TEL_NONE;
        tel->settings = (struct psm_tel_settings){.keys = TEL_DEFAULT_KEYS, .spans = TEL_DEFAULT_SPANS};
        tel->folder = open_folder(directory, tel->directory, sizeof tel->directory, &why);
        if (tel->folder >= 0 && make_tables(tel)) return tel;
        if (tel->folder >= 0) why = "no memory";
    }
    if (size)
        snprintf(error, size, "cannot read the record directory %s: %s", tel && tel->directory[0] ? tel->directory : "",
                 why);
    psm_tel_close(tel);
    return NULL;
}

void psm_tel_close(struct psm_tel *tel)
{
    if (!tel) return;
    for (uint32_t i = 0; i < tel->ncomms; i++) {
        tel_file_close(tel->comms[i]);
        free(tel->comms[i]);
    }
    tel_table_free(&tel->ops);
    tel_table_free(&tel->links);
    tel_table_free(&tel->leasts);
    tel_table_free(&tel->times);
    tel_held_free(tel);
    tel_spans_free(tel);
    free(tel->picks);
    free(tel->raw.rows);
    free(tel->rows);
    free(tel->side);
    free(tel->ops_at);
    free(tel->comms);
    if (tel->folder >= 0) close(tel->folder);
    free(tel);
}

/* Another limit of keys: change only tables that are empty. */
static bool resize(struct tel_table *t, uint32_t limit)
{
    struct tel_table fresh;
    if (t->n || t->limit == limit) return true;
    if (!tel_table_make(&fresh, t->size, limit)) return false;
    tel_table_free(t);
    *t = fresh;
    return true;
}

static void fit_tables(struct psm_tel *tel)
{
    uint32_t keys = tel->settings.keys;
    if (!tel->ops.n && tel->ops.limit != keys) {
        struct tel_pick *picks = calloc(keys, sizeof *picks);
        if (picks && resize(&tel->ops, keys)) {
            free(tel->picks);
            tel->picks = picks;
        } else {
            free(picks);
        }
    }
    if (!tel->links.n && resize(&tel->links, keys)) resize(&tel->leasts, keys * 8);
    resize(&tel->times, keys);
}

void psm_tel_set(struct psm_tel *tel, const struct psm_tel_settings *settings)
{
    uint32_t keys = settings->keys ? settings->keys : TEL_DEFAULT_KEYS;
    tel->settings = *settings;
    tel->settings.keys = keys < TEL_MOST_KEYS ? keys : TEL_MOST_KEYS;
    if (settings->spans > TEL_MOST_SPANS) tel->settings.spans = TEL_MOST_SPANS;
    fit_tables(tel);
}

static void forget_told(struct psm_tel *tel)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < tel->ncomms; i++) {
        struct tel_comm *c = tel->comms[i];
        struct stat st;
        /* A communicator whose file stays is remembered, or it would be found again. */
        if (c->done && c->told && fstatat(tel->folder, c->name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            free(c);
        else
            tel->comms[kept++] = c;
    }
    tel->ncomms = kept;
}

int psm_tel_poll(struct psm_tel *tel, int final)
{
    int taken = 0;
    tel->failed = false;
    forget_told(tel);
    tel_files_scan(tel);
    for (uint32_t i = 0; i < tel->ncomms; i++) taken += tel_poll_comm(tel, tel->comms[i], final != 0);
    return tel->failed ? -1 : taken;
}

static struct tel_comm *comm_of(const struct psm_tel *tel, uint32_t id)
{
    for (uint32_t i = 0; i < tel->ncomms; i++)
        if (tel->comms[i]->seen.id == id) return tel->comms[i];
    return NULL;
}

size_t psm_tel_comms(struct psm_tel *tel, struct psm_tel_comm *out, size_t n)
{
    size_t there = 0;
    for (uint32_t i = 0; i < tel->ncomms; i++) {
        if (tel->comms[i]->told) continue;
        if (there < n) out[there] = tel->comms[i]->seen;
        there++;
    }
    for (uint32_t i = 0; there <= n && i < tel->ncomms; i++)
        if (tel->comms[i]->done) tel->comms[i]->told = true;
    return there;
}

void psm_tel_losses(const struct psm_tel *tel, struct psm_tel_losses *out)
{
    *out = tel->losses;
}

int psm_tel_set_mask(struct psm_tel *tel, uint32_t comm, uint32_t mask)
{
    struct tel_comm *c = comm_of(tel, comm);
    struct stat st;
    if (!c || c->done || fstat(c->fd, &st) != 0 || (uint64_t)st.st_size < c->need) return -1;
    uint64_t at = c->comm_at + offsetof(struct psm_prof_comm, mask_wanted);
    return pwrite(c->fd, &mask, sizeof mask, (off_t)at) == (ssize_t)sizeof mask ? 0 : -1;
}

/* ---- sums ---- */

size_t psm_tel_take_ops(struct psm_tel *tel, struct psm_tel_op *out, size_t n)
{
    size_t there = tel->ops.n + (tel->other_op.bytes.count + tel->other_op.duration.count + tel->other_op.incomplete +
                                     tel->other_op.transfer_time.count >
                                 0);
    if (!there || there > n) return there;
    memcpy(out, tel->ops.items, tel->ops.n * sizeof *out);
    if (there > tel->ops.n) {
        out[there - 1] = tel->other_op;
        out[there - 1].comm = UINT32_MAX;
        out[there - 1].peer = -1;
        out[there - 1].other = 1;
        memset(&out[there - 1].func, 255, 4);
    }
    memset(&tel->other_op, 0, sizeof tel->other_op);
    memset(tel->picks, 0, tel->ops.n * sizeof *tel->picks);
    tel_table_clear(&tel->ops);
    fit_tables(tel);
    return there;
}

size_t psm_tel_take_links(struct psm_tel *tel, struct psm_tel_link *out, size_t n)
{
    size_t there = tel->links.n + (tel->other_link.face.count > 0);
    if (!there || there > n) return there;
    tel_links_total(tel);
    for (uint32_t i = 0; i < tel->links.n; i++) out[i] = ((struct tel_link *)tel_table_at(&tel->links, i))->face;
    if (there > tel->links.n) {
        struct psm_tel_link *other = &out[there - 1];
        *other = tel->other_link.face;
        other->comm = UINT32_MAX;
        other->rank = other->peer = other->channel = -1;
        other->other = 1;
    }
    memset(&tel->other_link, 0, sizeof tel->other_link);
    tel_table_clear(&tel->links);
    tel_table_clear(&tel->leasts);
    tel->last_link_at = TEL_NONE;
    tel->last_link = (struct tel_key){0};
    fit_tables(tel);
    return there;
}

size_t psm_tel_take_times(struct psm_tel *tel, struct psm_tel_span_stat *out, size_t n)
{
    size_t there = tel->times.n + (tel->other_time.duration.count > 0);
    if (!there || there > n) return there;
    memcpy(out, tel->times.items, tel->times.n * sizeof *out);
    if (there > tel->times.n) {
        out[there - 1] = tel->other_time;
        out[there - 1].comm = out[there - 1].what = UINT32_MAX;
    }
    memset(&tel->other_time, 0, sizeof tel->other_time);
    tel_table_clear(&tel->times);
    fit_tables(tel);
    return there;
}

size_t psm_tel_take_rows(struct psm_tel *tel, struct psm_tel_row *out, size_t n, uint64_t *dropped)
{
    size_t there = tel->raw.n;
    if (there > n) return there;
    if (there) memcpy(out, tel->raw.rows, there * sizeof *out);
    tel->raw.n = 0;
    *dropped += tel->raw_dropped;
    tel->raw_dropped = 0;
    return there;
}

bool tel_list_room(struct tel_list *list, size_t more)
{
    if (list->n + more <= list->room) return true;
    size_t room = list->room * 2 + more + 64;
    struct psm_tel_row *rows = realloc(list->rows, room * sizeof *rows);
    if (!rows) return false;
    list->rows = rows;
    list->room = room;
    return true;
}

/* ---- what is open ---- */

static int by_start(const void *a, const void *b)
{
    uint64_t x = ((const struct psm_tel_row *)a)->start_ns, y = ((const struct psm_tel_row *)b)->start_ns;
    return (x > y) - (x < y);
}

static void add_open(struct tel_list *list, uint32_t comm, uint64_t handle, uint64_t start_ns, int32_t tid,
                     const struct psm_prof_event *e)
{
    if (!tel_list_room(list, 1)) return;
    struct psm_tel_row *row = &list->rows[list->n++];
    *row = (struct psm_tel_row){
        .handle = handle, .start_ns = start_ns, .comm = comm, .tid = tid, .why = TEL_OPEN, .begin_ns = start_ns};
    memcpy(row->event, e, sizeof row->event);
}

static void open_in_windows(struct psm_tel *tel, struct tel_comm *c, struct tel_list *list)
{
    struct psm_prof_window windows[PSM_PROF_WINDOWS];
    if (!tel_file_windows(c, windows)) return;
    for (uint32_t w = 0; w < PSM_PROF_WINDOWS; w++) {
        uint32_t next = windows[w].next, room = next < c->slots ? next : c->slots;
        if (windows[w].state == PSM_PROF_READY || !room || !tel_rows_room(tel, room)) continue;
        struct tel_batch b = {.c = c, .rows = tel->rows, .w = w, .cycle = windows[w].cycle};
        b.n = tel_file_rows(c, w, next, b.rows);
        for (uint32_t i = 0; i < b.n; i++) {
            const struct psm_prof_event *e = &b.rows[i].event;
            if (tel_live(&b, i) && e->type != PSM_PROF_LATE && tel_is_open(e))
                add_open(list, c->seen.id, tel_handle(&b, i), b.rows[i].start_ns, b.rows[i].tid, e);
        }
    }
}

size_t psm_tel_open_now(struct psm_tel *tel, struct psm_tel_row *out, size_t n)
{
    struct tel_list list = {0};
    for (uint32_t i = 0; i < tel->ncomms; i++)
        if (!tel->comms[i]->done) open_in_windows(tel, tel->comms[i], &list);
    for (uint32_t at = tel->holding.first; at; at = tel->holding.items[at - 1].newer) {
        const struct tel_held *h = &tel->holding.items[at - 1];
        if (!h->early && tel_is_open(&h->event)) add_open(&list, h->comm, h->handle, h->start_ns, h->tid, &h->event);
    }
    if (list.n) qsort(list.rows, list.n, sizeof *list.rows, by_start);
    size_t there = list.n < TEL_MOST_OPEN ? list.n : TEL_MOST_OPEN;
    for (size_t i = 0; there <= n && i < there; i++) {
        out[i] = list.rows[i];
        out[i].root = (uint32_t)i;
    }
    free(list.rows);
    return there;
}
