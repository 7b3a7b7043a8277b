// Markdown to DOM nodes, from the tokens of marked. A model's text only ever becomes text nodes: no markup of it is parsed as HTML.

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

// TeX between dollars or behind backslashes. Between single dollars it begins and ends with no blank, and no digit follows, as in prices.
const BLOCK_FORMULA = /^ {0,3}(?:\$\$([^]+?)\$\$|\\\[([^]+?)\\\]|(\\begin\{(align|aligned|equation|gather|cases|[pbvBV]?matrix)(\*?)\}[^]+?\\end\{\4\5\}))[ \t]*(?:\n|$)/;
const INLINE_FORMULA = /^(?:\$\$([^]+?)\$\$|\\\[([^]+?)\\\]|\\\(([^]+?)\\\)|\$(?!\s)((?:\\[^]|[^\\$\n])+?)(?<!\s)\$(?![0-9]))/;

const formulas = {
  extensions: [
    {
      name: "block-formula",
      level: "block",
      start: (text) => /^ {0,3}(?:\$\$|\\\[|\\begin\{)/m.exec(text)?.index,
      tokenizer(text) {
        const found = BLOCK_FORMULA.exec(text);
        return found && { type: "block-formula", raw: found[0], text: (found[1] ?? found[2] ?? found[3]).trim() };
      },
    },
    {
      name: "formula",
      level: "inline",
      start: (text) => /\$|\\[[(]/.exec(text)?.index,
      tokenizer(text) {
        const found = INLINE_FORMULA.exec(text);
        if (!found) return undefined;
        const [raw, dollars, brackets, parens, dollar] = found;
        return { type: "formula", raw, text: (dollars ?? brackets ?? parens ?? dollar).trim(), isBlock: (dollars ?? brackets) !== undefined };
      },
    },
  ],
};
// Nothing is read as HTML, so the text between tags is Markdown.
const reader = new markdownLibrary.Marked({ gfm: true }, formulas, { tokenizer: { html: () => undefined, tag: () => undefined } });
const colours = highlightLibrary.default;

// The characters that entities such as `&copy;` stand for.
const decoded = (text) => text.replace(/&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][a-z\d]{1,31});/gi, (entity) => new DOMParser().parseFromString(entity, "text/html").body.textContent);

// Only addresses of the web and of mail; others stay text.
function link({ href, tokens, text }) {
  if (!/^(https?:\/\/|mailto:)/i.test(href)) return element("span", {}, ...inline(tokens), href === text ? "" : ` (${href})`);
  return element("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...inline(tokens));
}

const inline = (tokens = []) => tokens.map((token) => {
  switch (token.type) {
    case "strong": case "em": case "del": return element(token.type, {}, ...inline(token.tokens));
    case "codespan": return element("code", {}, token.text);
    case "br": return element("br");
    case "link": return link(token);
    // No image is loaded.
    case "image": return `${token.text} (${token.href})`;
    case "checkbox": return element("input", { type: "checkbox", checked: token.checked, disabled: true });
    case "formula": return formula(token.text, token.isBlock);
    case "escape": return token.text;
    case "text": return token.tokens ? element("span", {}, ...inline(token.tokens)) : decoded(token.text);
    default: return token.raw;
  }
});

function block(token) {
  switch (token.type) {
    case "space": case "def": return "";
    case "heading": return element(`h${Math.min(token.depth + 1, 6)}`, {}, ...inline(token.tokens));
    case "paragraph": return element("p", {}, ...inline(token.tokens));
    case "text": return element("span", {}, ...inline(token.tokens ?? [{ ...token, tokens: undefined }]));
    case "code": return code(token.text, token.lang?.split(/\s/)[0] ?? "");
    case "blockquote": return element("blockquote", {}, ...token.tokens.map(block));
    case "hr": return element("hr");
    case "list": return list(token);
    case "table": return rows(token);
    case "block-formula": return formula(token.text, true);
    case "checkbox": return inline([token])[0];
    default: return element("p", {}, token.raw);
  }
}

function list(token) {
  const items = token.items.map((item) => element("li", { className: item.task ? "task" : "" }, ...item.tokens.map(block)));
  return token.ordered ? element("ol", { start: Number(token.start) || 1 }, ...items) : element("ul", {}, ...items);
}

function rows(token) {
  const cell = (tag) => (one) => {
    const node = element(tag, {}, ...inline(one.tokens));
    node.style.textAlign = one.align ?? "";
    return node;
  };
  const head = element("tr", {}, ...token.header.map(cell("th")));
  return element("table", {}, head, ...token.rows.map((row) => element("tr", {}, ...row.map(cell("td")))));
}

// Code with its language, a button that copies it, and colours.
const LONGEST_COLOURED = 20_000;
function code(text, language) {
  const copy = element("button", { type: "button" }, "Copy");
  copy.addEventListener("click", () => copied(text, copy));
  const body = element("code");
  const name = language.toLowerCase();
  if (colours.getLanguage(name) && text.length < LONGEST_COLOURED) body.append(...coloured(colours.highlight(text, { language: name })._emitter.root));
  else body.append(text);
  return element("div", { className: "code" }, element("div", { className: "bar" }, element("span", {}, language), copy), element("pre", { tabIndex: 0 }, body));
}

const coloured = (tree) => tree.children.map((child) => (typeof child === "string" ? child : element("span", { className: child.scope ? `c-${child.scope.split(".")[0]}` : "" }, ...coloured(child))));

async function copied(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without HTTPS there is no clipboard but that of a selection.
    const area = element("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = before), 1500);
}

// Writes the text into an element. An answer grows at its end, so only its last two blocks are read again; the elements of blocks that are the same stay.
function markdown(text, parent) {
  const source = text.replace(/\r\n?/g, "\n");
  // The address of a link may be defined anywhere: then everything is read, and made again when such lines change.
  const links = (source.match(/^ {0,3}\[[^\]\n]+\]:.*$/gm) ?? []).join("\n");
  const before = links === (parent.links ?? "") ? (parent.blocks ?? []) : [];
  parent.links = links;
  let stable = links ? 0 : before.length;
  for (let last = 0; stable > 0 && last < 2; ) if (before[--stable].node) last++;
  const blocks = [];
  let at = 0;
  while (blocks.length < stable && source.startsWith(before[blocks.length].raw, at)) {
    at += before[blocks.length].raw.length;
    blocks.push(before[blocks.length]);
  }
  for (const token of reader.lexer(source.slice(at))) {
    const there = before[blocks.length];
    const isBlank = token.type === "space" || token.type === "def";
    blocks.push(there?.raw === token.raw ? there : { raw: token.raw, node: isBlank ? undefined : block(token) });
  }
  parent.blocks = blocks;
  const nodes = blocks.flatMap(({ node }) => node ?? []);
  nodes.forEach((node, index) => {
    if (parent.childNodes[index] !== node) parent.insertBefore(node, parent.childNodes[index] ?? null);
  });
  while (parent.childNodes.length > nodes.length) parent.lastChild.remove();
  return parent;
}
