/* The time stamps of a process: its last one, the longest pause between two, and whether they ever go back. */
#include "scanner.h"

#include <string.h>

enum { SECOND = 1000, DAY = 86400 * SECOND };

struct stamp {
    int64_t ms;
    bool date;
};

/* Reads n digits; -1 if there are fewer. */
static int64_t digits(const char **s, const char *end, int n)
{
    int64_t v = 0;
    for (; n; n--, ++*s) {
        if (*s == end || **s < '0' || **s > '9') return -1;
        v = v * 10 + (**s - '0');
    }
    return v;
}

static bool skip(const char **s, const char *end, const char *any)
{
    if (*s == end || !**s || !strchr(any, **s)) return false;
    ++*s;
    return true;
}

/* Days since 1970-01-01 in the Gregorian calendar. */
static int64_t days(int64_t year, int64_t month, int64_t day)
{
    static const int16_t before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int64_t last = year - (month <= 2); /* the last year whose February is over */
    int64_t leaps = last / 4 - last / 100 + last / 400 - (1969 / 4 - 1969 / 100 + 1969 / 400);
    return (year - 1970) * 365 + leaps + before[month - 1] + day - 1;
}

/* 02:35:22, 02:35:22.123, 2026-11-21 02:35:22, 2026-11-21T02:35:22,123456Z. A stamp with another zone is none. */
static bool parse(const char *s, const char *end, struct stamp *out)
{
    *out = (struct stamp){0};
    if (end - s > 4 && (s[4] == '-' || s[4] == '/')) {
        int64_t year = digits(&s, end, 4), month = skip(&s, end, "-/") ? digits(&s, end, 2) : -1;
        int64_t day = skip(&s, end, "-/") ? digits(&s, end, 2) : -1;
        if (year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 || !skip(&s, end, "T ")) return false;
        *out = (struct stamp){.ms = days(year, month, day) * DAY, .date = true};
    }
    int64_t hour = digits(&s, end, 2), minute = skip(&s, end, ":") ? digits(&s, end, 2) : -1;
    int64_t second = skip(&s, end, ":") ? digits(&s, end, 2) : -1;
    if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60) return false;
    out->ms += ((hour * 60 + minute) * 60 + second) * SECOND;
    if (skip(&s, end, ".,"))
        for (int64_t unit = SECOND / 10; s < end && *s >= '0' && *s <= '9'; s++, unit /= 10)
            out->ms += (*s - '0') * unit;
    skip(&s, end, "Z");
    return s == end;
}

void ls_stamps(const char *texts, const uint64_t *packed, size_t n, int64_t *ms)
{
    for (size_t i = 0; i < n; i++) {
        struct stamp found;
        const char *s = texts + (packed[i] >> 20);
        ms[i] = packed[i] && parse(s, s + (packed[i] & LS_TEXT_MAX), &found) ? found.ms : INT64_MIN;
    }
}

void ls_note_stamp(ls_process *p, uint64_t seq, const char *s, uint32_t n)
{
    enum { SLACK = 2 * SECOND }; /* threads print in another order than they take the time */
    struct stamp now;
    if (!parse(s, s + n, &now)) return;
    if (p->stamp_seq) {
        int64_t gap = now.ms - p->stamp;
        if (!now.date && gap < -DAY / 2) gap += DAY; /* past midnight */
        if (now.date != (p->stamp_date != 0) || gap < -SLACK)
            p->backward++;
        else if (gap > p->pause)
            p->pause = gap;
    }
    p->stamp = now.ms;
    p->stamp_date = now.date;
    p->stamp_seq = seq;
}
