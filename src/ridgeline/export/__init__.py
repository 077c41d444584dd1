"""A model written for another runtime, checked on real inputs in a fresh process, and measured.

What may not enter: how a runtime converts and loads (`runtimes/`), training, serving.
"""
