"""Published weights: safetensors folders of Hugging Face's, read into meshes and checkpoints, and written.

`meshkit.models.published` says what sizes a config.json means, `meshkit.models.names` which tensor holds which
parameter; both are read in either direction.
"""
