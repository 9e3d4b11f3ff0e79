"""What a GPU would do with a host call, found out without one: compile its launches, count, and model the time.

stand_in     a GPU that is not there, as Triton and PyTorch see it
capture      the launches of a host call, compiled instead of run; the operators between them
compiler     a launch as machine code, kept in the cache by the content of what was compiled
ttir, control, traffic    Triton's intermediate code: how often what is executed, bytes, products
sass, counts              machine code: instructions a warp executes, by loop
model        counts -> milliseconds: a model, not a measurement
calls        the operations, ours and those of installed peers, at the sizes of published comparisons
account      all of this for one operation by one library
"""
