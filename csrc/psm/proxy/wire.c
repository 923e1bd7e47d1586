/* Messages between proxies: encode, decode, reject. */
#include "proxy/wire.h"

#include <stdio.h>
#include <string.h>

static const struct {
    size_t size;
    const char *name;
} kinds_known[] = {
    [PSM_WIRE_HELLO] = {sizeof(struct psm_wire_hello), "hello"},
    [PSM_WIRE_REQUEST] = {sizeof(struct psm_wire_request), "request"},
    [PSM_WIRE_RESPONSE] = {sizeof(struct psm_wire_response), "response"},
    [PSM_WIRE_BYE] = {sizeof(struct psm_wire_bye), "bye"},
    [PSM_WIRE_FD_ASK] = {sizeof(struct psm_wire_fd_ask), "fd request"},
    [PSM_WIRE_FD_ANSWER] = {sizeof(struct psm_wire_fd_answer), "fd answer"},
};
enum { KINDS = sizeof kinds_known / sizeof *kinds_known };

void psm_wire_begin(struct psm_wire_head *head, enum psm_wire_kind kind, size_t size)
{
    *head = (struct psm_wire_head){PSM_WIRE_MAGIC, PSM_WIRE_VERSION, (uint16_t)kind, (uint32_t)size, 0};
}

/* Arguments of printf are int-sized here, whatever the size of the field. */
#define REFUSE(status, ...) return snprintf(text, PSM_WIRE_TEXT, __VA_ARGS__), (status)

static psm_status check_head(const void *bytes, size_t size, unsigned kinds, struct psm_wire_head *head, char *text)
{
    if (size < sizeof *head)
        REFUSE(PSM_ERR_PROTOCOL, "bad message of %zu bytes, expected at least %zu", size, sizeof *head);
    memcpy(head, bytes, sizeof *head);
    if (head->magic != PSM_WIRE_MAGIC)
        REFUSE(PSM_ERR_PROTOCOL, "bad magic 0x%08x of a message, expected 0x%08x: the sender is no proxy of libpsm",
               head->magic, PSM_WIRE_MAGIC);
    if (head->version != PSM_WIRE_VERSION)
        REFUSE(PSM_ERR_VERSION, "bad version %u of a message, expected %u: use the same libpsm in all ranks",
               head->version, PSM_WIRE_VERSION);
    if (head->kind == 0 || head->kind >= KINDS)
        REFUSE(PSM_ERR_PROTOCOL, "bad kind %u of a message, expected 1 to %d", head->kind, KINDS - 1);
    if (!(kinds & 1u << head->kind))
        REFUSE(PSM_ERR_PROTOCOL, "a message of kind %u (%s) is out of order, expected one of the kinds %#x", head->kind,
               kinds_known[head->kind].name, kinds);
    if (head->size != size)
        REFUSE(PSM_ERR_PROTOCOL, "bad size of a %s, %zu bytes: its head says %u", kinds_known[head->kind].name, size,
               head->size);
    if (size < kinds_known[head->kind].size)
        REFUSE(PSM_ERR_PROTOCOL, "bad %s of %zu bytes, expected at least %zu", kinds_known[head->kind].name, size,
               kinds_known[head->kind].size);
    return PSM_OK;
}

/* What follows the struct of a request or response. */
static psm_status check_body(const uint8_t *bytes, size_t size, struct psm_wire_message *m, char *text)
{
    size_t fixed = kinds_known[m->kind].size, payload = 0, reason = 0;
    if (m->kind == PSM_WIRE_REQUEST) {
        payload = m->request.req_size;
        if (m->request.resp_size > PSM_PROXY_PAYLOAD)
            REFUSE(PSM_ERR_PROTOCOL, "a request wants an answer of %u bytes, expected at most %d", m->request.resp_size,
                   PSM_PROXY_PAYLOAD);
        if (m->request.op_id == 0) REFUSE(PSM_ERR_PROTOCOL, "bad opId 0 of a request");
    } else if (m->kind == PSM_WIRE_RESPONSE) {
        payload = m->response.resp_size;
        reason = m->response.status < 0 ? sizeof m->reason : 0;
    }
    if (payload > PSM_PROXY_PAYLOAD)
        REFUSE(PSM_ERR_PROTOCOL, "bad %s with a payload of %zu bytes, expected at most %d", kinds_known[m->kind].name,
               payload, PSM_PROXY_PAYLOAD);
    if (size != fixed + payload + reason)
        REFUSE(PSM_ERR_PROTOCOL, "bad %s of %zu bytes, expected %zu for its payload of %zu", kinds_known[m->kind].name,
               size, fixed + payload + reason, payload);
    m->payload = payload ? bytes + fixed : NULL;
    m->payload_size = payload;
    if (reason) memcpy(&m->reason, bytes + fixed + payload, sizeof m->reason);
    return PSM_OK;
}

psm_status psm_wire_decode(const void *bytes, size_t size, unsigned kinds, struct psm_wire_message *message,
                           char text[PSM_WIRE_TEXT])
{
    struct psm_wire_head head;
    text[0] = 0;
    psm_status status = check_head(bytes, size, kinds, &head, text);
    if (status < 0) return status;
    message->kind = (enum psm_wire_kind)head.kind;
    message->payload = NULL;
    message->payload_size = 0;
    message->reason.stage[0] = message->reason.text[0] = 0;
    memcpy(&message->hello, bytes, kinds_known[head.kind].size);
    status = check_body(bytes, size, message, text);
    if (status < 0) return status;
    switch (message->kind) {
    case PSM_WIRE_HELLO:
        message->hello.service[sizeof message->hello.service - 1] = 0;
        break;
    case PSM_WIRE_BYE:
        message->bye.text[sizeof message->bye.text - 1] = 0;
        break;
    case PSM_WIRE_FD_ANSWER:
        message->fd_answer.text[sizeof message->fd_answer.text - 1] = 0;
        break;
    case PSM_WIRE_RESPONSE:
        message->reason.stage[sizeof message->reason.stage - 1] = 0;
        message->reason.text[sizeof message->reason.text - 1] = 0;
        break;
    case PSM_WIRE_REQUEST:
    case PSM_WIRE_FD_ASK:
        break;
    }
    return PSM_OK;
}

size_t psm_wire_encode_request(uint8_t *out, int type, uint64_t connection, uint64_t op_id, const void *req,
                               size_t req_size, size_t resp_size)
{
    struct psm_wire_request request = {.type = type,
                                       .req_size = (uint32_t)req_size,
                                       .resp_size = (uint32_t)resp_size,
                                       .connection = connection,
                                       .op_id = op_id};
    if (req_size > PSM_PROXY_PAYLOAD || resp_size > PSM_PROXY_PAYLOAD) return 0;
    size_t size = sizeof request + req_size;
    psm_wire_begin(&request.head, PSM_WIRE_REQUEST, size);
    memcpy(out, &request, sizeof request);
    if (req_size) memcpy(out + sizeof request, req, req_size);
    return size;
}

size_t psm_wire_encode_response(uint8_t *out, uint64_t op_id, const struct psm_error *error, const void *resp,
                                size_t resp_size)
{
    struct psm_wire_response response = {.op_id = op_id, .resp_size = (uint32_t)resp_size};
    size_t size = sizeof response + resp_size;
    if (resp_size > PSM_PROXY_PAYLOAD) return 0;
    uint32_t detail = 0;
    if (error && error->status < 0) {
        struct psm_wire_reason reason = {{0}, {0}};
        response.status = error->status;
        response.sys_errno = error->sys_errno;
        response.cuda = error->cuda;
        detail = error->detail;
        memcpy(reason.stage, error->stage, sizeof reason.stage);
        memcpy(reason.text, error->text, sizeof reason.text);
        memcpy(out + size, &reason, sizeof reason);
        size += sizeof reason;
    }
    psm_wire_begin(&response.head, PSM_WIRE_RESPONSE, size);
    response.head.detail = detail;
    memcpy(out, &response, sizeof response);
    if (resp_size) memcpy(out + sizeof response, resp, resp_size);
    return size;
}

const char *psm_proxy_type_name(int type)
{
    static const char *const names[] = {"Unknown", "Init", "SharedInit", "Setup",   "Connect",  "Start",     "Close",
                                        "Abort",   "Stop", "GetFd",      "QueryFd", "Register", "Deregister"};
    return type > 0 && type < (int)(sizeof names / sizeof *names) ? names[type] : names[0];
}
