"""What jobs print: help, lists, costs, comparisons, papers, verdicts, scores, texts; how commands end."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from hydra.errors import HydraException
from support.program import Lab
from support.recorded import check
from support.steady import changed, masked, pretended_machine, refusal, said, tiny_config, tiny_study

from experiments import cli, jobs
from experiments.configuration.compose import architectures, tell_other_model
from experiments.data import TASKS
from experiments.generation import Continuation, Speed
from experiments.jobs import (
    bench,
    cell,
    compare,
    cost,
    evaluate,
    generate,
    gpu,
    papers,
    probe,
    publish,
    report,
    train,
    verdict,
)
from experiments.jobs import list as list_job
from experiments.runs import RunFailed, RunPaused
from experiments.system import machine
from zoo import LanguageModel
from zoo import io as zoo_io
from zoo.errors import UserError

RECORDED = Path(__file__).parent / "recorded"


def names_by_section(printed: list[str]) -> Iterator[str]:
    """The first words of the lines of a section; examples of tasks are recorded with the tasks."""
    lines = [line.removeprefix("| ") for text in printed for line in text.splitlines()]
    for line in lines[: next(at for at, line in enumerate(lines) if "example of each" in line)]:
        if line:
            yield f"  {line.split()[0]}" if line.startswith(" ") else line


def test_help_and_lists(lab: Lab):
    """What each job reads and needs, which --help tells too; the names that job=list has."""

    def lines() -> Iterator[str]:
        help_lines = cli.describe_jobs().splitlines()
        for job in jobs.all_jobs():
            (place,) = (at for at, line in enumerate(help_lines) if line.split()[0] == job.name)
            assert job.needs in " ".join(help_lines[place : place + 2])
            yield f"{job.name}: reads {job.reads}, sweeps {job.run_sweep is not None}, needs {job.needs!r}"
        with said() as printed:
            list_job.run(tiny_config())
        yield from names_by_section(printed)
        yield refusal(jobs.find_job, "trian")
        yield list_job.drawn_example(TASKS["palindrome"], 30)

    check(RECORDED / "help_and_list.txt", lines())


def test_what_is_handed_to_analysis(tmp_path: Path, monkeypatch):
    """What jobs ask of analysis, with which settings, and what they print."""
    import analysis
    from analysis import ResultsError, publishing
    from analysis.verdict_page import page as verdict_page

    log: list[str] = []
    monkeypatch.setattr(verdict, "judge", lambda configs: None)

    def pretended(name: str, found):
        def call(*arguments, **options):
            words = [str(x) for x in arguments] + [f"{key}={value}" for key, value in options.items()]
            log.append(f"{name}({', '.join(words)})")
            if isinstance(found, Exception):
                raise found
            return found

        return call

    def lines() -> Iterator[str]:
        study = tmp_path / "study"
        config = tiny_config(
            results=str(tmp_path), name="study", baseline="kda", sweep__workers=3, question="why?"
        )
        config = changed(config, figures=["a", "b"], source="there", leave_out=["maps"], block="kda")
        for failing in (False, True, False):
            loaded = ResultsError("no results") if failing else "results"
            monkeypatch.setattr(analysis, "load_results", pretended("load", loaded), raising=False)
            monkeypatch.setattr(
                analysis, "comparison_text", pretended("compare", "the comparison"), raising=False
            )
            monkeypatch.setattr(analysis, "write_report", pretended("report", "report.html"), raising=False)
            monkeypatch.setattr(publishing, "publish", pretended("publish", tmp_path / "place"))
            monkeypatch.setattr(verdict_page, "publish_verdict", pretended("publish verdict", None))
            monkeypatch.setattr(
                verdict_page, "write_verdict", pretended("verdict", tmp_path / "verdict" / "page.html")
            )
            monkeypatch.setattr(verdict_page, "lines", pretended("lines", ["a line"]))
            monkeypatch.setattr("experiments.system.machine.command", lambda: "python run.py")
            for job in (report, publish, verdict):
                for runs in (None, str(tmp_path / "other")):
                    log.clear()
                    with said() as printed, pretended_machine(None):
                        end = refusal(job.run, changed(config, runs=runs))
                    yield f"{job.JOB.name} {runs}: {end}"
                    yield from (f"  {line}" for line in [*log, *printed])
            (study / verdict_page.FOLDER).mkdir(parents=True, exist_ok=True)
            (study / "run").mkdir(exist_ok=True)
            (study / "run" / "summary.json").touch()
        log.clear()
        drawn = pretended("draw", ["x.svg"])
        monkeypatch.setattr("analysis.plotting.bench.draw_table", drawn)
        monkeypatch.setattr("analysis.figures.inference.draw_file", pretended("inference", ["y.svg"]))
        with said() as printed:
            bench.draw(Path("models.csv"))
        yield f"draw: {log} {printed}"

    check(RECORDED / "handed_to_analysis.txt", masked(list(lines()), {str(tmp_path): "<results>"}))


def test_costs():
    """One model's costs, several as a table, how numbers and bytes are written, memory of devices."""

    def lines() -> Iterator[str]:
        config = tiny_config(
            cost__lengths=[64, 1024], data__tokenizer="none", data__vocab_size=50, model__residual__name="ohc"
        )
        with said() as printed:
            cost.run(config)
            plain = changed(config, model__residual__name="add", cost__lengths=[64])
            cost.run_sweep(
                [
                    changed(plain, model=architectures(plain.model)[name])
                    for name in ("transformer", "kda_pure", "hypergraph")
                ]
            )
            cost.run_sweep([plain, changed(plain, model__depth=3)])
        yield from printed
        for size in (0, 1023, 1024, 8192, 104_857, 104_858, 2**20, 5 * 2**30):
            yield f"{size}: {cost.format_bytes(size)}"
        yield (
            f"{[cost.short(n) for n in (1000, 1024, 131072, 1536)]} "
            f"{[cost._millions(x) for x in (5.0, 123456.0, 9.99e7, 1e8, 2.5e9)]}"
        )
        for keys in (
            {"cost__lengths": []},
            {"match": "x"},
        ):
            yield f"{keys}: {refusal(cost._checked, changed(config, **keys))}"
        notes = cost._Notes()
        for length, counted in ((100, 100), (1000, 64), (5000, 512)):
            count = cost.FlopCount(3.0, counted)
            notes.add(length, count)
            yield f"{cost._mark(length, count)!r} {notes.counted_to}"
        with said() as printed:
            notes.print()
        yield from printed
        from experiments.costs import device_memory

        given = device_memory.DeviceMemory("ddp", "fp32", 10**9, 2 * 10**9, 3 * 10**9, 0, 5 * 10**8)
        with said() as printed, mock.patch.object(device_memory, "device_memory", return_value=given):
            cost.print_memory(
                changed(config, trainer__devices=2, trainer__nodes=3, trainer__recompute="full")
            )
        yield from printed

    check(RECORDED / "costs.txt", lines())


def test_ends_of_commands(monkeypatch):
    """The status and the line of every way in which a command ends."""

    def lines() -> Iterator[str]:
        for error in (
            None,
            RunFailed("2 of 3 cells failed"),
            RunPaused("paused"),
            UserError("no such\nthing"),
            HydraException("odd words"),
            BrokenPipeError(),
            OSError(errno.ENOSPC, "No space left on device", "a/b"),
            OSError(errno.EACCES, "Permission denied", "c"),
            KeyboardInterrupt(),
            cli.Terminated(),
            FileNotFoundError(errno.ENOENT, "No such file", "x", None, "y"),
        ):

            def perform(configs, error=error):
                if error is not None:
                    raise error

            monkeypatch.setattr(cli, "compose", lambda *_: [])
            monkeypatch.setattr(cli, "left_out", lambda *names: [f"a file of {names} is broken"])
            monkeypatch.setattr(cli, "perform", perform)
            monkeypatch.setattr(cli, "_drop_output", lambda: None)
            with said() as printed:
                status = cli.main()
            yield f"{type(error).__name__}: {status}"
            yield from printed
        monkeypatch.undo()
        log: list[str] = []
        together = jobs.Job(
            "pair",
            "",
            lambda config: log.append(f"one {config.seed}"),
            reads=("run",),
            run_sweep=lambda all_: log.append(f"all {len(all_)}"),
        )
        alone = jobs.Job("alone", "", lambda config: log.append(f"one {config.seed}"), reads=("runs", "dry"))
        monkeypatch.setattr(cli, "find_job", {"pair": together, "alone": alone}.get)
        base = tiny_config()
        for name, configs in (
            ("pair", [changed(base, job="pair", seed=1)]),
            ("pair", [changed(base, job="pair", seed=n) for n in (1, 2)]),
            ("alone", [changed(base, job="alone", seed=n) for n in (1, 2)]),
            ("dry", [changed(base, job="alone", dry=True)]),
            ("both", [changed(base, job="alone"), changed(base, job="pair")]),
        ):
            log.clear()
            cli.perform(configs)
            yield f"{name}: {log}"
        for job, keys in (
            ("pair", {"runs"}),
            ("pair", {"run"}),
            ("pair", {"dry"}),
            ("alone", {"run"}),
            ("alone", {"dry", "runs"}),
        ):
            given = changed(base, job=job)
            given.given = frozenset(keys)
            yield f"{job} {sorted(keys)}: {refusal(cli.perform, [given])}"

    check(RECORDED / "ends.txt", lines())


def test_errors_of_the_system():
    def lines() -> Iterator[str]:
        for number in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EFBIG,
            errno.EACCES,
            errno.EPERM,
            errno.EROFS,
            errno.ENOTDIR,
            errno.EEXIST,
            errno.EISDIR,
            errno.ELOOP,
            errno.EIO,
        ):
            yield f"{errno.errorcode[number]}: {machine.explain(OSError(number, 'said', 'file'))}"
        yield machine.explain(OSError(errno.EIO, "said", "first", None, "second"))
        yield machine.explain(OSError("only words"))
        yield machine.explain(OSError())
        yield repr(machine.one_line("a\n b\t\x1b[31mc  é\0"))

    check(RECORDED / "system_errors.txt", lines())


@pytest.fixture
def asked(tmp_path: Path):
    """Two models, without text to read."""
    config = tiny_study(tmp_path, compare__rates=[1e-3, 1e-2])
    return config, changed(config, model=architectures(config.model)["kda_pure"])


def test_comparisons(asked, monkeypatch, tmp_path: Path):
    """What is announced and what it costs, dry; what is selected, and refused."""
    plain, kda = asked
    monkeypatch.setattr(
        "experiments.compare.time_estimate.step_seconds",
        lambda config: 0.5 if config.model.pattern == "F" else 2.0,
    )

    def lines() -> Iterator[str]:
        for configs in ([plain], [plain, kda], [plain, changed(kda, data__name="palindrome")]):
            for keys in (
                {},
                {"compare__extend": 0},
                {"compare__halving": True, "compare__seeds": 2},
                *([{"compare__grid": ["optim.weight_decay=0,0.1"]}] if configs == [plain] else []),
            ):
                with said() as printed:
                    end = refusal(
                        compare.run_sweep, [changed(config, dry=True, **keys) for config in configs]
                    )
                yield f"{len(configs)} {keys}: {end}"
                yield from printed
        for configs in (
            [plain, changed(plain, seed=1)],
            [plain, changed(plain, optim__lr=1.0)],
            [plain, plain],
            [changed(plain, evaluate__splits=["validation"])],
            [changed(plain, compare__longer="size=3")],
            [changed(plain, compare__longer="length=64")],
            [changed(plain, compare__longer="vocab=99")],
            [changed(plain, compare__longer="length=64", data__name="pydocs")],
            [changed(plain, compare__models=["kda_pure mixers.kda.head_width=4,8", "x"])],
            [changed(plain, compare__models=["transformer", "kda_pure mixers.kda.head_width=4,8"])],
            [changed(plain, compare__rates=[1e-3])],
            [changed(plain, compare__rates=[1e-3, 1e-3])],
            [changed(plain, compare__rates=[0.0, 1.0])],
            [changed(plain, compare__extend=-1)],
            [changed(plain, compare__seeds=0)],
            [changed(plain, compare__halving=True, trainer__val_every=11)],
            [changed(plain, compare__grid=["a b"])],
            [changed(plain, compare__grid=["seed=1,2"])],
            [changed(plain, compare__grid=["optim.lr=1,2"])],
            [changed(plain, compare__grid=["optim.x=1"])],
            [changed(plain, compare__models=[""])],
        ):
            with said() as printed:
                end = refusal(compare.run_sweep, [changed(config, dry=True) for config in configs])
            yield end
            yield from printed
        best = SimpleNamespace(
            settings={"optim.lr": 0.003, "x": "y"}, planned=SimpleNamespace(title="kda seed 0")
        )
        means = {"loss": lambda trial: 1.23456, "runs": lambda trial: [trial]}
        for edge in ("", "lowest", "highest"):
            yield compare._chosen(SimpleNamespace(best=best, rates=[1e-3, 0.003], edge=edge, **means))
        one, two = (
            changed(plain, name=name, dry=True, compare__models=["transformer", "kda_pure"])
            for name in ("p_one", "p_two")
        )
        with said() as printed:
            papers.run_sweep([one, changed(two, trainer__max_steps=4000)])
        yield from printed
        for configs in ([one, one], [changed(one, compare__models=[])]):
            yield refusal(papers.run_sweep, configs)

    check(RECORDED / "comparisons.txt", masked(list(lines()), {str(tmp_path): "<results>"}))


def test_verdicts(tmp_path: Path, monkeypatch):
    """Which models a verdict compares, its words, when it ends early, what is refused."""
    from experiments.verdict import verdict_stages

    def lines() -> Iterator[str]:
        base = tiny_config(results=str(tmp_path))
        done: list[str] = []
        for name in ("measure_sizes", "measure_speeds"):
            monkeypatch.setattr(
                verdict_stages, name, lambda folder, config, found, name=name: done.append(name)
            )
        monkeypatch.setattr(
            verdict, "_compare", lambda configs, models: done.append(f"compare {len(configs)} {list(models)}")
        )
        monkeypatch.setattr(verdict, "_probe", lambda config: done.append(f"probe {config.name}"))
        for failed in (0, 1):
            rows = [{"failed": "0"}, {"failed": str(failed)}, {"failed": "0"}]
            monkeypatch.setattr(verdict_stages, "check_contracts", lambda folder, block, rows=rows: rows)
            for block in ("kda", "moe", "ohc"):
                done.clear()
                with said() as printed, pretended_machine(None):
                    end = refusal(verdict.run_sweep, [changed(base, block=block)])
                yield f"{block} {failed}: {end} {done}"
                yield from printed
        for keys in (
            {},
            {"block": "attention"},
            {"block": "kad"},
            {"block": "kda", "verdict__relative": "moe"},
            {"block": "kda", "verdict__lengths": []},
            {"block": "kda", "verdict__lengths": [0]},
        ):
            yield f"{keys}: {refusal(verdict.run_sweep, [changed(base, **keys)])}"
        yield refusal(
            verdict.run_sweep, [changed(base, block="kda", name="x"), changed(base, block="mla", name="x")]
        )
        with pretended_machine(None):
            yield refusal(
                verdict.run_sweep,
                [changed(base, block="kda", verdict__lengths=[8], verdict__relative="none")],
            )
        yield f"{[verdict.named(changed(base, block='kda', name=name)).name for name in ('default', 'own')]}"

    check(RECORDED / "verdicts.txt", masked(list(lines()), {str(tmp_path): "<results>"}))


def test_a_verdict_compares_every_model_on_every_task_and_probes_those_runs(tmp_path: Path, monkeypatch):
    from experiments.verdict import verdict_stages

    compared, probed = [], []
    monkeypatch.setattr(verdict_stages, "open_verdict", lambda *_: tmp_path)
    monkeypatch.setattr(verdict_stages, "check_contracts", lambda *_: [{"failed": "0"}])
    for name in ("measure_sizes", "measure_speeds"):
        monkeypatch.setattr(verdict_stages, name, lambda *_: None)
    monkeypatch.setattr(compare, "compare", compared.extend)
    monkeypatch.setattr(probe, "run", probed.append)
    asked = tiny_study(tmp_path, name="default", block="kda", verdict__relative="none")
    verdict.judge([verdict.named(changed(asked, data__name=name)) for name in ("mqar", "palindrome")])
    assert [(config.data.name, config.model.pattern) for config in compared] == [
        ("mqar", "F"),
        ("mqar", "K"),
        ("palindrome", "F"),
        ("palindrome", "K"),
    ]
    assert [config.runs for config in probed] == [str(tmp_path / "verdict_kda")]


def test_a_killed_worker_of_the_probes_costs_its_run_and_no_other(monkeypatch):
    """The outcomes of the other runs are told, and the command says which one failed."""

    class Workers:
        def __init__(self, workers, context) -> None:
            assert workers == 2

        def submit(self, call, run, config) -> Future:
            ended: Future = Future()
            if run.name == "two":
                ended.set_exception(BrokenProcessPool())
            else:
                ended.set_result((run, "", ["measures"]))
            return ended

        def shutdown(self, cancel_futures: bool) -> None:
            pass

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(probe, "ProcessPoolExecutor", Workers)
    monkeypatch.setattr(probe.signals, "blocked", contextlib.nullcontext)
    found = probe._attempts([Path("one"), Path("two")], tiny_config(sweep__workers=9))
    assert sorted((run.name, problem, made) for run, problem, made in found) == [
        ("one", "", ["measures"]),
        ("two", "a worker was killed", []),
    ]


def test_texts_are_made_with_the_threads_of_the_command(monkeypatch):
    counts = []
    monkeypatch.setattr(generate.torch, "set_num_threads", counts.append)
    assert "which model?" in refusal(generate.run, tiny_config(trainer__threads=3))
    assert counts == [3]


def test_prompts_and_summaries(tmp_path: Path):
    def lines() -> Iterator[str]:
        base = tiny_config().generate
        for keys in (
            {},
            {"stop": ["a", ""]},
            {"out": str(tmp_path)},
            {"out": str(tmp_path / "no" / "x")},
            {"out": str(tmp_path / "x")},
        ):
            yield f"{keys}: {refusal(generate._check, changed(base, **keys))}"
        tokenizer = SimpleNamespace(bos_id=0, decode=lambda ids: "".join(chr(96 + i) for i in ids))
        made = [Continuation(tokenizer) for _ in range(2)]
        for token in (1, 2, 3):
            made[0].add(token)
        made[1].add(4)
        yield generate._line("prompt é", made[0]).strip()
        speed = Speed(2, 30, 0.5, 3, 6, 0.06)
        yield generate._summary(made, speed)
        yield generate._summary(made[:1], Speed(1, 30, 0.25, 5, 5, 0.1))
        yield generate._summary(made[:1], Speed(1, 30, 0.25))

    check(RECORDED / "generation.txt", masked(list(lines()), {str(tmp_path): "<place>"}))


def test_models_that_a_command_does_not_take(tmp_path: Path):
    config = tiny_config()
    model = LanguageModel(changed(config.model, preset="kda", pattern="K"), vocab_size=20, seq_len=16)
    zoo_io.export(model, tmp_path / "run")

    def lines() -> Iterator[str]:
        for given in (
            {"optim.lr"},
            {"model"},
            {"model.depth"},
            {"model.pattern", "model.d_model"},
            {"model.residual.name", "model.nothing"},
        ):
            asked_ = changed(config, run=str(tmp_path / "run"), job="evaluate", model__depth=5)
            asked_.given = frozenset(given)
            with said() as printed:
                tell_other_model(asked_)
            yield f"{sorted(given)}: {printed}"

    check(RECORDED / "other_models.txt", masked(list(lines()), {str(tmp_path): "<place>"}))


def test_a_model_from_before_an_option_has_what_it_was_trained_with(tmp_path: Path):
    """Its card lacks the option; its forget gates began at 0, where a new model's begin at 4."""
    config = tiny_config(model__pattern="M", job="evaluate", run=str(tmp_path / "run"))
    zoo_io.export(LanguageModel(config.model, vocab_size=20, seq_len=16), tmp_path / "run")
    card = json.loads((tmp_path / "run" / zoo_io.CARD).read_text())
    del card["model"]["mixers"]["mesanet"]["forget_bias"]
    (tmp_path / "run" / zoo_io.CARD).write_text(json.dumps(card))
    config.given = frozenset({"model.mixers.mesanet.forget_bias"})
    with said() as printed:
        tell_other_model(config)
    assert "stays as it was trained, with model.mixers.mesanet.forget_bias=0.0;" in " ".join(printed)


def test_words_of_smaller_jobs(tmp_path: Path, monkeypatch):
    """job=gpu, probe, train, cell and evaluate: their lines around the work."""

    def lines() -> Iterator[str]:
        base = tiny_config(results=str(tmp_path))
        yield refusal(gpu.run, base)
        ran: list[str] = []
        monkeypatch.setattr(
            gpu,
            "STAGES",
            {name: (lambda settings, name=name: (ran.append(name), name != "b")[1]) for name in "abc"},
        )
        ticks = iter(range(0, 1000, 7))
        monkeypatch.setattr(gpu.time, "monotonic", lambda: next(ticks))
        rehearsed = changed(base, gpu__rehearse=True)
        for stage in (None, None, "a", "x"):
            with said() as printed, pretended_machine(None):
                end = refusal(gpu.run, changed(rehearsed, gpu__stage=stage))
            yield f"{stage}: {end} {ran}"
            yield from printed
        runs = [tmp_path / name for name in ("one", "two", "three")]
        monkeypatch.setattr(probe, "find_runs", lambda config: (runs, ["x: failed"]))
        monkeypatch.setattr(probe, "is_probed", lambda run, settings: run.name == "one")
        monkeypatch.setattr(probe, "run_title", lambda run: f"title of {run.name}")
        monkeypatch.setattr(probe, "stream_rank", lambda run, energy: "rank 2" if run.name == "two" else "")
        outcomes = {"two": ["measures", "maps"], "three": UserError("no text")}

        def probe_run(run, config):
            found = outcomes[run.name]
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(probe, "probe_run", probe_run)
        for three in (UserError("no text"), ValueError("broken"), ["measures"]):
            outcomes["three"] = three
            for run in runs:
                (run / "probes").mkdir(parents=True, exist_ok=True)
            with said() as printed:
                end = refusal(probe.run, changed(base, sweep__workers=1))
            yield f"{three!r}: {end}, recorded {(runs[2] / 'probes' / 'failure.json').is_file()}"
            yield from printed
        summary = {
            "parameters": 12345,
            "best_step": 7,
            "data": {"test": "book (test)"},
            "metrics": {
                "test": {
                    "loss": 1.0,
                    "accuracy": 0.5,
                    "answers": 10,
                    "chance": 0.1,
                    "sequence_accuracy": 0.25,
                    "sequences": 4,
                }
            },
        }
        from experiments.runs import RunFolder

        folder = RunFolder(tmp_path / "one")
        folder.finish(summary)
        yield train._report(SimpleNamespace(folder=folder, title="m seed 0"))
        folder.finish({"parameters": None})
        yield refusal(train._report, SimpleNamespace(folder=folder, title="m seed 0"))
        yield refusal(cell.run, base)
        given = changed(base, run="r", data__name="text")
        for keys in (
            set(),
            {"data"},
            {"data.path"},
            {"data.name", "data.revision"},
            {"data.cache_dir"},
            {"data.seq_len"},
        ):
            given.given = frozenset(keys)
            loaded = SimpleNamespace(data=changed(base.data, name="wikitext2", path="own", train_path="t"))
            found = evaluate.named_text(given, loaded)
            yield f"{sorted(keys)}: {found and (found.name, found.path, found.train_path, found.revision)}"
        task = changed(base.data, name="mqar", tokenizer="none")
        scored: list = []
        monkeypatch.setattr(
            evaluate,
            "task_scores",
            lambda run, asked, *rest: (
                scored.append((asked.tasks.mqar.length, asked.tasks.mqar.pairs)),
                iter(()),
            )[1],
        )
        told: list = []
        monkeypatch.setattr(evaluate, "tell_other_model", lambda config: told.append(config.run))
        for keys in (
            set(),
            {"data.tasks.mqar.length"},
            {"data"},
            {"data.path"},
            {"data.tasks.parity.length"},
            {"data.cache_dir"},
        ):
            asked_ = changed(
                base, run="r", data__name="mqar", data__tasks__mqar__length=64, data__tasks__mqar__pairs=9
            )
            asked_.given = frozenset(keys)
            yield f"{sorted(keys)}: {refusal(evaluate._run_task, asked_, task)} {scored}"
        assert told == ["r"] * len(scored), "each that is scored says where the command names another model"

    check(RECORDED / "words.txt", masked(list(lines()), {str(tmp_path): "<results>"}))


def test_every_part_of_the_list_is_shown_by_its_own_word_and_alone(monkeypatch):
    """Each with the headings that it has in the whole list, in that order."""
    words = [
        *("mixers", "residuals", "channels", "presets", "sizes", "recipes", "experiments", "layouts"),
        *("data", "tasks", "tokenizers", "events", "measures", "jobs", "figures"),
    ]
    headings = {}
    for word in (None, *words):
        with said() as printed:
            list_job.run(tiny_config(job="list", show=word))
        lines = (line.removeprefix("| ") for line in printed)
        headings[word] = [line for line in lines if line and not line.startswith(" ")]
        assert headings[word]
    assert headings[None] == [line for word in words for line in headings[word]]
    assert headings["layouts"] == ["Layouts (model.pattern=)"]
