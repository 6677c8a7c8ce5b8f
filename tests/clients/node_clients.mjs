// What programs do with Potluck's API, for the packages of npm that speak it: `node node_clients.mjs NAME URL`.
// See `try_clients.py`.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [name, url] = process.argv.slice(2);
const required = createRequire(`${process.cwd()}/`);
const load = (module) => import(pathToFileURL(required.resolve(module)));

const MODEL = "potluck";
const ASKED = "Where is it warm?";
const CITIES = ["Oslo", "Rome"];
const SCHEMA = {
  type: "object",
  properties: { city: { type: "string", enum: CITIES } },
  required: ["city"],
  additionalProperties: false,
};
const messages = [{ role: "user", content: ASKED }];
const tool = { type: "function", function: { name: "weather", description: "Tells the weather.", parameters: SCHEMA } };
const short = { model: MODEL, messages, max_tokens: 16, temperature: 0 };
const long = { ...short, max_tokens: 400 };

function expect(is, what) {
  if (!is) throw new Error(what);
}
const says = (text) => expect(typeof text === "string" && text, "the answer is empty");
const namesACity = (given) => expect(CITIES.includes(given.city), `${JSON.stringify(given)} is not as the schema wants it`);

async function fails(ask, status) {
  try {
    await ask();
  } catch (error) {
    const told = error.status ?? error.statusCode ?? error.status_code;
    expect(told === status, `status ${told}: ${error}`);
    return error;
  }
  throw new Error("there was no error");
}

async function openaiTasks() {
  const { default: OpenAI } = await load("openai");
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const create = (fields) => client.chat.completions.create(fields);
  return {
    chat: async () => says((await create(short)).choices[0].message.content),
    stream: async () => {
      let text = "";
      for await (const chunk of await create({ ...short, stream: true })) text += chunk.choices[0].delta.content ?? "";
      says(text);
    },
    tools: async () => {
      const runner = client.chat.completions.stream({
        ...long, tools: [tool], tool_choice: "required", parallel_tool_calls: false,
      });
      const [call] = (await runner.finalChatCompletion()).choices[0].message.tool_calls;
      namesACity(JSON.parse(call.function.arguments));
    },
    structure: async () => {
      const format = { type: "json_schema", json_schema: { name: "place", strict: true, schema: SCHEMA } };
      const answer = await client.chat.completions.parse({ ...long, response_format: format });
      namesACity(JSON.parse(answer.choices[0].message.content));
    },
    errors: async () => {
      await fails(() => create({ ...short, model: "nobody" }), 404);
      const tooLong = [{ role: "user", content: "word ".repeat(40_000) }];
      const error = await fails(() => create({ ...short, messages: tooLong }), 400);
      expect(error.code === "context_length_exceeded", `code ${error.code}`);
    },
  };
}

async function anthropicTasks() {
  const { default: Anthropic } = await load("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
  const create = (fields) => client.messages.create(fields);
  return {
    chat: async () => says((await create(short)).content[0].text),
    stream: async () => says(await client.messages.stream(short).finalText()),
    tools: async () => {
      const answer = await client.messages.stream({
        ...long, tools: [{ name: "weather", input_schema: SCHEMA }],
        tool_choice: { type: "any", disable_parallel_tool_use: true },
      }).finalMessage();
      namesACity(answer.content.find((block) => block.type === "tool_use").input);
    },
    errors: () => fails(() => create({ ...short, model: "nobody" }), 404),
  };
}

async function vercelTasks() {
  const { generateText, streamText, generateObject, jsonSchema, tool: toolOf } = await load("ai");
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  const home = createOpenAICompatible({ name: "potluck", baseURL: `${url}/v1`, supportsStructuredOutputs: true });
  const ask = { model: home(MODEL), prompt: ASKED, maxOutputTokens: 16, temperature: 0, maxRetries: 0 };
  const weather = toolOf({ description: "Tells the weather.", inputSchema: jsonSchema(SCHEMA) });
  return {
    chat: async () => says((await generateText(ask)).text),
    stream: async () => says(await streamText(ask).text),
    tools: async () => {
      const asked = { ...ask, maxOutputTokens: 400, tools: { weather }, toolChoice: "required" };
      namesACity((await generateText(asked)).toolCalls[0].input);
      namesACity((await streamText(asked).toolCalls)[0].input);
    },
    structure: async () =>
      namesACity((await generateObject({ ...ask, maxOutputTokens: 400, schema: jsonSchema(SCHEMA) })).object),
    errors: () => fails(() => generateText({ ...ask, model: home("nobody") }), 404),
  };
}

async function ollamaTasks() {
  const { Ollama } = await load("ollama");
  const client = new Ollama({ host: url });
  const ask = { model: MODEL, messages, options: { num_predict: 16, temperature: 0 } };
  return {
    chat: async () => says((await client.chat(ask)).message.content),
    stream: async () => {
      let text = "";
      for await (const part of await client.chat({ ...ask, stream: true })) text += part.message.content;
      says(text);
    },
    structure: async () => {
      const options = { num_predict: 400, temperature: 0 };
      namesACity(JSON.parse((await client.chat({ ...ask, format: SCHEMA, options })).message.content));
    },
    errors: () => fails(() => client.chat({ ...ask, model: "nobody" }), 404),
  };
}

const CLIENTS = {
  openai: openaiTasks,
  "@anthropic-ai/sdk": anthropicTasks,
  "@ai-sdk/openai-compatible": vercelTasks,
  ollama: ollamaTasks,
};

const results = {};
for (const [task, run] of Object.entries(await CLIENTS[name]())) {
  try {
    await run();
    results[task] = "";
  } catch (error) {
    results[task] = String(error);
  }
}
console.log(JSON.stringify(results));
