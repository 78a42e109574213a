"""Pure models of allocators: events in, a `Timeline` out. One module per allocator.

    replay          walks a trace through any allocator
    blocks          blocks, pools of free ones and the driver's memory, for allocators that cache
    cpu             torch on the CPU: what is requested is what is allocated
    cuda_caching    torch on CUDA; read it top to bottom as the path of one allocation
    cuda_expandable its segments that grow, where `expandable_segments` is on
    settings        its settings, as PYTORCH_CUDA_ALLOC_CONF spells them
"""
