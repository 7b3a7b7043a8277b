"""Records the requests of clients, which tests replay without the clients.

record.py ADDRESS FILE COMMAND.. runs COMMAND with the address of a proxy in place of the word ADDRESS. The proxy passes every request on to the
server at ADDRESS. FILE gets a list of the requests: method, path, headers that say something to the server, body, and of the answer its status and
the keys of its JSON (for a stream, of its events). What differs from machine to machine is left out.

    cargo run -- serve --port 8123 --name tiny --name org/tiny &
    cd mlx-infer/tests/serve
    python record.py http://127.0.0.1:8123 requests/anthropic.json python clients.py ADDRESS anthropic
"""

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SERVER, FILE, COMMAND = sys.argv[1], sys.argv[2], sys.argv[3:]
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
        request = urllib.request.Request(SERVER + self.path, data=body or None, method=self.command, headers=sent)
        try:
            response = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            response = error
        answer, kind = response.read(), response.headers.get("content-type", "")
        RECORDED.append({
            "method": self.command,
            "path": self.path,
            "headers": dict(sorted(sent.items())),
            "body": json.loads(body) if body else None,
            "status": response.status,
            "type": kind.split(";")[0],
            "keys": answered(answer, kind),
        })
        self.send_response(response.status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_DELETE = handle_any

    def log_message(self, *_):
        pass


proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
threading.Thread(target=proxy.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{proxy.server_address[1]}"
code = subprocess.run([address if word == "ADDRESS" else word for word in COMMAND]).returncode
if code == 0:
    lines = ",\n".join(json.dumps(request, ensure_ascii=False, sort_keys=True) for request in RECORDED)
    with open(FILE, "w", encoding="utf-8") as file:
        file.write(f"[\n{lines}\n]\n")
sys.exit(code)
