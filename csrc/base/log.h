/* Log lines in NCCL's format, each written with one write(2): host:pid:tid [dev] NCCL LEVEL text.
 *
 * Messages come from the catalogue: use the functions psm_msg_<name> of the generated psm_messages.h, so that the
 * analysis knows every line that is printed. Those functions are built from the ones here. None of them allocates; all
 * are async-signal-safe. */
#ifndef PSM_LOG_H
#define PSM_LOG_H

#include "base.h"

/* Warnings are always printed; info if NCCL_DEBUG is INFO or higher, or with PSM_LOG=info; traces if it is TRACE, or
 * with PSM_LOG=trace. */
enum psm_level { PSM_LEVEL_WARN = 1, PSM_LEVEL_INFO = 2, PSM_LEVEL_TRACE = 3 };

enum { PSM_LINE_SIZE = 2048 };

bool psm_log_enabled(enum psm_level level);

/* The device shown in the lines of this thread. If unset, the result of the function, else 0. */
void psm_log_set_device(int device);
void psm_log_set_device_function(int (*current_device)(void));
int psm_log_device(void);

/* Write one message: text without prefix and line end, already escaped. */
void psm_log_write(enum psm_level level, const char *text, size_t n);
/* The same without a check of the level, for callers with their own filter. */
void psm_log_put(enum psm_level level, const char *text, size_t n);

/* Stop waiting for the file of NCCL_DEBUG_FILE: write the lines kept for it, to it or to standard error. Also done at
 * exit. */
void psm_log_flush(void);

/* Text in a fixed buffer. lost counts the bytes that did not fit. */
struct psm_text {
    char *at;
    size_t n, size, lost;
};

void psm_text_literal(struct psm_text *t, const char *s, size_t n);
void psm_text_int(struct psm_text *t, int64_t value);
void psm_text_uint(struct psm_text *t, uint64_t value);
void psm_text_hex(struct psm_text *t, uint64_t value); /* without 0x */
void psm_text_ptr(struct psm_text *t, uint64_t value); /* with 0x */
/* Untrusted text. Control bytes, and text that would read as the start of another record or the end of this field,
 * become
 * \xNN; NULL becomes "(null)". A word has no blanks and is never empty. stop is the literal that follows the field, ""
 * for none. */
void psm_text_word(struct psm_text *t, const char *s, const char *stop);
void psm_text_str(struct psm_text *t, const char *s, const char *stop);

#endif
