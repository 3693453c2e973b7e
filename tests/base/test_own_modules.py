"""A user's files as modules: what a name stands for, what is refused, what is imported from texts."""

from __future__ import annotations

import importlib
import linecache
import pickle
import shutil
import sys
from pathlib import Path

import pytest

from engine.base import own_modules
from engine.base.errors import ConfigError, RunError
from engine.base.own_modules import Source, check_hides_nothing, import_file, install, named_files, sendable


def test_a_file_is_a_module_as_import_has_it(tmp_path: Path) -> None:
    """Kills: a file that is run twice, under two names; one that does not find the modules beside it; classes that no
    pickle finds again."""
    (tmp_path / "mine_a.py").write_text("from mine_b import B\nclass A(B):\n    pass\n")
    (tmp_path / "mine_b.py").write_text("class B:\n    pass\n")
    module = import_file(tmp_path / "mine_a.py", "--with")
    assert import_file(tmp_path / "." / "mine_a.py", "--with") is module is importlib.import_module("mine_a")
    assert pickle.loads(pickle.dumps(module.A)) is module.A
    assert named_files() == [tmp_path / "mine_a.py"]


REFUSED = {
    "absent": (None, "is not a file; name a Python file"),
    "colorsys": ("1", "has the name of another module (of Python); rename the file"),
    "engine": ("1", "has the name of another module (*engine/__init__.py); rename the file"),
    "mine_c": ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero (mine_c.py, line 1)"),
    "mine_d": ("def", "cannot be imported: SyntaxError: invalid syntax (mine_d.py, line 1)"),
    "mine_e": ("raise SystemExit(3)", "cannot be imported: SystemExit: 3 (mine_e.py, line 1)"),
    "mine_f": (
        "import algorithms",
        "imports algorithms, which is *algorithms/__init__.py and not *; rename ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_loaded_is_one_sentence(tmp_path: Path, name: str) -> None:
    """Kills: a traceback; a module that hides another one, or is hidden by one, without a word; what is left of it."""
    text, told = REFUSED[name]
    path = tmp_path / f"{name}.py"
    if text is not None:
        path.write_text(text)
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "__init__.py").write_text("")
    before = set(sys.modules)
    with pytest.raises(ConfigError) as raised:
        import_file(path, "--with")
    first, *rest = told.split("*")
    assert str(raised.value).startswith(f"--with={path}: {first}")
    assert all(part in str(raised.value) for part in rest)
    assert set(sys.modules) - before == set() and named_files() == []


@pytest.mark.parametrize("name", ["engine", "algorithms", "tune_configs", "fedskew"])
def test_a_folder_that_hides_ours_from_actors_is_named(tmp_path: Path, name: str) -> None:
    """Kills: an actor that dies of an import deep inside; folders without modules refused; our own refused; a checkout
    of what is installed refused, and one of other code not."""
    root = Path(__file__).parents[2]
    check_hides_nothing(root)
    shutil.copytree(root / name, tmp_path / "checkout" / name)
    check_hides_nothing(tmp_path / "checkout")
    with open(tmp_path / "checkout" / name / "__init__.py", "a", encoding="utf-8") as file:
        file.write("# changed\n")
    with pytest.raises(ConfigError, match=f"would hide fedskew's own package '{name}'"):
        check_hides_nothing(tmp_path / "checkout")
    (tmp_path / name).mkdir()
    check_hides_nothing(tmp_path)
    (tmp_path / name / "__init__.py").write_text("")
    told = f"would hide fedskew's own package '{name}' in Ray's processes, which begin in this folder; rename it, or"
    with pytest.raises(ConfigError, match=told):
        check_hides_nothing(tmp_path)


def test_texts_are_imported_before_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a node's own file of that name in the place of what was sent; a traceback without the line."""
    (tmp_path / "sent_pkg").mkdir()
    (tmp_path / "sent_pkg" / "__init__.py").write_text("X = 'file'")
    monkeypatch.syspath_prepend(tmp_path)
    sources = {
        "sent_pkg": Source("X = 'text'\nfrom .inner import Y\n", "/elsewhere/sent_pkg/__init__.py", True),
        "sent_pkg.inner": Source("Y = 2\ndef bad():\n    return 1 / 0\n", "/elsewhere/sent_pkg/inner.py"),
    }
    install(sources)
    module = importlib.import_module("sent_pkg")
    assert (module.X, module.Y) == ("text", 2)
    assert sendable(["sent_pkg.inner"]) == sources
    inner = sys.modules["sent_pkg.inner"]
    assert linecache.getline(str(inner.__file__), 3, vars(inner)) == "    return 1 / 0\n"
    install(sources)  # once more is nothing new
    with pytest.raises(
        RunError, match=r"has another module sent_pkg \(/elsewhere/.*\) than the one that was sent; ren"
    ):
        install({"sent_pkg": Source("X = 3\n", "/elsewhere/sent_pkg/__init__.py", True)})


def test_what_has_no_text_is_not_sent() -> None:
    """Kills: a compiled module that is missing on another node without a word."""
    with pytest.raises(ConfigError, match=r"is not Python source .*; install it as a package wherever it is to run"):
        sendable(["numpy._core._multiarray_umath"])


def test_a_text_is_the_one_that_was_loaded(tmp_path: Path) -> None:
    """Kills: a file that is edited after it was loaded, and hashed and sent as it is by then; a reload that is not
    noticed."""
    path = tmp_path / "mine_g.py"
    path.write_text("X = 1\n")
    module = import_file(path, "--with")
    path.write_text("X = 2\n")
    assert own_modules.text_of(module) == "X = 1\n"
    sys.path.insert(0, str(tmp_path))
    (tmp_path / "mine_h.py").write_text("X = 1\n")
    beside = importlib.import_module("mine_h")
    assert own_modules.text_of(beside) == "X = 1\n"
    (tmp_path / "mine_h.py").write_text("X = 2\n")
    assert own_modules.text_of(beside) == "X = 1\n"
    importlib.reload(beside)
    assert own_modules.text_of(beside) == "X = 2\n"
