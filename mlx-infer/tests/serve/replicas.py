"""Two servers behind a router: requests that begin alike, one server that drains, one that is killed under load.

    replicas.py sglang|nginx MLX-INFER NGINX.CONF

Prints a line for each part. A fault ends it with an error.
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROUTER, BINARY, CONF = sys.argv[1:4]
PROMPTS = ["The red fox", "The old man", "47 + 38 =", "Once upon a time"]
TOKENS = 120


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers={"Host": "localhost"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def until(what, seconds, is_so):
    end = time.monotonic() + seconds
    while True:
        try:
            if is_so():
                return
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > end:
            raise SystemExit(f"not within {seconds} s: {what}")
        time.sleep(0.1)


def is_ready(port):
    return get(port, "/ready")[0] == 200


class Server:
    def __init__(self, port):
        self.port = port
        command = [BINARY, "serve", "--port", str(port), "--quiet", "--name", "fox", "--drain", "60"]
        environment = {key: value for key, value in os.environ.items() if key != "MLX_INFER_API_KEY"}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        until("a server is ready", 60, lambda: is_ready(port))

    def metric(self, name):
        text = get(self.port, "/metrics")[1]
        values = re.findall(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", text, re.M)
        return sum(float(value) for value in values)


class Broken(Exception):
    """A stream that has ended in an error: the client may send its request again."""


def post(port, body, headers=()):
    """Status and text of the answer. `Broken` if a stream ends before its last event."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        all_headers = {"Content-Type": "application/json", "Host": "localhost", **dict(headers)}
        connection.request("POST", "/v1/completions", json.dumps(body), all_headers)
        answer = connection.getresponse()
        if not body["stream"] or answer.status != 200:
            content = answer.read().decode()
            text = json.loads(content)["choices"][0]["text"] if answer.status == 200 else content
            return answer.status, text
        content = b""
        try:
            # `read1` sees that a body of chunks ends without its last chunk; reading by lines does not.
            while piece := answer.read1(1 << 16):
                content += piece
        except (OSError, http.client.HTTPException) as error:
            raise Broken(type(error).__name__) from error
        events = re.findall(r"^data: (.*)$", content.decode(), re.M)
        if not events or events.pop() != "[DONE]":
            raise Broken("no [DONE]")
        events = [json.loads(event) for event in events]
        if any("error" in event for event in events):
            raise Broken("event with an error")
        return answer.status, "".join(event["choices"][0]["text"] for event in events)
    finally:
        connection.close()


def body(prompt, stream, tokens=TOKENS):
    return {"model": "fox", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": stream}


def start_router(port, ports, folder):
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    if ROUTER == "sglang":
        command = [
            sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port),
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--policy", "cache_aware",
            "--health-check-endpoint", "/ready", "--health-check-interval-secs", "1",
            "--health-failure-threshold", "1", "--health-success-threshold", "1",
            "--cb-failure-threshold", "1", "--cb-timeout-duration-secs", "5",
            "--balance-abs-threshold", "2", "--balance-rel-threshold", "1.1",
            "--worker-startup-check-interval", "1", "--log-level", "warn", "--worker-urls", *urls,
        ]
    else:
        text = open(CONF).read()
        for known, own in zip(["127.0.0.1:8081", "127.0.0.1:8082", "127.0.0.1:8080"], [*ports, port]):
            assert text.count(known) == 1, known
            text = text.replace(known, f"127.0.0.1:{own}")
        with open(f"{folder}/nginx.conf", "w") as file:
            file.write(text)
        command = ["nginx", "-p", folder, "-c", f"{folder}/nginx.conf", "-g", "daemon off;"]
    log = open(f"{folder}/router.log", "w")
    router = subprocess.Popen(command, stdout=log, stderr=log)
    until("the router answers", 60, lambda: post(port, body("x", False, 1))[0] == 200)
    if ROUTER == "sglang":
        until("the router has both servers", 60, lambda: get(port, "/workers")[1].count('"is_healthy":true') == 2)
    return router


class Load:
    """Clients that send one request after the other, every second one a stream."""

    def __init__(self, port, expected, clients=8):
        self.port, self.expected = port, expected
        self.done, self.broken, self.faults, self.retried = 0, [], [], 0
        self.lock, self.ends = threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=self.client, args=(index,)) for index in range(clients)]
        for thread in self.threads:
            thread.start()

    def client(self, index):
        turn = 0
        while not self.ends.is_set():
            turn += 1
            prompt, stream = PROMPTS[(index + turn) % len(PROMPTS)], turn % 2 == 0
            headers = {"x-session": f"{index}-{prompt}"}
            try:
                try:
                    status, text = post(self.port, body(prompt, stream), headers)
                except Broken as error:
                    with self.lock:
                        self.broken.append((prompt, str(error)))
                    # The client sends it again, with the same answer as ever.
                    status, text = post(self.port, body(prompt, stream), headers)
                    with self.lock:
                        self.retried += 1
                with self.lock:
                    self.done += 1
                    if status != 200 or text != self.expected[prompt]:
                        self.faults.append((stream, status, text))
            except Exception as error:
                with self.lock:
                    self.faults.append((stream, type(error).__name__, str(error)))

    def end(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()


def prefixes(port, servers):
    """Two long prompts, eight questions on each: those that begin alike are computed by one server."""
    begins = ["The red fox wanders through the forest and looks for something to eat. ", "The old man sits by the sea and waits for his boat to come home. "]
    before = [server.metric("vllm:prefix_cache_hits_total") for server in servers]
    queries = [server.metric("vllm:prefix_cache_queries_total") for server in servers]
    for number in range(8):
        for at, begin in enumerate(begins):
            status, text = post(port, body(f"{begin * 4}Number {number}", False, 4), {"x-session": f"prefix-{at}"})
            assert status == 200, text
    hits = sum(server.metric("vllm:prefix_cache_hits_total") for server in servers) - sum(before)
    asked = sum(server.metric("vllm:prefix_cache_queries_total") for server in servers) - sum(queries)
    assert hits > 0.7 * asked, (hits, asked)
    print(f"{ROUTER}: prefixes: {hits:.0f} of {asked:.0f} prompt tokens were stored ones", flush=True)


def drained(port, servers, expected):
    """SIGTERM under load: no request fails, no stream breaks, and the server ends by itself."""
    load = Load(port, expected)
    time.sleep(2)
    servers[0].process.send_signal(signal.SIGTERM)
    status = servers[0].process.wait(timeout=60)
    time.sleep(2)
    load.end()
    assert status == 0, status
    assert load.faults == [] and load.broken == [], (load.faults[:3], load.broken[:3])
    assert load.done > 8, load.done
    print(f"{ROUTER}: drained: {load.done} requests, none failed, the server has ended with status 0", flush=True)


def killed(port, servers, expected):
    """SIGKILL under load: only streams that the server was writing break, and are sent again."""
    load = Load(port, expected)
    time.sleep(2)
    until("both servers have work", 30, lambda: all(server.metric("vllm:num_requests_running") for server in servers))
    busier = max(servers, key=lambda server: server.metric("vllm:num_requests_running"))
    busier.process.kill()
    busier.process.wait()
    time.sleep(4)
    load.end()
    assert load.faults == [], load.faults[:3]
    # At most one stream of each client was under way.
    assert len(load.broken) <= 8, load.broken
    assert load.retried == len(load.broken), (load.retried, load.broken)
    print(
        f"{ROUTER}: killed: {load.done} requests, none lost; {len(load.broken)} streams have ended with an error"
        f" and were sent again {sorted({error for _, error in load.broken})}",
        flush=True,
    )


def main():
    port, ports = free_port(), [free_port(), free_port()]
    started, router = [], None
    with tempfile.TemporaryDirectory() as folder:
        try:
            servers = [Server(port) for port in ports]
            started += servers
            expected = {prompt: post(ports[0], body(prompt, False))[1] for prompt in PROMPTS}
            router = start_router(port, ports, folder)
            prefixes(port, servers)
            drained(port, servers, expected)
            # The router finds a server again that comes back.
            servers[0] = Server(ports[0])
            started.append(servers[0])
            time.sleep(12 if ROUTER == "nginx" else 6)
            killed(port, servers, expected)
        except BaseException:
            sys.stderr.write(open(f"{folder}/router.log").read()[-3000:] if router else "")
            raise
        finally:
            for process in [server.process for server in started] + ([router] if router else []):
                if process.poll() is None:
                    process.terminate()
                    try:
                        process.wait(timeout=20)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.wait()


main()
