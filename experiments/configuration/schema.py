"""The configuration schema: every key a person may set, its type and its default.

The registry supplies the nodes of blocks (`zoo.ModelConfig`). The schema is registered with Hydra's ConfigStore; YAML
files under conf/ set parts of it. Composing a configuration refuses any key that is not here.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from experiments.data import SPLITS, TASKS, TOKENIZERS, DataConfig
from experiments.data.config import OF_TEXT
from experiments.optimisation import OPTIMIZERS, SCHEDULES
from experiments.system import paths
from zoo import ModelConfig
from zoo.generate import CHUNK
from zoo.matching import MATCHES
from zoo.options import added, limited
from zoo.recompute import MODES

HELD_OUT = ("validation", "test")
"""The splits that nothing is trained on."""

# `sweep`: how a sweep runs, and the settings of its engines.


@dataclass
class SlurmConfig:
    """Settings of sweep.engine=slurm: one job per cell.

    cluster: slurm, or local: processes of this machine instead of jobs, sweep.workers at a time, to try it out.
    partition: sbatch's --partition, the nodes that jobs may run on (null: the cluster's default).
    account: sbatch's --account, which the time is charged to (null: the cluster's default).
    qos: sbatch's --qos, the quality of service (null: the cluster's default).
    minutes: time limit of a job. A cell that needs longer resumes from its checkpoint in the same job, requeued.
    signal_s: seconds before the time limit at which a cell is told to stop; give more than the longest step with its
        validation and a checkpoint takes.
    requeues: how often a job may reach its time limit before its cell counts as paused (local: at most 5).
    cpus: processors of a job.
    gpus: GPUs of a job.
    memory_gb: memory of a job in GB (null: the cluster's default).
    setup: shell lines to run before the cell, such as "module load cuda".
    more: further sbatch options by their long names, such as ["constraint=a100", "exclude=node3"].
    jobs: largest number of jobs in the queue at once.
    poll_s: seconds between two checks of the queue.
    """

    cluster: str = limited("slurm", choices=("slurm", "local"))
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    minutes: float = limited(240.0, above=0, most=525_600)
    signal_s: int = limited(120, least=1, most=86_400)
    requeues: int = limited(20, least=0, most=1000)
    cpus: int = limited(1, least=1, most=65_536)
    gpus: int = limited(0, least=0, most=1024)
    memory_gb: float | None = limited(None, above=0, most=1e6)
    setup: list[str] = limited([], text=True)
    more: list[str] = field(default_factory=list)
    jobs: int = limited(100, least=1, most=100_000)
    poll_s: float = limited(5.0, above=0, most=3600)


@dataclass
class RayConfig:
    """Settings of sweep.engine=ray: one task per cell.

    address: address of the cluster: auto (the one this machine belongs to), HOST:PORT, or local (one on this machine
        that ends with the command).
    cpus: processors per cell.
    gpus: GPUs per cell.
    grows: whether the cluster adds nodes for waiting tasks (Ray's autoscaler). Otherwise cells that need more than any
        node has are refused.
    poll_s: seconds between two checks of the tasks.
    """

    address: str = "auto"
    cpus: float = limited(1.0, least=0, most=65_536)
    gpus: float = limited(0.0, least=0, most=1024)
    grows: bool = False
    poll_s: float = limited(1.0, above=0, most=3600)


@dataclass
class SweepConfig:
    """How a sweep runs; none of it is part of a run's identity.

    engine: what runs the cells: pool (processes of this machine), slurm, ray, or list (a file with a command per cell).
    workers: cells that train at the same time on this machine, one process each.
    action: wait (train, and wait for the cells), submit (hand them to slurm or ray and end), or cancel (end cells that
        earlier commands left with slurm or ray).
    retries: how often a cell whose process or node vanished is submitted again (slurm, ray).
    slurm: settings of engine=slurm.
    ray: settings of engine=ray.
    """

    workers: int = limited(2, least=1, most=1024)
    engine: str = limited("pool", choices=("pool", "slurm", "ray", "list"))
    action: str = limited("wait", choices=("wait", "submit", "cancel"))
    retries: int = limited(3, least=0, most=1000)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    ray: RayConfig = field(default_factory=RayConfig)


@dataclass
class StartConfig:
    """Weights that a run begins with, in the place of drawn ones (docs/hugging_face.md).

    weights: a run folder, or a published model's folder; the run has its model, its vocabulary and its tokenizer (null:
        weights are drawn from the seed).
    into: gsa: full attention becomes gated sparse attention, and the stream those of model.residual, with the same
        logits before the first step (null: the model stays the same).
    indexer: share of the steps, the first of all, in which indexers alone learn.
    gates: share of the steps, the next ones, in which gates and the coefficients of residual streams learn too.
    sha256: hash of the weights: filled in, and other weights are refused where it is given.
    vocab_size: the model's vocabulary, which may be larger than the tokenizer's: filled in.
    """

    weights: str | None = None
    into: str | None = limited(None, choices=("gsa",))
    indexer: float = limited(0.0, least=0, below=1)
    gates: float = limited(0.0, least=0, below=1)
    sha256: str | None = None
    vocab_size: int | None = limited(None, least=1, most=1 << 24)


@dataclass
class OptimConfig:
    """The optimiser, and its learning rate: linear warm-up, then a decay.

    name: adamw, or muon: Muon for the matrices of layers, AdamW for the rest, at one rate.
    schedule: cosine, linear, wsd (lr until the last decay_share of training) or constant (lr_min is not used).
    decay_share: with schedule=wsd, the share of the steps after the warm-up over which lr falls to lr_min.
    momentum: Muon's momentum, and that of an optimiser of one's own; adamw has beta1.
    lr: peak learning rate, reached after the warm-up.
    lr_min: final learning rate, at trainer.max_steps.
    lr_min_ratio: sets lr_min to this share of lr, 0 to 1, so that all rates of a sweep have the same schedule (null:
        keep lr_min). Names and records of runs hold the resulting lr_min.
    lr_study: a published study (results/published/NAME/selection.csv). Its rate for this model becomes lr, and lr_min
        keeps its ratio to lr (null: keep lr). Names of runs hold the resulting rates.
    warmup_steps: optimiser steps of the warm-up.
    weight_decay: weight decay of projections, embeddings and the parameters that a block declares; others have none.
    clip: gradient clipping: the largest norm of each group of gradients.
    beta1: AdamW's decay rate for the mean of gradients.
    beta2: AdamW's decay rate for the mean of squared gradients.
    eps: AdamW's epsilon, added to the root of the squared gradients' mean.
    """

    lr: float = limited(3e-3, above=0)
    lr_min: float = limited(3e-4, least=0)
    warmup_steps: int = limited(30, least=0)
    weight_decay: float = limited(0.1, least=0)
    clip: float = limited(1.0, above=0)
    beta1: float = limited(0.9, least=0, below=1)
    beta2: float = limited(0.95, least=0, below=1)
    eps: float = limited(1e-8, above=0)
    lr_min_ratio: float | None = added(None, before=None, least=0, most=1)
    lr_study: str | None = added(None, before=None)
    name: str = added("adamw", before="adamw", choices=lambda: list(OPTIMIZERS))
    schedule: str = added("cosine", before="cosine", choices=tuple(SCHEDULES))
    decay_share: float = added(0.2, before=0.2, above=0, most=1)
    momentum: float = added(0.95, before=0.95, least=0, below=1)


@dataclass
class TrainerConfig:
    """The training of a run.

    max_steps: optimiser steps.
    tokens_per_parameter: sets max_steps to train on this many tokens per parameter (without the embedding) of the plain
        transformer of the same size; equal for all models of a size (null: keep max_steps). Names and records of runs
        hold the resulting max_steps.
    accumulate: micro-batches per step; the loss is a mean over all of them together. Devices share them, so the number
        of devices must divide it (with trainer.context: the number of groups of devices).
    precision: auto (bf16 on GPUs, fp32 on CPUs), fp32 or bf16.
    log_every: steps between two metric rows.
    val_every: steps between two validations.
    checkpoint_every: steps between two checkpoints.
    val_tokens: tokens of the validation split that each validation during training uses (null: all; the final
        evaluation always uses the whole split).
    probe_every: steps between two probes of the model (`probe.*`); the last step is probed too (null: never).
    patience: early stopping after this many validations without improvement (null: never).
    compile: torch.compile the model.
    threads: CPU threads.
    max_minutes: pause after this time; the same command resumes (null: no limit).
    pause_at: pause at this step; the same command without it, or with a later step, resumes (null: none).
    progress: show a progress bar.
    keep_checkpoints: keep checkpoints (weights and optimiser states) after a run has completed.
    keep_steps: steps whose weights are kept beside the best and the last, for probe.at.
    recompute: activation checkpointing: what the backward pass computes again to save memory: none, full (whole layers)
        or selective (residual arithmetic and indexers, see zoo.recompute).
    recompute_block: layers recomputed together (null: the number that needs the least memory).
    loggers: further loggers, "tensorboard", "wandb" or "mlflow", into the run folder (MLflow: to MLFLOW_TRACKING_URI,
        where that is set). They have the metric rows, the configuration, and the summary's figures.
    devices: devices per machine that train the run together, one process each. Not part of a run's identity; nor are
        nodes, strategy and reshard.
    nodes: machines that train the run together (docs/devices.md says how they connect).
    strategy: with several devices: ddp (a whole model on each), fsdp (a part of every parameter on each) or auto (ddp).
    context: devices that share a sequence, one contiguous shard each (docs/context.md); must divide devices times
        nodes, and data.seq_len. Not part of a run's identity.
    reshard: with fsdp, free a layer's gathered parameters between its forward and backward (ZeRO-3; false: ZeRO-2).
    """

    max_steps: int = limited(300, least=1)
    accumulate: int = limited(1, least=1, most=65_536)
    precision: str = limited("auto", choices=("auto", "fp32", "bf16"))
    log_every: int = limited(10, least=1)
    val_every: int = limited(50, least=1)
    val_tokens: int | None = limited(32768, least=1)
    probe_every: int | None = limited(None, least=1)
    checkpoint_every: int = limited(50, least=1)
    patience: int | None = limited(None, least=1)
    compile: bool = False
    threads: int = limited(1, least=1, most=1024)
    max_minutes: float | None = limited(None, above=0)
    pause_at: int | None = limited(None, least=1)
    progress: bool = True
    keep_checkpoints: bool = True
    keep_steps: list[int] = limited([], least=1)
    recompute: str = limited("none", choices=MODES)
    recompute_block: int | None = limited(None, least=1)
    loggers: list[str] = limited([], choices=("tensorboard", "wandb", "mlflow"))
    tokens_per_parameter: float | None = limited(None, above=0)
    devices: int = limited(1, least=1, most=1024)
    nodes: int = limited(1, least=1, most=65_536)
    strategy: str = limited("auto", choices=("auto", "ddp", "fsdp"))
    context: int = limited(1, least=1)
    reshard: bool = True

    @property
    def processes(self) -> int:
        """The number of processes that train a run together, one per device."""
        return self.devices * self.nodes


@dataclass
class EvaluateConfig:
    """The scoring of a run.

    stride: tokens by which the evaluation window moves (null: half of data.seq_len).
    windows: score only this many first windows (null: the whole split). Words and bytes then count in proportion to
        the tokens.
    splits: splits to score: validation, test.
    batch_size: windows per batch.
    carry: job=evaluate: score every token with its whole history. Instead of windows, the decode state is carried from
        chunk to chunk of the trained length (with data.pack=document, for batch_size documents at once).
    """

    stride: int | None = limited(None, least=1)
    splits: list[str] = limited(["validation", "test"], choices=SPLITS)
    batch_size: int = limited(16, least=1, most=65_536)
    carry: bool = False
    windows: int | None = added(None, before=None, least=1)


@dataclass
class GenerateConfig:
    """The texts that job=generate continues, and sampling (zoo.generate).

    prompt: text to continue.
    prompts: several texts to continue, instead of prompt.
    file: a file of prompts, instead of prompt: one per line, or in a .jsonl file one object with "prompt" per line; "-"
        reads lines from standard input.
    batch_size: prompts per batch.
    tokens: number of tokens to generate after each prompt.
    temperature: divides the logits; 0 takes the most likely token.
    top_k: sample among this many most likely tokens (null: all).
    top_p: sample among the most likely tokens whose probabilities add up to this (null: all).
    stop: stop sequences; a text ends before the first of them.
    stop_at_separator: end a text where the model ends the document, with the tokenizer's separator.
    chunk: prompt tokens prefilled at once.
    out: a file for one JSON object per line: prompt, text, tokens, and whether a stop ended it (null: none).
    """

    prompt: str = limited("The ", text=True)
    prompts: list[str] = limited([], text=True)
    file: str | None = None
    batch_size: int = limited(16, least=1, most=65_536)
    tokens: int = limited(100, least=1, most=1 << 20)
    temperature: float = limited(0.8, least=0)
    top_k: int | None = limited(50, least=1)
    top_p: float | None = limited(None, above=0, most=1)
    stop: list[str] = limited([], text=True)
    stop_at_separator: bool = False
    chunk: int = limited(CHUNK, least=1, most=1 << 24)
    out: str | None = limited(None, check=paths.check_file)


@dataclass
class LmEvalConfig:
    """Settings of job=lm_eval; evaluate.batch_size, evaluate.stride and evaluate.carry count too (docs/runs.md).

    tasks: names of the harness's tasks or groups, with * for any characters.
    include: a folder with tasks of your own (YAML files), which may read local data.
    limit: only the first documents of each task: a number, or a share below 1 (null: all).
    fewshot: examples before each question (null: as each task says).
    """

    tasks: list[str] = field(default_factory=list)
    include: str | None = None
    limit: float | None = limited(None, above=0)
    fewshot: int | None = limited(None, least=0, most=1000)


@dataclass
class ProbeConfig:
    """Settings of job=probe; none of them is part of a run's identity.

    at: weights to probe: best validation loss (best), last step (last), or a step's number (null: as the run's own
        configuration says, or best). Models that reached their best at different steps are compared fairly at one step.
    windows: held-out windows of the trained length to probe.
    batch_size: windows per batch.
    extrapolate: loss by position is recorded up to this multiple of the trained length.
    long_windows: number of windows of that length. The tokens in their second half are scored, and the same tokens at
        every position.
    sentence: text whose attention and routes are recorded, after the tokenizer's separator (null: the beginning of a
        held-out document).
    map_tokens: length of that beginning in tokens.
    routing_split: split on which routers' loads and choices are counted, validation or test (null: loads on the probed
        windows, first choices on the validation split).
    routing_tokens: tokens whose routing choices are counted (null: the whole split).
    prompts: prompts that every model continues.
    tokens: number of tokens to generate after each prompt.
    temperature: divides the logits; 0 takes the most likely token.
    top_k: sample among this many most likely tokens (null: all).
    sample_seed: seed of the sampling, the same for every model.
    stream_energy: the job prints the smallest rank that keeps this share of the residual streams' energy.
    """

    at: str | None = None
    windows: int = limited(4, least=1)
    batch_size: int = limited(4, least=1, most=65_536)
    extrapolate: int = limited(8, least=1, most=1024)
    long_windows: int = limited(2, least=1)
    sentence: str | None = limited(None, text=True)
    map_tokens: int = limited(48, least=1, most=4096)
    routing_split: str | None = limited(None, choices=HELD_OUT)
    routing_tokens: int | None = limited(4096, least=1)
    prompts: list[str] = limited(["The ", "This function returns "], text=True)
    tokens: int = limited(40, least=1, most=1 << 16)
    temperature: float = limited(0.8, least=0)
    top_k: int | None = limited(50, least=1)
    sample_seed: int = limited(0, least=0)
    stream_energy: float = limited(0.99, above=0, most=1)


@dataclass
class CostConfig:
    """Settings of job=cost.

    lengths: sequence lengths at which to give FLOPs per token and decode-state bytes.
    memory: also give the bytes of training on each of trainer.devices times trainer.nodes devices (trainer.strategy),
        for micro-batches of data.batch_size sequences of data.seq_len tokens (one model, not a sweep).
    """

    lengths: list[int] = limited([1024, 8192, 131072], least=1, most=1 << 30)
    memory: bool = False


@dataclass
class BenchConfig:
    """Settings of job=bench.

    lengths: sequence lengths (null: the suite's own).
    tokens: suites kernels, models and steps: batch size times length (null: the suite's own).
    cases: suites kernels, compile, models, mixers, steps, profile, traffic, inference and harness: prefixes of the
        names to measure (null: all; for inference with runs: none; for profile: the configured model).
    runs: suite inference: run folders, folders of runs, checkpoints or exported models to measure.
    repeats: timed repetitions after warm-up.
    pairs: suite harness: how often to time its loops of training steps, in turns.
    steps: suite harness: training steps of each loop.
    budget_s: time limit in seconds; kernels, models and profile continue next time, others leave longer lengths out.
    target: suite compile: the GPU to compile for, H200, H100 or A100; it need not be present.
    out: folder for tables (null: results/bench).
    """

    lengths: list[int] | None = limited(None, least=1, most=1 << 24)
    tokens: int | None = limited(None, least=1, most=1 << 24)
    cases: list[str] | None = None
    runs: list[str] | None = None
    repeats: int = limited(5, least=1, most=10**6)
    pairs: int = limited(10, least=1, most=10**6)
    steps: int = limited(50, least=1, most=10**6)
    budget_s: float = limited(400.0, least=0, most=10**7)
    target: str = "H200"
    out: str | None = limited(None, check=paths.check_folder)


@dataclass
class CompareConfig:
    """Settings of job=compare, which selects on the validation split and confirms with other seeds.

    rates: learning rates (optim.lr) to select from, two or more.
    extend: largest number of rates to try beyond the lowest or highest one, if that is the best.
    grid: other hyperparameters to select, written as a sweep: ["optim.weight_decay=0.01,0.1"].
    seeds: confirming runs per model, scored on the test split, with the seeds after the selection's (`seed`).
    selection_seeds: number of seeds that select. 1: only `seed`. More: each model's two best settings also train with
        `seed` + 1000, `seed` + 2000, ..., and the lowest mean validation loss is selected.
    halving: train every setting for a quarter of the steps, and only each model's better half (rounded up) to the end.
    models: models to compare, each a preset and keys of `model`, one of which may have several values:
        ["transformer", "kda_pure model.mixers.kda.head_width=4,8"]. Width, heads and depth are the command's.
    longer: for a synthetic task, values of an option that lengthens its sequences, "length=32,64": confirming runs are
        also scored on the test split with each (lengths.csv in their folders).
    """

    rates: list[float] = limited([1e-3, 3e-3, 1e-2], above=0)
    extend: int = limited(2, least=0, most=16)
    grid: list[str] = field(default_factory=list)
    seeds: int = limited(3, least=1, most=1000)
    selection_seeds: int = limited(1, least=1, most=1000)
    halving: bool = False
    models: list[str] = field(default_factory=list)
    longer: str | None = None


@dataclass
class VerdictConfig:
    """Settings of job=verdict.

    relative: a block of the same kind to compare with besides the plain transformer, or "none" (null: most similar).
    lengths: sequence lengths at which to count sizes and measure speeds.
    """

    relative: str | None = None
    lengths: list[int] = limited([256, 1024], least=1, most=1 << 20)


@dataclass
class GpuConfig:
    """Settings of job=gpu.

    stage: run one stage (null: all that are left).
    minutes: time limit of a stage.
    inputs: a folder with wikitext-103-raw-v1/, gpt2/ and train*.parquet for a machine without a network (missing files
        come from the hub).
    rehearse: run every stage, small, on this machine, with or without a GPU, into results/gpu-rehearsal.
    target: stage=compile on a machine without a GPU: the GPU to compile for, H200, H100 or A100.
    plan: stage=short: a file of work with seconds and priorities (null: experiments/gpu/short.toml).
    """

    stage: str | None = None
    minutes: float = limited(8.0, above=0, most=525_600)
    inputs: str = ".gpu"
    rehearse: bool = False
    target: str | None = None
    plan: str | None = None


@dataclass
class Config:
    """The whole configuration: general keys, and one node per part.

    job: the job to run (job=list names them).
    name: name of the experiment; its runs go to results/NAME (not report, published or verdict: these folders hold no
        runs).
    seed: random seed of weights, batch order and all noise, from 0 to 2^63 - 1.
    device: auto, cpu or cuda.
    results: folder of all results.
    run: a run folder or checkpoint (evaluate, generate), a run folder (probe), a cell's record (cell).
    runs: an experiment folder (report, probe, publish, claims). A job refuses run or runs if it does not read it.
    baseline: job=compare, report and publish: the label of the baseline model (null: the plain transformer).
    question: job=publish: the question of the study, in one sentence.
    figures: job=publish: names of figures.
    source: job=import: the folder of the published model (from=FOLDER); job=publish: where to get the text, if it has
        no public name.
    out: job=export: the new folder.
    format: job=export: hf, Hugging Face's layout.
    family: job=export: the model_type to write: archzoo, or a published family (null: the family that computes the same
        as the model, or archzoo where there is none).
    push: job=export: ORG/NAME, the repository of the Hugging Face hub to upload the folder to (null: none).
    licence: job=export: the licence of the weights, as the hub names it, for the model card.
    leave_out: job=publish: probe tables that are too large to commit.
    suite: job=bench: the suite to measure.
    block: job=verdict: the block to judge: a mixer, a residual scheme or a channel mixer.
    blocks: folders with your own files of blocks or figures, which then work like those of this project. Only on the
        command line, as they are read before any configuration. The environment variable ARCHZOO_BLOCKS does the same,
        and so do entry points of the group archzoo.blocks of an installed package.
    show: job=list: print only one part: tasks, mixers, presets, ... (null: all); `job=list tasks` is short for it.
    claims: job=claims: numbers of claims to judge and compare with the published ledger (empty: judge all, write it).
    dry: train and measure nothing. job=train lists the cells with run folders, progress and tokens; job=compare,
        verdict and papers estimate the cost; suite=kernels prints bytes, FLOPs and roofline times of the kernels. Other
        jobs refuse it.
    match: give the model as much as the plain transformer has, within 1 %. "params" (without the embedding) and "flops"
        (a token's forward pass) set the channel mixer's hidden width; "state" (bytes of decode state) sets the mixers'
        head widths; "state+params" and "state+flops" do both in turn (null: keep widths).
    match_length: tokens after which FLOPs and decode state are matched (null: data.seq_len).
    """

    given: ClassVar[frozenset[str]] = frozenset()
    """Keys set on the command line; filled by `compose`."""

    job: str = "train"
    name: str = limited("default", check=paths.check_name)
    seed: int = limited(0, least=0, most=2**63 - 1)
    device: str = limited("auto", choices=("auto", "cpu", "cuda"))
    results: str = limited("results", check=paths.check_folder)
    run: str | None = None
    runs: str | None = None
    baseline: str | None = None
    question: str | None = limited(None, text=True)
    figures: list[str] = field(default_factory=list)
    source: str | None = None
    out: str | None = limited(None, check=paths.check_folder)
    format: str = limited("hf", choices=("hf",))
    family: str | None = None
    push: str | None = None
    licence: str | None = None
    leave_out: list[str] = field(default_factory=list)
    suite: str = "harness"
    block: str | None = None
    blocks: list[str] = field(default_factory=list)
    show: str | None = None
    claims: list[int] = field(default_factory=list)
    dry: bool = False
    match: str | None = limited(None, choices=MATCHES)
    match_length: int | None = limited(None, least=1)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    start: StartConfig = field(default_factory=StartConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    lm_eval: LmEvalConfig = field(default_factory=LmEvalConfig)
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
    def sizes(self) -> dict[str, int]:
        """What a model is made for: its vocabulary, before the text is read, and its length."""
        return {"vocab_size": self.nominal_vocabulary, "seq_len": self.data.seq_len}

    @property
    def nominal_vocabulary(self) -> int:
        """Vocabulary before the text is read, or the task's; a BPE trained on a tiny text may end up smaller."""
        d = self.data
        if self.start.vocab_size is not None:
            return self.start.vocab_size
        if d.tokenizer == "pretrained" and d.tokenizer_path is not None:
            return TOKENIZERS[d.tokenizer].spec(d)["vocab_size"]
        return {"bytes": 257, "gpt2": 50257}.get(d.tokenizer, d.vocab_size)


def register() -> None:
    """Make the schema and `data=TASK` known to Hydra; must come before a configuration is composed."""
    store = ConfigStore.instance()
    if "schema.yaml" not in store.repo:  # once a process: a quarter of what composing takes
        node = OmegaConf.structured(Config)
        OmegaConf.set_struct(node.model.variants, False)  # whose keys are names that a user chooses
        store.store(name="schema", node=node)
    for name in TASKS:
        store.store(group="data", name=name, node={"name": name, **OF_TEXT})
