"""Runs coding agents against a server of the scripted model, and records their requests.

agents.py ADDRESS FOLDER [AGENT..] installs the agents in FOLDER, if they are not there, and lets each of them mend a fault in two files, read a long
answer that is interrupted, and go on. With MLX_RECORD_AGENTS=1 their requests are written to requests/, without what differs between machines and
with the agents' own texts cut short. The test `agents::the_agents_work` starts the server:

    MLX_TEST_AGENTS=/tmp/agents cargo test -p mlx-infer --test serve agents::
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import record  # noqa: E402

SERVER, FOLDER, ONLY = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]

# Agents with the versions whose requests are recorded.
PACKAGES = {
    "claude": "@anthropic-ai/claude-code@2.1.197",
    "codex": "@openai/codex@0.171.0",
    "opencode": "opencode-ai@1.18.33",
    "cline": "cline@3.0.65",
    "continue": "@continuedev/cli@1.5.47",
    "aider": "aider-chat==0.86.2",
}


def program(agent, name=None):
    """The program of an agent, which is installed if it is not there."""
    folder = FOLDER / agent
    is_python = "==" in PACKAGES[agent]
    path = folder / ("bin" if is_python else "node_modules/.bin") / (name or agent)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if is_python:
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            install = [str(folder / "bin/pip"), "install", "--quiet"]
        else:
            install = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(folder)]
        subprocess.run([*install, PACKAGES[agent]], check=True, stdout=subprocess.DEVNULL)
    return str(path)


class Claude:
    def __init__(self, address, home):
        self.environment = {
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "default",
            "ANTHROPIC_SMALL_FAST_MODEL": "default",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def command(self, prompt, is_next):
        options = ["--output-format", "stream-json", "--include-partial-messages", "--verbose"]
        tools = ["--allowedTools", "Read,Edit,Bash"]
        return [program("claude"), "-p", prompt, *(["--continue"] if is_next else []), *options, *tools]


class Codex:
    def __init__(self, address, home):
        folder = home / ".codex"
        folder.mkdir()
        provider = f'name = "mlx-infer"\nbase_url = "{address}/v1"\nwire_api = "responses"\nenv_key = "MLX_INFER_API_KEY"\n'
        config = f'model = "default"\nmodel_provider = "mlx"\n\n[model_providers.mlx]\n{provider}'
        (folder / "config.toml").write_text(config)
        self.environment = {"MLX_INFER_API_KEY": "none"}

    def command(self, prompt, is_next):
        options = ["--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox"]
        return [program("codex"), "exec", *options, *(["resume", "--last"] if is_next else []), prompt]


class Opencode:
    def __init__(self, address, home):
        folder = home / ".config/opencode"
        folder.mkdir(parents=True)
        model = {"name": "default", "limit": {"context": 200_000, "output": 8192}}
        options = {"baseURL": f"{address}/v1", "apiKey": "none"}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "mlx-infer", "options": options, "models": {"default": model}}
        config = {"provider": {"mlx": provider}, "model": "mlx/default", "permission": "allow"}
        (folder / "opencode.json").write_text(json.dumps(config))
        self.environment = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}

    def command(self, prompt, is_next):
        return [program("opencode"), "run", *(["--continue"] if is_next else []), prompt]


class Cline:
    def __init__(self, address, home):
        self.environment = {"CLINE_TELEMETRY_DISABLED": "1"}
        key = ["--provider", "openai", "--apikey", "none", "--modelid", "default", "--baseurl", f"{address}/v1"]
        quiet = {"env": {**os.environ, "HOME": str(home)}, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        subprocess.run([program("cline"), "auth", *key], check=True, **quiet)

    def command(self, prompt, is_next):
        # Without a terminal it resumes no session.
        return [program("cline"), "--json", prompt]


class Continue:
    def __init__(self, address, home):
        self.config = home / "config.yaml"
        model = f"{{name: mlx-infer, provider: openai, model: default, apiBase: '{address}/v1', apiKey: none, roles: [chat, edit, apply]}}"
        self.config.write_text(f"name: local\nversion: 1.0.0\nschema: v1\nmodels:\n  - {model}\n")
        self.environment = {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_ENABLE_TELEMETRY": "0"}

    def command(self, prompt, is_next):
        options = ["--config", str(self.config), "--allow", "*", *(["--resume"] if is_next else [])]
        return [program("continue", "cn"), "-p", prompt, *options]


class Aider:
    # Aider offers no tools.
    prompts = ("[long-text]", "[next-text]")

    def __init__(self, address, home):
        self.environment = {
            "OPENAI_API_BASE": f"{address}/v1",
            "OPENAI_API_KEY": "none",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def command(self, prompt, is_next):
        options = ["--model", "openai/default", "--edit-format", "diff", "--no-git", "--yes-always", "--no-check-update"]
        quiet = ["--no-show-model-warnings", "--analytics-disable", "--no-pretty", "--no-gitignore", "--no-detect-urls"]
        test = ["--auto-test", "--test-cmd", f"{sys.executable} test_order.py"]
        history = ["--restore-chat-history"] if is_next else []
        return [program("aider"), *options, *quiet, *test, *history, "--message", prompt, "price.py", "order.py"]


AGENTS = {"claude": Claude, "codex": Codex, "opencode": Opencode, "cline": Cline, "continue": Continue, "aider": Aider}


def running():
    """The number of requests that the server computes."""
    with urllib.request.urlopen(SERVER + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))


def wait(until, seconds, what):
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, f"{what}: not within {seconds} seconds"
        time.sleep(0.05)


def end_all(home):
    """Ends what an agent has left running: the processes that have its home."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HOME={home}\0".encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:
            pass


class Work:
    """An agent with a shop to mend."""

    def __init__(self, name, folder):
        self.home, self.shop = folder / "home", folder / "shop"
        self.home.mkdir()
        shutil.copytree(HERE / "shop", self.shop)
        self.proxy = record.start(SERVER)
        self.agent = AGENTS[name](self.proxy.address, self.home)

    def run(self, prompt, is_next=False, is_cut=False):
        """What the agent prints. With `is_cut` it is interrupted while an answer comes."""
        environment = {**os.environ, "HOME": str(self.home), "PWD": str(self.shop), "NO_PROXY": "127.0.0.1", **self.agent.environment}
        self.proxy.passed = 0
        with tempfile.TemporaryFile("w+") as printed:
            process = subprocess.Popen(
                self.agent.command(prompt, is_next),
                cwd=self.shop,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                if is_cut:
                    wait(lambda: self.proxy.passed > 20_000, 200, "a long answer")
                    process.send_signal(signal.SIGINT)
                process.wait(300)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                printed.seek(0)
                said = printed.read()
                print(f"--- {prompt}: {process.poll()}\n{said[-6000:]}", file=sys.stderr)
        return said

    def all(self, name):
        said = self.run(f"[{name}-mend] The test of this shop fails. Mend it.")
        assert "Both files are mended" in said, "the agent has not come to its end"
        test = subprocess.run([sys.executable, "test_order.py"], cwd=self.shop, capture_output=True, text=True)
        assert test.stdout == "passed\n", test
        long, following = getattr(self.agent, "prompts", ("[long]", "[next]"))
        self.run(f"{long} Write a long list.", is_cut=True)
        wait(lambda: running() == 0, 20, "the end of an answer that nobody reads")
        assert [request.get("cut") for request in self.proxy.recorded].count(True) == 1
        said = self.run(f"{following} Go on.", is_next=True)
        assert "this is the next answer" in said
        return self.proxy.recorded


for name in ONLY or AGENTS:
    with tempfile.TemporaryDirectory() as folder:
        work = Work(name, Path(folder))
        try:
            requests = work.all(name)
        finally:
            end_all(work.home)
        print(name, PACKAGES[name], f"{len(requests)} requests")
        if os.environ.get("MLX_RECORD_AGENTS"):
            (HERE / "requests").mkdir(exist_ok=True)
            record.write(HERE / f"requests/{name}.json", [record.lend(request, folder) for request in requests])
