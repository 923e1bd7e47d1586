/* Text in a fixed buffer, without allocation. */
#include "log.h"

#include <stdio.h>
#include <string.h>

static void put(struct psm_text *t, const char *s, size_t n)
{
    size_t room = t->size - t->n, taken = n < room ? n : room;
    /* Once a piece did not fit, drop the rest: it would appear at the wrong place. */
    if (t->lost) taken = 0;
    memcpy(t->at + t->n, s, taken);
    t->n += taken;
    t->lost += n - taken;
}

void psm_text_literal(struct psm_text *t, const char *s, size_t n)
{
    put(t, s, n);
}

void psm_text_uint(struct psm_text *t, uint64_t value)
{
    char digits[20];
    size_t n = sizeof digits;
    do digits[--n] = (char)('0' + value % 10);
    while (value /= 10);
    put(t, digits + n, sizeof digits - n);
}

void psm_text_int(struct psm_text *t, int64_t value)
{
    if (value < 0) put(t, "-", 1);
    psm_text_uint(t, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

void psm_text_hex(struct psm_text *t, uint64_t value)
{
    char digits[16];
    size_t n = sizeof digits;
    do digits[--n] = "0123456789abcdef"[value & 15];
    while (value >>= 4);
    put(t, digits + n, sizeof digits - n);
}

void psm_text_ptr(struct psm_text *t, uint64_t value)
{
    put(t, "0x", 2);
    psm_text_hex(t, value);
}

static void put_escaped(struct psm_text *t, unsigned char c)
{
    char text[4] = {'\\', 'x', "0123456789abcdef"[c >> 4], "0123456789abcdef"[c & 15]};
    put(t, text, sizeof text);
}

/* Whether the bracket at s[i] would start a terminal escape sequence, in any of the spellings found in logs. */
static bool begins_sequence(const char *s, size_t i)
{
    return (i >= 1 && s[i - 1] == 0x1b) || (i >= 2 && s[i - 1] == '[' && s[i - 2] == '^') ||
           (i >= 3 && memcmp(s + i - 3, "ESC", 3) == 0);
}

static void put_text(struct psm_text *t, const char *s, const char *stop, bool word)
{
    static const char *const forks[] = {"NCCL ", "RCCL ", "VCCL ", "FLAGCX ", "NCCLX "};
    if (!s) s = "(null)";
    if (word && !*s) {
        put(t, "-", 1);
        return;
    }
    size_t stops = strlen(stop), n = strlen(s);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        bool edge = i == 0 || i + 1 == n;
        bool escape =
            c < 0x20 || c == 0x7f || c == '\\' || (c == ' ' && (word || edge)) || (c == '[' && begins_sequence(s, i));
        if (stops && !escape) escape = word ? c == (unsigned char)*stop : strncmp(s + i, stop, stops) == 0;
        for (size_t k = 0; k < sizeof forks / sizeof *forks && !escape; k++)
            escape = strncmp(s + i, forks[k], strlen(forks[k])) == 0;
        if (escape)
            put_escaped(t, c);
        else
            put(t, s + i, 1);
    }
}

void psm_text_word(struct psm_text *t, const char *s, const char *stop)
{
    put_text(t, s, stop, true);
}

void psm_text_str(struct psm_text *t, const char *s, const char *stop)
{
    put_text(t, s, stop, false);
}
