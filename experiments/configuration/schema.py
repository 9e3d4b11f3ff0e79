"""The configuration schema: every key a person may set, its type and its default.

Made from the registry (`zoo.ModelConfig` has a node for every block) and registered with Hydra's ConfigStore; the
YAML files under conf/ overlay parts of it. A key that is not here is refused when the configuration is composed.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from hydra.core.config_store import ConfigStore

from experiments.configuration.sweep_config import SweepConfig
from experiments.data import TASKS, DataConfig
from experiments.data.config import OF_TEXT
from zoo import ModelConfig
from zoo.generate import CHUNK
from zoo.options import added


@dataclass
class OptimConfig:
    """AdamW with linear warm-up and cosine decay.

    lr: highest learning rate, reached after the warm-up.
    lr_min: learning rate at trainer.max_steps.
    lr_min_ratio: sets lr_min to this share of lr, 0 to 1, so that a sweep of rates keeps one shape of schedule (null:
        lr_min as it is). A run is named and recorded by the lr_min that it gives.
    lr_study: a published study (results/published/NAME/selection.csv), whose rate for this model becomes lr, with
        lr_min in its ratio to lr (null: lr as it is). A run is named by the rates that it gives.
    warmup_steps: optimiser steps of the warm-up.
    weight_decay: of projections, embeddings and what a block declares to decay; of nothing else.
    clip: largest gradient norm of a clipping group.
    beta1: AdamW's decay of the mean of gradients.
    beta2: AdamW's decay of the mean of squared gradients.
    eps: what AdamW adds to the root of the squared gradients' mean.
    """

    lr: float = 3e-3
    lr_min: float = 3e-4
    warmup_steps: int = 30
    weight_decay: float = 0.1
    clip: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    lr_min_ratio: float | None = added(None, before=None)
    lr_study: str | None = added(None, before=None)


@dataclass
class TrainerConfig:
    """The training of a run.

    max_steps: optimiser steps.
    tokens_per_parameter: sets max_steps so that a run trains on so many tokens for every parameter that the plain
        transformer of its size has beside the embedding; the same for all models of a size (null: max_steps as it is).
        A run is named and recorded by the max_steps that it gives.
    accumulate: micro-batches a step, whose losses are means over all of them together; several devices share them, so
        the number of devices has to divide it (with trainer.context the number of groups of devices).
    precision: auto (bf16 on GPUs, fp32 on CPUs), fp32 or bf16.
    log_every: steps between two metric rows.
    val_every: steps between two validations.
    checkpoint_every: steps between two checkpoints.
    val_tokens: tokens of the validation split that each validation during training uses (null: all; the final
        evaluation always uses the whole split).
    probe_every: steps between two probes of the model (`probe.*`); also at the last (null: never).
    patience: stop after that many validations without improvement (null: never).
    compile: torch.compile the model.
    threads: CPU threads.
    max_minutes: pause after so long, to be resumed by the same command (null: no limit).
    pause_at: pause at this step, to be resumed by the same command without it or with a later one (null: none).
    progress: show a progress bar.
    keep_checkpoints: keep checkpoints (weights and optimiser states) after a run has completed.
    keep_steps: steps whose weights are exported in addition to the best and the last, for probe.at.
    recompute: activations that the backward pass computes again to save memory: none, full (whole layers) or selective
        (residual arithmetic and indexers, see zoo.recompute).
    recompute_block: layers recomputed at once (null: the best by count).
    loggers: of "tensorboard", "wandb".
    devices: devices of a machine that train the run together, a process each. Like nodes, strategy and reshard no part
        of a run's identity.
    nodes: machines that train the run together (how they find each other: docs/devices.md).
    strategy: of several devices: ddp (a whole model on each), fsdp (a part of every parameter on each) or auto (ddp).
    context: devices that hold a sequence together, a contiguous shard each (docs/context.md); divides devices times
        nodes, and data.seq_len. No part of a run's identity either.
    reshard: of fsdp, free a layer's gathered parameters between its forward and its backward (ZeRO-3; false: ZeRO-2).
    """

    max_steps: int = 300
    accumulate: int = 1
    precision: str = "auto"
    log_every: int = 10
    val_every: int = 50
    val_tokens: int | None = 32768
    probe_every: int | None = None
    checkpoint_every: int = 50
    patience: int | None = None
    compile: bool = False
    threads: int = 1
    max_minutes: float | None = None
    pause_at: int | None = None
    progress: bool = True
    keep_checkpoints: bool = True
    keep_steps: list[int] = field(default_factory=list)
    recompute: str = "none"
    recompute_block: int | None = None
    loggers: list[str] = field(default_factory=list)
    tokens_per_parameter: float | None = None
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    context: int = 1
    reshard: bool = True

    @property
    def processes(self) -> int:
        """The number of processes that train a run together, one a device."""
        return self.devices * self.nodes


@dataclass
class EvaluateConfig:
    """The scoring of a run.

    stride: tokens by which the evaluation window moves (null: half of data.seq_len).
    windows: score only the first so many windows (null: the whole split). Words and bytes are then counted in
        proportion to the tokens.
    splits: which to score, of validation and test.
    batch_size: windows at once.
    carry: of job=evaluate, score every token with its whole history: no windows, the decode state is carried from chunk
        to chunk of the trained length (with data.pack=document, of batch_size documents at once).
    """

    stride: int | None = None
    splits: list[str] = field(default_factory=lambda: ["validation", "test"])
    batch_size: int = 16
    carry: bool = False
    windows: int | None = added(None, before=None)


@dataclass
class GenerateConfig:
    """The texts that job=generate continues, and sampling (zoo.generate).

    prompt: text to continue.
    prompts: several texts to continue, instead of prompt.
    file: a file of prompts, instead of prompt: one a line, or where its name ends in .jsonl the "prompt" of the object
        in every line; "-" reads lines from the standard input.
    batch_size: prompts at once.
    tokens: number of tokens to generate after each prompt.
    temperature: divides the logits; 0 takes the most likely token.
    top_k: sample among this many most likely tokens (null: all).
    top_p: sample among the most likely tokens whose probabilities add up to this (null: all).
    stop: stop sequences: a text ends before the first of these texts.
    stop_at_separator: a text ends where the model ends the document, with the tokenizer's separator.
    chunk: tokens of a prompt that are prefilled at once.
    out: a file for a JSON object a line: prompt, text, tokens, and whether a stop ended it (null: none).
    """

    prompt: str = "The "
    prompts: list[str] = field(default_factory=list)
    file: str | None = None
    batch_size: int = 16
    tokens: int = 100
    temperature: float = 0.8
    top_k: int | None = 50
    top_p: float | None = None
    stop: list[str] = field(default_factory=list)
    stop_at_separator: bool = False
    chunk: int = CHUNK
    out: str | None = None


@dataclass
class ProbeConfig:
    """Settings of job=probe; none of them is part of a run's identity.

    at: weights of the best validation loss (best), of the last step (last) or of a step by its number (null: what the
        run's own configuration says, or best). Models that reached their best at different steps are compared fairly
        at one.
    windows: held-out windows of the trained length that are probed.
    batch_size: windows at once.
    extrapolate: loss by position is recorded up to this multiple of the trained length.
    long_windows: number of windows of that length; the tokens in their second half are scored, the same at every
        position.
    sentence: text whose attention and routes are recorded, after the tokenizer's separator (null: the beginning of a
        held-out document).
    map_tokens: length of that beginning.
    routing_split: split over which loads and choices of routers are counted, validation or test (null: loads over the
        probed windows, first choices over the validation split).
    routing_tokens: tokens whose routing choices are counted (null: all of the split).
    prompts: texts that every model continues.
    tokens: number of tokens to generate after each prompt.
    temperature: divides the logits; 0 takes the most likely token.
    top_k: sample among this many most likely tokens (null: all).
    sample_seed: seed of the sampling, the same for every model.
    stream_energy: share of the residual streams' energy for which the job names the smallest rank to factorise them to.
    """

    at: str | None = None
    windows: int = 4
    batch_size: int = 4
    extrapolate: int = 8
    long_windows: int = 2
    sentence: str | None = None
    map_tokens: int = 48
    routing_split: str | None = None
    routing_tokens: int | None = 4096
    prompts: list[str] = field(default_factory=lambda: ["The ", "This function returns "])
    tokens: int = 40
    temperature: float = 0.8
    top_k: int | None = 50
    sample_seed: int = 0
    stream_energy: float = 0.99


@dataclass
class CostConfig:
    """The rows of job=cost.

    lengths: sequence lengths at which FLOPs a token and decode-state bytes are given.
    memory: bytes that training needs on each of trainer.devices times trainer.nodes devices with trainer.strategy, for
        micro-batches of data.batch_size sequences of data.seq_len tokens (of one model, not of a sweep).
    """

    lengths: list[int] = field(default_factory=lambda: [1024, 8192, 131072])
    memory: bool = False


@dataclass
class BenchConfig:
    """The measurements of job=bench.

    lengths: sequence lengths (null: the suite's own).
    tokens: suites kernels, models and steps, batch times length (null: the suite's own).
    cases: suites kernels, compile, static, models, mixers, steps, traffic and inference, beginnings of the names to
        measure (null: all; of inference none where there are runs).
    runs: suite inference, run folders, folders of runs, checkpoints or exported models to measure.
    repeats: timed repetitions after warm-up.
    pairs: suite harness, times that both loops, Lightning's and the bare one, are timed after each other.
    steps: suite harness, training steps of each of these loops.
    budget_s: time limit in seconds; kernels and models measure the rest the next time, others leave longer lengths out.
    target: suite static, the GPU to compile for: H200, H100 or A100; none needs to be there.
    out: folder for tables (null: results/bench).
    """

    lengths: list[int] | None = None
    tokens: int | None = None
    cases: list[str] | None = None
    runs: list[str] | None = None
    repeats: int = 5
    pairs: int = 10
    steps: int = 50
    budget_s: float = 400.0
    target: str = "H200"
    out: str | None = None


@dataclass
class CompareConfig:
    """Selection of each model's settings on the validation split by job=compare, and confirmation with other seeds.

    rates: values of optim.lr to select from, two or more.
    extend: rates tried beyond either end of them where the best is at that end, at most.
    grid: what else to select, as a sweep would be written: ["optim.weight_decay=0.01,0.1"].
    seeds: runs that confirm a model and are scored on the test split, with the seeds after the selection's (`seed`).
    selection_seeds: seeds that select, 1: `seed` alone; more: the two best settings of a model are trained with `seed`,
        `seed` + 1000, `seed` + 2000, ... too, and the lowest mean of validation losses is chosen.
    halving: train every setting of a model to a quarter of the steps, and only the better half of them (rounded up) to
        the end.
    models: what to compare instead of the model of the command, each a preset and keys below `model`, of which one may
        have several values: ["transformer", "kda_pure mixers.kda.head_width=4,8"]. Width, heads and depth are those of
        the command.
    longer: of a synthetic task, values of an option that makes its sequences longer than in training, "length=32,64":
        the runs that confirm a model are scored on the test split with each, too (lengths.csv in their folders).
    """

    rates: list[float] = field(default_factory=lambda: [1e-3, 3e-3, 1e-2])
    extend: int = 2
    grid: list[str] = field(default_factory=list)
    seeds: int = 3
    selection_seeds: int = 1
    halving: bool = False
    models: list[str] = field(default_factory=list)
    longer: str | None = None


@dataclass
class VerdictConfig:
    """The block that job=verdict judges, and the terms.

    relative: the block of the same kind to compare with beside the transformer's, or "none" (null: the most alike).
    lengths: sequence lengths at which sizes are counted and speeds measured.
    """

    relative: str | None = None
    lengths: list[int] = field(default_factory=lambda: [256, 1024])


@dataclass
class GpuConfig:
    """The stages of job=gpu.

    stage: one stage (null: all that are left).
    minutes: the time one stage may take.
    inputs: a folder with wikitext-103-raw-v1/, gpt2/ and train*.parquet for a machine without a network (files
        missing there come from the hub).
    rehearse: run every stage small on this machine, GPU or not, into results/gpu-rehearsal.
    target: with stage=compile on a machine without a GPU, the one to compile for: H200, H100 or A100.
    """

    stage: str | None = None
    minutes: float = 8.0
    inputs: str = ".gpu"
    rehearse: bool = False
    target: str | None = None


@dataclass
class Config:
    """The whole configuration: general keys, and a node for each part.

    job: the job to run (job=list names them).
    name: the experiment; its runs go to results/NAME (not report, published or verdict: these hold no runs).
    seed: of the weights, the order of batches and all noise, from 0 to 2^63 - 1.
    device: auto, cpu or cuda.
    results: folder of all results.
    run: a run folder or checkpoint (evaluate, generate), a run folder (probe), a cell's record (cell).
    runs: an experiment folder (report, probe, publish, claims). Jobs that read only one of run and runs refuse the
        other, and the rest both.
    baseline: job=compare, report and publish, the label of the model that others are compared with (null: the plain
        transformer).
    question: job=publish, the question of the study, in a sentence.
    figures: job=publish, names of figures.
    source: job=publish, where to get the text, if it has no public name.
    leave_out: job=publish, probe tables that are too large to commit.
    suite: job=bench, the suite to measure.
    block: job=verdict, the block to be judged: a mixer, a residual scheme or a channel mixer.
    show: job=list, the one part to print: tasks, mixers, presets, ... (null: all); `job=list tasks` is short for it.
    claims: job=claims, numbers of the claims to judge and compare with the published ledger (empty: all, to write it).
    dry: job=train, list the cells with their run folders and how far they are; job=compare and papers, print what the
        comparisons will cost; suite=kernels, print bytes, FLOPs and roofline times of the kernels. Nothing is trained
        or measured. Other jobs refuse it.
    match: what the model is to have as much of as the plain transformer, within 1 %: "params" (beside the embedding) or
        "flops" (a token's forward pass), by the channel mixer's hidden width; "state" (bytes of decode state), by the
        mixers' head widths; "state+params" or "state+flops": one after the other (null: widths as they are).
    match_length: tokens after which FLOPs and decode state are matched (null: data.seq_len).
    """

    given: ClassVar[frozenset[str]] = frozenset()
    """Keys that the command line set, of a configuration that `compose` made."""

    overrides: ClassVar[tuple[str, ...]] = ()
    """Words of the command line, and of an experiment's sweep, that `compose` made the configuration of."""

    job: str = "train"
    name: str = "default"
    seed: int = 0
    device: str = "auto"
    results: str = "results"
    run: str | None = None
    runs: str | None = None
    baseline: str | None = None
    question: str | None = None
    figures: list[str] = field(default_factory=list)
    source: str | None = None
    leave_out: list[str] = field(default_factory=list)
    suite: str = "harness"
    block: str | None = None
    show: str | None = None
    claims: list[int] = field(default_factory=list)
    dry: bool = False
    match: str | None = None
    match_length: int | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    compare: CompareConfig = field(default_factory=CompareConfig)
    verdict: VerdictConfig = field(default_factory=VerdictConfig)
    gpu: GpuConfig = field(default_factory=GpuConfig)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimiser step: batch_size · seq_len · accumulate."""
        return self.data.batch_size * self.data.seq_len * self.trainer.accumulate

    @property
    def nominal_vocabulary(self) -> int:
        """Vocabulary before the text is read, or the task's; a BPE trained on a tiny text may end up smaller."""
        return {"bytes": 257, "gpt2": 50257}.get(self.data.tokenizer, self.data.vocab_size)


def register() -> None:
    """Make the schema and `data=TASK` known to Hydra; must come before a configuration is composed."""
    ConfigStore.instance().store(name="schema", node=Config)
    for name in TASKS:
        ConfigStore.instance().store(group="data", name=name, node={"name": name, **OF_TEXT})
