/* What the engines of the test programs answer alike. */
#ifndef PSM_TEST_ANSWERS_H
#define PSM_TEST_ANSWERS_H

#include <stdlib.h>

#include "plan/plan.h"

static inline psm_status test_release(void *self, int which, uint64_t graph)
{
    (void)self, (void)which, (void)graph;
    return PSM_OK;
}
static inline psm_status test_free(void *self, void *memory)
{
    (void)self;
    free(memory);
    return PSM_OK;
}
/* Members of a table of functions that have the names of its members, unless the name is one of C. */
#define TEST_ENGINE                                                                                                    \
    .size = sizeof(struct psmPlanEngine), .capturing = capturing, .acquire = acquire, .release = test_release,         \
    .wait = wait_for, .host_func = host_func, .copy = copy, .kernel = kernel, .on_destroy = on_destroy,                \
    .alloc = alloc, .free = test_free, .save = save, .start = start

#endif
