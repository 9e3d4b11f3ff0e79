"""Random prose, the same for the same arguments."""

import random

WORDS = "the of a layer state gate key value query mixes ends begins naïve 数据 über — 3.14".split()  # noqa: SIM905


def prose(n_paragraphs: int, seed: int = 0) -> str:
    """Paragraphs of random words, the same for the same arguments."""
    random_words = random.Random(seed)
    paragraphs = (
        " ".join(random_words.choices(WORDS, k=random_words.randint(20, 60))) + "."
        for _ in range(n_paragraphs)
    )
    return "\n\n".join(paragraphs) + "\n"
