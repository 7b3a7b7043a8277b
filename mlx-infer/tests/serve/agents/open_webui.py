"""Runs Open WebUI and its page in headless Chromium against a server of the scripted model, and records the requests.

open_webui.py ADDRESS FOLDER CHROMIUM installs Open WebUI in FOLDER, if it is not there, starts it with the settings of docs/guide/clients.md, and works
in its page: a question that needs a call of a tool, a long answer that is stopped, and the next question. Then a file is added, of which a question is
asked, and both kinds of answers are read through its API. With MLX_RECORD_AGENTS=1 the requests are written to requests/open-webui.json. The test
`agents::open_webui_works` starts the server.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import record  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

SERVER, FOLDER, CHROMIUM = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
PACKAGE = "open-webui==0.12.4"


def program():
    folder = FOLDER / "open-webui"
    path = folder / "bin/open-webui"
    if not path.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin/pip"), "install", "--quiet", PACKAGE], check=True)
    return str(path)


def settings(address, data):
    """The environment: the connection, no users, embeddings by the server, and nothing from the internet."""
    base, key = f"{address}/v1", "none"
    return {
        **os.environ,
        "DATA_DIR": str(data),
        "WEBUI_SECRET_KEY": "none",
        "WEBUI_AUTH": "False",
        "OPENAI_API_BASE_URL": base,
        "OPENAI_API_KEY": key,
        "ENABLE_OLLAMA_API": "False",
        "RAG_EMBEDDING_ENGINE": "openai",
        "RAG_EMBEDDING_MODEL": "tiny",
        "RAG_OPENAI_API_BASE_URL": base,
        "RAG_OPENAI_API_KEY": key,
        "OFFLINE_MODE": "True",
        "HF_HUB_OFFLINE": "1",
        "ANONYMIZED_TELEMETRY": "False",
        "DO_NOT_TRACK": "True",
        "SCARF_NO_ANALYTICS": "True",
        "NO_PROXY": "127.0.0.1",
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait(until, seconds, what):
    end = time.monotonic() + seconds
    while not (found := until()):
        assert time.monotonic() < end, f"{what}: not within {seconds} seconds"
        time.sleep(0.1)
    return found


def running():
    """The number of requests that the server computes."""
    with urllib.request.urlopen(SERVER + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))


class WebApi:
    """The API of Open WebUI."""

    def __init__(self, address):
        self.address, self.token = address, ""
        self.token = json.loads(self.send("/api/v1/auths/signin", {"email": "", "password": ""}))["token"]

    def send(self, path, body=None, kind="application/json"):
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": kind, "authorization": f"Bearer {self.token}"}
        with urllib.request.urlopen(urllib.request.Request(self.address + path, data, headers), timeout=120) as answer:
            return answer.read().decode()

    def upload(self, name, text):
        mark = uuid.uuid4().hex
        head = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: text/plain\r\n\r\n'
        body = f"{head}{text}\r\n--{mark}--\r\n".encode()
        return json.loads(self.send("/api/v1/files/", body, f"multipart/form-data; boundary={mark}"))["id"]


def ask(page, text):
    page.click("#chat-input")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def use_page(browser, address, proxy):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(address)
    page.get_by_role("button", name="Okay, Let's Go!").click(timeout=120_000)
    ask(page, "[open-webui-mend] What time is it?")
    page.get_by_text("The clock was read: é, \"quotes\" and 日本.").wait_for(timeout=120_000)
    proxy.passed = 0
    ask(page, "[long] Write a long list.")
    page.get_by_text("This is line 20.", exact=False).first.wait_for(timeout=120_000)
    page.get_by_role("button", name="Stop").click()
    wait(lambda: running() == 0, 30, "the end of an answer that nobody reads")
    ask(page, "[next] Go on.")
    page.get_by_text("this is the next answer", exact=False).first.wait_for(timeout=120_000)
    # Titles, tags and next questions are asked for behind an answer.
    wait(lambda: running() == 0, 30, "the end of all requests")
    time.sleep(3)
    page.close()


def use_api(address):
    api = WebApi(address)
    models = [model["id"] for model in json.loads(api.send("/api/models"))["data"]]
    assert "tiny" in models, models
    body = {"model": "tiny", "messages": [{"role": "user", "content": "What do foxes eat?"}]}
    whole = json.loads(api.send("/api/chat/completions", {**body, "stream": False}))
    said = whole["choices"][0]["message"]["content"]
    assert "Mend the shop" in said, whole
    events = api.send("/api/chat/completions", {**body, "stream": True}).splitlines()
    events = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
    pieces = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    assert "".join(pieces) == said, pieces
    # The file is cut into pieces and embedded, and so is the question. The answer gets the pieces.
    file = api.upload("foxes.txt", "Foxes eat mice, berries and beetles.\n" * 40)
    status = f"/api/v1/files/{file}/process/status"
    wait(lambda: json.loads(api.send(status))["status"] == "completed", 120, "a file")
    asked = {**body, "stream": False, "files": [{"type": "file", "id": file}]}
    assert json.loads(api.send("/api/chat/completions", asked))["choices"][0]["message"]["content"] == said


with tempfile.TemporaryDirectory() as folder:
    proxy = record.start(SERVER)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [program(), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with open(Path(folder) / "log", "w+") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=settings(proxy.address, Path(folder) / "data"), stdout=log, stderr=log, start_new_session=True
        )
        try:

            def is_up():
                assert process.poll() is None, "Open WebUI has ended"
                try:
                    return urllib.request.urlopen(address + "/health").status == 200
                except OSError:
                    return False

            wait(is_up, 300, "the start of Open WebUI")
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                use_page(browser, address, proxy)
                browser.close()
            use_api(address)
        except BaseException:
            log.seek(0)
            print(log.read()[-6000:], file=sys.stderr)
            raise
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    requests = proxy.recorded
    assert [request.get("cut") for request in requests].count(True) == 1
    embedded = [request["body"]["input"] for request in requests if request["path"] == "/v1/embeddings"]
    assert ["What do foxes eat?"] in embedded, embedded
    assert "Foxes eat mice, berries and beetles." in str(requests[-1]["body"]["messages"]), requests[-1]
    refused = [request for request in requests if request["status"] != 200]
    assert not refused, refused
    print(PACKAGE, f"{len(requests)} requests")
    if os.environ.get("MLX_RECORD_AGENTS"):
        record.write(HERE / "requests/open-webui.json", [record.lend(request, folder) for request in requests])
