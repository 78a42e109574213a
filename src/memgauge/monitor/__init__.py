"""Watch a real job: a sampler in a process of its own, and what a job says to it.

    recorder    starts the sampler: for a command, a pid, or from Python       (the user's process)
    marks       what a job says: instants and phases                           (the job's processes)
    calling     how that finds a recording and gets there
    framework_memory        what torch's and TensorFlow's allocators say with a mark
    sampler     its parts put together, and the loop that waits for all        (its own process)
    launch      the command: how it starts, how signals reach it, how it ended
    lifetimes   the job's processes from joining to end, and with them the run's end
    endings     whether it was killed for lack of memory
    tree        which processes there are
    events      forks, execs and exits, told by the kernel
    system      how this system is read, chosen once:
      processes, machine    Linux's /proc, on kept file descriptors
      portable              psutil, elsewhere: fewer figures
    tracked     one process that is followed
    cgroup      the job's control group: the peak of the whole tree
    gpu, pcie, amd          what GPUs report, through NVML and amdsmi
    nvml        the same of one's own device, for a process that runs on it
    readings    what the lanes read of processes and machine, into columns
    devices     what the lanes read of GPUs, into columns
    lanes       when what is read, and what it may cost
    rounds      what each lane reads, in its order
    listening   where marks arrive
    peaks       exact highest values, of processes and of phases
    saving      header, transactions, a full disk, the end
    clock, notes, viewer: the run's time; what was missed; `--live`

On Linux the sampler's modules need the standard library only.
"""
