"""Speed, on a clock that the test turns."""

import pytest

from headlab.scoring import speed


def test_translators_take_turns_after_one_warm_up_each(monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr(speed.time, "perf_counter", lambda: now[0])

    def translator(name, seconds):
        def translate(sentences):
            calls.append(name)
            now[0] += seconds if calls.count(name) > 1 else 100  # the first call is slow

        return translate

    speeds = speed.measure_speed({"a": translator("a", 2.0), "b": translator("b", 0.5)}, ["x"] * 10, rounds=3)
    assert calls == ["a", "b"] + ["a", "b"] * 3
    assert speeds == {"a": pytest.approx([5.0] * 3), "b": pytest.approx([20.0] * 3)}
