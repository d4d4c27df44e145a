/**
 * Which test shows which rule of the chat interface. The rules are listed once by name and once with their tests; a rule without a
 * test, a test that is gone, and a field that no test sends to a real server all turn this red. Structured output has tests of its
 * own.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { chatCompletionFields } from '../../../src/schemas/chat-completion.ts';
import { completionFields } from '../../../src/schemas/completion.ts';
import { REFUSED } from './chat-refusals.ts';

const RULES = [
  // What must be seen of the endpoint, with any weights.
  ...['length and usage', 'model names', 'unknown model', 'logprobs off and on', 'top_logprobs', 'top_logprobs limit'],
  ...['top_logprobs alone', 'prompt_logprobs', 'prompt_logprobs streamed', 'unknown keys', 'bodies', 'content type'],
  ...['seed bounds', 'n with seed', 'n streamed', 'n greedy', 'n 0', 'lengths', 'all but one position'],
  ...['generation_config', 'truncate_prompt_tokens', 'logit_bias', 'logit_bias refusals', 'allowed_token_ids'],
  ...['bad_words', 'stop_token_ids', 'stop empty', 'ignore_eos', 'ranges', 'token ids', 'echo', 'both prompt flags'],
  ...[
    'template kwargs',
    'priority off',
    'priority on',
    'request ids',
    'request id header',
    'cache_salt',
    'beam search',
  ],
  ...[
    'stream equals whole',
    'stream_options alone',
    'forced usage',
    'clients that time out',
    'engine failure',
    'overload',
  ],
  ...[
    'tools refusals',
    'auto calls',
    'tool_choice none',
    'call history',
    'include_reasoning',
    'keys',
    'models',
    'metrics',
  ],
  // Parsers without a model.
  ...['hermes', 'llama3_json', 'mistral', 'qwen3_coder', 'pythonic', 'any chunking', 'reasoning parsers'],
  // Section 1: what the table of fields says beyond its ranges.
  ...[
    'cross-field rules',
    'nulls',
    'defaults',
    'custom roles',
    'part types',
    'old reasoning name',
    'old function calls',
  ],
  ...['continue_final_message', 'chat_template trust', 'default template kwargs', 'documents', 'add_special_tokens'],
  ...['parallel_tool_calls', 'spaces_between_special_tokens', 'logprobs_mode', 'length_penalty', 'min_tokens'],
  ...['penalties', 'token_id names', 'reasoning_effort', 'repetition_detection', 'repetition_detection refusals'],
  ...['beam rules', 'template bounds', 'special tokens in user text', 'kv_transfer_params', 'engine_xargs', 'suffix'],
  // Section 2: the stream.
  ...[
    'role chunk',
    'delta chunks',
    'tool deltas',
    'finish chunk',
    'usage chunk',
    'done',
    'error events',
    'disconnects',
  ],
  ...['held-back text', 'whole answer fields', 'logprob floor'],
  // Section 3: errors.
  ...['error shape', 'error catalogue', 'length messages', 'no internals', 'unknown paths'],
  // Section 4: queue and cache.
  ...[
    'fcfs',
    'fair shares',
    'preemption keeps text',
    'preemption storm',
    'block hashes',
    'cache lookup',
    'cached_tokens',
  ],
  // Section 5: sampling.
  ...[
    'order of operations',
    'filters',
    'draws',
    'seed in a batch',
    'seed after preemption',
    'seed from the cache',
    'ranks',
  ],
] as const;

type Rule = (typeof RULES)[number];
/** A test file, and a piece of it that is the test: its name, or a row of its table. */
type Proof = [file: string, piece: string];

const TABLE = 'api/chat-table.test.ts';
const BEHAVIOURS = 'api/behaviours.test.ts';
const PROMPTS = 'api/prompt-features.test.ts';
const SCRIPTED = 'api/scripted-text.test.ts';
const STREAMS = 'unit/api/streams.test.ts';
const CHAT = 'unit/api/chat-rules.test.ts';
const REQUESTS = 'api/request-rules.test.ts';
const REFUSALS = 'unit/api/chat-refusals.ts';
const TOOLS = 'api/tools.test.ts';
const CLIENT = 'api/openai-client.test.ts';

const PROOFS: Record<Rule, Proof[]> = {
  'length and usage': [[BEHAVIOURS, 'max_completion_tokens with ignore_eos']],
  'model names': [
    [SCRIPTED, 'the first served name answers for all'],
    [CHAT, 'model %j answers by the first name'],
  ],
  'unknown model': [[TABLE, 'an unknown model is 404']],
  'logprobs off and on': [[TABLE, 'false, true, and five alternatives']],
  top_logprobs: [[TABLE, 'top_logprobs: 5']],
  'top_logprobs limit': [[BEHAVIOURS, 'top_logprobs at and beyond the limit; the next request works']],
  'top_logprobs alone': [[TABLE, '{ top_logprobs: 3 }']],
  prompt_logprobs: [[PROMPTS, '%d alternatives for every token but the first']],
  'prompt_logprobs streamed': [[PROMPTS, '0 may be streamed, more may not']],
  'unknown keys': [
    [TABLE, 'surprise: 1'],
    [CHAT, 'unknown keys are accepted and named in a header'],
  ],
  bodies: [[TABLE, "'the body %s'"]],
  'content type': [[TABLE, 'another content type']],
  'seed bounds': [
    [TABLE, 'greater_than_equal'],
    [CHAT, 'seed keeps 64 bits'],
  ],
  'n with seed': [[CLIENT, 'n = 3 with a seed: three choices, not all alike, and the same again']],
  'n streamed': [[TABLE, 'several choices, whole and streamed']],
  'n greedy': [[TABLE, '{ n: 2, temperature: 0 }']],
  'n 0': [[TABLE, '{ n: 0 }']],
  lengths: [
    [BEHAVIOURS, 'a prompt of %d tokens is too long'],
    [BEHAVIOURS, 'prompt and output together, streamed or not'],
    [TABLE, '{ max_tokens: 0 }'],
  ],
  'all but one position': [[REQUESTS, 'a prompt of all but one position and no max_tokens gives one token']],
  generation_config: [[BEHAVIOURS, 'temperature is used when absent, overridden when given, and 0 is not absent']],
  truncate_prompt_tokens: [
    [TABLE, 'truncate_prompt_tokens keeps the last ones'],
    [TABLE, 'truncate_prompt_tokens: -1'],
    [TABLE, 'truncate_prompt_tokens: 100_000'],
  ],
  logit_bias: [[TABLE, 'a bias of 100, or 1000, gives that token always']],
  'logit_bias refusals': [
    [TABLE, "{ abc: 1, 'x y': 1 }"],
    [TABLE, "{ 5: 'x' }"],
    [TABLE, '[VOCAB + 1]: 1'],
  ],
  allowed_token_ids: [
    [TABLE, 'allowed_token_ids gives only these'],
    [TABLE, 'allowed_token_ids: []'],
    [TABLE, 'allowed_token_ids: [VOCAB]'],
  ],
  bad_words: [
    [TABLE, 'bad_words never come, even when they are wanted'],
    [TABLE, "bad_words: ['']"],
  ],
  stop_token_ids: [[TABLE, 'stop_token_ids end it, with the text of the token only when asked']],
  'stop empty': [[TABLE, "{ stop: '' }"]],
  ignore_eos: [[TABLE, 'ignore_eos goes on although the end is wanted']],
  ranges: [
    'temperature: -1',
    'top_p: 0',
    'top_p: 1.5',
    'top_k: -2',
    'min_p: 2',
    'presence_penalty: 3',
    'repetition_penalty: 0',
    'top_k: -1',
  ].map((piece): Proof => [TABLE, `{ ${piece} }`]),
  'token ids': [[TABLE, 'ids of prompt and output, and their text']],
  echo: [
    [PROMPTS, 'a continued message comes back with its beginning'],
    [PROMPTS, 'an answer in another role repeats nothing'],
  ],
  'both prompt flags': [[TABLE, 'add_generation_prompt: true, continue_final_message: true']],
  'template kwargs': [
    [TABLE, 'chat_template_kwargs: { tokenize: true }'],
    [TABLE, 'chat_template_kwargs: { never_used: 1 }'],
  ],
  'priority off': [[TABLE, '{ priority: 5 }']],
  'priority on': [[TABLE, 'with one slot, a lower priority value that comes later ends earlier']],
  'request ids': [[TABLE, 'of the body, of the header, of duplicates']],
  'request id header': [[TABLE, '/^[0-9a-f]{32}$/']],
  cache_salt: [
    [PROMPTS, 'the same prompt and salt find it again, others do not'],
    [TABLE, "cache_salt: ''"],
  ],
  'beam search': [[PROMPTS, 'gives n different outputs, the same for the same prompt, and streams them at the end']],
  'stream equals whole': [
    [CLIENT, 'the concatenated stream is the answer'],
    [BEHAVIOURS, 'a stream and its whole answer agree over many seeds'],
  ],
  'stream_options alone': [
    [REFUSALS, 'stream_options: { include_usage: true }'],
    [REFUSALS, 'include_usage: null'],
  ],
  'forced usage': [[CHAT, 'a server that forces usage sends it with every chunk']],
  'clients that time out': [['api/disconnects.test.ts', '500 clients that leave after half a second']],
  'engine failure': [
    ['api/extensions.test.ts', 'one that throws, hangs or answers nonsense fails its request alone'],
    ['api/engine-kill.test.ts', 'SIGKILL'],
  ],
  overload: [['api/disconnects.test.ts', 'a full queue is 429 with Retry-After, before any stream begins']],
  'tools refusals': [
    [TABLE, '{ tools: [] }'],
    [TABLE, "{ tool_choice: 'auto' }"],
    [TABLE, 'tool_choice: {} }'],
    [TABLE, "function: { name: 'g' }"],
  ],
  'auto calls': [[TOOLS, 'a call that the model chose']],
  'tool_choice none': [[TOOLS, 'none never gives calls']],
  'call history': [[TOOLS, 'a call in the history with arguments %j']],
  include_reasoning: [[TOOLS, 'include_reasoning false leaves it out, with its ids, and still counts it']],
  keys: [[TABLE, "authorization: 'Bearer nobody'"]],
  models: [[TABLE, 'models and health']],
  metrics: [
    [SCRIPTED, 'token counts in the metrics'],
    [REQUESTS, 'finished requests are counted by reason'],
  ],
  hermes: [['unit/parsers/json-formats.test.ts', 'hermes']],
  llama3_json: [['unit/parsers/json-formats.test.ts', 'llama3_json']],
  mistral: [['unit/parsers/json-formats.test.ts', 'mistral']],
  qwen3_coder: [['unit/parsers/markup-formats.test.ts', 'qwen3_coder']],
  pythonic: [['unit/parsers/markup-formats.test.ts', 'pythonic']],
  'any chunking': [
    ['unit/parsers/chunking.test.ts', 'const SAMPLES = 250'],
    ['unit/parsers/chunking.test.ts', 'finds what was generated, cut anywhere'],
    ['unit/parsers/chunking.test.ts', 'JSON.parse(call.arguments)'],
  ],
  'reasoning parsers': [
    ['unit/parsers/reasoning.test.ts', 'is in the thoughts from the start where the prompt opened them'],
  ],
  'cross-field rules': [[CHAT, 'refused']],
  nulls: [[CHAT, 'every field that takes null takes null, and asks for nothing by it']],
  defaults: [[CHAT, 'absent fields are the defaults']],
  'custom roles': [[TABLE, "role: 'critic'"]],
  'part types': [[TABLE, "Unsupported chat content part type: 'blob'"]],
  'old reasoning name': [[CHAT, "reasoning_content: 'why'"]],
  'old function calls': [[TOOLS, 'a history in the old form is the same prompt']],
  continue_final_message: [
    [BEHAVIOURS, 'a message may be continued'],
    [CHAT, 'continue_final_message turns the generation prompt off'],
  ],
  'chat_template trust': [
    [TABLE, "{ chat_template: 'x' }"],
    [PROMPTS, 'a chat template of the request'],
  ],
  'default template kwargs': [[CHAT, "the server's template variables stand below those of a request"]],
  documents: [[REQUESTS, 'documents reach a template that reads them, and are ignored by one that does not']],
  add_special_tokens: [[REQUESTS, 'add_special_tokens puts them before what the template wrote']],
  parallel_tool_calls: [[REQUESTS, 'all of them, or the first where parallel_tool_calls is false']],
  spaces_between_special_tokens: [[REQUESTS, 'spaces_between_special_tokens and skip_special_tokens']],
  logprobs_mode: [[REQUESTS, 'raw knows neither temperature nor filters']],
  length_penalty: [[REQUESTS, 'length_penalty decides between a short and a long beam']],
  min_tokens: [
    [SCRIPTED, 'min_tokens keeps the end away'],
    [BEHAVIOURS, 'min_tokens: 5, max_tokens: 4'],
  ],
  penalties: [[TABLE, 'penalties count the output, and not the prompt']],
  'token_id names': [[TABLE, 'return_tokens_as_token_ids: true']],
  reasoning_effort: [[TOOLS, 'an effort of none turns it off']],
  repetition_detection: [
    [PROMPTS, 'a repeating output ends'],
    [STREAMS, 'the end by repetition'],
  ],
  'repetition_detection refusals': [[TABLE, 'repetition_detection: { max_pattern_size: 4, min_count: 1 }']],
  'beam rules': [['unit/sessions/beam-search.test.ts', 'exhaustive']],
  'template bounds': [['unit/sessions/template.test.ts', 'a hostile template']],
  'special tokens in user text': [[BEHAVIOURS, 'special tokens written by a user stay text']],
  kv_transfer_params: [
    ['api/kv-transfer.test.ts', 'gives the tokens of a single server, and releases the blocks'],
    ['api/kv-transfer.test.ts', 'when the prefill server is killed in between, the decode server still answers'],
  ],
  engine_xargs: [['api/extensions.test.ts', 'an extension says what comes, and stops with its reason']],
  suffix: [['unit/sessions/fill-in-middle.test.ts', 'through HTTP']],
  'role chunk': [[SCRIPTED, 'role chunk, deltas, finish chunk']],
  'delta chunks': [[STREAMS, 'roles of all choices, deltas, finishes, usage, DONE']],
  'tool deltas': [
    [TOOLS, 'the same call streamed'],
    [REQUESTS, 'streamed with parallel_tool_calls %j'],
  ],
  'finish chunk': [[SCRIPTED, 'n = 2: one choice per chunk, both finish, usage is the sum']],
  'usage chunk': [[SCRIPTED, 'usage: none, at the end, with every chunk']],
  done: [[SCRIPTED, 'a reply that looks like events stays data']],
  'error events': [[STREAMS, 'in the middle of a stream: an error event, then DONE']],
  disconnects: [
    ['api/disconnects.test.ts', 'leaving at each chunk'],
    [STREAMS, 'clients that leave'],
  ],
  'held-back text': [
    [STREAMS, 'held-back text sends nothing unless tokens were asked for'],
    [SCRIPTED, 'no chunk has half a character'],
  ],
  'whole answer fields': [[STREAMS, 'has every field, nulls included']],
  'logprob floor': [[STREAMS, 'logprobs are floored, and named by id when asked']],
  'error shape': [[TABLE, "toEqual(['code', 'message', 'param', 'type'])"]],
  'error catalogue': [['unit/api/errors.test.ts', 'docs/errors.md']],
  'length messages': [[BEHAVIOURS, 'maximum context length is 128 tokens']],
  'no internals': [[BEHAVIOURS, 'hostile bodies leave the server as it was']],
  'unknown paths': [['unit/api/http.test.ts', 'unknown path is 404, unknown method 405, both as errors']],
  fcfs: [['unit/scheduler/priority.test.ts', 'means nothing under FCFS']],
  'fair shares': [['unit/scheduler/priority.test.ts', 'one request need not wait for a flood']],
  'preemption keeps text': [
    ['unit/scheduler/priority.test.ts', 'takes the only slot and ends first; the other one loses nothing'],
  ],
  'preemption storm': [
    ['unit/scheduler/priority.test.ts', '10,000 requests, aborts and tiny memory: none lost, every page returns'],
  ],
  'block hashes': [['unit/scheduler/prefix-cache.test.ts', 'adapter']],
  'cache lookup': [['unit/scheduler/prefix-sharing.test.ts', 'it(']],
  cached_tokens: [[PROMPTS, 'warm and cold answers are the same, and the hits are counted']],
  'order of operations': [
    ['native/sampling-controls.test.ts', 'processed log-probabilities are the exact distribution, raw ones ignore it'],
  ],
  filters: [['native/sampling.test.ts', 'samplingGoldens']],
  draws: [['native/sampling.test.ts', 'chi']],
  'seed in a batch': [['native/sampling.test.ts', 'a seed gives the same tokens alone and among 31 others']],
  'seed after preemption': [
    ['native/sampling-controls.test.ts', 'a preemption changes nothing'],
    ['native/invariance.test.ts', 'after a preemption'],
  ],
  'seed from the cache': [
    [PROMPTS, 'seed: 5, temperature: 1'],
    ['native/invariance.test.ts', 'prefixes from the cache, the rest in chunks of %d'],
  ],
  ranks: [['native/sampling.test.ts', 'raw logprobs are the log-softmax of the untouched logits']],
};

const read = (file: string) => readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8');

test('every rule has a test, and every test named is there', () => {
  expect(Object.keys(PROOFS).sort()).toEqual([...RULES].sort());
  const texts = new Map<string, string>();
  const gone = Object.entries(PROOFS).flatMap(([rule, proofs]) =>
    proofs
      .filter(([file, piece]) => {
        const text = texts.get(file) ?? read(file);
        texts.set(file, text);
        return !text.includes(piece);
      })
      .map(([file, piece]) => `${rule}: ${file} has no ${piece}`),
  );
  expect(gone).toEqual([]);
  expect(Object.entries(PROOFS).filter(([, proofs]) => proofs.length === 0)).toEqual([]);
});

/** Sent to a real server by the tests of structured output, or refused on every model there is. */
const ELSEWHERE = new Set(['structured_outputs']);

test('every field is sent to a real server, and refused somewhere', () => {
  const folder = new URL('../../api/', import.meta.url);
  const files = readdirSync(folder).filter((file) => file.endsWith('.test.ts'));
  const sent = files.map((file) => read(`api/${file}`)).join('\n');
  const fields = [...chatCompletionFields, ...completionFields];
  const unsent = fields.filter((field) => !ELSEWHERE.has(field) && !new RegExp(`\\b${field}\\b`).test(sent));
  expect(unsent).toEqual([]);
  expect([...chatCompletionFields].filter((field) => field !== 'seed' && !(field in REFUSED))).toEqual([]);
});
