/**
 * What a model wrote, told apart: reasoning, content, tool calls.
 *
 * A parser is one state machine over text. A whole output is parsed by the same machine, so a stream cut anywhere adds up
 * to the same result. What was handed out cannot be taken back, hence these rules for all formats:
 * - A call is handed out when nothing can make it invalid any more: JSON and Python calls when their text is complete and
 *   valid, parameter-tag calls (qwen3_coder) piece by piece, since any text makes a valid value, and calls under a grammar
 *   (required, named) as they come. With the timing `begun`, for streams, JSON calls come piece by piece too, once their name is known and
 *   an object begins as their arguments, and Python calls, once their first value begins: whoever waits for a long call sees it grow. What
 *   breaks off then leaves its arguments cut.
 * - From the first broken call on, everything that was not handed out is content, verbatim. Where no call stood before it (nearly
 *   always), that is the whole output; calls that were complete before it
 *   stand, in one list or array with it too.
 * - Where only the first call is wanted, a later one is dropped once it begins, in streams and whole outputs alike; if it then breaks off,
 *   all behind it is dropped with it.
 * - Names are not compared with the tools that there are, as in vLLM, but for Python's calls, which prose can look like (pythonic.ts).
 * - White space around calls is dropped; other text before, between and after calls is content.
 */
export interface ToolCallDelta {
  /** Position of the call in its choice. */
  index: number;
  /** With the first delta of a call only, like `name`. */
  id?: string;
  name?: string;
  /** A piece; all pieces of a call together are one JSON object. */
  arguments?: string;
}

/** `at`: where the content begins in the output; absent where nothing took that apart: behind the content before it. */
export type ParsedDelta = { reasoning: string } | { content: string; at?: number } | { toolCall: ToolCallDelta };

/** Text that follows on text of its kind is one delta with it. */
export function appendDelta(deltas: ParsedDelta[], delta: ParsedDelta): void {
  const last = deltas.at(-1);
  if (last && 'content' in last && 'content' in delta && follows(last, delta)) last.content += delta.content;
  else if (last && 'reasoning' in last && 'reasoning' in delta) last.reasoning += delta.reasoning;
  else deltas.push(delta);
}

/** Between two contents there may be marks of the format. */
function follows(last: { content: string; at?: number }, { at }: { at?: number }): boolean {
  return at === undefined || last.at === undefined || at === last.at + last.content.length;
}

export interface OutputParser {
  /** What the text so far decides; text that may still become markup stays inside. */
  push(text: string): ParsedDelta[];
  /** The output ended: the rest. Call once. */
  finish(): ParsedDelta[];
  /** True while what comes next would be reasoning (to count reasoning tokens, and to hold a grammar back). */
  readonly inReasoning: boolean;
}

export interface ToolCall {
  id: string;
  name: string;
  /** JSON text of an object. */
  arguments: string;
}

export interface ParsedOutput {
  reasoning: string;
  content: string;
  toolCalls: ToolCall[];
}

export function joinCall(calls: ToolCall[], delta: ToolCallDelta): void {
  const call = (calls[delta.index] ??= { id: '', name: '', arguments: '' });
  call.id += delta.id ?? '';
  call.name += delta.name ?? '';
  call.arguments += delta.arguments ?? '';
}
