/* What a run of the model asks for, and the traces that drive it. Included by the verifier that spin makes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of the environment, in a row. */
static int setting(int i)
{
    const char *at = getenv("PSM_MODEL");
    for (; at && i > 0; i--) {
        at = strchr(at, ' ');
        if (at) at++;
    }
    return at ? atoi(at) : 0;
}

#ifdef TRACES
/* A file of numbers: how many traces, then of each how many events and how many launches of its graph
 * that no event tells, then of each event what, plan, a, b, c; kernel, ops
 * of collectives, ops that decrement (of the plan that is made); the plan that a destructor begins with. */
enum { TRACE_EVENT = 9 };
static struct trace {
    int n, untold, best, admitted;
    const char *broken;
    int *event;
} *traces;
static int trace_count;

static void trace_report(void)
{
    for (int i = 0; i < trace_count; i++)
        printf("trace %d: %d of %d %s\n", i, traces[i].best, traces[i].n, traces[i].broken ? traces[i].broken : "-\n");
}

static int trace_number(FILE *file)
{
    int number;
    if (fscanf(file, "%d", &number) == 1) return number;
    fprintf(stderr, "PSM_TRACES: the file is damaged\n");
    exit(2);
}

__attribute__((constructor)) static void trace_read(void)
{
    const char *path = getenv("PSM_TRACES");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) {
        fprintf(stderr, "PSM_TRACES names no file that can be read\n");
        exit(2);
    }
    trace_count = trace_number(file);
    traces = calloc((size_t)trace_count + 1, sizeof *traces);
    for (int i = 0; i < trace_count; i++) {
        traces[i].n = trace_number(file);
        traces[i].untold = trace_number(file);
        traces[i].event = calloc((size_t)traces[i].n + 1, TRACE_EVENT * sizeof(int));
        for (int j = 0; j < traces[i].n * TRACE_EVENT; j++) traces[i].event[j] = trace_number(file);
    }
    fclose(file);
    atexit(trace_report);
}

/* The event at pos, into the variables from nextWhat on, which spin lays out in their order. None behind the last one,
 * nor in a trace that is known to be admitted. */
static void trace_load(int trace, int pos, int *next)
{
    struct trace *t = &traces[trace];
    if (pos > t->best) {
        t->best = pos;
        t->broken = NULL;
    }
    if (pos == t->n) t->admitted = 1;
    memset(next, 0, TRACE_EVENT * sizeof(int));
    if (!t->admitted) memcpy(next, t->event + pos * TRACE_EVENT, TRACE_EVENT * sizeof(int));
}

static void trace_broke(int trace, int pos, const char *rule)
{
    struct trace *t = &traces[trace];
    if (pos == t->best) t->broken = rule;
}
#endif
