"""What is wrong with a part of the input, as a value: raised, or listed and left out if the user asks for it."""

from meshkit.errors import MeshkitError


class CorruptError(MeshkitError):
    """A part of an input that cannot be read; its text names the file, the place in it and the reason."""

    @property
    def refused(self) -> MeshkitError:
        """The error for a user who did not ask for such parts to be left out."""
        return MeshkitError(f"{self}: mend or remove it, or leave it out with `meshkit data prepare --skip-corrupt`")
