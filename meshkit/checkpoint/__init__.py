"""Checkpoints that know nothing of the layout: saved from one mesh, whole or not at all, restored on any other.

A checkpoint is a folder named by its step:

    state/            Orbax: the tree of arrays that `layout.py` names
    record/           JSON: step, position in the data, config, sizes of the model, versions (`record.py`)
    history/          JSON: the metrics logged so far, a list of records
    checksums.json    size and SHA-256 of each file above, written before the folder gets its name (`seal.py`)
    committed.json    the same of the two files that Orbax adds as it gives the folder its name
"""
