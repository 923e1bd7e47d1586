/* A rank of groups that mix collectives with sends and recvs, for benchmarks/plan_trace.md. It has the declarations of
 * NCCL and CUDA that it calls, so it is compiled without their headers.
 *
 *   plan_trace RANK RANKS FILE GROUP...    FILE: made by rank 0, with the unique id of the communicator
 *
 * A GROUP is one group of calls, a letter each: a AllReduce, g AllGather, x a send to the next rank and a recv from the
 * previous one, s a send of rank 0 to rank 1. Capitals: small data. A number repeats a letter. Before the letters: @
 * the group is captured, and its graph launched twice; + sends and recvs are on a second stream; ~ nobody waits behind
 * it. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char bytes[128];
} unique_id;
int ncclGetUniqueId(unique_id *);
int ncclCommInitRank(void **, int, unique_id, int);
int ncclCommDestroy(void *);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *, size_t, int, int, void *, void *);
int ncclRecv(void *, size_t, int, int, void *, void *);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int ncclAllGather(const void *, void *, size_t, int, void *, void *);
int cudaSetDevice(int);
int cudaMalloc(void **, size_t);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaStreamCreateWithFlags(void **, unsigned);
int cudaStreamSynchronize(void *);
int cudaStreamBeginCapture(void *, int);
int cudaStreamEndCapture(void *, void **);
int cudaGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cudaGraphLaunch(void *, void *);
int cudaGraphExecDestroy(void *);
int cudaGraphDestroy(void *);

enum { FLOAT = 7, MOST = 40, LARGE = 1 << 16, SMALL = 1 << 10 };

struct rank {
    int rank, ranks, wrong;
    void *comm, *streams[2];
    float *out, *in, *host;
    size_t slot; /* elements of a call's buffer */
};

static void good(int code, const char *call)
{
    if (code == 0) return;
    fprintf(stderr, "%s: %d\n", call, code);
    _exit(3);
}
#define GOOD(call) good((call), #call)

static unique_id get_id(int rank, const char *file)
{
    unique_id id;
    char hidden[4096];
    FILE *f;
    if (rank == 0) {
        GOOD(ncclGetUniqueId(&id));
        snprintf(hidden, sizeof hidden, "%s.new", file);
        if (!(f = fopen(hidden, "w")) || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f) || rename(hidden, file))
            good(1, file);
        return id;
    }
    while (!(f = fopen(file, "r"))) usleep(1000);
    if (fread(&id, sizeof id, 1, f) != 1) good(1, file);
    fclose(f);
    return id;
}

static void call(const struct rank *r, char letter, int i, void *p2p)
{
    size_t n = isupper((unsigned char)letter) ? SMALL : LARGE;
    const float *out = r->out + r->slot * (size_t)i;
    float *in = r->in + r->slot * (size_t)i;
    switch (tolower((unsigned char)letter)) {
    case 'a':
        GOOD(ncclAllReduce(out, in, n, FLOAT, 0, r->comm, r->streams[0]));
        break;
    case 'g':
        GOOD(ncclAllGather(out, in, n, FLOAT, r->comm, r->streams[0]));
        break;
    case 'x':
        GOOD(ncclSend(out, n, FLOAT, (r->rank + 1) % r->ranks, r->comm, p2p));
        GOOD(ncclRecv(in, n, FLOAT, (r->rank + r->ranks - 1) % r->ranks, r->comm, p2p));
        break;
    case 's':
        if (r->rank == 0) GOOD(ncclSend(out, n, FLOAT, 1, r->comm, p2p));
        if (r->rank == 1) GOOD(ncclRecv(in, n, FLOAT, 0, r->comm, p2p));
        break;
    default:
        good(1, "a letter of a group");
    }
}

/* All elements that rank k sends are k + 1. */
static void look(struct rank *r, const char *letters, int n)
{
    GOOD(cudaMemcpy(r->host, r->in, r->slot * MOST * sizeof(float), 2));
    for (int i = 0; i < n; i++) {
        int letter = tolower((unsigned char)letters[i]);
        size_t count = letters[i] == letter ? LARGE : SMALL;
        float meant = letter == 'a'   ? (float)(r->ranks * (r->ranks + 1) / 2)
                      : letter == 'x' ? (float)((r->rank + r->ranks - 1) % r->ranks + 1)
                                      : 1;
        bool mine = letter != 's' || r->rank == 1;
        for (size_t k = 0; mine && k < count; k++) r->wrong += r->host[r->slot * (size_t)i + k] != meant;
    }
}

static void group(struct rank *r, const char *word)
{
    bool captured = *word == '@', lazy = *word == '~', other = *word == '+';
    char letters[MOST];
    int n = 0;
    for (const char *at = word + (captured || lazy || other); *at; at++) {
        char *behind = NULL;
        long times = isdigit((unsigned char)*at) ? strtol(at, &behind, 10) : 1;
        if (behind) at = behind;
        while (times-- > 0 && n < MOST) letters[n++] = *at;
    }
    void *graph = NULL, *exec = NULL;
    if (captured) GOOD(cudaStreamBeginCapture(r->streams[0], 1));
    GOOD(ncclGroupStart());
    for (int i = 0; i < n; i++) call(r, letters[i], i, r->streams[other]);
    GOOD(ncclGroupEnd());
    if (captured) {
        GOOD(cudaStreamEndCapture(r->streams[0], &graph));
        GOOD(cudaGraphInstantiateWithFlags(&exec, graph, 0));
        for (int i = 0; i < 2; i++) GOOD(cudaGraphLaunch(exec, r->streams[0]));
    }
    if (lazy) return;
    for (int i = 0; i < 2; i++) GOOD(cudaStreamSynchronize(r->streams[i]));
    if (captured) {
        GOOD(cudaGraphExecDestroy(exec));
        GOOD(cudaGraphDestroy(graph));
    }
    look(r, letters, n);
    printf("rank %d: %s: %d wrong\n", r->rank, word, r->wrong);
}

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    struct rank r = {.rank = atoi(argv[1]), .ranks = atoi(argv[2])};
    unique_id id = get_id(r.rank, argv[3]);
    GOOD(cudaSetDevice(r.rank));
    GOOD(ncclCommInitRank(&r.comm, r.ranks, id, r.rank));
    r.slot = (size_t)LARGE * (size_t)r.ranks;
    size_t bytes = r.slot * MOST * sizeof(float);
    if (!(r.host = malloc(bytes))) return 2;
    for (size_t i = 0; i < r.slot * MOST; i++) r.host[i] = (float)(r.rank + 1);
    GOOD(cudaMalloc((void **)&r.out, bytes));
    GOOD(cudaMalloc((void **)&r.in, bytes));
    GOOD(cudaMemcpy(r.out, r.host, bytes, 1));
    for (int i = 0; i < 2; i++) GOOD(cudaStreamCreateWithFlags(&r.streams[i], 1));
    for (int i = 4; i < argc; i++) group(&r, argv[i]);
    GOOD(ncclCommDestroy(r.comm));
    free(r.host);
    return r.wrong != 0;
}
