"""The typed schema of conf/: every key a user may set, its type and its default.

Composing, overriding and checking live in :mod:`headlab.compose`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING


@dataclass
class FilesConfig:
    """The user's own aligned text: ``train=corpus/train`` means ``corpus/train.en`` and ``corpus/train.ru`` or .gz."""

    train: str | None = None
    valid: str | None = None
    test: str | None = None


@dataclass
class DataConfig:
    """A corpus: where it comes from, how it is split, how many SentencePiece pieces it is cut into."""

    name: str = MISSING
    source: str = "package"  # package | files
    source_lang: str = MISSING
    target_lang: str = MISSING
    files: FilesConfig = field(default_factory=FilesConfig)
    valid_size: int = 800  # source=package only: the user's own splits are taken as they are
    test_size: int = 2000
    pieces: int = 4000  # SentencePiece BPE, one model for both languages
    seed: int = 1  # of the split; not the training seed, so that all seeds share one test set


@dataclass
class ModelConfig:
    """The shape of the Transformer."""

    name: str = MISSING
    encoder_layers: int = MISSING
    decoder_layers: int = MISSING
    heads: int = MISSING
    dim: int = MISSING
    ffn: int = MISSING
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.1
    norm: str = "pre"  # pre | post
    residual_init: str = "glorot"  # glorot | zero: of a sublayer's last matrix, so that it starts as the identity
    share_all_embeddings: bool = False


@dataclass
class OptimConfig:
    """How a base (or scratch) model is trained."""

    name: str = MISSING
    updates: int = MISSING
    algorithm: str = "adam"  # adam | muon: Muon for the matrices of the layers, Adam for all else
    adam_factor: float = 1.0  # with muon, the rate of what Adam updates, as a multiple of lr
    batch_tokens: int = 2048  # most tokens of a batch on either side, padding counted
    update_freq: int = 1
    lr: float = MISSING
    warmup: int = MISSING
    schedule: str = "inverse_sqrt"  # inverse_sqrt | cosine | linear
    final_lr: float = 0.0  # where cosine and linear end, as a fraction of lr
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-9
    weight_decay: float = 0.0
    label_smoothing: float = 0.1
    clip_norm: float = 1.0
    validate_every: int = 200  # updates between two measurements of the valid loss
    checkpoint_every: int = 200  # updates between two checkpoints to resume from
    log_every: int = 20
    # The checkpoint rule of every row of a table: the recorded model is the mean of several states,
    average: int = 5  # this many
    average_every: int = 10  # this many updates apart (rule last)
    average_rule: str = "last"  # last, or best: of those that valid was measured on


@dataclass
class L0Config:
    """Stochastic L0 gates (Voita et al. 2019); constants of the released code."""

    penalty: float | None = None  # lambda per target token and head: Voita's protocol, the count is emergent
    init: str = "open"  # open: identity at evaluation; paper: Glorot-uniform
    fold: str = "one"  # one: kept heads get gate 1; gate: fractional gates are folded into the weights
    lr: float = 0.1  # of log_a
    temperature: float = 0.33
    low: float = -0.1
    high: float = 1.1
    eps: float = 1e-6


@dataclass
class GhaConfig:
    """Grouped Head Attention with Voting-to-Stay (Ni et al. 2023)."""

    map: str = "V"  # V values | A attention weights | O outputs
    alpha: float = 0.5  # homogenises groups
    beta: float = 0.5  # diversifies them
    weighting: str = "per_token"  # per_token (paper) | as_released
    groups: int | None = None  # C while training; default: target / layers in scope, rounded up
    vote_groups: int | None = None  # C of the vote; default: as trained
    start: str = "random"  # random | base
    constraint: str = "first"  # first | second | both | none: the stages that have it
    vote: str = "per_group"  # per_group (paper) | per_layer (released code) | random_members | random_heads
    vote_epoch: int | None = None  # default: at the end of the base's schedule
    threshold: float | None = None  # vote once centres shift by less in an epoch, relative to their length
    lite: bool = False  # half the feed-forward width


@dataclass
class DspConfig:
    """Differentiable subset pruning (Li, Cotterell & Sachan 2021); lr and temperatures of their IWSLT setting."""

    relaxation: str = "soft"  # soft | straight_through | identity: straight-through as in the released code
    mode: str = "joint"  # joint | pipelined: the model is frozen while heads are selected
    lr: float = 0.2  # of the weights of heads
    start: float = 0.1  # temperature, falling geometrically ...
    end: float = 1e-8
    cooldown: float = 0.7  # ... over this share of the selection's updates


@dataclass
class RandomConfig:
    """A seeded random order of the heads; the rival every learned method has to beat."""

    seed: int | None = None  # default: the seed of the run


@dataclass
class GradientConfig:
    """Gradients with respect to a mask on the heads (Michel et al. 2019)."""

    per: str = "example"  # example (paper) | batch: what the absolute value is taken of
    normalise: bool = True  # by the L2 norm of each layer
    rounds: int = 1  # 10: a tenth of the heads at a time, scored anew after each


@dataclass
class LrpConfig:
    """Layer-wise relevance propagation from the top-1 logit (Voita et al. 2019)."""

    rule: str = "as_released"  # as_released | paper
    eps: float | None = None  # keeps denominators off 0; default: 1e-5 as released, 1e-12 for the paper's ratios


@dataclass
class MethodConfig:
    """Which method scores the heads, and its settings."""

    name: str = "l0"  # one of headlab.checks.METHODS
    l0: L0Config = field(default_factory=L0Config)
    gha: GhaConfig = field(default_factory=GhaConfig)
    dsp: DspConfig = field(default_factory=DspConfig)
    random: RandomConfig = field(default_factory=RandomConfig)
    gradient: GradientConfig = field(default_factory=GradientConfig)
    lrp: LrpConfig = field(default_factory=LrpConfig)


@dataclass
class PruneConfig:
    """Which counts to prune to and how long to train while and after doing so."""

    target: int | None = None  # one count ...
    targets: list[int] | None = None  # ... or several; exactly that many heads are kept within the scope
    scope: list[str] | None = None  # default: the method's own
    selection_updates: int = MISSING  # per target
    finetune_updates: int = MISSING  # after removal
    lr: float = MISSING  # peak of the continuation (selection, fine-tuning and control)
    warmup: int = MISSING  # the warm-up restarts
    batch_tokens: int | None = None  # of the continuation; default: as the base's
    schedule: str = "inverse_sqrt"  # inverse_sqrt | constant: one curve for all targets, whenever they branch off
    controls: list[str] = field(default_factory=lambda: ["control"])  # control | ght | scratch | lite1 | lite2
    rivals: dict[str, list[int]] = field(default_factory=dict)  # method -> targets, on equal updates
    untuned: bool = False  # a row of every pruned model before its fine-tuning too; costs its translations


@dataclass
class ScoreConfig:
    """Decoding and measuring: one setting for every row of a table."""

    beam: int = 4
    lenpen: float = 1.0
    batch_sentences: int = 128
    bootstrap: int = 1000
    speed_sentences: int = 200
    speed_rounds: int = 3


@dataclass
class MachineConfig:
    """What to run on; 'auto' is decided once from the machine and written down."""

    device: str = "auto"  # auto | cpu | cuda
    precision: str = "auto"  # auto | fp32 | bf16 | fp16
    threads: int | None = None
    devices: int = 1  # processes of data-parallel training
    jobs: int | None = None  # runs side by side, which share the threads; default: one per thread, 4 at most; 1 on GPUs


@dataclass
class LauncherConfig:
    """Where the cells of a sweep run, and how many of them at once."""

    name: str = "local"  # local | slurm
    parallel: int | None = None  # local default: one per thread, 4 at most, 1 on GPUs; slurm: all
    partition: str | None = None  # of slurm, as all that follows
    time: int = 1440  # minutes of a job; one that takes longer is queued again and goes on
    gpus: int = 1  # of a job
    cpus: int = 4  # of a job: the threads of its cell


@dataclass
class Config:
    """A whole run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    prune: PruneConfig = field(default_factory=PruneConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    seed: int = 1
    seeds: list[int] | None = None  # several seeds in one command, side by side
    variant: str = ""  # a label for rows; a fixed penalty adds its lambda=...
    base: str | None = None  # a run directory to start from instead of training a base
    ablation_of: str | None = None  # the folder of results whose seeds tell whether these differences are resolved
    results: str = "adhoc"  # the folder of results/ that rows go to; set by experiment=
    runs_dir: str = "runs"
    results_dir: str = "results"
    keep_checkpoints: bool = False
