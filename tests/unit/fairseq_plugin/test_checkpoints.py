"""Weights and checkpoints as files: intact ones come back exactly, others are not believed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from headlab.errors import UserError
from headlab.fairseq_plugin.checkpoints import Checkpoints, average, read_tensors, save_state, write_tensors
from headlab.fairseq_plugin.model import detached_state, load_weights

from .conftest import random_model


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_weights_come_back_bit_by_bit(tmp_path):
    model = random_model(seed=1)
    save_state(model, tmp_path / "states" / "7.safetensors")
    found = read_tensors(tmp_path / "states" / "7.safetensors")
    expected = detached_state(model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    other = random_model(seed=2)
    load_weights(other, found)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert os.listdir(tmp_path / "states") == ["7.safetensors"]


def test_cut_tensors_and_transposed_ones_can_be_written(tmp_path):
    tensors = {"empty": torch.empty(0, 5), "turned": torch.arange(6.0).view(2, 3).t()}
    write_tensors(tensors, tmp_path / "x.safetensors")
    found = read_tensors(tmp_path / "x.safetensors")
    assert found["empty"].shape == (0, 5)
    assert torch.equal(found["turned"], tensors["turned"])


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "pickle", "missing"])
def test_damaged_weights_are_one_line_and_are_not_unpickled(tmp_path, damage):
    path, trap = tmp_path / "model.safetensors", tmp_path / "sprung"
    save_state(random_model(), path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "missing":
        path.unlink()
    elif damage == "pickle":
        torch.save({"encoder.embed_tokens.weight": Trap(trap)}, path)
    else:
        path.write_bytes({"empty": b"", "text": b"not tensors"}[damage])
    with pytest.raises(UserError) as caught:
        read_tensors(path)
    assert len(caught.value.problems) == 1
    assert str(path) in caught.value.problems[0]
    assert not trap.exists()
    if damage == "pickle":  # the trap works
        path.write_bytes(pickle.dumps(Trap(trap)))
        pickle.loads(path.read_bytes())
        assert trap.exists()


def test_the_average_is_the_mean(tmp_path):
    models = [random_model(seed=seed) for seed in range(3)]
    paths = [tmp_path / f"{n}.safetensors" for n in range(3)]
    for model, path in zip(models, paths, strict=True):
        save_state(model, path)
    found = average(paths)
    for name in detached_state(models[0]):
        expected = torch.stack([detached_state(m)[name].double() for m in models]).mean(0).float()
        torch.testing.assert_close(found[name], expected, atol=1e-7, rtol=0)
        assert found[name].dtype == torch.float32
    one = average(paths[:1])
    assert all(torch.equal(one[name], tensor) for name, tensor in detached_state(models[0]).items())


class FakeTrainer:
    """Saves and loads a number."""

    def __init__(self) -> None:
        self.value = -1

    def consolidate_optimizer(self) -> None:
        pass

    def save_checkpoint(self, path: str, extra: dict) -> None:
        torch.save({"value": self.value, "extra": extra}, path)

    def load_checkpoint(self, path: str) -> dict:
        loaded = torch.load(path)
        self.value = loaded["value"]
        return loaded["extra"]


@pytest.fixture
def three(tmp_path) -> Checkpoints:
    checkpoints, trainer = Checkpoints(tmp_path), FakeTrainer()
    for update in (8, 9, 10):  # 10 comes after 9, not before it
        trainer.value = update
        checkpoints.save(trainer, update, {"note": update})
    return checkpoints


def test_the_last_two_are_kept_and_the_last_is_loaded(three, tmp_path):
    assert sorted(os.listdir(tmp_path)) == ["10.pt", "10.pt.sha256", "9.pt", "9.pt.sha256"]
    trainer = FakeTrainer()
    assert three.load_into(trainer) == {"note": 10}
    assert trainer.value == 10


@pytest.mark.parametrize("damage", ["cut", "one bit", "no checksum", "pickle"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(three, tmp_path, damage, capsys):
    newest = tmp_path / "10.pt"
    data = bytearray(newest.read_bytes())
    if damage == "cut":
        newest.write_bytes(data[:-10])
    elif damage == "one bit":
        data[len(data) // 2] ^= 1
        newest.write_bytes(data)
    elif damage == "no checksum":
        (tmp_path / "10.pt.sha256").unlink()
    else:
        newest.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    trainer = FakeTrainer()
    assert three.load_into(trainer) == {"note": 9}
    assert trainer.value == 9
    assert not (tmp_path / "sprung").exists()
    told = capsys.readouterr().err.replace("\n", "")
    assert "10.pt: damaged checkpoint" in told


def test_without_an_intact_checkpoint_training_starts_anew(three, tmp_path):
    for path in tmp_path.glob("*.pt"):
        path.write_bytes(b"")
    assert three.load_into(FakeTrainer()) is None
    assert Checkpoints(tmp_path / "none").load_into(FakeTrainer()) is None
