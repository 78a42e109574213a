"""Pure models of allocators: events in, a `Timeline` out.

Read first `replay` (how a trace is walked through any allocator), then `cuda_caching`
from top to bottom, as the path of one allocation.

    replay            the walk, and what out of memory looks like
    cpu               torch on the CPU: what is requested is what is allocated
    cuda_caching      torch on CUDA
    cuda_expandable   its segments that grow, where `expandable_segments` is on
    settings          its settings, as PYTORCH_CUDA_ALLOC_CONF spells them
    blocks            what it is made of: the driver's memory, blocks, pools of free blocks
    glibc             what the C library keeps resident under torch on the CPU
"""
