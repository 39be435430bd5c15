from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

import pytest

from headlab.checks import CHOICES, RANGES, groups_of, label_of, scope_of
from headlab.compose import compose, compose_for_run, config_dir, groups, keys, load_config, nearest, save_config
from headlab.errors import UserError

OWN_TEXT = ["data.source_lang=en", "data.target_lang=ru"]


def errors(*overrides: str, verb: str = "prune") -> list[str]:
    with pytest.raises(UserError) as caught:
        compose(list(overrides), verb)
    return list(caught.value.problems)


def finished_run(folder: Path, *overrides: str) -> Path:
    save_config(compose(list(overrides), "train"), folder / "config.yaml")
    (folder / "DONE").touch()
    return folder


@pytest.fixture
def own_text(tmp_path: Path) -> list[str]:
    for split in ("train", "valid", "test"):
        for lang in ("en", "ru"):
            (tmp_path / f"{split}.{lang}").write_text("a\n")
    return [*OWN_TEXT, *(f"data.files.{split}={tmp_path / split}" for split in ("train", "valid", "test"))]


@pytest.mark.parametrize("choice", [f"{group}={name}" for group, names in groups().items() for name in names])
def test_every_file_of_conf_composes(choice: str, own_text: list[str]) -> None:
    count = 36 if choice == "method=gha" else 1
    target = [] if choice.startswith("experiment=") else [f"prune.target={count}"]
    on_files = choice in ("data=files", "experiment=compare_files") or "=paper/" in choice
    verb = "train" if choice == "experiment=ght_tuning" else "prune"
    compose([choice, *target, *(own_text if on_files else [])], verb)


@pytest.mark.parametrize("path", sorted(config_dir().rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_of_conf_starts_with_the_command_that_uses_it(path: Path) -> None:
    first = next(line for line in path.read_text().splitlines() if not line.startswith("# @package"))
    assert first.startswith("# headlab ")
    if path.parent != config_dir():
        group, _, name = path.relative_to(config_dir()).with_suffix("").as_posix().partition("/")
        assert f"{group}={name}" in first


def test_the_shapes_of_the_papers() -> None:
    small, base = compose([], "train").model, compose(["model=base"], "train").model
    for model in (small, base):
        assert (model.encoder_layers, model.decoder_layers, model.heads, model.norm) == (6, 6, 8, "pre")
    assert (small.dim, small.ffn, base.dim, base.ffn) == (128, 512, 512, 2048)
    # Voita et al. 2019: 4 * 512^-0.5 * 16000^-0.5, Adam (0.9, 0.98, 1e-9)
    optim = compose(["optim=base"], "train").optim
    assert optim.lr == pytest.approx(4 * 512**-0.5 * 16000**-0.5, rel=0.01)
    assert (optim.warmup, optim.beta1, optim.beta2, optim.eps) == (16000, 0.9, 0.98, 1e-9)


def test_the_reproduction_prunes_to_the_ten_counts_with_random_beside_them() -> None:
    cfg = compose(["experiment=en_ru"])
    assert cfg.prune.targets == [32, 24, 16, 12, 10, 8, 6, 4, 2, 1]
    assert cfg.prune.rivals == {"random": [10, 4]}
    assert (cfg.results, cfg.data.name, cfg.method.name, cfg.variant) == ("en_ru", "en_ru", "l0", "")
    fixed = compose(["experiment=en_ru_lambda"])
    assert (fixed.results, fixed.prune.target, fixed.prune.targets) == ("en_ru", None, None)
    others = [label_of(compose(["experiment=en_ru_lambda", f"method.l0.penalty={x}"])) for x in ("0.003", "1e-2")]
    assert [label_of(fixed), *others] == ["lambda=0.005", "lambda=0.003", "lambda=0.01"]
    assert (fixed.data, fixed.model, fixed.optim) == (cfg.data, cfg.model, cfg.optim)  # one base for both


def test_more_seeds_of_the_reproduction_run_the_same_program_as_far_as_their_last_target() -> None:
    cfg, more = compose(["experiment=en_ru"]), compose(["experiment=en_ru_evidence"])
    assert (more.seeds, more.prune.targets) == ([2, 3], cfg.prune.targets[: len(more.prune.targets)])
    assert more.prune.rivals == {"random": [10], "scratch": [10]}
    plain = {**asdict(cfg.prune), "targets": None, "rivals": None}
    assert {**asdict(more.prune), "targets": None, "rivals": None} == plain
    assert all(getattr(more, part) == getattr(cfg, part) for part in ("data", "model", "optim", "method", "results"))


def test_one_seed_replaces_the_seeds_of_an_experiment() -> None:
    cfg = compose(["experiment=en_ru_evidence", "seed=5"])
    assert (cfg.seed, cfg.seeds) == (5, None)
    assert compose(["prune.target=4", "seeds=1,2"]).seeds == [1, 2]


@pytest.mark.parametrize("seeds", ["[]", "[1,1]", "[-1]", "[4294967296]"])
def test_seeds_that_make_no_sense_are_refused(seeds: str) -> None:
    with pytest.raises(UserError, match=r"^seeds"):
        compose(["prune.target=4", f"seeds={seeds}"])


def test_training_takes_one_seed() -> None:
    with pytest.raises(UserError, match="seeds: train makes one model"):
        compose(["seeds=[1,2]"], "train")


def test_the_command_line_wins_over_files_and_the_last_value_over_earlier_ones() -> None:
    cfg = compose(["experiment=smoke", "prune.targets=3,1", "seed=2", "seed=7", "data.pieces=300", "model.heads=8"])
    assert (cfg.prune.targets, cfg.seed, cfg.data.pieces, cfg.model.heads) == ([3, 1], 7, 300, 8)
    assert cfg.model.dim == 64  # from model=tiny, which the experiment chose
    cfg = compose(["experiment=smoke", "prune.target=3", "prune.rivals={}", "model=small"])
    assert (cfg.prune.target, cfg.prune.targets, cfg.prune.rivals, cfg.model.name) == (3, None, {}, "small")


def test_rivals_of_an_experiment_follow_the_targets_that_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    cfg = compose(["experiment=en_ru", "prune.targets=12,10"])
    assert (cfg.prune.targets, cfg.prune.rivals) == ([12, 10], {"random": [10]})
    said = capsys.readouterr().err.splitlines()
    assert said == ["left out: random at 4, which is not among the targets asked for"]
    cfg = compose(["experiment=smoke", "prune.target=3"])
    assert (cfg.prune.target, cfg.prune.targets, cfg.prune.rivals) == (3, None, {"random": []})
    capsys.readouterr()
    compose(["experiment=en_ru"])
    assert capsys.readouterr().err == ""


def test_lists_may_be_written_with_and_without_brackets() -> None:
    for scope in ("enc-self,dec-self", "[enc-self,dec-self]"):
        assert compose([f"prune.scope={scope}", "prune.targets=96,1"]).prune.scope == ["enc-self", "dec-self"]
    assert compose(["prune.targets=[5]", "prune.scope=null"]).prune.targets == [5]


def test_text_is_taken_as_it_stands(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "a b, c=d [x]")
    assert compose([f"base={run}", "prune.target=1"]).base == str(run)
    assert compose([f"base='{run}'", "prune.target=1"]).base == str(run)
    assert compose(["variant=null", "prune.target=1", "base=null"], "train").base is None


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["prune.target=ten"], "prune.target=ten: expected a whole number"),
        (["prune.target=1.5"], "prune.target=1.5: expected a whole number"),
        (["prune.target=10,4"], "several go into prune.targets"),
        (["prune.target=49"], "prune.target=49: has to be from 0 to 48, the number of heads within enc-self"),
        (["prune.target=-1"], "prune.target=-1: has to be from 0 to 48"),
        (["prune.targets=8,97", "prune.scope=dec-self,enc-dec"], "from 0 to 96, the number of heads within dec-self"),
        (["prune.targets=8,8"], "same number twice"),
        (["prune.targets=[]"], "prune.targets=[]: is empty"),
        (["prune.target=9", "model=tiny"], "from 0 to 8,"),
        (["prune.target=4", "prune.rivals={random: [49]}"], "prune.rivals.random=49: has to be from 0 to 48"),
        (["prune.target=4", "prune.rivals.magic=[4]"], "unknown method 'magic'"),
        (["prune.target=4", "prune.rivals.l0=[4]"], "l0 is the method itself"),
        (["prune.target=4", "prune.rivals.random=[4,2]"], "prune.rivals.random: 2 is not among the targets"),
        (["experiment=smoke", "prune.target=3", "prune.rivals.random=[2]"], "set prune.targets=[3,2]"),
        (["prune.target=4", "prune.targets=4"], "prune.target and prune.targets are both given"),
        (["prune.target=4", "method.l0.penalty=0.1"], "method.l0.penalty and prune.target are both given"),
        (["method=random", "method.l0.penalty=0.1"], "method random has no penalty"),
        ([], "nothing says how many heads to keep"),
        (["prune.target=4", "prune.scope=[]"], "the scope is empty"),
        (["prune.target=4", "prune.scope=encoder"], "unknown kind 'encoder'"),
        (["prune.target=4", "prune.controls=scrach"], "unknown 'scrach'"),
        (["prune.target=4", "prune.controls=ght"], "prune.controls: ght belongs to method gha; leave it out with l0"),
        (["prune.target=4", "model.share_all_embeddings=true"], "decoder is frozen"),
        (["prune.target=4", "model.dim=100"], "model.dim=100: has to be a multiple of model.heads=8"),
        (["prune.target=4", "model.dropout=1"], "model.dropout=1.0: has to be at least 0 and less than 1"),
        (["prune.target=4", "optim.updates=0"], "optim.updates=0: has to be at least 1"),
        (["prune.target=4", "optim.lr=nan"], "optim.lr=nan: has to be more than 0"),
        (["prune.target=4", "score.lenpen=inf"], "score.lenpen=inf: has to be a finite number"),
        (["prune.target=4", "optim.schedule=inverse_sqrt", "optim.warmup=0"], "inverse_sqrt needs at least 1"),
        (["prune.target=4", "machine.precision=fp8"], "choose from auto, fp32, bf16, fp16"),
        (["prune.target=4", "machine.precision=fp16", "machine.device=cpu"], "needs a GPU"),
        (["prune.target=4", "machine.devices=2", "machine.jobs=3"], "machine.jobs=3: goes with one device a run only"),
        (["prune.target=4", "results=a/b"], "results=a/b: has to be a name"),
        (["prune.target=4", "keep_checkpoints=maybe"], "expected true or false"),
        (["prune.target=4", "optim.lr=[1"], "optim.lr=[1: expected a number"),
        (["prune.target=4", "base=no/such"], "no/such: no such run directory"),
        (["prune.target=4", "variant=${oc.env:HOME}"], "plain text without ${...}"),
        (["prune.target=4", "method.l0={penalty: 1}"], "method.l0: is a group of keys"),
        (
            ["method=gha", "prune.target=17"],
            "17 of 144 heads: gha keeps at least one in each of the 18 layers in scope",
        ),
        (["method=gha", "prune.targets=36,5", "prune.scope=enc-self"], "5 of 48 heads: gha keeps at least one in each"),
        (["method=gha", "prune.target=145"], "has to be from 0 to 144, the number of heads within enc-self, dec-self,"),
        (["prune.target=4", "prune.rivals={gha: [4]}"], "gha keeps at least one in each of the 6 layers in scope"),
        (["method=gha", "prune.target=37", "method.gha.groups=2"], "a vote of 2 groups in 18 layers keeps 36"),
        (["method=gha", "prune.target=37", "method.gha.vote_groups=1"], "a vote of 1 groups in 18 layers keeps 18"),
        (["method=gha", "prune.target=36", "method.gha.groups=9"], "has to be from 1 to 8, the heads of a layer"),
        (["method=gha", "prune.target=36", "method.gha.map=K"], "method.gha.map=K: choose from V, A, O"),
        (["method=gha", "prune.target=36", "method.gha.alpha=-1"], "method.gha.alpha=-1.0: has to be at least 0"),
        (["method=gha", "prune.target=36", "method.gha.threshold=0"], "has to be more than 0"),
        (
            ["method=gha", "prune.target=36", "method.gha.start=base", "method.gha.lite=true"],
            "method.gha.lite: is about a model trained with method.gha.start=random",
        ),
        (["method=dsp"], "nothing says how many heads to keep"),
        (["method=dsp", "method.l0.penalty=0.1"], "method dsp has no penalty"),
        (["method=dsp", "prune.target=145"], "has to be from 0 to 144, the number of heads within enc-self, dec-self,"),
        (["prune.target=4", "prune.rivals={dsp: [3]}"], "prune.rivals.dsp: 3 is not among the targets"),
        (["method=dsp", "prune.target=4", "method.dsp.relaxation=hard"], "from soft, straight_through, identity"),
        (["method=dsp", "prune.target=4", "method.dsp.mode=frozen"], "choose from joint, pipelined"),
        (["method=dsp", "prune.target=4", "method.dsp.end=1e-9"], "method.dsp.end=1e-09: has to be from 1e-08 to"),
        (["method=dsp", "prune.target=4", "method.dsp.end=0.2"], "has to be at most method.dsp.start=0.1"),
        (["method=dsp", "prune.target=4", "method.dsp.cooldown=0"], "has to be more than 0 and at most 1"),
        (["method=dsp", "prune.target=4", "method.dsp.lr=0"], "method.dsp.lr=0.0: has to be more than 0"),
        (["prune.target=4", "seed"], "seed: needs a value"),
        (["prune.target=4", "+seed=1"], "write seed=VALUE"),
        (["prune.target=4", "~optim"], "does not use Hydra's '+' and '~'"),
        (["prune.target=4", "model=smal"], "model=smal: no such model; did you mean small?"),
        (["prune.target=4", "experiment=en_de"], "experiment=en_de: no such experiment"),
        (["prune.taget=4"], "prune.taget: no such key; did you mean prune.target?"),
        (["target=4"], "target: no such key; did you mean prune.target?"),
        (["prune.target=4", "lr=1"], "did you mean method.dsp.lr or method.l0.lr or optim.lr or prune.lr?"),
    ],
)
def test_bad_input_is_one_line(overrides: list[str], line: str) -> None:
    found = errors(*overrides)
    assert len(found) == 1
    assert line in found[0]
    assert "\n" not in found[0]


def test_the_rules_are_about_keys_that_exist() -> None:
    ruled = {*CHOICES, *(key for _, _, names in RANGES for key in names.split())}
    assert ruled <= set(keys())
    numbers = {key for key, kind in keys().items() if kind in (int, float, int | None, float | None)}
    assert numbers - ruled == {"prune.target"}  # whose range depends on the model


def test_all_errors_are_told_at_once() -> None:
    found = errors("model=tny", "optim.lrr=3", "prune.target=ten", "model.dropout=2", "score.beam=0", "data=files")
    for key in ("model=tny", "optim.lrr", "prune.target=ten", "model.dropout", "score.beam", "data.source_lang"):
        assert [line for line in found if line.startswith(key)], key
    assert len(found) == 7  # data.target_lang too


def test_missing_texts_of_the_user_are_told_when_composing(own_text: list[str], tmp_path: Path) -> None:
    compose(["data=files", *own_text], "train")
    (tmp_path / "valid.ru").unlink()
    (found,) = errors("data=files", *own_text, verb="train")
    assert "valid.ru" in found


def test_shared_embeddings_are_fine_where_nothing_is_frozen() -> None:
    shared = "model.share_all_embeddings=true"
    assert compose([shared], "train").model.share_all_embeddings
    assert compose([shared, "prune.target=4", "prune.scope=enc-self,enc-dec"]).model.share_all_embeddings


def test_data_model_and_optim_come_from_the_base(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", "model=tiny", "data=en_de", "optim.updates=7")
    cfg = compose([f"base={run}", "prune.target=8"])
    assert (cfg.model.name, cfg.data.name, cfg.optim.updates) == ("tiny", "en_de", 7)
    assert "from 0 to 8," in errors(f"base={run}", "prune.target=9")[0]
    compose([f"base={run}", "prune.target=8", "model.dim=64"])  # what the base has may be repeated
    assert errors(f"base={run}", "prune.target=8", "model.dim=128") == [
        "model.dim=128: the base has 64; leave it out or train another base"
    ]
    assert len(errors(f"base={run}", "experiment=en_ru")) > 3
    (run / "DONE").unlink()
    assert "unfinished" in errors(f"base={run}", "prune.target=8")[0]


def test_a_saved_configuration_loads_as_it_was(tmp_path: Path) -> None:
    cfg = compose(["experiment=en_ru", "variant=a: b # c", "seed=5"])
    save_config(cfg, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == cfg


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("seed: ${oc.env:HOME}\n", "interpolation"),
        ("variant: 'x${seed}'\n", "interpolation"),
        ("seed: [1\n", "cannot be read"),
        ("seed: ten\n", "cannot be read"),
        ("sed: 1\n", "cannot be read"),
        ("- 1\n", "not a configuration"),
        ("seed: 1\n", "cannot be read"),  # not complete
        ("\x00", "cannot be read"),
    ],
)
def test_a_damaged_configuration_is_one_line_that_names_the_file(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_config(path)
    (problem,) = caught.value.problems
    assert str(path) in problem
    assert line in problem
    assert "\n" not in problem


def test_only_measuring_may_be_changed_of_a_finished_run(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", "model=tiny", "score.beam=3")
    cfg = compose_for_run(run, ["score.lenpen=1", "machine.device=cpu"])
    assert (cfg.model.name, cfg.score.beam, cfg.score.lenpen, cfg.machine.device) == ("tiny", 3, 1.0, "cpu")
    with pytest.raises(UserError) as caught:
        compose_for_run(run, ["model=small", "model.dim=3"])
    assert [line.partition(",")[0].partition(";")[0] for line in caught.value.problems] == [
        "model: is fixed by the run",
        "model.dim: is fixed by the run",
    ]


def test_nearest_finds_names_with_a_letter_changed() -> None:
    chance = random.Random(1)
    for key in keys():
        place = chance.randrange(len(key))
        found = nearest(key[:place] + "?" + key[place + 1 :], keys())
        assert found is not None
        assert (found[:place], found[place + 1 :]) == (key[:place], key[place + 1 :])  # beta1 for beta? serves as well


def test_grouped_head_attention_prunes_all_kinds_and_has_groups_for_its_target() -> None:
    cfg = compose(["method=gha", "prune.targets=144,37,36,18"])
    assert scope_of(cfg) == ("enc-self", "dec-self", "enc-dec")
    assert [groups_of(cfg, target) for target in (144, 37, 36, 18)] == [(8, 8), (3, 3), (2, 2), (1, 1)]
    assert groups_of(compose(["method=gha"], "train"), None) == (2, 2)
    cfg = compose(["method=gha", "prune.target=36", "method.gha.groups=3", "method.gha.vote_groups=4"])
    assert groups_of(cfg, 36) == (3, 4)
    found = errors("method=gha", "method.gha.start=base", verb="train")
    assert found == [
        "method.gha.start=base: train starts from random initialisation; to go on from a base: headlab prune"
    ]


#: Ni et al. 2023, appendix: alpha, beta and map of the group-constrained model and of the pruned one.
PAPER = {
    "de_en": ((0.7, 0.5, "V"), (0.5, 0.7, "O")),
    "it_en": ((0.3, 0.5, "V"), (0.3, 0.3, "A")),
    "en_de": ((0.3, 0.1, "A"), (0.3, 0.7, "O")),
    "en_it": ((0.3, 0.3, "V"), (0.3, 1.0, "V")),
    "en_fr": ((0.7, 0.7, "V"), (0.5, 0.3, "A")),
    "wmt_en_de": ((0.5, 0.5, "V"), (0.5, 0.5, "V")),
    "wmt_en_fr": ((0.3, 0.3, "V"), (0.3, 0.3, "V")),
}


@pytest.mark.parametrize("pair", PAPER)
def test_the_settings_of_the_paper(pair: str, own_text: list[str]) -> None:
    files = [text for text in own_text if text.startswith("data.files")]
    langs = tuple(pair.split("_")[-2:])
    for number, name in enumerate(("ght", "ght_ps")):
        for split in ("train", "valid", "test"):
            for lang in langs:
                path = Path(next(f for f in files if f.startswith(f"data.files.{split}")).partition("=")[2])
                path.with_name(f"{path.name}.{lang}").write_text("a\n")
        cfg = compose([f"experiment=paper/{name}_{pair}", *files])
        gha = cfg.method.gha
        assert (gha.alpha, gha.beta, gha.map) == PAPER[pair][number]
        assert (cfg.data.source_lang, cfg.data.target_lang) == langs
        assert groups_of(cfg, cfg.prune.target) == (2, 2)
        assert (cfg.optim.lr, cfg.score.beam) == ((7e-4, 4) if "wmt" in pair else (5e-4, 5))
        assert (cfg.model.dim, cfg.model.norm, cfg.model.dropout, cfg.optim.warmup) == (512, "post", 0.3, 4000)
