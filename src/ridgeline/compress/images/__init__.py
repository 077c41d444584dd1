"""Vision models made smaller: channels pruned, numbers rounded, each row judged on real images.

    apply.py        schemes in order, each row measured, saved if it held: start here
    recognised.py   whether MODEL is for images at all; models.py: from where people keep them
    material.py     the images, preprocessed as the model takes them
    measure.py      top-1 accuracy, distance from the model as given, models timed in turns
    detection.py    mAP of detectors, by COCO's own evaluation
    answers.py      agreement with an interval, SQNR, the paired test
    limits.py       what --max-loss allows
    timed.py        rows with P50 and P99, candidates in processes of their own (call_worker.py)
    latency.py      channels pruned for latency, or refused
    plans.py        the plan of a quantised model as a record, and in words
    saved.py        directories that transformers loads; quantised.py: ONNX and int8 levels
    evaluate.py     `ridgeline evaluate MODEL --images`

The numerics of rounding are in `vision/`, which channels go is decided in `pruning/channels/`.
Language models have the rest of `compress/`.
"""
