"""Exercise of the lesson memory-hierarchy: the order of a transpose.

b[column, row] = a[row, column], float32, through a cache of 128 lines of 64 bytes. This order
misses it 69,632 times. Choose one that misses at most 9,000 times.
"""


def solve(rows, columns):
    return [(row, column) for row in range(rows) for column in range(columns)]
