"""The cheapest assignment of rows to columns, by shortest augmenting paths.

Hungarian algorithm in the form of Jonker and Volgenant (Computing 38, 1987), cubic in the smaller
side.
"""

import numpy as np


def assign(costs):
    """Pair rows with columns so that the sum of costs is the smallest.

    Args:
        costs: (n, m), finite.

    Returns:
        Rows and columns of min(n, m) pairs, rows ascending.
    """
    costs = np.asarray(costs, dtype=float)
    if costs.shape[0] > costs.shape[1]:
        columns, rows = assign(costs.T)
        order = np.argsort(rows)
        return rows[order], columns[order]
    num_rows, num_columns = costs.shape
    row_price, column_price = np.zeros(num_rows), np.zeros(num_columns)
    owner = np.full(num_columns, -1)
    for row in range(num_rows):
        _add_row(costs, row, owner, row_price, column_price)
    columns = np.flatnonzero(owner >= 0)
    rows = owner[columns]
    order = np.argsort(rows)
    return rows[order], columns[order]


def _add_row(costs, row, owner, row_price, column_price):
    """Give one more row a column, along the cheapest path of columns that change hands."""
    num_columns = costs.shape[1]
    distance = np.full(num_columns, np.inf)
    before = np.full(num_columns, -1)
    done = np.zeros(num_columns, dtype=bool)
    current, column, so_far = row, -1, 0.0
    while True:
        reduced = so_far + costs[current] - row_price[current] - column_price
        better = ~done & (reduced < distance)
        distance[better] = reduced[better]
        before[better] = column
        column = int(np.argmin(np.where(done, np.inf, distance)))
        so_far = distance[column]
        done[column] = True
        if owner[column] < 0:
            break
        current = owner[column]
    reached = done.copy()
    reached[column] = False
    row_price[row] += so_far
    row_price[owner[reached]] += so_far - distance[reached]
    column_price[reached] -= so_far - distance[reached]
    while column >= 0:
        previous = before[column]
        owner[column] = row if previous < 0 else owner[previous]
        column = previous
