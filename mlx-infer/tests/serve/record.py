"""Records the requests of clients, which tests replay without the clients.

record.py ADDRESS FILE COMMAND.. runs COMMAND with the address of a proxy in place of the word ADDRESS. The proxy passes every request on to the
server at ADDRESS, and every piece of an answer on as it comes. `cut` marks an answer that the client did not read to its end. FILE gets a list of the requests: method, path, headers that say something to the server, body, and of the answer its status and
the keys of its JSON (for a stream, of its events). What differs from machine to machine is left out.

    cargo run -- serve --port 8123 --name tiny --name org/tiny &
    cd mlx-infer/tests/serve
    python record.py http://127.0.0.1:8123 requests/anthropic.json python clients.py ADDRESS anthropic
"""

import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HEADERS = ["accept", "anthropic-beta", "anthropic-version", "authorization", "content-type", "x-api-key"]
RECORDED = []


def keys(value, place=""):
    """The places of all values, as a.b or a[].b."""
    if isinstance(value, dict):
        found = {place} if place else set()
        for key, inner in value.items():
            found |= keys(inner, f"{place}.{key}" if place else key)
        return found
    if isinstance(value, list):
        return {place}.union(*(keys(inner, f"{place}[]") for inner in value))
    return {place}


def answered(body, kind):
    if kind.startswith("text/event-stream"):
        events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: {")]
        return sorted(set().union(*(keys(json.loads(event)) for event in events)))
    if kind.startswith("application/x-ndjson"):
        return sorted(set().union(*(keys(json.loads(line)) for line in body.decode().splitlines())))
    return sorted(keys(json.loads(body))) if kind.startswith("application/json") else []


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        sent = {name.lower(): value for name, value in self.headers.items() if name.lower() in HEADERS}
        request = urllib.request.Request(self.server.to + self.path, data=body or None, method=self.command, headers=sent)
        try:
            response = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            response = error
        kind = response.headers.get("content-type", "")
        entry = {
            "method": self.command,
            "path": self.path,
            "headers": dict(sorted(sent.items())),
            "body": json.loads(body) if body else None,
            "status": response.status,
            "type": kind.split(";")[0],
        }
        self.server.recorded.append(entry)
        answer, is_cut = self.pass_on(response, kind)
        if is_cut:
            entry["cut"] = True
        entry["keys"] = [] if is_cut or self.command == "HEAD" else answered(answer, kind)

    def pass_on(self, response, kind):
        """Returns the answer as far as the client has read it, and whether it has left before the end."""
        self.send_response(response.status)
        self.send_header("content-type", kind)
        length = response.headers.get("content-length")
        self.send_header(*(("content-length", length) if length else ("transfer-encoding", "chunked")))
        self.end_headers()
        answer = b""
        try:
            while piece := response.read1(65536):
                answer += piece
                self.server.passed = len(answer)
                self.wfile.write(piece if length else b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            if not length and self.command != "HEAD":
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
            return answer, True
        finally:
            response.close()
        return answer, False

    do_GET = do_POST = do_DELETE = do_HEAD = handle_any

    def log_message(self, *_):
        pass


def start(server):
    """A proxy of the server at an address. It has its own `address`, the requests that were `recorded`, and the number of bytes of the latest answer
    that have `passed`."""
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    proxy.to, proxy.recorded, proxy.passed = server, [], 0
    proxy.address = f"http://127.0.0.1:{proxy.server_address[1]}"
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    return proxy


UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{64}")


def shared(value, folder, most=60):
    """A part of a request as it is shared: without this machine's paths and names, and with all but the first characters of long texts left out."""
    if isinstance(value, dict):
        left = ("metadata", "client_metadata", "prompt_cache_key")
        cut = {key: most if key != "pattern" else len(str(inner)) for key, inner in value.items() if key not in left}
        return {key: shared(value[key], folder, most) for key, most in cut.items()}
    if isinstance(value, list):
        return [shared(inner, folder, most) for inner in value]
    if not isinstance(value, str):
        return value
    value = UUID.sub("0", value.replace(folder, ""))
    is_named = any(mark in value for mark in ("-mend]", "[long", "[next", "PATCH"))
    is_kept = len(value) <= most or value.startswith("{") or (is_named and len(value) < 1000)
    return value if is_kept else value[:most] + "…"


def lend(request, folder):
    """A request as it is shared. The texts of the conversation itself are longer than those of tools and instructions."""
    return {**request, "body": shared(request["body"], folder)}


def write(path, requests):
    lines = ",\n".join(json.dumps(request, ensure_ascii=False, sort_keys=True) for request in requests)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    proxy = start(sys.argv[1])
    code = subprocess.run([proxy.address if word == "ADDRESS" else word for word in sys.argv[3:]]).returncode
    if code == 0:
        write(sys.argv[2], proxy.recorded)
    sys.exit(code)
