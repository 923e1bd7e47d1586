/* Streams and events under many threads. Each part checks an order that CUDA promises with plain variables: a missing
   order is a wrong value here, and a data race for the thread sanitizer.

   stream_stress ROUNDS */
#include <string.h>

#include "cuda_calls.h"

enum { THREADS = 6, STREAMS = 4, SLOTS = 24 };
static int rounds;

/* ---- a stream that several threads fill runs its work in the order of the calls ---- */

struct line {
    cudaStream_t stream;
    pthread_mutex_t lock;
    int submitted;
    int ran; /* plain: only the stream's work touches it, one after the other */
};
struct step {
    struct line *line;
    int number;
};
static struct line lines[STREAMS];

static void run_step(void *data)
{
    struct step *step = data;
    CHECK(step->line->ran == step->number);
    step->line->ran++;
    free(step);
}

static void *fill_lines(void *which)
{
    unsigned seed = 77u + (unsigned)(intptr_t)which;
    for (int i = 0; i < rounds; i++) {
        struct line *line = &lines[next_random(&seed) % STREAMS];
        struct step *step = malloc(sizeof *step);
        CHECK(step);
        pthread_mutex_lock(&line->lock);
        *step = (struct step){line, line->submitted++};
        OK(cudaLaunchHostFunc(line->stream, run_step, step));
        pthread_mutex_unlock(&line->lock);
        if (next_random(&seed) % 16 == 0) OK(cudaStreamSynchronize(line->stream));
        int state = cudaStreamQuery(line->stream);
        CHECK(state == SUCCESS || state == NOT_READY);
    }
    return NULL;
}

static void shared_streams(void)
{
    for (int i = 0; i < STREAMS; i++) {
        OK(cudaStreamCreateWithFlags(&lines[i].stream, (unsigned)i & 1));
        pthread_mutex_init(&lines[i].lock, NULL);
    }
    in_threads(THREADS, fill_lines);
    OK(cudaDeviceSynchronize());
    int total = 0;
    for (int i = 0; i < STREAMS; i++) {
        CHECK(lines[i].ran == lines[i].submitted);
        total += lines[i].ran;
        OK(cudaStreamDestroy(lines[i].stream));
    }
    CHECK(total == THREADS * rounds);
}

/* ---- a value goes through streams by events, and back to the thread by a wait ---- */

struct relay {
    int value;
};

static void increment(void *data)
{
    ((struct relay *)data)->value++;
}

static void *relay_thread(void *which)
{
    unsigned seed = 1u + (unsigned)(intptr_t)which;
    struct relay relay = {0};
    cudaStream_t streams[STREAMS];
    cudaEvent_t events[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        OK(cudaStreamCreateWithFlags(&streams[i], NON_BLOCKING));
        OK(cudaEventCreateWithFlags(&events[i], i & 1 ? NO_TIMING : 0));
    }
    int expected = 0, at = 0;
    for (int i = 0; i < rounds; i++) {
        int to = (int)(next_random(&seed) % STREAMS);
        OK(cudaLaunchHostFunc(streams[at], increment, &relay));
        expected++;
        OK(cudaEventRecord(events[at], streams[at]));
        OK(cudaStreamWaitEvent(streams[to], events[at], 0));
        switch (next_random(&seed) % 6) {
        case 0:
            OK(cudaEventSynchronize(events[at]));
            CHECK(relay.value == expected);
            break;
        case 1:
            OK(cudaStreamSynchronize(streams[to]));
            CHECK(relay.value == expected);
            break;
        case 2:
            if (cudaEventQuery(events[at]) == SUCCESS) CHECK(relay.value == expected);
            break;
        case 3: /* who waits keeps waiting when the event is gone */
            OK(cudaEventDestroy(events[at]));
            OK(cudaEventCreateWithFlags(&events[at], NO_TIMING));
            break;
        case 4: /* and when the stream of the record is gone */
            if (to != at) {
                OK(cudaStreamDestroy(streams[at]));
                OK(cudaStreamCreateWithFlags(&streams[at], NON_BLOCKING));
            }
            break;
        default:
            break;
        }
        at = to;
    }
    OK(cudaStreamSynchronize(streams[at]));
    CHECK(relay.value == expected);
    for (int i = 0; i < STREAMS; i++) {
        OK(cudaEventDestroy(events[i]));
        OK(cudaStreamDestroy(streams[i]));
    }
    return NULL;
}

/* ---- handles that other threads destroy ---- */

static _Atomic(cudaStream_t) shared_handles[SLOTS];
static _Atomic(cudaEvent_t) shared_events[SLOTS];
static atomic_int counted;

static void count(void *data)
{
    (void)data;
    atomic_fetch_add(&counted, 1);
}

static void allow(int code, int other)
{
    CHECK(code == SUCCESS || code == other || code == INVALID_HANDLE);
}

static void *handle_thread(void *which)
{
    unsigned seed = 99u + (unsigned)(intptr_t)which;
    int launched = 0;
    for (int i = 0; i < rounds; i++) {
        unsigned at = next_random(&seed) % SLOTS, other = next_random(&seed) % SLOTS;
        cudaStream_t stream = atomic_load(&shared_handles[at]);
        cudaEvent_t event = atomic_load(&shared_events[other]);
        switch (next_random(&seed) % 8) {
        case 0: {
            cudaStream_t fresh, old;
            OK(cudaStreamCreateWithFlags(&fresh, next_random(&seed) & 1));
            old = atomic_exchange(&shared_handles[at], fresh);
            if (old) OK(cudaStreamDestroy(old));
            break;
        }
        case 1: {
            cudaEvent_t fresh, old;
            OK(cudaEventCreateWithFlags(&fresh, 0));
            old = atomic_exchange(&shared_events[other], fresh);
            if (old) OK(cudaEventDestroy(old));
            break;
        }
        case 2:
            if (stream) allow(cudaStreamQuery(stream), NOT_READY);
            break;
        case 3:
            if (event) allow(cudaEventQuery(event), NOT_READY);
            break;
        case 4:
            if (stream && event) allow(cudaEventRecord(event, stream), SUCCESS);
            break;
        case 5:
            if (stream && event) allow(cudaStreamWaitEvent(stream, event, 0), SUCCESS);
            break;
        case 6:
            if (stream && cudaLaunchHostFunc(stream, count, NULL) == SUCCESS) launched++;
            break;
        default:
            if (event) allow(cudaEventSynchronize(event), SUCCESS);
            if (stream) allow(cudaStreamSynchronize(stream), SUCCESS);
            break;
        }
    }
    return (void *)(intptr_t)launched;
}

static void changing_handles(void)
{
    pthread_t threads[THREADS];
    int launched = 0;
    for (intptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, handle_thread, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) {
        void *mine;
        CHECK(pthread_join(threads[i], &mine) == 0);
        launched += (int)(intptr_t)mine;
    }
    for (int i = 0; i < SLOTS; i++) {
        if (atomic_load(&shared_handles[i])) OK(cudaStreamDestroy(atomic_load(&shared_handles[i])));
        if (atomic_load(&shared_events[i])) OK(cudaEventDestroy(atomic_load(&shared_events[i])));
    }
    OK(cudaDeviceSynchronize()); /* of destroyed streams, too */
    CHECK(atomic_load(&counted) == launched);
}

/* ---- the legacy stream is a barrier for blocking and per-thread streams ---- */

static int before[THREADS], barriers; /* plain: ordered by the rules of the default stream alone */

static void note(void *data)
{
    ++*(int *)data;
}

static void add_up(void *data)
{
    (void)data;
    for (int i = 0; i < THREADS; i++) before[i]++;
    barriers++;
}

static void *default_thread(void *which)
{
    int *mine = &before[(intptr_t)which];
    cudaStream_t stream;
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&stream, 0));
    for (int i = 0; i < rounds; i++) {
        cudaStream_t own = which ? stream : PER_THREAD;
        OK(cudaLaunchHostFunc(own, note, mine));
        if (i % 4 == 0) OK(cudaLaunchHostFunc(LEGACY, add_up, NULL));
        if (i % 32 == 0) OK(cudaStreamSynchronize(i % 64 ? LEGACY : own));
    }
    OK(cudaStreamSynchronize(LEGACY));
    OK(cudaStreamDestroy(stream));
    return NULL;
}

static void default_streams(void)
{
    in_threads(THREADS, default_thread);
    OK(cudaDeviceSynchronize());
    CHECK(barriers == THREADS * ((rounds + 3) / 4));
    for (int i = 0; i < THREADS; i++) CHECK(before[i] == rounds + barriers);
}

/* ---- copies, inline and on workers ---- */

enum { BYTES = 256 };

static void *copy_thread(void *which)
{
    unsigned seed = 5u + (unsigned)(intptr_t)which;
    unsigned char *from, *to;
    void *device;
    cudaStream_t stream;
    cudaEvent_t event;
    OK(cudaHostAlloc((void **)&from, BYTES, 0));
    OK(cudaHostAlloc((void **)&to, BYTES, 0));
    OK(cudaMalloc(&device, BYTES));
    OK(cudaStreamCreateWithFlags(&stream, NON_BLOCKING));
    OK(cudaEventCreateWithFlags(&event, NO_TIMING));
    int launched = 0, ran = 0;
    for (int i = 0; i < rounds; i++) {
        memset(from, i, BYTES);
        if (next_random(&seed) % 2) { /* the stream is busy: what follows queues up */
            OK(cudaLaunchHostFunc(stream, note, &ran));
            launched++;
        }
        OK(cudaMemcpyAsync(device, from, BYTES, cudaMemcpyHostToDevice, stream));
        OK(cudaMemcpyAsync(to, device, BYTES, cudaMemcpyDeviceToHost, stream));
        OK(cudaEventRecord(event, stream));
        if (next_random(&seed) % 2) {
            OK(cudaEventSynchronize(event));
        } else {
            int state;
            while ((state = cudaEventQuery(event)) == NOT_READY) {
            }
            OK(state);
        }
        CHECK(to[0] == (unsigned char)i && to[BYTES - 1] == (unsigned char)i && ran == launched);
    }
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(device));
    OK(cudaFreeHost(from));
    OK(cudaFreeHost(to));
    return NULL;
}

int main(int argc, char **argv)
{
    rounds = argc > 1 ? atoi(argv[1]) : 400;
    CHECK(rounds > 0);
    shared_streams();
    in_threads(THREADS, relay_thread);
    changing_handles();
    default_streams();
    in_threads(THREADS, copy_thread);
    puts("all orders held");
    return 0;
}
