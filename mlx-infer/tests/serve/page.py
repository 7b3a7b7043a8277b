"""The page in headless Chromium. Arguments: the address of a server, that of a server with a key, the key, that of a
server whose slow model reasons and goes on for long, the browser, and names of checks, if not all are to run.

Every check is an assertion.
"""

import json

from page_answers import RICH, formulas, growing, hostile, rich
from page_browser import ADDRESS, CHROMIUM, CLOSED, KEY, ONLY, SLOW, answered, ask, mocked, opened, set_most_tokens
from playwright.sync_api import expect, sync_playwright


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
    page.wait_for_selector("li.assistant .body:has-text('It is 42.')")
    page.click("#stop")
    page.wait_for_selector("#send:not([hidden])")
    page.wait_for_function("fetch('/metrics').then((r) => r.text()).then((t) => /num_requests_running\\{[^}]*\\} 0$/m.test(t))")
    page.wait_for_selector("li.assistant .tools:has-text('stopped')")
    assert "It is 42." in page.inner_text("li.assistant .body")
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
    mocked(page, RICH + "\n```\n" + "wide " * 100 + "\n```\n\n$$" + "a + " * 100 + "b$$\n")
    ask(page, "x" * 200)
    answered(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert page.evaluate("document.getElementById('messages').scrollWidth") <= 375
    for wanted in ("#send", "#input", "#attach", "#chat-system", "#meter-text"):
        assert page.locator(wanted).is_visible(), wanted
    # The header is one line, which the list of chats begins below.
    assert page.evaluate("document.querySelector('header').offsetHeight") <= 52
    page.click("#menu")
    assert page.locator("#chats li").is_visible() and page.locator("#export").is_visible()
    page.click("#new-chat")
    assert not page.locator("#chats li").is_visible()
    assert page.faults == [], page.faults
    page.close()


# An answer goes on in the server while the page is loaded again, and when the connection is lost.
def reload(browser):
    page = opened(browser, SLOW)
    page.wait_for_selector("#model option", state="attached")
    set_most_tokens(page, 150)
    ask(page, "Why?")
    whole = answered(page)
    assert "150 tokens" in page.inner_text("li.assistant .tools"), page.inner_text("li.assistant .tools")
    assert whole.count("and so on") > 5
    page.click("#new-chat")
    ask(page, "Why?")
    page.wait_for_selector("li.assistant strong")
    with page.expect_request("**/v1/chat/completions/*starting_after=*"):
        page.reload()
    assert answered(page) == whole
    assert "150 tokens" in page.inner_text("li.assistant .tools")
    # Another chat is looked at meanwhile.
    page.click("#new-chat")
    ask(page, "Why?")
    page.wait_for_selector("li.assistant strong")
    page.click("#chats li:nth-child(2) button")
    page.wait_for_selector("#send:not([hidden])")
    page.click("#chats li:nth-child(1) button")
    assert answered(page) == whole
    page.evaluate(
        """() => {
          const real = window.fetch;
          window.opened = [];
          window.fetch = async (path, options) => {
            if (window.isDown) throw new TypeError("no network");
            const response = await real(path, options);
            window.opened.push(`${options.method} ${path}`);
            if (!path.endsWith("chat/completions")) return response;
            let chunks = 0;
            const cut = new TransformStream({
              transform(chunk, control) {
                if (chunks++ > 9) {
                  window.isDown = window.staysDown;
                  control.error(new TypeError("network error"));
                }
                else control.enqueue(chunk);
              },
            });
            return new Response(response.body.pipeThrough(cut), { status: 200 });
          };
        }"""
    )
    page.click("#new-chat")
    ask(page, "Why?")
    assert answered(page) == whole
    opened_again = [path for path in page.evaluate("window.opened") if "starting_after=" in path]
    assert len(opened_again) == 1, opened_again
    # One that stays lost is read on when the browser is online again.
    page.evaluate("window.staysDown = true")
    page.click("#new-chat")
    ask(page, "Why?")
    page.wait_for_selector("li.assistant .bad")
    assert "does not answer" in page.inner_text("li.assistant .bad")
    page.evaluate("window.isDown = false; dispatchEvent(new Event('online'))")
    page.wait_for_selector("li.assistant .bad", state="detached")
    page.wait_for_selector("#send:not([hidden])")
    assert answered(page) == whole
    # An answer that the server has no more of says so.
    page.evaluate("""() => {
      const name = Object.keys(localStorage).find((name) => name.startsWith("mlx-chat:"));
      const chat = JSON.parse(localStorage.getItem(name));
      chat.time = Date.now() + 1;
      Object.assign(chat.messages.at(-1), { resume: { id: "chatcmpl-gone", after: 3 }, content: "Half" });
      localStorage.setItem(name, JSON.stringify(chat));
    }""")
    page.reload()
    page.wait_for_selector("li.assistant .bad")
    assert "Half" in page.inner_text("li.assistant .body")
    assert page.faults == [] and page.outside == [], (page.faults, page.outside)
    page.close()


def versions(browser):
    page = opened(browser, ADDRESS)
    page.wait_for_selector("#model option", state="attached")
    set_most_tokens(page, 8)
    ask(page, "What is 20 + 22?")
    assert answered(page).strip() == "42"
    ask(page, "What is 1 + 1?")
    page.wait_for_selector("li.assistant:nth-child(4) .tools span")
    # Another answer to the first question begins a branch of its own.
    page.locator("li.assistant").first.locator("text=Regenerate").click()
    page.wait_for_selector("#send:not([hidden])")
    assert page.locator("#messages > li").count() == 2
    first = page.locator("li.assistant").first
    expect(first.locator(".tools")).to_contain_text("2/2")
    page.locator("li.user").first.locator("text=Edit").click()
    page.fill("form.edit textarea", "What is 30 + 33?")
    page.click("form.edit button >> nth=0")
    page.wait_for_selector("li.user >> text=What is 30 + 33?")
    page.wait_for_selector("li.assistant .tools span")
    page.reload()
    page.wait_for_selector("li.user >> text=What is 30 + 33?")
    page.locator("li.user").get_by_label("Earlier version").click()
    expect(page.locator("li.user .body").first).to_have_text("What is 20 + 22?")
    first.get_by_label("Earlier version").click()
    assert page.locator("#messages > li").count() == 4
    assert first.locator(".body").inner_text().strip() == "42"
    assert first.get_by_label("Earlier version").is_disabled()
    page.locator("li.user").first.get_by_label("Later version").click()
    assert page.locator("#messages > li").count() == 2
    assert page.faults == [], page.faults
    page.close()


def files(browser):
    page = opened(browser, ADDRESS)
    mocked(page, "Seen.")
    notes = "a ```` b\n<img src=x onerror='window.hit = 1'>"
    page.set_input_files("#files", [{"name": "notes.txt", "mimeType": "text/plain", "buffer": notes.encode()}])
    page.wait_for_selector("#attached li >> text=notes.txt")
    page.set_input_files("#files", [{"name": "photo.png", "mimeType": "image/png", "buffer": b"\x89PNG\0\xff"}])
    expect(page.locator("#state")).to_contain_text("photo.png is not attached: it is no text")
    page.set_input_files("#files", [{"name": "big.txt", "mimeType": "text/plain", "buffer": b"x" * (1 << 21)}])
    expect(page.locator("#state")).to_contain_text("big.txt is not attached: it has 2.0 MiB")
    page.set_input_files("#files", [{"name": "more.txt", "mimeType": "text/plain", "buffer": b"x"}])
    page.get_by_label("Remove more.txt").click()
    ask(page, "What is this?")
    answered(page)
    body = page.evaluate("window.asked[0]")
    assert body["messages"] == [{"role": "user", "content": f"notes.txt\n`````\n{notes}\n`````\n\nWhat is this?"}], body["messages"]
    assert page.locator("#attached li").count() == 0
    page.reload()
    page.click("li.user details.file summary")
    assert notes in page.inner_text("li.user details.file pre") and page.evaluate("window.hit") is None
    assert page.faults == [], page.faults
    page.close()


def chats(browser):
    page = opened(browser, ADDRESS)
    mocked(page, "Blue, as `rayleigh` has it.")
    for question in ("Why is the sky blue?", "How do bees fly?"):
        page.click("#new-chat")
        ask(page, question)
        answered(page)
    names = page.locator("#chats li button:first-child")
    assert names.all_inner_texts() == ["How do bees fly?", "Why is the sky blue?"]
    page.get_by_label("Rename How do bees fly?").click()
    page.fill("#chats input", "Insects")
    page.press("#chats input", "Enter")
    assert names.all_inner_texts() == ["Insects", "Why is the sky blue?"]
    page.fill("#search", "SKY")
    assert names.all_inner_texts() == ["Why is the sky blue?"]
    page.fill("#search", "rayleigh")
    assert names.count() == 2
    page.fill("#search", "nothing has this")
    assert names.count() == 0
    page.fill("#search", "")
    with page.expect_download() as got:
        page.click("#export")
    exported = json.load(open(got.value.path(), encoding="utf-8"))
    assert [one["title"] for one in exported["chats"]] == ["Insects", "Why is the sky blue?"]
    with page.expect_download() as got:
        page.click("#export-one")
    assert got.value.suggested_filename == "Insects.md"
    text = open(got.value.path(), encoding="utf-8").read()
    assert text == "# Insects\n\n## User\n\nHow do bees fly?\n\n## Assistant\n\nBlue, as `rayleigh` has it.\n", text
    page.get_by_label("Delete Insects").click()
    assert names.all_inner_texts() == ["Why is the sky blue?"]
    load = lambda name, data: page.set_input_files("#import-file", [{"name": name, "mimeType": "application/json", "buffer": json.dumps(data).encode()}])
    load("a.json", exported)
    expect(page.locator("#state")).to_have_text("1 of 2 chats imported")
    assert names.all_inner_texts() == ["Insects", "Why is the sky blue?"]
    load("b.json", {"chats": "x"})
    expect(page.locator("#state")).to_have_text("b.json cannot be imported: it is no export of this page")
    odd = [None, 7, {"id": 1}, {"id": "x", "messages": [3, {"role": "tool"}, {"role": "user", "content": {}, "files": [1], "tokens": [{}], "versions": 2}], "title": ["<b>"]},
           {"id": "y", "messages": [{"role": "assistant", "content": "<img src=x onerror='window.hit = 1'>"}], "title": "<img src=x onerror='window.hit = 2'>"}]
    load("c.json", {"format": "mlx-infer chats", "version": 1, "chats": odd})
    expect(page.locator("#state")).to_have_text("2 of 5 chats imported")
    page.reload()
    page.click("#chats button[title^='<img']")
    page.wait_for_selector("li.assistant >> text=onerror")
    assert page.evaluate("window.hit") is None and page.locator("#chats li").count() == 4
    assert page.faults == [] and page.outside == [], (page.faults, page.outside)
    page.close()


# Chats that an earlier version of the page has kept.
def earlier(browser):
    page = opened(browser, ADDRESS)
    page.evaluate("""localStorage.setItem("mlx-chats", JSON.stringify([
      { id: "1", title: "First", messages: [{ role: "user", content: "one" }, { role: "assistant", content: "two", tokens: [] }] },
      { id: "2", title: "Second", messages: [{ role: "user", content: "three" }] }]))""")
    for _ in range(2):
        page.reload()
        page.wait_for_selector("li.assistant >> text=two")
        assert page.locator("#chats li button:first-child").all_inner_texts() == ["First", "Second"]
    assert page.evaluate("localStorage.getItem('mlx-chats')") is None and page.faults == []
    page.close()


def meter(browser):
    page = opened(browser, SLOW)
    page.wait_for_selector("#model option", state="attached")
    set_most_tokens(page, 120)
    ask(page, "Why?")
    page.wait_for_function("() => /^\\d+ of 2,048 tokens of context · \\d+\\.\\d tokens\\/s$/.test(document.getElementById('meter-text').textContent)")
    answered(page)
    used = int(page.inner_text("#meter-text").split()[0])
    assert 120 < used < 200 and page.evaluate("document.getElementById('context').value") == used
    assert "tokens/s" not in page.inner_text("#meter-text") and "/s" in page.inner_text("li.assistant .tools")
    page.reload()
    page.wait_for_function(f"() => document.getElementById('meter-text').textContent.startsWith('{used} of 2,048')")
    assert page.faults == [], page.faults
    page.close()


def systems(browser):
    page = opened(browser, ADDRESS)
    mocked(page, "Arr.")
    system = lambda: [m["content"] for m in page.evaluate("window.asked.at(-1)")["messages"] if m["role"] == "system"]
    page.click("#chat-system")
    page.fill("#own-system", "You are a pirate.")
    page.fill("#preset-name", "Pirate")
    page.click("#save-preset")
    page.click("#system-dialog .buttons > button")
    ask(page, "Hello")
    answered(page)
    assert system() == ["You are a pirate."]
    page.click("#new-chat")
    ask(page, "Hello")
    page.wait_for_function("() => window.asked.length === 2")
    answered(page)
    assert system() == []
    # In another chat the preset is chosen again, after a reload too.
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    page.click("#new-chat")
    page.click("#chat-system")
    page.select_option("#presets", "Pirate")
    assert page.input_value("#own-system") == "You are a pirate."
    page.click("#system-dialog .buttons > button")
    ask(page, "Hello")
    answered(page)
    assert system() == ["You are a pirate."]
    page.click("#chat-system")
    page.select_option("#presets", "Pirate")
    page.click("#delete-preset")
    assert page.locator("#presets option").count() == 1
    page.keyboard.press("Escape")
    assert page.faults == [], page.faults
    page.close()


# The luminance of a colour, and the contrast of two, as WCAG 2 has them.
CONTRAST = """(pairs) => {
  const parse = (text) => { const probe = document.createElement("i"); probe.style.color = text; document.body.append(probe); const found = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number); probe.remove(); return found; };
  const light = (name) => { const [r, g, b] = parse(`var(--${name})`).map((one) => one / 255).map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  return pairs.map(([one, other]) => { const [a, b] = [light(one), light(other)].sort((x, y) => y - x); return [one, other, (a + 0.05) / (b + 0.05)]; }).filter(([, , ratio]) => ratio < 4.5);
}"""


def accessible(browser):
    page = opened(browser, ADDRESS)
    mocked(page, RICH)
    ask(page, "Show me.")
    answered(page)
    shades = set()
    for theme in ("As the system has it", "Light", "Dark"):
        assert page.get_attribute("#theme", "aria-label") == f"Colours: {theme}"
        shades.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        pairs = [[one, back] for one in ("text", "dim", "bad", "accent", "keyword", "string", "number", "name") for back in ("back", "soft")]
        faint = page.evaluate(CONTRAST, [*pairs, ["on-accent", "accent"]])
        assert faint == [], (theme, faint)
        page.click("#theme")
    assert len(shades) == 2, shades
    page.click("#theme")
    page.click("#theme")
    page.reload()
    assert page.get_attribute("#theme", "aria-label") == "Colours: Dark"
    assert page.get_attribute("link[rel=icon]", "href").startswith("data:image/svg+xml")
    # Each control has a name, and a label that says what it is.
    page.wait_for_selector("li.assistant .code")
    for dialog in (None, "#open-settings", "#chat-system"):
        if dialog:
            page.click(dialog)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, select, input, textarea, meter")].filter((one) => one.checkVisibility() && !one.closest("li.task")
              && !(one.ariaLabel || one.labels?.length || (one.localName === "button" && one.textContent.trim()))).map((one) => one.outerHTML)"""
        )
        assert nameless == [], nameless
        page.keyboard.press("Escape")
    # Tabs are changed by arrows, and everything is reached by the tab key.
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    assert page.locator("#classify").is_visible() and page.evaluate("document.activeElement.id") == "tab-classify"
    page.keyboard.press("ArrowLeft")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.textContent"))
    for wanted in ("model", "theme", "open-settings", "new-chat", "search", "Rename Show me.", "Delete Show me.", "export", "import", "Copy", "Regenerate", "chat-system", "attach", "input", "send"):
        assert wanted in reached, (wanted, reached)
    assert page.faults == [], page.faults
    page.close()


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    checks = (chat, stop, reasons, settings, classify, key, narrow, reload, hostile, rich, growing, formulas, versions, files, chats, earlier, meter, systems, accessible)
    for check in [check for check in checks if not ONLY or check.__name__ in ONLY]:
        check(browser)
        print(json.dumps(check.__name__))
    browser.close()
