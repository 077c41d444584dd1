"""Pictures with their labels, read from where people keep them, one by one and in a fixed order.

What may not enter: torch, models, training, augmentation. A source knows how many images there are
and gives any of them by its place, so that a reader can go on where it stopped.

    source.py       what every source offers, and `open_images`: start here
    labels.py       words as numbers
    folders.py      a folder for each class, or one folder with a table of labels
    boxes.py        objects in pictures, from COCO's annotation file
    tar_shards.py   WebDataset: .tar files whose members share a key
    arrays.py       .npz, .npy and .safetensors
    decoding.py     bytes of a JPEG or PNG as an array
    preprocess.py   from a picture of any size to what a model takes
    read_ahead.py   worker threads that decode the next images
"""
