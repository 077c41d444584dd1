"""Timed questions as staff interviews ask them, and failures to be diagnosed.

    questions/*.toml   a question of arithmetic is a row: values to draw from, a sentence, steps
    questions.py       draws a row's values and has `ridgeline calc` work the answer out
    scenarios/*.toml   a failure: what was seen, what it could be, what could cure it
    scenarios/records  the real runs and traces that the evidence is read from
    scenarios.py       a failure as a question, its options in an order that the seed decides
    causes.py          a question for each record that no scenario tells, by what was found in it
    evidence.py        lines of a record
    bank.py            every question by name and topic; a question from its id
    grading.py         an answer beside the right one
    history.py         what is remembered of earlier sessions

What may not enter: a formula (an answer is what `plan/calc.py` gives, a cause what `diagnose/`
found), torch, and anything that prints or waits for keys. A new question is a row, a new scenario
a file; both are found by being there. Start reading at `bank.py`.
"""
