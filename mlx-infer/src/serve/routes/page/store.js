// Settings and chats, kept in this browser.

const SETTINGS = ["system", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens", "reasoning_effort", "key"];

function load(name, otherwise) {
  try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; }
}

const settings = load("mlx-settings", { probabilities: true });
let chats = load("mlx-chats", []);
if (!Array.isArray(chats)) chats = [];
let chat = chats[0] ?? newChat();

function newChat() {
  return { id: crypto.randomUUID?.() ?? String(Math.random()), title: "", messages: [] };
}

function save() {
  if (chat.messages.length && !chats.includes(chat)) chats.unshift(chat);
  // The alternatives of tokens take the most room: those of the oldest chats go first.
  for (let keep = chats.length; keep >= 0; keep--) {
    const kept = chats.map((one, index) => (index < keep ? one : { ...one, messages: one.messages.map(({ tokens, ...rest }) => rest) }));
    try {
      localStorage.setItem("mlx-chats", JSON.stringify(kept));
      return;
    } catch {}
  }
  status("this browser keeps no more chats", true);
}

function saveSettings() {
  for (const name of SETTINGS) settings[name] = $(name).value;
  settings.probabilities = $("probabilities").checked;
  try { localStorage.setItem("mlx-settings", JSON.stringify(settings)); } catch {}
}

function showSettings() {
  for (const name of SETTINGS) $(name).value = settings[name] ?? "";
  $("probabilities").checked = settings.probabilities ?? true;
}

// The parameters of a request; an empty field is left to the server.
function parameters() {
  const found = {};
  for (const name of SETTINGS) {
    if (name === "system" || name === "key" || !settings[name]) continue;
    found[name] = name === "reasoning_effort" ? settings[name] : Number(settings[name]);
  }
  return found;
}

function status(text, bad = false) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}
