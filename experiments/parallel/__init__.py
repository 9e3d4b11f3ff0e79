"""One run on several devices: a process a device, started by torchrun, each with a model.

    group        devices and processes: who is the main one, what all agree on
    replicated   `ddp`: every process holds the whole model
    sharded      `fsdp`: every process holds a part of every parameter (FSDP2)
    checkpoint   checkpoints of sharded runs, which any number of processes can go on from

A step's micro-batches are those of one process, whatever the number of processes: of N processes the r-th takes
numbers r, r + N, r + 2N, ... of the step's trainer.accumulate. Gradients are summed, each loss a sum over the step's
count of answers (auxiliary: of sequences) in all processes. What is decided is decided by the main process, or from
numbers that all have in common.
"""
