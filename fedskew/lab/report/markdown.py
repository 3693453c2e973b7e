"""The report in Markdown: what the page shows without hover values."""

from __future__ import annotations

from engine.results.results import Results
from fedskew.lab.report.claim_views import ClaimView
from fedskew.lab.report.sections import Sections
from fedskew.lab.report.sheets import escaped


def markdown(results: Results, sections: Sections) -> str:
    profile = f", profile {results.profile}" if results.profile else ""
    blocks = [f"# {escaped(results.title)}", escaped(f"{results.name}{profile}")]
    blocks.append("\n".join(f"> {escaped(sentence)}" for sentence in sections.coverage.sentences()))
    facts = ((name, escaped(figure), f" ({escaped(more)})" if more else "") for name, figure, more in sections.facts)
    blocks.append("\n".join(f"- {name}: {figure}{more}" for name, figure, more in facts))
    if sections.claims:
        blocks += ["## Claims", *map(_claim, sections.claims), sections.ledger]
    for view in sections.tables:
        blocks += [f"## {escaped(view.title)}", escaped(view.source)]
        blocks += [f"{sheet.markdown}\n\n{sheet.note}" for sheet in view.sheets]
        blocks += [f"![{escaped(one.caption)}]({one.name}.png)" for one in [view.diagram] if one]
        blocks.append(escaped(view.problem))
    if sections.best:
        blocks += ["## Best settings", sections.best.markdown, sections.best.note]
    for group in sections.groups:
        blocks += [f"## {group.title}", group.note]
        for drawing in group.drawings:
            caption = escaped(drawing.caption)
            blocks += [f"![{caption}]({drawing.name}.png)", caption]
    blocks += ["## Trials", *(f"Failed: {escaped(who)}: {escaped(why)}." for why, who in sections.failures)]
    blocks.append(sections.trials.markdown)
    # Nothing in here is HTML: a name that was not escaped where it stands is not either.
    return "\n\n".join(filter(None, blocks)).replace("<", "&lt;") + "\n"


def _claim(view: ClaimView) -> str:
    one = view.verdict
    source = f" ({escaped(one.claim.source)})" if one.claim.source else ""
    said = f"{view.number}. **{one.verdict}**: {escaped(one.claim.text)}{source}"
    more = (view.beside, escaped(one.why), escaped(view.lacks))
    return "  \n   ".join([said, "; ".join(view.numbers), *filter(None, more)])
