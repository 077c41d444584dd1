"""Kinds of techniques that there are several of: each makes the functions that they share.

What may not enter: a technique. Start reading at `argument.py`.
"""
