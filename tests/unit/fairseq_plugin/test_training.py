"""Training: what trains, on which batches, and how it goes on after an interruption."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headlab.attention.heads import KINDS, Head
from headlab.config import GhaConfig, L0Config, OptimConfig
from headlab.fairseq_plugin.components import HeadlabTask
from headlab.fairseq_plugin.model import HeadlabTransformer, detached_state, freeze_decoder
from headlab.fairseq_plugin.passes import frozen_loss, training_batches
from headlab.fairseq_plugin.training import Job, Span, Training, fit
from headlab.methods.gha import GHA
from headlab.methods.l0 import L0

from .conftest import MACHINE

Start = Callable[..., Job]


class Killed(Exception):
    pass


@pytest.fixture
def job(task: HeadlabTask, new_model: Callable[..., HeadlabTransformer], optim: OptimConfig, tmp_path: Path) -> Start:
    """A training of the whole model over 12 updates, some 8 batches an epoch."""

    def make(model: HeadlabTransformer | None = None, work: str = "run", span: Span | None = None, **settings) -> Job:
        (tmp_path / work).mkdir(exist_ok=True)
        fields = {n: settings.pop(n) for n in ("states", "method", "gate_lr") if n in settings}
        changed = replace(optim, **settings)
        return Job(
            "test", model or new_model(), task, changed, 1, MACHINE, tmp_path / work, span or Span(0, 12), **fields
        )

    return make


def lines(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.work / "metrics.jsonl").read_text().splitlines()]


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def kill_after(monkeypatch: pytest.MonkeyPatch, job: Job, update: int) -> None:
    """Run ``job`` and end it without warning after ``update`` updates of this process's count."""
    training = Training(job)
    step, count = training.trainer.train_step, [0]

    def train_step(samples: Any, *rest: Any) -> Any:
        if count[0] == update:
            raise Killed
        count[0] += 1
        return step(samples, *rest)

    monkeypatch.setattr(training.trainer, "train_step", train_step)
    with pytest.raises(Killed):
        training.run()


def batches_of(monkeypatch: pytest.MonkeyPatch, job: Job) -> list[list[list[int]]]:
    """The sentences of each update of ``job``."""
    training = Training(job)
    step, seen = training.trainer.train_step, []

    def train_step(samples: Any, *rest: Any) -> Any:
        seen.append([sample["id"].tolist() for sample in samples])
        return step(samples, *rest)

    monkeypatch.setattr(training.trainer, "train_step", train_step)
    training.run()
    return seen


def test_training_learns_and_logs(job):
    run = job(states={5, 12})
    fit(run)
    log = lines(run)
    assert [line["update"] for line in log] == list(range(1, 13))
    assert log[-1]["loss"] < log[0]["loss"] - 0.3
    assert [line["update"] for line in log if "valid_loss" in line] == [5, 10, 12]
    assert log[0]["epoch"] == 1 < log[-1]["epoch"]
    assert log[1]["lr"] == pytest.approx(0.01 * 2 / 4)
    assert log[11]["lr"] == pytest.approx(0.01 * (4 / 12) ** 0.5, rel=1e-3)
    assert sorted(p.name for p in (run.work / "states").iterdir()) == ["12.safetensors", "5.safetensors"]


def test_a_training_repeats_bit_by_bit_for_a_seed(job, new_model):
    first, second, other = job(work="a"), job(work="b"), job(work="c")
    other.seed = 2
    for run in (first, second, other):
        fit(run)
    assert same(detached_state(first.model), detached_state(second.model))
    assert not same(detached_state(first.model), detached_state(other.model))


@pytest.mark.parametrize("killed_after", [3, 6, 8, 9])
@pytest.mark.parametrize("gated", [False, True])
def test_an_interrupted_training_ends_as_an_uninterrupted_one(job, new_model, monkeypatch, killed_after, gated):
    def start(work: str) -> Job:
        model, settings = new_model(), {}
        if gated:
            method = L0(L0Config(init="paper"), [6, 3], 6)
            method.attach(model, ["enc-self"])
            settings = {"method": method, "gate_lr": 0.05}
        return job(model, work, states={4, 8, 11, 12}, **settings)

    whole = start("whole")
    fit(whole)
    kill_after(monkeypatch, start("broken"), killed_after)
    torch.manual_seed(12345)  # the new process's random state is another one
    rest = start("broken")
    fit(rest)
    assert same(detached_state(whole.model), detached_state(rest.model))
    for update in (4, 8, 11, 12):
        name = f"states/{update}.safetensors"
        assert (whole.work / name).read_bytes() == (rest.work / name).read_bytes()
    timeless = [[{k: v for k, v in line.items() if k != "tokens_per_s"} for line in lines(r)] for r in (whole, rest)]
    assert timeless[0] == timeless[1]


def test_a_damaged_checkpoint_costs_updates_but_changes_nothing(job, monkeypatch):
    whole = job(work="whole")
    fit(whole)
    kill_after(monkeypatch, job(work="broken"), 10)
    folder = whole.work.parent / "broken"
    assert sorted(p.name for p in (folder / "checkpoints").glob("*.pt")) == ["4.pt", "8.pt"]
    (folder / "checkpoints" / "8.pt").write_bytes(b"torn")
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"update": 11, "lo')  # torn by a kill
    rest = job(work="broken")
    fit(rest)
    assert same(detached_state(whole.model), detached_state(rest.model))
    assert [line["update"] for line in lines(rest)] == list(range(1, 13))


@pytest.mark.parametrize("update_freq", [1, 2])
@pytest.mark.parametrize("start", [3, 8, 9, 13])
def test_a_branch_sees_the_batches_of_the_whole_at_the_same_updates(job, monkeypatch, start, update_freq):
    whole = batches_of(monkeypatch, job(work="whole", span=Span(0, 20), update_freq=update_freq))
    branch = batches_of(monkeypatch, job(work="branch", span=Span(start, 20), update_freq=update_freq))
    assert branch == whole[start:]
    epoch = [ids for update in whole for sample in update for ids in sample]
    assert len(set(epoch[:160])) == 160  # every sentence once in the first epoch


def test_a_branch_takes_up_the_schedule_where_it_is(job):
    branch = job(span=Span(8, 12))
    fit(branch)
    rates = [line["lr"] for line in lines(branch)]
    assert rates == pytest.approx([0.01 * (4 / step) ** 0.5 for step in range(9, 13)], rel=1e-3)


def test_a_frozen_decoder_stays_bit_by_bit_and_the_encoder_moves(job, new_model):
    model = new_model()
    method = L0(L0Config(), [4], 12)
    method.attach(model, ["enc-self"])
    freeze_decoder(model)
    before = detached_state(model)
    output = model.decoder.output_projection.weight.detach().clone()
    fit(job(model, method=method, gate_lr=0.05, weight_decay=0.1))
    after = detached_state(model)
    for name in before:
        if name.startswith("decoder."):
            assert torch.equal(after[name], before[name]), name
        elif before[name].numel():
            assert not torch.equal(after[name], before[name]), name
    assert torch.equal(model.decoder.output_projection.weight, output)


@pytest.mark.parametrize("kept", [[], [Head("enc-self", 0, 1), Head("dec-self", 1, 3)]], ids=["none", "two"])
def test_a_pruned_model_trains_on(job, new_model, kept):
    full = new_model().layout()
    model = new_model(full.keep(kept, KINDS))
    run = job(model)
    fit(run)
    assert lines(run)[-1]["loss"] < lines(run)[0]["loss"] - 0.2
    assert all(p.isfinite().all() for p in model.parameters())


def test_gates_move_at_their_own_rate(job, new_model):
    """Adam's first step is the rate itself: 0.05 for gates, 0.01 / 4 for weights in the first update."""
    model = new_model()
    method = L0(L0Config(penalty=0.1, init="paper"))
    method.attach(model, KINDS)
    before, start = detached_state(model), method.log_a()
    fit(job(model, method=method, gate_lr=0.05, span=Span(0, 1), clip_norm=0.0))
    moved = (method.log_a() - start).abs()
    assert float(moved.max()) == pytest.approx(0.05, rel=1e-3)
    assert float(moved.min()) > 0.04
    name = "encoder.layers.0.fc1.weight"
    assert float((detached_state(model)[name] - before[name]).abs().max()) == pytest.approx(0.01 / 4, rel=1e-3)


def test_a_higher_penalty_closes_more_gates(job, new_model):
    open_heads = []
    for number, penalty in enumerate((1e-6, 0.3)):
        model = new_model()
        method = L0(L0Config(penalty=penalty, init="paper"))
        method.attach(model, KINDS)
        torch.nn.init.constant_(model.encoder.layers[0].self_attn.gate.log_a, 0.2)
        fit(job(model, f"p{number}", method=method, gate_lr=0.3))
        open_heads.append(method.open_heads())
        assert lines(job(work=f"p{number}"))[-1]["heads_open"] == method.open_heads()
    assert open_heads[1] < open_heads[0]


def test_the_valid_loss_is_cross_entropy_per_token(job, task):
    run = job()
    fit(run)
    model = run.model.eval()
    total, tokens = 0.0, 0
    data = task.dataset("valid")
    for index in range(len(data)):
        sample = data.collater([data[index]])
        with torch.no_grad():
            logits, _ = model(**sample["net_input"])
        total += float(nn.functional.cross_entropy(logits[0], sample["target"][0], reduction="sum"))
        tokens += sample["target"].numel()
    assert lines(run)[-1]["valid_loss"] == pytest.approx(total / tokens, rel=1e-3)


def test_bf16_trains_too(job):
    run = job()
    run.task.autocast = torch.bfloat16
    fit(run)
    assert lines(run)[-1]["loss"] < lines(run)[0]["loss"] - 0.3
    assert all(p.dtype == torch.float32 for p in run.model.parameters())


def test_the_valid_loss_of_every_state_is_known_where_the_best_are_averaged(job):
    for rule, measured in (("best", [5, 7, 10, 12]), ("last", [5, 10, 12])):
        run = job(work=rule, states={7, 12}, average_rule=rule, log_every=4)
        fit(run)
        assert [line["update"] for line in lines(run) if "valid_loss" in line] == measured


def test_another_process_gets_a_model_of_its_own_that_is_alike(job, new_model):
    model = new_model()
    method = L0(L0Config(penalty=0.1))
    method.attach(model, KINDS)
    freeze_decoder(model)
    found = pickle.loads(pickle.dumps(job(model, method=method)))
    own, given = dict(found.model.named_parameters()), dict(model.named_parameters())
    assert own.keys() == given.keys()  # what is tied stays tied
    assert found.model.decoder.output_projection.weight is found.model.decoder.embed_tokens.weight
    for name, parameter in given.items():
        assert torch.equal(own[name], parameter)
        assert own[name].requires_grad == parameter.requires_grad
        assert own[name].data_ptr() != parameter.data_ptr()
        assert getattr(own[name], "param_group", "") == getattr(parameter, "param_group", "")
    assert found.method.gates[0] is found.model.encoder.layers[0].self_attn.gate
    assert len(found.task.source_dictionary) == model.encoder.embed_tokens.num_embeddings


def test_wandb_is_told_where_its_project_is_set(job, monkeypatch):
    told, ended = [], []
    run = SimpleNamespace(
        log=lambda numbers, step: told.append((step, numbers)), finish=lambda: ended.append(len(told))
    )
    started = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **given: started.append(given) or run))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    fit(job(work="quiet", span=Span(0, 2)))
    assert not started
    monkeypatch.setenv("WANDB_PROJECT", "heads")
    loud = job(work="loud", span=Span(0, 3))
    fit(loud)
    assert [given["name"] for given in started] == ["loud"]
    assert [{"update": step, **numbers} for step, numbers in told] == lines(loud)
    assert ended == [3]


def grouped(job: Start, new_model: Callable[..., HeadlabTransformer], work: str, **settings: Any) -> Job:
    """A training with the group constraint on all layers, 6 updates an epoch."""
    model = new_model()
    method = GHA(GhaConfig(**{"alpha": 2.0, "beta": 2.0, **settings}), 2, seed=1)
    method.attach(model, KINDS)
    return job(model, work, method=method, span=Span(0, 20), log_every=5)


def test_the_constraint_is_trained_and_told(job, new_model):
    run, free = grouped(job, new_model, "run"), grouped(job, new_model, "free", alpha=0.0, beta=0.0)
    for one in (run, free):
        fit(one)
    log = lines(run)
    assert log[-1]["method_loss"] < log[0]["method_loss"] < 0
    assert log[-1]["loss"] < log[0]["loss"]  # still only cross-entropy
    ended = [line for line in log if "group_changes" in line]
    assert [line["update"] for line in ended] == [6, 12, 18]  # an epoch is six batches
    assert [line["epoch"] for line in ended] == [1, 2, 3]
    assert sum(name.startswith("dunn/") for name in ended[0]) == 6
    apart = [
        sum(v for name, v in one.items() if name.startswith("within_cos/"))
        - sum(v for name, v in one.items() if name.startswith("between_cos/"))
        for one in (ended[-1], [line for line in lines(free) if "group_changes" in line][-1])
    ]
    assert apart[0] > apart[1] + 0.5
    assert {line["method_loss"] for line in lines(free)} == {0.0}


def test_weights_to_vote_on_are_kept_after_the_epoch_of_the_vote(job, new_model):
    run = grouped(job, new_model, "run", vote_epoch=2)
    fit(run)
    (update,) = {line["vote_update"] for line in lines(run) if "vote_update" in line}
    assert [path.stem for path in (run.work / "states").iterdir()] == [str(update)]
    assert (
        lines(run)[-1]["vote_update"]
        == update
        == 2 * next(line["update"] for line in lines(run) if "group_changes" in line)
    )


@pytest.mark.parametrize("killed_after", [5, 9, 18])
def test_an_interrupted_training_with_groups_ends_as_an_uninterrupted_one(job, new_model, monkeypatch, killed_after):
    settings = {"threshold": 1e-9, "vote_epoch": 2, "map": "O"}
    whole = grouped(job, new_model, "whole", **settings)
    fit(whole)
    kill_after(monkeypatch, grouped(job, new_model, "broken", **settings), killed_after)
    rest = grouped(job, new_model, "broken", **settings)
    fit(rest)
    assert same(detached_state(whole.model), detached_state(rest.model))
    told = [{line["update"]: line.get("centre_shift") for line in lines(one)} for one in (whole, rest)]
    assert told[0] == told[1]
    assert any(shift is not None for shift in told[0].values())


def test_a_pass_over_the_training_set_changes_nothing(job, new_model, task):
    model = new_model()
    before = detached_state(model)
    loss_fn, seen = frozen_loss(model, task), []
    for batch in training_batches(model, task, job().optim, 1, "look"):
        loss, tokens = loss_fn(batch)
        assert tokens == int(batch["target"].ne(task.target_dictionary.pad()).sum())
        assert 0 < float(loss) / tokens < 10
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(160))
    assert same(detached_state(model), before)
    assert all(p.grad is None for p in model.parameters())
