// Settings and chats, kept in this browser: each chat under a key of its own.

const SETTINGS = ["system", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens", "reasoning_effort", "key"];
const CHAT = "mlx-chat:";

function load(name, otherwise) {
  try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; }
}

function keep(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

const settings = load("mlx-settings", { probabilities: true });
let presets = load("mlx-presets", []);
if (!Array.isArray(presets)) presets = [];

function newChat() {
  return { id: crypto.randomUUID?.() ?? String(Math.random()).slice(2), title: "", time: Date.now(), messages: [] };
}

// All chats, the newest first.
function loadChats() {
  const found = Object.keys(localStorage).filter((name) => name.startsWith(CHAT)).map((name) => checked(load(name)));
  const before = load("mlx-chats");
  if (Array.isArray(before)) {
    // Earlier versions of this page kept all chats under one key.
    const moved = before.map((one, at) => checked({ time: Date.now() - at, ...one })).filter(Boolean);
    if (moved.every((one) => keep(CHAT + one.id, one))) localStorage.removeItem("mlx-chats");
    found.push(...moved);
  }
  return found.filter(Boolean).sort((one, other) => other.time - one.time);
}

const isText = (value) => typeof value === "string";
const PARTS = ["content", "reasoning", "tokens", "stats", "finish", "error", "files", "resume", "used"];

// A chat from a file or from the store, with the parts that are known and have the right types; nothing if it is none.
function checked(one) {
  if (!one || !isText(one.id) || !Array.isArray(one.messages)) return undefined;
  const files = (list) => list.filter((file) => file && isText(file.name) && isText(file.text)).map(({ name, text }) => ({ name, text }));
  const tokens = (list) => (list.every((token) => token && isText(token.text) && Number.isFinite(token.logprob) && Array.isArray(token.others)) ? list : []);
  const parts = (from) => {
    const found = { content: isText(from.content) ? from.content : "" };
    for (const name of ["reasoning", "stats", "finish", "error"]) if (isText(from[name])) found[name] = from[name];
    if (Array.isArray(from.tokens)) found.tokens = tokens(from.tokens);
    if (Array.isArray(from.files)) found.files = files(from.files);
    if (Number.isFinite(from.used)) found.used = from.used;
    if (isText(from.resume?.id) && Number.isInteger(from.resume.after)) found.resume = { id: from.resume.id, after: from.resume.after };
    return found;
  };
  const message = (from) => {
    if (!from || !["user", "assistant"].includes(from.role)) return [];
    const found = { role: from.role, ...parts(from) };
    if (Array.isArray(from.versions) && Number.isInteger(from.version) && from.version in from.versions) {
      found.version = from.version;
      found.versions = from.versions.map((version, at) => (at === from.version || !version ? null : { ...parts(version), rest: messages(version.rest ?? []) }));
    }
    return [found];
  };
  const messages = (list) => (Array.isArray(list) ? list.flatMap(message) : []);
  const found = { id: one.id, title: isText(one.title) ? one.title : "", time: Number(one.time) || Date.now(), messages: messages(one.messages) };
  if (isText(one.system)) found.system = one.system;
  return found;
}

let chats = loadChats();
let chat = chats[0] ?? newChat();

// A copy of messages without the alternatives of their tokens, which take the most room.
const light = (messages) => messages.map(({ tokens, ...rest }) => ({
  ...rest,
  ...(rest.versions ? { versions: rest.versions.map((one) => one && (({ tokens: dropped, ...other }) => ({ ...other, rest: light(other.rest) }))(one)) } : {}),
}));

function save(one = chat) {
  if (!one.messages.length) return;
  if (!chats.includes(one)) chats.unshift(one);
  if (keep(CHAT + one.id, one)) return;
  for (const other of [...chats].reverse()) {
    keep(CHAT + other.id, { ...other, messages: light(other.messages) });
    if (keep(CHAT + one.id, one)) return;
  }
  if (!keep(CHAT + one.id, { ...one, messages: light(one.messages) })) status("this browser keeps no more: delete or export chats", true);
}

function forget(one) {
  chats = chats.filter((other) => other !== one);
  localStorage.removeItem(CHAT + one.id);
}

function saveSettings() {
  for (const name of SETTINGS) settings[name] = $(name).value;
  settings.probabilities = $("probabilities").checked;
  keep("mlx-settings", settings);
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
