import pytest

from headlab.corpora.clean import REASONS, clean


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("Connect to {host}", "Подключить к узлу", "placeholder"),
        ("Connect to host", "Подключить к {host}", "placeholder"),
        ("See [%key:common::title%] here", "Смотрите здесь это", "placeholder"),
        ("Found %s devices", "Найдено устройств много", "placeholder"),
        ("Press <b>now</b> please", "Нажмите сейчас пожалуйста", "markup"),
        ("Use `light.on` instead", "Используйте другое действие", "markup"),
        ("Go to https://example.org now", "Перейдите туда сейчас", "markup"),
        ("Press **Submit** now", "Нажмите кнопку сейчас", "markup"),
        ("garage|car port", "гараж|навес для машины", "markup"),
        ("First line.\nSecond line.", "Первая строка. Вторая строка.", "line breaks"),
        ("Temperature", "Температура воды", "one word"),
        ("Home Assistant Cloud", "home assistant cloud", "untranslated"),
        ("two words", "раз два три четыре пять шесть семь восемь девять десять", "length ratio"),
    ],
)
def test_a_dropped_pair_has_its_reason(source, target, reason):
    kept, dropped = clean([(source, target)], counted=0)
    assert kept == []
    assert dropped == {name: int(name == reason) for name in REASONS}


def test_good_pairs_are_kept_normalised_and_in_order():
    pairs = [
        ("  Relative\u00a0 humidity ", "Относительная влажность\n"),
        ("Humidity 40 % now", "Влажность 40 % сейчас"),
        ("two words", "раз два три четыре пять шесть семь восемь девять"),  # 9 = 3 * 2 + 3 is still allowed
        ("Power speed <59 min", "Мощность скорость <59 мин"),
        ("cafe\u0301 bar", "кафе бар"),
    ]
    kept, dropped = clean(pairs, counted=0)
    assert kept == [
        ("Relative humidity", "Относительная влажность"),
        pairs[1],
        pairs[2],
        pairs[3],
        ("caf\u00e9 bar", "кафе бар"),
    ]
    assert sum(dropped.values()) == 0


def test_duplicates_are_pairs_equal_but_for_case():
    pairs = [("Door open", "Дверь открыта"), ("door Open", "дверь открыта"), ("Door open", "Открыть дверь")]
    kept, dropped = clean(pairs, counted=0)
    assert kept == [pairs[0], pairs[2]]
    assert dropped["duplicate"] == 1


def test_words_are_counted_on_the_named_side():
    compound = ("Battery level", "Batteriestand")
    assert clean([compound], counted=0)[0] == [compound]
    assert clean([compound], counted=1)[1]["one word"] == 1
    assert clean([("Batteriestand", "Battery level")], counted=1)[0] == [("Batteriestand", "Battery level")]
    assert clean([("Battery level", "")], counted=0)[1]["one word"] == 1
