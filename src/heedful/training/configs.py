"""The settings of training, readable without torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Tag, ValidationInfo, field_validator, model_validator

from heedful.config import Config, by_kind
from heedful.training.checkpoint.choice import Use
from heedful.training.loggers import LoggerConfig
from heedful.training.optim import SGD, AdamW, Constant, Cosine, Linear, Noam, RMSprop, Stepwise

OptimizerConfig = Annotated[
    Annotated[AdamW, Tag("adamw")] | Annotated[RMSprop, Tag("rmsprop")] | Annotated[SGD, Tag("sgd")], by_kind("adamw")
]
ScheduleConfig = Annotated[Noam | Cosine | Linear | Stepwise | Constant, Field(discriminator="kind")]


class Budget(Config):
    """When training ends: at the first limit that is reached. A run limited by minutes cannot be repeated exactly."""

    steps: int | None = Field(None, ge=1, description="optimizer steps")
    tokens: int | None = Field(
        None,
        ge=1,
        description="predicted tokens, without padding; in pre-training, input tokens; for trees, labelled nodes; "
        "for texts with labels, labels; for images, images",
    )
    epochs: int | None = Field(None, ge=1, le=100_000, description="passes over the training data")
    minutes: float | None = Field(None, gt=0, description="minutes of training")

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if all(limit is None for limit in (self.steps, self.tokens, self.epochs, self.minutes)):
            raise ValueError("training would never end; write at least one of steps, tokens, epochs, minutes")
        return self


class Penalty(Config):
    """A penalty on some weights, which is added to the loss and reported as a part of it."""

    kind: Literal["l1", "l2"] = Field(description="l1: sum |w|, for many zeros; l2: sum w^2 / 2")
    weights: str = Field("*weight", description="pattern of the names of the weights, as `heedful summary` lists them")
    weight: float = Field(gt=0, description="factor of the penalty in the loss")


class PlayerConfig(Config):
    """How a part of the model is trained that has an optimizer of its own; the schedule is that of the others."""

    optimizer: OptimizerConfig = Field(AdamW(), description="optimizer of its weights")
    clip: float | None = Field(1.0, gt=0, description="maximum norm of its gradients; null: no clipping")


class TrainConfig(Config):
    """How the model is trained, how often it is evaluated and saved, and on which device."""

    seed: int = Field(0, ge=0, lt=2**63, description="random seed of weights, sample order and dropout")
    budget: Budget = Field(description="when training ends")
    batch_tokens: int = Field(
        4096,
        ge=1,
        description="tokens per batch, padding included; for translations, on the longer side; for trees, nodes",
    )
    batch_examples: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="examples per batch, of any length, for fine-tuning and images; null: `batch_tokens` is used",
    )
    batching: Literal["auto", "padded", "packed"] = Field(
        "auto",
        description="padded: one row per sample; packed: all end to end in one row; auto: packed on a GPU if the "
        "model supports it",
    )
    accumulate: int = Field(1, ge=1, description="batches whose gradients are added up for one step")
    optimizer: OptimizerConfig = Field(AdamW(), description="optimizer of the weights")
    schedule: ScheduleConfig = Field(Cosine(), description="learning-rate schedule")
    regularize: tuple[Penalty, ...] = Field(
        (),
        exclude_if=lambda penalties: not penalties,  # recipes without any stay as they are
        description="penalties on weights, added to the loss of a step and reported with it",
    )
    clip: float | None = Field(1.0, gt=0, description="maximum gradient norm; null: no clipping")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="auto: bf16 if the GPU supports it; fp16 scales the loss, for GPUs without bf16"
    )
    compile: bool = Field(False, description="use torch.compile: a slow start, then faster steps")
    recompute: bool = Field(
        False,
        description="compute hidden layers of feed-forward layers again in the backward pass: about 2/3 of the memory",
    )
    threads: int | None = Field(None, ge=1, le=4096, description="CPU threads; null: one for a tiny model, else all")
    workers: int = Field(0, ge=0, le=256, description="processes that prepare batches ahead; the order stays the same")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU if there is one")
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp", description="under torchrun: each process has a copy of the model, or a shard of each weight"
    )
    deterministic: bool = Field(False, description="on a GPU, use only deterministic kernels: slower")
    log_every: int = Field(50, ge=1, description="steps between two lines of metrics")
    evaluate_every: int = Field(500, ge=1, description="steps between two evaluations on the validation set")
    samples: int = Field(5, ge=0, le=1000, description="samples shown at each evaluation, with the model's output")
    save_every: int = Field(500, ge=1, description="steps between two checkpoints")
    save_behind: bool = Field(False, description="write checkpoints in the background, from a copy")
    keep: int = Field(2, ge=2, le=1000, description="number of newest checkpoints kept; the best are kept too")
    keep_best: int = Field(
        1, ge=1, le=1000, description="number of best checkpoints kept, by the task's score on the validation set"
    )
    average: int = Field(
        1, ge=1, le=1000, description="number of last checkpoints whose weights are averaged at the end"
    )
    use: Use | None = Field(
        None,
        description="which checkpoint becomes the final model; null: average if `average` is above 1, else best, "
        "or last without validation data",
    )
    patience: int | None = Field(
        None, ge=1, description="evaluations without a better score after which training stops early; null: never"
    )

    loggers: tuple[LoggerConfig, ...] = Field(
        (),
        max_length=10,
        exclude_if=lambda loggers: not loggers,
        description="where the numbers of metrics.jsonl are also written: tensorboard, wandb, mlflow",
    )

    @model_validator(mode="after")
    def _has_whole_weights(self) -> Self:
        if self.regularize and self.parallel == "fsdp":
            raise ValueError("penalties need whole weights, and fsdp splits them; write train.parallel: ddp")
        return self

    @field_validator("average")
    @classmethod
    def _averages_what_is_kept(cls, average: int, info: ValidationInfo) -> int:
        keep = info.data.get("keep")
        if keep is not None and average > keep:
            raise ValueError(
                f"{average} checkpoints cannot be averaged when {keep} are kept; write train.keep: {average}"
            )
        return average

    @field_validator("use")
    @classmethod
    def _has_several(cls, use: Use | None, info: ValidationInfo) -> Use | None:
        average = info.data.get("average", 1)
        if use == "average" and average == 1:
            raise ValueError("an average needs several checkpoints; write train.average: 5 and train.keep: 5, say")
        if use == "last" and average > 1:
            raise ValueError(f"{average} checkpoints are averaged for nothing; write train.use: average")
        return use
