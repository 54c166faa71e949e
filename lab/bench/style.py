"""How does the page look? Light or dark as the reader has it, on paper too; system fonts, nothing fetched."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--ink:#1f2937;--soft:#6b7280;--rule:#e5e7eb;--paper:#fff;--card:#f9fafb;--good:#047857;--bad:#b91c1c}
@media(prefers-color-scheme:dark){:root{--ink:#e5e7eb;--soft:#9ca3af;--rule:#374151;--paper:#111827;--card:#1f2937;--good:#34d399;--bad:#f87171}}
*{box-sizing:border-box}
body{margin:0 auto}
body{max-width:1140px;padding:28px 24px 60px;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,"DejaVu Sans",sans-serif}
h1{font-size:25px;margin:0 0 4px}
h2{font-size:19px;margin:38px 0 8px}
h3{font-size:15px;margin:22px 0 6px}
p{margin:6px 0;max-width:78em}
.soft{color:var(--soft)}
.small{font-size:13px}
.verdict{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:14px 18px;margin:18px 0}
.verdict p{font-size:16px}
.note{border-left:3px solid var(--bad);padding-left:10px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:14px}
figure{margin:0;border:1px solid var(--rule);border-radius:8px;padding:12px 12px 4px;background:var(--card)}
figcaption{font-weight:600;font-size:14px}
figcaption span{font-weight:400;color:var(--soft)}
svg{max-width:100%}
figure>svg{width:100%;height:auto;display:block}
.grid{stroke:var(--rule)}
.axis{stroke:var(--soft)}
.tick,.name{fill:var(--soft);font-size:11.5px}
.level{stroke:var(--bad);stroke-dasharray:6 4}
.level-name{fill:var(--bad);font-size:11.5px}
.mark{stroke-dasharray:2 4;opacity:.75}
.legend{font-size:13px;margin:10px 0}
.legend span{margin-right:18px;white-space:nowrap}
.legend svg{vertical-align:middle}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;margin:6px 0}
th,td{padding:4px 10px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--soft);font-weight:600}
th:first-child,td:first-child,td.text,th.text{text-align:left}
thead tr.groups th{border:0;text-align:center;padding-bottom:0}
tr.best td{font-weight:600}
.good{color:var(--good)}
.bad{color:var(--bad)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;font-size:13px}
dt{color:var(--soft)}
dd{margin:0}
code{font-size:.95em;background:var(--rule);border-radius:4px;padding:1px 5px}
"""
