// Conversations with which chat templates are rendered: their variables by name.
const time = { type: 'function', function: {
  name: 'get_time', description: 'Tells the time in a city, e.g. "Köln".',
  parameters: { type: 'object', required: ['city'], properties: {
    city: { type: 'string', description: 'The city' },
    unit: { type: 'string', enum: ['h12', 'h24'], description: "The form of the 'clock'" },
    days: { type: 'array', items: { type: 'integer' }, description: 'Days' } } } } };
const add = { type: 'function', function: {
  name: 'add', description: 'Adds two numbers', parameters: { type: 'object', required: ['a', 'b'], properties: {
    a: { type: 'number', description: 'First' }, b: { type: 'number', description: 'Second' } } } } };

const system = { role: 'system', content: 'Be brief.\n' };
const user = { role: 'user', content: ' How many eggs? <b>Grüße</b> 😀 ' };
const answer = { role: 'assistant', content: 'Twelve.' };
const second = { role: 'user', content: 'And\n\nwhy?' };
const thinking = { role: 'assistant', content: '<think>\nA dozen.\n</think>\n\nTwelve it is.' };

// The forms of arguments and ids that templates accept differ.
function call(form) {
  const given = { city: 'Köln', unit: 'h24' };
  const called = { name: 'get_time', arguments: form === 'text' ? JSON.stringify(given) : given };
  return { role: 'assistant', content: form === 'null' ? null : '', tool_calls: [{ id: 'call12345', type: 'function', function: called }] };
}
const result = { role: 'tool', name: 'get_time', tool_call_id: 'call12345', content: '{"time": "12:30"}' };

const bases = {
  'one question': { messages: [user] },
  'a system message': { messages: [system, user] },
  'several turns': { messages: [user, answer, second] },
  'several turns and a system message': { messages: [system, user, answer, second, thinking, { role: 'user', content: 'Sure?' }] },
  'an answer at the end': { messages: [system, user, answer] },
  'thoughts': { messages: [user, { ...answer, reasoning_content: 'A dozen.' }, second] },
  'thinking switched on': { messages: [user], enable_thinking: true, thinking: true },
  'thinking switched off': { messages: [user], enable_thinking: false, thinking: false },
  'content in parts': { messages: [{ role: 'user', content: [{ type: 'text', text: 'How many eggs?' }, { type: 'text', text: 'And why?' }] }] },
  'tools': { messages: [system, user], tools: [time, add] },
  'tools without a system message': { messages: [user], tools: [time] },
  'two users': { messages: [user, second] },
};
for (const form of ['object', 'text', 'null']) {
  bases[`a tool call with arguments as ${form}`] = { messages: [user, call(form), result], tools: [time] };
  bases[`a tool call, its result and an answer, as ${form}`] = { messages: [system, user, call(form), result, answer, second], tools: [time, add] };
}

export const cases = Object.fromEntries(Object.entries(bases).flatMap(([name, variables]) => [true, false].map((prompt) => [
  `${name}, ${prompt ? 'with' : 'without'} a generation prompt`,
  { bos_token: '<s>', eos_token: '</s>', date_string: '26 Jul 2024', datetime: '26 Jul 2024', functions: '[]', ...variables, add_generation_prompt: prompt }])));
