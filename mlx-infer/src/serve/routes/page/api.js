// Requests to the server that this page came from.

const $ = (id) => document.getElementById(id);

class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function call(path, body, signal, method = body ? "POST" : "GET") {
  const headers = {};
  const key = settings.key;
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    const url = location.pathname.replace(/\/$/, "") + path;
    response = await fetch(url, { method, headers, body: body && JSON.stringify(body), signal });
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
    if (!$("settings").open) $("settings").showModal();
    $("key").focus();
  }
  throw new ApiError(message || `status ${response.status}`, response.status);
}

const get = async (path) => (await call(path)).json();
const post = async (path, body, signal) => (await call(path, body, signal)).json();

// The numbers and the data of a stream of server-sent events, up to `[DONE]`. An error with status 0 is that of the connection.
async function* stream(path, body, signal) {
  const response = await call(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    let read;
    try {
      read = await reader.read();
    } catch (error) {
      throw error.name === "AbortError" ? error : new ApiError("the answer broke off", 0);
    }
    if (read.done) throw new ApiError("the answer broke off", 0);
    text += read.value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      // Lines without a name are comments, which keep the connection open.
      const lines = text.slice(0, end).split("\n");
      const field = (name) => lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trim()).join("\n");
      const data = field("data");
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message, 200);
      yield [Number(field("id") || NaN), event];
    }
  }
}
