"""Ready configs and the ways to start a run on many processes, imported as `meshkit.launch`."""
