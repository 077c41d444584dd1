"""How the range of a group of numbers is found, one file each: `bounds(grouped, format)`.

`grouped` is [out, G, n], the n numbers of a group along the last axis; the answer is (low, high),
[out, G] each. A narrower range cuts the largest numbers and rounds all others finer.
"""
