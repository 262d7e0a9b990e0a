"""Reader of compiled programs: the text of XLA's HLO, as `jax.stages.Compiled.as_text()` prints it. No JAX.

What a program does between devices can only be known after compilation: this finds every collective,
the mesh axes it runs along, its bytes, and how often a run does it. Vocabulary: a *computation* is a
function, an *instruction* a line of it; the program starts in the computation called ENTRY.
"""

import dataclasses
import itertools
import math
import operator
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")

LOOPS = ("while", "conditional")

BITS = {"pred": 8, "token": 0, "opaque": 0}
"""Bits of the element types whose name does not tell (as f32, bf16, u4, f8e4m3fn, c64 do)."""

Groups = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """`name = type opcode(operands), attributes`: one line of a computation.

    type: as printed, e.g. "f32[2,8]{1,0}" or a tuple of such. operands: names of instructions of the
    same computation. op_name: where the program's source put it, e.g. "jit(step)/while/body/add".
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    @property
    def bytes(self) -> int:
        """Bytes of the result; of a tuple, of its arrays together."""
        return type_bytes(self.type)

    @property
    def op_name(self) -> str:
        """The instruction's `op_name` metadata, "" without any."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

    @property
    def calls(self) -> tuple[str, ...]:
        """Names of the computations that it runs: a loop's body, a fusion's inside, a reduction's sum …"""
        found = re.findall(
            r"(?:body|condition|to_apply|calls|\w+_computations?)=(\{[^}]*\}|%?[\w.\-]+)", self.attributes
        )
        return tuple(name for value in found for name in re.findall(r"[\w.\-]+", value))

    @property
    def trips(self) -> int | None:
        """How often a `while` runs its body, when the compiler knows."""
        found = re.search(r"known_trip_count\W+n\W+(\d+)", self.attributes)
        return int(found[1]) if found else None


@dataclasses.dataclass(frozen=True)
class Loop:
    """A `while` or `conditional` around an instruction. trips: runs of its body; None: known only when run."""

    name: str
    op_name: str
    trips: int | None

    @classmethod
    def of(cls, instruction: Instruction) -> Self:
        """The loop that an instruction of an opcode in LOOPS is."""
        return cls(instruction.name, instruction.op_name, instruction.trips)


@dataclasses.dataclass(frozen=True)
class Collective:
    """An exchange between devices, at one place of the program.

    name: of the instruction. kind: one of COLLECTIVES; an asynchronous pair counts once, as its kind.
    bytes: of the whole array that a group works on, as one device holds or gets it (all-gather: the
    result, else the operands).
    operands: arrays that it exchanges at once (the compiler combines small collectives into one).
    groups: partition ids that talk to each other; for a collective-permute, (source, target) pairs.
    loops: those around it, outermost first.
    """

    name: str
    kind: str
    groups: Groups
    bytes: int
    operands: int
    loops: tuple[Loop, ...]
    op_name: str

    @property
    def count(self) -> int | None:
        """How often one run of the program does it; None inside a loop with an unknown trip count."""
        trips = [loop.trips for loop in self.loops]
        return None if None in trips else math.prod(t for t in trips if t is not None)

    def axes(self, mesh: Mapping[str, int]) -> frozenset[str]:
        """The mesh axes along which members of a group differ.

        mesh: axis -> size, in the order of the Mesh's axes: `dict(mesh.shape)`. Partition k is the
        k-th device of `mesh.devices.flat`, as `jax.jit` numbers them.
        """
        coordinates = list(itertools.product(*map(range, mesh.values())))
        differing = set()
        for group in self.groups:
            for axis, values in zip(mesh, zip(*(coordinates[k] for k in group), strict=True), strict=True):
                if len(set(values)) > 1:
                    differing.add(axis)
        return frozenset(differing)


class Place(NamedTuple):
    """An instruction, the computation that it is a line of, and the loops around it, outermost first."""

    computation: Mapping[str, Instruction]
    instruction: Instruction
    loops: tuple[Loop, ...]


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program: its first line, its computations by name (name -> instruction), its ENTRY."""

    header: str
    computations: Mapping[str, Mapping[str, Instruction]]
    entry: str

    def walk(self) -> Iterator[Place]:
        """Every instruction, once for each path of calls that leads to it from ENTRY, in program order."""
        yield from self._walk(self.entry, ())

    def _walk(self, name: str, loops: tuple[Loop, ...]) -> Iterator[Place]:
        computation = self.computations[name]
        for instruction in computation.values():
            yield Place(computation, instruction, loops)
            if instruction.opcode in ("async-update", "async-done"):
                continue  # what they call was started, and walked through, before
            inside = (*loops, Loop.of(instruction)) if instruction.opcode in LOOPS else loops
            for called in instruction.calls:
                yield from self._walk(called, inside)

    def loops(self) -> list[tuple[Loop, ...]]:
        """The path to every loop, itself last, in program order."""
        return [
            (*place.loops, Loop.of(place.instruction)) for place in self.walk() if place.instruction.opcode in LOOPS
        ]

    def collectives(self) -> list[Collective]:
        """Every collective at every place where the program does it, in program order."""
        found = []
        for computation, instruction, loops in self.walk():
            kind = instruction.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                groups = read_groups(instruction.attributes, self.partitions)
                size = sum(computation[name].bytes for name in instruction.operands)
                size *= len(groups[0]) if kind == "all-gather" else 1
                operands = len(instruction.operands)
                found.append(Collective(instruction.name, kind, groups, size, operands, loops, instruction.op_name))
        return found

    @property
    def partitions(self) -> int:
        """Devices that run the program."""
        found = re.search(r"num_partitions=(\d+)", self.header)
        return int(found[1]) if found else 1

    @property
    def donated(self) -> frozenset[int]:
        """Numbers of the parameters whose memory an output takes over."""
        aliases = re.search(r"input_output_alias=\{((?:[^{}]|\{[^{}]*\})*)\}", self.header)
        return frozenset(map(int, re.findall(r"\((\d+),", aliases[1]))) if aliases else frozenset()


def read(text: str) -> Module:
    """The Module that a compiled program's text says. Raises ValueError when it is no such text."""
    lines = iter(text.splitlines())
    header = next((line for line in lines if line.startswith("HloModule")), None)
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = None, None
    for line in lines:
        start = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
        if start and not line[0].isspace():
            current = computations[start[2]] = {}
            entry = start[2] if start[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and " = " in line:
            instruction = read_instruction(line)
            current[instruction.name] = instruction
    if header is None or entry is None:
        raise ValueError("not the text of a compiled program: it has no HloModule line, or no ENTRY computation")
    return Module(header, computations, entry)


def read_instruction(line: str) -> Instruction:
    """One line of a computation. Raises ValueError when it is none."""
    head = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = ", line)
    if head is None:
        raise ValueError(f"not an HLO instruction: {line.strip()[:120]}")
    rest = line[head.end() :]
    cut = _closing(rest) if rest.startswith("(") else rest.index(" ")
    type_, rest = rest[:cut], rest[cut:].lstrip()
    opcode, _, _ = rest.partition("(")
    cut = _closing(rest)
    # An operand may be printed with its type; its name is what follows the sign.
    operands = re.findall(r"%([\w.\-]+)", rest[:cut])
    return Instruction(head[1], type_, opcode, tuple(operands), rest[cut:])


def type_bytes(text: str) -> int:
    """Bytes of an array type "f32[2,8]{1,0}", or of all arrays of a tuple type."""
    total = 0
    for element, sizes in re.findall(r"(\w+)\[([\d,<=]*)\]", text):
        dims = [int(size) for size in re.findall(r"\d+", sizes)]
        total += -(-math.prod(dims) * _bits(element) // 8)
    return total


def read_groups(attributes: str, partitions: int) -> Groups:
    """Who talks to whom, in any of XLA's spellings.

    Lists `{{0,1},{2,3}}` (also of source_target_pairs), grids `[2,2]<=[2,2]T(1,0)`, and axes of a mesh
    `mesh['a'=2,'b'=2] {'b'}`, with `device_ids=([4]T(0))` when its devices are not in order.
    Raises ValueError for any other spelling.
    """
    listed = re.search(r"(?:replica_groups|source_target_pairs)=(\{\{[\d,{} ]*\}\}|\{\})", attributes)
    if listed:
        groups = re.findall(r"\{([\d, ]+)\}", listed[1])
        everyone = [tuple(range(partitions))]  # what an empty list means
        return tuple([tuple(map(int, group.split(","))) for group in groups] or everyone)
    grid = re.search(r"replica_groups=\[(\d+),(\d+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", attributes)
    if grid:
        ids, columns = _transposed(grid[3]), int(grid[2])
        return tuple(tuple(ids[start : start + columns]) for start in range(0, len(ids), columns))
    axes = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((\[[^)]*\)?)\))? \{([^}]*)\}", attributes)
    if axes:
        sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", axes[1])}
        ids = _transposed(axes[2]) if axes[2] else list(range(math.prod(sizes.values())))
        return _along(sizes, ids, axes[3])
    raise ValueError(f"a spelling of replica_groups that is not known: {attributes[:200]}")


def _along(sizes: Mapping[str, int], ids: list[int], axes: str) -> Groups:
    """Groups of the devices `ids` of a mesh along `axes`: 'a', or a part of one, 'a':(stride before)size."""
    parts = [
        (
            list(sizes).index(name),
            int(size or sizes[name]),
            sizes[name] // (int(before or 1) * int(size or sizes[name])),
        )
        for name, before, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", axes)
    ]
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, coordinates in zip(ids, itertools.product(*map(range, sizes.values())), strict=True):
        rest = list(coordinates)
        for dim, size, stride in parts:
            rest[dim] -= coordinates[dim] // stride % size * stride
        groups.setdefault(tuple(rest), []).append(device)
    return tuple(map(tuple, groups.values()))


def _transposed(text: str) -> list[int]:
    """ "[2,3]T(1,0)": 0 … 5 in a 2 × 3 grid, read along its transposed dims."""
    sizes, _, order = text.removeprefix("[").removesuffix(")").partition("]")
    shape = [int(size) for size in sizes.split(",")]
    dims = [int(dim) for dim in order.removeprefix("T(").split(",")] if order else range(len(shape))
    strides = [math.prod(shape[dim + 1 :]) for dim in dims]
    return [sum(map(operator.mul, index, strides)) for index in itertools.product(*(range(shape[d]) for d in dims))]


def _bits(element: str) -> int:
    if element in BITS:
        return BITS[element]
    digits = re.match(r"[a-z]+(\d+)", element)
    if digits is None:
        raise ValueError(f"an element type that is not known: {element}")
    return int(digits[1])


def _closing(text: str) -> int:
    """Where the first parenthesis of `text` has been closed: the position after it."""
    depth = 0
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    raise ValueError(f"parentheses that do not close: {text[:120]}")
