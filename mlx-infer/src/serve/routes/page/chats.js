// The list of chats: search, names, files.

let wanted = "";

const mentions = (one, text) => [one.title, ...one.messages.map(({ content }) => content)].some((part) => part.toLowerCase().includes(text));

function listChats() {
  const found = chats.filter((one) => !wanted || mentions(one, wanted));
  $("chats").replaceChildren(...found.map(chatNode));
}

function chatNode(one) {
  const title = one.title || "Chat";
  const open = element("button", { type: "button", title }, running.has(one.id) ? `… ${title}` : title);
  open.ariaCurrent = String(one === chat);
  const rename = element("button", { type: "button", ariaLabel: `Rename ${title}`, title: "Rename" }, "✎");
  const remove = element("button", { type: "button", ariaLabel: `Delete ${title}`, title: "Delete" }, "×");
  const node = element("li", { className: one === chat ? "now" : "" }, open, rename, remove);
  open.addEventListener("click", () => select(one));
  rename.addEventListener("click", () => {
    const name = element("input", { value: one.title, ariaLabel: "Name of the chat", maxLength: 200 });
    const end = (isTaken) => {
      if (isTaken && name.value.trim()) {
        one.title = name.value.trim();
        save(one);
      }
      listChats();
    };
    name.addEventListener("keydown", ({ key, isComposing }) => {
      if (key === "Enter" && !isComposing) end(true);
      if (key === "Escape") end(false);
    });
    name.addEventListener("blur", () => name.isConnected && end(true));
    node.replaceChildren(name);
    name.select();
  });
  remove.addEventListener("click", () => {
    running.get(one.id)?.abort();
    forget(one);
    if (one === chat) select(newChat());
    else listChats();
  });
  return node;
}

// The answer of the chat before goes on.
function select(one) {
  chat = one;
  $("side").classList.remove("open");
  render();
  $("input").focus();
}

function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

const day = () => new Date().toISOString().slice(0, 10);

// All chats as JSON, which `importChats` reads.
function exportChats() {
  const text = JSON.stringify({ format: "mlx-infer chats", version: 1, chats, presets }, undefined, 1);
  download(`chats-${day()}.json`, "application/json", text);
}

// One chat as Markdown, to be read elsewhere.
function exportChat() {
  const said = chat.messages.map((message) => `## ${message.role === "user" ? "User" : "Assistant"}\n\n${sent(message).content}\n`);
  download(`${(chat.title || "chat").replace(/[^\p{L}\p{N} -]/gu, "").trim().slice(0, 40) || "chat"}.md`, "text/markdown", `# ${chat.title || "Chat"}\n\n${said.join("\n")}`);
}

async function importChats(file) {
  try {
    const found = JSON.parse(await file.text());
    if (found?.format !== "mlx-infer chats" || !Array.isArray(found.chats)) throw new Error("it is no export of this page");
    const read = found.chats.map(checked).filter((one) => one?.messages.length);
    let added = 0;
    for (const one of read) {
      if (running.has(one.id)) continue;
      const same = chats.find(({ id }) => id === one.id);
      // A chat that is here and has gone on since stays as it is.
      if (same && same.time >= one.time) continue;
      if (same) chats.splice(chats.indexOf(same), 1, one);
      else chats.push(one);
      if (same === chat) chat = one;
      save(one);
      added++;
    }
    chats.sort((one, other) => other.time - one.time);
    for (const one of Array.isArray(found.presets) ? found.presets : []) {
      if (isText(one?.name) && isText(one.system) && !presets.some(({ name }) => name === one.name)) presets.push({ name: one.name, system: one.system });
    }
    keep("mlx-presets", presets);
    render();
    status(`${added} of ${found.chats.length} chats imported`);
  } catch (error) {
    status(`${file.name} cannot be imported: ${error.message}`, true);
  }
}

// Another tab has changed a chat.
addEventListener("storage", ({ key, newValue }) => {
  if (!key?.startsWith(CHAT)) return;
  const id = key.slice(CHAT.length);
  if (running.has(id)) return;
  let read;
  try { read = newValue && checked(JSON.parse(newValue)); } catch { return; }
  const at = chats.findIndex((one) => one.id === id);
  const isShown = at >= 0 && chats[at] === chat;
  if (read && at >= 0) chats[at] = read;
  else if (read) chats.unshift(read);
  else if (at >= 0) chats.splice(at, 1);
  if (isShown) {
    chat = read ?? newChat();
    render();
  } else listChats();
});
