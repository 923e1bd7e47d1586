/* Fuzz target of the decoder of messages between proxies. Every message that is taken is encoded again where there is
 * an encoder, and has to come out as it was. */
#include "fuzz.h"
#include "proxy/wire.h"

static void same(const uint8_t *made, size_t made_size, const uint8_t *data, size_t size, size_t head)
{
    fuzz_need(made_size == size, "encoded with another size");
    /* reserved fields are not kept */
    fuzz_need(memcmp(made + head, data + head, size - head) == 0, "encoded with another payload");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct psm_wire_message m;
    char text[PSM_WIRE_TEXT];
    static uint8_t out[PSM_WIRE_MAX];
    psm_status status = psm_wire_decode(data, size, ~0u, &m, text);
    if (status != PSM_OK) {
        fuzz_need(status == PSM_ERR_PROTOCOL || status == PSM_ERR_VERSION, "another status than PROTOCOL and VERSION");
        fuzz_need(text[0] && strlen(text) < PSM_WIRE_TEXT, "refused without a reason");
        return 0;
    }
    FUZZ_TAKEN();
    fuzz_need(m.payload_size <= PSM_PROXY_PAYLOAD, "payload out of bounds");
    fuzz_need(m.payload_size == 0 || (m.payload >= data && m.payload + m.payload_size <= data + size),
              "payload outside");
    if (m.kind == PSM_WIRE_REQUEST) {
        const struct psm_wire_request *r = &m.request;
        size_t n = psm_wire_encode_request(out, r->type, r->connection, r->op_id, m.payload, r->req_size, r->resp_size);
        same(out, n, data, size, sizeof *r);
    } else if (m.kind == PSM_WIRE_RESPONSE) {
        struct psm_error error = {.status = (psm_status)m.response.status};
        size_t n = psm_wire_encode_response(out, m.response.op_id, &error, m.payload, m.payload_size);
        fuzz_need(n == size, "encoded with another size");
    } else if (m.kind == PSM_WIRE_BYE) {
        fuzz_need(strlen(m.bye.text) < sizeof m.bye.text, "text without an end");
    }
    return 0;
}

#ifndef PSMKIT_LIBFUZZER
static size_t fuzz_right(uint8_t *out, size_t room)
{
    fuzz_need(room >= PSM_WIRE_MAX, "no room");
    static const size_t sizes[] = {0,
                                   sizeof(struct psm_wire_hello),
                                   0,
                                   0,
                                   sizeof(struct psm_wire_bye),
                                   sizeof(struct psm_wire_fd_ask),
                                   sizeof(struct psm_wire_fd_answer)};
    uint8_t payload[PSM_PROXY_PAYLOAD];
    size_t n = fuzz_draw() % (fuzz_draw() % 8 ? 64 : PSM_PROXY_PAYLOAD + 1);
    enum psm_wire_kind kind = (enum psm_wire_kind)(1 + fuzz_draw() % 6);
    for (size_t i = 0; i < n; i++) payload[i] = (uint8_t)fuzz_draw();
    struct psm_error error = {.status = fuzz_draw() % 2 ? PSM_ERR_REFUSED : PSM_OK};
    if (kind == PSM_WIRE_REQUEST)
        return psm_wire_encode_request(out, 3, fuzz_draw(), fuzz_draw() | 1, payload, n, fuzz_draw() % 4097);
    if (kind == PSM_WIRE_RESPONSE) return psm_wire_encode_response(out, fuzz_draw(), &error, payload, n);
    for (size_t i = 0; i < sizes[kind]; i++) out[i] = (uint8_t)fuzz_draw();
    struct psm_wire_head head;
    psm_wire_begin(&head, kind, sizes[kind]);
    memcpy(out, &head, sizeof head);
    return sizes[kind];
}
#endif
