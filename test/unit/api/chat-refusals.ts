/** Chat bodies that are refused: what is sent besides the messages, part of the sentence, and the field it names. */
export type Refusal = [fields: object, message: string | RegExp, param: string | null];

const TOOL = { type: 'function', function: { name: 'f' } };

export const REFUSED: Record<string, Refusal[]> = {
  messages: [
    [{ messages: undefined }, 'messages: Field required', 'messages'],
    [{ messages: null }, 'messages: Input should be array', 'messages'],
    [{ messages: 'x' }, 'messages: Input should be array', 'messages'],
    [{ messages: [7] }, 'Input should be object', 'messages.0'],
    [{ messages: [{ content: 'x' }] }, 'messages.0.role: Field required', 'messages.0.role'],
    [{ messages: [{ role: 'user', content: 7 }] }, 'Input should be string or array or null', 'messages.0.content'],
    [{ messages: [{ role: 'user', content: [{ text: 'x' }] }] }, 'Field required', 'messages.0.content.0.type'],
    [
      { messages: [{ role: 'user', content: [{ type: 'blob' }] }] },
      "Unsupported chat content part type: 'blob'",
      'type',
    ],
    [{ messages: [{ role: 'user', content: [{ type: 'image_url' }] }] }, "'image_url'", 'type'],
    [{ messages: [{ role: 'user', content: [{ type: 'constructor' }] }] }, "'constructor'", 'type'],
  ],
  model: [
    [{ model: 7 }, 'Input should be string or null', 'model'],
    [{ model: 'other' }, 'The model `other` does not exist.', 'model'],
  ],
  max_tokens: [
    [{ max_tokens: 0 }, 'max_tokens must be at least 1, got 0.', 'max_tokens'],
    [{ max_tokens: -5 }, 'got -5.', 'max_tokens'],
    [{ max_tokens: 1.5 }, 'Input should be integer or null, got 1.5', 'max_tokens'],
    [{ max_tokens: '5' }, 'Input should be integer or null, got "5"', 'max_tokens'],
  ],
  max_completion_tokens: [[{ max_completion_tokens: 0 }, 'must be at least 1, got 0.', 'max_completion_tokens']],
  temperature: [
    [{ temperature: -1 }, 'temperature must be non-negative, got -1.', 'temperature'],
    [{ temperature: 'hot' }, 'Input should be number', 'temperature'],
  ],
  top_p: [
    [{ top_p: 0 }, 'top_p must be in (0, 1], got 0.', 'top_p'],
    [{ top_p: 1.5 }, 'top_p must be in (0, 1], got 1.5.', 'top_p'],
  ],
  top_k: [
    [{ top_k: -2 }, 'top_k must be 0 (disable), or at least 1, got -2.', 'top_k'],
    [{ top_k: 1.5 }, 'Input should be integer', 'top_k'],
  ],
  min_p: [
    [{ min_p: 2 }, 'min_p must be in [0, 1]', 'min_p'],
    [{ min_p: -0.1 }, 'min_p must be in [0, 1]', 'min_p'],
  ],
  n: [
    [{ n: 0 }, 'n must be at least 1, got 0.', 'n'],
    [{ n: -1 }, 'n must be at least 1, got -1.', 'n'],
    [{ n: 2 ** 31 }, 'n must be at most 128', 'n'],
    [{ n: 1e9 }, 'n must be at most 128', 'n'],
    [{ n: 1.5 }, 'Input should be integer', 'n'],
    [{ n: '3' }, 'Input should be integer', 'n'],
    [{ n: 41 }, 'n must be at most 40', 'n'],
    [{ n: 3, temperature: 0 }, 'n must be 1 when using greedy sampling, got 3.', 'n'],
  ],
  stop: [
    [{ stop: '' }, 'stop cannot contain an empty string.', 'stop'],
    [{ stop: ['a', ''] }, 'stop cannot contain an empty string.', 'stop'],
    [{ stop: [7] }, 'Input should be string', 'stop.0'],
    [{ stop: 7 }, 'Input should be string or array or null', 'stop'],
    [{ stop: Array.from({ length: 100_000 }, (_, i) => `s${i}`) }, 'more than 64 items', 'stop'],
    [{ stop: ['x'.repeat(1_000_000)] }, 'more than 1024 characters', 'stop'],
  ],
  stop_token_ids: [
    [{ stop_token_ids: [100] }, 'out-of-vocab token id 100. Vocabulary size: 100', 'stop_token_ids'],
    [{ stop_token_ids: [-1] }, 'out-of-vocab token id -1. Vocabulary size: 100', 'stop_token_ids'],
    [{ stop_token_ids: ['a'] }, 'Input should be integer', 'stop_token_ids.0'],
  ],
  stream: [[{ stream: 'yes' }, 'Input should be boolean or null', 'stream']],
  stream_options: [
    [{ stream_options: { include_usage: true } }, 'only be defined when `stream=True`', 'stream_options'],
    [{ stream_options: { include_usage: null } }, 'only be defined when `stream=True`', 'stream_options'],
    [{ stream: true, stream_options: { include_usage: 7 } }, 'Input should be boolean', 'stream_options.include_usage'],
    [{ stream: true, stream_options: [] }, 'Input should be object', 'stream_options'],
  ],
  logprobs: [[{ logprobs: 3 }, 'Input should be boolean or null', 'logprobs']],
  top_logprobs: [
    [{ top_logprobs: 3 }, 'when using `top_logprobs`, `logprobs` must be set to true.', 'top_logprobs'],
    [{ top_logprobs: -1 }, '`logprobs` must be set to true.', 'top_logprobs'],
    [{ logprobs: true, top_logprobs: -2 }, '`top_logprobs` must be a positive value or -1.', 'top_logprobs'],
    [{ logprobs: true, top_logprobs: 'abc' }, 'Input should be integer', 'top_logprobs'],
    [
      { logprobs: true, top_logprobs: 21 },
      'Requested sample logprobs of 21, which is greater than max allowed: 20',
      'logprobs',
    ],
    [{ logprobs: true, top_logprobs: -1 }, 'Requested sample logprobs of 100', 'logprobs'],
    [{ logprobs: true, top_logprobs: 1e6, stream: true }, 'greater than max allowed', 'logprobs'],
  ],
  min_tokens: [
    [{ min_tokens: -1 }, 'min_tokens must be greater than or equal to 0, got -1.', 'min_tokens'],
    [{ min_tokens: 10, max_tokens: 5 }, 'min_tokens must be less than or equal to max_tokens=5, got 10.', 'min_tokens'],
  ],
  continue_final_message: [
    [
      { continue_final_message: true, add_generation_prompt: true },
      'Cannot set both `continue_final_message` and `add_generation_prompt` to True.',
      'continue_final_message',
    ],
  ],
  add_generation_prompt: [[{ add_generation_prompt: 1 }, 'Input should be boolean', 'add_generation_prompt']],
  add_special_tokens: [[{ add_special_tokens: null }, 'Input should be boolean', 'add_special_tokens']],
  ignore_eos: [[{ ignore_eos: 'x' }, 'Input should be boolean', 'ignore_eos']],
  include_stop_str_in_output: [
    [{ include_stop_str_in_output: 1 }, 'Input should be boolean', 'include_stop_str_in_output'],
  ],
  skip_special_tokens: [[{ skip_special_tokens: 0 }, 'Input should be boolean', 'skip_special_tokens']],
  chat_template_kwargs: [
    [
      { chat_template_kwargs: { tokenize: true } },
      "Found unexpected chat template kwargs from request: {'tokenize'}",
      'chat_template_kwargs',
    ],
    [{ chat_template_kwargs: { chat_template: 'x' } }, 'Found unexpected chat template kwargs', 'chat_template_kwargs'],
    [{ chat_template_kwargs: [] }, 'Input should be object', 'chat_template_kwargs'],
  ],
  request_id: [
    [{ request_id: 7 }, 'Input should be string', 'request_id'],
    [{ request_id: 'a\r\nX: y' }, 'printable ASCII', 'request_id'],
    [{ request_id: '' }, 'printable ASCII', 'request_id'],
    [{ request_id: 'x'.repeat(1_000_000) }, 'printable ASCII', 'request_id'],
  ],
  user: [[{ user: 7 }, 'Input should be string', 'user']],
  return_token_ids: [[{ return_token_ids: 'yes' }, 'Input should be boolean', 'return_token_ids']],
  return_tokens_as_token_ids: [
    [{ return_tokens_as_token_ids: 1 }, 'Input should be boolean', 'return_tokens_as_token_ids'],
  ],
  cache_salt: [[{ cache_salt: '' }, "Parameter 'cache_salt' must be a non-empty string if provided.", 'cache_salt']],
  parallel_tool_calls: [[{ parallel_tool_calls: 'no' }, 'Input should be boolean', 'parallel_tool_calls']],
  tool_choice: [
    [{ tool_choice: 'auto' }, 'When using `tool_choice`, `tools` must be set.', 'tool_choice'],
    [{ tool_choice: {} }, 'When using `tool_choice`, `tools` must be set.', 'tool_choice'],
    [{ tools: [TOOL], tool_choice: 'sometimes' }, 'tool_choice must be "none"', 'tool_choice'],
    [{ tools: [TOOL], tool_choice: {} }, 'must have the form', 'tool_choice'],
    [{ tools: [TOOL], tool_choice: { type: 'function', function: {} } }, 'must have the form', 'tool_choice'],
    [
      { tools: [TOOL], tool_choice: { type: 'function', function: { name: 'g' } } },
      'does not match any of the specified `tools`',
      'tool_choice',
    ],
  ],
  tools: [
    [{ tools: [] }, '`tools` must not be an empty array.', 'tools'],
    [{ tools: [{ type: 'function' }] }, 'Field required', 'tools.0.function'],
    [{ tools: [{ type: 'function', function: { name: '' } }] }, 'must not be empty', 'tools.0.function.name'],
  ],
  frequency_penalty: [[{ frequency_penalty: 3 }, 'frequency_penalty must be in [-2, 2], got 3.', 'frequency_penalty']],
  presence_penalty: [[{ presence_penalty: 3 }, 'presence_penalty must be in [-2, 2], got 3.', 'presence_penalty']],
  repetition_penalty: [
    [{ repetition_penalty: 0 }, 'repetition_penalty must be greater than zero', 'repetition_penalty'],
  ],
  length_penalty: [[{ length_penalty: 'x' }, 'Input should be number', 'length_penalty']],
  logit_bias: [
    [{ logit_bias: { 5: 'x' } }, 'Input should be number', 'logit_bias.5'],
    [{ logit_bias: { abc: 1, '1.5': 1 } }, 'keys that are not token ids: "abc", "1.5"', 'logit_bias'],
  ],
  bad_words: [[{ bad_words: [''] }, 'bad_words cannot contain an empty string.', 'bad_words']],
  allowed_token_ids: [[{ allowed_token_ids: [] }, 'allowed_token_ids is not None and empty!', 'allowed_token_ids']],
  truncate_prompt_tokens: [[{ truncate_prompt_tokens: -2 }, 'must be >= -1', 'truncate_prompt_tokens']],
  prompt_logprobs: [
    [{ prompt_logprobs: -2 }, '`prompt_logprobs` must be a positive value or -1', 'prompt_logprobs'],
    [
      { prompt_logprobs: 1, stream: true },
      '`prompt_logprobs` are not available when `stream=True`.',
      'prompt_logprobs',
    ],
    [{ prompt_logprobs: -1, stream: true }, 'not available when `stream=True`', 'prompt_logprobs'],
    [
      { prompt_logprobs: -1 },
      'Requested prompt logprobs of 100, which is greater than max allowed: 20',
      'prompt_logprobs',
    ],
    [{ prompt_logprobs: 1e6 }, 'greater than max allowed', 'prompt_logprobs'],
  ],
  spaces_between_special_tokens: [
    [{ spaces_between_special_tokens: 'no' }, 'should be boolean', 'spaces_between_special_tokens'],
  ],
  logprobs_mode: [[{ logprobs_mode: 'cooked' }, 'Input should be one of "raw"', 'logprobs_mode']],
  use_beam_search: [[{ use_beam_search: 1 }, 'Input should be boolean', 'use_beam_search']],
  echo: [[{ echo: 1 }, 'Input should be boolean', 'echo']],
  response_format: [
    [{ response_format: { type: 'xml' } }, 'Input should be one of', 'response_format.type'],
    [{ response_format: { type: 'json_schema' } }, "the 'json_schema' field must be provided", 'response_format'],
  ],
  structured_outputs: [
    [{ structured_outputs: { regex: 7 } }, 'Input should be string', 'structured_outputs.regex'],
    [{ structured_outputs: { regex: 'a', choices: ['b'] } }, 'Extra inputs', 'structured_outputs.choices'],
    [
      { structured_outputs: { json: {}, disable_any_whitespaces: true } },
      'structured_outputs.disable_any_whitespaces: Extra inputs are not permitted',
      'structured_outputs.disable_any_whitespaces',
    ],
    [{ structured_outputs: { regex: 'a', choice: ['b'] } }, 'only use one kind', 'structured_outputs'],
  ],
  repetition_detection: [
    [{ repetition_detection: { max_size: 3, min_count: 2 } }, 'Extra inputs', 'repetition_detection.max_size'],
    [
      { repetition_detection: { max_pattern_size: 'x' } },
      'Input should be integer',
      'repetition_detection.max_pattern_size',
    ],
    ...(
      [
        [{ max_pattern_size: -1 }, 'max_pattern_size must be >= 0'],
        [{ max_pattern_size: 5, min_pattern_size: -1, min_count: 2 }, 'min_pattern_size must be >= 0'],
        [{ max_pattern_size: 5, min_pattern_size: 6, min_count: 2 }, 'must be <= max_pattern_size'],
        [{ min_pattern_size: 1 }, 'must be <= max_pattern_size'],
        [{ max_pattern_size: 5, min_count: 1 }, 'min_count must be >= 2'],
        [{ max_pattern_size: 1e9, min_count: 2 }, 'max_pattern_size must be at most 1024'],
      ] as const
    ).map(([fields, message]): Refusal => [{ repetition_detection: fields }, message, 'repetition_detection']),
  ],
  reasoning_effort: [[{ reasoning_effort: 'wild' }, 'Input should be one of', 'reasoning_effort']],
  include_reasoning: [[{ include_reasoning: 'no' }, 'should be boolean', 'include_reasoning']],
  documents: [[{ documents: ['x'] }, 'should be object', 'documents.0']],
  chat_template: [[{ chat_template: '{{ x }}' }, '--trust-request-chat-template is not set', 'chat_template']],
  mm_processor_kwargs: [
    [{ mm_processor_kwargs: { a: 1 } }, 'takes text only: `mm_processor_kwargs`', 'mm_processor_kwargs'],
  ],
  priority: [
    [{ priority: 10 }, 'Got priority 10 but Priority scheduling is not enabled.', 'priority'],
    [{ priority: 1.5 }, 'Input should be integer', 'priority'],
  ],
  kv_transfer_params: [
    [{ kv_transfer_params: { do_remote_decode: 'x' } }, 'should be boolean', 'kv_transfer_params.do_remote_decode'],
    [
      { kv_transfer_params: { do_remote_decode: true } },
      'needs a server that was started with --kv-port',
      'kv_transfer_params',
    ],
    [{ kv_transfer_params: { do_remote_prefill: true } }, 'was started with --kv-peers', 'kv_transfer_params'],
    [
      { kv_transfer_params: { do_remote_decode: true, do_remote_prefill: true } },
      'cannot both be true',
      'kv_transfer_params',
    ],
  ],
  engine_xargs: [
    [{ engine_xargs: { a: 1 } }, 'No extension of this server takes these arguments: "a"', 'engine_xargs'],
    [{ engine_xargs: { a: {} } }, 'Input should be', 'engine_xargs.a'],
  ],
  vllm_xargs: [[{ vllm_xargs: { a: ['x'] } }, 'No extension', 'vllm_xargs']],
};
