import { beforeAll, describe, expect, test } from 'vitest';
import { parseExactJson, withExactNumbers } from '../../../src/api/exact-json.ts';
import { toChatPrompt } from '../../../src/api/requests/render.ts';
import { loadPromptRenderer } from '../../../src/control/sessions/load-renderer.ts';
import type { PromptRenderer, RenderInput } from '../../../src/control/sessions/prompt-renderer.ts';
import { historyTokens } from '../../../src/control/training/history-tokens.ts';
import { parseConversation } from '../../../src/control/training/sft-data.ts';
import { sftChat } from '../../../src/control/training/sft-tokens.ts';
import { parseWithTools, writeGroup, writeRow } from '../../../src/control/training/tool-numbers.ts';
import { historiesOf, type TrajectoryGroup } from '../../../src/control/training/trajectories.ts';
import type { RequestMessage } from '../../../src/schemas/chat-completion.ts';
import { STARTER } from '../../fixtures/starter.ts';
import { starterChat, type StarterChat } from './chat-encoder.ts';

const tool = (bound: string) => `{"type":"function","function":{"name":"f","parameters":{"maximum":${bound}}}}`;
const group = (tools: string, rest = '') => `{"trajectories":[{"messages_and_choices":[],"tools":[${tools}]${rest}}]}`;
const stored = (text: string) => writeGroup(parseWithTools(text) as TrajectoryGroup);

describe('a group that is stored', () => {
  const others = (tools: string) => `,"additional_histories":[{"messages_and_choices":[],"tools":[${tools}]}]`;

  test.each([
    ['of a trajectory', group(tool('1.0'))],
    ['of its other histories', group('', others(tool('9007199254740993')))],
    ['of both', group(`${tool('1')},${tool('-0.0')}`, others(tool('2.0')))],
    ['beside text that looks like them', group(tool('1.0'), ',"logs":["{\\"tools\\":[2.0]} ]"]')],
    ['behind a text of many megabytes', group(tool('1.0').replace('"f"', `"f","description":"${'a]'.repeat(8e6)}"`))],
    ['without any that would change', group(tool('0.5'))],
  ])('keeps the numbers in the tools %s', (_name, text) => {
    expect(stored(text)).toBe(text);
    expect(stored(stored(text))).toBe(text);
  });

  test.each([
    ['metadata', group('', ',"metadata":{"tools":[1.0]}'), group('', ',"metadata":{"tools":[1]}')],
    ['a tool besides its parameters', group('{"x":1.0}'), group('{"x":1}')],
    ['tools that are none', group('1.0,[2.0],null'), group('1,[2],null')],
    ['what is no parameters', group('{"function":{"parameters":1.0}}'), group('{"function":{"parameters":1}}')],
    ['rewards', group(tool('1.0'), ',"reward":1.0'), group(tool('1.0'), ',"reward":1')],
  ])('has plain numbers in %s', (_name, text, written) => {
    expect(stored(text)).toBe(written);
  });

  test.each(['null', '[]', '1.0', '{"trajectories":[null,{"tools":null}],"tools":[1.0]}'])('%s is read', (text) => {
    expect(parseWithTools(text)).toEqual(JSON.parse(text));
  });

  test.each(['{"tools":[1.0.0]}', '{"tools":[1.0}', '{"tools":[1.0]'])('%s is no JSON', (text) => {
    expect(() => parseWithTools(text)).toThrow(SyntaxError);
  });
});

describe('the prompt that is trained on is the one that was answered', () => {
  const TOOLS = `[${tool('1.0')},${tool('9223372036854775807')}]`;
  const MESSAGES: RequestMessage[] = [{ role: 'user', content: 'hi' }];
  let renderer: PromptRenderer;
  let chat: StarterChat;
  beforeAll(async () => {
    renderer = await loadPromptRenderer({ modelPath: STARTER, maxModelLen: 1024 });
    chat = await starterChat();
  });

  const answered = (): string => {
    const body = parseExactJson(`{"tools":${TOOLS}}`, new Set());
    const rules = { trustsTemplates: false, defaultTemplateKwargs: {} };
    const prompt = toChatPrompt(MESSAGES, withExactNumbers(body as object, body), rules) as RenderInput;
    return chat.text(renderer.render(prompt).ids);
  };

  test('and shows the numbers as they were sent', () => {
    expect(answered()).toContain('"maximum": 1.0}');
    expect(answered()).toContain('"maximum": 9223372036854775807}');
  });

  test('of a trajectory', async () => {
    const content = chat.ids('yes').map((id) => ({ token: `token_id:${id}`, logprob: -1 }));
    const choice = { finish_reason: 'stop', message: { role: 'assistant', content: 'yes' }, logprobs: { content } };
    const elements = JSON.stringify([...MESSAGES, choice]);
    const text = stored(`{"trajectories":[{"messages_and_choices":${elements},"tools":${TOOLS}}]}`);
    const [history] = historiesOf((parseWithTools(text) as TrajectoryGroup).trajectories[0] ?? {});
    const [sequence] = await historyTokens(history ?? { messages_and_choices: [] }, 'h', {
      chat,
      withoutLogprobs: false,
    });
    expect(chat.text(sequence?.tokens ?? [])).toContain(answered());
  });

  test('of a row', async () => {
    const messages = [...MESSAGES, { role: 'assistant', content: 'yes' }];
    const row = parseWithTools(`{"messages":${JSON.stringify(messages)},"tools":${TOOLS}}`) as { tools: unknown };
    const conversation = parseConversation({ bytes: Buffer.from(writeRow(row)), number: 1 });
    const ids = await chat.encodeChat(sftChat(conversation, chat.chatTemplate));
    const tools = answered().slice(0, answered().indexOf('</tools>'));
    expect(tools).toContain('1.0}');
    expect(chat.text(ids)).toContain(tools);
  });
});
