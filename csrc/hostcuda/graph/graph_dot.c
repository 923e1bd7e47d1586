/* cudaGraphDebugDotPrint: a graph in the format of Graphviz. */
#define _GNU_SOURCE
#include "graph/hc_graph.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const names[] = {"KERNEL",    "MEMCPY",     "MEMSET",       "HOST",        "GRAPH",
                                    "EMPTY",     "EVENT_WAIT", "EVENT_RECORD", "SEMA_SIGNAL", "SEMA_WAIT",
                                    "MEM_ALLOC", "MEM_FREE",   "BATCH_MEM_OP", "CONDITIONAL"};

static void print_parameters(FILE *out, const struct hc_node *node, unsigned flags)
{
    bool all = flags & cudaGraphDebugDotFlagsVerbose;
    const struct hc_work *work = node->payload ? &node->payload->work : NULL;
    const void *p = work ? work->node_parameters : NULL;
    if (p && node->type == cudaGraphNodeTypeMemcpy && (all || flags & cudaGraphDebugDotFlagsMemcpyNodeParams) &&
        work->node_parameters_size == sizeof(struct cudaMemcpy3DParms)) {
        const struct cudaMemcpy3DParms *c = p;
        fprintf(out, "|{src %p|dst %p|%zu x %zu x %zu}", c->srcPtr.ptr, c->dstPtr.ptr, c->extent.width,
                c->extent.height, c->extent.depth);
    }
    if (p && node->type == cudaGraphNodeTypeMemset && (all || flags & cudaGraphDebugDotFlagsMemsetNodeParams)) {
        const struct cudaMemsetParams *c = p;
        fprintf(out, "|{dst %p|value %u|%zu x %zu of %u B}", c->dst, c->value, c->width, c->height, c->elementSize);
    }
    if (p && node->type == cudaGraphNodeTypeHost && (all || flags & cudaGraphDebugDotFlagsHostNodeParams)) {
        const struct cudaHostNodeParams *c = p;
        fprintf(out, "|{fn 0x%lx|userData %p}", (unsigned long)(uintptr_t)c->fn, c->userData);
    }
    if (node->event && (all || flags & cudaGraphDebugDotFlagsEventNodeParams))
        fprintf(out, "|{event %p}", (void *)node->event);
    if (all || flags & cudaGraphDebugDotFlagsHandles) fprintf(out, "|{handle 0x%lx}", (unsigned long)node->handle);
}

static void print_graph(FILE *out, const struct hc_graph *graph, unsigned flags)
{
    fprintf(out, "subgraph cluster_%u {\nlabel=\"graph_%u\"\n", graph->id, graph->id);
    for (const struct hc_node *node = graph->first; node; node = node->next) {
        const char *name = (unsigned)node->type < sizeof names / sizeof *names ? names[node->type] : "UNKNOWN";
        fprintf(out, "\"graph_%u_node_%u\"[shape=record,label=\"{%u|%s", graph->id, node->id, node->id, name);
        print_parameters(out, node, flags);
        fprintf(out, "}\"];\n");
        if (node->child) print_graph(out, node->child, flags);
    }
    for (const struct hc_node *node = graph->first; node; node = node->next)
        for (size_t i = 0; i < node->out.n; i++)
            fprintf(out, "\"graph_%u_node_%u\" -> \"graph_%u_node_%u\";\n", graph->id, node->id, graph->id,
                    node->out.at[i].node->id);
    fprintf(out, "}\n");
}

/* Format the text under the lock, and write it without: the path may be a pipe. */
cudaError_t hc_cudaGraphDebugDotPrint(cudaGraph_t handle, const char *path, unsigned int flags)
{
    struct hc_graph *graph;
    char *text = NULL;
    size_t size = 0;
    if (!path) return PSM_CUDA_INVALID_VALUE;
    FILE *memory = open_memstream(&text, &size);
    if (!memory) return PSM_CUDA_OUT_OF_MEMORY;
    hc_graph_lock();
    int rc = hc_graph_find(handle, &graph);
    if (!rc) {
        fprintf(memory, "digraph dot {\n");
        print_graph(memory, graph, flags);
        fprintf(memory, "}\n");
    }
    hc_graph_unlock();
    if (fclose(memory) && !rc) rc = PSM_CUDA_OUT_OF_MEMORY;
    FILE *file = rc ? NULL : fopen(path, "we");
    if (!rc && !file) rc = PSM_CUDA_OPERATING_SYSTEM;
    if (file) {
        bool bad = fwrite(text, 1, size, file) != size;
        if (fclose(file) || bad) rc = PSM_CUDA_OPERATING_SYSTEM;
    }
    free(text);
    return rc;
}
