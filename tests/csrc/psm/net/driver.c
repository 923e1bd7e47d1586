/* Two ranks that send each other data by the net transport: two processes. What goes where is compared byte by byte.
 * See conftest.py for what it is told, and what it says. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/internal.h"
#include "net/net.h"
#include "p2p/end.h"

enum { RANKS = 2, SIZES = 32, GUARD = 64, UNTOUCHED = 0xa5 };
static int iters = 2, nsizes, one_way, lone = -1, aborts = -1, differ = -1, table, quits = -1;
static uint64_t sizes[SIZES];
static const char *stream_kind = "nonblocking", *differ_what = "";
static const struct psmNetVariant *variant;

const char *end_variant; /* of p2p, which the ends have, too */

static struct meeting {
    _Atomic int arrived, failed;
    struct end_place places[RANKS];
    struct psm_peer_info infos[RANKS];
    struct psm_net_connect sends[RANKS], recvs[RANKS];
} *meeting;

struct rank {
    int rank, peer;
    struct end end;
    psmNetConnector *send, *recv;
    uint8_t *out, *in, *check;
    cudaStream_t stream;
    const struct psm_cuda *cuda;
};

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

/* Waits for both ranks; false when one has failed or died. */
static bool meet(void)
{
    static int number;
    uint64_t end = psm_clock_ns() + 60000000000u;
    atomic_fetch_add(&meeting->arrived, 1);
    for (number += RANKS; atomic_load(&meeting->arrived) < number; sched_yield())
        if (atomic_load(&meeting->failed) || psm_clock_ns() > end) return false;
    return true;
}

static uint8_t byte_of(int from, int iter, uint64_t at)
{
    uint64_t x = at * 0x9e3779b97f4a7c15u ^ (uint64_t)(from * 131 + iter * 7919);
    return (uint8_t)(x >> 32 ^ x >> 11);
}

static uint64_t largest(void)
{
    uint64_t most = 1;
    for (int i = 0; i < nsizes; i++) most = sizes[i] > most ? sizes[i] : most;
    return most + GUARD;
}

static bool sends(const struct rank *r)
{
    return !one_way || r->rank == 0;
}
static bool recvs(const struct rank *r)
{
    return !one_way || r->rank == 1;
}

/* What this rank tells the other is not what it does. */
static void tell_wrong(struct psm_net_connect *info)
{
#define IS(name) (strcmp(differ_what, name) == 0)
    if (IS("magic")) info->magic ^= 1;
    if (IS("version")) info->version++;
    if (IS("role")) info->role = !info->role;
    if (IS("steps")) info->steps *= 2;
    if (IS("chunk")) info->chunk *= 2;
    if (IS("buffer")) info->buffer_size *= 2;
    if (IS("rank")) info->rank = 77;
    if (IS("channel")) info->channel = 9;
    if (IS("net")) strcpy(info->net, "Other");
    if (IS("handle")) memset(info->handle, 0, sizeof info->handle);
#undef IS
}

/* A proxy refuses what is not of the size that is meant, or not of this release. */
static void ask_wrongly(struct rank *r)
{
    const struct psm_host_ops *ops = r->end.host.ops;
    void *connector;
    struct psm_net_setup want = {.magic = PSM_NET_MAGIC,
                                 .version = PSM_WIRE_VERSION,
                                 .role = 1,
                                 .peer = r->peer,
                                 .steps = 4,
                                 .chunk = 1024,
                                 .buffer_size = 4096};
    struct psmNetShareInfo got;
    struct psm_net_connected answer;
    struct psm_net_connect peer = {.magic = PSM_NET_MAGIC, .version = PSM_WIRE_VERSION};
    if (ops->connect(r->end.host.self, PSM_TRANSPORT_NET, 1, r->rank, &connector) != PSM_OK) exit(3);
#define ASK(what, type, request, bytes, response, room)                                                                \
    say(r, what, ops->call(r->end.host.self, connector, type, request, bytes, response, room))
    ASK("short setup", psmProxyMsgSetup, &want, sizeof want - 1, &got, sizeof got);
    ASK("small answer", psmProxyMsgSetup, &want, sizeof want, &got, sizeof got - 8);
    want.magic ^= 1;
    ASK("magic", psmProxyMsgSetup, &want, sizeof want, &got, sizeof got);
    want.magic ^= 1;
    want.version = 9;
    ASK("version", psmProxyMsgSetup, &want, sizeof want, &got, sizeof got);
    want.version = PSM_WIRE_VERSION;
    want.chunk = 1000;
    ASK("chunk", psmProxyMsgSetup, &want, sizeof want, &got, sizeof got);
    want.chunk = 1024;
    want.steps = 65;
    ASK("steps", psmProxyMsgSetup, &want, sizeof want, &got, sizeof got);
    ASK("early connect", psmProxyMsgConnect, &peer, sizeof peer, &answer, sizeof answer);
    ASK("short connect", psmProxyMsgConnect, &peer, sizeof peer - 1, &answer, sizeof answer);
#undef ASK
    ops->disconnect(r->end.host.self, connector);
}

static psm_status connect_all(struct rank *r)
{
    int me = r->rank;
    OK("peerinfo", psmP2pPeerInfo(&r->end.host, NULL, &meeting->infos[me]));
    if (!meet()) return PSM_ERR_ABORTED;
    const struct psm_peer_info *mine = &meeting->infos[me], *theirs = &meeting->infos[r->peer];
    if (sends(r)) OK("setup", psmNetSendSetup(&r->end.host, mine, theirs, 0, 0, &meeting->sends[me], &r->send));
    if (recvs(r)) OK("setup", psmNetRecvSetup(&r->end.host, mine, theirs, 0, 0, &meeting->recvs[me], &r->recv));
    if (me == differ) tell_wrong(sends(r) ? &meeting->sends[me] : &meeting->recvs[me]);
    if (!meet() || me == quits) return PSM_ERR_ABORTED;
    for (psm_status out = PSM_IN_PROGRESS, in = PSM_IN_PROGRESS; out != PSM_OK || in != PSM_OK;) {
        if (out != PSM_OK) out = r->send ? psmNetSendConnect(r->send, &meeting->recvs[r->peer]) : PSM_OK;
        if (out < 0) OK("connect", out);
        if (in != PSM_OK) in = r->recv ? psmNetRecvConnect(r->recv, &meeting->sends[r->peer]) : PSM_OK;
        if (in < 0) OK("connect", in);
    }
    return meet() ? PSM_OK : PSM_ERR_ABORTED;
}

static void fill(struct rank *r, int iter, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) r->check[i] = byte_of(r->rank, iter, i);
    if (bytes) CU(cudaMemcpy(r->out, r->check, bytes, cudaMemcpyDefault));
    CU(cudaMemset(r->in, UNTOUCHED, largest()));
    CU(cudaStreamSynchronize(NULL));
}

static psm_status compare(struct rank *r, int iter, uint64_t bytes)
{
    uint64_t all = largest();
    CU(cudaMemcpy(r->check, r->in, all, cudaMemcpyDefault));
    for (uint64_t i = 0; i < all; i++) {
        uint8_t meant = i < bytes ? byte_of(r->peer, iter, i) : UNTOUCHED;
        if (r->check[i] == meant) continue;
        printf("rank %d WRONG DATA, iter %d, %llu bytes: byte %llu is %02x, %02x is meant\n", r->rank, iter,
               (unsigned long long)bytes, (unsigned long long)i, r->check[i], meant);
        return PSM_ERR_INTERNAL;
    }
    return PSM_OK;
}

static psm_status exchange(struct rank *r, int iter, uint64_t bytes)
{
    struct psmGroupOp ops[2];
    size_t n = 0;
    fill(r, iter, bytes);
    uint64_t wrong = r->rank == differ && strcmp(differ_what, "nbytes") == 0;
    if (r->send && r->rank != lone)
        ops[n++] = (struct psmGroupOp){.connection = psmNetConnection(r->send),
                                       .send = 1,
                                       .sendbuff = r->out,
                                       .nbytes = bytes + wrong,
                                       .peer = r->peer};
    if (r->recv && r->rank != lone)
        ops[n++] = (struct psmGroupOp){
            .connection = psmNetConnection(r->recv), .recvbuff = r->in, .nbytes = bytes, .peer = r->peer};
    psmGroup *group;
    OK("launch", psmGroupLaunch(r->end.state, r->stream, ops, n, &group));
    if (r->rank == aborts) end_abort(&r->end);
    psm_status status = psmGroupWait(group);
    if (status != PSM_OK) say(r, "group", status);
    psmGroupFree(group);
    CU(cudaStreamSynchronize(r->stream));
    return status == PSM_OK && r->recv && r->rank != lone ? compare(r, iter, bytes) : status;
}

static void give_back(struct rank *r)
{
    psm_status status;
    if (r->send && (status = psmNetSendFree(r->send)) != PSM_OK) say(r, "free", status);
    if (r->recv && (status = psmNetRecvFree(r->recv)) != PSM_OK) say(r, "free", status);
    if (r->send && psmNetSendFree(r->send) != PSM_ERR_INVALID) printf("rank %d: a second free was taken\n", r->rank);
    CU(cudaFree(r->out));
    CU(cudaFree(r->in));
    if (r->stream) CU(cudaStreamDestroy(r->stream));
    free(r->check);
}

/* The table of one version, as a program that has a plugin at hand gives it. */
static void use_table(const struct rank *r)
{
    char symbol[32];
    void *library = dlopen(getenv("PSM_NET_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", table);
    say(r, "use", psmNetUse(table, library ? dlsym(library, symbol) : NULL));
}

static int left_descriptors(void)
{
    int n = 0;
    char line[300], target[300];
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(line, sizeof line, "/proc/self/fd/%s", e->d_name);
        ssize_t got = readlink(line, target, sizeof target - 1);
        target[got > 0 ? got : 0] = 0;
        n += strstr(target, "socket:") != NULL;
    }
    if (d) closedir(d);
    return n;
}

static int work(int rank)
{
    struct rank all = {.rank = rank, .peer = !rank, .cuda = psm_cuda_get()}, *r = &all;
    struct psm_settings settings = {.size = sizeof settings};
    if (psm_settings_read(&settings) != PSM_OK || !r->cuda) {
        say(r, "settings", psm_last_error()->status);
        return 3;
    }
    CU(cudaSetDevice(rank));
    if (table) use_table(r);
    psm_status status = end_open(rank, RANKS, rank, &settings, &meeting->places[rank], &r->end);
    if (status != PSM_OK || !meet()) return 3;
    end_meet(&r->end, meeting->places, RANKS);
    if (strcmp(differ_what, "request") == 0) ask_wrongly(r);
    if (strcmp(stream_kind, "legacy") != 0)
        CU(cudaStreamCreateWithFlags(&r->stream, strcmp(stream_kind, "nonblocking") == 0 ? cudaStreamNonBlocking : 0));
    r->check = malloc(largest());
    CU(cudaMalloc((void **)&r->out, largest()));
    CU(cudaMalloc((void **)&r->in, largest()));
    status = connect_all(r);
    for (int iter = 0; iter < iters && status == PSM_OK; iter++)
        for (int i = 0; i < nsizes && status == PSM_OK; i++) status = exchange(r, iter * nsizes + i, sizes[i]);
    if (status != PSM_OK)
        atomic_store(&meeting->failed, 1);
    else
        meet();
    give_back(r);
    end_close(&r->end);
    printf("left %d descriptors, 0 mappings\n", left_descriptors());
    printf("rank %d done %s\n", rank, psm_status_name(status));
    fflush(stdout);
    return status != PSM_OK;
}

static int list_variants(void)
{
    const struct psmNetVariant *all[SIZES];
    size_t n = psmNetVariants(all, SIZES);
    for (size_t i = 0; i < n; i++)
        printf("%s|%d|%s|%s|%u|%u|%u|%s|%s\n", all[i]->name, all[i]->wrong, all[i]->outcome,
               all[i]->faults ? all[i]->faults : "", all[i]->declared->verdict, all[i]->declared->shows,
               all[i]->declared->leaves, psm_status_name(all[i]->declared->status), all[i]->declared->codes);
    return 0;
}

int main(int argc, char **argv)
{
    const char *name = NULL;
    if (argc == 2 && strcmp(argv[1], "variants") == 0) return list_variants();
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) return 2;
        *value++ = 0;
        if (strcmp(argv[i], "iters") == 0) iters = atoi(value);
        if (strcmp(argv[i], "one_way") == 0) one_way = atoi(value);
        if (strcmp(argv[i], "lone") == 0) lone = atoi(value);
        if (strcmp(argv[i], "abort") == 0) aborts = atoi(value);
        if (strcmp(argv[i], "quits") == 0) quits = atoi(value);
        if (strcmp(argv[i], "table") == 0) table = atoi(value);
        if (strcmp(argv[i], "stream") == 0) stream_kind = value;
        if (strcmp(argv[i], "variant") == 0) name = value;
        if (strcmp(argv[i], "differ") == 0) {
            differ = atoi(value);
            differ_what = strchr(value, ':') + 1;
        }
        if (strcmp(argv[i], "sizes") == 0)
            for (char *at = strtok(value, ","); at && nsizes < SIZES; at = strtok(NULL, ","))
                sizes[nsizes++] = strtoull(at, NULL, 0);
    }
    if (!(variant = psmNetFindVariant(name))) return 3;
    end_net[0] = variant->recv;
    end_net[1] = variant->send;
    meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[RANKS];
    for (int i = 0; i < RANKS; i++) {
        pids[i] = fork();
        if (pids[i] < 0) return 3;
        if (pids[i] == 0) exit(work(i)); /* CUDA begins here */
    }
    int worst = 0;
    for (int i = 0; i < RANKS; i++) {
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
