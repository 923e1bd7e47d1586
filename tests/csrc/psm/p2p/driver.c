/* Ranks that send each other data by p2p: processes, or threads of one process. What goes where is compared byte by
 * byte. Arguments: job.h and main. Output: Job in jobs.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

#include "job/job.h"
#include "p2p/canconnect.h"
#include "p2p/p2p.h"

static int threads, same_device, registered, offset, use_via, repeat = 1, captured;
static int in_record; /* the steps go to the record file, and are not counted */
static const char *registered_who = "both", *buffers = "device";

const char *end_variant; /* NULL: the right one */
static const struct psmP2pVariant *variant;

static struct meeting {
    struct job_meeting all;
    struct psm_p2p_connect sends[END_RANKS][END_RANKS], recvs[END_RANKS][END_RANKS]; /* [of rank][peer] */
} *meeting;

struct rank {
    struct job_rank base;
    psmP2pConnector *send[END_RANKS], *recv[END_RANKS];
    uint8_t *out[END_RANKS], *in[END_RANKS];
    uint64_t out_handle[END_RANKS], in_handle[END_RANKS];
};
#define OK(what, call) JOB_OK(&r->base, what, call)
#define CU(call)       JOB_CUDA(&r->base, call)

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

static psm_status make_buffer(struct rank *r, uint64_t bytes, uint8_t **buffer)
{
    if (strcmp(buffers, "host") == 0) {
        CU(cudaHostAlloc((void **)buffer, bytes, 0));
    } else if (strcmp(buffers, "vmm") == 0) {
        OK("buffer", psmP2pMemAlloc(&r->base.end.host, 0, bytes, (void **)buffer));
    } else if (strcmp(buffers, "memfd") == 0) {
        OK("buffer", psmP2pMemAlloc(&r->base.end.host, 1, bytes, (void **)buffer));
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
        psmP2pMemFree(&r->base.end.host, buffer);
    else
        CU(cudaFree(buffer));
}

static psm_status prepare(struct rank *r)
{
    job_prepare(&r->base);
    for (int p = 0; p < job.ranks; p++) {
        OK("buffer", make_buffer(r, job_largest(), &r->out[p]));
        OK("buffer", make_buffer(r, job_largest(), &r->in[p]));
    }
    return PSM_OK;
}

static psm_status setup_all(struct rank *r)
{
    int me = r->base.rank;
    const struct psm_host *host = &r->base.end.host;
    const struct psm_peer_info *infos = meeting->all.infos, *mine = &infos[me];
    for (int p = 0; p < job.ranks; p++) {
        int via = -1;
        const struct psm_peer_info *theirs = &infos[p];
        if (use_via && p != me) OK("via", psmP2pFindIntermediate(infos, (size_t)job.ranks, mine, theirs, &via));
        const struct psm_peer_info *between = via < 0 ? NULL : &infos[via];
        if (job_pair(me, p))
            OK("setup", psmP2pSendSetupVia(host, mine, theirs, between, 0, 0, &meeting->sends[me][p], &r->send[p]));
        if (job_pair(p, me))
            OK("setup",
               variant->recvSetup
                   ? variant->recvSetup(host, mine, theirs, 0, 0, &meeting->recvs[me][p], &r->recv[p])
                   : psmP2pRecvSetupVia(host, mine, theirs, between, 0, 0, &meeting->recvs[me][p], &r->recv[p]));
    }
    if (me != job.differ) return PSM_OK;
    struct psm_p2p_connect *info = r->send[!me] ? &meeting->sends[me][!me] : &meeting->recvs[me][!me];
    JOB_TELL_WRONG(&r->base, info);
    if (job_differs(&r->base, "mode")) info->mode = PSM_P2P_IPC == info->mode ? PSM_P2P_CUMEM : PSM_P2P_IPC;
    if (job_differs(&r->base, "kind")) info->share.kind ^= 1;
    return PSM_OK;
}

static psm_status register_all(struct rank *r)
{
    int me = r->base.rank;
    bool out = strcmp(registered_who, "recv") != 0, in = strcmp(registered_who, "send") != 0;
    for (int p = 0; p < job.ranks; p++) {
        psm_status status = PSM_OK;
        if (job_pair(me, p) && out)
            OK("register", psmP2pRegister(r->send[p], r->out[p], job_largest(), &r->out_handle[p]));
        if (job_pair(p, me) && in) status = psmP2pRegister(r->recv[p], r->in[p], job_largest(), &r->in_handle[p]);
        if (status != PSM_OK) job_say(&r->base, "register", status);
        if (status != PSM_OK && status != PSM_ERR_UNSUPPORTED) return status; /* the FIFO does then */
    }
    return job_meet() ? PSM_OK : PSM_ERR_ABORTED;
}

static psm_status connect_all(struct rank *r)
{
    int me = r->base.rank;
    OK("peerinfo", psmP2pPeerInfo(&r->base.end.host, NULL, &meeting->all.infos[me]));
    if (!job_meet()) return PSM_ERR_ABORTED;
    PSM_TRY(setup_all(r));
    if (!job_meet()) return PSM_ERR_ABORTED;
    for (int p = 0; p < job.ranks; p++) {
        if (job_pair(me, p))
            OK("connect",
               (variant->sendConnect ? variant->sendConnect : psmP2pSendConnect)(r->send[p], &meeting->recvs[p][me]));
        if (job_pair(p, me))
            OK("connect",
               (variant->recvConnect ? variant->recvConnect : psmP2pRecvConnect)(r->recv[p], &meeting->sends[p][me]));
    }
    printf("rank %d mode %s\n", me, psm_p2p_mode_name(meeting->sends[0][1].mode));
    if (!job_meet()) return PSM_ERR_ABORTED;
    return registered ? register_all(r) : PSM_OK;
}

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
        printf("rank %d has no captures\n", r->base.rank);
        return;
    }
    psmGroup *group = NULL;
    if (begin(r->base.stream, 0) != 0) printf("rank %d cannot capture\n", r->base.rank);
    job_say(&r->base, "captured", psmGroupLaunch(r->base.end.state, r->base.stream, ops, n, &group));
    int code = (int)end(r->base.stream, &graph);
    printf("rank %d capture ended with %d, group %s\n", r->base.rank, code, group ? "made" : "none");
    cudaError_t (*destroy)(void *) = NULL;
    *(void **)&destroy = dlsym(runtime, "cudaGraphDestroy");
    if (graph && destroy) destroy(graph);
    dlclose(runtime);
}

static psm_status exchange(struct rank *r, int iter, uint64_t bytes)
{
    struct psmGroupOp ops[(2 * END_RANKS) * 8 + 1];
    size_t n = 0;
    int me = r->base.rank;
    for (int p = 0; p < job.ranks; p++) job_fill(&r->base, p, r->out[p], r->in[p], iter, (uint64_t)offset, bytes);
    for (int part = 0; part < repeat; part++) /* several operations on a connection go in order */
        for (int p = 0; p < job.ranks; p++) {
            uint64_t from = bytes / (uint64_t)repeat * (uint64_t)part + (uint64_t)offset;
            uint64_t mine = part + 1 < repeat ? bytes / (uint64_t)repeat : bytes + (uint64_t)offset - from;
            if (job_pair(me, p) && me != job.lone)
                ops[n++] = (struct psmGroupOp){.connector = r->send[p],
                                               .sendbuff = r->out[p] + from,
                                               .nbytes = mine + job_differs(&r->base, "nbytes"),
                                               .handle = r->out_handle[p],
                                               .peer = p};
            if (job_pair(p, me) && me != job.lone)
                ops[n++] = (struct psmGroupOp){.connector = r->recv[p],
                                               .recvbuff = r->in[p] + from,
                                               .nbytes = mine,
                                               .handle = r->in_handle[p],
                                               .peer = p};
        }
    ops[n++] = (struct psmGroupOp){
        .sendbuff = r->out[me] + offset, .recvbuff = r->in[me] + offset, .nbytes = bytes, .peer = me};
    if (captured) launch_captured(r, ops, n);
    psm_status status = job_group(&r->base, ops, n);
    for (int p = 0; p < job.ranks && status == PSM_OK; p++)
        if ((p == me || job_pair(p, me)) && me != job.lone)
            status = job_compare(&r->base, p, r->in[p], iter, (uint64_t)offset, bytes);
    return status;
}

static void give_back(struct rank *r)
{
    psm_status status;
    for (int p = 0; p < job.ranks; p++) {
        psmP2pConnector *send = r->send[p], *recv = r->recv[p];
        if (send && (status = psmP2pSendFree(send)) != PSM_OK) job_say(&r->base, "free", status);
        if (recv && (status = psmP2pRecvFree(recv)) != PSM_OK) job_say(&r->base, "free", status);
        if (send && psmP2pSendFree(send) != PSM_ERR_INVALID) printf("rank %d: a second free was taken\n", r->base.rank);
        free_buffer(r, r->out[p]);
        free_buffer(r, r->in[p]);
    }
    job_close(&r->base);
}

static void *run(void *user)
{
    struct rank *r = user;
    job_open(&r->base);
    prepare(r);
    psm_status status = connect_all(r);
    uint64_t moved = 0;
    for (int iter = 0; iter < job.iters && status == PSM_OK; iter++)
        for (int i = 0; i < job.nsizes && status == PSM_OK; i++, moved++)
            status = exchange(r, iter * job.nsizes + i, job.sizes[i]);
    job_over(status);
    give_back(r);
    printf("rank %d done %s after %llu groups\n", r->base.rank, psm_status_name(status), (unsigned long long)moved);
    fflush(stdout);
    return status == PSM_OK ? NULL : r;
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
        ranks[i].base.rank = first + i;
        ranks[i].base.device = same_device ? 0 : (first + i) % devices;
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
    job_say_left();
    return failed;
}

static int work_alone(int rank)
{
    return work(rank, 1);
}

static void read_argument(char *argument)
{
    static const struct {
        const char *name;
        int *value;
    } numbers[] = {{"threads", &threads}, {"same_device", &same_device}, {"offset", &offset},   {"via", &use_via},
                   {"repeat", &repeat},   {"captured", &captured},       {"record", &in_record}};
    const char *value;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if ((value = job_value(argument, numbers[i].name))) *numbers[i].value = atoi(value);
    if ((value = job_value(argument, "buffers"))) buffers = value;
    if ((value = job_value(argument, "registered"))) registered = 1, registered_who = value;
    job_argument(argument);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "variants") == 0) {
        JOB_LIST_VARIANTS(struct psmP2pVariant, psmP2pVariants);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "canconnect") == 0) return draw_pairs(strtoull(argv[2], NULL, 10));
    for (int i = 1; i < argc; i++) read_argument(argv[i]);
    job.around = (uint64_t)offset;
    end_variant = job.variant;
    if (!(variant = psmP2pFindVariant(job.variant))) return 3;
    meeting = job_share(sizeof *meeting);
    return threads ? work(0, job.ranks) : job_fork(work_alone);
}
