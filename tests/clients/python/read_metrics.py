"""Reads Prometheus's text format from standard input with Prometheus's own parser: read_metrics.py

Prints each sample as a line of JSON: [type of the family, name, labels, value].
"""

import json
import sys

from prometheus_client.parser import text_fd_to_metric_families

for family in text_fd_to_metric_families(sys.stdin):
    assert family.documentation, f"{family.name} has no help"
    for sample in family.samples:
        print(json.dumps([family.type, sample.name, sample.labels, sample.value]))
