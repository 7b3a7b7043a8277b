// Requests to the server that this page came from.

const $ = (id) => document.getElementById(id);

class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function call(path, body, signal) {
  const headers = {};
  const key = settings.key;
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(location.pathname.replace(/\/$/, "") + path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server does not answer", 0);
  }
  if (response.ok) return response;
  const text = await response.text();
  let message = text;
  try { message = JSON.parse(text).error.message; } catch {}
  if (response.status === 401) {
    message = "this server needs an API key";
    $("settings").showModal();
    $("key").focus();
  }
  throw new ApiError(message || `status ${response.status}`, response.status);
}

const get = async (path) => (await call(path)).json();
const post = async (path, body, signal) => (await call(path, body, signal)).json();

// The data of a stream of server-sent events, parsed, up to `[DONE]`.
async function* stream(path, body, signal) {
  const response = await call(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError("the answer broke off", 0);
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      // Lines that are no data are comments, which keep the connection open.
      const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message, 200);
      yield event;
    }
  }
}
