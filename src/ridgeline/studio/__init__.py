"""The page of `ridgeline studio`: limits and trade-offs under one's hands, in a browser.

One more face over the functions that the commands call. What may not enter: formulas, fits,
torch; what is missing below is added below, with a command of its own.

How an explorer is added: one file in `explorers/`, which is found by being there. It defines
`EXPLORER = Explorer(…)` (see `explorer.py`):

    inputs     what a reader may move, as data (`explorer.py`): sliders, choices, switches, numbers
    command    the state → the words of the command that gives the same
    answer     the state → what that command prints with `--json`, from the function that it calls
    draw       that answer alone → a `Picture`: a sentence that says what bounds the thing now, and
               blocks of the report (`report/document.py`): figures, tables, values
    why        the formulas behind it, each with its source

`draw` sees nothing but the answer, so that a picture cannot show what the command does not say.
Figures are drawn in `report/views/`; an explorer formats and joins, and does no arithmetic of its
own. `tests/studio/test_explorers.py` holds every explorer to that: it runs the command and compares
the documents, and reads the file for operators. `explorers/roofline.py` is the one to copy.

A page that is no explorer (opened files, drills) is one file in `pages/`, found likewise:
`PAGE = Page(…)` of `page.py`.

    app.py        routes, and answers of explorers as JSON; guard.py: who may ask
    shell.py      the frame around every page; controls.py: inputs as HTML
    files.py      files that were named on the command line; looks/: style sheet and script
    server.py     the process

The state of a page is its address, and the server keeps none: a link shows what its sender saw, and
a closed tab leaves nothing behind. Start reading at `explorer.py`, then `explorers/roofline.py`.
"""
