"""Runs Prometheus, which scrapes one divvy, and asks it for the series of a dashboard."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from drawing.divvy import free_port

UNPACKED = "tests/clients/tools/prometheus"
SCRAPE_SECONDS = 5
# Grafana's $__rate_interval for this scrape interval
VARIABLES = {"$instance": ".*", "$__rate_interval": f"{4 * SCRAPE_SECONDS}s"}


@contextmanager
def scrape(root, directory, target):
    """Scrapes /metrics of the address `target`. Yields the address of Prometheus."""
    configuration = Path(directory, "prometheus.yml")
    configuration.write_text(
        f"scrape_configs:\n- job_name: divvy\n  scrape_interval: {SCRAPE_SECONDS}s\n"
        f"  static_configs:\n  - targets: ['{target}']\n",
        encoding="utf-8",
    )
    address = f"127.0.0.1:{free_port()}"
    program = shutil.which("prometheus") or root / UNPACKED
    with open(Path(directory, "prometheus.log"), "w", encoding="utf-8") as log:
        server = subprocess.Popen(
            [program, f"--config.file={configuration}", f"--storage.tsdb.path={directory}/series",
             f"--web.listen-address={address}"],
            stdout=log, stderr=log,
        )
    try:
        yield address
    finally:
        server.terminate()
        server.wait()


def series(address, expression, end, seconds):
    """Returns the series of an expression in the seconds before the time `end`: [(labels, [(time, value)])]."""
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    query = {"query": expression, "start": end - seconds, "end": end, "step": SCRAPE_SECONDS}
    with urllib.request.urlopen(f"http://{address}/api/v1/query_range?{urllib.parse.urlencode(query)}") as reply:
        found = json.load(reply)["data"]["result"]
    return [
        (result["metric"], [(time, float(value)) for time, value in result["values"] if value != "NaN"])
        for result in found
    ]
