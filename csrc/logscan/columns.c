/* Columns of events, for tables of many lines. */
#include "scanner.h"

void ls_field_column(const ls_event *events, size_t n, const uint64_t *values, const int8_t *slots, uint64_t *out,
                     uint8_t *form)
{
    for (size_t i = 0; i < n; i++) {
        const ls_event *e = &events[i];
        int slot = slots[e->message];
        bool there = slot >= 0 && (e->present >> slot & 1);
        form[i] = !there ? 0 : e->texts >> slot & 1 ? 2 : 1;
        out[i] = there ? values[e->first_value + (uint32_t)slot] : 0;
    }
}

size_t ls_hexes(const uint64_t *values, const uint8_t *known, size_t n, char *out, int32_t *ends)
{
    char *p = out;
    for (size_t i = 0; i < n; i++) {
        if (known[i]) {
            int digits = values[i] ? (67 - __builtin_clzll(values[i])) / 4 : 1;
            *p++ = '0';
            *p++ = 'x';
            for (int shift = 4 * digits - 4; shift >= 0; shift -= 4) *p++ = "0123456789abcdef"[values[i] >> shift & 15];
        }
        ends[i] = (int32_t)(p - out);
    }
    return (size_t)(p - out);
}

size_t ls_gather(const char *texts, const uint64_t *packed, size_t n, char *out, int32_t *ends)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t length = packed[i] & LS_TEXT_MAX;
        if (length) memcpy(out + at, texts + (packed[i] >> 20), length);
        at += length;
        ends[i] = (int32_t)at;
    }
    return at;
}
