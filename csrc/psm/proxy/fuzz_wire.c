/* Fuzz target of the decoder of messages between proxies. Every message that is taken is encoded again where there is
 * an encoder, and has to come out as it was.
 *
 * With PSMKIT_LIBFUZZER for clang's libFuzzer; otherwise a program that reads files, or makes messages of its own by
 * changing right ones: fuzz_wire [ROUNDS [SEED]] or fuzz_wire FILE... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "fuzz_wire: %s\n", what);
    abort();
}

static void same(const uint8_t *made, size_t made_size, const uint8_t *data, size_t size, size_t head)
{
    need(made_size == size, "encoded with another size");
    /* reserved fields are not kept */
    need(memcmp(made + head, data + head, size - head) == 0, "encoded with another payload");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct psm_wire_message m;
    char text[PSM_WIRE_TEXT];
    static uint8_t out[PSM_WIRE_MAX];
    psm_status status = psm_wire_decode(data, size, ~0u, &m, text);
    if (status != PSM_OK) {
        need(status == PSM_ERR_PROTOCOL || status == PSM_ERR_VERSION, "another status than PROTOCOL and VERSION");
        need(text[0] && strlen(text) < PSM_WIRE_TEXT, "refused without a reason");
        return 0;
    }
    need(m.payload_size <= PSM_PROXY_PAYLOAD, "payload out of bounds");
    need(m.payload_size == 0 || (m.payload >= data && m.payload + m.payload_size <= data + size), "payload outside");
    if (m.kind == PSM_WIRE_REQUEST) {
        const struct psm_wire_request *r = &m.request;
        size_t n = psm_wire_encode_request(out, r->type, r->connection, r->op_id, m.payload, r->req_size, r->resp_size);
        same(out, n, data, size, sizeof *r);
    } else if (m.kind == PSM_WIRE_RESPONSE) {
        struct psm_error error = {.status = (psm_status)m.response.status};
        size_t n = psm_wire_encode_response(out, m.response.op_id, &error, m.payload, m.payload_size);
        need(n == size, "encoded with another size");
    } else if (m.kind == PSM_WIRE_BYE) {
        need(strlen(m.bye.text) < sizeof m.bye.text, "text without an end");
    }
    return 0;
}

#ifndef PSMKIT_LIBFUZZER
static uint64_t state;
static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static size_t right(uint8_t *out)
{
    static const size_t sizes[] = {0,
                                   sizeof(struct psm_wire_hello),
                                   0,
                                   0,
                                   sizeof(struct psm_wire_bye),
                                   sizeof(struct psm_wire_fd_ask),
                                   sizeof(struct psm_wire_fd_answer)};
    uint8_t payload[PSM_PROXY_PAYLOAD];
    size_t n = draw() % (draw() % 8 ? 64 : PSM_PROXY_PAYLOAD + 1);
    enum psm_wire_kind kind = (enum psm_wire_kind)(1 + draw() % 6);
    for (size_t i = 0; i < n; i++) payload[i] = (uint8_t)draw();
    struct psm_error error = {.status = draw() % 2 ? PSM_ERR_REFUSED : PSM_OK};
    if (kind == PSM_WIRE_REQUEST) return psm_wire_encode_request(out, 3, draw(), draw() | 1, payload, n, draw() % 4097);
    if (kind == PSM_WIRE_RESPONSE) return psm_wire_encode_response(out, draw(), &error, payload, n);
    for (size_t i = 0; i < sizes[kind]; i++) out[i] = (uint8_t)draw();
    struct psm_wire_head head;
    psm_wire_begin(&head, kind, sizes[kind]);
    memcpy(out, &head, sizeof head);
    return sizes[kind];
}

static int one_file(const char *path)
{
    static uint8_t data[1 << 16];
    FILE *f = fopen(path, "rb");
    if (!f) return perror(path), 1;
    size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    return LLVMFuzzerTestOneInput(data, n);
}

int main(int argc, char **argv)
{
    char *end = NULL;
    unsigned long rounds = argc > 1 ? strtoul(argv[1], &end, 10) : 1000000;
    if (end && *end) {
        for (int i = 1; i < argc; i++)
            if (one_file(argv[i])) return 1;
        return 0;
    }
    state = argc > 2 ? strtoull(argv[2], NULL, 0) | 1 : 0x9e3779b97f4a7c15u;
    size_t taken = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        /* exactly as long as the message, so that a sanitizer sees what is read behind it */
        uint8_t made[PSM_WIRE_MAX];
        size_t n = right(made);
        if (draw() % 4 == 0) n = draw() % (n + 1);
        uint8_t *data = malloc(n ? n : 1);
        if (!data) return 1;
        memcpy(data, made, n);
        for (unsigned k = draw() % 4; k > 0 && n > 0; k--)
            data[draw() % (draw() % 2 ? n : n < 64 ? n : 64)] = (uint8_t)draw();
        struct psm_wire_message m;
        char text[PSM_WIRE_TEXT];
        taken += psm_wire_decode(data, n, ~0u, &m, text) == PSM_OK;
        LLVMFuzzerTestOneInput(data, n);
        free(data);
    }
    printf("%lu messages, %zu taken\n", rounds, taken);
    return 0;
}
#endif
