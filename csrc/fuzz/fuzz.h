/* A fuzz target: what it has to give, and a program that changes right inputs and hands them over, always the same for
 * the same seed. With PSMKIT_LIBFUZZER for clang's libFuzzer, which has a program of its own.
 *
 *   fuzz_NAME [ROUNDS [SEED]]    so many inputs
 *   fuzz_NAME seconds=S [SEED]   inputs for S seconds
 *   fuzz_NAME FILE...            these
 *
 * A target includes this once and has LLVMFuzzerTestOneInput and fuzz_right. */
#ifndef PSM_FUZZ_H
#define PSM_FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the program with a reason: a decoder broke what it promises. */
static void fuzz_need(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "fuzz: %s\n", what);
    abort();
}

#ifndef PSMKIT_LIBFUZZER
enum { FUZZ_MOST = 1 << 17 };

/* Writes an input that is right, or nearly so; its size. room: FUZZ_MOST. */
static size_t fuzz_right(uint8_t *out, size_t room);
/* How many of the inputs the decoder took, for the line at the end. */
static unsigned long fuzz_taken;

static uint64_t fuzz_state = 0x9e3779b97f4a7c15u;
static uint64_t fuzz_draw(void)
{
    fuzz_state ^= fuzz_state << 13;
    fuzz_state ^= fuzz_state >> 7;
    return fuzz_state ^= fuzz_state << 17;
}
static size_t fuzz_below(size_t n)
{
    return n ? (size_t)(fuzz_draw() % n) : 0;
}

static size_t fuzz_damage(uint8_t *data, size_t n)
{
    static const uint64_t odd[] = {0,         1,         0x7f,       0x80,       0xff,       0x7fff,
                                   0x8000,    0xffff,    0x7fffffff, 0x80000000, 0xffffffff, UINT64_C(1) << 40,
                                   INT64_MAX, UINT64_MAX};
    if (fuzz_below(4) == 0) n = fuzz_below(n + 1);
    for (size_t k = fuzz_below(5); k > 0 && n > 0; k--) {
        size_t at = fuzz_below(fuzz_below(2) || n < 256 ? n : 256), wide = (size_t)1 << fuzz_below(4);
        switch (fuzz_below(4)) {
        case 0:
            data[at] = (uint8_t)fuzz_draw();
            break;
        case 1:
            data[at] ^= (uint8_t)(1u << fuzz_below(8));
            break;
        case 2: /* a number at a bound, of 1 to 8 bytes */
            at -= at % wide;
            if (at + wide <= n) memcpy(data + at, &odd[fuzz_below(sizeof odd / sizeof *odd)], wide);
            break;
        default: { /* a piece of it stands elsewhere */
            size_t from = fuzz_below(n), len = fuzz_below(64);
            if (len > n - from) len = n - from;
            if (len > n - at) len = n - at;
            memmove(data + at, data + from, len);
        }
        }
    }
    return n;
}

static int fuzz_file(const char *path)
{
    static uint8_t data[FUZZ_MOST];
    FILE *f = fopen(path, "rb");
    if (!f) return perror(path), 1;
    size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    return LLVMFuzzerTestOneInput(data, n);
}

static double fuzz_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    static uint8_t made[FUZZ_MOST];
    char *end = NULL;
    bool timed = argc > 1 && strncmp(argv[1], "seconds=", 8) == 0;
    double until = timed ? fuzz_now() + strtod(argv[1] + 8, &end) : 0;
    unsigned long rounds = timed ? 0 : argc > 1 ? strtoul(argv[1], &end, 10) : 100000, done = 0;
    if (end && *end) {
        for (int i = 1; i < argc; i++)
            if (fuzz_file(argv[i])) return 1;
        return 0;
    }
    if (argc > 2) fuzz_state = strtoull(argv[2], NULL, 0) * 2 + 1;
    for (; timed ? fuzz_now() < until : done < rounds; done++) {
        size_t n = fuzz_right(made, sizeof made);
        if (fuzz_below(8)) n = fuzz_damage(made, n);
        /* exactly as long as the input, so that a sanitizer sees what is read behind it */
        uint8_t *data = malloc(n ? n : 1);
        if (!data) return 1;
        memcpy(data, made, n);
        LLVMFuzzerTestOneInput(data, n);
        free(data);
    }
    printf("%lu inputs, %lu taken\n", done, fuzz_taken);
    return 0;
}
#define FUZZ_TAKEN() fuzz_taken++
#else
#define FUZZ_TAKEN() ((void)0)
#endif
#endif
