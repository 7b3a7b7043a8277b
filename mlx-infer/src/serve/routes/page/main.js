// What happens on which click.

let contexts = {}; // The tokens of context of each model.

async function listModels() {
  try {
    const { data } = await get("/v1/models");
    contexts = Object.fromEntries(data.map(({ id, max_model_len }) => [id, max_model_len]));
    const before = $("model").value || settings.model;
    $("model").replaceChildren(...data.map(({ id }) => element("option", { value: id }, id)));
    if (data.some(({ id }) => id === before)) $("model").value = before;
    meter();
    status("");
    goOnReading();
  } catch (error) {
    status(error.message, true);
  }
}

function view(name) {
  for (const one of ["chat", "classify", "load"]) {
    $(one).hidden = one !== name;
    $(`tab-${one}`).ariaSelected = String(one === name);
    $(`tab-${one}`).tabIndex = one === name ? 0 : -1;
  }
  if (name === "load") samples.length = 0;
}

const tabs = [...document.querySelectorAll("[role=tab]")];
for (const name of ["chat", "classify", "load"]) $(`tab-${name}`).addEventListener("click", () => view(name));
for (const [at, tab] of tabs.entries()) {
  tab.addEventListener("keydown", ({ key }) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (!step) return;
    const next = tabs[(at + step + tabs.length) % tabs.length];
    next.click();
    next.focus();
  });
}
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("input").value;
  if ((!text.trim() && !attached.length) || busy()) return;
  $("input").value = "";
  resize();
  const files = attached;
  attached = [];
  showAttached();
  say(text, files);
});
$("attach").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", async () => {
  await attach([...$("files").files]);
  $("files").value = "";
});
const carried = (event) => [...(event.dataTransfer ?? event.clipboardData).files];
$("chat").addEventListener("dragover", (event) => event.preventDefault());
$("chat").addEventListener("drop", (event) => {
  event.preventDefault();
  attach(carried(event));
});
$("input").addEventListener("paste", (event) => {
  if (!carried(event).length) return;
  event.preventDefault();
  attach(carried(event));
});
$("input").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
const resize = () => {
  $("input").style.height = "auto";
  $("input").style.height = `${$("input").scrollHeight + 2}px`;
};
$("input").addEventListener("input", resize);
$("stop").addEventListener("click", () => running.get(chat.id)?.abort());
$("new-chat").addEventListener("click", () => select(newChat()));
$("menu").addEventListener("click", () => {
  const open = $("side").classList.toggle("open");
  $("menu").ariaExpanded = String(open);
});
$("open-settings").addEventListener("click", () => $("settings").showModal());
$("settings").addEventListener("close", () => {
  saveSettings();
  listModels();
});
$("forget").addEventListener("click", () => {
  if (!confirm("Delete all chats of this browser?")) return;
  for (const control of running.values()) control.abort();
  for (const one of chats) forget(one);
  select(newChat());
});
$("search").addEventListener("input", () => {
  wanted = $("search").value.trim().toLowerCase();
  listChats();
});
$("export").addEventListener("click", exportChats);
$("export-one").addEventListener("click", exportChat);
$("import").addEventListener("click", () => $("import-file").click());
$("import-file").addEventListener("change", async () => {
  for (const file of $("import-file").files) await importChats(file);
  $("import-file").value = "";
});
$("chat-system").addEventListener("click", showSystem);
$("presets").addEventListener("change", usePreset);
$("save-preset").addEventListener("click", savePreset);
$("delete-preset").addEventListener("click", deletePreset);
$("system-dialog").addEventListener("close", takeSystem);
// Light, dark, or as the system has it.
const THEMES = { "": "As the system has it", light: "Light", dark: "Dark" };
function showTheme() {
  const theme = settings.theme in THEMES ? settings.theme : "";
  document.documentElement.dataset.theme = theme;
  $("theme").ariaLabel = $("theme").title = `Colours: ${THEMES[theme]}`;
  $("theme").textContent = { "": "◐", light: "☀", dark: "☾" }[theme];
}
$("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  settings.theme = names[(names.indexOf(settings.theme ?? "") + 1) % names.length];
  keep("mlx-settings", settings);
  showTheme();
});
$("model").addEventListener("change", () => {
  settings.model = $("model").value;
  saveSettings();
  meter();
});
$("classify-form").addEventListener("submit", (event) => {
  event.preventDefault();
  classify();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (!$("alternatives").hidden) $("alternatives").hidden = true;
  else if (!document.querySelector("dialog[open]") && !event.target.closest("input")) running.get(chat.id)?.abort();
});
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest("#alternatives, .tokens button")) $("alternatives").hidden = true;
});

showTheme();
showSettings();
render();
listModels();
measure();
