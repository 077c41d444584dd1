"""The whole state of a run, written while the run goes on; a checkpoint is whole or not there.

    store.py     folders, manifests, checksums, retention: what lies on disk; no torch
    same_run.py  may this recipe go on from that checkpoint; no torch
    writer.py    files of torch.distributed.checkpoint, summed as they are written, sealed at last
    state.py     what is saved, by names that every layout shares
    schedule.py  when: steps, seconds, or Young and Daly
    saver.py     one run's checkpoints: save beside the training, load the newest good one

What may not enter: why a run stops or starts (`survive/`), how a model is laid out. Start reading
at `saver.py`.
"""
