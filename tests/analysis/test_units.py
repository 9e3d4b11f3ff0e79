"""Numbers as people read them, at the borders between units; commands in advice survive a shell and Hydra."""

import math
import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from analysis import files
from analysis.files import word
from analysis.plotting.axes import bytes_text

SAID = {
    files.memory: (
        *((2**20, "1.00 MiB"), (10**6, "0.95 MiB"), (300 * 2**20, "300 MiB"), (1023 * 2**20, "1023 MiB")),
        *((2**30, "1.00 GiB"), (1536 * 2**20, "1.50 GiB"), (80 * 2**30, "80.0 GiB"), (None, "–")),
    ),
    files.engineering: (
        *((0, "0.00"), (9.994, "9.99"), (9.996, "10.0"), (99.94, "99.9"), (99.96, "100"), (999.4, "999")),
        *((999.6, "1.00k"), (12_345, "12.3k"), (460_000, "460k"), (1.4e6, "1.40M"), (137_710_080, "138M")),
        *((2.5e9, "2.50G"), (9.89e14, "989T"), (-2_000, "-2.00k"), (math.nan, "–")),
    ),
    files.number: (
        *((3.00249, "3.0025"), (9.99994, "9.9999"), (10.0, "10.00"), (-12.345, "-12.35"), (1234.5, "1,234")),
        *((2e7, "2e+07"), (math.inf, "∞"), (-math.inf, "−∞"), (None, "–")),
    ),
    files.duration: (
        *((12.34, "12.3 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (245, "4 min 05 s")),
        *((3599, "59 min 59 s"), (3600, "1 h 00 min"), (11_220, "3 h 07 min"), (None, "–")),
    ),
    bytes_text: (
        *((512, "512 bytes"), (1023, "1023 bytes"), (2**10, "1 KiB"), (1536, "1.5 KiB")),
        *(
            (1023 * 2**10, "1023 KiB"),
            (2**20, "1 MiB"),
            (2**30, "1 GiB"),
            (2**40, "1 TiB"),
            (2**50, "1024 TiB"),
        ),
    ),
}


@pytest.mark.parametrize(
    ("function", "value", "said"), [(name, *row) for name, rows in SAID.items() for row in rows]
)
def test_numbers_have_few_digits_and_the_largest_unit_that_leaves_one(function, value, said):
    assert function(value) == said


def test_shares_counts_and_lists():
    assert (files.percent(0.4567), files.percent(None)) == ("45.7 %", "–")
    assert (files.whole(1234.5), files.whole(1235.5), files.whole(math.nan)) == ("1,234", "1,236", "–")
    assert [files.listing(range(n), 3) for n in range(6)] == [
        *("none", "0", "0 and 1", "0, 1 and 2", "0, 1, 2 and 1 more", "0, 1, 2 and 2 more"),
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [(1.364, "+136.4%"), (-0.0934, "-9.3%"), (-0.9996, "-99.96%"), (-0.99998, "-99.998%"), (-1, "-100.0%")],
)
def test_all_of_something_is_missing_only_where_nothing_is_left(value, said):
    assert files.deviation(value) == said


HARD = [
    *("it's/b", 'q"x/b', "a,b", "(1)/x", "{b}=x", "[x]", " ends ", "1e3", "null", "true", "", "two\nlines"),
    *("a;b|c&d*?", "a${b}c", "\\${x}", "a\\\\${b}", "$HOME/x", "a\\", "a\\'b", 'a\\"b', "~/x", "é ü"),
]  # fmt: skip


@pytest.mark.parametrize("text", HARD)
def test_a_word_survives_the_shell_and_hydra(text: str):
    (override,) = shlex.split(word("runs", text))
    key, _, _ = override.partition("=")
    assert OmegaConf.create({key: OverridesParser.create().parse_override(override).value()}).runs == text


def test_what_needs_no_quotes_gets_none():
    assert word("runs", "results/my_sweep.2") == "runs=results/my_sweep.2"
    assert word("runs", "my results/a") == "'runs=my results/a'"
