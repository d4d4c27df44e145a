/** What POST /v1/messages answers: the message, its content blocks, the events of its stream, and errors. */
export interface TextBlock {
  type: 'text';
  text: string;
}

export interface ThinkingBlock {
  type: 'thinking';
  thinking: string;
  signature: string;
}

export interface ToolUseBlock {
  type: 'tool_use';
  id: string;
  name: string;
  input: unknown;
}

export type ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock;

export type BlockDelta =
  | { type: 'text_delta'; text: string }
  | { type: 'thinking_delta'; thinking: string }
  | { type: 'signature_delta'; signature: string }
  | { type: 'input_json_delta'; partial_json: string };

/** Blocks are told one after the other; `index` is a block's place. */
export type BlockEvent =
  | { type: 'content_block_start'; index: number; content_block: ContentBlock }
  | { type: 'content_block_delta'; index: number; delta: BlockDelta }
  | { type: 'content_block_stop'; index: number };

export type StopReason = 'end_turn' | 'max_tokens' | 'stop_sequence' | 'tool_use' | 'model_context_window_exceeded';

/** The prompt's tokens are the first three together; at the beginning of a stream they are all in the first. */
export interface MessageTokens {
  input_tokens: number;
  cache_creation_input_tokens: number;
  cache_read_input_tokens: number;
  output_tokens: number;
  output_tokens_details?: { thinking_tokens: number };
}

export interface MessageUsage extends MessageTokens {
  service_tier: 'standard' | 'priority';
}

export interface MessageEnd {
  stop_reason: StopReason | null;
  stop_sequence: string | null;
}

export interface MessageObject extends MessageEnd {
  id: string;
  type: 'message';
  role: 'assistant';
  model: string;
  content: ContentBlock[];
  usage: MessageUsage;
}

export type MessageEvent =
  | { type: 'message_start'; message: MessageObject }
  | BlockEvent
  | { type: 'message_delta'; delta: MessageEnd; usage: MessageTokens }
  | { type: 'message_stop' }
  | { type: 'ping' };

export interface MessagesErrorBody {
  type: 'error';
  error: { type: string; message: string; details?: { error_code: string } };
  request_id: string | null;
}
