"""Watch a real job: a sampler in a process of its own, and what a job says to it.

    recorder    starts the sampler: for a command, a pid, or from Python       (the user's process)
    marks       what a job says: instants and phases                           (the job's processes)
    sampler     the loop: lanes of readings, marks, exact peaks → run file     (its own process)
    tree        which processes there are
    processes   what one process holds, by /proc on kept file descriptors
    machine     what the system uses: memory, pressure, disk, network, energy
    gpu         what the GPUs report, through NVML
    listening   where marks arrive
    launch      the command, its signals and its end

The sampler's modules need the standard library only, psutil where there is no /proc.
"""
