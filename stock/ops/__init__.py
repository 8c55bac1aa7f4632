"""Operations that have a kernel on a GPU: plain torch here for a CPU, `kernels/` for CUDA.

This folder is the only place of the engine that imports kernels, and it does so on first use, so that a CPU needs
no Triton.  A kernel that is missing on a GPU is an error, never a slower path.
"""
