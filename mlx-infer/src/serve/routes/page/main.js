// What happens on which click.

async function listModels() {
  try {
    const { data } = await get("/v1/models");
    const before = $("model").value || settings.model;
    $("model").replaceChildren(...data.map(({ id }) => element("option", { value: id }, id)));
    if (data.some(({ id }) => id === before)) $("model").value = before;
    status("");
  } catch (error) {
    status(error.message, true);
  }
}

function view(name) {
  for (const one of ["chat", "classify", "load"]) {
    $(one).hidden = one !== name;
    $(`tab-${one}`).ariaSelected = String(one === name);
  }
  if (name === "load") samples.length = 0;
}

for (const name of ["chat", "classify", "load"]) $(`tab-${name}`).addEventListener("click", () => view(name));
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("input").value;
  if (!text.trim() || busy) return;
  $("input").value = "";
  resize();
  say(text);
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
$("stop").addEventListener("click", () => busy?.abort());
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
  chats = [];
  localStorage.removeItem("mlx-chats");
  select(newChat());
});
$("model").addEventListener("change", () => {
  settings.model = $("model").value;
  saveSettings();
});
$("classify-form").addEventListener("submit", (event) => {
  event.preventDefault();
  classify();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (!$("alternatives").hidden) $("alternatives").hidden = true;
  else busy?.abort();
});
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest("#alternatives, .tokens button")) $("alternatives").hidden = true;
});

showSettings();
render();
listModels();
measure();
