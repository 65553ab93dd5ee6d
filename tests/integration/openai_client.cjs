// What an app does with the openai package against the endpoint in BASE_URL, whose model ends texts with END_TOKEN;
// openai_client_test.py runs it. Prints one JSON object of what it got.
const { OpenAI } = require("openai");

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0 });
const messages = [
  { role: "system", content: "Answer shortly." },
  { role: "user", content: [{ type: "text", text: "What is the code of the green lantern?" }] },
];
const sampling = { model: "gpt-4o-mini", seed: 7, temperature: 0.8, max_completion_tokens: 24 };

async function streamed() {
  const chunks = [];
  const stream = await client.chat.completions.create({
    ...sampling, messages, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) chunks.push(chunk);
  return {
    text: chunks.map((chunk) => chunk.choices[0]?.delta?.content ?? "").join(""),
    pieces: chunks.length,
    reason: chunks.map((chunk) => chunk.choices[0]?.finish_reason).find(Boolean),
    usage: chunks.at(-1).usage,
  };
}

// The package's own helper, which puts the chunks together.
async function helper() {
  const stream = client.chat.completions.stream({ ...sampling, messages });
  return (await stream.finalChatCompletion()).choices[0].message.content;
}

// An app that stops listening.
async function aborted() {
  const stream = await client.chat.completions.create({
    model: "x", messages, stream: true, max_tokens: 30000, logit_bias: { [process.env.END_TOKEN]: -100 },
  });
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) break;
  }
}

async function refused(call) {
  try {
    await call;
    return null;
  } catch (error) {
    return { name: error.constructor.name, status: error.status, param: error.param, code: error.code };
  }
}

async function main() {
  const models = await client.models.list();
  const whole = await client.chat.completions.create({ ...sampling, messages, logprobs: true, top_logprobs: 2 });
  const completion = await client.completions.create({ ...sampling, prompt: "Mira keeps", max_tokens: 8 });
  console.log(JSON.stringify({
    models: models.data.map((model) => model.id),
    streamed: await streamed(),
    helper: await helper(),
    whole: whole.choices[0].message.content,
    logprobs: whole.choices[0].logprobs.content.length,
    completion: completion.choices[0].text,
    tools: await refused(client.chat.completions.create({ ...sampling, messages, tools: [{ type: "function" }] })),
    key: await refused(new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "wrong", maxRetries: 0 }).models.list()),
    missing: await refused(client.models.retrieve("other")),
    aborted: (await aborted()) ?? "yes",
  }));
}

main();
