// Texts and labels in, a table of probabilities out.

const lines = (id) => $(id).value.split("\n").map((line) => line.trim()).filter(Boolean);

async function classify() {
  const [texts, labels] = [lines("texts"), lines("labels")];
  const body = { model: $("model").value, input: texts, labels };
  if ($("template").value) body.template = $("template").value;
  $("classify-state").textContent = "…";
  $("classify-state").className = "";
  try {
    const start = performance.now();
    const { data } = await post("/v1/classify", body);
    $("classify-state").textContent = `${texts.length} texts, ${Math.round(performance.now() - start)} ms`;
    const head = element("tr", {}, ...["Text", ...labels].map((name) => element("th", {}, name)));
    $("classes").tHead.replaceChildren(head);
    $("classes").tBodies[0].replaceChildren(...data.map((one, index) => row(texts[one.index ?? index], one, labels)));
    $("classes").hidden = false;
  } catch (error) {
    $("classify-state").textContent = error.message;
    $("classify-state").className = "bad";
  }
}

function row(text, one, labels) {
  if (one.error) return element("tr", {}, element("td", {}, text), element("td", { className: "bad", colSpan: labels.length }, one.error.message ?? String(one.error)));
  const best = Math.max(...one.probs);
  const cell = (share) => {
    const node = element("td", { className: share === best ? "share best" : "share" }, `${(100 * share).toFixed(1)} %`);
    node.style.setProperty("--much", `${100 * share}%`);
    return node;
  };
  return element("tr", {}, element("td", {}, text), ...one.probs.map(cell));
}
