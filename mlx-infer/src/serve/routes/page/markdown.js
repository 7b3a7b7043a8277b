// Markdown to DOM nodes. A model's text only ever becomes text nodes: no markup of it is parsed as HTML.

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^\s*](?:[\s\S]*?[^\s*])?)\*\*|\*([^\s*](?:[^*]*[^\s*])?)\*|~~([^~]+)~~|\[([^\]]+)\]\(([^()\s]+)\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])/;

function inline(text, parent) {
  for (;;) {
    const found = INLINE.exec(text);
    if (!found) return parent.append(text), parent;
    const [whole, , code, strong, emphasis, struck, label, target, bare] = found;
    parent.append(text.slice(0, found.index));
    text = text.slice(found.index + whole.length);
    if (code !== undefined) parent.append(element("code", {}, code.trim()));
    else if (strong !== undefined) parent.append(inline(strong, element("strong")));
    else if (emphasis !== undefined) parent.append(inline(emphasis, element("em")));
    else if (struck !== undefined) parent.append(inline(struck, element("s")));
    else parent.append(link(label ?? bare, target ?? bare));
  }
}

// Only addresses of the web and of mail; others stay text.
function link(label, target) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return document.createTextNode(`${label} (${target})`);
  return element("a", { href: target, target: "_blank", rel: "noopener noreferrer" }, label);
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*(\S*)/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function markdown(text, parent) {
  const lines = text.split("\n");
  let at = 0;
  const blank = () => at >= lines.length || !lines[at].trim();
  const starts = (line) => FENCE.test(line) || ITEM.test(line) || /^ {0,3}(#{1,6}\s|>)/.test(line) || RULE.test(line);
  while (at < lines.length) {
    const line = lines[at];
    let found;
    if (blank()) at++;
    else if ((found = FENCE.exec(line))) {
      const body = [];
      for (at++; at < lines.length && !lines[at].trim().startsWith(found[1]); at++) body.push(lines[at]);
      at++;
      parent.append(element("pre", {}, element("code", {}, body.join("\n"))));
    } else if ((found = /^ {0,3}(#{1,6})\s+(.*)$/.exec(line))) {
      parent.append(inline(found[2], element(`h${Math.min(found[1].length + 1, 6)}`)));
      at++;
    } else if (RULE.test(line)) parent.append(element("hr")), at++;
    else if (/^ {0,3}>/.test(line)) {
      const body = [];
      for (; at < lines.length && /^ {0,3}>/.test(lines[at]); at++) body.push(lines[at].replace(/^ {0,3}> ?/, ""));
      parent.append(markdown(body.join("\n"), element("blockquote")));
    } else if (ITEM.test(line)) at = list(lines, at, parent);
    else if (line.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(lines[at + 1] ?? "") && lines[at + 1].includes("|")) {
      const table = element("table", {}, element("tr", {}, ...cells(line).map((cell) => inline(cell, element("th")))));
      for (at += 2; !blank() && lines[at].includes("|"); at++)
        table.append(element("tr", {}, ...cells(lines[at]).map((cell) => inline(cell, element("td")))));
      parent.append(table);
    } else {
      const body = [line];
      for (at++; !blank() && !starts(lines[at]); at++) body.push(lines[at]);
      parent.append(inline(body.join("\n"), element("p")));
    }
  }
  return parent;
}

// A list from line `at`; deeper lines belong to its last item. Returns the line after it.
function list(lines, at, parent) {
  const [, indent, number] = ITEM.exec(lines[at]);
  const node = element(number === undefined ? "ul" : "ol");
  if (number !== undefined) node.start = Number(number);
  parent.append(node);
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length !== indent.length || (found[2] === undefined) !== (number === undefined)) break;
    const body = [found[3]];
    for (at++; at < lines.length; at++) {
      const deeper = lines[at].match(/^\s*/)[0].length > indent.length;
      if (lines[at].trim() ? !deeper : !/^\s+\S/.test(lines[at + 1] ?? "")) break;
      body.push(lines[at].slice(Math.min(indent.length + 2, lines[at].match(/^\s*/)[0].length)));
    }
    const item = markdown(body.join("\n"), element("li"));
    // One paragraph needs no room of its own.
    if (item.firstChild?.tagName === "P") item.firstChild.replaceWith(...item.firstChild.childNodes);
    node.append(item);
    while (at < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1] ?? "")) at++;
  }
  return at;
}
