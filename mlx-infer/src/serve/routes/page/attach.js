// Text files that go with a message, and system prompts.

const LARGEST_FILE = 1 << 20;
let attached = [];

async function attach(files) {
  for (const file of files) {
    try {
      if (file.size > LARGEST_FILE) throw new Error(`it has ${(file.size / LARGEST_FILE).toFixed(1)} MiB, and at most 1 fits`);
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new TypeError();
      attached.push({ name: file.name, text });
    } catch (error) {
      status(`${file.name} is not attached: ${error instanceof TypeError ? "it is no text in UTF-8" : error.message}`, true);
    }
  }
  showAttached();
}

function showAttached() {
  $("attached").replaceChildren(...attached.map((file) => {
    const remove = element("button", { type: "button", ariaLabel: `Remove ${file.name}` }, "×");
    remove.addEventListener("click", () => {
      attached = attached.filter((other) => other !== file);
      showAttached();
    });
    return element("li", {}, `${file.name}, ${file.text.length.toLocaleString()} characters `, remove);
  }));
}

// The dialog of a chat's system prompt.
function showSystem() {
  $("own-system").value = chat.system ?? settings.system ?? "";
  listPresets();
  $("system-dialog").showModal();
}

function listPresets(chosen = "") {
  $("presets").replaceChildren(element("option", { value: "" }, presets.length ? "Choose…" : "None yet"), ...presets.map(({ name }) => element("option", { value: name }, name)));
  $("presets").value = chosen;
  $("delete-preset").disabled = !chosen;
}

function usePreset() {
  const found = presets.find(({ name }) => name === $("presets").value);
  $("delete-preset").disabled = !found;
  if (!found) return;
  $("own-system").value = found.system;
  $("preset-name").value = found.name;
}

function savePreset() {
  const name = $("preset-name").value.trim();
  if (!name) return $("preset-name").focus();
  presets = [...presets.filter((one) => one.name !== name), { name, system: $("own-system").value }].sort((one, other) => one.name.localeCompare(other.name));
  keep("mlx-presets", presets);
  listPresets(name);
}

function deletePreset() {
  presets = presets.filter(({ name }) => name !== $("presets").value);
  keep("mlx-presets", presets);
  listPresets();
}

// A prompt that equals that of the settings follows their changes.
function takeSystem() {
  const text = $("own-system").value;
  if (text === (settings.system ?? "")) delete chat.system;
  else chat.system = text;
  save();
  render();
}
