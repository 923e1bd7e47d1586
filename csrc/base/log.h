/* Log lines in NCCL's format, written with one write(2) each: host:pid:tid [dev] NCCL LEVEL text.
 *
 * Messages come from the catalogue: use the functions of the generated psm_messages.h (psm_msg_<name>), so that what is
 * printed is what the analysis knows. The functions here are what these are made of. None allocates; all may be called
 * in a signal handler. */
#ifndef PSM_LOG_H
#define PSM_LOG_H

#include "base.h"

/* Warnings are always printed. Info is printed when NCCL_DEBUG is INFO or more, or with PSM_LOG=info; traces when it is
 * TRACE, or with PSM_LOG=trace. */
enum psm_level { PSM_LEVEL_WARN = 1, PSM_LEVEL_INFO = 2, PSM_LEVEL_TRACE = 3 };

enum { PSM_LINE_SIZE = 2048 };

bool psm_log_enabled(enum psm_level level);

/* The device that the lines of this thread carry. Without it: the answer of the function, else 0. */
void psm_log_set_device(int device);
void psm_log_set_device_function(int (*current_device)(void));
int psm_log_device(void);

/* Write one message (text without prefix and line end; it is escaped already). */
void psm_log_write(enum psm_level level, const char *text, size_t n);
/* The same without a look at the level: for who has a filter of its own. */
void psm_log_put(enum psm_level level, const char *text, size_t n);

/* Wait no longer for the file of NCCL_DEBUG_FILE: what is kept for it is written, to it or to standard error. Done at
 * exit too. */
void psm_log_flush(void);

/* Text in a fixed buffer. What does not fit is left out and counted in lost. */
struct psm_text {
    char *at;
    size_t n, size, lost;
};

void psm_text_literal(struct psm_text *t, const char *s, size_t n);
void psm_text_int(struct psm_text *t, int64_t value);
void psm_text_uint(struct psm_text *t, uint64_t value);
void psm_text_hex(struct psm_text *t, uint64_t value); /* without 0x */
void psm_text_ptr(struct psm_text *t, uint64_t value); /* with 0x */
void psm_text_float(struct psm_text *t, double value);
/* Text that nobody vouches for. Control bytes, and what would read as the begin of another record or as the end of this
 * field, become
 * \xNN; NULL is written "(null)". A word has no blanks and is never empty. stop is the literal that follows the field,
 * "" for none. */
void psm_text_word(struct psm_text *t, const char *s, const char *stop);
void psm_text_str(struct psm_text *t, const char *s, const char *stop);

#endif
