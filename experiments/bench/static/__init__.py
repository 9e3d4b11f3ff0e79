"""Static costs of kernels: a host call's launches compiled without a GPU, their instructions counted, times modelled.

gpus.py, fake_gpu.py               sizes of GPUs; one that is not there, for Triton and PyTorch to ask
capture.py, specialization.py      the launches of a host call, compiled instead of run
compiler.py, translate.py          a launch as machine code, kept in the cache by the content of what was compiled
tools.py, elf.py                   what NVIDIA's tools say of a binary
ttir.py                            Triton's intermediate code
program_slices.py, scalars.py      the scalars that its loops and branches depend on, and their values
control_flow.py                    how often each of its operations is executed
launch_traffic.py                  bytes that a launch moves, by argument; products
sass.py, counts.py                 machine code: instructions a warp executes, by loop
time_model.py                      counts -> milliseconds: a model, not a measurement
compared_operations.py             operations of ours and of installed peers, at the sizes of published comparisons
host_calls.py                      their calls on tensors
kernel_rows.py                     a table of all of this, a row a kernel;  operation_counts.py: sums of an operation
gpu_times.py                       times of a real GPU, where there is one
"""
