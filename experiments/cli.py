"""The command line: Hydra composes a configuration, and it is handed to a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments import messages, schema
from experiments.jobs import JOBS
from experiments.runs import RunFailed
from zoo.errors import UserError, unknown

Job = Callable[[schema.Config], None]
CONF = Path(__file__).resolve().parent.parent / "conf"


def main(**more_jobs: Job) -> int:
    """Run the command line; returns the exit status: 0 fine, 1 a run or cell failed, 2 a mistake in the input.

    more_jobs: jobs that live outside this package (the report).
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting by itself
    schema.register()
    jobs = {**JOBS, **more_jobs}

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def composed(node: DictConfig) -> None:
        config = to_config(node)
        if config.job not in jobs:
            raise unknown("job", config.job, jobs)
        jobs[config.job](config)

    try:
        composed()
    except RunFailed as error:
        return _complain(error, 1)
    except UserError as error:
        return _complain(error, 2)
    except (HydraException, OmegaConfBaseException) as error:
        return _complain(messages.explain(error), 2)
    except KeyboardInterrupt:
        return _complain("interrupted; the same command goes on from the last checkpoint", 130)
    return 0


def to_config(node: DictConfig) -> schema.Config:
    """The typed configuration of a composed node."""
    return OmegaConf.to_object(node)  # type: ignore[return-value]


def _complain(error: object, status: int) -> int:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    return status
