"""Texts in a column of Parquet files and of Arrow streams, which are what `datasets` saves; read by pyarrow.

A *group* is a row group of Parquet or a record batch of Arrow: the least that can be read alone, or found corrupt.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from meshkit.data.corrupt import CorruptError
from meshkit.errors import MeshkitError, nearest

ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the last message of a stream that was closed


class Table(Protocol):
    """An open file."""

    name: str  # of a group: "row group" or "batch"
    schema: Any

    def rows(self) -> Iterator[int]:
        """Rows of each group; `pyarrow.ArrowException` or OSError where one cannot be read."""

    def columns(self, column: str) -> Iterator[Any]:
        """For each group, a function that reads its column as an array of pyarrow."""


def groups(path: Path, column: str) -> tuple[list[int], CorruptError | None]:
    """The row at which each group begins, then the number of rows; and what is wrong with the rest of the file.

    Raises MeshkitError when pyarrow is missing, or the file has no such column, or one that holds no strings.
    """
    found = [0]
    try:
        with _opened(path) as table:
            _check_column(path, table.schema, column)
            try:
                for rows in table.rows():
                    found.append(found[-1] + rows)
            except _errors() as error:
                return found, CorruptError(f"{path}: {table.name} {len(found) - 1}: {_first_line(error)}")
    except _errors() as error:
        return found, CorruptError(f"{path}: {_first_line(error)}")
    return found, None


def texts(path: Path, span: range, column: str) -> Iterator[str | CorruptError]:
    """The texts of the rows in `span`; empty ones are no documents.

    A group that cannot be read comes as one `CorruptError`, as does a row without a text.
    """
    starts, _ = groups(path, column)
    with _opened(path) as table:
        for number, read in enumerate(itertools.islice(table.columns(column), len(starts) - 1)):
            start, stop = max(starts[number], span.start), min(starts[number + 1], span.stop)
            if start >= stop:
                continue
            where = f"{path}: {table.name} {number}"
            try:
                array = read().slice(start - starts[number], stop - start)
            except _errors() as error:
                yield CorruptError(f"{where}: {_first_line(error)}")
                continue
            yield from _rows(array, f"{where}: row", start)


def _rows(array: Any, where: str, first: int) -> Iterator[str | CorruptError]:
    for row, value in enumerate(array, first):
        try:
            text = value.as_py()
        except UnicodeDecodeError as error:
            yield CorruptError(f"{where} {row}: not UTF-8: {error.reason}")
            continue
        if text is None:
            yield CorruptError(f"{where} {row}: its text is null")
        elif text:
            yield text


@contextmanager
def _opened(path: Path) -> Iterator[Table]:
    pyarrow = _pyarrow()
    if not path.stat().st_size:
        raise pyarrow.ArrowInvalid("truncated: 0 bytes")
    with pyarrow.memory_map(str(path)) as source:
        yield _Parquet(source) if path.suffix == ".parquet" else _Arrow(source)


class _Parquet:
    name = "row group"

    def __init__(self, source: Any) -> None:
        from pyarrow.parquet import ParquetFile

        self._file = ParquetFile(source, page_checksum_verification=True)
        self.schema = self._file.schema_arrow

    def rows(self) -> Iterator[int]:
        metadata = self._file.metadata
        return (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))

    def columns(self, column: str) -> Iterator[Any]:
        read = lambda i: self._file.read_row_group(i, columns=[column], use_threads=False).column(column)
        return (lambda i=i: read(i) for i in range(self._file.num_row_groups))


class _Arrow:
    name = "batch"

    def __init__(self, source: Any) -> None:
        self._source, self._stream = source, _pyarrow().ipc.open_stream(source)
        self.schema = self._stream.schema

    def rows(self) -> Iterator[int]:
        yield from (batch.num_rows for batch in self._stream)
        self._source.seek(self._source.size() - len(ARROW_END))
        if self._source.read() != ARROW_END:  # cut between two messages, which reads like a whole stream
            raise _pyarrow().ArrowInvalid("truncated: the end of the stream is missing")

    def columns(self, column: str) -> Iterator[Any]:
        def read(batch: Any) -> Any:
            batch.validate(full=True)  # offsets beyond the data would be read from anywhere
            return batch.column(column)

        return (lambda batch=batch: read(batch) for batch in self._stream)


def _check_column(path: Path, schema: Any, column: str) -> None:
    types = _pyarrow().types
    if column not in schema.names:
        raise MeshkitError(f"{path}: has no column {column!r} (--column); {nearest(column, schema.names)}")
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise MeshkitError(f"{path}: column {column!r} holds {kind}, not strings: choose another with --column")


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise MeshkitError(
            "Parquet files and folders of `datasets` need the `pyarrow` package: pip install 'meshkit[arrow]'"
        ) from None
    return pyarrow


def _errors() -> tuple[type[BaseException], ...]:
    return (_pyarrow().ArrowException, OSError)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(".")
