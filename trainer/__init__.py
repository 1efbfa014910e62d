"""Trainer: a frozen dataset and a parent checkpoint in, one complete checkpoint out, or a sentence why not.

`stage.train` is the way in, and `loop.py` is the loop on a page. `losses`, `advantages` and `monitors` are
functions of values; `batches` turns rows into tensors; `policy` holds the weights; `checkpoints` and `state`
own what is on disk. Importing the package, its configuration or its errors loads nothing heavy.
"""
