"""What steps and rounds may ask of a card; edit a number, or see ``python -m tests.card.count --help``.

``lanes`` is ``graph`` with two lanes. A row: launches, replays of graphs, waits of the host and uploads; first of one
step of one client, then of a round of four clients beside their steps (or of what has no steps: CCVR's stage, an
evaluation of one batch). What is counted, and in which experiment, is in ``tests/support/card_costs.py``. A budget is
what is asked for now: more is a loss that somebody has to want, less is a gain to be kept, so either makes
``test_budgets.py`` fail until the row says so.
"""

from __future__ import annotations

from tests.support.card_costs import Cost, Row

TABLE = """
fedavg            | loop        |     25.5     0      0    0.5 |       86     0      8      2
fedavg            | block       |      9.5     0      0  0.125 |       36     0      5      2
fedavg            | graph       |        3     1      0    0.5 |      130     0      8      2
fedavg            | block_graph |     0.75  0.25      0  0.125 |       47     0      5      2
fedavg            | lanes       |        3     1      0    0.5 |      118     0      6      2
fedavg, crop_flip | loop        |     38.5     0      0    0.5 |       66     0      8      2
fedavg, crop_flip | block       |    11.75     0      0  0.125 |       36     0      5      2
fedavg, crop_flip | graph       |        6     1      0    0.5 |      130     0      8      2
fedavg, crop_flip | block_graph |      1.5  0.25      0  0.125 |       47     0      5      2
scaffold          | loop        |     24.5     0      0    0.5 |      175     0     22      7
scaffold          | block       |    10.25     0      0  0.125 |      156     0     23      7
scaffold          | graph       |        3     1      0    0.5 |      267     0     26      7
scaffold          | block_graph |     0.75  0.25      0  0.125 |      168     0     23      7
moon              | loop        |    118.5     0      0    0.5 |      154     0     28     10
pflego            | loop        |       13     0      0      1 |      379     0     33     11
pflego            | block       |      2.5     0      0      0 |      296     0     30      8
pflego            | graph       |        3     1      0      0 |      375     4     33     11
pflego            | block_graph |     0.75  0.25      0      0 |      266     1     30      8
fedser            | loop        |      101     0      0    0.5 |       88     0      8      2
cbfl              | loop        |       94     0      0    0.5 |      101     0     15      5
cbfl              | block       |   27.125     0      0  0.125 |       51     0     12      5
cbfl              | graph       |     22.5     1      0    0.5 |      165     0     15      5
cbfl              | block_graph |    5.625  0.25      0  0.125 |       67     0     12      5
cbfl              | lanes       |     22.5     1      0    0.5 |      153     0     13      5
cbfl, crop_flip   | loop        |      107     0      0    0.5 |       81     0     15      5
cbfl, crop_flip   | block_graph |    6.375  0.25      0  0.125 |       67     0     12      5
cbfl's generator  | loop        |      107     0      0      0 |        0     0      0      0
ccvr              | loop        |        0     0      0      0 |     1609     0    143     48
evaluation        | loop        |        0     0      0      0 |       40     0      3      2
"""


def parsed(table: str) -> dict[tuple[str, str], Row]:
    """The rows of a table, by what they are of and by executor."""
    found = {}
    for line in table.strip().splitlines():
        name, executor, step, round = (cell.strip() for cell in line.split("|"))
        found[name, executor] = Row(*(Cost(*map(float, cell.split())) for cell in (step, round)))
    return found


def written(rows: dict[tuple[str, str], Row]) -> str:
    """The table of these rows."""
    lines = []
    for (name, executor), row in rows.items():
        step, round = (
            f"{cost.launches:8g} {cost.replays:5g} {cost.waits:6g} {cost.uploads:6g}" for cost in (row.step, row.round)
        )
        lines.append(f"{name:17} | {executor:11} | {step} | {round}\n")
    return "".join(lines)


BUDGETS = parsed(TABLE)
