"""Tries the Dockerfile's final stage without a container engine: `container_check.py DIVVY`, where DIVVY is the binary.

hadolint must accept the Dockerfile. Each COPY copies its sources into a scratch directory (the binary stands for the build
stage's output), and fails if a source does not exist or .dockerignore excludes it. useradd and ln apply to the scratch
directory. Every library that the binary needs must come from a package that the stage installs. Then the image's command
runs with the stage's environment, the health check runs, and the stop signal ends the server. Only the ports differ, and
root's paths are in the scratch directory.
"""

import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
# Packages that debian:*-slim has.
BASE = {"libc6", "libgcc-s1"}
FRONTS = {"DIVVY_LISTEN": "line protocol", "DIVVY_RESP_LISTEN": "RESP", "DIVVY_HTTP_LISTEN": "HTTP", "DIVVY_GRPC_LISTEN": "gRPC"}
LABELS = {"title", "description", "version", "licenses", "base.name"}
PATIENCE = 60


def stages():
    """Returns the instructions of each stage, as (word, rest)."""
    text = (TOP / "Dockerfile").read_text()
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest.strip()))
    return found


def in_context(source):
    """Returns whether the build context has a file."""
    ignored = [line.strip().removeprefix("**/") for line in (TOP / ".dockerignore").read_text().splitlines()]
    parts = pathlib.PurePath(source).parts
    return (TOP / source).exists() and not any(fnmatch.fnmatch(part, pattern) for part in parts for pattern in ignored)


def copy(rest, binary, root):
    words = shlex.split(rest)
    stage = words.pop(0) if words[0].startswith("--from=") else None
    *sources, target = words
    to = root / target.lstrip("/")
    (to if target.endswith("/") else to.parent).mkdir(parents=True, exist_ok=True)
    for source in sources:
        if stage:
            assert source.endswith("/target/release/divvy"), f"what makes {source}?"
            shutil.copy(binary, to)
        elif "*" in source:
            # Nothing may match.
            for path in TOP.glob(source):
                shutil.copy(path, to)
        else:
            assert in_context(source), f"COPY {source}: the build context has no such file"
            shutil.copy(TOP / source, to)


def run(rest, root):
    """Applies a RUN's changes to users and its links. Returns the packages that it installs."""
    packages = set()
    for command in re.split(r"\s*&&\s*", rest):
        words = shlex.split(command)
        if words[:2] == ["apt-get", "install"]:
            packages |= {word for word in words[2:] if not word.startswith("-")}
            subprocess.run(["apt-cache", "show", *packages], check=True, stdout=subprocess.DEVNULL)
        elif words[0] == "useradd" and os.getuid() == 0:
            (root / "etc").mkdir(exist_ok=True)
            for name in ("passwd", "group", "shadow", "gshadow", "login.defs"):
                shutil.copy(f"/etc/{name}", root / "etc" / name)
            subprocess.run(["useradd", "--prefix", str(root), *words[1:]], check=True)
        elif words[:2] == ["ln", "-s"]:
            target, link = (root / path.lstrip("/") for path in words[2:])
            assert target.exists(), f"RUN {command}: there is no {target}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
        else:
            assert words[0] in ("apt-get", "rm", "useradd"), f"RUN {command}: not tried here"
    return packages


def libraries_come_from(binary, packages):
    linked = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout
    for path in re.findall(r"=> (/\S+)", linked):
        real = os.path.realpath(path)
        candidates = [real, real.removeprefix("/usr")]
        owners = [subprocess.run(["dpkg", "-S", path], capture_output=True, text=True).stdout for path in candidates]
        owner = next(filter(None, owners)).split(":")[0]
        assert owner in packages, f"{path} comes from {owner}, which the image does not have"


def main(binary):
    hadolint = pathlib.Path(sys.executable).parent / "hadolint"
    subprocess.run([hadolint, "--failure-threshold", "style", TOP / "Dockerfile"], check=True)
    final = stages()[-1]
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        packages, env, here, user = set(BASE), {"PATH": f"{root}/usr/local/bin:/usr/bin:/bin"}, root, None
        entrypoint, cmd, health, exposed, stop, labels = [], [], None, set(), None, {}
        for word, rest in final:
            if word == "RUN":
                packages |= run(rest, root)
            elif word == "COPY":
                copy(rest, binary, root)
            elif word == "ENV":
                env |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            elif word == "WORKDIR":
                here = root / rest.lstrip("/")
                here.mkdir(parents=True, exist_ok=True)
            elif word == "USER":
                user, group = map(int, rest.split(":"))
            elif word == "ENTRYPOINT":
                entrypoint = json.loads(rest)
            elif word == "CMD":
                cmd = json.loads(rest)
            elif word == "HEALTHCHECK":
                health = json.loads(rest.split(" CMD ", 1)[1])
            elif word == "EXPOSE":
                exposed = set(map(int, rest.split()))
            elif word == "STOPSIGNAL":
                stop = signal.Signals[rest]
            elif word == "LABEL":
                labels |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            elif word == "FROM":
                base = rest
            else:
                assert word == "VOLUME", f"{word}: not tried here"
        assert labels.keys() == {f"org.opencontainers.image.{name}" for name in LABELS}, labels
        assert labels["org.opencontainers.image.base.name"].endswith(f"/{base}"), base
        libraries_come_from(root / "usr/local/bin/divvy", packages)
        assert exposed == {int(env[name].rsplit(":", 1)[1]) for name in FRONTS}, exposed
        if os.getuid() == 0:
            assert (root / "etc/passwd").read_text().count(f":{user}:{group}:") == 1
            os.chown(here, user, group)
            root.chmod(0o755)
        http = env["DIVVY_HTTP_LISTEN"].rsplit(":", 1)[1]
        env |= {name: "127.0.0.1:0" for name in FRONTS}
        env["DIVVY_CONFIG"] = str(root) + env["DIVVY_CONFIG"]
        identity = {"user": user, "group": group, "extra_groups": []} if os.getuid() == 0 else {}
        server = subprocess.Popen(entrypoint + cmd, cwd=here, env=env, stdout=subprocess.PIPE, text=True, **identity)
        try:
            ports = {}
            for line in server.stdout:
                if " on " in line:
                    name, _, address = line.strip().partition(" on ")
                    ports[name] = address.rsplit(":", 1)[1]
                if line.startswith("rules:"):
                    break
            assert ports.keys() == set(FRONTS.values()), f"it did not start: {ports}"
            asked = [word.replace(http, ports["HTTP"]) for word in health]
            deadline = time.monotonic() + PATIENCE
            while subprocess.run(asked, env=env).returncode != 0:
                assert time.monotonic() < deadline, f"the health check fails: {asked}"
            hit = ["divvy", "hit", "--server", f"127.0.0.1:{ports['HTTP']}", "method=GET", "path=/status"]
            answer = subprocess.run(hit, env=env, check=True, capture_output=True, text=True).stdout
            assert answer.startswith("OK true 999 "), answer
            server.send_signal(stop)
            assert server.wait(PATIENCE) == 0
            # The stopped server no longer answers, so the check must fail.
            assert subprocess.run(asked, env=env, stderr=subprocess.DEVNULL).returncode != 0
        finally:
            server.kill()
    print(f"the image's command serves, and its health check passes; packages: {', '.join(sorted(packages))}")


if __name__ == "__main__":
    main(sys.argv[1])
