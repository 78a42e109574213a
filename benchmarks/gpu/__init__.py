"""The GPU suite: measure on this machine's CUDA device, and estimate the same beside it."""
