// The conversation.

let busy; // The AbortController of the answer under way.
const asTokens = new WeakSet(); // Messages that are shown token by token.

function render() {
  $("messages").replaceChildren(...chat.messages.map(messageNode));
  $("chats").replaceChildren(...chats.map(chatNode));
  $("send").hidden = Boolean(busy);
  $("stop").hidden = !busy;
  $("messages").scrollTop = $("messages").scrollHeight;
}

function chatNode(one) {
  const open = element("button", { type: "button" }, one.title || "Chat");
  const remove = element("button", { type: "button", ariaLabel: `Delete ${one.title || "chat"}` }, "×");
  open.addEventListener("click", () => select(one));
  remove.addEventListener("click", () => {
    chats = chats.filter((other) => other !== one);
    save();
    if (one === chat) select(newChat());
    else render();
  });
  return element("li", { className: one === chat ? "now" : "" }, open, remove);
}

function select(one) {
  busy?.abort();
  chat = one;
  $("side").classList.remove("open");
  render();
  $("input").focus();
}

function messageNode(message) {
  const body = element("div", { className: "body" });
  const tools = element("div", { className: "tools" });
  const tool = (name, act) => {
    const button = element("button", { type: "button", disabled: Boolean(busy) && name !== "Copy" }, name);
    button.addEventListener("click", act);
    tools.append(button);
  };
  const node = element("li", { className: message.role }, body, tools);
  if (message.role === "user") {
    body.append(message.content);
    tool("Edit", () => edit(message, node));
  } else {
    fill(message, body);
    const last = message === chat.messages.at(-1);
    if (message.tokens?.length)
      tool(asTokens.has(message) ? "Text" : "Tokens", () => {
        asTokens.has(message) ? asTokens.delete(message) : asTokens.add(message);
        node.replaceWith(messageNode(message));
      });
    tool("Regenerate", () => {
      chat.messages.length = chat.messages.indexOf(message);
      answer();
    });
    if (last && message.content && message.finish !== "stop") tool("Continue", () => answer());
    if (message.stats) tools.append(element("span", {}, message.stats));
  }
  tool("Copy", () => navigator.clipboard?.writeText(message.content));
  return node;
}

function fill(message, body) {
  const parts = [];
  if (message.reasoning) {
    const open = body.querySelector("details")?.open ?? !message.content;
    parts.push(element("details", { open }, element("summary", {}, "Reasoning"), message.reasoning));
  }
  if (asTokens.has(message)) parts.push(tokenView(message));
  else parts.push(...markdown(message.content, element("div")).childNodes);
  if (message.error) parts.push(element("p", { className: "bad" }, message.error));
  body.replaceChildren(...parts);
}

function edit(message, node) {
  const text = element("textarea", { value: message.content, rows: 3, ariaLabel: "Edited message" });
  const form = element("form", { className: "edit" }, text, element("button", {}, "Send"), element("button", { type: "button" }, "Cancel"));
  form.lastChild.addEventListener("click", render);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!text.value.trim()) return;
    chat.messages.length = chat.messages.indexOf(message);
    say(text.value);
  });
  node.replaceChildren(form);
  text.focus();
}

function say(content) {
  chat.messages.push({ role: "user", content });
  chat.title ||= content.trim().slice(0, 60);
  answer();
}

// Lets the model answer the last message, or continue it where it is the model's own.
async function answer() {
  if (busy) return;
  const mine = chat;
  const continued = mine.messages.at(-1)?.role === "assistant";
  const messages = mine.messages.map(({ role, content }) => ({ role, content }));
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const body = { model: $("model").value, messages, stream: true, stream_options: { include_usage: true }, ...parameters() };
  if (settings.probabilities ?? true) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
  if (continued) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  else mine.messages.push({ role: "assistant", content: "", tokens: [] });
  const message = mine.messages.at(-1);
  // A reload during the answer loses neither the question nor what was answered.
  save();
  let saved = performance.now();
  Object.assign(message, { error: undefined, stats: undefined, finish: undefined });
  const control = (busy = new AbortController());
  status("");
  render();
  const shown = $("messages").lastChild?.querySelector(".body");
  const start = performance.now();
  let first, usage, drawn;
  const draw = () => {
    drawn = undefined;
    if (mine !== chat) return;
    const list = $("messages");
    const below = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
    fill(message, shown);
    if (below) list.scrollTop = list.scrollHeight;
  };
  try {
    for await (const event of stream("/v1/chat/completions", body, control.signal)) {
      usage = event.usage ?? usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      const { delta = {} } = choice;
      if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
      if (delta.content) message.content += delta.content;
      if (!delta.reasoning_content) message.tokens?.push(...(choice.logprobs?.content ?? []).map(compact));
      if (delta.content || delta.reasoning_content) first ??= performance.now();
      message.finish = choice.finish_reason ?? message.finish;
      drawn ??= requestAnimationFrame(draw);
      if (performance.now() - saved > 1000) {
        save();
        saved = performance.now();
      }
    }
  } catch (error) {
    if (error.name === "AbortError") message.finish = "stopped";
    else message.error = error.message;
  }
  if (drawn) cancelAnimationFrame(drawn);
  const tokens = usage?.completion_tokens;
  const seconds = (performance.now() - (first ?? start)) / 1000;
  const facts = [message.finish];
  if (first) facts.unshift(`first after ${((first - start) / 1000).toFixed(2)} s`);
  if (tokens) facts.unshift(`${tokens} tokens`, `${(Math.max(tokens - 1, 1) / Math.max(seconds, 1e-3)).toFixed(1)}/s`);
  message.stats = facts.filter(Boolean).join(" · ");
  if (!message.content && !message.reasoning && !message.error && message.finish === "stopped") mine.messages.pop();
  busy = undefined;
  save();
  if (mine === chat) render();
}

addEventListener("pagehide", () => {
  if (busy) save();
});
