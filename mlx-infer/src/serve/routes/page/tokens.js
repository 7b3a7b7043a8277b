// The tokens of an answer, each with its alternatives; the answer can go on from one of them.

const ALTERNATIVES = 8;
const encoder = new TextEncoder();

// A token of `logprobs.content`, as it is kept: bytes only where the text does not say them.
function compact({ token, logprob, bytes, top_logprobs = [] }) {
  const one = ({ token, logprob, bytes }) => {
    const plain = !bytes || String(encoder.encode(token)) === String(bytes);
    return { text: token, logprob, ...(plain ? {} : { bytes }) };
  };
  return { ...one({ token, logprob, bytes }), others: top_logprobs.map(one) };
}

// The text of tokens, or nothing if it ends within a character.
function textOf(tokens) {
  const bytes = tokens.flatMap((token) => token.bytes ?? [...encoder.encode(token.text)]);
  try { return new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(bytes)); } catch { return undefined; }
}

const percent = (logprob) => {
  const share = 100 * Math.exp(logprob);
  return `${share >= 10 || share === 0 ? share.toFixed(0) : share.toPrecision(2)} %`;
};
// A token alone is hard to see where it is a blank or a part of a character.
const visible = (token) => (token.bytes ? token.bytes.map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("") : token.text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣")) || "∅";

function tokenView(message) {
  const node = element("div", { className: "tokens" });
  message.tokens.forEach((token, index) => {
    const button = element("button", { type: "button", title: percent(token.logprob) }, token.text);
    button.style.setProperty("--much", `${Math.round(60 * (1 - Math.exp(token.logprob)))}%`);
    button.addEventListener("click", () => showAlternatives(message, index, button));
    node.append(button);
  });
  return node;
}

function showAlternatives(message, index, button) {
  const panel = $("alternatives");
  const token = message.tokens[index];
  panel.replaceChildren(element("p", {}, token.others.length ? "Go on with:" : "No alternatives were kept."));
  for (const other of token.others) {
    const now = other.text === token.text && String(other.bytes) === String(token.bytes);
    const row = element("button", { type: "button", className: now ? "now" : "" }, element("span", {}, visible(other)), element("span", {}, percent(other.logprob)));
    row.style.setProperty("--much", `${100 * Math.exp(other.logprob)}%`);
    const before = message.tokens.slice(0, index);
    const text = textOf([...before, other]);
    row.disabled = text === undefined || busy();
    if (text === undefined) row.title = "a part of a character: the answer cannot go on from here";
    row.addEventListener("click", () => {
      panel.hidden = true;
      goOn(message, [...before, { ...other, others: token.others }], text);
    });
    panel.append(row);
  }
  panel.hidden = false;
  const at = button.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = panel;
  panel.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
  panel.style.top = `${at.bottom + height + 8 < innerHeight ? at.bottom + 4 : Math.max(8, at.top - height - 4)}px`;
  panel.querySelector("button")?.focus();
}

// Lets the model continue from these tokens, in another version of the answer.
function goOn(message, tokens, text) {
  branch(message);
  Object.assign(message, { tokens, content: text });
  answer(chat);
}
