/** What POST /v1/responses answers: the response object, its items, and the events of its stream. */
import type { ChatTokenLogprob } from './chat-completion-response.ts';
import type { TextConfig, ToolChoice } from './responses.ts';

export type ItemStatus = 'in_progress' | 'completed' | 'incomplete';

export interface OutputText {
  type: 'output_text';
  text: string;
  annotations: [];
  logprobs: ChatTokenLogprob[];
}

export interface OutputMessage {
  id: string;
  type: 'message';
  status: ItemStatus;
  role: 'assistant';
  content: OutputText[];
}

export interface ReasoningText {
  type: 'reasoning_text';
  text: string;
}

export interface ReasoningItem {
  id: string;
  type: 'reasoning';
  status: ItemStatus;
  /** None are made: the thoughts themselves are in `content`. */
  summary: [];
  content: ReasoningText[];
  /** Only where it was asked for. */
  encrypted_content?: string | null;
}

export interface FunctionCallItem {
  id: string;
  type: 'function_call';
  status: ItemStatus;
  call_id: string;
  /** Where the function is one of a namespace. */
  namespace?: string;
  name: string;
  /** JSON text of an object, unless the call is incomplete. */
  arguments: string;
}

export type OutputItem = OutputMessage | ReasoningItem | FunctionCallItem;

export interface ResponseUsage {
  input_tokens: number;
  input_tokens_details: { cached_tokens: number };
  output_tokens: number;
  output_tokens_details: { reasoning_tokens: number };
  total_tokens: number;
}

export type ResponseStatus = 'in_progress' | 'completed' | 'incomplete' | 'failed';

/** All of a response but its output: what is stored beside that. */
export interface ResponseHead {
  id: string;
  object: 'response';
  /** Unix seconds. */
  created_at: number;
  completed_at: number | null;
  status: ResponseStatus;
  background: false;
  error: { code: string; message: string } | null;
  incomplete_details: { reason: string } | null;
  instructions: string | null;
  max_output_tokens: number | null;
  max_tool_calls: number | null;
  metadata: Record<string, string>;
  model: string;
  parallel_tool_calls: boolean;
  previous_response_id: string | null;
  prompt_cache_key: string | null;
  reasoning: { effort: string | null; summary: string | null };
  safety_identifier: string | null;
  service_tier: 'default' | 'priority';
  store: boolean;
  /** null: the model's default. */
  temperature: number | null;
  text: TextConfig;
  tool_choice: ToolChoice;
  tools: Record<string, unknown>[];
  top_logprobs: number;
  top_p: number | null;
  truncation: string;
  usage: ResponseUsage | null;
  user: string | null;
}

export interface ResponseObject extends ResponseHead {
  output: OutputItem[];
}

/** Without its number, which the stream gives it. */
export interface ResponseEvent {
  type: string;
  [field: string]: unknown;
}
