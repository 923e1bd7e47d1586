/* How both rank programs start and report: the environment that the runner sets, a line of JSON for each case. */
#ifndef PSM_LAB_OUTCOME_H
#define PSM_LAB_OUTCOME_H

#include <stdio.h>

#include "task.h"

/* What became of a case. */
struct lab_outcome {
    const struct lab_task *task;
    int rank;
    char stage[24], by[16]; /* by: libpsm, nccl, cuda, data, lab, left */
    struct lab_check check;
    uint64_t groups; /* of sends and recvs, or collectives */
    double setup_seconds, move_seconds, seconds;
};

double lab_now(void);

/* Keys and values of an object: each begins with a comma. */
void lab_put_text(FILE *out, const char *key, const char *text);
void lab_put_int(FILE *out, const char *key, int64_t value);

/* A line to the runner: `word`, the keys of every case, and between begin and end what the program adds. */
struct lab_report {
    FILE *out; /* NULL: no memory */
    char *line;
    size_t n;
};
void lab_report_begin(struct lab_report *report, const char *word, const struct lab_outcome *outcome,
                      const char *status, const char *text);
void lab_report_end(struct lab_report *report);

/* Who this rank is. Ends the program if the runner has not set it. */
struct lab_place {
    int fd, rank, ranks;
};
struct lab_place lab_place(const char *program, const char *command);
/* The process ends with its runner, and a debugger of the runner may look into it. */
void lab_tie_to_runner(void);
/* A barrier after a case: the runner says here whether there is a job still. Answers how many others have failed. */
int lab_meet_after(const struct lab_task *task);

#endif
