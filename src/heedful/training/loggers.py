"""Where the events of a run are also written: TensorBoard, Weights & Biases, MLflow; without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config


class TensorBoardLogger(Config):
    """TensorBoard's event files, in the run's folder: `tensorboard --logdir RUN/tensorboard`."""

    kind: Literal["tensorboard"] = "tensorboard"


class WandbLogger(Config):
    """Weights & Biases, by default without a network: `wandb sync RUN/wandb/offline-run-*` uploads it later."""

    kind: Literal["wandb"] = "wandb"
    project: str = Field("heedful", min_length=1, max_length=128, description="name of the project")
    mode: Literal["offline", "online"] = Field(
        "offline", description="offline: files in the run's folder; online: sent"
    )


class MlflowLogger(Config):
    """MLflow, by default a database in the run's folder: `mlflow ui --backend-store-uri sqlite:///RUN/mlflow/mlflow.db`."""

    kind: Literal["mlflow"] = "mlflow"
    experiment: str = Field("heedful", min_length=1, max_length=250, description="name of the experiment")
    uri: str | None = Field(None, max_length=1000, description="tracking server; null: RUN/mlflow/mlflow.db")


LoggerConfig = Annotated[TensorBoardLogger | WandbLogger | MlflowLogger, Field(discriminator="kind")]
