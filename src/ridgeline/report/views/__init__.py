"""What each command shows: one file per command, from records and answers to a `ReportDocument`.

A view chooses and names; it computes nothing that a command has not answered. How a block looks is
the business of `terminal.py` and `page.py`.
"""
