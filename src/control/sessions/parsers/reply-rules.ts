/** What the outcome of parsing means for the other fields of a reply. */
import type { ToolMode } from './create-parser.ts';
import type { ParsedOutput } from './output-parser.ts';

/** tool_calls only where the model stopped by itself after calls that it chose; a named tool's call ends with stop. */
export function finishReason<Reason extends string>(
  engine: Reason,
  tools: ToolMode,
  hasCalls: boolean,
): Reason | 'tool_calls' {
  const chose = tools === 'auto' || tools === 'required';
  return chose && hasCalls && engine === 'stop' ? 'tool_calls' : engine;
}

/** The message's `content`: "" for required and named tools, null where only calls or thoughts are. */
export function messageContent(output: ParsedOutput, tools: ToolMode): string | null {
  if (output.content !== '' || tools === 'required' || typeof tools === 'object') return output.content;
  return output.toolCalls.length > 0 || output.reasoning !== '' ? null : '';
}
