/* Ranks that send each other data by p2p: processes, or threads of one process. What goes where is compared byte by
 * byte. See Job in conftest.py for what it is told, and what it says. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/internal.h"
#include "end.h"
#include "p2p/p2p.h"

enum { SIZES = 64 };
static int nranks = 2, iters = 2, threads, same_device, registered, nsizes, offset, differ = -1, one_way, lone = -1,
           aborts = -1, use_via, repeat = 1, timed, captured;
static uint64_t sizes[SIZES];
static int in_record; /* the steps go to the record file, and are not counted */
static const char *stream_kind = "nonblocking", *differ_what = "", *registered_who = "both", *buffers = "device";

const char *end_variant; /* NULL: the right one */
static const struct psmP2pVariant *variant;

static struct meeting {
    _Atomic int arrived, failed;
    struct end_place places[END_RANKS];
    struct psm_peer_info infos[END_RANKS];
    struct psm_p2p_connect sends[END_RANKS][END_RANKS], recvs[END_RANKS][END_RANKS]; /* [of rank][peer] */
} *meeting;

struct rank {
    int rank, device;
    struct end end;
    psmP2pConnector *send[END_RANKS], *recv[END_RANKS];
    uint8_t *out[END_RANKS], *in[END_RANKS], *check;
    uint64_t out_handle[END_RANKS], in_handle[END_RANKS];
    cudaStream_t stream;
    const struct psm_cuda *cuda;
};

/* What the steps told: of all connections of the process. */
static _Atomic uint64_t fifo_ops, zero_copy_ops, declined, most_steps;
static void *count_open(const struct psm_step_connection *connection)
{
    struct psm_step_connection *about = malloc(sizeof *about);
    *about = *connection;
    return about;
}
static void count_step(void *recorder, const struct psm_step *step)
{
    const struct psm_step_connection *about = recorder;
    if (step->what == PSM_STEP_DECLINED && about->role) atomic_fetch_add(&declined, 1);
    if (step->what == PSM_STEP_BEGIN || about->role) {
        if (step->step > most_steps) most_steps = step->step;
    }
    if (step->what == PSM_STEP_COPYING && about->role && step->transmitted == 1)
        atomic_fetch_add(step->zero_copy ? &zero_copy_ops : &fifo_ops, 1);
}
static const struct psm_step_recorder counter = {count_open, count_step, free};

static void say(const struct rank *r, const char *what, psm_status status)
{
    const struct psm_error *e = psm_last_error();
    printf("rank %d %s %s|%s|%s\n", r->rank, what, psm_status_name(status), status ? e->stage : "",
           status ? e->text : "");
    fflush(stdout);
}
#define OK(what, call)                                                                                                 \
    do {                                                                                                               \
        psm_status s_ = (call);                                                                                        \
        if (s_ != PSM_OK) {                                                                                            \
            say(r, what, s_);                                                                                          \
            atomic_store(&meeting->failed, 1);                                                                         \
            return s_;                                                                                                 \
        }                                                                                                              \
    } while (0)
#define CU(call)                                                                                                       \
    do {                                                                                                               \
        int c_ = (int)r->cuda->call;                                                                                   \
        if (c_) {                                                                                                      \
            printf("rank %d CUDA %d: %s\n", r->rank, c_, #call);                                                       \
            exit(3);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Waits for all ranks; false when one has failed or died. */
static bool meet(int number)
{
    uint64_t end = psm_clock_ns() + 60000000000u;
    atomic_fetch_add(&meeting->arrived, 1);
    while (atomic_load(&meeting->arrived) < number * nranks) {
        if (atomic_load(&meeting->failed) || psm_clock_ns() > end) return false;
        sched_yield();
    }
    return true;
}

static uint8_t byte_of(int from, int to, int iter, uint64_t at)
{
    uint64_t x = at * 0x9e3779b97f4a7c15u ^ (uint64_t)(from * 131 + to * 17 + iter * 7919);
    return (uint8_t)(x >> 32 ^ x >> 11);
}

static uint64_t largest(void)
{
    uint64_t most = 1;
    for (int i = 0; i < nsizes; i++) most = sizes[i] > most ? sizes[i] : most;
    return most + (uint64_t)offset;
}

static bool pair(int from, int to)
{
    return from != to && (!one_way || from == 0);
}

static psm_status make_buffer(struct rank *r, uint64_t bytes, uint8_t **buffer)
{
    if (strcmp(buffers, "host") == 0) {
        CU(cudaHostAlloc((void **)buffer, bytes, 0));
    } else if (strcmp(buffers, "vmm") == 0) {
        OK("buffer", psmP2pMemAlloc(&r->end.host, 0, bytes, (void **)buffer));
    } else if (strcmp(buffers, "memfd") == 0) {
        OK("buffer", psmP2pMemAlloc(&r->end.host, 1, bytes, (void **)buffer));
    } else {
        CU(cudaMalloc((void **)buffer, bytes));
    }
    return PSM_OK;
}

static void free_buffer(struct rank *r, uint8_t *buffer)
{
    if (strcmp(buffers, "host") == 0)
        CU(cudaFreeHost(buffer));
    else if (strcmp(buffers, "device") != 0)
        psmP2pMemFree(&r->end.host, buffer);
    else
        CU(cudaFree(buffer));
}

static psm_status prepare(struct rank *r)
{
    uint64_t bytes = largest();
    unsigned flags = strcmp(stream_kind, "nonblocking") == 0 ? cudaStreamNonBlocking : 0;
    if (strcmp(stream_kind, "legacy") != 0) CU(cudaStreamCreateWithFlags(&r->stream, flags));
    r->check = malloc(bytes);
    for (int p = 0; p < nranks; p++) {
        OK("buffer", make_buffer(r, bytes, &r->out[p]));
        OK("buffer", make_buffer(r, bytes, &r->in[p]));
    }
    return PSM_OK;
}

static psm_status connect_all(struct rank *r)
{
    int me = r->rank;
    OK("peerinfo", psmP2pPeerInfo(&r->end.host, NULL, &meeting->infos[me]));
    if (!meet(2)) return PSM_ERR_ABORTED;
    for (int p = 0; p < nranks; p++) {
        int via = -1;
        if (use_via && p != me)
            OK("via",
               psmP2pFindIntermediate(meeting->infos, (size_t)nranks, &meeting->infos[me], &meeting->infos[p], &via));
        const struct psm_peer_info *mine = &meeting->infos[me], *theirs = &meeting->infos[p];
        const struct psm_peer_info *between = via < 0 ? NULL : &meeting->infos[via];
        if (pair(me, p))
            OK("setup",
               psmP2pSendSetupVia(&r->end.host, mine, theirs, between, 0, 0, &meeting->sends[me][p], &r->send[p]));
        if (pair(p, me))
            OK("setup", variant->recvSetup
                            ? variant->recvSetup(&r->end.host, mine, theirs, 0, 0, &meeting->recvs[me][p], &r->recv[p])
                            : psmP2pRecvSetupVia(&r->end.host, mine, theirs, between, 0, 0, &meeting->recvs[me][p],
                                                 &r->recv[p]));
    }
    if (me == differ) { /* what this rank tells the others is not what it does */
        struct psm_p2p_connect *info = r->send[!me] ? &meeting->sends[me][!me] : &meeting->recvs[me][!me];
        if (strcmp(differ_what, "magic") == 0) info->magic ^= 1;
        if (strcmp(differ_what, "version") == 0) info->version++;
        if (strcmp(differ_what, "mode") == 0) info->mode = PSM_P2P_IPC == info->mode ? PSM_P2P_CUMEM : PSM_P2P_IPC;
        if (strcmp(differ_what, "role") == 0) info->role = !info->role;
        if (strcmp(differ_what, "steps") == 0) info->steps *= 2;
        if (strcmp(differ_what, "chunk") == 0) info->chunk *= 2;
        if (strcmp(differ_what, "buffer") == 0) info->buffer_size *= 2;
        if (strcmp(differ_what, "kind") == 0) info->share.kind ^= 1;
        if (strcmp(differ_what, "rank") == 0) info->rank = 77;
    }
    if (!meet(3)) return PSM_ERR_ABORTED;
    for (int p = 0; p < nranks; p++) {
        if (pair(me, p))
            OK("connect",
               (variant->sendConnect ? variant->sendConnect : psmP2pSendConnect)(r->send[p], &meeting->recvs[p][me]));
        if (pair(p, me))
            OK("connect",
               (variant->recvConnect ? variant->recvConnect : psmP2pRecvConnect)(r->recv[p], &meeting->sends[p][me]));
    }
    printf("rank %d mode %s\n", me, psm_p2p_mode_name(meeting->sends[0][1].mode));
    if (!meet(4)) return PSM_ERR_ABORTED;
    if (!registered) return PSM_OK;
    bool out = strcmp(registered_who, "recv") != 0, in = strcmp(registered_who, "send") != 0;
    for (int p = 0; p < nranks; p++) {
        psm_status status = PSM_OK;
        if (pair(me, p) && out) OK("register", psmP2pRegister(r->send[p], r->out[p], largest(), &r->out_handle[p]));
        if (pair(p, me) && in) status = psmP2pRegister(r->recv[p], r->in[p], largest(), &r->in_handle[p]);
        if (status != PSM_OK) say(r, "register", status);
        if (status != PSM_OK && status != PSM_ERR_UNSUPPORTED) return status; /* the FIFO does then */
    }
    return meet(5) ? PSM_OK : PSM_ERR_ABORTED;
}

static void fill(struct rank *r, int peer, int iter, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) r->check[i] = byte_of(r->rank, peer, iter, i);
    if (bytes) CU(cudaMemcpy(r->out[peer] + offset, r->check, bytes, cudaMemcpyDefault));
    CU(cudaMemset(r->in[peer], 0xa5, largest())); /* which does not wait, and other streams do not wait for it */
    CU(cudaStreamSynchronize(NULL));
}

static psm_status compare(struct rank *r, int peer, int iter, uint64_t bytes)
{
    uint64_t all = largest();
    CU(cudaMemcpy(r->check, r->in[peer], all, cudaMemcpyDefault));
    for (uint64_t i = 0; i < all; i++) {
        bool inside = i >= (uint64_t)offset && i - (uint64_t)offset < bytes;
        uint8_t meant = inside ? byte_of(peer, r->rank, iter, i - (uint64_t)offset) : 0xa5;
        if (r->check[i] == meant) continue;
        printf("rank %d WRONG DATA from %d, iter %d, %llu bytes: byte %llu is %02x, %02x is meant\n", r->rank, peer,
               iter, (unsigned long long)bytes, (unsigned long long)i, r->check[i], meant);
        return PSM_ERR_INTERNAL;
    }
    return PSM_OK;
}

static _Thread_local int meetings; /* that there will have been with the next one */

/* The group is refused, and the capture goes on. libpsm captures nothing itself, so its table has no such functions. */
static void launch_captured(struct rank *r, const struct psmGroupOp *ops, size_t n)
{
    void *runtime = dlopen("libcudart.so.13", RTLD_NOW), *graph = NULL;
    cudaError_t (*begin)(cudaStream_t, int) = NULL, (*end)(cudaStream_t, void **) = NULL;
    if (runtime) {
        *(void **)&begin = dlsym(runtime, "cudaStreamBeginCapture");
        *(void **)&end = dlsym(runtime, "cudaStreamEndCapture");
    }
    if (!begin || !end) {
        printf("rank %d has no captures\n", r->rank);
        return;
    }
    psmGroup *group = NULL;
    if (begin(r->stream, 0) != 0) printf("rank %d cannot capture\n", r->rank);
    say(r, "captured", psmGroupLaunch(r->end.state, r->stream, ops, n, &group));
    int code = (int)end(r->stream, &graph);
    printf("rank %d capture ended with %d, group %s\n", r->rank, code, group ? "made" : "none");
    cudaError_t (*destroy)(void *) = NULL;
    *(void **)&destroy = dlsym(runtime, "cudaGraphDestroy");
    if (graph && destroy) destroy(graph);
    dlclose(runtime);
}

static psm_status exchange(struct rank *r, int iter, uint64_t bytes)
{
    struct psmGroupOp ops[(2 * END_RANKS) * 8 + 1];
    size_t n = 0;
    int me = r->rank;
    for (int p = 0; p < nranks; p++) fill(r, p, iter, bytes);
    if (timed) meet(meetings++);
    uint64_t begin = psm_clock_ns();
    for (int part = 0; part < repeat; part++) /* several operations on a connection go in order */
        for (int p = 0; p < nranks; p++) {
            uint64_t from = bytes / (uint64_t)repeat * (uint64_t)part + (uint64_t)offset;
            uint64_t mine = part + 1 < repeat ? bytes / (uint64_t)repeat : bytes + (uint64_t)offset - from, more = mine;
            if (me == differ && strcmp(differ_what, "nbytes") == 0) more++;
            if (pair(me, p) && me != lone)
                ops[n++] = (struct psmGroupOp){.connector = r->send[p],
                                               .sendbuff = r->out[p] + from,
                                               .nbytes = more,
                                               .handle = r->out_handle[p],
                                               .peer = p};
            if (pair(p, me) && me != lone)
                ops[n++] = (struct psmGroupOp){.connector = r->recv[p],
                                               .recvbuff = r->in[p] + from,
                                               .nbytes = mine,
                                               .handle = r->in_handle[p],
                                               .peer = p};
        }
    if (!timed)
        ops[n++] = (struct psmGroupOp){
            .sendbuff = r->out[me] + offset, .recvbuff = r->in[me] + offset, .nbytes = bytes, .peer = me};
    psmGroup *group;
    if (captured) launch_captured(r, ops, n);
    OK("launch", psmGroupLaunch(r->end.state, r->stream, ops, n, &group));
    if (me == aborts) end_abort(&r->end);
    psm_status status = psmGroupWait(group);
    if (status != PSM_OK) say(r, "group", status);
    if (timed)
        printf("rank %d moved %llu bytes in %llu ns\n", me, (unsigned long long)bytes,
               (unsigned long long)(psm_clock_ns() - begin));
    psm_status freed = psmGroupFree(group);
    if (freed != PSM_OK) say(r, "groupfree", freed);
    CU(cudaStreamSynchronize(r->stream));
    if (status != PSM_OK) return status;
    for (int p = 0; p < nranks; p++)
        if ((p == me ? !timed : pair(p, me)) && me != lone && (status = compare(r, p, iter, bytes)) != PSM_OK)
            return status;
    return PSM_OK;
}

static void give_back(struct rank *r)
{
    psm_status status;
    for (int p = 0; p < nranks; p++) {
        psmP2pConnector *send = r->send[p], *recv = r->recv[p];
        if (send && (status = psmP2pSendFree(send)) != PSM_OK) say(r, "free", status);
        if (recv && (status = psmP2pRecvFree(recv)) != PSM_OK) say(r, "free", status);
        if (send && psmP2pSendFree(send) != PSM_ERR_INVALID) printf("rank %d: a second free was taken\n", r->rank);
        free_buffer(r, r->out[p]);
        free_buffer(r, r->in[p]);
    }
    if (r->stream) CU(cudaStreamDestroy(r->stream));
    free(r->check);
}

static void *run(void *user)
{
    struct rank *r = user;
    struct psm_settings settings = {.size = sizeof settings};
    psm_status status = psm_settings_read(&settings);
    r->cuda = psm_cuda_get();
    if (status != PSM_OK || !r->cuda) {
        say(r, "settings", psm_last_error()->status);
        exit(3);
    }
    CU(cudaSetDevice(r->device));
    status = end_open(r->rank, nranks, r->device, &settings, &meeting->places[r->rank], &r->end);
    if (status != PSM_OK || !meet(1)) exit(3);
    end_meet(&r->end, meeting->places, nranks);
    prepare(r);
    status = connect_all(r);
    uint64_t moved = 0;
    meetings = registered ? 6 : 5;
    for (int iter = 0; iter < iters && status == PSM_OK; iter++)
        for (int i = 0; i < nsizes && status == PSM_OK; i++, moved++) status = exchange(r, iter * nsizes + i, sizes[i]);
    if (status != PSM_OK)
        atomic_store(&meeting->failed, 1);
    else
        meet(meetings);
    give_back(r);
    end_close(&r->end);
    printf("rank %d done %s after %llu groups\n", r->rank, psm_status_name(status), (unsigned long long)moved);
    fflush(stdout);
    return status == PSM_OK ? NULL : r;
}

/* Of what p2p and the end make; hostcuda has descriptors and mappings of its own. */
static bool ours(const char *what)
{
    return (strstr(what, "memfd:") && !strstr(what, "hostcuda")) || strstr(what, "socket:");
}
static int left_descriptors(void)
{
    int n = 0;
    char line[512], target[512];
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(line, sizeof line, "/proc/self/fd/%s", e->d_name);
        ssize_t got = readlink(line, target, sizeof target - 1);
        target[got > 0 ? got : 0] = 0;
        n += ours(target);
    }
    if (d) closedir(d);
    return n;
}
static int left_mappings(void)
{
    int n = 0;
    char line[512];
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) n += ours(line);
    if (f) fclose(f);
    return n;
}

static int work(int first, int many)
{
    struct rank ranks[END_RANKS] = {0};
    pthread_t ids[END_RANKS];
    int failed = 0, devices = 0;
    const struct psm_cuda *cuda = psm_cuda_get();
    if (!in_record) atomic_store(&psm_step_recorder, &counter);
    if (!cuda || cuda->cudaGetDeviceCount(&devices) != 0 || devices == 0) {
        printf("no device: %s\n", psm_last_error()->text);
        return 3;
    }
    for (int i = 0; i < many; i++) {
        ranks[i].rank = first + i;
        ranks[i].device = same_device ? 0 : (first + i) % devices;
        if (many > 1) pthread_create(&ids[i], NULL, run, &ranks[i]);
    }
    if (many == 1)
        failed = run(&ranks[0]) != NULL;
    else
        for (int i = 0; i < many; i++) {
            void *said;
            pthread_join(ids[i], &said);
            failed |= said != NULL;
        }
    printf("sent fifo=%llu zero_copy=%llu declined=%llu steps=%llu\n", (unsigned long long)fifo_ops,
           (unsigned long long)zero_copy_ops, (unsigned long long)declined, (unsigned long long)most_steps);
    printf("left %d descriptors, %d mappings\n", left_descriptors(), left_mappings());
    fflush(stdout);
    return failed;
}

static void read_arguments(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) continue;
        *value++ = 0;
        const char *name = argv[i];
        if (strcmp(name, "ranks") == 0) nranks = atoi(value);
        if (strcmp(name, "iters") == 0) iters = atoi(value);
        if (strcmp(name, "threads") == 0) threads = atoi(value);
        if (strcmp(name, "same_device") == 0) same_device = atoi(value);
        if (strcmp(name, "buffers") == 0) buffers = value;
        if (strcmp(name, "one_way") == 0) one_way = atoi(value);
        if (strcmp(name, "offset") == 0) offset = atoi(value);
        if (strcmp(name, "lone") == 0) lone = atoi(value);
        if (strcmp(name, "abort") == 0) aborts = atoi(value);
        if (strcmp(name, "via") == 0) use_via = atoi(value);
        if (strcmp(name, "time") == 0) timed = atoi(value);
        if (strcmp(name, "repeat") == 0) repeat = atoi(value);
        if (strcmp(name, "captured") == 0) captured = atoi(value);
        if (strcmp(name, "stream") == 0) stream_kind = value;
        if (strcmp(name, "record") == 0) in_record = atoi(value);
        if (strcmp(name, "variant") == 0) end_variant = value;
        if (strcmp(name, "registered") == 0) registered = 1, registered_who = value;
        if (strcmp(name, "differ") == 0) {
            differ = atoi(value);
            differ_what = strchr(value, ':') + 1;
        }
        if (strcmp(name, "sizes") == 0)
            for (char *at = strtok(value, ","); at && nsizes < SIZES; at = strtok(NULL, ","))
                sizes[nsizes++] = strtoull(at, NULL, 0);
    }
}

/* canConnect on pairs that are drawn at random: symmetric, pure, and what the capabilities admit. */
static int draw_pairs(uint64_t pairs)
{
    uint64_t x = 88172645463325252u, seen[6] = {0};
    const uint32_t bits[] = {PSM_CAN_CUMEM_FD, PSM_CAN_CUDA_IPC, PSM_CAN_MEMFD, PSM_CAN_POSIX_SHM, PSM_CAN_DIRECT};
    for (uint64_t n = 0; n < pairs; n++) {
        struct psm_peer_info two[2] = {0}, before[2];
        for (int i = 0; i < 2; i++) {
            struct psm_peer_info *info = &two[i];
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            *info = (struct psm_peer_info){.size = sizeof *info,
                                           .version = PSM_WIRE_VERSION,
                                           .rank = i,
                                           .device = (int)(x & 3),
                                           .host_hash = (x >> 8 & 7) != 0,
                                           .process_hash = x >> 12 & 1,
                                           .peer_access = x >> 16 & 15};
            snprintf(info->bus_id, sizeof info->bus_id, "0000:%02x:00.0", info->device);
            for (int b = 0; b < 5; b++) info->capabilities |= (x >> (24 + 2 * b) & 3) != 0 ? bits[b] : 0;
            if ((x >> 40 & 7) == 0) info->capabilities |= 1u << 16; /* sees other devices */
        }
        memcpy(before, two, sizeof two);
        int there = -1, back = -1;
        if (psmP2pCanConnect(&two[0], &two[1], &there) != PSM_OK || psmP2pCanConnect(&two[1], &two[0], &back) != PSM_OK)
            return 3;
        uint32_t both = two[0].capabilities & two[1].capabilities;
        bool same = two[0].device == two[1].device;
        bool alike = two[0].capabilities >> 16 == two[1].capabilities >> 16;
        bool reach =
            same || (alike && (two[0].peer_access >> two[1].device & 1) && (two[1].peer_access >> two[0].device & 1));
        bool host = two[0].host_hash == two[1].host_hash && (both & (PSM_CAN_MEMFD | PSM_CAN_POSIX_SHM));
        bool process = two[0].process_hash == two[1].process_hash;
        bool right = there == PSM_P2P_NONE     ? !host
                     : there == PSM_P2P_DIRECT ? host && reach && process && (both & PSM_CAN_DIRECT)
                     : there == PSM_P2P_CUMEM  ? host && reach && (both & PSM_CAN_CUMEM_FD)
                     : there == PSM_P2P_IPC    ? host && reach && !process && (both & PSM_CAN_CUDA_IPC)
                                               : there == PSM_P2P_SHM && host;
        /* SHM only where nothing better is open to both. */
        if (there == PSM_P2P_SHM && reach && (both & PSM_CAN_CUMEM_FD)) right = false;
        if (there != back || !right || memcmp(before, two, sizeof two) != 0) {
            printf("pair %llu: %d and %d\n", (unsigned long long)n, there, back);
            return 1;
        }
        seen[there]++;
    }
    for (int mode = 0; mode < 5; mode++) printf("%s %llu\n", psm_p2p_mode_name(mode), (unsigned long long)seen[mode]);
    return 0;
}

static int list_variants(void)
{
    const struct psmP2pVariant *all[SIZES];
    size_t n = psmP2pVariants(all, SIZES);
    for (size_t i = 0; i < n; i++)
        printf("%s|%d|%s|%s|%u|%u|%u|%s|%s\n", all[i]->name, all[i]->wrong, all[i]->outcome,
               all[i]->faults ? all[i]->faults : "", all[i]->declared->verdict, all[i]->declared->shows,
               all[i]->declared->leaves, psm_status_name(all[i]->declared->status), all[i]->declared->codes);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "variants") == 0) return list_variants();
    if (argc == 3 && strcmp(argv[1], "canconnect") == 0) return draw_pairs(strtoull(argv[2], NULL, 10));
    read_arguments(argc, argv);
    if (!(variant = psmP2pFindVariant(end_variant))) return 3;
    meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (threads) return work(0, nranks);
    pid_t pids[END_RANKS];
    for (int i = 0; i < nranks; i++) {
        pids[i] = fork();
        if (pids[i] < 0) return 3;
        if (pids[i] == 0) exit(work(i, 1)); /* CUDA begins here */
    }
    int worst = 0;
    for (int i = 0; i < nranks; i++) {
        int status;
        waitpid(pids[i], &status, 0);
        if (WIFSIGNALED(status)) {
            printf("rank %d killed by signal %d\n", i, WTERMSIG(status));
            atomic_store(&meeting->failed, 1);
        } else if (WEXITSTATUS(status) > worst) {
            worst = WEXITSTATUS(status);
        }
    }
    return worst;
}
