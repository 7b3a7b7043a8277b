"""Checks of how answers look in the page: Markdown, code, formulas, and that nothing in them acts."""

import json

from page_browser import ADDRESS, answered, ask, mocked, opened
from playwright.sync_api import expect

HOSTILE = """<script>window.hit = 1</script>
<img src=x onerror="window.hit = 2"> <svg onload="window.hit = 3"></svg> <iframe srcdoc="<script>parent.hit = 4</script>"></iframe>

[one](javascript:window.hit=5) [two](data:text/html,<script>window.hit=6</script>) <javascript:window.hit=7> [three](JaVaScRiPt&colon;alert(1))
![image](http://example.org/a.png "x\\" onerror=\\"window.hit=8") &lt;img src=x onerror=window.hit=9&gt;

```html"><img src=x onerror=window.hit=10>
<img src=x onerror="window.hit = 11">
```

```xml
<script>window.hit = 12</script></code></pre><img src=x onerror="window.hit = 13">
```

| <img src=x onerror=window.hit=14> | b |
|---|---|
| <style>body{display:none}</style> | c |

$\\text{<img src=x onerror=window.hit=15>} \\href{javascript:window.hit=16}{x}$ $\\color{url(//example.org)} x$ $\\begin{constructor} x \\end{constructor}$

<a href="https://example.org" onclick="window.hit = 17">x</a> [fine](https://example.org/?a=1&b=2)
"""


# No markup of an answer becomes markup of the page.
def hostile(browser):
    page = opened(browser, ADDRESS)
    mocked(page, HOSTILE)
    ask(page, HOSTILE)
    answered(page)
    page.reload()
    page.wait_for_selector("li.assistant .code")
    page.wait_for_timeout(300)
    assert page.evaluate("window.hit") is None
    found = page.evaluate(
        """() => [...document.querySelectorAll("#messages *")].flatMap((node) => {
          const named = ["script", "img", "svg", "iframe", "style", "object", "embed", "form", "link"].includes(node.localName);
          const acts = [...node.attributes].filter(({ name, value }) => name.startsWith("on") || /^\\\\s*(javascript|data):/i.test(value));
          return named || acts.length || (node.localName === "a" && !/^(https?|mailto):/.test(node.href)) ? [node.outerHTML] : [];
        })"""
    )
    assert found == [], found
    links = page.eval_on_selector_all("li.assistant a", "(all) => all.map((one) => [one.href, one.rel, one.target])")
    assert ["https://example.org/?a=1&b=2", "noopener noreferrer", "_blank"] in links, links
    assert page.faults == [] and page.outside == [], (page.faults, page.outside)
    page.close()


RICH = """# Title

It costs $5 and $10. Inline \\(a_1 + \\frac{1}{2}\\), $x^2$ and $\\unknown{x}$.

$$\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}, \\quad A = \\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}$$

```rust
fn main() { let x = 42; } // a comment
```

```unheard-of
plain & text
```

- [x] done
- open
  1. one

| a | b |
|---|--:|
| 1 | `2` |
"""


def rich(browser):
    page = opened(browser, ADDRESS)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    mocked(page, RICH)
    ask(page, "Show me.")
    answered(page)
    answer = page.locator("li.assistant .text")
    assert answer.locator("h2").inner_text() == "Title"
    assert "It costs $5 and $10." in answer.inner_text()
    formulas = answer.locator("math")
    assert formulas.count() == 3
    assert formulas.nth(2).get_attribute("display") == "block"
    assert answer.locator("math mfrac").count() == 2 and answer.locator("mtable mtr").count() == 2
    assert answer.locator("code.source").inner_text() == "\\unknown{x}"
    keyword = answer.locator(".c-keyword", has_text="fn")
    shade = "(node) => getComputedStyle(node).color"
    assert keyword.evaluate(shade) != answer.locator(".code code").first.evaluate(shade)
    answer.locator(".code button").nth(0).click()
    expect(answer.locator(".code button").nth(0)).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "fn main() { let x = 42; } // a comment"
    answer.locator(".code button").nth(1).click()
    page.wait_for_function("() => navigator.clipboard.readText().then((text) => text === 'plain & text')")
    # Without a clipboard, as on plain HTTP.
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    answer.locator(".code button").nth(0).click()
    page.evaluate("document.body.append(Object.assign(document.createElement('textarea'), { id: 'paste' }))")
    page.focus("#paste")
    page.keyboard.press("Control+v")
    assert page.input_value("#paste") == "fn main() { let x = 42; } // a comment"
    assert answer.locator("input[type=checkbox]").count() == 1 and answer.locator("ul ol li").count() == 1
    assert answer.locator("td").nth(1).evaluate("(node) => getComputedStyle(node).textAlign") == "right"
    assert page.faults == [], page.faults
    page.close()


GROWING = RICH + """
First line
===

1. one

2. two
   continued

3
3. three

* a
- b

| not | yet

```python
def f():
    return 1

    # in the fence
```
Text right below. Then [a link][1] and \\[ x \\] and
"""


# An answer that comes in small pieces looks like one that is there at once, and blocks that are complete stay.
def growing(browser):
    for said, is_kept in ((GROWING, True), (GROWING + "\n[1]: https://example.org\n", False)):
        page = opened(browser, ADDRESS)
        mocked(page, said, 3)
        page.evaluate("window.isHeld = true")
        ask(page, "Show me.")
        page.wait_for_selector("li.assistant .code")
        page.evaluate("document.querySelector('li.assistant h2').isKept = true")
        page.wait_for_function("() => window.finish")
        page.evaluate("new Promise((wake) => requestAnimationFrame(() => requestAnimationFrame(wake)))")
        # A link's definition is the one thing that changes blocks before it.
        assert bool(page.evaluate("document.querySelector('li.assistant h2').isKept")) == is_kept
        text = "document.querySelector('li.assistant .text').innerHTML"
        grown = page.evaluate(text)
        page.evaluate("window.finish()")
        answered(page)
        assert page.evaluate("document.querySelector('li.assistant h2').isKept") is None
        assert page.evaluate(text) == grown, (page.evaluate(text), grown)
        assert grown.count("<li") == 7 and ("https://example.org" in grown) != is_kept, grown
        assert page.faults == [], page.faults
        page.close()


KNOWN = r"""\frac{-b \pm \sqrt{b^2 - 4ac}}{2a}; \sqrt[3]{8}; \mathbf{A}\mathbf{x} = \mathbf{b}; \nabla \cdot \mathbf{E} = \frac{\rho}{\varepsilon_0}; \frac12
\operatorname{softmax}(x_i) = \frac{e^{x_i}}{\sum_j e^{x_j}}; P(A|B) = \frac{P(B|A)P(A)}{P(B)}; \lVert x \rVert_2^2; \left\| x \right\|; \left. \frac{dy}{dx} \right|_{x=0}
\lim_{n \to \infty} a_n; \int\limits_a^b f(x)\,dx; \oint_C; \mathbb{E}[X] \in \mathbb{R}; \mathcal{N}(0, 1); \mathfrak{g}; a \equiv b \pmod{n}; \underbrace{a+b}_{n}; \overline{AB}
\sum_{\substack{i=1 \\ j=2}} x_{ij}; \binom{n}{k}; \boxed{x = 5}; \text{if } x > 0; \mathrm{H_2O}; \ce{2 H2 + O2 -> 2 H2O}; f''(x); f'^2; x^{(i)}; {}^{14}C; \{x \mid x > 0\}; 50\%; \$5
\left\{ \frac{a}{b} \middle| c \right\}; \begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix}; \begin{cases} 1 & x > 0 \\ 0 & \text{otherwise} \end{cases}; \begin{array}{c|c} a & b \\ \hline 1 & 2 \end{array}
\begin{aligned} x &= 1 \\[4pt] y &= 2 \end{aligned}; \displaystyle \sum_{i=1}^n i; \bigl( x \bigr); \argmax_\theta L; \operatorname*{argmin}_x f; \overset{!}{=}; \xrightarrow{f}; \not\in; |\psi\rangle; \ket{\psi}; \hspace{1cm}; 1{,}000; \cancel{x}"""
UNKNOWN = [r"\unheard{x}", r"\frac{1}", r"x^1^{", r"\left( x", r"\begin{cases} x", r"a } b", r"\href{https://example.org}{x}", "{" * 500 + "x" + "}" * 500, r"\constructor", r"\begin{toString} x \end{toString}", r"\def\x{\x}\x"]


def formulas(browser):
    page = opened(browser, ADDRESS)
    known = [one.strip() for line in KNOWN.split("\n") for one in line.split(";") if one.strip()]
    mocked(page, "\n\n".join(f"$${one}$$" for one in [*known, *UNKNOWN]))
    ask(page, "Show me.")
    answered(page)
    shown = page.eval_on_selector_all("li.assistant .text > *", "(all) => all.map((one) => [one.localName, one.ariaLabel ?? one.textContent])")
    assert shown == [*(["math", one] for one in known), *(["code", one] for one in UNKNOWN)], [pair for pair in zip(shown, known + UNKNOWN) if pair[0][1] != pair[1] or (pair[0][0] == "math") != (pair[1] in known)]
    math = lambda source: page.locator(f"math[aria-label={json.dumps(source)}]")
    assert math(r"\frac12").locator("mfrac > mn").all_text_contents() == ["1", "2"]
    assert math(r"\sqrt[3]{8}").locator("mroot > mn").all_text_contents() == ["8", "3"]
    assert math(r"\mathcal{N}(0, 1)").text_content() == "\U0001d4a9(0,1)" and math(r"\mathfrak{g}").text_content() == "\U0001d524"
    assert math(r"\lVert x \rVert_2^2").locator("msubsup").count() == 1
    assert math(r"\int\limits_a^b f(x)\,dx").locator("munderover").count() == 1
    assert math(r"\mathrm{H_2O}").locator("msub > mi").text_content() == "H"
    assert math(r"\ce{2 H2 + O2 -> 2 H2O}").text_content() == "2H2+O2→2H2O"
    assert page.faults == [], page.faults
    page.close()
