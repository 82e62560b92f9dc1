"""The layers of a model as a table: names, output shapes and numbers of parameters; readable without torch."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One layer of a summary: its name, its kind, its output shape, and its number of parameters."""

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    frozen: int = 0  # how many of the parameters are not trained
    reads: str = ""  # the layer whose output is its input, where that is not computed in between
    field: int = 0  # rows and columns of the pixels that a unit sees; 0: it is not known

    @property
    def output(self) -> str:
        """The output shape with the batch first and the features last; empty where there is no output."""
        return f"({', '.join(map(str, ('None', *self.shape[1:], self.shape[0])))})" if self.shape else ""


class Summary(tuple[Row, ...]):
    """The layers of a network as a table, as Keras prints it.

    A shape has the features or channels first, without the batch; it is printed with the batch first and these last.
    """

    @property
    def parameters(self) -> int:
        """The number of parameters, including frozen ones."""
        return sum(row.parameters for row in self)

    @property
    def frozen(self) -> int:
        """The number of parameters that are not trained."""
        return sum(row.frozen for row in self)

    def __repr__(self) -> str:
        lines = [("Layer (type)", "Output shape", "Parameters", "Receptive field")]
        for row in self:
            field = f"{row.field} x {row.field}" if row.field else ""
            lines.append((f"{row.name} ({row.kind})", row.output, f"{row.parameters:,}", field))
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        table = [f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {count:>{widths[2]}}" for name, shape, count, _ in lines]
        if any(row.field for row in self):
            table = [f"{line}  {field:>{widths[3]}}".rstrip() for line, (*_, field) in zip(table, lines, strict=True)]
        totals = [
            f"Total parameters: {self.parameters:,}",
            f"Trainable parameters: {self.parameters - self.frozen:,}",
            f"Non-trainable parameters: {self.frozen:,}",
        ]
        return "\n".join([table[0], "-" * len(table[0]), *table[1:], "-" * len(table[0]), *totals])

    __str__ = __repr__
