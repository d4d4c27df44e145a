/** tools and tool_choice as the Responses API writes them, in the form of chat completions. */
import type { ChatCompletionRequest } from '../../schemas/chat-completion.ts';
import { isPlainObject } from '../../schemas/plain-object.ts';
import type { ResponsesRequest, ToolChoice } from '../../schemas/responses.ts';
import { shorten } from '../../schemas/shorten.ts';
import { echo } from '../../schemas/validator.ts';
import { ApiError } from '../errors.ts';
import { refuse } from './refuse.ts';

type Tool = Record<string, unknown>;

/** `tools`: null where the model is to know none. */
export interface ChatTools extends Required<
  Pick<ChatCompletionRequest, 'tools' | 'tool_choice' | 'parallel_tool_calls'>
> {
  /** Where each of the tools stands in the request. */
  places: string[];
}

interface Placed {
  tool: Tool;
  at: string;
  /** Of a function of a namespace: its name without it. */
  ownName?: unknown;
}

/** A function of a namespace, as the client knows it. */
export interface NamespacedName {
  namespace: string;
  name: string;
}

/** To the model a namespace is the beginning of a name. */
export function flatName(namespace: string, name: string): string {
  return `${namespace}__${name}`;
}

/** The functions of namespaces by the names that the model knows. */
export function namespacedNames(body: ResponsesRequest): ReadonlyMap<string, NamespacedName> {
  const names = new Map<string, NamespacedName>();
  for (const { type, name: namespace, tools } of body.tools ?? []) {
    if (type !== 'namespace' || !Array.isArray(tools)) continue;
    for (const { name } of tools as Tool[]) {
      names.set(flatName(String(namespace), String(name)), { namespace: String(namespace), name: String(name) });
    }
  }
  return names;
}

export function toChatTools(body: ResponsesRequest): ChatTools {
  const placed = (body.tools ?? []).flatMap((tool, index) => withNamespace(tool, `tools[${index}]`));
  refuseTwins(placed, namespacedNames(body));
  const choice = body.tool_choice ?? 'auto';
  const parallel = { parallel_tool_calls: body.parallel_tool_calls ?? true };
  if (isPlainObject(choice) && choice['type'] === 'allowed_tools') return { ...allowed(choice, placed), ...parallel };
  return { ...listed(placed), tool_choice: toChatChoice(choice, placed), ...parallel };
}

function listed(placed: readonly Placed[]): Pick<ChatTools, 'tools' | 'places'> {
  const tools = placed.length === 0 ? null : placed.map(({ tool }) => tool);
  return { tools, places: placed.map(({ at }) => at) };
}

function withNamespace(tool: Tool, at: string): Placed[] {
  if (tool['type'] !== 'namespace') return [{ tool: toChatTool(tool, at), at }];
  const { name, description, tools } = tool;
  if (typeof name !== 'string' || name === '') refuse(`${at}.name must be a text that is not empty.`, `${at}.name`);
  if (!Array.isArray(tools)) refuse(`${at}.tools: Field required (missing)`, `${at}.tools`);
  return (tools as Tool[]).map((each, index) => {
    const place = `${at}.tools[${index}]`;
    const chat = toChatTool(each, place);
    const called = chat['function'] as Tool;
    const described = [description, called['description']].filter((text) => typeof text === 'string').join(' ');
    const full = described === '' ? {} : { description: described };
    const named = { ...called, ...full, name: flatName(name, String(called['name'])) };
    return { tool: { ...chat, function: named }, at: place, ownName: called['name'] };
  });
}

/** Which of two was called could not be told. */
function refuseTwins(tools: readonly Placed[], namespaces: ReadonlyMap<string, NamespacedName>): void {
  const seen = new Set<unknown>();
  for (const name of namespaces.size === 0 ? [] : tools.map(nameOf)) {
    if (seen.has(name)) refuse(`Two tools have the name ${echo(name)} where their namespace is a part of it.`, 'tools');
    seen.add(name);
  }
}

function toChatTool(tool: Tool, at: string): Tool {
  const { type, name, description, parameters, strict } = tool;
  if (type !== 'function') {
    const message = `Tools of type ${echo(type)} are not supported by this server: only functions, which the client runs, are.`;
    throw new ApiError('not_built', message, `${at}.type`);
  }
  if (typeof name !== 'string' || name === '') refuse(`${at}.name must be a text that is not empty.`, `${at}.name`);
  const described = isUnset(description) ? {} : { description };
  const shaped = isUnset(parameters) ? {} : { parameters };
  return { type, function: { name, ...described, ...shaped, ...(strict === true ? { strict } : {}) } };
}

/** Without tools the model chooses none: `auto` asks for nothing then. */
function toChatChoice(choice: ToolChoice, tools: readonly Placed[]): ToolChoice | null {
  if (choice === 'none') return choice;
  if (choice === 'auto') return tools.length === 0 ? null : choice;
  if (tools.length === 0) refuse('When using `tool_choice`, `tools` must be set.', 'tool_choice');
  if (choice === 'required') return choice;
  if (typeof choice === 'string') {
    refuse(
      `tool_choice must be "none", "auto", "required" or an object, got ${JSON.stringify(shorten(choice, 40))}.`,
      'tool_choice',
    );
  }
  if (choice['type'] !== 'function') {
    const message = `tool_choice of type ${echo(choice['type'])} is not supported: "function" and "allowed_tools" are.`;
    throw new ApiError('not_built', message, 'tool_choice.type');
  }
  if (typeof choice['name'] !== 'string') {
    refuse('tool_choice must have the form {"type": "function", "name": ...}.', 'tool_choice.name');
  }
  return { type: 'function', function: { name: nameChooser(tools)(choice) } };
}

/** From what a choice says to the name that the model knows. A namespace may be left out where the function's own name tells which it is. */
function nameChooser(tools: readonly Placed[]): (choice: Tool) => unknown {
  const known = new Set(tools.map(nameOf));
  const byOwnName = new Map<unknown, unknown>();
  for (const tool of tools) {
    const { ownName } = tool;
    if (ownName !== undefined) byOwnName.set(ownName, byOwnName.has(ownName) ? undefined : nameOf(tool));
  }
  return ({ name, namespace }) => {
    if (typeof namespace === 'string') return flatName(namespace, String(name));
    return known.has(name) ? name : (byOwnName.get(name) ?? name);
  };
}

/** The others are left out, of the prompt too. */
function allowed(choice: Tool, tools: Placed[]): Omit<ChatTools, 'parallel_tool_calls'> {
  const { mode, tools: wanted } = choice;
  if (mode !== 'auto' && mode !== 'required') {
    refuse(`tool_choice.mode must be "auto" or "required", got ${echo(mode)}.`, 'tool_choice.mode');
  }
  if (!Array.isArray(wanted) || wanted.length === 0) {
    refuse('tool_choice.tools must be a list that is not empty.', 'tool_choice.tools');
  }
  const known = new Set(tools.map(nameOf));
  const nameIn = nameChooser(tools);
  const names = new Set(
    wanted.map((entry: unknown, index) => {
      const name = isPlainObject(entry) && entry['type'] === 'function' ? nameIn(entry) : undefined;
      if (known.has(name)) return name;
      const at = `tool_choice.tools[${index}]`;
      refuse(`${at} must be {"type": "function", "name": ...} of one of the tools.`, at);
    }),
  );
  return { ...listed(tools.filter((tool) => names.has(nameOf(tool)))), tool_choice: mode };
}

function nameOf({ tool }: Placed): unknown {
  return (tool['function'] as Tool)['name'];
}

function isUnset(value: unknown): value is undefined | null {
  return value === undefined || value === null;
}
