"""Style of the page on a fine-tuning -> added to the style sheet of all pages."""

STYLE = """
h3 { font-size: 1rem; margin: 1.3rem 0 .4rem; }
.plots.always { display: grid; }
.cards dt { overflow-wrap: anywhere; }
.scores th, .scores td { vertical-align: middle; }
.scores .main > th, .scores .main > td { font-weight: 600; }
.scores .main .quiet { font-weight: 400; }
.scores td:last-child { white-space: normal; min-width: 260px; }
.scores .other > th { font-weight: 400; color: var(--quiet); }
.strip { width: 100%; max-width: 340px; height: auto; display: block; }
.strip text { font-size: 9px; fill: var(--quiet); font-weight: 400; }
.undefined { color: var(--watch); }
.confusion { width: auto; }
.confusion th, .confusion td { text-align: right; padding: 5px 9px; }
.confusion tbody th, .confusion thead th:first-child { text-align: left; }
.confusion td { background: color-mix(in srgb, var(--bad) var(--share), transparent); min-width: 4.2em; }
.confusion td.right { background: color-mix(in srgb, var(--healthy) var(--share), transparent); }
.confusion td.none { color: var(--quiet); }
.confusion small { display: block; color: inherit; opacity: .8; font-size: .74rem; }
.sample .gold { color: var(--good); font-weight: 600; }
.sample .wrong { color: var(--bad); font-weight: 600; }
@media (max-width: 560px) {
  .scores thead { display: none; }
  .scores tr, .scores th, .scores td { display: block; border: 0; }
  .scores tr { padding: 7px 0; }
  .scores tr + tr { border-top: 1px solid var(--line); }
  .scores thead + tbody tr:first-child > * { border: 0; }
  .scores tbody th, .scores td { padding-block: 1px; border: 0; }
  .scores td:not(:last-child)::before {
    content: attr(data-label) ": "; color: var(--quiet); font-weight: 400;
  }
  .scores td:last-child { min-width: 0; }
}
"""
