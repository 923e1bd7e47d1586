/* Lines that something drew or wrote around the text of a program: boxes of terminals, and texts of several lines that
 * a structured log holds on one. */
#define _GNU_SOURCE
#include "scanner.h"

#include <ctype.h>

enum { BORDER = 3, NEAR = 80 }; /* bytes of a border; bytes of tags and times before it */

/* The length of a border that ends at s[n): one of U+2502, U+2503, U+2551, or a bar behind a blank; 0 if there is none.
 */
static uint32_t border(const char *s, uint32_t n)
{
    if (n > BORDER && s[n - 3] == '\xe2' &&
        ((s[n - 2] == '\x94' && (s[n - 1] == '\x82' || s[n - 1] == '\x83')) ||
         (s[n - 2] == '\x95' && s[n - 1] == '\x91')))
        return BORDER;
    return n > 4 && s[n - 1] == '|' && s[n - 2] == ' ' ? 1 : 0;
}

bool ls_boxed(const char *s, uint32_t n, uint32_t *from, uint32_t *end)
{
    n = ls_trim(s, 0, n);
    uint32_t len = border(s, n);
    if (!len) return false;
    const char *last = s + n - len, *first = memmem(s, n, last, len);
    if (first == last || first - s > NEAR) return false;
    /* a table has bars between its columns */
    if (len == 1 && memmem(first + 1, (size_t)(last - first) - 1, "|", 1)) return false;
    if (len == 1 && first[1] != ' ') return false;
    *from = (uint32_t)(first - s);
    *end = ls_trim(s, *from + len, (uint32_t)(last - s));
    return *end > *from + len;
}

void ls_unbox(char *s, uint32_t from)
{
    memset(s + from, ' ', s[from] == '|' ? 1 : BORDER);
}

/* \\u003c at s: the character in UTF-8; returns its length, 0 if there is none. */
static uint32_t unicode(const char *s, uint32_t n, char *to)
{
    uint32_t code = 0;
    if (n < 5 || s[0] != 'u') return 0;
    for (uint32_t i = 1; i < 5; i++) {
        if (!isxdigit((unsigned char)s[i])) return 0;
        code = code * 16 + (uint32_t)(isdigit((unsigned char)s[i]) ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    }
    if (code < ' ' || (code >= 0xd800 && code < 0xe000)) return 0;
    if (code < 0x80) return *to = (char)code, 1;
    uint32_t len = code < 0x800 ? 2 : 3;
    for (uint32_t i = len; --i; code >>= 6) to[i] = (char)(0x80 | (code & 0x3f));
    to[0] = (char)((len == 2 ? 0xc0 : 0xe0) | code);
    return len;
}

uint32_t ls_unfold(char *s, uint32_t n)
{
    static const char spelled[] = "ntr\"", meant[] = "\n\t \"";
    uint32_t out = 0;
    for (uint32_t i = 0; i < n;) {
        uint32_t k = i;
        while (k < n && s[k] == '\\') k++; /* a text that was quoted twice has two of them */
        const char *at = k > i && k < n ? strchr(spelled, s[k]) : NULL;
        uint32_t len = at && *at ? 1 : 0, wide = k > i ? unicode(s + k, n - k, s + out) : 0;
        if (len) s[out] = meant[at - spelled];
        if (len || wide) {
            out += len ? len : wide;
            i = k + (len ? 1 : 5);
            continue;
        }
        do s[out++] = s[i++];
        while (i < k);
    }
    return out;
}

bool ls_json_rank(const char *s, uint32_t n, uint32_t *at, uint32_t *len)
{
    static const char *const keys[] = {"\"rank\":", "\"global_rank\":"};
    if (n < 10 || s[0] != '{') return false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *p = memmem(s, n, keys[i], strlen(keys[i]));
        if (!p) continue;
        uint32_t k = (uint32_t)(p - s + (ptrdiff_t)strlen(keys[i]));
        if (k < n && s[k] == ' ') k++;
        uint32_t first = k;
        while (k < n && isdigit((unsigned char)s[k])) k++;
        if (k == first || k - first > 9) continue;
        *at = (uint32_t)(p - s);
        *len = k - *at;
        return true;
    }
    return false;
}
