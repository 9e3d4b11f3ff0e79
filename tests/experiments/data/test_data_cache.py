"""Cache folders: built once, whole or not at all, cleaned up after the dead."""

import fcntl
import json
import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import asdict
from pathlib import Path

import pytest

from experiments.data import fingerprint
from experiments.data.cache import build_once, store_fact
from zoo.errors import UserError

ROOT = Path(__file__).resolve().parents[3]


def whole(folder: Path) -> str | None:
    return None if (folder / "file").exists() else "no file"


def start(code: str, *arguments: str) -> subprocess.Popen:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_threads_that_ask_at_once_build_once(tmp_path):
    barrier, built = threading.Barrier(8), []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "file").write_text("x" * 100_000)

    def ask() -> None:
        barrier.wait()
        assert build_once(tmp_path, "key", build, whole) == tmp_path / "key"

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert os.listdir(tmp_path) == ["key"]


def test_a_failed_build_leaves_nothing_and_can_be_repeated(tmp_path):
    def fail(folder: Path) -> None:
        (folder / "file").write_text("half")
        raise RuntimeError("stopped half way")

    with pytest.raises(RuntimeError, match="half way"):
        build_once(tmp_path, "key", fail, whole)
    assert os.listdir(tmp_path) == []
    build_once(tmp_path, "key", lambda folder: (folder / "file").touch(), whole)
    assert os.listdir(tmp_path) == ["key"]


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path):
    for name in ("key.tmp-1", "other.tmp-2", "alive.tmp-3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with (tmp_path / "alive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build_once(tmp_path, "key", lambda folder: (folder / "file").touch(), whole)
    assert sorted(os.listdir(tmp_path)) == ["alive.lock", "alive.tmp-3", "key"]


def test_a_fact_that_cannot_be_put_in_place_leaves_nothing(tmp_path):
    (tmp_path / "fact.json").mkdir()
    store_fact(tmp_path / "fact.json", 1)
    assert os.listdir(tmp_path) == ["fact.json"]


def test_a_folder_that_cannot_be_made_is_a_user_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot make the cache folder .*/file/cache/key: Not a directory"):
        build_once(tmp_path / "file" / "cache", "key", lambda folder: None, whole)


FULL = """
    import json, resource, sys
    from experiments.data import DataConfig, fingerprint, prepare
    from zoo.errors import UserError
    cfg = DataConfig(**json.loads(sys.argv[1]))
    fingerprint(cfg)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
    try:
        prepare(cfg, progress=False)
    except UserError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_disk_that_takes_no_more_leaves_nothing(config, cache):
    process = start(FULL, json.dumps(asdict(config())))
    out, err = process.communicate(timeout=300)
    assert "cannot make the cache folder" in out, err
    assert "File too large" in out
    assert "data.cache_dir" in out
    assert os.listdir(cache / "corpora") == []


PREPARE = """
    import json, sys
    import experiments.data.corpus as module
    from experiments.data import DataConfig
    made, tokenise = [], module._tokenise
    def counted(*arguments):
        made.append(1)
        tokenise(*arguments)
    module._tokenise = counted
    corpus = module.prepare(DataConfig(**json.loads(sys.argv[1])), progress=False)
    print(json.dumps([len(made), corpus.fingerprint, int(corpus.splits["train"].tokens.sum())]))
"""


@pytest.mark.slow
def test_processes_that_ask_at_once_tokenise_once(config, cache):
    cfg = config(tokenizer="bpe", vocab_size=500)
    key = fingerprint(cfg)
    (cache / "corpora").mkdir(parents=True)
    # Holding the lock ourselves until both wait for it makes them ask at once for certain.
    with (cache / "corpora" / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        processes = [start(PREPARE, json.dumps(asdict(cfg))) for _ in range(2)]
        for process in processes:
            assert "waiting for another process" in process.stderr.readline()
    results = [process.communicate(timeout=300) for process in processes]
    counts, keys, sums = zip(*(json.loads(out) for out, _ in results), strict=True)
    assert sorted(counts) == [0, 1]
    assert set(keys) == {key}
    assert len(set(sums)) == 1
    assert os.listdir(cache / "corpora") == [key]


KILLED = """
    import json, os, signal, sys
    import experiments.data.corpus as module
    from experiments.data import DataConfig, prepare
    def die(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)
    module.token_dtype = die
    prepare(DataConfig(**json.loads(sys.argv[1])), progress=False)
"""


@pytest.mark.slow
def test_a_killed_process_costs_only_its_own_work(config, cache):
    from experiments.data import prepare

    process = start(KILLED, json.dumps(asdict(config())))
    process.communicate(timeout=300)
    assert process.returncode == -9
    assert any(".tmp-" in name for name in os.listdir(cache / "corpora"))
    corpus = prepare(config(), progress=False)
    assert os.listdir(cache / "corpora") == [corpus.fingerprint]
