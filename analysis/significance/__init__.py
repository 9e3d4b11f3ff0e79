"""Statistics of a comparison: pure functions on arrays, for quantities of which less is better.

spread.py         deviations over seeds: pooled over models, or each one's own;  many_to_one.py: all against a baseline
ranks.py          which places a model may have;  sample_size.py: seeds that a difference needs, correlation by seed
documents.py      what the choice of the test documents adds;  distributions.py, dunnett.py: Student's t and its kin
intervals.py      means with intervals over seeds;  power_law.py: exponents of a loss against size

A sample is what the seeds of one model gave, [n]; models may have different numbers of seeds, and one is enough where
others have more. What holds for all models of a family together holds with the family's confidence, 95 %.
"""

from analysis.significance.documents import over_documents
from analysis.significance.many_to_one import against_baseline
from analysis.significance.ranks import rank_ranges
from analysis.significance.sample_size import power, seed_correlation, seeds_needed
from analysis.significance.spread import Spread, spread_of

__all__ = [
    "Spread",
    "against_baseline",
    "over_documents",
    "power",
    "rank_ranges",
    "seed_correlation",
    "seeds_needed",
    "spread_of",
]
