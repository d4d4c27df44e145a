/** tools and tool_choice as the Messages API writes them, in the form of chat completions. */
import type { ChatCompletionRequest } from '../../schemas/chat-completion.ts';
import type { CountTokensRequest, MessagesToolChoice } from '../../schemas/messages.ts';
import { isPlainObject } from '../../schemas/plain-object.ts';
import { echo } from '../../schemas/validator.ts';
import { ApiError } from '../errors.ts';
import { refuse } from './refuse.ts';

type Tool = Record<string, unknown>;
type ChatTools = Required<Pick<ChatCompletionRequest, 'tools' | 'tool_choice' | 'parallel_tool_calls'>>;

export function toChatTools(body: Pick<CountTokensRequest, 'tools' | 'tool_choice'>): ChatTools {
  const tools = (body.tools ?? []).map((tool, index) => toChatTool(tool, `tools.${index}`));
  const choice = body.tool_choice ?? { type: 'auto' as const };
  return {
    tools: tools.length === 0 ? null : tools,
    tool_choice: toChatChoice(choice, tools),
    parallel_tool_calls: choice.disable_parallel_tool_use !== true,
  };
}

function toChatTool(tool: Tool, at: string): Tool {
  const { name, description, input_schema: parameters, strict } = tool;
  checkType(tool, at);
  if (typeof name !== 'string' || name === '') refuse(`${at}.name must be a text that is not empty.`, `${at}.name`);
  if (!isPlainObject(parameters)) {
    const message =
      parameters === undefined
        ? `${at}.input_schema: Field required (missing)`
        : `${at}.input_schema: Input should be object, got ${echo(parameters)}.`;
    throw new ApiError('invalid_body', message, `${at}.input_schema`);
  }
  const described = optional(tool, 'description', 'string', at) ? { description } : {};
  const held = optional(tool, 'strict', 'boolean', at) && strict === true ? { strict } : {};
  refuseLimited(tool, at);
  return { type: 'function', function: { name, ...described, parameters, ...held } };
}

/** Those of the interface that run on its server, and those whose description only its models know. */
function checkType({ type }: Tool, at: string): void {
  if (type === undefined || type === null || type === 'custom') return;
  const message = `${at}.type: tools of type ${echo(type)} are not supported by this server: only custom tools, with an input_schema, are.`;
  throw new ApiError('not_built', message, `${at}.type`);
}

/** By name: what asks for nothing that is not there. */
const LIMITED: Readonly<Record<string, (value: unknown) => boolean>> = {
  defer_loading: (value) => value === false,
  input_examples: (value) => Array.isArray(value) && value.length === 0,
  allowed_callers: (value) => Array.isArray(value) && value.every((caller) => caller === 'direct'),
};

function refuseLimited(tool: Tool, at: string): void {
  for (const [key, takes] of Object.entries(LIMITED)) {
    const value = Object.hasOwn(tool, key) ? (tool[key] ?? null) : null;
    if (value === null || takes(value)) continue;
    throw new ApiError('not_built', `${at}.${key} is not supported by this server.`, `${at}.${key}`);
  }
}

/** Whether it is there. */
function optional(tool: Tool, key: string, type: 'string' | 'boolean', at: string): boolean {
  const value = tool[key] ?? null;
  if (value === null) return false;
  if (typeof value === type) return true;
  throw new ApiError('invalid_body', `${at}.${key}: Input should be ${type}, got ${echo(value)}.`, `${at}.${key}`);
}

/** Without tools the model chooses none: `auto` and `none` ask for nothing then. */
function toChatChoice({ type, name }: MessagesToolChoice, tools: readonly Tool[]): ChatTools['tool_choice'] {
  if (type === 'none' || type === 'auto') return tools.length === 0 ? null : type;
  if (tools.length === 0) refuse('tool_choice needs `tools`.', 'tool_choice');
  if (type === 'any') return 'required';
  if (typeof name !== 'string') refuse('tool_choice.name: Field required (missing)', 'tool_choice.name');
  if (!tools.some((tool) => (tool['function'] as Tool)['name'] === name)) {
    refuse(`tool_choice.name: there is no tool ${echo(name)}.`, 'tool_choice.name');
  }
  return { type: 'function', function: { name } };
}
