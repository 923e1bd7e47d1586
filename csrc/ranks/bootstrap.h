/* The socket from a rank program to its runner. psmkit/lab/bootstrap.py is the other end; docs/pytest.md lists the
 * messages. A function ends the process if the runner is gone. One thread uses it. */
#ifndef PSM_RANKS_BOOTSTRAP_H
#define PSM_RANKS_BOOTSTRAP_H

#include <stdbool.h>
#include <stddef.h>

void lab_connect(int fd, int rank, int ranks);
void lab_stage(const char *name);
/* Waits for all ranks. Answers how many of them have failed or are dead. */
int lab_meet(const char *name, bool failed);
/* All-gather of `size` bytes a rank; present[r]: rank r sent its part. */
void lab_gather(const char *name, const void *mine, size_t size, void *all, bool *present);
/* out[r], n[r]: what is for rank r. in[r] gets what rank r has for this one, up to n[r] bytes; got[r]: how much. */
void lab_exchange(const char *name, void *const *out, void *const *in, const size_t *n, size_t *got);
void lab_send_line(const char *text, size_t n);

#endif
