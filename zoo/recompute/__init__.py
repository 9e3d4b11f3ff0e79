"""Activation recomputation: what a training step drops after its forward pass and computes again in its backward.

    none       nothing; but like selective, layer by layer, where fewer vectors than the n streams go from one to
               the next (zoo.residuals.factorised_streams)
    full       all inside a layer; saved are the streams between layers
    selective  cheap tensors: the norms, coefficients, maps, the inputs of sub-blocks and the streams after them, and an
               indexer's projections. Saved are the tensors of mixers' and channel mixers' own backward, their
               outputs, and what is carried to every group of √(rL/(n+2)) layers (r vectors a token, n streams inside, L
               layers)

Results are the same bit for bit. Autograd saves tensors through hooks here: in place of a dropped tensor it saves a
number, and when the backward asks for it, the computation runs once more from saved tensors and restores all of them.
Source: the OrthGSA document, "Selective Recomputation Strategy"; mHC (arXiv:2512.24880), its section on recomputing.
"""

from zoo.recompute.modes import MODES, Recompute, block_length

__all__ = ["MODES", "Recompute", "block_length"]
