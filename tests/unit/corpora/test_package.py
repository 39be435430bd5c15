"""Fetching with the real pip from a folder instead of an index, and reading."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from headlab.corpora import package
from headlab.errors import RunError, UserError

HASH = "0123456789abcdef" * 2
MEMBERS = {
    "demo_texts/components/lamp/translations/en.json": {"title": "Lamp", "step": {"user": {"label": "Name of lamp"}}},
    "demo_texts/components/lamp/translations/en-GB.json": {"title": "Torch"},
    "demo_texts/components/lamp/translations/ru.json": {
        "step": {"user": {"label": "Название лампы", "only_ru": "Лишнее"}},
        "title": "Лампа",
    },
    "demo_texts/components/door/translations/en.json": {"title": "Door"},
    "demo_texts/components/door/strings.json": {"title": "not a translation"},
    "demo_texts-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo-texts\nVersion: 1.0\n",
    "demo_texts-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "demo_texts-1.0.dist-info/RECORD": "",
}


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip fetches from, holding one wheel."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "demo_texts-1.0-py3-none-any.whl", "w") as archive:
        for name, content in MEMBERS.items():
            archive.writestr(name, content if isinstance(content, str) else json.dumps(content))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def wheel(index):
    digest = hashlib.sha256((index / "demo_texts-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    texts = r"demo_texts/components/(?P<part>[^/]+)/translations/(?P<lang>[^/]+)\.json"
    return package.Wheel("demo-texts", "1.0", digest, 1, texts)


def test_a_missing_wheel_is_fetched_and_a_good_one_is_not_fetched_again(index, wheel, tmp_path, capsys):
    path = package.obtain(wheel, tmp_path / "cache")
    assert capsys.readouterr().err == "fetching demo-texts 1.0 (1 MB, once)\n"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == wheel.sha256
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    (index / path.name).unlink()  # nothing left to fetch from
    assert package.obtain(wheel, tmp_path / "cache") == path
    assert capsys.readouterr().err == ""


def test_a_damaged_wheel_is_fetched_again(wheel, tmp_path, capsys):
    path = package.obtain(wheel, tmp_path / "cache")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    capsys.readouterr()
    assert hashlib.sha256(package.obtain(wheel, tmp_path / "cache").read_bytes()).hexdigest() == wheel.sha256
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{path} is damaged")
    assert second.startswith("fetching demo-texts")


def test_no_index_and_no_cache_is_one_line(index, wheel, tmp_path):
    (index / wheel.filename).unlink()
    with pytest.raises(RunError, match=r"^cannot fetch demo-texts==1\.0.*not in the cache.*HEADLAB_CACHE.*$") as caught:
        package.obtain(wheel, tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_another_file_than_the_pinned_one_is_refused_and_not_kept(wheel, tmp_path):
    other = package.Wheel(wheel.project, wheel.version, "0" * 64, 1, wheel.texts)
    with pytest.raises(RunError, match="sha256"):
        package.obtain(other, tmp_path / "cache")
    assert list((tmp_path / "cache" / "wheels").iterdir()) == []


def test_pairs_have_the_same_key_path_in_both_languages(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(package, "WHEELS", (wheel,))
    pairs, counts = package.read_pairs("en", "ru", tmp_path / "cache")
    assert pairs == [("Lamp", "Лампа"), ("Name of lamp", "Название лампы")]
    assert counts == {"en": 3, "ru": 3}
    assert package.read_pairs("ru", "en", tmp_path / "cache")[0] == [
        ("Название лампы", "Name of lamp"),
        ("Лампа", "Lamp"),
    ]


def test_an_unknown_language_names_the_known_ones(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(package, "WHEELS", (wheel,))
    with pytest.raises(UserError, match=r"data\.target_lang=xx: .* en en-GB ru$"):
        package.read_pairs("en", "xx", tmp_path / "cache")


def test_a_region_is_not_its_language(tmp_path):
    texts = package.WHEELS[1].texts
    wheel = package.Wheel("demo-texts", "1.0", "", 1, texts)
    path = tmp_path / "demo.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (("en", "color"), ("en-GB", "colour"), ("config/en", "part")):
            archive.writestr(f"hass_frontend/static/translations/{name}-{HASH}.json", json.dumps({"key": text}))
        archive.writestr(f"hass_frontend/static/translations/en-{HASH}.json.gz", "packed")
    found, languages = package.read_texts(wheel, path, ("en", "en-GB"))
    assert found["en"] == {("demo-texts", "", "key"): "color", ("demo-texts", "config", "key"): "part"}
    assert found["en-GB"] == {("demo-texts", "", "key"): "colour"}
    assert languages == {"en", "en-GB"}


def test_the_cache_is_the_users(monkeypatch):
    monkeypatch.delenv("HEADLAB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert package.cache_dir() == Path.home() / ".cache" / "headlab"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert package.cache_dir() == Path("/somewhere/headlab")
    monkeypatch.setenv("HEADLAB_CACHE", "/elsewhere")
    assert package.cache_dir() == Path("/elsewhere")


def test_the_pins():
    assert [(wheel.filename, wheel.sha256) for wheel in package.WHEELS] == [
        (
            "homeassistant-2026.2.3-py3-none-any.whl",
            "8167820cac4b8defe895fd2c36ac23402a445d1fe6028e8cde24caabb935282c",
        ),
        (
            "home_assistant_frontend-20261125.1-py3-none-any.whl",
            "56292fc59343a1e15e0eae2502c5443975f66ab085b12e7c0d68e3e72429df89",
        ),
    ]
