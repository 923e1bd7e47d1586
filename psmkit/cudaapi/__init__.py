"""The list of CUDA functions (csrc/cuda/api.def) for all who read it: psmkit.lab, and the build of the C code."""
