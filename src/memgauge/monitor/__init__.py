"""Watch a real job: a sampler in a process of its own, and what a job says to it.

    recorder    starts the sampler: for a command, a pid, or from Python       (the user's process)
    marks       what a job says: instants and phases                           (the job's processes)
    sampler     the loop: lanes of readings, marks, exact peaks → run file     (its own process)
    launch      the command, its signals and its end
    endings     whether it was killed for lack of memory
    tree        which processes there are
    processes   what one process holds, by /proc on kept file descriptors
    machine     what the system uses: memory, pressure, disk, network, energy
    cgroup      the job's control group: the peak of the whole tree
    gpu, amd    what the GPUs report, through NVML and amdsmi
    readings    what the lanes read of processes and machine, into columns
    devices     what the lanes read of GPUs, into columns
    listening   where marks arrive
    peaks       exact highest values, of processes and of phases
    lanes       when what is read, and what it may cost
    clock, notes, viewer: the run's time; what was missed; `--live`

The sampler's modules need the standard library only; they read Linux's /proc.
"""
