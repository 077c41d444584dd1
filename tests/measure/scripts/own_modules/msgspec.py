"""The script's own module, called as an installed one."""

MINE = True
