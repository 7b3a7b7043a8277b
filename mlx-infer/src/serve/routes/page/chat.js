// The conversation.

const running = new Map(); // For the id of a chat, the AbortController of its answer.
const busy = () => running.has(chat.id);
const asTokens = new WeakSet(); // Messages that are shown token by token.
const ANSWERS = "/v1/chat/completions";

function render() {
  $("messages").replaceChildren(...chat.messages.map(messageNode));
  $("messages").ariaBusy = String(busy());
  listChats();
  $("send").hidden = busy();
  $("stop").hidden = !busy();
  $("messages").scrollTop = $("messages").scrollHeight;
  $("chat-system").textContent = chat.system === undefined ? "System prompt" : "System prompt of this chat";
  meter();
}

// The part of the context that the last answer and all before it take.
function meter(rate = "") {
  const used = chat.messages.findLast(({ used }) => used)?.used;
  const most = contexts[$("model").value];
  $("context").hidden = !used || !most;
  if (used && most) [$("context").max, $("context").value] = [most, used];
  const share = used && `${used.toLocaleString()}${most ? ` of ${most.toLocaleString()}` : ""} tokens of context`;
  $("meter-text").textContent = [share, rate].filter(Boolean).join(" · ");
}

function messageNode(message) {
  const body = element("div", { className: "body" });
  const tools = element("div", { className: "tools" });
  const tool = (name, act, label = name) => {
    const button = element("button", { type: "button", ariaLabel: label, title: label === name ? "" : label, disabled: busy() && name !== "Copy" }, name);
    button.addEventListener("click", () => act(button));
    tools.append(button);
    return button;
  };
  const node = element("li", { className: message.role }, body, tools);
  if (message.versions) {
    const [now, all] = [message.version, message.versions.length];
    tool("‹", () => show(message, now - 1), "Earlier version").disabled ||= now === 0;
    tools.append(element("span", {}, `${now + 1}/${all}`));
    tool("›", () => show(message, now + 1), "Later version").disabled ||= now === all - 1;
  }
  if (message.role === "user") {
    for (const file of message.files ?? []) body.append(element("details", { className: "file" }, element("summary", {}, file.name), element("pre", {}, file.text)));
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
      branch(message);
      answer(chat);
    });
    if (last && message.content && message.finish !== "stop") tool("Continue", () => answer(chat));
    if (message.stats) tools.append(element("span", {}, message.stats));
  }
  tool("Copy", (button) => copied(message.content, button));
  return node;
}

// Begins another version of a message. The one that is shown is kept with all messages after it.
function branch(message) {
  park(message);
  message.version = message.versions.push(null) - 1;
  message.content = "";
  if (message.role === "assistant") message.tokens = [];
}

function park(message) {
  const version = { rest: chat.messages.splice(chat.messages.indexOf(message) + 1) };
  for (const name of PARTS) {
    if (message[name] !== undefined) version[name] = message[name];
    delete message[name];
  }
  message.versions ??= [null];
  message.versions[message.version ?? 0] = version;
}

function show(message, at) {
  park(message);
  const { rest, ...parts } = message.versions[at];
  message.versions[at] = null;
  Object.assign(message, parts, { version: at });
  chat.messages.push(...rest);
  save();
  render();
}

// Writes a message's parts. Those that are there already stay, and with them what is selected or open.
function fill(message, body) {
  const old = (name) => body.querySelector(`:scope > .${name}`);
  const parts = [];
  if (message.reasoning) {
    const details = old("reasoning") ?? element("details", { className: "reasoning", open: !message.content }, element("summary", {}, "Reasoning"), "");
    details.lastChild.data = message.reasoning;
    parts.push(details);
  }
  parts.push(asTokens.has(message) ? tokenView(message) : markdown(message.content, old("text") ?? element("div", { className: "text" })));
  if (message.error) parts.push(element("p", { className: "bad" }, message.error));
  for (const child of [...body.childNodes]) if (!parts.includes(child)) child.remove();
  parts.forEach((part, at) => {
    if (body.childNodes[at] !== part) body.insertBefore(part, body.childNodes[at] ?? null);
  });
}

function edit(message, node) {
  const text = element("textarea", { value: message.content, rows: 3, ariaLabel: "Edited message" });
  const form = element("form", { className: "edit" }, text, element("button", {}, "Send"), element("button", { type: "button" }, "Cancel"));
  form.lastChild.addEventListener("click", render);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!text.value.trim() || busy()) return;
    const { files } = message;
    branch(message);
    Object.assign(message, { content: text.value }, files && { files });
    answer(chat);
  });
  node.replaceChildren(form);
  text.focus();
}

function say(content, files) {
  chat.messages.push({ role: "user", content, ...(files.length ? { files } : {}) });
  chat.title ||= (content.trim() || files[0].name).slice(0, 60);
  answer(chat);
}

// What the model is sent of a message: its files, each in a fence that is longer than those within, and its text.
function sent({ role, content, files = [] }) {
  const fenced = files.map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}\n${fence}\n${text}\n${fence}\n\n`;
  });
  return { role, content: fenced.join("") + content };
}

// Lets the model answer the last message, or continue it where it is the model's own.
async function answer(one) {
  if (running.has(one.id)) return;
  let message = one.messages.at(-1);
  const continued = message.role === "assistant" && message.content !== "";
  if (message.role !== "assistant") one.messages.push((message = { role: "assistant", content: "", tokens: [] }));
  const messages = one.messages.slice(0, continued ? undefined : -1).map(sent);
  const system = one.system ?? settings.system;
  if (system) messages.unshift({ role: "system", content: system });
  const body = { model: $("model").value, messages, stream: true, background: true, stream_options: { include_usage: true }, return_token_ids: true, ...parameters() };
  if (settings.probabilities ?? true) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
  if (continued) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  for (const name of ["stats", "finish", "resume"]) delete message[name];
  one.time = Date.now();
  await follow(one, message, body);
}

const MOST_FAILURES = 4;

// Reads the answer's events: those of a new request, or without a body the rest of one that goes on in the server. A lost connection is opened again.
async function follow(one, message, body) {
  const control = new AbortController();
  running.set(one.id, control);
  delete message.error;
  // A reload during the answer loses neither the question nor what was answered.
  save(one);
  let saved = performance.now();
  status("");
  const isShown = () => one === chat && one.messages.at(-1) === message;
  if (one === chat) render();
  const start = performance.now();
  let [first, usage, timings, drawn, count, failures, isLost] = [undefined, undefined, undefined, undefined, 0, 0, false];
  const draw = () => {
    drawn = undefined;
    if (!isShown()) return;
    const list = $("messages");
    const below = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
    fill(message, list.lastChild.querySelector(".body"));
    const seconds = (performance.now() - first) / 1000;
    meter(count > 1 && seconds > 0.2 ? `${((count - 1) / seconds).toFixed(1)} tokens/s` : "");
    if (below) list.scrollTop = list.scrollHeight;
  };
  const take = ([number, event]) => {
    if (Number.isInteger(number) && event.id) message.resume = { id: event.id, after: number };
    usage = event.usage ?? usage;
    timings = event.timings ?? timings;
    if (event.prompt_token_ids) message.used = event.prompt_token_ids.length;
    const choice = event.choices?.[0];
    if (!choice) return;
    const { delta = {} } = choice;
    const fresh = choice.token_ids?.length ?? 0;
    count += fresh;
    if (message.used) message.used += fresh;
    if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
    if (delta.content) message.content += delta.content;
    if (!delta.reasoning_content) message.tokens?.push(...(choice.logprobs?.content ?? []).map(compact));
    if (delta.content || delta.reasoning_content) first ??= performance.now();
    message.finish = choice.finish_reason ?? message.finish;
    drawn ??= requestAnimationFrame(draw);
    if (performance.now() - saved > 1000) {
      save(one);
      saved = performance.now();
    }
  };
  const rest = () => `${ANSWERS}/${message.resume.id}?stream=true&starting_after=${message.resume.after}`;
  for (let ask = body; ; ask = undefined) {
    try {
      for await (const event of stream(ask ? ANSWERS : rest(), ask, control.signal)) {
        take(event);
        failures = 0;
      }
    } catch (error) {
      isLost = !control.signal.aborted && Boolean(message.resume) && (error.status === 0 || error.name === "AbortError");
      if (control.signal.aborted) message.finish = "stopped";
      else if (isLost && failures < MOST_FAILURES) {
        status("the connection is lost; trying again", true);
        await new Promise((wake) => setTimeout(wake, 500 * 2 ** failures++));
        isLost = !control.signal.aborted;
        if (isLost) continue;
        message.finish = "stopped";
      } else message.error = error.status === 404 && message.resume ? "The server has no more of this answer." : error.message;
    }
    break;
  }
  if (message.finish === "stopped" && message.resume) await call(`${ANSWERS}/${message.resume.id}`, undefined, undefined, "DELETE").catch(() => {});
  // The page is being left: the answer is followed again when it is back.
  if (leaving) return;
  if (!isLost) delete message.resume;
  if (drawn) cancelAnimationFrame(drawn);
  const tokens = usage?.completion_tokens;
  const facts = [message.finish];
  if (first && body) facts.unshift(`first after ${((first - start) / 1000).toFixed(2)} s`);
  if (tokens) facts.unshift(`${tokens} tokens`);
  if (tokens && timings?.predicted_per_second) facts.splice(1, 0, `${timings.predicted_per_second.toFixed(1)}/s`);
  if (usage) message.used = usage.total_tokens;
  message.stats = facts.filter(Boolean).join(" · ");
  if (!message.content && !message.reasoning && !message.error && !message.versions && message.finish === "stopped") one.messages.pop();
  running.delete(one.id);
  save(one);
  if (one === chat) render();
  else listChats();
}

// Follows the answers that went on in the server while the page was away.
function goOnReading() {
  for (const one of chats) {
    const message = one.messages.at(-1);
    if (message?.resume && !running.has(one.id)) follow(one, message);
  }
}

let leaving = false;
addEventListener("pagehide", () => {
  leaving = true;
  for (const one of chats) if (running.has(one.id)) save(one);
});
// A page that comes back, or a connection: what was lost is read on.
addEventListener("pageshow", () => (leaving = false));
addEventListener("online", goOnReading);
document.addEventListener("visibilitychange", () => document.hidden || goOnReading());
