"""Real nodes on a throwaway PostgreSQL server, or one node on SQLite."""

import glob
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

ADMIN_KEY = "rdk_test_0123456789abcdef0123456789abcdef"
MASTER_KEY = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc="
LEASE = "3s"
START_TIMEOUT = 60
CALL_TIMEOUT = 15


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_until(what, timeout, is_true):
    end = time.monotonic() + timeout
    while not is_true():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {timeout} s: {what}")
        time.sleep(0.1)


class Postgres:
    """A throwaway server. PostgreSQL refuses to run as root, so root starts it as the user `postgres`."""

    def __init__(self, folder):
        self.folder = folder / "postgres"
        self.log = folder / "postgres.log"
        self.port = free_port()
        self.process = None
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]))
        self.programs = pathlib.Path(found[-1]) if found else pathlib.Path("")

    def _as_user(self, words):
        if os.geteuid() != 0:
            return words
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *words]

    def start(self):
        self.folder.mkdir()
        if os.geteuid() == 0:
            subprocess.run(["chown", "postgres", str(self.folder)], check=True)
        initdb = [str(self.programs / "initdb"), "--pgdata", str(self.folder / "data"), "--username=redrive"]
        initdb += ["--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        subprocess.run(self._as_user(initdb), check=True, stdout=subprocess.DEVNULL, cwd="/")
        server = [str(self.programs / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        settings = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=200"]
        server += [word for setting in settings for word in ("-c", setting)]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self._as_user(server), stdout=log, stderr=log, cwd="/")
        wait_until("PostgreSQL starts", START_TIMEOUT, lambda: self.query("SELECT 1", "postgres") == "1")
        self.query("CREATE DATABASE redrive", "postgres")

    def query(self, sql, database="redrive"):
        """Returns the output of psql, or None if it failed."""
        words = [str(self.programs / "psql"), "-qAtX", "-h", "127.0.0.1", "-p", str(self.port), "-U", "redrive"]
        ran = subprocess.run([*words, "-d", database, "-c", sql], capture_output=True, text=True)
        return ran.stdout.strip() if ran.returncode == 0 else None

    def url(self):
        return f"postgres://redrive@127.0.0.1:{self.port}/redrive"

    def cut_connections(self, count):
        cut = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity"
        return self.query(f"{cut} WHERE datname = 'redrive' AND pid <> pg_backend_pid() ORDER BY random() LIMIT {count}) p")

    def count_deadlocks(self):
        return self.log.read_text(errors="replace").count("deadlock detected")

    def stop(self):
        if self.process:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()


class Node:
    """One node: a process of the real binary, across its restarts."""

    def __init__(self, binary, folder, name, database_url):
        self.name, self.binary, self.folder = name, binary, folder / name
        self.folder.mkdir()
        self.port = free_port()
        self.database_url = database_url or f"sqlite:{self.folder / 'redrive.db'}"
        self.log = folder / f"{name}.log"
        self.process = None
        self.frozen = False
        self.lock = threading.Lock()

    def start(self):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("REDRIVE_")}
        environment.update(REDRIVE_ADMIN_KEY=ADMIN_KEY, REDRIVE_SECRETS_MASTER_KEY=MASTER_KEY, NO_COLOR="1")
        environment.update(REDRIVE_NODE=self.name, REDRIVE_CLUSTER_LEASE=LEASE)
        words = [self.binary, "dev", "--listen", f"127.0.0.1:{self.port}", "--database-url", self.database_url]
        log = open(self.log, "a")
        self.process = subprocess.Popen(words, stdout=log, stderr=log, cwd=self.folder, env=environment)
        log.close()

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as response:
                return response.status == 200
        except OSError:
            return False

    def send(self, number):
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self):
        self.send(signal.SIGKILL)
        self.process.wait()

    def end(self):
        """Sends SIGTERM, and SIGKILL if the process has not stopped in time."""
        self.send(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def freeze(self):
        self.send(signal.SIGSTOP)
        self.frozen = True

    def resume(self):
        self.send(signal.SIGCONT)
        self.frozen = False

    def call(self, method, path, body=None):
        """Returns the status and the JSON body; the status is None if there was no response."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, method=method)
        request.add_header("Authorization", f"Bearer {ADMIN_KEY}")
        if data is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=CALL_TIMEOUT) as response:
                return response.status, parse(response.read())
        except urllib.error.HTTPError as error:
            return error.code, parse(error.read())
        except (OSError, ValueError):
            return None, None

    def lines(self, path):
        """Yields the lines of an export."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        request.add_header("Authorization", f"Bearer {ADMIN_KEY}")
        with urllib.request.urlopen(request, timeout=120) as response:
            for line in response:
                yield json.loads(line)


def parse(body):
    try:
        return json.loads(body) if body else None
    except ValueError:
        return None


class Cluster:
    def __init__(self, binary, folder, store, nodes):
        self.folder = folder
        self.postgres = Postgres(folder) if store == "postgres" else None
        count = nodes if self.postgres else 1
        url = self.postgres and self.postgres.url()
        self.nodes = [Node(binary, folder, f"node-{n}", url) for n in range(count)]

    def start(self):
        if self.postgres:
            self.postgres.start()
        for node in self.nodes:
            node.start()
            wait_until(f"{node.name} is ready", START_TIMEOUT, node.is_ready)

    def recover(self):
        """Ends all faults and waits until every node is ready."""
        for node in self.nodes:
            node.resume()
            if node.process.poll() is not None:
                node.start()
        for node in self.nodes:
            wait_until(f"{node.name} is ready again", START_TIMEOUT, node.is_ready)

    def logs(self):
        return "".join(node.log.read_text(errors="replace") for node in self.nodes)

    def stop(self):
        for node in self.nodes:
            if node.process:
                node.resume()
                node.kill()
        if self.postgres:
            self.postgres.stop()
