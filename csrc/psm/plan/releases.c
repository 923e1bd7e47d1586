/* The table of releases: what the planner does in each, as facts. The only place that has them. */
#include "plan/schedule.h"

/* What came with a release stays. */
#define SINCE_2_27_3 .eventRoom = 1
#define SINCE_2_28_3 SINCE_2_27_3, .reversedRounds = 1
#define SINCE_2_28_7 SINCE_2_28_3, .groupedRounds = 1, .roundGroups = 1
#define SINCE_2_29_2 SINCE_2_28_7, .epochs = 1, .simpleParts = 1, .abortable = 1
#define SINCE_2_29_7 SINCE_2_29_2, .carries = 1

/* Read in the sources of each release between the first and the last of a row. */
static const struct psmPlanRelease releases[] = {
    {.name = "planner", .last = "2.26.6", .since = 22203, .until = 22606},
    {.name = "planner-2.27.3", .last = "2.27.7", .since = 22703, .until = 22707, SINCE_2_27_3},
    {.name = "planner-2.28.3", .last = "2.28.3", .since = 22803, .until = 22803, SINCE_2_28_3},
    {.name = "planner-2.28.7", .last = "2.28.9", .since = 22807, .until = 22809, SINCE_2_28_7},
    {.name = "planner-2.29.2", .last = "2.29.3", .since = 22902, .until = 22903, SINCE_2_29_2},
    {.name = "planner-2.29.7", .last = "2.29.7", .since = 22907, .until = 22907, SINCE_2_29_7},
    {.name = "planner-2.30.3", .last = "2.30.7", .since = 23003, .until = 23007, SINCE_2_29_7},
};
enum { NRELEASES = sizeof releases / sizeof *releases };

size_t psmPlanReleases(const struct psmPlanRelease **out)
{
    *out = releases;
    return NRELEASES;
}

const struct psmPlanRelease *psm_plan_release(int32_t version)
{
    const struct psmPlanRelease *found = version == 0 ? releases : NULL;
    for (int i = 0; i < NRELEASES && version >= releases[i].since; i++) found = &releases[i];
    return found;
}
