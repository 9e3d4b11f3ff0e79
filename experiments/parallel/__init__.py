"""One run on several devices: torchrun starts a process for each device, each with a model.

group.py       devices and processes: who is the main one, and what all agree on
strategies.py  `ddp`: every process holds the whole model; `fsdp`: a part of every parameter
checkpoint.py  checkpoints of sharded runs, from which any number of processes can go on

A step's micro-batches are those of one process, whatever the number of processes: of N processes the r-th takes
numbers r, r + N, r + 2N, ... of the step's trainer.accumulate. Gradients are summed; each loss is a sum over the
step's count of answers (auxiliary: of sequences) in all processes. Decisions are taken by the main process, or from
numbers that all processes have.
"""
