#!/usr/bin/env bash
# Guess:      With `pytest -n 2 --dist loadgroup`, tests that are marked xdist_group run in one process, so that what they
#             set up is set up once.
# Seen with:  pytest-xdist 3.8.0 with pytest 9.1.1 and with pytest 9.2.0
# Behaviour:  xdist appends the group to a private attribute of a test, from which pytest made its node id until 9.1.
#             pytest 9.2 makes it from another: groups are dropped, without a warning, and tests spread over processes.
# Output:     pytest 9.1.1: processes 1; pytest 9.2.0: processes 2
# Matters:    A suite goes on passing and takes longer: models that a group trains once are trained in every process.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv

cat > test_group.py <<'PY'
import os
import time

import pytest

pytestmark = pytest.mark.xdist_group("one")


@pytest.mark.parametrize("number", range(8))
def test_process(number):
    time.sleep(0.2)
    with open("processes.txt", "a") as file:
        file.write(f"{os.getpid()}\n")
PY

for pair in "9.1.1 1" "9.2.0 2"; do
  read -r version expected <<< "$pair"
  venv/bin/python -m pip install --disable-pip-version-check -q pytest==$version pytest-xdist==3.8.0
  rm -f processes.txt
  venv/bin/python -m pytest -q -n 2 --dist loadgroup -p no:cacheprovider > /dev/null
  seen=$(sort -u processes.txt | wc -l)
  echo "pytest $version: processes $seen"
  test "$seen" = "$expected"
done
