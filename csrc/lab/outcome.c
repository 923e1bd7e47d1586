#define _GNU_SOURCE
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "bootstrap.h"
#include "outcome.h"

double lab_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void lab_put_text(FILE *out, const char *key, const char *text)
{
    fprintf(out, ",\"%s\":\"", key);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

void lab_put_int(FILE *out, const char *key, int64_t value)
{
    fprintf(out, ",\"%s\":%" PRId64, key, value);
}

void lab_report_begin(struct lab_report *report, const char *word, const struct lab_outcome *outcome,
                      const char *status, const char *text)
{
    const struct lab_check *check = &outcome->check;
    *report = (struct lab_report){.line = NULL};
    FILE *out = report->out = open_memstream(&report->line, &report->n);
    if (!out) return;
    fprintf(out, "%s {\"protocol\":1", word);
    lab_put_text(out, "name", outcome->task->name);
    lab_put_int(out, "rank", outcome->rank);
    lab_put_text(out, "status", status);
    lab_put_text(out, "stage", outcome->stage);
    lab_put_text(out, "by", outcome->by);
    lab_put_text(out, "text", text);
    lab_put_int(out, "wrong", (int64_t)check->wrong);
    lab_put_int(out, "wrong_from", check->from);
    lab_put_int(out, "wrong_iter", (int64_t)check->iter);
    lab_put_int(out, "wrong_offset", (int64_t)check->offset);
    lab_put_int(out, "bytes", (int64_t)check->bytes);
    lab_put_int(out, "groups", (int64_t)outcome->groups);
    fprintf(out, ",\"setup_seconds\":%.6f,\"move_seconds\":%.6f,\"seconds\":%.6f", outcome->setup_seconds,
            outcome->move_seconds, outcome->seconds);
}

void lab_report_end(struct lab_report *report)
{
    if (!report->out) return;
    fprintf(report->out, "}\n");
    if (fclose(report->out) == 0) lab_send_line(report->line, report->n);
    free(report->line);
}

static int number(const char *program, const char *command, const char *name, int low)
{
    const char *text = getenv(name);
    uint64_t value;
    if (text && lab_number(text, (uint64_t)low, 1 << 20, &value)) return (int)value;
    fprintf(stderr, "%s: %s is \"%s\"; expected a number from %d. `%s` starts this program\n", program, name,
            text ? text : "", low, command);
    exit(2);
}

struct lab_place lab_place(const char *program, const char *command)
{
    return (struct lab_place){.fd = number(program, command, "PSM_LAB_SOCKET", 3),
                              .rank = number(program, command, "PSM_RANK", 0),
                              .ranks = number(program, command, "PSM_RANKS", 1)};
}

void lab_tie_to_runner(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
}

int lab_meet_after(const struct lab_task *task)
{
    char name[80];
    snprintf(name, sizeof name, "case-%.60s", task->name);
    return lab_meet(name, false);
}
