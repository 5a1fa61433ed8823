"""The machine's load while training works: CPU, memory, disk, network and GPUs, by MLflow's own monitors."""

from __future__ import annotations

import contextlib
import threading

from pipeline.runs.record import Record, append, now, read

INTERVAL = 10.0
"""Seconds between two samples."""


class Monitor(threading.Thread):
    """Appends a sample to the record every ten seconds, so that none is lost to a server that is down."""

    def __init__(self, record: Record) -> None:
        # Imported before there are two threads: both would import mlflow, and its modules wait for each other.
        # MLflow's own thread around these monitors gives up at the first request that fails.
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

        super().__init__(daemon=True)
        self.record = record
        self.over = threading.Event()
        self.monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        with contextlib.suppress(ImportError, RuntimeError):  # Raised where there is no GPU.
            self.monitors.append(GPUMonitor())

    def run(self) -> None:
        """Measure until `stop`. The samples of a resumed stage continue the count."""
        # The CPU's load is that since the last sample.
        self.monitors[0].collect_metrics()
        number = len(read(self.record.load)[0])
        while not self.over.is_set():
            self.over.wait(INTERVAL)
            values: dict[str, float] = {}
            for monitor in self.monitors:
                monitor.clear_metrics()
                monitor.collect_metrics()
                values |= {f"system/{name}": value for name, value in monitor.aggregate_metrics().items()}
            with contextlib.suppress(OSError):  # A full disk.
                append(self.record.load, {"time": now(), "update": number, "values": values})
            number += 1

    def stop(self) -> None:
        """Take the last sample."""
        self.over.set()
        if self.is_alive():
            self.join(5.0)
