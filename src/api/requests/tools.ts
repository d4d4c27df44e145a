/** tools, tool_choice, parallel_tool_calls and include_reasoning: their rules, and how the reply is to be read. */
import type { ReplyOptions } from '../../control/sessions/session.ts';
import type { ChatCompletionRequest } from '../../schemas/chat-completion.ts';
import { isPlainObject } from '../../schemas/plain-object.ts';
import { refuse } from './refuse.ts';

/** Most tools of one request; every prompt holds them all. */
const MAX_TOOLS = 1024;

export function toReplyOptions(body: ChatCompletionRequest): ReplyOptions {
  const tools = body.tools ?? [];
  if (tools.length > MAX_TOOLS) refuse(`\`tools\` must have at most ${MAX_TOOLS} items.`, 'tools');
  return {
    tools: toolMode(body, tools),
    needsToolFormat: tools.length === 0 || body.tool_choice !== null,
    toolDefinitions: tools,
    parallelToolCalls: body.parallel_tool_calls ?? true,
    streamsCalls: body.stream ?? false,
    includeReasoning: body.include_reasoning ?? true,
  };
}

/** Absent or null with tools = auto; null asks for nothing that could be refused. "none" keeps the tools in the prompt and never looks for calls. */
function toolMode(body: ChatCompletionRequest, tools: readonly unknown[]): ReplyOptions['tools'] {
  const choice = body.tool_choice ?? null;
  if (choice === null) return tools.length > 0 ? 'auto' : 'none';
  if (choice === 'none') return 'none';
  if (tools.length === 0) refuse('When using `tool_choice`, `tools` must be set.', 'tool_choice');
  if (choice === 'auto') return 'auto';
  return choice === 'required' ? 'required' : { named: namedTool(choice, tools) };
}

function namedTool(choice: string | Record<string, unknown>, tools: readonly unknown[]): string {
  if (typeof choice === 'string') {
    refuse(
      `tool_choice must be "none", "auto", "required" or a function, got ${JSON.stringify(choice.slice(0, 40))}.`,
      'tool_choice',
    );
  }
  const name = isPlainObject(choice['function']) ? choice['function']['name'] : undefined;
  if (choice['type'] !== 'function' || typeof name !== 'string') {
    refuse('tool_choice must have the form {"type": "function", "function": {"name": ...}}.', 'tool_choice');
  }
  if (!tools.some((tool) => functionOf(tool)?.['name'] === name)) {
    refuse('The tool specified in `tool_choice` does not match any of the specified `tools`', 'tool_choice');
  }
  return name;
}

function functionOf(tool: unknown): Record<string, unknown> | null {
  return isPlainObject(tool) && isPlainObject(tool['function']) ? tool['function'] : null;
}
