"""rows.csv: types, keys, several writers, damage."""

import csv
import multiprocessing
from dataclasses import fields

import pandas as pd
import pytest

from headlab.errors import UserError
from headlab.report.rows import COLUMNS, Row, read_rows, write_rows

from .fixtures import row


def test_columns_are_in_the_published_order():
    text = (
        "experiment method variant scope target seed heads_total heads_kept kept_enc_self kept_dec_self kept_enc_dec"
        " layout bleu bleu_signature chrf chrf_signature valid_bleu reference delta_bleu delta_low delta_high p_value"
        " loss metric metric_value params params_no_embeddings flops sentences_per_s speedup updates_base"
        " updates_selection updates_finetune train_seconds precision threads run paper_bleu paper_metric"
    )
    assert list(COLUMNS) == text.split() == [field.name for field in fields(Row)]


def test_what_is_read_has_the_values_and_types_of_what_was_written(tmp_path):
    third = 1 / 3
    write_rows(tmp_path, [row("l0", "", 3, bleu=third, precision="bf16"), row("none", "base", None)])
    frame = read_rows(tmp_path)
    base, pruned = frame.iloc[0], frame.iloc[1]
    assert pruned["bleu"] == third and frame["bleu"].dtype == "float64"
    assert pruned["layout"].startswith("enc-self:0=0,1,2;1= dec-self:0=0,1,2,3;1=0,1,2,3")
    assert frame["target"].dtype == "Int64" and pruned["target"] == 3 and pd.isna(base["target"])
    assert base["variant"] == "base" and pruned["variant"] == "" and base["precision"] == ""
    assert pd.isna(base["delta_bleu"])


def test_a_layout_with_commas_is_one_column_of_the_csv_file(tmp_path):
    write_rows(tmp_path, [row("l0", "", 3)])
    with (tmp_path / "rows.csv").open(newline="") as stream:
        lines = list(csv.reader(stream))
    assert {len(line) for line in lines} == {len(COLUMNS)}


def test_a_row_replaces_that_of_equal_key_and_no_other(tmp_path):
    write_rows(tmp_path, [row("l0", "", 3, bleu=1.0), row("l0", "", 3, seed=2, bleu=2.0), row("none", "base", None)])
    before = (tmp_path / "rows.csv").read_text().splitlines()
    write_rows(tmp_path, [row("l0", "", 3, bleu=9.0)])
    after = (tmp_path / "rows.csv").read_text().splitlines()
    changed = [line for line in after if line not in before]
    assert len(after) == len(before) == 4 and len(changed) == 1 and ",9.0," in changed[0]


@pytest.mark.parametrize(
    "other", [{"seed": 2}, {"variant": "lambda"}, {"target": 2}, {"method": "random"}, {"scope": "enc-self enc-dec"}]
)
def test_every_part_of_the_key_tells_rows_apart(tmp_path, other):
    write_rows(tmp_path, [row("l0", "", 3)])
    write_rows(tmp_path, [row(**{"method": "l0", "variant": "", "target": 3, **other})])
    assert len(read_rows(tmp_path)) == 2


def test_the_file_does_not_depend_on_the_order_of_writing(tmp_path):
    rows = [row("l0", "", t, seed=s) for t in (1, 2, 8) for s in (1, 2, 10)] + [row("none", "base", None)]
    rows += [row("none", "control-u600", None), row("none", "control-u1200", None)]
    write_rows(tmp_path / "a", rows)
    for each in reversed(rows):
        write_rows(tmp_path / "b", [each])
    assert (tmp_path / "a" / "rows.csv").read_bytes() == (tmp_path / "b" / "rows.csv").read_bytes()
    frame = read_rows(tmp_path / "a")
    assert list(frame["variant"][:3]) == ["base", "control-u600", "control-u1200"]
    assert list(zip(frame["target"][3:6], frame["seed"][3:6], strict=True)) == [(8, 1), (8, 2), (8, 10)]


def _write_some(folder, seed):
    for target in range(8):
        write_rows(folder, [row("l0", "", target, seed=seed)])


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_some, args=(tmp_path, seed)) for seed in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    frame = read_rows(tmp_path)
    assert sorted(zip(frame["seed"], frame["target"], strict=True)) == [(s, t) for s in range(4) for t in range(8)]
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", ".rows.lock"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "empty"),
        (lambda data: data.splitlines(keepends=True)[0], "no rows"),
        (lambda data: data[: len(data) - 5], "columns"),
        (lambda data: data.replace(b"delta_low", b"delta"), "line 1 .*delta, delta_low"),
        (lambda data: data.replace(b",20.0,", b",20.O,"), "row 2: bleu is '20.O'"),
        (lambda data: b"\xff\xfe" + data, "cannot be read"),
        (lambda data: None, "no such file"),
    ],
    ids=["empty", "header only", "cut off", "column renamed", "not a number", "not text", "missing"],
)
def test_a_damaged_file_is_one_line_that_names_it_and_says_what_to_do(tmp_path, damage, message):
    path = tmp_path / "rows.csv"
    write_rows(tmp_path, [row("l0", "", 3, bleu=20.0)])
    data = damage(path.read_bytes())
    path.write_bytes(data) if data is not None else path.unlink()
    with pytest.raises(UserError, match=message) as caught:
        read_rows(tmp_path)
    assert str(path) in str(caught.value) and "run the experiment" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_not_written_over(tmp_path):
    (tmp_path / "rows.csv").write_text("something else\n")
    with pytest.raises(UserError, match="line 1"):
        write_rows(tmp_path, [row("l0", "", 3)])
    assert (tmp_path / "rows.csv").read_text() == "something else\n"
