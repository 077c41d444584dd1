"""An answer to the exercise of the lesson graphs-and-streams."""


def solve(chunks):
    return [
        (chunk % 3, engine, chunk) for chunk in range(chunks) for engine in ("in", "compute", "out")
    ]
