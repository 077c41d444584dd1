"""Show what was recorded: terminal views, the HTML report, the text of a CI comment.

Everything here is drawn from `records/` (and the comparison in `measure/`) and returns a value: a
rich renderable, a string, or one file. Nothing here measures, prints, or imports torch.

    quantity.py     numbers as people read them
    wording.py      what a record says, in words that the terminal and the page share
    terminal.py     `doctor` and `tune` in the terminal
    comparison.py   `compare` in the terminal and as Markdown
    markup.py       HTML that is safe by construction
    bars.py         pictures made of plain boxes
    figures.py      plots as plain data for plotly.js
    sections.py     the parts of the page (page.css, page.js: its looks and its script)
    html.py         the page: one self-contained file
    page_frame.py   the frame of every page
    terms.py        how the terms of an estimate look, and the name of a layout
    planning_*.py   a prediction or a plan: its figures, its page, its terminal twins
    *_validation.py how far predictions are from published runs
    plan_terminal.py, serving_plan.py, explain_terminal.py    plans, and why one beats another
    roofline_*.py   the operators of a model under the roofs of devices
    simulated_*.py  a simulated fleet; load_test_*.py: a load test of a real one
    trace_*.py      what traces say, of one rank and across ranks
    training_*.py, compression_*.py, launch_*.py              what those commands show

Start reading at `terminal.py`.
"""
