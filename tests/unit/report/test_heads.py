"""heads.csv, and what tables and figures make of it."""

from __future__ import annotations

from headlab.report import make_report
from headlab.report.cosines import cosine_figure
from headlab.report.heads import heads_of, polls, read_heads, votes_text, write_heads
from headlab.report.rows import write_rows

from .fixtures import row

#: Two layers of 4 heads in 2 groups; heads 1 and 3 of the first stay, head 0 of the second.
VOTES = {
    "layout": "enc-self:0=1,3;1=0",
    "layers": [
        {
            "kind": "enc-self",
            "layer": 0,
            "heads": [0, 1, 2, 3],
            "groups": [0, 0, 1, 1],
            "votes": [[1, 7, 0, 0], [0, 1, 3, 4]],
            "cosines": [[1, 0.9, 0.1, 0.2], [0.9, 1, 0, 0], [0.1, 0, 1, 0.8], [0.2, 0, 0.8, 1]],
        },
        {
            "kind": "enc-self",
            "layer": 1,
            "heads": [0, 1, 2, 3],
            "groups": [0, 1, 0, 1],
            "votes": [[8, 0, 0, 0], [0, 5, 0, 3]],
            "cosines": [[1, 0, 0.5, 0], [0, 1, 0, 0.5], [0.5, 0, 1, 0], [0, 0.5, 0, 1]],
        },
    ],
}


def recorded(folder):
    pruned, base = row("gha", "", 3), row("none", "base", None)
    write_rows(folder, [pruned, base])
    unpruned = {"layers": VOTES["layers"]}
    write_heads(folder, [*heads_of(pruned, 3, VOTES), *heads_of(base, 3, unpruned)])
    return read_heads(folder)


def test_what_is_read_is_what_was_voted(tmp_path):
    frame = recorded(tmp_path)
    mine = frame[frame["method"] == "gha"]
    assert mine["votes"].tolist() == [1, 8, 3, 4, 8, 5, 0, 3]
    assert mine["group"].tolist() == [0, 0, 1, 1, 0, 1, 0, 1]
    assert mine["stays"].tolist() == [0, 1, 0, 1, 1, 0, 0, 0]
    assert mine["cosines"].iloc[2] == "0.1000 0.0000 1.0000 0.8000"
    assert set(frame[frame["method"] == "none"]["stays"]) == {1}  # the base loses no heads


def test_votes_for_one_count_in_two_scopes_are_two(tmp_path):
    wide = row("gha", "", 3, scope="enc-self enc-dec")
    write_heads(tmp_path, [*heads_of(row("gha", "", 3), 3, VOTES), *heads_of(wide, 3, VOTES)])
    names = [name for name, rows in polls(read_heads(tmp_path)) if len(rows) == 8]
    assert names == ["gha (enc-self), vote for 3", "gha (enc-self enc-dec), vote for 3"]


def test_the_table_tells_groups_and_votes(tmp_path):
    lines = list(votes_text(recorded(tmp_path), "toy"))
    # within: 0.9, 0.8 | 0.5, 0.5; between: 0.1, 0.2, 0, 0 | 0, 0, 0, 0
    assert lines[3:] == [
        "- gha, vote for 3 (mean cosine within groups 0.68, between groups 0.04)",
        "  - enc-self.0: 0:1 **1**:8 | 2:3 **3**:4",
        "  - enc-self.1: **0**:8 2:0 | 1:5 3:3",
    ]
    assert lines[0] == "- base, vote for 3 (mean cosine within groups 0.68, between groups 0.04)"
    assert list(votes_text(recorded(tmp_path), "another")) == []


def test_the_report_has_votes_and_a_figure_and_is_the_same_every_time(tmp_path):
    recorded(tmp_path)
    written = make_report(tmp_path)
    assert {"cosines.png", "cosines.pdf"} <= {path.name for path in written}
    assert "**1**:8" in (tmp_path / "table.md").read_text()
    first = {path: path.read_bytes() for path in written}
    assert {path: path.read_bytes() for path in make_report(tmp_path)} == first


def test_the_figure_shows_the_heads_in_the_order_of_their_groups(tmp_path):
    figure = cosine_figure(recorded(tmp_path))
    pictures = [ax.images[0].get_array().tolist() for ax in figure.axes if ax.images and ax.get_title()]
    assert len(pictures) == 4  # two layers of two models
    assert pictures[2] == VOTES["layers"][0]["cosines"]
    assert pictures[3] == [[1, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0.5], [0, 0, 0.5, 1]]


def test_without_votes_there_is_no_file(tmp_path):
    write_rows(tmp_path, [row("none", "base", None)])
    assert read_heads(tmp_path) is None
    assert "cosines.png" not in {path.name for path in make_report(tmp_path)}
