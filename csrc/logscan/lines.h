/* Between the bytes of a log and its records: feed.c finds lines and what most of them say, lines.c reads the others.
 */
#ifndef LOGSCAN_LINES_H
#define LOGSCAN_LINES_H

#include "scanner.h"

enum { LS_INFO_TAG = 10 }; /* bytes of "NCCL INFO " */

/* What every link of Markdown to an address has. */
#define LS_LINK "](http"

/* A line that ends in the bytes at hand, and what can be said of it without the lines before. */
struct ls_line {
    const char *s;
    uint32_t n;
    uint32_t tag;      /* the place of the first tag, if the line may be a common one, else LS_NONE */
    uint32_t hash;     /* of the stream and of the text before the tag */
    uint32_t pattern;  /* + 1 of its message, 0: unknown */
    uint32_t end;      /* of its message */
    uint32_t fields;   /* where those of its message are */
    struct ls_who who; /* by its prefix; thread is -1 if that is unknown */
    uint32_t call;     /* hash of its call, 0: none, or there are few processes */
    uint8_t type;      /* of that call, or anything */
    bool cut;
};

/* The lines of some bytes, in turn. */
struct ls_cursor {
    const char *line, *span, *end;
    size_t spanned; /* bytes whose ends are marked, from span on */
    struct ls_marks marks;
    uint32_t mark;
    bool odd;
};
void ls_cursor_at(struct ls_cursor *c, const char *s, const char *e);

/* A line that is no common one: with its prefix, its escape sequences, and what other lines say of it. */
void ls_on_line(struct ls_scan *scan, const ls_ref *ref, uint32_t stream, const char *s, uint32_t n, bool cut);

/* No line completes the torn record. */
void ls_cut_torn(struct ls_scan *scan, struct ls_torn *torn);

static inline void end_torn(struct ls_scan *scan, const struct ls_file *f)
{
    if (f->torn) ls_cut_torn(scan, f->torn);
}

/* Notes a line of its thread and of its process. */
static inline void touch(struct ls_scan *scan, const struct ls_file *f, const struct ls_record *rec)
{
    ls_thread *t = &scan->threads.at[rec->thread];
    if (!t->lines++) t->first = rec->ref;
    t->last = rec->ref;
    ls_process *p = &scan->procs.at[rec->proc];
    if (!p->lines++) p->first = rec->ref;
    if (!f->record || p->lines == 1 || scan->files.at[p->last.file].record) p->last = rec->ref;
    if (rec->time_len) ls_note_stamp(p, rec->ref.seq, rec->time, rec->time_len);
}

/* A prefix that was seen before, NULL: none. n: its length. same: compares bytes, as ls_same_bytes. */
static inline __attribute__((always_inline)) const struct ls_remembered *
ls_recall_by(int (*same)(const void *, const void *, size_t), const struct ls_prefixes *all, uint32_t stream,
             const char *s, uint32_t n, uint32_t hash)
{
    for (LS_EACH(&all->index, hash, e)) {
        const struct ls_remembered *p = &all->at.at[e];
        if (p->len == n && p->stream == stream && same(p->text, s, n)) return p;
    }
    return NULL;
}

static inline const struct ls_remembered *ls_recall(const struct ls_prefixes *all, uint32_t stream, const char *s,
                                                    uint32_t n, uint32_t hash)
{
    return ls_recall_by(ls_same_bytes, all, stream, s, n, hash);
}

static inline void ls_take_who(struct ls_record *rec, const struct ls_who *who)
{
    rec->proc = who->proc;
    rec->thread = who->thread;
    rec->device = who->device;
    rec->tag = who->tag;
}

#endif
