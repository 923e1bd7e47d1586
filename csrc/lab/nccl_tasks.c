/* The pattern `tasks`: the groups of calls that follow the case in the list, a line for each call. An iteration is the
 * groups up to a line `wait`: they are called one after the other, and then their data is looked at. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_run.h"

enum { BETWEEN = 512, MOST = 4096 }; /* messages begin at multiples of BETWEEN, with room for a guard behind each */

static bool grow(void **items, size_t each, size_t n, size_t *room)
{
    if (n < *room) return true;
    size_t more = *room ? 2 * *room : 256;
    void *larger = realloc(*items, more * each);
    if (!larger) return false;
    *items = larger;
    *room = more;
    return true;
}

static const char *const words[] = {"send",          "recv",      "allreduce", "allgather",
                                    "reducescatter", "broadcast", "reduce",    NULL};

/* The size of a communicator of the case, and this rank's number in it; communicator 0 is that of all ranks. */
static struct nccl_member member_of(const struct nccl_case *c, int rank, unsigned comm)
{
    return comm ? c->tasks.members[comm - 1] : (struct nccl_member){.me = rank, .size = c->ranks};
}

static bool read_numbers(char **rest, const uint64_t *most, uint64_t *out, int n)
{
    for (int i = 0; i < n; i++) {
        char *word = strtok_r(*rest, " \t\n", rest);
        if (!word || !lab_number(word, 0, most[i], &out[i])) return false;
    }
    return !strtok_r(*rest, " \t\n", rest);
}

/* comm ME SIZE OWNER; ME is SIZE on a rank that is no member, OWNER the rank of the job that makes its id. */
static bool read_member(struct nccl_tasks *tasks, char *rest, int ranks)
{
    uint64_t most[] = {(uint64_t)ranks, (uint64_t)ranks, (uint64_t)ranks - 1}, n[3];
    if (!read_numbers(&rest, most, n, 3) || n[0] > n[1] || !n[1] || tasks->n_members >= MOST) return false;
    if (!grow((void **)&tasks->members, sizeof *tasks->members, tasks->n_members, &tasks->members_room)) return false;
    tasks->members[tasks->n_members++] = (struct nccl_member){.me = (int)n[0], .size = (int)n[1], .owner = (int)n[2]};
    return true;
}

/* FUNC COMM STREAM PEER COUNT TYPE OP, end, or wait. */
static bool read_call(struct nccl_case *c, const char *word, char *rest, struct nccl_call *call)
{
    unsigned func;
    *call = (struct nccl_call){0};
    call->ends = strcmp(word, "end") == 0;
    call->waits = strcmp(word, "wait") == 0;
    if (call->ends || call->waits) return !strtok_r(rest, " \t\n", &rest);
    uint64_t most[] = {c->tasks.n_members, MOST, (uint64_t)c->ranks - 1, UINT64_C(1) << 36, 11, OP_AVG}, n[6];
    if (!lab_choice(word, words, &func) || !read_numbers(&rest, most, n, 6)) return false;
    call->func = (enum nccl_func)func;
    call->comm = (unsigned)n[0];
    call->stream = (unsigned)n[1];
    call->peer = (int)n[2];
    call->type = (unsigned)n[4];
    call->op = (enum nccl_op)n[5];
    call->bytes = n[3] * nccl_type_size(call->type);
    if (c->tasks.streams < call->stream) c->tasks.streams = call->stream;
    return call->bytes <= UINT64_C(1) << 36;
}

/* The bytes of a call's data: what it gives ([1]) and what it gets ([0]). */
static void sizes(const struct nccl_call *call, int size, uint64_t bytes[2])
{
    uint64_t n = (uint64_t)size * call->bytes;
    bytes[1] = call->func == CALL_RECV ? 0 : call->func == CALL_REDUCESCATTER ? n : call->bytes;
    bytes[0] = call->func == CALL_SEND ? 0 : call->func == CALL_ALLGATHER ? n : call->bytes;
}

/* Where the data of each call lies, and its number: of a message between its two ranks, of a collective in its
 * communicator. */
static bool place(struct nccl_tasks *tasks, int ranks)
{
    uint64_t at[2] = {0, 0}, bytes[2];
    size_t each = 2 * (size_t)ranks + 1;
    uint32_t *counts = calloc((tasks->n_members + 1) * each, sizeof *counts);
    if (!counts) return false;
    for (size_t i = 0; i < tasks->n; i++) {
        struct nccl_call *call = &tasks->calls[i];
        if (call->waits) {
            tasks->iterations++;
            at[0] = at[1] = 0;
        }
        if (call->waits || call->ends) continue;
        int size = call->comm ? tasks->members[call->comm - 1].size : ranks;
        bool p2p = call->func <= CALL_RECV;
        size_t which = p2p ? 2 * (size_t)call->peer + (call->func == CALL_SEND) : each - 1;
        call->number = counts[call->comm * each + which]++;
        sizes(call, size, bytes);
        for (int side = 0; side < 2; side++) {
            call->at[side] = at[side];
            if (bytes[side]) at[side] += (bytes[side] + GUARD + BETWEEN - 1) / BETWEEN * BETWEEN;
            if (tasks->bytes[side] < at[side]) tasks->bytes[side] = at[side];
        }
    }
    free(counts);
    return true;
}

bool nccl_tasks_read(struct nccl_case *c, char *text, size_t size)
{
    char line[160];
    struct nccl_tasks *tasks = &c->tasks;
    bool memory = true;
    for (uint64_t i = 0; i < tasks->lines && memory; i++) {
        struct nccl_call call;
        char *rest = line, *word = fgets(line, sizeof line, stdin) ? strtok_r(rest, " \t\n", &rest) : NULL;
        if (word && strcmp(word, "comm") == 0 && read_member(tasks, rest, c->ranks)) continue;
        if (!word || !read_call(c, word, rest, &call)) {
            snprintf(
                text, size,
                "case %.60s: line %llu behind it is no call: expected FUNC COMM STREAM PEER COUNT TYPE OP, comm ME "
                "SIZE OWNER, end or wait",
                c->task.name, (unsigned long long)i + 1);
            return false;
        }
        memory = grow((void **)&tasks->calls, sizeof *tasks->calls, tasks->n, &tasks->room);
        if (memory) tasks->calls[tasks->n++] = call;
    }
    if (memory && place(tasks, c->ranks)) {
        bool whole = tasks->n && tasks->calls[tasks->n - 1].waits;
        if (whole && c->task.iters <= tasks->iterations) return true;
        snprintf(text, size, "case %.60s: it needs groups for each of its %llu iterations, and there are %llu",
                 c->task.name, (unsigned long long)c->task.iters, (unsigned long long)tasks->iterations);
        return false;
    }
    snprintf(text, size, "case %.60s: no memory for its tasks", c->task.name);
    return false;
}

void nccl_tasks_free(struct nccl_case *c)
{
    free(c->tasks.calls);
    free(c->tasks.members);
    c->tasks = (struct nccl_tasks){0};
}

/* ---- communicators and streams ---- */

bool nccl_tasks_begin(struct nccl_work *run)
{
    const struct nccl_tasks *tasks = &run->c->tasks;
    size_t ranks = (size_t)run->ranks;
    if (!tasks->n_members) return true;
    ncclUniqueId *ids = calloc(ranks, sizeof *ids), id;
    bool *present = calloc(ranks, sizeof *present);
    run->comms = calloc(tasks->n_members, sizeof(ncclComm_t));
    bool good = ids && present && run->comms;
    if (!good) nccl_fail(run, "lab", "no memory", "no memory for communicators");
    for (size_t i = 0; good && i < tasks->n_members; i++) {
        const struct nccl_member *member = &tasks->members[i];
        char name[32];
        snprintf(name, sizeof name, "id-%zu", i + 1);
        bool mine = run->rank == member->owner && NCCL(ncclGetUniqueId, &id);
        lab_gather(name, mine ? &id : NULL, sizeof id, ids, present);
        good = present[member->owner] ||
               nccl_fail(run, "lab", "no unique id", "rank %d sent no ncclUniqueId", member->owner);
        if (good && member->me < member->size)
            good = NCCL(ncclCommInitRank, &run->comms[i], member->size, ids[member->owner], member->me);
    }
    free(ids);
    free(present);
    return good;
}

bool nccl_tasks_streams(struct nccl_work *run, unsigned flags)
{
    unsigned n = run->c->tasks.streams;
    if (!n) return true;
    run->streams = calloc(n, sizeof(cudaStream_t));
    if (!run->streams) return nccl_fail(run, "lab", "no memory", "no memory for streams");
    for (unsigned i = 0; i < n; i++) {
        cudaStream_t stream = NULL;
        if (!CUDA(cudaStreamCreateWithFlags, &stream, flags)) return false;
        run->streams[i] = stream;
    }
    return true;
}

ncclComm_t nccl_tasks_comm(const struct nccl_work *run, size_t i)
{
    return run->comms ? run->comms[i] : NULL;
}

/* ---- calls ---- */

/* The first call of an iteration. */
static const struct nccl_call *iteration(const struct nccl_case *c, uint64_t iter)
{
    const struct nccl_call *call = c->tasks.calls;
    for (uint64_t i = 0; i < iter; call++) i += call->waits;
    return call;
}

static bool launch(struct nccl_work *run, const struct nccl_call *call, enum lab_skip skip)
{
    ncclComm_t comm = call->comm ? run->comms[call->comm - 1] : run->comm;
    cudaStream_t stream = call->stream ? run->streams[call->stream - 1] : run->stream;
    struct nccl_member member = member_of(run->c, run->rank, call->comm);
    uint8_t *out = run->out + call->at[1], *in = run->in + call->at[0];
    size_t each = nccl_type_size(call->type), count = call->bytes / each;
    int type = (int)call->type, op = (int)call->op, peer = call->peer;
    bool other = peer != member.me;
    switch (call->func) {
    case CALL_SEND:
        if (other && skip == SKIP_SEND) return true;
        if (other) count = nccl_shortened(run->c, call->bytes) / each;
        return NCCL(ncclSend, out, count, type, peer, comm, stream);
    case CALL_RECV:
        return (other && skip == SKIP_RECV) || NCCL(ncclRecv, in, count, type, peer, comm, stream);
    case CALL_ALLREDUCE:
        return NCCL(ncclAllReduce, out, in, count, type, op, comm, stream);
    case CALL_ALLGATHER:
        return NCCL(ncclAllGather, out, in, count, type, comm, stream);
    case CALL_REDUCESCATTER:
        return NCCL(ncclReduceScatter, out, in, count, type, op, comm, stream);
    case CALL_BROADCAST:
        return NCCL(ncclBroadcast, out, in, count, type, peer, comm, stream);
    default:
        return NCCL(ncclReduce, out, in, count, type, op, peer, comm, stream);
    }
}

bool nccl_tasks_launch(struct nccl_work *run, uint64_t iter)
{
    enum lab_skip skip = nccl_skipped(run, iter);
    for (const struct nccl_call *call = iteration(run->c, iter); !call->waits; call++) {
        bool several = !call->ends && !call[1].ends; /* a call alone is a group without being told */
        if (several && !NCCL(ncclGroupStart)) return false;
        for (; !call->ends; call++)
            if (!launch(run, call, skip)) return false;
        if (several && !NCCL(ncclGroupEnd)) return false;
        run->result->o.groups++;
    }
    return true;
}

/* ---- data ---- */

/* The case as a call has it: its type and operator, and a seed for each communicator and number. */
static struct nccl_case case_of(const struct nccl_work *run, const struct nccl_call *call)
{
    struct nccl_case one = *run->c;
    one.type = call->type;
    one.op = call->op;
    if (call->comm) one.task.seed = lab_mix(one.task.seed + call->comm);
    one.task.seed ^= (uint64_t)call->number << 40;
    return one;
}

static uint64_t replay(const struct nccl_work *run, uint64_t data)
{
    return run->c->graph ? data % run->c->graph : 0;
}

void nccl_tasks_fill(struct nccl_work *run, uint8_t *out, uint64_t n, uint64_t at, uint64_t data)
{
    const struct nccl_call *call = run->call;
    struct nccl_member member = member_of(run->c, run->rank, call->comm);
    struct nccl_case one = case_of(run, call);
    if (call->func == CALL_ALLREDUCE || call->func == CALL_REDUCE || call->func == CALL_REDUCESCATTER)
        nccl_fill_part(out, n, at, &one, member.me, member.size, replay(run, data));
    else
        lab_fill(out, n, at, one.task.seed, member.me, call->func == CALL_SEND ? call->peer : 0, replay(run, data));
}

void nccl_tasks_meant(struct nccl_work *run, uint64_t n, uint64_t at, uint64_t data)
{
    const struct nccl_call *call = run->call;
    struct nccl_member member = member_of(run->c, run->rank, call->comm);
    struct nccl_case one = case_of(run, call);
    if (call->func == CALL_REDUCESCATTER) at += (uint64_t)member.me * call->bytes;
    if (call->func == CALL_ALLREDUCE || call->func == CALL_REDUCE || call->func == CALL_REDUCESCATTER)
        nccl_fill_result(run->meant, n, at, &one, member.size, replay(run, data));
    else
        lab_fill(run->meant, n, at, one.task.seed, run->source, call->func == CALL_RECV ? member.me : 0,
                 replay(run, data));
}

bool nccl_tasks_write(struct nccl_work *run, uint64_t data)
{
    uint64_t iter = run->c->graph ? data / run->c->graph : data, bytes[2];
    for (const struct nccl_call *call = iteration(run->c, iter); !call->waits; call++) {
        if (call->ends) continue;
        sizes(call, member_of(run->c, run->rank, call->comm).size, bytes);
        run->call = call;
        bool p2p = call->func == CALL_SEND;
        if (!nccl_write_out(run, run->out + call->at[1], bytes[1], p2p && !call->comm ? call->peer : -1, data))
            return false;
    }
    return true;
}

bool nccl_tasks_compare(struct nccl_work *run, uint64_t data)
{
    uint64_t iter = run->c->graph ? data / run->c->graph : data, bytes[2];
    for (const struct nccl_call *call = iteration(run->c, iter); !call->waits; call++) {
        struct nccl_member member = member_of(run->c, run->rank, call->comm);
        if (call->ends || call->func == CALL_SEND) continue;
        sizes(call, member.size, bytes);
        run->call = call;
        bool gathers = call->func == CALL_ALLGATHER, reduces = call->func == CALL_REDUCE && call->peer != member.me;
        for (int part = 0; part < (gathers ? member.size : 1); part++) {
            bool last = !gathers || part + 1 == member.size;
            bool told = !call->comm && (call->func == CALL_RECV || call->func == CALL_BROADCAST || gathers);
            uint64_t each = reduces ? 0 : call->bytes;
            run->source = gathers ? part : call->peer;
            if (!nccl_compare(run, run->in + call->at[0] + (uint64_t)part * call->bytes, each,
                              call->bytes + (last ? GUARD : 0), told ? run->source : -1, data))
                return false;
        }
    }
    return true;
}
