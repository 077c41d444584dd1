"""What may be concluded from times: numbers in, intervals and verdicts out.

    intervals.py      ratios with their intervals, and when step times are steady
    cycles.py         long steps that return after so many others
    shares.py         a share of things that were counted
    metric.py         the median, the mean, a percentile or a tail of many samples
    sequential.py     how many rounds an A/B run takes, decided while it runs
    change_points.py  where a series of measurements changed

What may not enter: processes, files, records. Start reading at `intervals.py`.
"""
