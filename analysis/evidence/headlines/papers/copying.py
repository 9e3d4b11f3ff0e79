"""Headlines on copying and stacks: a decay per channel against one per head."""

from analysis.evidence.headlines.differences import beats
from analysis.evidence.headlines.headline_entries import Headline

KIMI = "Kimi Linear (arXiv:2510.26692), section 5.1"
RULE = "KDA: more right answers by a twentieth or more, with the whole interval, than with one decay a head"

HEADLINES = (
    Headline(
        11,
        "Does a decay per channel say a word backwards better than one per head?",
        KIMI,
        "KDA learns the palindrome faster and at longer lengths than Gated DeltaNet",
        RULE,
        beats("kimi_palindrome", "kda_pure", "kda_pure decay=head"),
        config="kimi_palindrome",
        differs="words of 12 of 16 items (paper: 256 to 2,048 tokens); 2 layers, width 64, all else of KDA equal; 600 "
        "steps",
    ),
    Headline(
        12,
        "Does a decay per channel follow stacks better than one per head?",
        KIMI,
        "KDA learns the stacks faster and at longer lengths than Gated DeltaNet",
        RULE,
        beats("kimi_stack", "kda_pure", "kda_pure decay=head"),
        config="kimi_stack",
        differs="10 operations on 2 stacks (paper: 64 stacks, 256 to 2,048 tokens); 2 layers of width 64; 600 steps",
    ),
)
