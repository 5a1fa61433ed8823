"""The machine's load while a stage works: CPU, memory, disk, network and GPUs, by MLflow's own monitors."""

from __future__ import annotations

import contextlib
import threading

from pipeline.tracking.spool import Spool

INTERVAL = 10.0
"""Seconds between two samples."""


class Monitor(threading.Thread):
    """Adds a sample to the spool every ten seconds, so that none is lost to a server that is down."""

    def __init__(self, spool: Spool, stage: str) -> None:
        # Imported before there are two threads: both would import mlflow, and its modules wait for each other.
        # MLflow's own thread around these monitors gives up at the first request that fails.
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

        super().__init__(daemon=True)
        self.spool, self.stage = spool, stage
        self.over = threading.Event()
        self.monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        with contextlib.suppress(ImportError, RuntimeError):  # what it raises where there is no GPU to ask
            self.monitors.append(GPUMonitor())

    def run(self) -> None:
        """Measure until `stop`. The samples of a resumed stage go on counting."""
        # The CPU's load is that since the last time it was asked for.
        self.monitors[0].collect_metrics()
        number = sum("system/cpu_utilization_percentage" in event.get("values", ()) for event in self.spool.read()[0])
        while not self.over.is_set():
            self.over.wait(INTERVAL)
            values: dict[str, float] = {}
            for monitor in self.monitors:
                monitor.clear_metrics()
                monitor.collect_metrics()
                values |= {f"system/{name}": value for name, value in monitor.aggregate_metrics().items()}
            self.spool.append(self.stage, "metrics", values=values, update=number)
            number += 1

    def stop(self) -> None:
        """Take the last sample."""
        self.over.set()
        if self.is_alive():
            self.join(5.0)
