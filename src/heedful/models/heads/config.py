"""The settings of models that are an encoder with a layer on top, readable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.models import any_of, config_class, kinds_of
from heedful.models.roles import BELOW_HEADS, BelowHeadConfig, ModelConfig
from heedful.models.sizes import Label, layer_parameters, unique_labels

if TYPE_CHECKING:
    AnyEncoder = BelowHeadConfig
else:
    AnyEncoder = any_of(*BELOW_HEADS, usual="bert")


def tiny_encoder() -> Any:
    """The first of the encoders, for tests."""
    return config_class(kinds_of("encoder")[0]).tiny()


HeadDropout = Annotated[float, Field(ge=0, lt=1, description="dropout rate before the head")]


class HeadConfig(ModelConfig):
    """What all models share that are an encoder with a head on top."""

    pools: ClassVar[bool]  # whether it reads the pooled vector of a text, or those of its tokens

    encoder: AnyEncoder | None = Field(
        None, description="settings of the encoder, without pre-training heads; null: those of the folder in `start`"
    )
    freeze: bool = Field(False, description="whether the encoder is frozen, and only the head is trained")
    longest: int | None = Field(
        None, ge=4, le=1_048_576, description="maximum number of tokens of a text; null: the encoder's context"
    )

    @field_validator("encoder")
    @classmethod
    def _has_no_heads(cls, encoder: BelowHeadConfig | None) -> BelowHeadConfig | None:
        if encoder is None:
            return None
        bare = encoder.under_head(cls.pools, cls.model_fields["kind"].default)
        known = dict(bare)
        for name, value in encoder:
            if name in encoder.model_fields_set and value != known[name]:
                there = str(known[name]).lower()
                raise FieldError(f"under the head of another task it is not as written; write {name}: {there}", name)
        return bare

    @property
    def packs(self) -> bool:
        """Whether it can read sequences packed end to end in one row."""
        return self.encoder is None or self.encoder.packs

    @property
    def vocab(self) -> int | None:
        """Token types; None while there is no encoder, or while it follows the tokenizer."""
        return None if self.encoder is None else self.encoder.vocab

    @property
    def context(self) -> int:
        """Longest sequence, in tokens."""
        assert self.encoder is not None, "the encoder comes from the folder that the run starts from"
        return min(self.encoder.context, self.longest or self.encoder.context)

    @classmethod
    def tiny(cls) -> Self:
        return cls.model_validate({"encoder": tiny_encoder()})

    @property
    def missing(self) -> list[str]:
        """The settings that are not known until a run begins, and a model cannot be without."""
        return [name for name in type(self).model_fields if name != "longest" and getattr(self, name) is None]


def pooled_parameters(encoder: BelowHeadConfig, outputs: int) -> int:
    """The number of parameters of a layer on the vector of a text."""
    return (encoder.width + encoder.pooled_bias) * outputs


def with_vocab(config: Any, vocab: int) -> Any:
    """The same model with this vocabulary size."""
    if isinstance(config, HeadConfig):
        return config.model_copy(update={"encoder": with_vocab(config.encoder, vocab)})
    return config.model_copy(update={"vocab": vocab})


class ClassifierConfig(HeadConfig):
    """One class of several for a text or a pair of texts (Devlin et al., 2019): a layer on the first token's vector."""

    implementation: ClassVar = "classifier.Classifier"
    pools: ClassVar = True

    kind: Literal["classifier"] = "classifier"
    labels: tuple[Label, ...] | None = Field(
        None, min_length=2, max_length=100_000, description="names of the classes; null: those of the training data"
    )
    dropout: HeadDropout = 0.1

    _labels_differ = field_validator("labels")(unique_labels)

    def parameters(self, vocab: int) -> int:
        """The number of parameters, for two classes where they are not known yet."""
        assert self.encoder is not None
        return self.encoder.parameters(vocab) + pooled_parameters(self.encoder, len(self.labels or "ab"))

    @classmethod
    def tiny(cls) -> Self:
        return cls(encoder=tiny_encoder(), labels=("a", "b", "c"))


class MultiLabelConfig(HeadConfig):
    """Any number of labels for a text or a pair of texts: a layer whose outputs are probabilities of their own."""

    implementation: ClassVar = "classifier.Classifier"
    pools: ClassVar = True

    kind: Literal["multi_label"] = "multi_label"
    labels: tuple[Label, ...] | None = Field(
        None, min_length=1, max_length=100_000, description="names of the labels; null: those of the training data"
    )
    dropout: HeadDropout = 0.1

    _labels_differ = field_validator("labels")(unique_labels)

    def parameters(self, vocab: int) -> int:
        """The number of parameters, for two labels where they are not known yet."""
        assert self.encoder is not None
        return self.encoder.parameters(vocab) + pooled_parameters(self.encoder, len(self.labels or "ab"))

    @classmethod
    def tiny(cls) -> Self:
        return cls(encoder=tiny_encoder(), labels=("a", "b", "c"))


class RegressorConfig(HeadConfig):
    """A number, or several, for a text or a pair of texts, such as how alike they are: the same layer."""

    implementation: ClassVar = "classifier.Regressor"
    pools: ClassVar = True

    kind: Literal["regressor"] = "regressor"
    numbers: tuple[Label, ...] = Field(
        (),
        max_length=100_000,
        exclude_if=lambda numbers: not numbers,  # recipes and folders without them stay as they are
        description="names of the numbers, where a text has several; none: it has one",
    )
    dropout: HeadDropout = 0.1

    @field_validator("numbers")
    @classmethod
    def _numbers_differ(cls, numbers: tuple[str, ...]) -> tuple[str, ...]:
        if len(numbers) == 1:
            raise ValueError("one number has no name; leave numbers out")
        return unique_labels(numbers) or ()

    def parameters(self, vocab: int) -> int:
        """The number of parameters."""
        assert self.encoder is not None
        return self.encoder.parameters(vocab) + pooled_parameters(self.encoder, len(self.numbers) or 1)


class MultipleChoiceConfig(HeadConfig):
    """A score for each of several continuations of a text (Devlin et al., 2019): a layer with one output."""

    implementation: ClassVar = "classifier.Regressor"
    pools: ClassVar = True

    kind: Literal["multiple_choice"] = "multiple_choice"
    dropout: HeadDropout = 0.1

    @property
    def packs(self) -> bool:
        """No: the choices of a question have rows of their own."""
        return False

    def parameters(self, vocab: int) -> int:
        """The number of parameters."""
        assert self.encoder is not None
        return self.encoder.parameters(vocab) + pooled_parameters(self.encoder, 1)


Feature = Literal["first", "last", "second_to_last", "sum_last_four", "concat_last_four", "sum_all"]


class DenseReader(Config):
    """The one layer that is added when the encoder is fine-tuned, on each word's vector alone."""

    kind: Literal["linear"] = "linear"

    def width(self, features: int) -> int:
        """The width of what the last layer reads."""
        return features

    def parameters(self, features: int) -> int:
        """The number of parameters, without the last layer."""
        return 0


class BiLSTMReader(Config):
    """LSTM layers that read the whole sentence in both directions, before the last layer."""

    kind: Literal["bilstm"] = "bilstm"
    layers: int = Field(2, ge=1, le=100, description="number of layers")
    hidden: int = Field(
        768, ge=2, le=65_536, multiple_of=2, description="width of the states, both directions together"
    )

    def width(self, features: int) -> int:
        """The width of what the last layer reads."""
        return self.hidden

    def parameters(self, features: int) -> int:
        """The number of parameters, without the last layer."""
        widths = [features] + [self.hidden] * (self.layers - 1)
        return sum(2 * layer_parameters("lstm", width, self.hidden // 2) for width in widths)


class TaggerConfig(HeadConfig):
    """A tag for each word of a text (Devlin et al., 2019), such as whether it is in a name, and of what."""

    implementation: ClassVar = "tagger.Tagger"
    pools: ClassVar = False

    kind: Literal["tagger"] = "tagger"
    labels: tuple[Label, ...] | None = Field(
        None, min_length=1, max_length=100_000, description="the tags; null: those of the training data"
    )
    features: Feature = Field(
        "last", description="which layers of the encoder are used; first: the embeddings, before the first block"
    )
    reader: Annotated[DenseReader | BiLSTMReader, Field(discriminator="kind")] = Field(
        DenseReader(), description="what is on top of them: a linear layer, or an LSTM and a linear layer"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate before each layer of the head")

    _labels_differ = field_validator("labels")(unique_labels)

    @property
    def packs(self) -> bool:
        """Whether it can read sequences packed end to end in one row, which an LSTM would read as one."""
        return super().packs and self.reader.kind == "linear"

    @model_validator(mode="after")
    def _layers_are_there(self) -> Self:
        if self.features in ("first", "second_to_last") and not self.freeze:
            raise FieldError(
                f"{self.features} leaves blocks of the encoder unread, which then cannot learn; write freeze: true",
                "features",
            )
        if self.encoder is not None and self.encoder.layers < 4 and self.features.endswith("four"):
            raise FieldError(
                f"{self.features} needs four blocks, and the encoder has {self.encoder.layers}; write features: last",
                "features",
            )
        return self

    @property
    def feature_width(self) -> int:
        """The width of what is read of each token."""
        assert self.encoder is not None
        return self.encoder.width * (4 if self.features == "concat_last_four" else 1)

    def parameters(self, vocab: int) -> int:
        """The number of parameters, for three tags where they are not known yet."""
        assert self.encoder is not None
        width = self.feature_width
        out = (self.reader.width(width) + 1) * len(self.labels or "BIO")
        return self.encoder.parameters(vocab) + self.reader.parameters(width) + out

    @classmethod
    def tiny(cls) -> Self:
        return cls(encoder=tiny_encoder(), labels=("O", "B", "I"))


class AnswererConfig(HeadConfig):
    """The answer to a question as a part of a passage (Devlin et al., 2019): where it begins, and where it ends."""

    implementation: ClassVar = "answerer.Answerer"
    pools: ClassVar = False

    kind: Literal["answerer"] = "answerer"

    def parameters(self, vocab: int) -> int:
        """The number of parameters."""
        assert self.encoder is not None
        return self.encoder.parameters(vocab) + 2 * (self.encoder.width + 1)
