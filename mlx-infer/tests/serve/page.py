"""The page in headless Chromium. Arguments: the address of a server, that of a server with a key, the key, that of a
server whose slow model reasons and goes on for long, and the browser.

Every check is an assertion.
"""

import json
import sys

from playwright.sync_api import expect, sync_playwright

ADDRESS, CLOSED, KEY, SLOW, CHROMIUM = sys.argv[1:]


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
    # Regenerate, edit, and a chat that is still there after a reload.
    page.wait_for_selector("#stop", state="hidden")
    page.click("text=Regenerate")
    page.wait_for_selector("#stop", state="hidden")
    page.click("text=Edit")
    page.fill("form.edit textarea", "What is 20 + 21?")
    page.click("form.edit button >> nth=0")
    page.wait_for_selector("li.user >> text=What is 20 + 21?")
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


def reasons(browser):
    page = opened(browser, SLOW)
    page.wait_for_selector("#model option", state="attached")
    ask(page, "Why?")
    # Reasoning in a part of its own, then the answer, as they come.
    page.wait_for_selector("li.assistant strong")
    assert "I add." in page.text_content("li.assistant details")
    assert "I add." not in page.text_content("li.assistant p")
    page.click("#stop")
    page.wait_for_selector("#send:not([hidden])")
    page.wait_for_function("fetch('/metrics').then((r) => r.text()).then((t) => /num_requests_running\\{[^}]*\\} 0$/m.test(t))")
    assert "It is 42." in page.inner_text("li.assistant .body") and "stopped" in page.inner_text("li.assistant .tools")
    assert page.faults == [], page.faults
    page.close()


def settings(browser):
    page = opened(browser, ADDRESS)
    page.wait_for_selector("#model option", state="attached")
    page.click("#open-settings")
    page.fill("#system", "Be brief.")
    page.fill("#temperature", "0")
    page.fill("#max_tokens", "5")
    page.click("#settings .buttons button:last-child")
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "What is 20 + 22?")
    body = request.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be brief."} and body["temperature"] == 0 and body["max_tokens"] == 5
    answered(page)
    shades = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        shades.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert shades[0] != shades[1], shades
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
    for check in (chat, stop, reasons, settings, classify, key, narrow):
        check(browser)
        print(json.dumps(check.__name__))
    browser.close()
