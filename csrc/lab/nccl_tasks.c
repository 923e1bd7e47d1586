/* The pattern `tasks`: each iteration is one of the groups that follow the case in the list, a line for each call. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_run.h"

enum { BETWEEN = 512 }; /* messages begin at multiples of this, with room for a guard behind each */

static bool add(struct nccl_tasks *tasks, struct nccl_call call)
{
    if (tasks->n == tasks->room) {
        size_t room = tasks->room ? 2 * tasks->room : 256;
        struct nccl_call *more = realloc(tasks->calls, room * sizeof *more);
        if (!more) return false;
        tasks->calls = more;
        tasks->room = room;
    }
    tasks->calls[tasks->n++] = call;
    return true;
}

/* send PEER BYTES, recv PEER BYTES, or end. */
static bool read_line(char *line, int ranks, struct nccl_call *call)
{
    char *rest = line, *word = strtok_r(rest, " \t\n", &rest), *peer, *bytes;
    uint64_t n = 0;
    *call = (struct nccl_call){.ends = true};
    if (word && strcmp(word, "end") == 0) return !strtok_r(rest, " \t\n", &rest);
    if (!word || (strcmp(word, "send") != 0 && strcmp(word, "recv") != 0)) return false;
    *call = (struct nccl_call){.send = *word == 's'};
    if (!(peer = strtok_r(rest, " \t\n", &rest)) || !(bytes = strtok_r(rest, " \t\n", &rest))) return false;
    if (!lab_number(peer, 0, (uint64_t)ranks - 1, &n)) return false;
    call->peer = (int)n;
    return lab_number(bytes, 0, UINT64_C(1) << 36, &call->bytes) && !strtok_r(rest, " \t\n", &rest);
}

/* Where each message lies, and which it is between its two ranks in its group. */
static bool place(struct nccl_tasks *tasks, int ranks)
{
    uint64_t at[2] = {0, 0};
    uint32_t *counts = calloc(2 * (size_t)ranks, sizeof *counts);
    if (!counts) return false;
    for (size_t i = 0; i < tasks->n; i++) {
        struct nccl_call *call = &tasks->calls[i];
        if (call->ends) {
            tasks->groups++;
            at[0] = at[1] = 0;
            memset(counts, 0, 2 * (size_t)ranks * sizeof *counts);
            continue;
        }
        call->number = counts[2 * call->peer + call->send]++;
        call->at = at[call->send];
        at[call->send] += (call->bytes + GUARD + BETWEEN - 1) / BETWEEN * BETWEEN;
        if (tasks->bytes[call->send] < at[call->send]) tasks->bytes[call->send] = at[call->send];
    }
    free(counts);
    return true;
}

bool nccl_tasks_read(struct nccl_case *c, char *text, size_t size)
{
    char line[128];
    struct nccl_tasks *tasks = &c->tasks;
    bool memory = true;
    for (uint64_t i = 0; i < tasks->lines && memory; i++) {
        struct nccl_call call;
        if (!fgets(line, sizeof line, stdin) || !read_line(line, c->ranks, &call)) {
            snprintf(text, size,
                     "case %.60s: line %llu behind it is no call: expected send PEER BYTES, recv PEER BYTES or end",
                     c->task.name, (unsigned long long)i + 1);
            return false;
        }
        memory = add(tasks, call);
    }
    if (memory && place(tasks, c->ranks)) {
        if (tasks->n && tasks->calls[tasks->n - 1].ends && c->task.iters <= tasks->groups) return true;
        snprintf(text, size, "case %.60s: it needs a group for each of its %llu iterations, and there are %llu",
                 c->task.name, (unsigned long long)c->task.iters, (unsigned long long)tasks->groups);
        return false;
    }
    snprintf(text, size, "case %.60s: no memory for its tasks", c->task.name);
    return false;
}

void nccl_tasks_free(struct nccl_case *c)
{
    free(c->tasks.calls);
    c->tasks = (struct nccl_tasks){0};
}

/* The first call of the group of an iteration. */
static const struct nccl_call *group_of(const struct nccl_case *c, uint64_t iter)
{
    const struct nccl_call *call = c->tasks.calls;
    for (uint64_t i = 0; i < iter; call++) i += call->ends;
    return call;
}

bool nccl_tasks_launch(struct nccl_work *run, uint64_t iter)
{
    const struct nccl_case *c = run->c;
    enum lab_skip skip = nccl_skipped(run, iter);
    size_t each = nccl_type_size(c->type);
    int type = (int)c->type;
    if (!NCCL(ncclGroupStart)) return false;
    for (const struct nccl_call *call = group_of(c, iter); !call->ends; call++) {
        bool other = call->peer != run->rank;
        if (other && skip == (call->send ? SKIP_SEND : SKIP_RECV)) continue;
        uint64_t bytes = call->send && other ? nccl_shortened(c, call->bytes) : call->bytes;
        if (call->send ? !NCCL(ncclSend, run->out + call->at, bytes / each, type, call->peer, run->comm, run->stream)
                       : !NCCL(ncclRecv, run->in + call->at, bytes / each, type, call->peer, run->comm, run->stream))
            return false;
    }
    return NCCL(ncclGroupEnd);
}

bool nccl_tasks_each(struct nccl_work *run, uint64_t data, bool send, nccl_message_fn *each)
{
    uint64_t iter = run->c->graph ? data / run->c->graph : data;
    for (const struct nccl_call *call = group_of(run->c, iter); !call->ends; call++) {
        if (call->send != send) continue;
        run->message = call->number;
        bool good = each(run, call, data);
        run->message = 0;
        if (!good) return false;
    }
    return true;
}
