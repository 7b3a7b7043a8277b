// Ollama's official client for node against a server of the built-in model, whose address is the first argument. The last line names the package.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Ollama } from "ollama";

const client = new Ollama({ host: process.argv[2] });
const messages = [{ role: "user", content: "What is 20 + 22?" }];
const options = { temperature: 0 };

const { models } = await client.list();
assert.deepEqual(models.map((model) => model.name), ["tiny", "org/tiny"]);
assert.equal((await client.ps()).models[0].details.family, "gemma3_text");
assert.ok((await client.show({ model: "tiny" })).capabilities.includes("completion"));

const answer = await client.chat({ model: "tiny", messages, options, keep_alive: "10m" });
assert.equal(answer.message.content, "42");
assert.equal(answer.done_reason, "stop");

let text = "";
let last;
for await (const part of await client.chat({ model: "tiny:latest", messages, options, stream: true })) {
  text += part.message.content;
  last = part;
}
assert.equal(text, "42");
assert.ok(last.done && last.eval_count === 3 && last.total_duration > 1000);

const schema = { type: "object", properties: { answer: { enum: [41, 42] } }, required: ["answer"], additionalProperties: false };
const held = await client.chat({ model: "tiny", messages, format: schema, options: { seed: 1 } });
assert.ok([41, 42].includes(JSON.parse(held.message.content).answer));

const raw = await client.generate({ model: "tiny", prompt: "The red fox", raw: true, options: { temperature: 0, num_predict: 4 } });
assert.equal(raw.eval_count, 4);
assert.equal((await client.generate({ model: "tiny", prompt: "What is 20 + 22?", options })).response, "42");

const found = await client.embed({ model: "tiny", input: ["The red fox", "A lake"] });
assert.ok(found.embeddings.length === 2 && found.prompt_eval_count > 4);
const old = await client.embeddings({ model: "tiny", prompt: "The red fox" });
assert.equal(old.embedding.length, found.embeddings[0].length);

await assert.rejects(client.chat({ model: "other", messages }), (error) => error.status_code === 404 && error.message.includes("other"));
await assert.rejects(client.pull({ model: "tiny" }), /is not supported/);

const installed = new URL("./node_modules/ollama/package.json", import.meta.url);
console.log(`ollama ${JSON.parse(readFileSync(installed)).version}`);
