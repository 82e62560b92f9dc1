"""The settings of the model of tables, readable without torch."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union

from pydantic import Field, Tag, field_validator, model_validator

from heedful.config import Config, FieldError, by_kind
from heedful.models import any_of, config_class, kinds_of
from heedful.models.limits import refuse_too_large
from heedful.models.roles import EncoderConfig, ImageEncoderConfig, ModelConfig, Side
from heedful.models.sizes import CellKind, layer_parameters

Width = Annotated[int, Field(ge=1, le=65_536)]


# ------------------------------------------------------------------ the columns
class TextInput(Config):
    """A column of texts."""

    kind: Literal["text"] = "text"
    vocab: int = Field(ge=1, le=10_000_000, description="vocabulary size")
    longest: int = Field(ge=1, le=1_048_576, description="maximum tokens of a text")


class NumbersInput(Config):
    """A column of numbers or of vectors."""

    kind: Literal["numbers"] = "numbers"
    size: int = Field(ge=1, le=1_000_000, description="numbers of a row")


class ClassInput(Config):
    """A column of classes."""

    kind: Literal["class"] = "class"
    classes: int = Field(ge=1, le=1_000_000, description="number of classes, the unknown one included")


class ImageInput(Config):
    """A column of images."""

    kind: Literal["image"] = "image"
    channels: int = Field(ge=1, le=1024, description="channels of an image")
    size: tuple[Side, Side] = Field(description="rows and columns of an image")


Input = Annotated[TextInput | NumbersInput | ClassInput | ImageInput, Field(discriminator="kind")]


# ------------------------------------------------------------------ how texts become vectors
class MeanOfWords(Config):
    """The mean of the embeddings of a text's tokens: a bag of words."""

    implementation: ClassVar = "MeanOfWords"

    kind: Literal["mean"] = "mean"
    width: Width = Field(64, description="width of the embeddings")

    @property
    def output(self) -> int:
        """The width of a text's vector."""
        return self.width

    def parameters(self, vocab: int) -> int:
        """The number of parameters."""
        return vocab * self.width


class RecurrentWords(Config):
    """Recurrent layers in both directions, and the mean of their outputs."""

    implementation: ClassVar = "RecurrentWords"

    kind: Literal["recurrent"] = "recurrent"
    width: Width = Field(64, description="width of the embeddings")
    cell: CellKind = Field("lstm", description="LSTM, GRU, or the plain RNN")
    hidden: Width = Field(64, description="width of the states of each direction")
    layers: int = Field(1, ge=1, le=100, description="number of layers")

    @property
    def output(self) -> int:
        """The width of a text's vector."""
        return 2 * self.hidden

    def parameters(self, vocab: int) -> int:
        """The number of parameters."""
        widths = [self.width] + [2 * self.hidden] * (self.layers - 1)
        return vocab * self.width + sum(2 * layer_parameters(self.cell, width, self.hidden) for width in widths)


class ConvolvedWords(Config):
    """Convolutions over words, and the largest activation of each filter (Kim, 2014)."""

    implementation: ClassVar = "ConvolvedWords"

    kind: Literal["convolution"] = "convolution"
    width: Width = Field(64, description="width of the embeddings")
    sizes: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = Field(
        (2, 3), min_length=1, max_length=100, description="filter widths, in tokens"
    )
    filters: Width = Field(32, description="filters of each width")

    @property
    def output(self) -> int:
        """The width of a text's vector."""
        return len(self.sizes) * self.filters

    def parameters(self, vocab: int) -> int:
        """The number of parameters."""
        return vocab * self.width + self.filters * sum(size * self.width + 1 for size in self.sizes)


OWN = {"mean": MeanOfWords, "recurrent": RecurrentWords, "convolution": ConvolvedWords}
if TYPE_CHECKING:
    TextEmbedder = MeanOfWords | RecurrentWords | ConvolvedWords | EncoderConfig
    ImageEmbedder = ImageEncoderConfig
else:
    _encoders = {kind: config_class(kind) for kind in kinds_of("encoder")}
    _members = tuple(Annotated[cls, Tag(kind)] for kind, cls in (OWN | _encoders).items())
    TextEmbedder = Annotated[Union[_members], by_kind("mean")]  # noqa: UP007
    ImageEmbedder = any_of("image_encoder", usual="lenet")


class TabularConfig(ModelConfig):
    """A vector for each column of a row, by its type; all of them together go through an MLP."""

    implementation: ClassVar = "model.TabularModel"

    kind: Literal["tabular"] = "tabular"
    columns: tuple[Input, ...] | None = Field(None, description="columns that are read; null: those of the data")
    outputs: int | None = Field(
        None, ge=1, le=100_000, description="number of classes, or 1 for a number; null: as the data have"
    )
    text: TextEmbedder = Field(
        MeanOfWords(), description="how a text becomes a vector: mean, recurrent, convolution, or any encoder"
    )
    image: ImageEmbedder = Field(
        config_class("lenet")(), description="the image encoder; its size and channels are those of the data"
    )
    grid: int = Field(
        2, ge=1, le=64, description="rows and columns that an image's feature map is averaged down to; 1: its mean"
    )
    width: Width = Field(32, description="width of each column's vector")
    hidden: tuple[Width, ...] = Field((128,), max_length=100, description="widths of the hidden layers")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate after each hidden layer")

    @field_validator("text")
    @classmethod
    def _has_no_heads(cls, text: Any) -> Any:
        return text.under_head(pools=True) if isinstance(text, EncoderConfig) else text

    @model_validator(mode="after")
    def _fits(self) -> Self:
        longest = max((one.longest for one in self.columns or () if isinstance(one, TextInput)), default=0)
        if isinstance(self.text, EncoderConfig) and longest > self.text.context:
            raise FieldError(
                f"texts may have {longest} tokens, but the encoder reads {self.text.context}; write context: {longest}",
                "text", "context",
            )  # fmt: skip
        refuse_too_large(self.parameters())
        return self

    @property
    def vocab(self) -> int:
        """The number of columns."""
        return len(self.columns or ())

    def image_encoder(self, column: ImageInput) -> Any:
        """The settings of the image encoder for the images of a column."""
        settings = self.image.model_dump() | {"channels": column.channels, "size": column.size}
        return type(self.image).model_validate(settings, strict=False)

    def column_parameters(self, column: Any) -> int:
        """The number of parameters that make a vector of a column."""
        match column:
            case TextInput():
                output = self.text.width if isinstance(self.text, EncoderConfig) else self.text.output
                return self.text.parameters(column.vocab) + (output + 1) * self.width
            case NumbersInput():
                return (column.size + 1) * self.width
            case ClassInput():
                return column.classes * self.width
        encoder = self.image_encoder(column)
        return int(encoder.map_parameters + (encoder.map_shape[0] * self.grid**2 + 1) * self.width)

    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters, as far as the columns are known."""
        columns = self.columns or ()
        widths = [len(columns) * self.width, *self.hidden, self.outputs or 1]
        return sum(map(self.column_parameters, columns)) + sum((a + 1) * b for a, b in pairwise(widths))

    @classmethod
    def tiny(cls) -> Self:
        columns = (
            TextInput(vocab=23, longest=16), NumbersInput(size=3), ClassInput(classes=4),
            ImageInput(channels=1, size=(16, 20)),
        )  # fmt: skip
        image = config_class("lenet").tiny()
        return cls(columns=columns, outputs=3, text=MeanOfWords(width=6), image=image, width=5, hidden=(7,))
