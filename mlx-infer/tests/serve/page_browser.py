"""What the checks of the page have in common: the arguments of `page.py`, pages, and a server whose answers are given."""

import json
import sys

ADDRESS, CLOSED, KEY, SLOW, CHROMIUM, *ONLY = sys.argv[1:]


def ask(page, text):
    page.fill("#input", text)
    page.press("#input", "Enter")


def answered(page):
    page.wait_for_selector("li.assistant .tools span")
    return page.inner_text("li.assistant:last-child .body")


def set_most_tokens(page, n):
    page.click("#open-settings")
    page.fill("#max_tokens", str(n))
    page.fill("#temperature", "0")
    page.click("#settings .buttons button:last-child")


# A server whose answer is this text, in pieces of so many characters, with the requests that it was sent.
def mocked(page, text, size=1_000_000):
    page.add_init_script(
        "const [said, size] = %s;" % json.dumps([text, size])
        + """
        const real = window.fetch;
        window.asked = [];
        window.fetch = async (path, options) => {
          if (!String(path).endsWith("chat/completions")) return real(path, options);
          window.asked.push(JSON.parse(options.body));
          const event = (data) => `data: ${typeof data === "string" ? data : JSON.stringify(data)}\\n\\n`;
          const usage = { id: "chatcmpl-mock", choices: [], usage: { completion_tokens: 20, total_tokens: 23 } };
          const choices = (delta, finish_reason) => ({ id: "chatcmpl-mock", choices: [{ index: 0, delta, finish_reason }] });
          const events = [];
          for (let at = 0; at < said.length; at += size) events.push(event(choices({ content: said.slice(at, at + size) })));
          events.push(event(choices({}, "stop")) + event(usage) + event("[DONE]"));
          const body = new ReadableStream({
            async pull(control) {
              await new Promise(requestAnimationFrame);
              if (window.isHeld && events.length === 1) await new Promise((wake) => (window.finish = wake));
              control.enqueue(new TextEncoder().encode(events.shift()));
              if (!events.length) control.close();
            },
          });
          return new Response(body, { status: 200 });
        };
        """
    )
    page.reload()
    page.wait_for_selector("#model option", state="attached")


def opened(browser, address, width=1100):
    page = browser.new_page(viewport={"width": width, "height": 760})
    page.faults = []
    page.outside = []
    page.on("request", lambda request: None if request.url.startswith((address, "blob:", "data:")) else page.outside.append(request.url))
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda message: page.faults.append(message.text) if "Content Security" in message.text else None)
    page.goto(address)
    return page
