"""Static costs of kernels: a host call's launches compiled without a GPU, their instructions counted, times modelled.

gpus, fake_gpu            sizes of GPUs; one that is not there, for Triton and PyTorch to ask
capture, specialise       the launches of a host call, compiled instead of run
compiler, translate       a launch as machine code, kept in the cache by the content of what was compiled
tools, elf                what NVIDIA's tools say of a binary
ttir, slices, scalars     Triton's intermediate code, and the scalars that its loops and branches depend on
control, traffic          how often what is executed; bytes by argument, products
sass, counts              machine code: instructions a warp executes, by loop
model                     counts -> milliseconds: a model, not a measurement
operations, host_calls    ours and those of installed peers, at the sizes of published comparisons
kernel_rows, account      tables of all of this for one operation by one library
gpu_times                 times of a real GPU, where there is one
"""
