"""Headlines on state tracking: negative eigenvalues, positions that depend on the data, a decay per channel."""

from analysis.evidence.headlines.differences import beats
from analysis.evidence.headlines.headline_entries import Headline

GRAZZI = "Grazzi et al. 2024 (arXiv:2411.12537)"
KIMI = "Kimi Linear (arXiv:2510.26692), section 5.1"
PATH = "PaTH (arXiv:2505.16381) and FoX (arXiv:2503.02130)"
FORMS = ("path_fox no forget_gate", "path_fox", "path_fox no householder", "transformer")
RULE = "more right answers by a twentieth or more, with the whole interval"
BY_CHANNEL = (
    "KDA: more right answers by a twentieth or more, with the whole interval, than with one decay a head"
)

HEADLINES = (
    Headline(
        1,
        "Does a delta rule need negative eigenvalues for parity?",
        GRAZZI,
        "eigenvalues in (−1, 1) solve parity, those in (0, 1) do not",
        f"KDA with neg_eigval: {RULE}, than without",
        beats("parity", "kda_pure neg_eigval", "kda_pure", longer=(48, 96)),
        config="parity",
        differs="24 bits in training and 96 in evaluation, every prefix asked for (paper: up to 40 and 256, asked "
        "once); one layer of KDA, width 64, 200 steps",
    ),
    Headline(
        2,
        "Does a delta rule need negative eigenvalues for words of swaps over S3?",
        GRAZZI,
        "one layer with eigenvalues in (−1, 1) follows swaps of a few points, one with those in (0, 1) does not",
        f"KDA with neg_eigval: {RULE}, than without",
        beats("s3", "kda_pure neg_eigval", "kda_pure", longer=(16, 32)),
        config="s3",
        differs="swaps of three points (paper: of five), words of 8 elements and tests of 32 (paper: longer "
        "ones); one layer, width 64, 1,200 steps",
    ),
    Headline(
        3,
        "Do PaTH's positions solve the flip-flop language where rotary ones do not?",
        PATH,
        "one layer of PaTH solves it; RoPE and FoX err",
        f"PaTH: {RULE}, than rotary positions",
        beats("path_flip_flop", FORMS[0], FORMS[3], beside=FORMS[1:3]),
        config="path_flip_flop",
        differs="16 instructions (paper: 256, and tests of rarer and longer gaps); one layer, width 64; "
        "300 steps",
    ),
    Headline(
        4,
        "Do PaTH's positions track items that are swapped, words over S5, where rotary ones do not?",
        PATH,
        "one layer of PaTH with two heads can follow swaps of five points; A5 takes fewer layers than RoPE or FoX need",
        f"PaTH: {RULE}, than rotary positions and than a forget gate alone",
        beats("path_tracking", FORMS[0], FORMS[3], FORMS[2], beside=FORMS[1:2], longer=(37, 69)),
        config="path_tracking",
        differs="8 swaps of five boxes and tests of 32, after each of which the item in one box is asked for (paper: "
        "words over all of A5, whose product is asked for); one layer, width 64, 3,000 steps",
    ),
    Headline(
        11,
        "Does a decay per channel say a word backwards better than one per head?",
        KIMI,
        "KDA learns the palindrome faster and at longer lengths than Gated DeltaNet",
        BY_CHANNEL,
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
        BY_CHANNEL,
        beats("kimi_stack", "kda_pure", "kda_pure decay=head"),
        config="kimi_stack",
        differs="10 operations on 2 stacks (paper: 64 stacks, 256 to 2,048 tokens); 2 layers of width 64; 600 steps",
    ),
)
