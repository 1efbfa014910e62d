// The official Node clients, unmodified: each asks a question plain and streamed, and prints what it got as JSON.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [url, key] = process.argv.slice(2);
const messages = [{ role: "user", content: "hello" }];
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const found = [];

const chat = await openai.chat.completions.create({ model: "policy", messages });
found.push({ id: chat.id, text: chat.choices[0].message.content });
let text = "";
let id = "";
for await (const chunk of await openai.chat.completions.create({ model: "policy", messages, stream: true })) {
  id = chunk.id;
  text += chunk.choices[0]?.delta?.content ?? "";
}
found.push({ id, text });

const response = await openai.responses.create({ model: "policy", input: "hello" });
found.push({ id: response.id, text: response.output_text });
const streamed = await openai.responses.stream({ model: "policy", input: "hello" }).finalResponse();
found.push({ id: streamed.id, text: streamed.output[0].content[0].text });

const ask = { model: "policy", max_tokens: 16, messages };
const message = await anthropic.messages.create(ask);
found.push({ id: message.id, text: message.content[0].text });
const last = await anthropic.messages.stream(ask).finalMessage();
found.push({ id: last.id, text: last.content[0].text });

const refused = [];
for (const wrong of [
  () => openai.chat.completions.create({ model: "nobody", messages }),
  () => openai.responses.create({ model: "nobody", input: "hello" }),
  () => anthropic.messages.create({ ...ask, model: "nobody" }),
  () => new Anthropic({ baseURL: url, apiKey: "el-no", maxRetries: 0 }).messages.create(ask),
]) {
  try {
    await wrong();
  } catch (error) {
    refused.push(error.constructor.name);
  }
}
console.log(JSON.stringify({ found, refused }));
