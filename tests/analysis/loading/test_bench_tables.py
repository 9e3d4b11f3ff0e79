"""Tables of job=bench that cannot be read are no data, with the reason."""

from pathlib import Path

import pytest

from analysis.files import NoData
from analysis.loading.tables import read_bench


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        (b"", "cannot be read"),
        (b"a,b\n1,2\n3,4,5,6\n", "cannot be read"),
        (b"a\n\xff\xfe\n", "cannot be read"),
        (b"b\n1\n", "has no column a"),
    ],
)
def test_a_damaged_table_is_no_data(tmp_path: Path, content: bytes | None, reason: str):
    file = tmp_path / "steps.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NoData, match=f"steps.csv {reason}"):
        read_bench(file, ["a"], ["a"])


def test_what_is_no_number_is_missing(tmp_path: Path):
    (tmp_path / "steps.csv").write_text("a,b\n1,x\nfast,y\n")
    rows = read_bench(tmp_path / "steps.csv", ["a"], ["a"])
    assert rows["a"].isna().tolist() == [False, True]
    assert rows["b"].tolist() == ["x", "y"]
