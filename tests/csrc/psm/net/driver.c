/* Two ranks that send each other data by the net transport: two processes. What goes where is compared byte by byte.
 * Arguments: job.h and main. Output: Job in jobs.py. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "job/job.h"
#include "net/net_conn.h"

enum { GUARD = 64 };
static int table;

const char *end_variant; /* of p2p, which the ends have, too */

static struct meeting {
    struct job_meeting all;
    struct psm_net_connect sends[2], recvs[2];
} *meeting;

struct rank {
    struct job_rank base;
    int peer;
    psmNetConnector *send, *recv;
    uint8_t *out, *in;
};
#define OK(what, call) JOB_OK(&r->base, what, call)
#define CU(call)       JOB_CUDA(&r->base, call)

/* A proxy refuses what is not of the size that is meant, or not of this release. */
static void ask_wrongly(struct rank *r)
{
    const struct psm_host_ops *ops = r->base.end.host.ops;
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
    if (ops->connect(r->base.end.host.self, PSM_TRANSPORT_NET, 1, r->base.rank, &connector) != PSM_OK) exit(3);
#define ASK(what, type, request, bytes, response, room)                                                                \
    job_say(&r->base, what, ops->call(r->base.end.host.self, connector, type, request, bytes, response, room))
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
    ops->disconnect(r->base.end.host.self, connector);
}

static psm_status connect_all(struct rank *r)
{
    int me = r->base.rank;
    const struct psm_host *host = &r->base.end.host;
    const struct psm_peer_info *mine = &meeting->all.infos[me], *theirs = &meeting->all.infos[r->peer];
    struct psm_net_connect *sends = &meeting->sends[me], *recvs = &meeting->recvs[me];
    OK("peerinfo", psmP2pPeerInfo(host, NULL, &meeting->all.infos[me]));
    if (!job_meet()) return PSM_ERR_ABORTED;
    if (job_pair(me, r->peer)) OK("setup", psmNetSendSetup(host, mine, theirs, 0, 0, sends, &r->send));
    if (job_pair(r->peer, me)) OK("setup", psmNetRecvSetup(host, mine, theirs, 0, 0, recvs, &r->recv));
    if (me == job.differ) {
        struct psm_net_connect *info = r->send ? sends : recvs;
        JOB_TELL_WRONG(&r->base, info);
        if (job_differs(&r->base, "channel")) info->channel = 9;
        if (job_differs(&r->base, "net")) strcpy(info->net, "Other");
        if (job_differs(&r->base, "handle")) memset(info->handle, 0, sizeof info->handle);
    }
    if (!job_meet()) return PSM_ERR_ABORTED;
    for (psm_status out = PSM_IN_PROGRESS, in = PSM_IN_PROGRESS; out != PSM_OK || in != PSM_OK;) {
        if (out != PSM_OK) out = r->send ? psmNetSendConnect(r->send, &meeting->recvs[r->peer]) : PSM_OK;
        if (out < 0) OK("connect", out);
        if (in != PSM_OK) in = r->recv ? psmNetRecvConnect(r->recv, &meeting->sends[r->peer]) : PSM_OK;
        if (in < 0) OK("connect", in);
    }
    return job_meet() ? PSM_OK : PSM_ERR_ABORTED;
}

static psm_status exchange(struct rank *r, int iter, uint64_t bytes)
{
    struct psmGroupOp ops[2];
    size_t n = 0;
    bool lone = r->base.rank == job.lone;
    job_fill(&r->base, r->peer, r->out, r->in, iter, 0, bytes);
    if (r->send && !lone)
        ops[n++] = (struct psmGroupOp){.connection = psmNetConnection(r->send),
                                       .send = 1,
                                       .sendbuff = r->out,
                                       .nbytes = bytes + job_differs(&r->base, "nbytes"),
                                       .peer = r->peer};
    if (r->recv && !lone)
        ops[n++] = (struct psmGroupOp){
            .connection = psmNetConnection(r->recv), .recvbuff = r->in, .nbytes = bytes, .peer = r->peer};
    psm_status status = job_group(&r->base, ops, n);
    return status == PSM_OK && r->recv && !lone ? job_compare(&r->base, r->peer, r->in, iter, 0, bytes) : status;
}

static void give_back(struct rank *r)
{
    psm_status status;
    if (r->send && (status = psmNetSendFree(r->send)) != PSM_OK) job_say(&r->base, "free", status);
    if (r->recv && (status = psmNetRecvFree(r->recv)) != PSM_OK) job_say(&r->base, "free", status);
    if (r->send && psmNetSendFree(r->send) != PSM_ERR_INVALID)
        printf("rank %d: a second free was taken\n", r->base.rank);
    CU(cudaFree(r->out));
    CU(cudaFree(r->in));
    job_close(&r->base);
}

/* The table of one version, as a program that has a plugin at hand gives it. */
static void use_table(const struct job_rank *r)
{
    char symbol[32];
    void *library = dlopen(getenv("PSM_NET_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", table);
    job_say(r, "use", psmNetUse(table, library ? dlsym(library, symbol) : NULL));
}

static int work(int rank)
{
    struct rank all = {.base = {.rank = rank, .device = rank}, .peer = !rank}, *r = &all;
    if (table) use_table(&r->base);
    job_open(&r->base);
    if (strcmp(job.differs, "request") == 0) ask_wrongly(r);
    job_prepare(&r->base);
    CU(cudaMalloc((void **)&r->out, job_largest()));
    CU(cudaMalloc((void **)&r->in, job_largest()));
    psm_status status = connect_all(r);
    for (int iter = 0; iter < job.iters && status == PSM_OK; iter++)
        for (int i = 0; i < job.nsizes && status == PSM_OK; i++)
            status = exchange(r, iter * job.nsizes + i, job.sizes[i]);
    job_over(status);
    give_back(r);
    job_say_left();
    printf("rank %d done %s\n", rank, psm_status_name(status));
    fflush(stdout);
    return status != PSM_OK;
}

int main(int argc, char **argv)
{
    const char *value;
    if (argc == 2 && strcmp(argv[1], "variants") == 0) {
        JOB_LIST_VARIANTS(struct psmNetVariant, psmNetVariants);
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        if ((value = job_value(argv[i], "table"))) table = atoi(value);
        job_argument(argv[i]);
    }
    job.around = GUARD;
    const struct psmNetVariant *variant = psmNetFindVariant(job.variant);
    if (!variant) return 3;
    end_net[0] = variant->recv;
    end_net[1] = variant->send;
    meeting = job_share(sizeof *meeting);
    return job_fork(work);
}
