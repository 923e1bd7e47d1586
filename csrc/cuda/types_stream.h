/* CUDA types of one area (stream); see types.h for the rules. */
#ifndef PSM_CUDA_TYPES_STREAM_H
#define PSM_CUDA_TYPES_STREAM_H
#endif
