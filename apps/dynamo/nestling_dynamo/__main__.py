"""Entry point: `python -m nestling_dynamo MODEL`."""

from dynamo.common.backend.run import run

from .worker import NestlingEngine

if __name__ == "__main__":
    run(NestlingEngine)
