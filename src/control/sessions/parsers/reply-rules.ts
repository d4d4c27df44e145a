/** What the outcome of parsing means for the other fields of a reply. */
import type { ToolMode } from './create-parser.ts';
import { JsonScanner, scanJson } from './json-scanner.ts';
import type { ParsedOutput, ToolCallDelta } from './output-parser.ts';

/** tool_calls only where the model stopped by itself after whole calls that it chose; a named tool's call ends with stop. */
export function finishReason<Reason extends string>(
  engine: Reason,
  tools: ToolMode,
  hasCalls: boolean,
): Reason | 'tool_calls' {
  const chose = tools === 'auto' || tools === 'required';
  return chose && hasCalls && engine === 'stop' ? 'tool_calls' : engine;
}

/** Whether a call can be run: its arguments did not break off. */
export function isWholeCall(json: string): boolean {
  return scanJson(json)?.root === '{';
}

/**
 * Whether a reply has a whole call. What a stream told of one that broke off is nothing to end a turn for: clients
 * may complete its JSON and run it.
 */
export class CallWatch {
  hasWhole = false;
  #scanner = new JsonScanner();

  /** Call with all deltas of one choice, in order. */
  take({ id, arguments: json = '' }: ToolCallDelta): void {
    if (this.hasWhole) return;
    if (id !== undefined) this.#scanner = new JsonScanner();
    this.#scanner.feed(json, 0);
    this.hasWhole = this.#scanner.status === 'done' && this.#scanner.root === '{';
  }
}

/** The message's `content`: "" for required and named tools, null where only calls or thoughts are. */
export function messageContent(output: ParsedOutput, tools: ToolMode): string | null {
  if (output.content !== '' || tools === 'required' || typeof tools === 'object') return output.content;
  return output.toolCalls.length > 0 || output.reasoning !== '' ? null : '';
}
