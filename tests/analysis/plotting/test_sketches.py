"""Sketches that a block brings: boxes whose groups have a shade; others are drawn by the block's mask."""

import json

import pytest

from analysis.plotting.sketches import GROUPS, PATHS, Box, path


def own(group: object) -> str:
    return json.dumps([["x"], [["a", group]], ["y"]])


@pytest.mark.parametrize("group", [None, 0, GROUPS - 1])
def test_groups_that_have_a_shade_are_kept(group):
    assert path("causal", own(group)) == ((Box("x"),), (Box("a", group),), (Box("y"),))


@pytest.mark.parametrize("group", [GROUPS, -1, "1", 0.5])
def test_a_sketch_with_another_group_is_drawn_by_the_mask(group):
    assert path("causal", own(group)) == PATHS["causal"]
