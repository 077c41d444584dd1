"""Draws what was found: in terminals, on pages of their own, in comments of CI.

A view says once what a command shows, as a `ReportDocument` of blocks; renderers say how it looks.
Both are drawn from `records/` and from the answers of other rooms, and return values. What may not
enter: measuring, computing answers, writing files, torch.

    document.py      the blocks: lead, facts, tables, bars, figures, findings, notes
    terminal.py      draws them with rich, for 80 columns and more (fitted_table.py: its tables)
    page.py          draws them as one HTML file (markup.py: safe HTML; *.css, *.js: its looks)
    markdown.py      draws texts and tables as Markdown
    figures.py       plots as plain data for plotly.js
    views/           one file per command: records in, a document out

Numbers are written by `ridgeline.quantity`. Start at `document.py`, then `views/compare.py`.
"""
