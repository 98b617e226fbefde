"""`slipstream bench-traffic`: a mix of requests, and what speculation did for each model and each kind of request."""

from orchestrator.cli.traffic.command import bench_traffic

__all__ = ["bench_traffic"]
