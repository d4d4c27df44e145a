/** Which messages leave where a conversation no longer fits. */
import { expect, test } from 'vitest';
import { fitConversation } from '../../../src/api/requests/truncate-conversation.ts';
import type { RequestMessage } from '../../../src/schemas/chat-completion.ts';

/** One message per letter: Instructions, User, Assistant, Tool. */
function conversation(roles: string): RequestMessage[] {
  const names: Record<string, string> = { I: 'system', D: 'developer', U: 'user', A: 'assistant', T: 'tool' };
  return [...roles].map((role, at) => ({ role: names[role] ?? '', content: String(at) }));
}

/** The places of what is kept where so many messages fit, and how often it was asked. */
async function kept(roles: string, room: number): Promise<[string, number]> {
  let asked = 0;
  const fits = (messages: RequestMessage[]) => {
    asked++;
    return Promise.resolve(messages.length <= room);
  };
  const messages = await fitConversation(conversation(roles), fits);
  return [messages.map(({ content }) => String(content)).join(''), asked];
}

test.each([
  ['UAUAU', 5, '01234'],
  ['UAUAU', 4, '234'],
  ['UAUAU', 1, '4'],
  ['IUAUAU', 4, '0345'],
  ['IDUAUAU', 3, '016'],
  ['UATAU', 4, '4'],
  // One long turn of calls: its oldest leave, an answer never without its call.
  ['UATATAT', 5, '3456'],
  ['UATTATT', 5, '456'],
  // Nothing fits: the shortest is left.
  ['UAUAU', 0, '4'],
  ['IU', 1, '01'],
  ['I', 0, '0'],
])('of %s, with room for %i: %s', async (roles, room, expected) => {
  expect((await kept(roles, room))[0]).toBe(expected);
});

test('of very many messages few are asked about', async () => {
  const [, asked] = await kept('UA'.repeat(8000), 3);
  expect(asked).toBeLessThan(20);
});
