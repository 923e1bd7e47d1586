/* Between the parts of the driver. */
#ifndef PROFILER_DRIVER_H
#define PROFILER_DRIVER_H

#include "profiler_plugin.h"

extern void *context;
extern int mask;

void begin_v6(void);
struct prof_comm *comm_now(void);
void *start_v6(uint64_t type, void *parent);
void stop_v6(void *handle);
void say_counters(void);
void wait_for_end(void);

/* stress THREADS ROUNDS SEED FORCE: threads play trees while a consumer closes, takes and gives back windows at random,
 * FORCE of a hundred times before they are done. Prints what was begun, taken and lost. */
int stress(char **argument);

#endif
