"""Count what steps and rounds ask of a card: ``python -m tests.card.count [WORDS] [--write] [--where] [--model NAME]``.

Prints the table of ``budgets.py`` as it is now, or its rows that have these words; ``--write`` puts it there;
``--where`` tells the lines of code behind each row, launches among them; ``--model`` counts another model's steps.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import torch

from engine.models import MODELS
from tests.card import budgets
from tests.support.card_costs import measured, rows, told
from tests.support.on_card import one_canary
from tests.support.pretended_card import why_not
from tests.support.tiny import TinyNorm


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="a row has all of them in its name or executor")
    parser.add_argument("--write", action="store_true", help="into budgets.py")
    parser.add_argument("--where", action="store_true", help="tell lines of code")
    parser.add_argument("--model", default="tiny_norm", help="a name of the registry; not with --write")
    options = parser.parse_args()
    if why_not() or (options.write and options.model != "tiny_norm"):
        print(why_not() or "--write is for the model that the budgets are of", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    logging.getLogger("fedskew").setLevel(logging.ERROR)
    MODELS["tiny_norm"] = TinyNorm
    found = dict(budgets.BUDGETS) if options.write else {}
    with one_canary():
        for name, executor in rows():
            if not all(word in f"{name} {executor}" for word in options.words):
                continue
            found[name, executor], counts = measured(name, executor, options.model, lines=options.where)
            print(budgets.written({(name, executor): found[name, executor]}), end="", flush=True)
            if options.where:
                print(told(counts))
    if options.write:
        path = Path(budgets.__file__)
        before, _, after = path.read_text(encoding="utf-8").partition(f'"""{budgets.TABLE}"""')
        table = budgets.written({row: found[row] for row in rows() if row in found})
        path.write_text(f'{before}"""\n{table}"""{after}', encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
