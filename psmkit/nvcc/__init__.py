"""``psm-nvcc``: a compiler driver in place of nvcc, for programs that run on emulated CUDA.

It compiles the host side of CUDA sources with the host compiler. A kernel becomes a stub that is registered with the emulated
runtime by its mangled name; ``<<<>>>`` becomes a launch of it. Device code is not compiled.
"""

from __future__ import annotations

__all__: list[str] = []
