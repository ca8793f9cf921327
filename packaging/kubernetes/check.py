"""Checks the manifests in this directory: `check.py DIVVY`, where DIVVY is the binary.

The Kubernetes schemas hold every manifest, strictly. Beyond them: `divvy check` accepts the rules, divvy knows each
variable, probes and the Service name ports that exist, and the grace period has room for the drain.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml

# Minimum number of seconds for writing the last counters, in addition to the drain.
ROOM = 5


def seconds(text):
    return float(re.fullmatch(r"(\d+)s?", text)[1])


def check_workload(name, workload, service, known):
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert service["spec"]["selector"] == workload["spec"]["selector"]["matchLabels"], f"{name}: the Service's selector"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for port in service["spec"]["ports"]:
        assert ports[port["targetPort"]] == port["port"], f"{name}: {port}"
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            assert container[probe]["httpGet"]["port"] in ports, f"{name}: {probe}"
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    unknown = env.keys() - known
    assert not unknown, f"{name}: divvy serve knows no {unknown}"
    drain = seconds(env["DIVVY_DRAIN_DELAY"]) + seconds(env["DIVVY_DRAIN_TIMEOUT"])
    grace = pod["terminationGracePeriodSeconds"]
    assert grace >= drain + ROOM, f"{name}: {grace} s of grace for {drain} s of drain"
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
    assert mounts == volumes, f"{name}: {mounts} are mounted of {volumes}"


def main(divvy):
    help_text = subprocess.run([divvy, "serve", "--help"], check=True, capture_output=True, text=True).stdout
    known = set(re.findall(r"\[env: (\w+)", help_text))
    files = sorted(pathlib.Path(__file__).parent.glob("*.yaml"))
    assert len(files) == 2, files
    for file in files:
        documents = list(yaml.safe_load_all(file.read_text()))
        for document in documents:
            kubernetes_validate.validate(document, "1.37", strict=True)
        kinds = {document["kind"]: document for document in documents}
        for rules in kinds["ConfigMap"]["data"].values():
            with tempfile.NamedTemporaryFile("w", suffix=".ini") as written:
                written.write(rules)
                written.flush()
                subprocess.run([divvy, "check", written.name], check=True, stdout=subprocess.DEVNULL)
        check_workload(file.name, kinds.get("StatefulSet") or kinds["Deployment"], kinds["Service"], known)
        print(f"{file.name}: {', '.join(kinds)}")


if __name__ == "__main__":
    main(sys.argv[1])
