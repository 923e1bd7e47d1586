/* Graphs, executable graphs, captures and user objects. One lock guards all of them. It is never held while work is
 * submitted, while streams or events are released, or while the application's functions run: objects that end under the
 * lock are put aside and ended after it is released. */
#ifndef HC_GRAPH_H
#define HC_GRAPH_H

#include "stream/hc_stream.h"

/* The flag of cudaEventRecordWithFlags and cudaStreamWaitEvent that turns an event into a node during a capture. */
enum { HC_EVENT_EXTERNAL = 1 };

/* ---- what a node does ---- */

/* Work together with its argument. Immutable, so clones and running launches share it. */
struct hc_payload {
    unsigned references;
    struct hc_payload *next; /* link among the ended ones */
    struct hc_work work;     /* argument and node_parameters point behind this struct */
    _Alignas(16) unsigned char bytes[];
};
int hc_payload_new(const struct hc_work *work, struct hc_payload **payload); /* with one reference */
/* The same work with other node parameters; takes over the old payload on success. */
int hc_payload_describe(struct hc_payload **payload, const void *parameters, size_t size);
void hc_payload_put(struct hc_payload *payload); /* call it under the lock; accepts NULL */
/* A payload from a call that submits work to a stream: `call` gets a stream that collects its work. */
int hc_payload_record(int (*call)(cudaStream_t stream, void *context), void *context, struct hc_payload **payload);

/* ---- graphs ---- */

struct hc_node;
struct hc_sequence;
struct hc_user_object;

struct hc_edge {
    struct hc_node *node;
    CUgraphEdgeData data;
};
struct hc_edges {
    struct hc_edge *at;
    size_t n, room;
};

struct hc_node {
    uint64_t handle; /* 0: in the clone that a plan keeps */
    uint64_t origin; /* of a clone: handle of the node it was made from */
    struct hc_graph *graph;
    struct hc_node *next, *previous; /* in the order of creation */
    unsigned id;
    int type; /* enum cudaGraphNodeType */
    int device;
    bool disabled;              /* in plans: runs as an empty node */
    bool captured;              /* created by work on a stream: must be joined when the capture ends */
    size_t mark;                /* scratch field of algorithms that walk the graph */
    struct hc_payload *payload; /* NULL: nothing to run */
    CUevent event;              /* of event record and wait nodes */
    struct hc_graph *child;     /* of child graph nodes */
    struct hc_edges in, out;
};

struct hc_held { /* references to a user object */
    struct hc_user_object *object;
    unsigned long count;
    struct hc_held *next;
};

struct hc_graph {
    uint64_t handle;
    unsigned id;
    struct hc_node *first, *last;
    size_t n;
    unsigned next_id;
    struct hc_held *held;
    struct hc_sequence *sequence; /* captures into it now */
    struct hc_node *parent;       /* the child graph node that owns it */
    uint64_t exec;                /* its last executable graph */
};

void hc_graph_lock(void);
void hc_graph_unlock(void);

/* From here on: call under the lock. */
int hc_graph_find(cudaGraph_t handle, struct hc_graph **graph); /* NULL: INVALID_VALUE; dead: INVALID_HANDLE */
int hc_node_find(cudaGraphNode_t handle, struct hc_node **node);
int hc_graph_new(bool handle, struct hc_graph **graph);
void hc_graph_free(struct hc_graph *graph); /* including nodes, children and references to user objects */
int hc_graph_clone(const struct hc_graph *graph, bool handles, struct hc_graph **clone);
struct hc_node *hc_graph_find_origin(struct hc_graph *clone, uint64_t origin, bool deep);
/* Adds a node with its edges; on failure nothing has changed. */
int hc_node_new(struct hc_graph *graph, int type, const cudaGraphNode_t *dependencies, const CUgraphEdgeData *data,
                size_t n, struct hc_node **node);
void hc_node_free(struct hc_node *node); /* and its edges */
int hc_edge_add(struct hc_node *from, struct hc_node *to, CUgraphEdgeData data);
int hc_edge_remove(struct hc_node *from, struct hc_node *to, CUgraphEdgeData data);
bool hc_edge_plain(CUgraphEdgeData data);
/* 0 if `data` is valid on an edge between nodes of these types. */
int hc_edge_check(const struct hc_node *from, int to_type, CUgraphEdgeData data);
/* Whether the graph has nodes that allocate or free: it cannot be cloned or embedded, and is instantiated once at a
 * time. */
bool hc_graph_allocates(const struct hc_graph *graph);
/* Nodes in topological order, in a new array; INVALID_VALUE: there is a cycle, through *bad. */
int hc_graph_order(const struct hc_graph *graph, struct hc_node ***order, struct hc_node **bad);

/* ---- kinds of nodes (graph_node.c) ---- */

/* Shared by cudaGraphAdd*Node and cudaGraphExec*SetParams: what a node does. */
struct hc_recipe {
    int type;
    int device;
    struct hc_payload *payload;
    CUevent event;
};
int hc_recipe_copy(struct hc_recipe *recipe, const struct cudaMemcpy3DParms *p);
int hc_recipe_box(struct hc_recipe *recipe, const CUDA_MEMCPY3D *p, CUcontext context);
int hc_recipe_line(struct hc_recipe *recipe, void *dst, const void *src, size_t n, int kind);
int hc_recipe_fill(struct hc_recipe *recipe, const struct cudaMemsetParams *p, CUcontext context);
int hc_recipe_host(struct hc_recipe *recipe, void (*fn)(void *), void *argument);
int hc_recipe_event(struct hc_recipe *recipe, int type, CUevent event);
int hc_recipe_kernel(struct hc_recipe *recipe, const struct cudaKernelNodeParams *p);
int hc_recipe_kernel_driver(struct hc_recipe *recipe, const CUDA_KERNEL_NODE_PARAMS *p);
int hc_recipe_memory(struct hc_recipe *recipe, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p);
int hc_recipe_allocation(struct hc_recipe *recipe, struct cudaMemAllocNodeParams *p);
int hc_recipe_free(struct hc_recipe *recipe, void *address);
/* The same with the parameters of one function: made/hc_graph_nodes.c calls them, as api.def says. */
int hc_recipe_to_symbol(struct hc_recipe *recipe, const void *symbol, const void *src, size_t count, size_t offset,
                        int kind);
int hc_recipe_from_symbol(struct hc_recipe *recipe, void *dst, const void *symbol, size_t count, size_t offset,
                          int kind);
int hc_recipe_fill_runtime(struct hc_recipe *recipe, const struct cudaMemsetParams *p);
int hc_recipe_fill_driver(struct hc_recipe *recipe, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context);
int hc_recipe_host_runtime(struct hc_recipe *recipe, const struct cudaHostNodeParams *p);
int hc_recipe_host_driver(struct hc_recipe *recipe, const CUDA_HOST_NODE_PARAMS *p);
int hc_recipe_record(struct hc_recipe *recipe, cudaEvent_t event);
int hc_recipe_wait(struct hc_recipe *recipe, cudaEvent_t event);
/* The kinds whose parameters both APIs share: the union in cudaGraphNodeParams and CUgraphNodeParams. NOT_SUPPORTED:
 * another kind. */
int hc_recipe_same(struct hc_recipe *recipe, int type, void *parameters);
/* The three uses of a recipe; each takes over its payload, also on failure. `error` is the result of making the recipe:
 * it is passed on. */
int hc_recipe_add(int error, struct hc_recipe *recipe, cudaGraphNode_t *out, cudaGraph_t graph,
                  const cudaGraphNode_t *dependencies, const CUgraphEdgeData *data, size_t n);
int hc_recipe_set(int error, struct hc_recipe *recipe, cudaGraphNode_t node);
int hc_recipe_set_exec(int error, struct hc_recipe *recipe, cudaGraphExec_t exec, cudaGraphNode_t node);
int hc_recipe_child(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                    const CUgraphEdgeData *data, size_t n, cudaGraph_t child, bool move);

/* The same uses by the union of all parameters, which each API has of its own: cudaGraphNodeParams, CUgraphNodeParams.
 * NULL is INVALID_VALUE. */
typedef int hc_recipe_of(struct hc_recipe *recipe, void *params);
int hc_any_add(hc_recipe_of *of, void *params, cudaGraphNode_t *out, cudaGraph_t graph,
               const cudaGraphNode_t *dependencies, const CUgraphEdgeData *data, size_t n);
int hc_any_set(hc_recipe_of *of, void *params, cudaGraphNode_t node);
int hc_any_set_exec(hc_recipe_of *of, void *params, cudaGraphExec_t exec, cudaGraphNode_t node);

/* Takes and releases the lock. The parameters in the form of the requested size. */
int hc_node_parameters(cudaGraphNode_t handle, int type, void *out, size_t size);
int hc_node_event(cudaGraphNode_t handle, int type, CUevent *event);
int hc_node_same(cudaGraphNode_t handle, int type,
                 void *parameters); /* of the kinds of hc_recipe_same, and child graphs */

/* ---- plans: what an executable graph launches (graph_plan.c) ---- */

struct hc_step {
    const struct hc_node *node; /* NULL: an empty step around a child graph */
    unsigned chain;             /* which internal stream */
    unsigned first_dep, n_deps; /* in the plan's deps */
    bool leaf;
};
/* Immutable: a running launch keeps the plan it was started with, its clone of the graph, and so the clone's references
 * to user objects. */
struct hc_plan {
    unsigned references;
    struct hc_graph *graph;
    struct hc_step *steps;
    unsigned n, *deps, n_deps, chains;
    int *chain_device;
};
/* Takes the clone over on success. *bad: a node in a cycle. */
int hc_plan_new(struct hc_graph *clone, struct hc_plan **plan, struct hc_node **bad);
void hc_plan_put(struct hc_plan *plan);

struct hc_exec {
    unsigned references; /* references: the handle, and calls in progress */
    uint64_t handle;
    unsigned id;
    unsigned long long flags;
    struct hc_plan *plan;
    pthread_mutex_t launching;  /* held during a launch; taken before the lock of the graphs */
    struct hc_ticket last;      /* from here on: protected by `launching` */
    struct hc_stream **streams; /* one a chain */
    int *stream_device;
    unsigned n_streams;
};
int hc_exec_get(cudaGraphExec_t handle, struct hc_exec **exec); /* takes and releases the lock; held until put */
void hc_exec_put(struct hc_exec *exec);                         /* without the lock */
/* Changes the next launch: `change` gets a clone of the plan's graph, under the lock. */
int hc_exec_change(struct hc_exec *exec, int (*change)(struct hc_graph *clone, void *context), void *context);

/* ---- user objects (userobject.c) ---- */

struct hc_user_object {
    uint64_t handle;
    unsigned long callers, graphs; /* references, under the lock of the graphs */
    void (*destroy)(void *argument);
    void *argument;
    struct hc_user_object *next;
};

/* Under the lock. */
void hc_object_end_if_unused(struct hc_user_object *object);
struct hc_held **hc_held_link(struct hc_graph *graph, const struct hc_user_object *object); /* *it NULL: not held */
int hc_held_add(struct hc_graph *graph, struct hc_user_object *object, unsigned long count);
int hc_held_clone(const struct hc_graph *from, struct hc_graph *to);
void hc_held_drop(struct hc_graph *graph);
/* Without the lock: starts the destructors of objects that lost their last reference under it. */
struct hc_user_object *hc_objects_take_dead(void); /* under the lock */
void hc_objects_destroy(struct hc_user_object *dead);

/* ---- captures (capture.c) ---- */

/* The application itself made nodes unreachable: they need not be joined. */
void hc_node_forgive(struct hc_node *node);
/* Adds a node after everything that the stream has captured so far; NOT_CAPTURED if it is not capturing. */
int hc_capture_child(struct hc_stream *stream, const struct hc_graph *child); /* under the lock */
void hc_later_put_stream(struct hc_stream *stream); /* hc_stream_put after the lock is released */
#endif
