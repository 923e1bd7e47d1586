/* Memory of plans: a stack of frames, and pools of objects on such a stack. Neither returns memory to the system before
 * its communicator ends: the next group reuses the memory of the last. */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define FORBID(address, bytes) ASAN_POISON_MEMORY_REGION(address, bytes)
#define ALLOW(address, bytes)  ASAN_UNPOISON_MEMORY_REGION(address, bytes)
#else
#define FORBID(address, bytes) ((void)(address), (void)(bytes))
#define ALLOW(address, bytes)  ((void)(address), (void)(bytes))
#endif

enum { ALIGNMENT = 16, BLOCK = 1 << 16 };

struct plan_block {
    struct plan_block *next;
    size_t size, used;
    _Alignas(ALIGNMENT) char bytes[];
};
struct plan_frame {
    struct plan_frame *below;
    struct plan_block *top;
    size_t used;
};

static void *take(struct plan_block *block, size_t bytes)
{
    void *memory = block->bytes + block->used;
    block->used += bytes;
    ALLOW(memory, bytes);
    return memory;
}

/* A block with room for `bytes`, after the top: one left by an earlier frame, or a new one. */
static struct plan_block *next_block(struct plan_stack *stack, size_t bytes)
{
    struct plan_block **place = stack->top ? &stack->top->next : &stack->blocks, *block = NULL;
    for (struct plan_block **at = place; *at; at = &(*at)->next)
        if ((*at)->size >= bytes) {
            block = *at;
            *at = block->next;
            break;
        }
    if (!block) {
        /* As much again as is held, to keep the number of blocks small. */
        size_t size = bytes > BLOCK ? bytes : BLOCK;
        if (size < stack->bytes) size = stack->bytes;
        size = (size + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
        if (size > SIZE_MAX - sizeof *block || !(block = malloc(sizeof *block + size))) return NULL;
        block->size = size;
        stack->bytes += size;
        FORBID(block->bytes, size);
    }
    block->used = 0;
    block->next = *place;
    return *place = block;
}

void *psm_plan_stack_alloc_raw(struct plan_stack *stack, size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGNMENT) return NULL;
    bytes = (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    if (!stack->top || stack->top->size - stack->top->used < bytes) {
        struct plan_block *block = next_block(stack, bytes);
        if (!block) return NULL;
        stack->top = block;
    }
    return take(stack->top, bytes);
}

void *psm_plan_stack_alloc(struct plan_stack *stack, size_t bytes)
{
    void *memory = psm_plan_stack_alloc_raw(stack, bytes);
    return memory ? memset(memory, 0, bytes) : NULL;
}

psm_status psm_plan_stack_push(struct plan_stack *stack)
{
    struct plan_block *top = stack->top;
    size_t used = top ? top->used : 0;
    struct plan_frame *frame = psm_plan_stack_alloc(stack, sizeof *frame);
    if (!frame)
        return psm_fail(
            PSM_ERR_NO_MEMORY, "plan", -1, -1, 0,
            "no memory for a frame of %zu bytes on a stack that holds %llu bytes: put fewer tasks into a group",
            sizeof *frame, (unsigned long long)stack->bytes);
    *frame = (struct plan_frame){.below = stack->frame, .top = top, .used = used};
    stack->frame = frame;
    stack->depth++;
    return PSM_OK;
}

void psm_plan_stack_pop(struct plan_stack *stack)
{
    struct plan_frame frame = *stack->frame;
    struct plan_block *over = frame.top ? frame.top->next : stack->blocks;
    if (frame.top) {
        FORBID(frame.top->bytes + frame.used, frame.top->used - frame.used);
        frame.top->used = frame.used;
    }
    /* Blocks after the old top are free; those after the current top were not used. */
    for (struct plan_block *block = over; block && frame.top != stack->top; block = block->next) {
        FORBID(block->bytes, block->used);
        if (block == stack->top) break;
    }
    stack->top = frame.top;
    stack->frame = frame.below;
    stack->depth--;
}

void psm_plan_stack_free(struct plan_stack *stack)
{
    for (struct plan_block *block = stack->blocks, *next; block; block = next) {
        next = block->next;
        ALLOW(block->bytes, block->size);
        free(block);
    }
    *stack = (struct plan_stack){0};
}

/* ---- pools ---- */

void *psm_plan_pool_alloc_raw(struct plan_pool *pool)
{
    void *object = pool->free;
    if (object) {
        ALLOW(object, pool->size);
        memcpy(&pool->free, object, sizeof pool->free);
    } else {
        if (!(object = psm_plan_stack_alloc_raw(pool->stack, pool->size))) return NULL;
        pool->total++;
    }
    pool->live++;
    return object;
}

void *psm_plan_pool_alloc(struct plan_pool *pool)
{
    void *object = psm_plan_pool_alloc_raw(pool);
    return object ? memset(object, 0, pool->size) : NULL;
}

void psm_plan_pool_free(struct plan_pool *pool, void *object)
{
    memcpy(object, &pool->free, sizeof pool->free);
    pool->free = object;
    pool->live--;
    FORBID(object, pool->size);
}
