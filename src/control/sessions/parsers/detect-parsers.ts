/** Which parsers fit a model, told by the marks in its chat template. */
import type { ReasoningParserName, ToolParserName } from './create-parser.ts';

export interface DetectedParsers {
  tool: ToolParserName | null;
  reasoning: ReasoningParserName | null;
}

export function detectParsers(chatTemplate: string): DetectedParsers {
  const has = (mark: string) => chatTemplate.includes(mark);
  if (has('<|channel|>') && has('<|message|>')) return { tool: 'harmony', reasoning: 'harmony' };
  return { tool: toolParser(has), reasoning: reasoningParser(has) };
}

function toolParser(has: (mark: string) => boolean): ToolParserName | null {
  if (has('[TOOL_CALLS]')) return 'mistral';
  if (has('<tool_call>')) return has('<function=') ? 'qwen3_coder' : 'hermes';
  // Llama 4 and the pythonic templates show the list of calls as an example.
  if (has('<|python_start|>') || has('[func_name1(')) return 'pythonic';
  const isLlama3 = has('<|start_header_id|>') && has('ipython');
  return isLlama3 && has('{"name": ') && has('"parameters": ') ? 'llama3_json' : null;
}

function reasoningParser(has: (mark: string) => boolean): ReasoningParserName | null {
  if (!has('<think>') || !has('</think>')) return null;
  return has('<｜Assistant｜>') ? 'deepseek_r1' : 'qwen3';
}
