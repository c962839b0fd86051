"""A worker of NVIDIA Dynamo that serves a model with Nestling."""
