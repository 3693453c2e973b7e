"""What a class takes from a script: the definitions and the values that it reaches, and no other line."""

from __future__ import annotations

import linecache
import sys
from types import ModuleType
from typing import Any

import pytest

from engine.base.definitions import reached
from engine.base.errors import ConfigError

SCRIPT = """
import json
import math
from collections import OrderedDict
SCALE = {scale}
TABLE = {{"a": [1, {entry}]}}
OTHER = 3
def helper(x):
    return x * SCALE + math.pi
def unused(x):
    return json.dumps(x) + {unused}
class Base:
    kept = OrderedDict()
    def method(self):
        return helper({base})
class Mine(Base):
    "Says something."
    def own(self, other=None):
        def inner():
            return TABLE["a"]
        return {own}, inner, len(str(other))
"""
VALUES: dict[str, Any] = {"scale": 2.0, "entry": 2, "unused": 1, "base": 3, "own": 4}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class of a script, as Python has it that ran the text."""

    def run(text: str, name: str = "<cell>") -> Any:
        module = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
        exec(compile(text, name, "exec"), vars(module))
        return module

    return run


def test_what_is_reached_counts(script: Any) -> None:
    """Kills: a helper, a base class or a constant that changes under the same hash; the rest of a script that changes
    it."""
    text = SCRIPT.format(**VALUES)
    before = reached(script(text).Mine)
    names = {name.removeprefix("__main__.") for name in before.digests}
    assert names == {"Mine", "Base", "helper", "SCALE", "TABLE"}
    assert before.modules == {"math", "collections"}
    assert reached(script(text.replace("OTHER = 3", "OTHER = 4\nprint").replace("Says", "Tells")).Mine) == before
    for name, changed in (("scale", "SCALE"), ("entry", "TABLE"), ("base", "Base"), ("own", "Mine")):
        after = reached(script(SCRIPT.format(**{**VALUES, name: 7})).Mine)
        differ = {key for key in after.digests if after.digests[key] != before.digests[key]}
        assert differ == {f"__main__.{changed}"}, name
    assert reached(script(SCRIPT.format(**{**VALUES, "unused": 7})).Mine) == before


def test_a_value_that_was_changed_counts(script: Any) -> None:
    """Kills: the text of a constant in the place of what it is by now."""
    module = script(SCRIPT.format(**VALUES))
    before = reached(module.Mine)
    module.SCALE = 5.0
    assert reached(module.Mine).digests["__main__.SCALE"] != before.digests["__main__.SCALE"]


def test_what_cannot_be_told_is_refused(script: Any) -> None:
    """Kills: an object whose content is in no hash."""
    text = "class Box:\n    pass\nBOX = Box()\nclass Mine:\n    def f(self):\n        return BOX\n"
    with pytest.raises(
        ConfigError, match=r"^script=BOX: is a Box of the script, which cannot be told from another one; "
    ):
        reached(script(text).Mine)
    module = script("class Mine:\n    def f(self):\n        return 1\n")
    linecache.cache.clear()
    with pytest.raises(ConfigError, match=r"^class=Mine: has no source here, .*; write it into a \.py file$"):
        reached(module.Mine)


def test_of_a_module_nothing_is_reached() -> None:
    """Kills: a script that counts for parts which are not from there."""
    found = reached(ConfigError)
    assert found.digests == {} and found.modules == frozenset()


def test_classes_and_functions_in_a_list_count_as_if_named(script: Any) -> None:
    """Kills: a refusal of a list of layers; a function in a list, or its place there, that is in no hash."""
    text = "import json\ndef one():\n    return 1\nSTEPS = [one, json.loads, 3]\n"
    text += "class Mine:\n    def f(self):\n        return STEPS\n"
    before = reached(script(text).Mine)
    assert {name.removeprefix("__main__.") for name in before.digests} == {"Mine", "one", "STEPS"}
    assert before.modules == {"json"}
    for old, new, changed in (("return 1", "return 2", "one"), ("[one, json.loads", "[json.loads, one", "STEPS")):
        after = reached(script(text.replace(old, new)).Mine)
        assert {key for key in after.digests if after.digests[key] != before.digests[key]} == {f"__main__.{changed}"}
