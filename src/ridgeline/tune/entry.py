"""Where the bootstrap enters the script's process to apply a stack.

A name only: the module itself imports torch, which the process that asks the questions never
needs.
"""

ENTRY = "ridgeline.tune.install:install"
