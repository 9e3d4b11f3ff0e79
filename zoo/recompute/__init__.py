"""Activation recomputation: what a training step drops after its forward pass and computes again in its backward.

    none       nothing
    full       all inside a layer; saved are the streams between layers
    selective  cheap tensors: the norms, coefficients, maps, the inputs of sub-blocks and the streams after them, and an
               indexer's projections. Saved are the tensors of mixers' and channel mixers' own backward, their
               outputs, and the streams before every group of √(nL/(n+2)) layers (n streams, L layers)

Results are the same bit for bit. Autograd saves tensors through hooks here: in place of a dropped tensor it saves a
number, and when the backward asks for it, the computation runs once more from saved tensors and restores all of them.
Source: the OrthGSA document, "Selective Recomputation Strategy"; mHC (arXiv:2512.24880), its section on recomputing.
"""

from zoo.recompute.modes import MODES, Recompute, block_length
from zoo.recompute.selective import run_recomputed, run_saved

__all__ = ["MODES", "Recompute", "block_length", "run_recomputed", "run_saved"]
