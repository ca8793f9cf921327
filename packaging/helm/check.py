"""Checks the chart in this directory: `check.py DIVVY HELM`, where both are programs.

Renders the chart for the values in CASES. The schemas of Kubernetes and of the Prometheus operator hold each document.
`divvy check` accepts the rules. Then divvy serves with the container's arguments, variables and files, and its probes pass; only
the ports differ, and the paths are in a scratch directory. The chart refuses the values in REFUSED.
"""

import hashlib
import http.client
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor

CHART = pathlib.Path(__file__).parent / "divvy"
RULES = "[default]\ncreditLimit = 5\nresetSeconds = 60\n"
# Minimum number of seconds for writing the last counters, in addition to the drain.
ROOM = 5
PASSWORD = {"passwordSecret": {"name": "divvy"}}
# No Redis answers there: divvy serves nevertheless.
REDIS = {"store": "redis", "redis": {"url": "redis://127.0.0.1:1"}}
TLS = {"tls": {"secret": "tls"}}

# Values, and the exact arguments that they add to the container.
CASES = {
    "one divvy with a volume": (PASSWORD, ["--requirepass-file=/run/secrets/divvy/password/password"]),
    "Redis": (PASSWORD | REDIS, ["--store=redis", "--on-store-error=local"]),
    "Redis with a password": (
        PASSWORD
        | {
            "store": "redis",
            "redis": {
                "replicas": 3,
                "url": "redis://divvy:$(REDIS_PASSWORD)@127.0.0.1:1",
                "passwordSecret": {"name": "redis"},
                "flags": {"on-store-error": None, "redis-timeout": "250ms", "denial-cache": 5000000},
            },
        },
        ["--redis-timeout=250ms", "--denial-cache=5000000"],
    ),
    "Redis with sentinels and TLS": (
        PASSWORD
        | {
            "store": "redis",
            "redis": {
                "urlSecret": {"name": "redis"},
                "sentinelSecret": {"name": "redis"},
                "tls": {"secret": "tls", "certKey": "tls.crt", "keyKey": "tls.key"},
                "flags": {"redis-sentinel-master": "mymaster"},
            },
        },
        ["--redis-ca=/run/secrets/divvy/redis-tls/ca.crt", "--redis-key=/run/secrets/divvy/redis-tls/tls.key"],
    ),
    "TLS and users": (
        TLS
        | {
            "accessSecret": {"name": "access"},
            "tokenKeySecret": {"name": "tokens"},
            "serviceMonitor": {
                "enabled": True,
                "labels": {"release": "prometheus"},
                "endpoint": {
                    "authorization": {"credentials": {"name": "dashboard", "key": "token"}},
                    "tlsConfig": {"serverName": "divvy", "ca": {"secret": {"name": "tls", "key": "ca.crt"}}},
                },
            },
            "flags": {"open": "none", "metrics-path": "/prometheus", "ui": True, "grpc-atomic": False},
            "rocksdb": {"flags": {"durability": "sync", "max-counters": 20000000, "backup-dir": "/var/lib/divvy/backups"}},
        },
        [
            "--access-file=/run/secrets/divvy/access/users.acl",
            "--token-key-file=/run/secrets/divvy/token-keys/token-keys",
            "--tls-fronts=line,resp,http,grpc",
            "--ui",
            "--durability=sync",
            "--max-counters=20000000",
        ],
    ),
    "client certificates": (
        PASSWORD
        | {
            "tls": {"secret": "tls", "clientCaKey": "ca.crt", "fronts": ["resp", "grpc"]},
            "listeners": {"line": False, "resp": False},
            "serviceMonitor": {"enabled": True},
        },
        ["--tls-client-ca=/run/secrets/divvy/tls/ca.crt", "--listen=none", "--resp-listen=none"],
    ),
    "rules in JSON and a list": (
        {
            "allowAnonymous": True,
            "rules": {
                "file": "rules.json",
                "files": {
                    "rules.ini": None,
                    "blocked.txt": "192.0.2.0/24\n",
                    "rules.json": json.dumps(
                        {
                            "overrides": [
                                {
                                    "operation": {"ip": "*"},
                                    "list": {"ip": "blocked.txt"},
                                    "creditLimit": 0,
                                    "resetSeconds": 0,
                                    "label": "blocked",
                                }
                            ],
                            "default": {"creditLimit": 5, "resetSeconds": 60},
                        }
                    ),
                },
            },
        },
        ["/etc/divvy/rules.json"],
    ),
    "settings of the cluster": (
        PASSWORD
        | {
            "fullnameOverride": "limits",
            "image": {"repository": "registry.example:5000/divvy", "tag": "0.2.0@sha256:" + 64 * "0"},
            "imagePullSecrets": [{"name": "registry"}],
            "rules": {"existingConfigMap": "my-rules"},
            "rocksdb": {"size": "100Gi", "storageClass": "fast"},
            "drain": {"delaySeconds": 60, "timeoutSeconds": 120},
            "service": {"type": "LoadBalancer", "annotations": {"example.com/internal": "true"}},
            "podDisruptionBudget": {"maxUnavailable": "50%"},
            "env": [{"name": "RUST_LOG", "value": "debug"}],
            "volumes": [{"name": "audit", "emptyDir": {}}],
            "volumeMounts": [{"name": "audit", "mountPath": "/var/log/divvy"}],
            "flags": {"audit-log": "/var/log/divvy/audit.log"},
            "serviceAccountName": "divvy",
            "priorityClassName": "system-cluster-critical",
            "podAnnotations": {"example.com/a": "b"},
            "podLabels": {"example.com/c": "d"},
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "resources": {"limits": {"memory": "2Gi"}},
        },
        ["--drain-delay=60s", "--audit-log=/var/log/divvy/audit.log"],
    ),
}

# Values that are refused, and a part of the error.
REFUSED = [
    ({}, "passwordSecret.name or accessSecret.name, or allowAnonymous"),
    ({"allowAnonymous": True, "tokenKeySecret": {"name": "tokens"}}, "tokenKeySecret needs"),
    (PASSWORD | {"store": "memory"}, "/store"),
    (PASSWORD | {"store": "redis"}, "redis.url or redis.urlSecret.name"),
    (PASSWORD | {"store": "redis", "redis": {"url": "redis://r", "urlSecret": {"name": "redis"}}}, "and not both"),
    (PASSWORD | {"store": "redis", "redis": {"url": "redis:6379"}}, "/redis/url"),
    (PASSWORD | {"store": "redis", "redis": {"url": "redis://r", "passwordSecret": {"name": "redis"}}}, "need each other"),
    (PASSWORD | {"store": "redis", "redis": {"url": "redis://:$(REDIS_PASSWORD)@r"}}, "need each other"),
    (PASSWORD | {"redis": {"tls": {"secret": "tls", "certKey": "tls.crt"}}}, "/redis/tls"),
    (PASSWORD | {"replicas": 2}, "replicas"),
    (PASSWORD | {"rocksdb": {"replicas": 2}}, "replicas"),
    (PASSWORD | {"rocksdb": {"size": "20GB"}}, "/rocksdb/size"),
    (PASSWORD | {"flags": {"durability": "sync"}}, "durability"),
    (PASSWORD | {"rocksdb": {"flags": {"durability": "always"}}}, "/rocksdb/flags/durability"),
    (PASSWORD | {"rocksdb": {"flags": {"on-store-error": "deny"}}}, "on-store-error"),
    (PASSWORD | {"flags": {"log-formt": "json"}}, "log-formt"),
    (PASSWORD | {"flags": {"open": "grpc,all"}}, "/flags/open"),
    (PASSWORD | {"flags": {"idle-timeout": "soon"}}, "/flags/idle-timeout"),
    (PASSWORD | {"flags": {"max-connections": "many"}}, "/flags/max-connections"),
    (PASSWORD | {"flags": {"max-body": "64KB"}}, "/flags/max-body"),
    (PASSWORD | {"flags": {"ui": "yes"}}, "/flags/ui"),
    (PASSWORD | {"flags": {"requirepass": "secret"}}, "requirepass"),
    (PASSWORD | {"rules": {"file": "other.ini"}}, "rules.files has no other.ini"),
    (PASSWORD | {"rules": {"file": "rules.yaml"}}, "/rules/file"),
    (PASSWORD | {"rules": {"files": {"lists/blocked.txt": ""}}}, "lists/blocked.txt"),
    (PASSWORD | {"tls": {"secret": "tls", "clientCaKey": "ca.crt"}}, "the kubelet has no client certificate"),
    (PASSWORD | {"tls": {"secret": "tls", "fronts": ["admin"]}}, "/tls/fronts/0"),
    (PASSWORD | {"listeners": {"http": False}}, "http"),
    (PASSWORD | {"service": {"type": "ExternalName"}}, "/service/type"),
    (PASSWORD | {"serviceMonitor": {"endpoint": {"port": "resp"}}}, "/serviceMonitor/endpoint"),
    (PASSWORD | {"podDisruptionBudget": {"maxUnavailable": "1"}}, "/podDisruptionBudget/maxUnavailable"),
    (PASSWORD | {"drain": {"delaySeconds": "5s"}}, "/drain/delaySeconds"),
    (PASSWORD | {"livenessProbe": {"httpGet": {"path": "/"}}}, "httpGet"),
    (PASSWORD | {"passwordSecret": {"name": "Divvy"}}, "/passwordSecret/name"),
]


def output(*command):
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def secrets(divvy, scratch):
    """Returns the contents of the Secrets that CASES names."""
    certificate, key = scratch / "cert.pem", scratch / "key.pem"
    names = ["-subj", "/CN=divvy", "-addext", "subjectAltName=DNS:divvy"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    output("openssl", "req", "-x509", *curve, "-keyout", key, "-out", certificate, *names)
    pem = certificate.read_text()
    hashed = hashlib.sha256(b"a token").hexdigest()
    return {
        "divvy": {"password": "correct horse"},
        "access": {"users.acl": f"user application on #{hashed} +@hit ~*\n"},
        "tokens": {"token-keys": output(divvy, "token", "key")},
        "tls": {"tls.crt": pem, "tls.key": key.read_text(), "ca.crt": pem},
        "redis": {"password": "p%2Cw", "redis-url": "rediss://:p@127.0.0.1:1", "sentinel": "s"},
    }


def run_helm(helm, command, values):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        command = [helm, *command, "--values", file.name]
        return subprocess.run(command, check=False, capture_output=True, text=True)


def rendered(helm, name, values):
    """Returns the documents by their kinds, and the notes."""
    install = ["install", "release", CHART, "--dry-run=client", "--namespace", "limits", "--output", "json"]
    installed = run_helm(helm, install, values)
    assert installed.returncode == 0, f"{name}: {installed.stderr}"
    release = json.loads(installed.stdout)
    documents = list(filter(None, yaml.safe_load_all(release["manifest"])))
    kinds = {document["kind"]: document for document in documents}
    assert len(kinds) == len(documents), f"{name}: {[document['kind'] for document in documents]}"
    return kinds, release["info"]["notes"]


def check_schema(document):
    if document["kind"] != "ServiceMonitor":
        kubernetes_validate.validate(document, "1.37", strict=True)
        return
    # The model drops fields that it does not know.
    model = ServiceMonitor.model_validate(document)
    assert model.model_dump(mode="json", by_alias=True, exclude_unset=True) == document, document


def check_references(name, kinds, workload, notes):
    """Checks that the documents name what the others have."""
    spec, pod = workload["spec"], workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    service = kinds["Service"]
    selector = spec["selector"]["matchLabels"]
    assert selector.items() <= spec["template"]["metadata"]["labels"].items(), name
    assert service["spec"]["selector"] == selector, f"{name}: the Service's selector"
    assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == selector, name
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports, f"{name}: {service}"
    for port in ports.values():
        assert f"{service['metadata']['name']}.limits.svc:{port}" in notes, notes
    if monitor := kinds.get("ServiceMonitor"):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items(), name
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]], f"{name}: {endpoint}"
        assert endpoint["scheme"].upper() == container["readinessProbe"]["httpGet"]["scheme"], f"{name}: {endpoint}"
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    assert mounts == volumes, f"{name}: {mounts} are mounted of {volumes}"
    flags = dict(re.findall(r"--(drain-\w+)=(\d+)s", " ".join(container["args"])))
    drain = sum(map(int, flags.values()))
    assert len(flags) == 2 and pod["terminationGracePeriodSeconds"] >= drain + ROOM, f"{name}: {flags}"


def lay_out(root, pod, container, config_maps, contents):
    """Writes the files of the pod's volumes below `root`, where the container mounts them."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        directory = root / mount["mountPath"].lstrip("/")
        directory.mkdir(parents=True)
        volume = volumes.get(mount["name"], {})
        files = {}
        if "configMap" in volume:
            files = config_maps[volume["configMap"]["name"]]
        if "secret" in volume:
            secret = volume["secret"]
            assert secret["defaultMode"] == 0o440, secret
            files = {item["path"]: contents[secret["secretName"]][item["key"]] for item in secret["items"]}
        for file, text in files.items():
            (directory / file).write_text(text)
            (directory / file).chmod(0o440)


def variables(container, contents):
    env = {}
    for variable in container.get("env", []):
        if "valueFrom" in variable:
            reference = variable["valueFrom"]["secretKeyRef"]
            value = contents[reference["name"]][reference["key"]]
        else:
            value = re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], variable["value"])
        env[variable["name"]] = value
    return env


def check_probe(name, container, probe, address, status):
    probe = container[probe]["httpGet"]
    host, port = address.rsplit(":", 1)
    if probe["scheme"] == "HTTPS":
        # As the kubelet does, without a look at the certificate.
        connection = http.client.HTTPSConnection(host, int(port), context=ssl._create_unverified_context())
    else:
        connection = http.client.HTTPConnection(host, int(port))
    connection.request("GET", probe["path"])
    answer = connection.getresponse()
    assert answer.status == status, f"{name}: {probe} {answer.status} {answer.read()}"
    connection.close()


def serve(divvy, name, workload, config_maps, contents, root):
    """Runs the container's command until its probes pass."""
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    lay_out(root, pod, container, config_maps, contents)
    paths = "|".join(mount["mountPath"] for mount in container["volumeMounts"])
    args = [re.sub(rf"(^|=)({paths})(?=/)", rf"\1{root}\2", arg) for arg in container["args"]]
    args = [re.sub(r"=0\.0\.0\.0:\d+$", "=127.0.0.1:0", arg) for arg in args]
    env = {"PATH": os.environ["PATH"]} | variables(container, contents)
    output(divvy, "check", args[1])
    log = []
    with subprocess.Popen([divvy, *args], env=env, stderr=subprocess.PIPE, text=True, cwd=root) as server:
        try:
            for line in server.stderr:
                assert line.startswith("{"), f"{name}: {line}{server.stderr.read()}"
                log.append(json.loads(line))
                if log[-1].get("message") == "serving":
                    break
            assert log and log[-1].get("message") == "serving", f"{name}: {log}"
            is_alone = workload["kind"] == "StatefulSet"
            # The data directory is new, and there is no Redis.
            warnings = [line for line in log if line["level"] == "WARN" and is_alone]
            unexpected = [line for line in warnings if line["target"] != "divvy_rocks::disk::directory"]
            assert not unexpected, f"{name}: {unexpected}"
            address = log[-1]["http"]
            check_probe(name, container, "livenessProbe", address, 200)
            check_probe(name, container, "readinessProbe", address, 200 if is_alone else 503)
        finally:
            server.send_signal(signal.SIGKILL)


def check_case(divvy, helm, name, values, expected, contents, scratch):
    kinds, notes = rendered(helm, name, values)
    for document in kinds.values():
        check_schema(document)
    workload = kinds["StatefulSet" if values.get("store", "rocksdb") == "rocksdb" else "Deployment"]
    check_references(name, kinds, workload, notes)
    args = workload["spec"]["template"]["spec"]["containers"][0]["args"]
    missing = [arg for arg in expected if arg not in args]
    assert not missing, f"{name}: {missing} not in {args}"
    config_maps = {"my-rules": {"rules.ini": RULES}}
    if config_map := kinds.get("ConfigMap"):
        config_maps = {config_map["metadata"]["name"]: config_map["data"]}
    serve(divvy, name, workload, config_maps, contents, scratch / "".join(filter(str.isalnum, name)))
    print(f"{name}: {', '.join(kinds)}")


def main(divvy, helm):
    with tempfile.TemporaryDirectory() as directory:
        scratch = pathlib.Path(directory)
        # Helm keeps caches and settings below its user's home.
        os.environ |= {f"HELM_{kind}_HOME": str(scratch / "helm" / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        contents = secrets(divvy, scratch)
        linted = run_helm(helm, ["lint", "--strict", CHART], PASSWORD)
        assert linted.returncode == 0, f"{linted.stdout}{linted.stderr}"
        for name, (values, expected) in CASES.items():
            check_case(divvy, helm, name, values, expected, contents, scratch)
    for values, error in REFUSED:
        refused = run_helm(helm, ["template", "release", CHART], values)
        assert refused.returncode != 0, f"{values} are accepted"
        assert error in refused.stderr, f"{values}: {refused.stderr}"
    print(f"refused: {len(REFUSED)} mistakes")


if __name__ == "__main__":
    main(*sys.argv[1:])
