"""The page in headless Chromium. Arguments: the address of a server, that of a server with a key, the key, and the browser.

Every check is an assertion.
"""

import json
import sys

from playwright.sync_api import expect, sync_playwright

ADDRESS, CLOSED, KEY, CHROMIUM = sys.argv[1:]


def ask(page, text):
    page.fill("#input", text)
    page.press("#input", "Enter")


def answered(page):
    page.wait_for_selector("li.assistant .tools span")
    return page.inner_text("li.assistant:last-child .body")


def opened(browser, address, width=1100):
    page = browser.new_page(viewport={"width": width, "height": 760})
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda message: page.faults.append(message.text) if "Content Security" in message.text else None)
    page.goto(address)
    return page


def chat(browser):
    page = opened(browser, ADDRESS)
    page.wait_for_selector("#model option", state="attached")
    ask(page, "What is 20 + 22?")
    assert answered(page).strip() == "42"
    # A token's alternatives, and going on from one of them.
    page.click("text=Tokens")
    page.click(".tokens button >> nth=0")
    page.wait_for_selector("#alternatives:not([hidden])")
    assert page.locator("#alternatives button").count() > 3
    page.locator("#alternatives button", has_text="5").first.click()
    page.wait_for_function("document.querySelector('li.assistant .body').innerText.startsWith('5')")
    # Edit, regenerate, and a chat that is still there after a reload.
    page.wait_for_selector("#stop", state="hidden")
    page.click("text=Regenerate")
    page.wait_for_selector("#stop", state="hidden")
    page.reload()
    page.wait_for_selector("li.assistant")
    assert page.locator("#chats li").count() == 1
    assert page.faults == [], page.faults
    page.close()


def stop(browser):
    page = opened(browser, ADDRESS)
    stream = []

    # An answer that goes on until it is stopped: the headers and one chunk, then nothing.
    page.add_init_script(
        """
        const real = window.fetch;
        window.fetch = async (path, options) => {
          if (!String(path).includes("chat/completions")) return real(path, options);
          const text = 'data: {"choices":[{"index":0,"delta":{"content":"<script>window.hit = 1</script>**bold**"}}]}\\n\\n';
          const body = new ReadableStream({
            start(control) {
              control.enqueue(new TextEncoder().encode(text));
              options.signal.addEventListener("abort", () => control.error(new DOMException("stopped", "AbortError")));
            },
          });
          return new Response(body, { status: 200 });
        };
        """
    )
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    ask(page, "hello")
    page.wait_for_selector("li.assistant strong")
    # Text of the model is never run.
    assert "<script>window.hit = 1</script>" in page.inner_text("li.assistant .body")
    assert page.evaluate("window.hit") is None
    page.click("#stop")
    page.wait_for_selector("#send:not([hidden])")
    assert page.faults == [] and stream == [], page.faults
    page.close()


def classify(browser):
    page = opened(browser, ADDRESS)
    page.wait_for_selector("#model option", state="attached")
    page.click("#tab-classify")
    page.fill("#texts", "2 + 2 =\n3 + 4 =")
    page.fill("#labels", "4\n7")
    page.click("#classify-form button")
    page.wait_for_selector("#classes:not([hidden])")
    best = page.locator("#classes .best")
    assert best.count() == 2
    page.click("#tab-load")
    expect(page.locator("#figures")).to_contain_text("Time to first token", timeout=10_000)
    assert page.faults == [], page.faults
    page.close()


def key(browser):
    page = opened(browser, CLOSED)
    page.wait_for_selector("#settings[open]")
    page.fill("#key", "wrong")
    page.click("#settings .buttons button:last-child")
    page.wait_for_selector("#settings[open]")
    page.fill("#key", KEY)
    # The likeliest answer, as a drawn one may be wrong.
    page.fill("#temperature", "0")
    page.click("#settings .buttons button:last-child")
    page.wait_for_selector("#model option", state="attached")
    ask(page, "What is 1 + 1?")
    assert answered(page).strip() == "2"
    page.close()


def narrow(browser):
    page = opened(browser, ADDRESS, width=375)
    page.wait_for_selector("#model option", state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert page.locator("#send").is_visible()
    page.close()


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    for check in (chat, stop, classify, key, narrow):
        check(browser)
        print(json.dumps(check.__name__))
    browser.close()
