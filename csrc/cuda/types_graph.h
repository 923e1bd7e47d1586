/* CUDA types of one area (graph); see types.h for the rules. */
#ifndef PSM_CUDA_TYPES_GRAPH_H
#define PSM_CUDA_TYPES_GRAPH_H
#endif
