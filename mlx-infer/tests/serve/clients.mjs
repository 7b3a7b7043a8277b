// The official node client against a server of the built-in model, whose address is the first argument. The last line names the package.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is 20 + 22?" }];
const number = { enum: [20, 22] };
const tool = {
  type: "function",
  function: {
    name: "add",
    description: "Adds two numbers.",
    parameters: { type: "object", properties: { a: number, b: number }, required: ["a", "b"], additionalProperties: false },
  },
};

const models = [];
for await (const model of client.models.list()) models.push(model.id);
assert.deepEqual(models, ["tiny", "org/tiny"]);

const answer = await client.chat.completions.create({ model: "tiny", messages, temperature: 0, logprobs: true, top_logprobs: 2 });
assert.equal(answer.choices[0].message.content, "42");
assert.equal(answer.choices[0].finish_reason, "stop");

const stream = await client.chat.completions.create({
  model: "tiny", messages, temperature: 0, stream: true, stream_options: { include_usage: true },
});
let text = "";
let usage;
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, "42");
assert.equal(usage.completion_tokens, 3);

// The helper puts the chunks together itself, and fails on a stream without a reason to finish.
const helper = client.chat.completions.stream({ model: "tiny", messages, temperature: 0 });
assert.equal(await helper.finalContent(), "42");

const called = await client.chat.completions.create({
  model: "tiny", messages, tools: [tool], tool_choice: "required", parallel_tool_calls: false, max_tokens: 400, seed: 1,
});
assert.equal(called.choices[0].finish_reason, "tool_calls");
assert.deepEqual(Object.keys(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments)).sort(), ["a", "b"]);

const response = await client.responses.create({ model: "tiny", input: "What is 20 + 22?", temperature: 0 });
assert.equal(response.output_text, "42");
const events = await client.responses.create({ model: "tiny", input: "What is 20 + 22?", temperature: 0, stream: true });
const kinds = [];
for await (const event of events) kinds.push(event.type);
assert.equal(kinds[0], "response.created");
assert.equal(kinds.at(-1), "response.completed");

const completion = await client.completions.create({ model: "tiny", prompt: "The red fox", max_tokens: 4, temperature: 0 });
assert.equal(completion.usage.completion_tokens, 4);

await assert.rejects(client.chat.completions.create({ model: "other", messages }), (error) => error.status === 404 && error.param === "model");

const installed = new URL("./node_modules/openai/package.json", import.meta.url);
console.log(`openai ${JSON.parse(readFileSync(installed)).version}`);
