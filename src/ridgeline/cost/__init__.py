"""Theory: what a step must cost, from FLOPs, bytes and counts. Arithmetic on its arguments.

    amdahl.py      the speed-up of a whole from that of a part
    roofline.py    the rate that arithmetic intensity allows, and the ridge between its limits

Nothing here imports torch, reads a file, measures, or knows a device by name: peaks and
bandwidths come in as numbers. Start reading at `roofline.py`.
"""
